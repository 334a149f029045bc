#include "experiments/sweep/tune_journal.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "runtime/base/error.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

std::string key_of(const TrialStep& step) {
  return "trial" + std::to_string(step.trial) + " to " + std::to_string(step.to);
}

std::string progress_key_of(const TrialStep& step) {
  return "trial" + std::to_string(step.trial) + " on its way to " + std::to_string(step.to);
}

double number_of(const Json& json, const char* key, double otherwise = 0) {
  const Json* value = json.find(key);
  return value && value->is_number() ? value->as_double() : otherwise;
}

std::string text_of(const Json& json, const char* key) {
  const Json* value = json.find(key);
  return value && value->is_string() ? value->as_string() : "";
}

}  // namespace

std::optional<TrialResult> TuneJournal::result(const TrialStep& step) const {
  const Json* record = journal_.find(key_of(step));
  if (!record) return std::nullopt;
  TrialResult result{.step = step,
                     .trained_as = step.trial,
                     .folder = (fs::path(spec_.output_dir) / text_of(*record, "folder")).string(),
                     .member = static_cast<int>(number_of(*record, "member", -1)),
                     .iterations = static_cast<int>(number_of(*record, "iterations", step.to - step.from)),
                     .exit_code = static_cast<int>(number_of(*record, "exit_code")),
                     .error = text_of(*record, "error"),
                     .metric = NAN,
                     .runtime = number_of(*record, "runtime"),
                     .ended = number_of(*record, "ended")};
  if (const Json* values = record->find("values"); values && values->is_object()) {
    for (const auto& [name, value] : values->members())
      result.values.emplace_back(name, value.is_number() ? value.as_double() : NAN);
  }
  const std::optional<double> found = value_of_metric(result, spec_.metric);
  // A trial whose loss is not finite has failed, whatever its other metrics say.
  const bool diverged = std::ranges::any_of(result.values, [](const auto& value) {
    return (value.first == "final_loss" || value.first == "loss") && !std::isfinite(value.second);
  });
  if (result.exit_code == 0 && !diverged && found) result.metric = *found;
  return result;
}

std::optional<TrialPlace> TuneJournal::progress(const TrialStep& step) const {
  const Json* record = journal_.find(progress_key_of(step));
  if (!record) return std::nullopt;
  return TrialPlace{.at = static_cast<int>(number_of(*record, "at")),
                    .folder = (fs::path(spec_.output_dir) / text_of(*record, "folder")).string(),
                    .member = static_cast<int>(number_of(*record, "member", -1)),
                    .runtime = number_of(*record, "runtime")};
}

void TuneJournal::record(const TrialResult& result) {
  Json values = Json::object();
  for (const auto& [name, value] : result.values) values[name] = value;
  write(key_of(result.step), Json::object({{"from", result.step.from},
                                           {"folder", relative(result.folder)},
                                           {"member", result.member},
                                           {"iterations", result.iterations},
                                           {"exit_code", result.exit_code},
                                           {"error", result.error},
                                           {"values", values},
                                           {"runtime", result.runtime},
                                           {"ended", result.ended}}));
}

void TuneJournal::record(const TrialStep& step, const TrialPlace& progress) {
  write(progress_key_of(step), Json::object({{"at", progress.at},
                                             {"folder", relative(progress.folder)},
                                             {"member", progress.member},
                                             {"runtime", progress.runtime}}));
}

std::string TuneJournal::relative(const std::string& folder) const {
  return fs::path(folder).lexically_relative(spec_.output_dir).string();
}

void TuneJournal::write(const std::string& key, Json json) {
  if (const Status kept = journal_.record(key, std::move(json)); !kept)
    throw ConfigError(to_string(kept.problems()));
}

}  // namespace millrace
