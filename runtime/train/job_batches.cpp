#include "runtime/train/job_batches.h"

#include <utility>

#include "runtime/base/error.h"

namespace millrace {
namespace {

class JobBatches final : public BatchSource {
 public:
  explicit JobBatches(std::vector<std::unique_ptr<BatchSource>> jobs) : jobs_(std::move(jobs)) {}
  Batch get(std::int64_t position) override {
    Batch all;
    for (const auto& job : jobs_) {
      for (at::Tensor& field : job->get(position).fields) all.fields.push_back(std::move(field));
    }
    return all;
  }
  void seek(std::int64_t position) override {
    for (const auto& job : jobs_) job->seek(position);
  }
  /// Returns the extent that all jobs share. Messages have the samples of every job, so extents that differ
  /// are an error. Counts are those of job 0, then those of job 1, and so on.
  BatchExtent extent(std::int64_t position) const override {
    BatchExtent first = jobs_.front()->extent(position), all = first;
    for (std::size_t job = 1; job < jobs_.size(); ++job) {
      BatchExtent own = jobs_[job]->extent(position);
      all.counts.insert(all.counts.end(), own.counts.begin(), own.counts.end());
      own.counts = first.counts;
      if (own == first) continue;
      throw DataError("the batches of jobs 0 and " + std::to_string(job) +
                          " of an array differ in size or in what they follow",
                      "leave out --keep-last, or give as many --arrays as jobs");
    }
    return all;
  }
  std::string nonfinite_sample(std::int64_t from, std::int64_t to) const override {
    std::string found;
    for (std::size_t job = 0; job < jobs_.size() && found.empty(); ++job)
      found = jobs_[job]->nonfinite_sample(from, to);
    return found;
  }

 private:
  std::vector<std::unique_ptr<BatchSource>> jobs_;
};

/// Returns the part of `all` that belongs to job `job`. `fields` is the number of fields of one job.
BatchNeeds needs_of(const BatchNeeds& all, std::size_t job, std::size_t fields) {
  const auto first = all.fields.begin() + static_cast<std::ptrdiff_t>(job * fields);
  return {.fields = {first, first + static_cast<std::ptrdiff_t>(fields)}, .mine = all.mine};
}

}  // namespace

BatchSources batches_of_jobs(const std::vector<MakeBatches>& jobs, std::size_t fields,
                             const BatchNeeds& train, const BatchNeeds& evaluation,
                             const std::function<std::int64_t(std::size_t job)>& begins_at) {
  std::vector<std::unique_ptr<BatchSource>> trains, evaluations;
  BatchSources all;
  for (std::size_t job = 0; job < jobs.size(); ++job) {
    BatchSources own = jobs[job](needs_of(train, job, fields), needs_of(evaluation, job, fields));
    trains.push_back(std::make_unique<ShiftedBatches>(std::move(own.train), [=] { return begins_at(job); }));
    if (job > 0 && own.evaluation.microbatches != all.evaluation.microbatches)
      throw DataError("the evaluations of jobs 0 and " + std::to_string(job) +
                      " of an array differ in length");
    if (own.evaluation.batches) evaluations.push_back(std::move(own.evaluation.batches));
    all.evaluation.microbatches = own.evaluation.microbatches;
  }
  all.train = std::make_unique<JobBatches>(std::move(trains));
  if (!evaluations.empty()) all.evaluation.batches = std::make_unique<JobBatches>(std::move(evaluations));
  return all;
}

}  // namespace millrace
