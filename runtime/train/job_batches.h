// Batch sources that wrap other batch sources: one that shifts positions, and one for an array whose jobs
// read their own batches.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/train/trainer.h"

namespace millrace {

/// Returns at each position the batch of `inner` at that position minus `by()`. `by` is called each time.
/// `inner` must outlive the object.
class ShiftedBatches final : public BatchSource {
 public:
  ShiftedBatches(BatchSource& inner, std::function<std::int64_t()> by) : inner_(inner), by_(std::move(by)) {}
  /// This constructor takes ownership of `inner`.
  ShiftedBatches(std::unique_ptr<BatchSource> inner, std::function<std::int64_t()> by)
      : owned_(std::move(inner)), inner_(*owned_), by_(std::move(by)) {}
  Batch get(std::int64_t position) override { return inner_.get(position - by_()); }
  void seek(std::int64_t position) override { inner_.seek(position - by_()); }
  BatchExtent extent(std::int64_t position) const override { return inner_.extent(position - by_()); }
  std::string nonfinite_sample(std::int64_t from, std::int64_t to) const override {
    return inner_.nonfinite_sample(from - by_(), to - by_());
  }

 private:
  std::unique_ptr<BatchSource> owned_;
  BatchSource& inner_;
  std::function<std::int64_t()> by_;
};

/// Makes the sources of an array whose jobs read their own batches (JobData::Own). A batch has the fields of
/// job 0, then those of job 1, and so on; so do the counts of its extent. `fields` is the number of fields of
/// one job. Job `job` reads its own position `position - begins_at(job)`. Throws DataError if the jobs'
/// evaluations differ in length. The sources throw DataError later if the jobs' microbatches differ in size.
BatchSources batches_of_jobs(const std::vector<MakeBatches>& jobs, std::size_t fields,
                             const BatchNeeds& train, const BatchNeeds& evaluation,
                             const std::function<std::int64_t(std::size_t job)>& begins_at);

}  // namespace millrace
