// A data set around another one.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "data/loading/dataset.h"

namespace millrace {

/// Forwards every call to another data set. A decorator overrides the functions that it changes.
class ForwardingDataset : public Dataset {
 public:
  explicit ForwardingDataset(std::shared_ptr<const Dataset> dataset) : dataset_(std::move(dataset)) {}
  std::int64_t size() const override { return dataset_->size(); }
  Sample get(std::int64_t index, std::uint64_t augment_seed, Wanted wanted) const override {
    return dataset_->get(index, augment_seed, wanted);
  }
  std::string describe() const override { return dataset_->describe(); }
  int num_classes() const override { return dataset_->num_classes(); }
  void measure(std::int64_t index, std::span<std::int64_t> lengths,
               std::span<std::int64_t> counts) const override {
    dataset_->measure(index, lengths, counts);
  }
  std::vector<std::int64_t> order(const EpochOrder& epoch) const override { return dataset_->order(epoch); }
  std::int64_t samples_in_epoch(std::int64_t per_step) const override {
    return dataset_->samples_in_epoch(per_step);
  }
  std::int64_t stride() const override { return dataset_->stride(); }
  std::string fingerprint() const override { return dataset_->fingerprint(); }
  std::vector<std::pair<std::string, std::string>> recorded() const override { return dataset_->recorded(); }
  std::vector<std::string> notes() const override { return dataset_->notes(); }
  StorageReads storage_reads() const override { return dataset_->storage_reads(); }
  std::map<std::int64_t, unsigned> odd_samples() const override { return dataset_->odd_samples(); }
  std::int64_t left_out() const override { return dataset_->left_out(); }
  std::string name_of(std::int64_t index) const override { return dataset_->name_of(index); }

 protected:
  const Dataset& inner() const { return *dataset_; }

 private:
  std::shared_ptr<const Dataset> dataset_;
};

}  // namespace millrace
