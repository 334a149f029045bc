#include "experiments/sweep/trial_run.h"

#include <algorithm>

#include "driver/launch/launch_command.h"
#include "experiments/sweep/fused_job.h"
#include "runtime/base/error.h"

namespace millrace {
namespace {

constexpr const char* kJoined = ".start";

/// Each trial's own steps at the end of the run.
void set_steps(JobSpec& job, const TuneSpec& spec, const ArrayRun& run) {
  std::vector<std::string> steps;
  for (const OpenStep& one : run.steps)
    steps.push_back(std::to_string((one.at + run.iterations) * spec.steps));
  set_flag(job, "steps", steps.front());
  const bool alike = std::ranges::count(steps, steps.front()) == static_cast<std::ptrdiff_t>(steps.size());
  if (!alike) job.lists.emplace_back("steps", std::move(steps));
}

}  // namespace

std::string joined_folder(const std::string& folder) {
  return folder + kJoined;
}

bool is_joined_folder(const std::string& folder) {
  return folder.ends_with(kJoined);
}

PooledJob trial_run(const TuneSpec& spec, const ArrayRun& run, const std::map<int, TrialPlace>& places,
                    const std::string& folder) {
  std::vector<JobSettings> settings;
  for (const OpenStep& one : run.steps) settings.push_back(spec.settings(one.step.trial));
  Result<JobSpec> made =
      settings.size() > 1 ? fused_job(spec.job, settings) : spec.job.with(settings.front());
  if (!made) throw ConfigError(to_string(made.problems()));
  PooledJob pooled{.job = *std::move(made)};
  JobSpec& job = pooled.job;
  for (const char* flag : {"epochs", "evaluate-every", "checkpoint-every", "save-weights"})
    set_flag(job, flag, std::nullopt);
  set_steps(job, spec, run);
  // Rates that depend on the end are those of a trial that comes to it.
  if (!job.find("lr-total-steps")) set_flag(job, "lr-total-steps", std::to_string(spec.full() * spec.steps));
  set_flag(job, "checkpoint-at-end", "true");
  set_flag(job, "trace-steps", "0");
  set_flag(job, "output-dir", folder);
  const auto begun = std::ranges::count_if(run.steps, [](const OpenStep& one) { return one.at > 0; });
  if (begun == 0) return pooled;
  const TrialPlace& first = places.at(run.steps.front().step.trial);
  if (run.steps.size() == 1 && first.member < 0) {
    set_flag(job, "resume", first.folder);
    return pooled;
  }
  pooled.before = {worker_of(job), "fuse"};
  for (const OpenStep& one : run.steps) {
    if (one.at > 0) pooled.before.push_back(places.at(one.step.trial).text());
  }
  const auto new_trials = static_cast<std::ptrdiff_t>(run.steps.size()) - begun;
  if (new_trials > 0) pooled.before.insert(pooled.before.end(), {"--new", std::to_string(new_trials)});
  pooled.before.insert(pooled.before.end(), {"--out", joined_folder(folder), "--overwrite"});
  set_flag(job, "resume", joined_folder(folder));
  return pooled;
}

}  // namespace millrace
