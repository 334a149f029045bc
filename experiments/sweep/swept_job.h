// The job that a sweep or a search varies: a job as `millrace launch` reads it, with settings put in.
// LibTorch-free.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "driver/launch/job_spec.h"
#include "experiments/sweep/settings.h"

namespace millrace {

/// Makes the job of every list of settings. The worker is asked for its models once.
class SweptJob {
 public:
  /// `value`: the path of a job file, from the current folder or from that of `file`, or the job itself.
  /// Problems: what belongs to the sweep (output_dir, resume, overwrite) in a job of its own; a job file's is
  /// left out.
  static Result<SweptJob> from(const Json& value, const std::string& file);

  /// A setting replaces what the job says. Problems name the setting's place.
  Result<JobSpec> with(const JobSettings& settings) const;
  /// Without keys that are flags of `without`, and with `added`.
  SweptJob replaced(const std::vector<std::string>& without,
                    const std::pair<std::string, std::string>& added) const;
  /// The job as it was read.
  const Json& json() const { return job_; }
  const std::string& source() const { return source_; }

 private:
  Status take(const Json& job);

  Json job_;
  std::string source_;
  /// Of the job as it was read: which hosts a run gets is settled when it starts, and no part of the sweep.
  std::string on_, hosts_;
  std::shared_ptr<std::optional<Result<Models>>> models_ = std::make_shared<std::optional<Result<Models>>>();
};

/// Sets a flag of the job, or takes it out (no value).
void set_flag(JobSpec& job, const std::string& flag, const std::optional<std::string>& text);

/// Problems of all jobs that `settings` make, and of the ends of what is drawn, each once. At most as many
/// jobs are tried as say something new.
Problems problems_of_jobs(const SweptJob& job, const Varied& varied, std::uint64_t seed, int num_jobs);

/// The settings of all jobs.
std::vector<JobSettings> all_settings(const Varied& varied, std::uint64_t seed, int num_jobs);

}  // namespace millrace
