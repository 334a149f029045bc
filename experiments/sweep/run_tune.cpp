#include "experiments/sweep/run_tune.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <limits>
#include <map>
#include <set>

#include "driver/launch/launch_command.h"
#include "experiments/sweep/csv_text.h"
#include "experiments/sweep/job_outcome.h"
#include "experiments/sweep/partition.h"
#include "runtime/base/error.h"
#include "runtime/base/run_files.h"
#include "runtime/base/text.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string key_of(const TrialStep& step) {
  return "trial" + std::to_string(step.trial) + " to " + std::to_string(step.to);
}

Json record_of(const TuneSpec& spec, const TrialResult& result) {
  Json values = Json::object();
  for (const auto& [name, value] : result.values) values[name] = value;
  return Json::object({{"from", result.step.from},
                       {"folder", fs::path(result.folder).lexically_relative(spec.output_dir).string()},
                       {"member", result.member},
                       {"exit_code", result.exit_code},
                       {"error", result.error},
                       {"values", values},
                       {"runtime", result.runtime},
                       {"ended", result.ended}});
}

double number_of(const Json& json, const char* key, double otherwise = 0) {
  const Json* value = json.find(key);
  return value && value->is_number() ? value->as_double() : otherwise;
}

class Tuner {
 public:
  Tuner(const TuneSpec& spec, Journal& journal, Failed failed)
      : spec_(spec), journal_(journal), failed_(failed), search_(make_search(spec.search)) {}

  TuneResults run(int& stopped) {
    try {
      search();
      std::set<int> all;
      for (const TrialStep& step : order_) all.insert(step.trial);
      clean_up(all);
    } catch (const Cancelled&) {
      stopped = pool_.interrupt();
    }
    TuneResults results;
    for (const TrialStep& step : order_) {
      if (const Json* record = journal_.find(key_of(step))) results.steps.push_back(result_of(step, *record));
    }
    results.best = best_of(results.steps);
    return results;
  }

 private:
  /// A process and the steps that it does: several in an array.
  struct Work {
    std::vector<TrialStep> steps;
    int slot = 0;
    double runtime = 0;
  };

  void search() {
    const Result<JobSpec> first = spec_.job.with(spec_.settings(0));
    MILLRACE_CHECK(first.has_value());
    int at_once = 1;
    if (spec_.mode == SweepMode::Concurrent)
      at_once = spec_.at_once > 0 ? spec_.at_once
                                  : std::max(1, static_cast<int>(allowed_cores().size()) / width_of(*first));
    for (int slot = 0; slot < at_once; ++slot) slots_.push_back(slot);
    take_next();
    while (!waiting_.empty() || !running_.empty()) {
      while (!waiting_.empty() && !slots_.empty() && pool_.interrupt() == 0) start();
      if (running_.empty()) break;
      for (const PooledEnd& end : pool_.wait()) ended(end);
      take_next();
    }
    if (pool_.interrupt() != 0) throw Cancelled("stopped");
  }

  /// What the search wants now. What the journal has is told to it at once.
  void take_next() {
    if (pool_.interrupt() != 0) return;
    for (;;) {
      const std::vector<TrialStep> steps = search_->next();
      if (steps.empty()) return;
      order_.insert(order_.end(), steps.begin(), steps.end());
      std::vector<TrialStep> fresh;
      for (const TrialStep& step : steps) {
        const Json* record = journal_.find(key_of(step));
        if (record && !(failed_ == Failed::Retry && number_of(*record, "exit_code") != 0))
          search_->report(step, score_of(result_of(step, *record)));
        else
          fresh.push_back(step);
      }
      if (spec_.search.kind == SearchKind::Hyperband) drop_others(steps);
      for (std::vector<TrialStep>& together : groups_of(fresh))
        waiting_.push_back({.steps = std::move(together)});
    }
  }

  /// Steps that can be one array; else each alone.
  std::vector<std::vector<TrialStep>> groups_of(const std::vector<TrialStep>& steps) const {
    std::vector<std::vector<TrialStep>> groups;
    if (spec_.mode != SweepMode::Fused) {
      for (const TrialStep& step : steps) groups.push_back({step});
      return groups;
    }
    std::map<std::pair<int, int>, std::vector<int>> by_extent;
    for (const TrialStep& step : steps) by_extent[{step.from, step.to}].push_back(step.trial);
    std::map<int, JobSettings> settings;
    for (const TrialStep& step : steps) settings[step.trial] = spec_.settings(step.trial);
    for (const auto& [extent, trials] : by_extent) {
      auto parts = partitions(trials, spec_.infusible,
                              [&](int trial) -> const JobSettings& { return settings.at(trial); });
      if (spec_.array > 0) parts = limited(std::move(parts), [&](int) { return spec_.array; });
      for (const Partition& part : parts) {
        groups.emplace_back();
        for (int trial : part) groups.back().push_back({trial, extent.first, extent.second});
      }
    }
    return groups;
  }

  /// Where a trial is after some iterations: a run folder, and its place in it if that is an array's.
  struct Place {
    std::string folder;
    int member = -1;
    /// As `millrace fuse` takes it.
    std::string text() const { return place_text({.folder = folder, .member = member}); }
  };
  Place place_of(int trial, int iterations) const {
    const Json* record = journal_.find(key_of({trial, 0, iterations}));
    MILLRACE_CHECK(record != nullptr);
    const TrialResult result = result_of({trial, 0, iterations}, *record);
    return {result.folder, result.member};
  }

  PooledJob pooled_of(const std::vector<TrialStep>& steps) const {
    std::vector<JobSettings> settings;
    for (const TrialStep& step : steps) settings.push_back(spec_.settings(step.trial));
    Result<JobSpec> made =
        steps.size() > 1 ? fused_job(spec_.job, settings) : spec_.job.with(settings.front());
    if (!made) throw ConfigError(to_string(made.problems()));
    PooledJob pooled{.job = *std::move(made)};
    JobSpec& job = pooled.job;
    const TrialStep& step = steps.front();
    for (const char* flag : {"epochs", "evaluate-every", "checkpoint-every", "save-weights"})
      set_flag(job, flag, std::nullopt);
    set_flag(job, "steps", std::to_string(step.to * spec_.steps));
    // Rates that depend on the end are those of a trial that comes to it.
    if (!job.find("lr-total-steps"))
      set_flag(job, "lr-total-steps", std::to_string(spec_.full() * spec_.steps));
    set_flag(job, "checkpoint-at-end", "true");
    set_flag(job, "trace-steps", "0");
    set_flag(job, "output-dir", trial_folder(spec_, step.trial, step.to));
    if (step.from == 0) return pooled;
    const Place first = place_of(step.trial, step.from);
    if (steps.size() == 1 && first.member < 0) {
      set_flag(job, "resume", first.folder);
      return pooled;
    }
    // The survivors, wherever they are, become the array that goes on: nobody else is in it.
    const std::string joined = job.output_dir + ".start";
    pooled.before = {worker_of(job), "fuse"};
    for (const TrialStep& one : steps) pooled.before.push_back(place_of(one.trial, step.from).text());
    pooled.before.insert(pooled.before.end(), {"--out", joined, "--overwrite"});
    set_flag(job, "resume", joined);
    return pooled;
  }

  void charge() {
    const double now = Seconds(steady_clock().now().time_since_epoch()).count();
    for (auto& [id, work] : running_) work.runtime += (now - charged_) / static_cast<double>(running_.size());
    charged_ = now;
  }

  void start() {
    charge();
    Work work = std::move(waiting_.front());
    waiting_.pop_front();
    work.slot = slots_.front();
    slots_.pop_front();
    PooledJob pooled = pooled_of(work.steps);
    pooled.cores = cores_of(work.slot, width_of(pooled.job));
    pool_.start(started_, pooled);
    running_[started_++] = std::move(work);
  }

  void ended(const PooledEnd& end) {
    charge();
    const Work work = std::move(running_.at(end.id));
    running_.erase(end.id);
    slots_.push_front(work.slot);
    if (pool_.interrupt() != 0 && end.exit_code != 0) return;  // it is not done
    const std::string folder = trial_folder(spec_, work.steps.front().trial, work.steps.front().to);
    std::error_code ignored;
    fs::remove_all(folder + ".start", ignored);
    for (std::size_t i = 0; i < work.steps.size(); ++i) {
      TrialResult result{.step = work.steps[i],
                         .folder = folder,
                         .member = work.steps.size() > 1 ? static_cast<int>(i) : -1,
                         .exit_code = end.exit_code,
                         .error = end.error,
                         .runtime = work.runtime / static_cast<double>(work.steps.size()),
                         .ended = wall_seconds()};
      const JobOutcome outcome = result.member < 0 ? outcome_of(folder) : outcome_of(folder, result.member);
      if (result.exit_code == 0 && outcome.exit_code != 0) {
        result.exit_code = outcome.exit_code;
        result.error = outcome.error;
      }
      result.values.emplace_back("final_loss", outcome.final_loss);
      result.values.insert(result.values.end(), outcome.metrics.begin(), outcome.metrics.end());
      finish(std::move(result));
    }
    if (work.steps.front().from > 0) clean_up(dropped_);
  }

  void finish(TrialResult result) {
    const auto found = std::ranges::find(result.values, spec_.metric, &std::pair<std::string, double>::first);
    if (result.exit_code == 0 && found == result.values.end()) {
      std::string names;
      for (const auto& [name, value] : result.values) names += (names.empty() ? "" : ", ") + name;
      throw ConfigError(spec_.source + ": metric '" + spec_.metric + "' is none of this model's",
                        "it has " + names);
    }
    if (const Status kept = journal_.record(key_of(result.step), record_of(spec_, result)); !kept)
      throw ConfigError(to_string(kept.problems()));
    result = result_of(result.step, *journal_.find(key_of(result.step)));
    std::fprintf(stderr, "trial %d (%s) %d to %d: %s  %.2f s\n", result.step.trial,
                 settings_text(spec_.settings(result.step.trial)).c_str(), result.step.from, result.step.to,
                 result.exit_code != 0 ? ("FAILED: " + result.error).c_str()
                                       : (spec_.metric + printed(" %.6g", result.metric)).c_str(),
                 result.runtime);
    search_->report(result.step, score_of(result));
  }

  TrialResult result_of(const TrialStep& step, const Json& record) const {
    TrialResult result{.step = step,
                       .member = static_cast<int>(number_of(record, "member", -1)),
                       .exit_code = static_cast<int>(number_of(record, "exit_code")),
                       .metric = NAN,
                       .runtime = number_of(record, "runtime"),
                       .ended = number_of(record, "ended")};
    if (const Json* error = record.find("error"); error && error->is_string())
      result.error = error->as_string();
    if (const Json* folder = record.find("folder"); folder && folder->is_string())
      result.folder = (fs::path(spec_.output_dir) / folder->as_string()).string();
    if (const Json* values = record.find("values"); values && values->is_object()) {
      for (const auto& [name, value] : values->members())
        result.values.emplace_back(name, value.is_number() ? value.as_double() : NAN);
    }
    const auto found = std::ranges::find(result.values, spec_.metric, &std::pair<std::string, double>::first);
    if (result.exit_code == 0 && found != result.values.end()) result.metric = found->second;
    return result;
  }

  double score_of(const TrialResult& result) const {
    if (!std::isfinite(result.metric)) return -std::numeric_limits<double>::infinity();
    return spec_.goal == Goal::Max ? result.metric : -result.metric;
  }

  int best_of(const std::vector<TrialResult>& steps) const {
    int best = -1;
    const auto rank = [&](const TrialResult& r) { return std::tuple(score_of(r), r.step.to, -r.step.trial); };
    for (int i = 0; i < static_cast<int>(steps.size()); ++i) {
      const TrialResult& one = steps[static_cast<std::size_t>(i)];
      if (!std::isfinite(one.metric)) continue;
      if (best < 0 || rank(one) > rank(steps[static_cast<std::size_t>(best)])) best = i;
    }
    return best;
  }

  // ---- checkpoints
  // ---------------------------------------------------------------------------------------------

  /// Of a rung: who is not continued never is.
  void drop_others(const std::vector<TrialStep>& steps) {
    std::set<int> kept;
    for (const TrialStep& step : steps) kept.insert(step.trial);
    for (const TrialStep& step : order_) {
      if (kept.count(step.trial) == 0) dropped_.insert(step.trial);
    }
    clean_up(dropped_);
  }

  /// Deletes the checkpoints that nobody goes on from: all but each trial's newest, those of `dropped` too,
  /// and the best step's, which stays.
  void clean_up(const std::set<int>& dropped) const {
    if (spec_.keep == KeptCheckpoints::All) return;
    std::vector<TrialResult> done;
    std::map<int, std::string> newest;
    for (const TrialStep& step : order_) {
      const Json* record = journal_.find(key_of(step));
      if (!record) continue;
      done.push_back(result_of(step, *record));
      if (done.back().exit_code == 0) newest[step.trial] = done.back().folder;
    }
    std::set<std::string> kept;
    for (const auto& [trial, folder] : newest) {
      if (dropped.count(trial) == 0) kept.insert(folder);
    }
    if (const int best = best_of(done); best >= 0) kept.insert(done[static_cast<std::size_t>(best)].folder);
    std::error_code ignored;
    for (const TrialResult& one : done) {
      if (kept.count(one.folder) == 0)
        fs::remove_all(fs::path(one.folder) / run_files::kCheckpoints, ignored);
    }
  }

  const TuneSpec& spec_;
  Journal& journal_;
  Failed failed_;
  std::unique_ptr<Search> search_;
  RunPool pool_;
  std::vector<TrialStep> order_;
  std::deque<Work> waiting_;
  std::map<int, Work> running_;  // by id
  std::deque<int> slots_;
  std::set<int> dropped_;  // trials that will not be continued
  int started_ = 0;
  double charged_ = 0;  // until when running work has its time
};

}  // namespace

std::string trial_folder(const TuneSpec& spec, int trial, int to) {
  return (fs::path(spec.output_dir) / "trials" / std::to_string(trial) / std::to_string(to)).string();
}

std::string place_text(const TrialResult& result) {
  return result.member < 0 ? result.folder : result.folder + "@" + std::to_string(result.member);
}

int TuneResults::num_failed() const {
  return static_cast<int>(std::ranges::count_if(steps, [](const auto& s) { return s.exit_code != 0; }));
}

TuneCost cost_of(const TuneResults& results) {
  TuneCost cost;
  for (const TrialResult& one : results.steps) {
    const int done = one.step.to - one.step.from;
    cost.iterations += done;
    cost.restarts_iterations += one.step.to;
    cost.seconds += one.runtime;
    cost.restarts_seconds += one.runtime * one.step.to / done;
  }
  return cost;
}

TuneResults run_tune(const TuneSpec& spec, Journal& journal, Failed failed, int& stopped) {
  return Tuner(spec, journal, failed).run(stopped);
}

Json to_json(const TuneSpec& spec, const TuneResults& results) {
  const TuneCost cost = cost_of(results);
  Json best;
  if (results.best >= 0) {
    const TrialResult& one = results.steps[static_cast<std::size_t>(results.best)];
    best = Json::object({{"trial", one.step.trial},
                         {"iterations", one.step.to},
                         {spec.metric, one.metric},
                         {"folder", place_text(one)}});
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
                                              {"seconds", cost.seconds},
                                              {"restarts_seconds", cost.restarts_seconds}})}});
}

Status write_tune_tables(const TuneSpec& spec, const TuneResults& results) {
  std::vector<std::string> names;
  for (const TrialResult& one : results.steps) {
    for (const auto& [name, value] : one.values) {
      if (std::ranges::find(names, name) == names.end()) names.push_back(name);
    }
  }
  std::string history = "id";
  for (const std::string& flag : spec.space.flags()) history += ",params." + csv_cell(flag);
  for (const std::string& name : names) history += ",result." + csv_cell(name);
  history += ",early_stop,runtime,iterations,from,exit_code,error\n";
  for (const TrialResult& one : results.steps) {
    history += std::to_string(one.step.trial);
    for (const Setting& setting : spec.settings(one.step.trial)) history += "," + csv_cell(setting.text);
    for (const std::string& name : names) {
      const auto found = std::ranges::find(one.values, name, &std::pair<std::string, double>::first);
      history += "," + (found == one.values.end() ? "" : csv_number(found->second));
    }
    history += std::string(one.exit_code == 0 ? ",False" : ",True") +
               printed(",%.3f,%d,%d,%d,", one.runtime, one.step.to, one.step.from, one.exit_code) +
               csv_cell(one.error) + "\n";
  }
  std::vector<TrialResult> by_time = results.steps;
  std::ranges::stable_sort(by_time, {}, &TrialResult::ended);
  std::string trajectory = "timestamp,best\n";
  double best = NAN;
  for (const TrialResult& one : by_time) {
    if (!std::isfinite(one.metric)) continue;
    if (std::isnan(best) || (spec.goal == Goal::Max ? one.metric > best : one.metric < best))
      best = one.metric;
    trajectory += printed("%.3f,", one.ended) + csv_number(best) + "\n";
  }
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
