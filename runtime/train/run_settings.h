// The settings that decide what a run computes. Checkpoints record them. They are compared when a run
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

/// Returns options.jobs, or where there are none the one job that the options of the run tell. Each knows the
/// steps that its rate counts with.
std::vector<JobOptions> jobs_of(const TrainOptions& options);

/// Returns the settings of the run by the names of their flags, for all of jobs_of(options),
/// JobOptions::settings included. It leaves out what may change without changing the run: the plan (any plan
/// gives the same), output, and the number of steps unless the rate depends on it.
Settings run_settings(const LayeredModel& model, const Plan& plan, const TrainOptions& options);

/// Returns the further settings that must be the same on all ranks. Ranks that differ in them would wait for
/// each other at different places.
Settings rank_settings(const Plan& plan, const TrainOptions& options);

struct SettingChange {
  std::string key;
  std::string then, now;  ///< the two values; "(none)" if one side lacks the key
};
std::vector<SettingChange> changes_between(const Settings& then, const Settings& now);
/// Returns how the settings of a run, `now`, differ from those of the checkpoint that it goes on from. Throws
/// CheckpointError for a difference that is not among `allowed` ("all": every one), and ConfigError for a key
/// in it that no checkpoint records.
std::vector<SettingChange> resumed_changes(const Checkpoint& found, const Settings& now,
                                           const std::vector<std::string>& allowed);

/// "microbatch: 8 there, 16 here" for each, joined by "; ".
std::string to_string(const std::vector<SettingChange>& changes);

/// Writes settings for a message between ranks, one "key=value" a line; settings_from() reads them back.
std::string to_text(const Settings& settings);
Settings settings_from(const std::string& text);

}  // namespace millrace
