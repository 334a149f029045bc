// Batch sources made of others: at another place of a run, and of the jobs of an array that read their own.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "runtime/train/trainer.h"

namespace millrace {

/// What `inner` has at a position less `by()`, which is asked at each call. `inner` outlives it.
class ShiftedBatches final : public BatchSource {
 public:
  ShiftedBatches(BatchSource& inner, std::function<std::int64_t()> by) : inner_(inner), by_(std::move(by)) {}
  /// Owns `inner`.
  ShiftedBatches(std::unique_ptr<BatchSource> inner, std::function<std::int64_t()> by)
      : owned_(std::move(inner)), inner_(*owned_), by_(std::move(by)) {}
  Batch get(std::int64_t position) override { return inner_.get(position - by_()); }
  void seek(std::int64_t position) override { inner_.seek(position - by_()); }
  BatchExtent extent(std::int64_t position) const override { return inner_.extent(position - by_()); }

 private:
  std::unique_ptr<BatchSource> owned_;
  BatchSource& inner_;
  std::function<std::int64_t()> by_;
};

/// What the jobs of an array read, each its own (JobData::Own): fields of job 0, then those of job 1, ...
/// `fields`: of one job. Throws DataError where the jobs' evaluations differ in length, and later where their
/// microbatches do.
BatchSources batches_of_jobs(const std::vector<MakeBatches>& jobs, std::size_t fields,
                             const BatchNeeds& train, const BatchNeeds& evaluation,
                             const std::function<std::int64_t(std::size_t job)>& begins_at);

}  // namespace millrace
