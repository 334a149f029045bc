// What decides a run: recorded in its checkpoints, compared when one is resumed and between the ranks.
#pragma once

#include <string>
#include <vector>

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/model/layered_model.h"
#include "runtime/plan/plan.h"

namespace millrace {

struct TrainOptions;

/// By the names of the flags, of all options.jobs (at least one); their JobOptions::settings included. Left
/// out is what may change without changing the run: the plan (any plan gives the same), the number of steps
/// (unless the rate depends on it), output.
Settings run_settings(const LayeredModel& model, const Plan& plan, const TrainOptions& options);

/// What must besides be the same on all ranks, or they would wait for each other in different places.
Settings rank_settings(const Plan& plan, const TrainOptions& options);

struct SettingChange {
  std::string key;
  std::string then, now;  ///< "(none)" where one side does not have it
};
std::vector<SettingChange> changes_between(const Settings& then, const Settings& now);
/// "microbatch: 8 there, 16 here" for each, joined by "; ".
std::string to_string(const std::vector<SettingChange>& changes);

/// For a message between ranks: one "key=value" a line, and back.
std::string to_text(const Settings& settings);
Settings settings_from(const std::string& text);

}  // namespace millrace
