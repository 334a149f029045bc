#include "data/loading/weighed_dataset.h"

#include <utility>

#include "data/loading/forwarding_dataset.h"
#include "runtime/base/error.h"
#include "runtime/layers/soft_cross_entropy.h"

namespace millrace {
namespace {

FieldValue value_of(const Dataset& dataset, std::int64_t index, Wanted wanted, int field) {
  return std::move(dataset.get(index, 0, wanted).at(static_cast<std::size_t>(field)));
}

std::int64_t weight_of(const Dataset& dataset, std::int64_t index, Wanted wanted,
                       const WeighedLabels& labels) {
  const FieldValue value = value_of(dataset, index, wanted, labels.field);
  const at::Tensor& tensor = value.tensor;
  const std::span<const std::int64_t> all =
      tensor.defined()
          ? std::span(tensor.const_data_ptr<std::int64_t>(), static_cast<std::size_t>(tensor.numel()))
          : std::span(&value.number, 1);
  const std::int64_t weight =
      labels.head->weight_of(all, tensor.defined() ? tensor.sizes() : at::IntArrayRef());
  if (weight >= 0) return weight;
  throw DataError(dataset.describe() + ": label " + std::to_string(all[0]) + " is outside the model's " +
                      std::to_string(labels.classes) + " classes",
                  "give --classes N as the data set has");
}

std::vector<char> wanted_label(std::size_t fields, int field) {
  std::vector<char> wanted(fields, 0);
  wanted[static_cast<std::size_t>(field)] = 1;
  return wanted;
}

class WeighedDataset final : public ForwardingDataset {
 public:
  WeighedDataset(std::shared_ptr<const Dataset> dataset, std::size_t fields, WeighedLabels labels)
      : ForwardingDataset(std::move(dataset)),
        wanted_(wanted_label(fields, labels.field)),
        labels_(std::move(labels)),
        weights_(weights_of(inner(), fields, labels_)) {}
  void measure(std::int64_t index, std::span<std::int64_t> lengths,
               std::span<std::int64_t> counts) const override {
    ForwardingDataset::measure(index, lengths, counts);
    // Samples that differ from epoch to epoch have indices beyond the first one's (Dataset::order).
    counts[static_cast<std::size_t>(labels_.count)] = index < static_cast<std::int64_t>(weights_.size())
                                                          ? weights_[static_cast<std::size_t>(index)]
                                                          : weight_of(inner(), index, wanted_, labels_);
  }

 private:
  std::vector<char> wanted_;
  WeighedLabels labels_;
  std::vector<std::int64_t> weights_;  // by sample of an epoch
};

}  // namespace

std::vector<std::int64_t> labels_of(const Dataset& dataset, std::size_t fields, int field) {
  const std::vector<char> wanted = wanted_label(fields, field);
  std::vector<std::int64_t> labels(static_cast<std::size_t>(dataset.size()));
  for (std::size_t i = 0; i < labels.size(); ++i) {
    const FieldValue value = value_of(dataset, static_cast<std::int64_t>(i), wanted, field);
    labels[i] = value.tensor.defined() ? value.tensor.item<std::int64_t>() : value.number;
  }
  return labels;
}

std::vector<std::int64_t> weights_of(const Dataset& dataset, std::size_t fields,
                                     const WeighedLabels& labels) {
  const std::vector<char> wanted = wanted_label(fields, labels.field);
  std::vector<std::int64_t> weights(static_cast<std::size_t>(dataset.size()));
  for (std::size_t i = 0; i < weights.size(); ++i)
    weights[i] = weight_of(dataset, static_cast<std::int64_t>(i), wanted, labels);
  return weights;
}

std::shared_ptr<const Dataset> weighed(std::shared_ptr<const Dataset> dataset, std::size_t fields,
                                       WeighedLabels labels) {
  return std::make_shared<WeighedDataset>(std::move(dataset), fields, std::move(labels));
}

}  // namespace millrace
