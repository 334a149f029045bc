#include "experiments/sweep/tune_results.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <tuple>

#include "experiments/sweep/csv_text.h"
#include "runtime/base/files.h"
#include "runtime/base/run_files.h"
#include "runtime/base/text.h"

namespace millrace {

namespace fs = std::filesystem;

std::string place_text(const std::string& folder, int member) {
  return member < 0 ? folder : folder + "@" + std::to_string(member);
}

int TuneResults::num_failed() const {
  return static_cast<int>(std::ranges::count_if(
      steps, [](const auto& s) { return s.exit_code != 0 || !std::isfinite(s.metric); }));
}

double score_of(const TuneSpec& spec, const TrialResult& result) {
  if (!std::isfinite(result.metric)) return -std::numeric_limits<double>::infinity();
  return spec.goal == Goal::Max ? result.metric : -result.metric;
}

std::set<int> failed_trials(const std::vector<TrialResult>& steps) {
  std::set<int> failed;
  for (const TrialResult& one : steps)
    if (one.exit_code != 0 || !std::isfinite(one.metric)) failed.insert(one.step.trial);
  return failed;
}

std::vector<BestUntil> trajectory_of(const TuneSpec& spec, const std::vector<TrialResult>& steps) {
  const std::set<int> failed = failed_trials(steps);
  std::vector<TrialResult> by_time = steps;
  std::erase_if(by_time, [&](const TrialResult& one) { return failed.contains(one.step.trial); });
  std::ranges::stable_sort(by_time, {}, &TrialResult::ended);
  std::vector<BestUntil> points;
  for (const TrialResult& one : by_time) {
    double best = one.metric;
    if (!points.empty())
      best = spec.goal == Goal::Max ? std::max(best, points.back().metric)
                                    : std::min(best, points.back().metric);
    points.push_back({one.ended, best});
  }
  return points;
}

int best_of(const TuneSpec& spec, const std::vector<TrialResult>& steps) {
  const std::set<int> failed = failed_trials(steps);
  int best = -1;
  const auto rank = [&](const TrialResult& r) {
    return std::tuple(score_of(spec, r), r.step.to, -r.step.trial);
  };
  for (int i = 0; i < static_cast<int>(steps.size()); ++i) {
    const TrialResult& one = steps[i];
    if (failed.contains(one.step.trial)) continue;
    if (best < 0 || rank(one) > rank(steps[best])) best = i;
  }
  return best;
}

TuneCost cost_of(const TuneResults& results) {
  TuneCost cost;
  std::set<std::string> folders;
  std::map<int, std::set<int>> trained;  // by trained_as: iterations at the steps' ends
  for (const TrialResult& one : results.steps) {
    if (!trained[one.trained_as].insert(one.step.to).second) continue;
    const int done = one.step.to - one.step.from;
    cost.restarts_iterations += one.step.to;
    cost.seconds += one.runtime;
    cost.restarts_seconds += one.runtime * one.step.to / done;
    if (folders.insert(one.folder).second) ++cost.runs, cost.run_iterations += one.iterations;
  }
  for (const auto& [trial, ends] : trained) cost.iterations += *ends.rbegin();
  return cost;
}

std::optional<double> value_of_metric(const TrialResult& result, const std::string& metric) {
  std::optional<double> of_head;
  int heads = 0;
  for (const auto& [name, value] : result.values) {
    if (name == metric) return value;
    if (!name.ends_with("." + metric)) continue;
    of_head = value;
    ++heads;
  }
  return heads == 1 ? of_head : std::nullopt;
}

Json to_json(const TuneSpec& spec, const TuneResults& results) {
  const TuneCost cost = cost_of(results);
  Json best;
  if (results.best >= 0) {
    const TrialResult& one = results.steps[results.best];
    best = Json::object({{"trial", one.step.trial},
                         {"iterations", one.step.to},
                         {spec.metric, one.metric},
                         {"folder", place_text(one.folder, one.member)}});
    for (const Setting& setting : spec.settings(one.step.trial))
      best["settings"][setting.flag] = setting.text;
  }
  return Json::object({{"format", kTuneFormat},
                       {"algorithm", to_string(spec.search.kind)},
                       {"trials", spec.num_trials()},
                       {"steps", static_cast<std::int64_t>(results.steps.size())},
                       {"failed", results.num_failed()},
                       {"best", best},
                       {"cost", Json::object({{"iterations", cost.iterations},
                                              {"restarts_iterations", cost.restarts_iterations},
                                              {"runs", cost.runs},
                                              {"run_iterations", cost.run_iterations},
                                              {"seconds", cost.seconds},
                                              {"restarts_seconds", cost.restarts_seconds}})}});
}

Status write_tune_tables(const TuneSpec& spec, const TuneResults& results) {
  ValueColumns values;
  for (const TrialResult& one : results.steps) values.add(one.values);
  std::string history = "id";
  for (const std::string& flag : spec.space.flags()) history += ",params." + csv_cell(flag);
  history += values.header("result.");
  history += ",early_stop,runtime,iterations,from,exit_code,same_as,error\n";
  for (const TrialResult& one : results.steps) {
    history += std::to_string(one.step.trial);
    for (const Setting& setting : spec.settings(one.step.trial)) history += "," + csv_cell(setting.text);
    history += values.cells(one.values);
    history += std::string(one.exit_code == 0 ? ",False" : ",True") +
               printed(",%.3f,%d,%d,%d,", one.runtime, one.step.to, one.step.from, one.exit_code) +
               (one.trained_as == one.step.trial ? "" : std::to_string(one.trained_as)) + "," +
               csv_cell(one.error) + "\n";
  }
  std::string trajectory = "timestamp,best\n";
  for (const BestUntil& point : trajectory_of(spec, results.steps))
    trajectory += printed("%.3f,", point.ended) + csv_number(point.metric) + "\n";
  const fs::path folder = spec.output_dir;
  Problems problems;
  for (const auto& [name, text] : {std::pair<const char*, std::string>{"history.csv", history},
                                   {"trajectory.csv", trajectory},
                                   {run_files::kSummary, to_json(spec, results).dump(1) + "\n"}}) {
    if (const Status written = write_file_atomically(folder / name, text); !written)
      append(problems, written.problems());
  }
  if (!problems.empty()) return problems;
  return Ok{};
}

}  // namespace millrace
