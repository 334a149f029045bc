// The settings that determine what a run computes. Checkpoints record them. They are compared when a run
// resumes, and between the ranks.
#pragma once

#include <string>
#include <vector>

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/model/layered_model.h"
#include "runtime/plan/plan.h"

namespace millrace {

struct JobOptions;
struct TrainOptions;

/// Returns options.jobs, or, if that is empty, the single job that the run's options describe. Each has the
/// number of steps for its learning rate.
std::vector<JobOptions> jobs_of(const TrainOptions& options);

/// Returns the settings of the run by flag name, for all of jobs_of(options), JobOptions::settings included.
/// It leaves out settings that do not affect the results: the plan, the output, and the number of steps
/// unless the rate depends on it.
Settings run_settings(const LayeredModel& model, const Plan& plan, const TrainOptions& options);

/// Returns the further settings that must be equal on all ranks. With different values, ranks would wait for
/// each other at different points.
Settings rank_settings(const Plan& plan, const TrainOptions& options);

struct SettingChange {
  std::string key;
  std::string then, now;  ///< the two values; "(none)" if one side lacks the key
};
std::vector<SettingChange> changes_between(const Settings& then, const Settings& now);
/// Returns the differences between a run's settings, `now`, and those of the checkpoint that it resumes from.
/// Throws CheckpointError for a difference that is not among `allowed` ("all": every one). Throws ConfigError
/// if `allowed` has a key that no checkpoint records.
std::vector<SettingChange> resumed_changes(const Checkpoint& found, const Settings& now,
                                           const std::vector<std::string>& allowed);

/// Returns "microbatch: 8 there, 16 here" for each, joined by "; ".
std::string to_string(const std::vector<SettingChange>& changes);

/// Writes settings for a message between ranks, one "key=value" per line; settings_from() parses them.
std::string to_text(const Settings& settings);
Settings settings_from(const std::string& text);

}  // namespace millrace
