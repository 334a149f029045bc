#include "experiments/sweep/run_tune.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <map>
#include <set>

#include "driver/launch/launch_command.h"
#include "experiments/sweep/array_pace.h"
#include "experiments/sweep/job_outcome.h"
#include "experiments/sweep/next_array.h"
#include "experiments/sweep/partition.h"
#include "experiments/sweep/trial_run.h"
#include "experiments/sweep/tune_journal.h"
#include "runtime/base/error.h"
#include "runtime/base/progress_line.h"
#include "runtime/base/run_files.h"
#include "runtime/base/text.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

bool has_checkpoint(const std::string& folder) {
  std::error_code ignored;
  return fs::exists(fs::path(folder) / run_files::kCheckpoints, ignored);
}

/// "array of 4 trials, 3 at 9 and 1 at 0, goes on by 2"
std::string text_of(const ArrayRun& run) {
  std::map<int, int, std::greater<>> trials_at;
  for (const OpenStep& one : run.steps) ++trials_at[one.at];
  std::string text;
  for (const auto& [at, trials] : trials_at)
    text += (text.empty() ? "" : ", ") + std::to_string(trials) + " at " + std::to_string(at);
  return "array of " + std::to_string(run.steps.size()) + " trials, " + text + ", goes on by " +
         std::to_string(run.iterations);
}

class Tuner {
 public:
  Tuner(const TuneSpec& spec, Journal& journal, Failed failed)
      : spec_(spec),
        journal_(spec, journal),
        failed_(failed),
        search_(make_search(spec.search)),
        firsts_(spec.first_trials()) {
    for (int trial = 0; trial < static_cast<int>(firsts_.size()); ++trial)
      equals_[firsts_[trial]].push_back(trial);
    rules_ = {.most = spec.mode == SweepMode::Fused ? spec.array : 1,
              .mixed = spec.mode == SweepMode::Fused && spec.mixed != MixedArrays::Never,
              .infusible = spec.infusible,
              .settings = [&spec](int trial) { return spec.settings(trial); }};
    if (spec.mixed == MixedArrays::Auto) {
      rules_.together = [this](const auto& steps, const auto& more, int iterations) {
        return pace_of(steps).pays(steps, more, iterations, spec_.steps);
      };
    }
  }

  TuneResults run(int& stopped) {
    try {
      search();
      clean_up([](int) { return true; });
      remove_leftovers();
    } catch (const Cancelled&) {
      stopped = pool_.interrupt();
    }
    // Brackets one after the other, however they were run.
    std::ranges::stable_sort(order_, {}, [&](const TrialStep& step) { return search_->group(step.trial); });
    TuneResults results{.steps = all_results()};
    results.best = best_of(spec_, results.steps);
    return results;
  }

 private:
  /// A process and what it does.
  struct Work {
    ArrayRun run;
    std::string folder;
    int slot = 0;
    double runtime = 0;
  };

  /// A result of equal trials, and the search's steps that have it.
  struct Taken {
    std::vector<TrialStep> by;
    std::optional<double> score;
  };

  void search() {
    const Result<JobSpec> first = spec_.job.with(spec_.settings(0));
    MILLRACE_CHECK(first.has_value());
    int at_once = 1;
    if (spec_.mode == SweepMode::Concurrent)
      at_once = spec_.at_once > 0 ? spec_.at_once : RunSlots(*first).count();
    for (int slot = 0; slot < at_once; ++slot) slots_.push_back(slot);
    take_next();
    ProgressLine line(steady_clock(), "tune");
    pool_.set_waits([&] { line.show(reported_, std::ssize(order_), "trainings so far"); });
    while (!open_.empty() || !running_.empty()) {
      while (!open_.empty() && !slots_.empty() && pool_.interrupt() == 0) start();
      if (running_.empty()) break;
      const std::vector<PooledEnd> ends = pool_.wait();
      line.clear();
      for (const PooledEnd& end : ends) ended(end);
      take_next();
      clean_up([&](int first) {
        return std::ranges::all_of(equals_.at(first), [&](int trial) { return search_->is_over(trial); });
      });
    }
    pool_.set_waits({});
    if (pool_.interrupt() != 0) throw Cancelled("stopped");
  }

  /// Takes the steps that the search wants now. It tells the search at once what the journal has.
  void take_next() {
    if (pool_.interrupt() != 0) return;
    for (;;) {
      const std::vector<TrialStep> steps = search_->next();
      if (steps.empty()) return;
      order_.insert(order_.end(), steps.begin(), steps.end());
      for (const TrialStep& step : steps) take(step);
    }
  }

  /// Equal trials are trained once, as the first of them; all take its result.
  void take(const TrialStep& step) {
    const TrialStep training{firsts_[step.trial], step.from, step.to};
    Taken& taken = taken_[{training.trial, training.to}];
    taken.by.push_back(step);
    if (taken.score) return report(step, *taken.score);
    if (taken.by.size() > 1) return;
    const std::optional<TrialResult> result = journal_.result(training);
    if (!result || (failed_ == Failed::Retry && result->exit_code != 0)) {
      std::vector<TrialStep>& queue = queues_[training.trial];
      queue.push_back(training);
      if (queue.size() == 1) open(training);
    } else {
      // An open step of the trial resumes from the place that it found.
      if (result->exit_code == 0 && queues_[training.trial].empty())
        places_[training.trial] = {step.to, result->folder, result->member};
      settle(*result);
    }
  }

  void report(const TrialStep& step, double score) {
    ++reported_;
    search_->report(step, score);
  }

  void settle(const TrialResult& result) {
    Taken& taken = taken_.at({result.step.trial, result.step.to});
    taken.score = score_of(spec_, result);
    for (const TrialStep& step : taken.by) report(step, *taken.score);
  }

  /// Goes on from the newest checkpoint of the trial that has not gone too far.
  void open(TrialStep step) {
    const auto place = places_.find(step.trial);
    if (place != places_.end() && (!has_checkpoint(place->second.folder) || place->second.at >= step.to))
      places_.erase(place);
    else if (place != places_.end())
      step.from = std::max(step.from, place->second.at);
    if (std::optional<TrialPlace> progress = journal_.progress(step))
      if (has_checkpoint(progress->folder)) places_[step.trial] = *std::move(progress);
    put_back({step, places_.count(step.trial) != 0 ? places_.at(step.trial).at : 0});
  }

  /// The oldest are in front; alone, those of the first bracket, so that fewer checkpoints are kept.
  void put_back(const OpenStep& step) {
    const auto group = [&](const OpenStep& one) {
      return spec_.mode == SweepMode::Fused ? 0 : search_->group(one.step.trial);
    };
    open_.insert(std::ranges::upper_bound(open_, group(step), {}, group), step);
  }

  void charge() {
    const double now = Seconds(steady_clock().now().time_since_epoch()).count();
    for (auto& [id, work] : running_) work.runtime += (now - charged_) / static_cast<double>(running_.size());
    charged_ = now;
  }

  void start() {
    charge();
    Work work{.run = take_array(open_, rules_)};
    work.slot = slots_.front();
    slots_.pop_front();
    work.folder = unused_folder(work.run);
    PooledJob pooled = trial_run(spec_, work.run, places_, work.folder);
    RunSlots(pooled.job).place(pooled, work.slot);
    if (work.run.steps.size() > 1) std::fprintf(stderr, "%s\n", text_of(work.run).c_str());
    pool_.start(started_, pooled);
    running_[started_++] = std::move(work);
  }

  /// trials/<first trial>/<its iterations at the end>, unless other trials of an array have their newest
  /// checkpoint there.
  std::string unused_folder(const ArrayRun& run) const {
    const OpenStep& first = run.steps.front();
    const std::string folder = (fs::path(spec_.output_dir) / "trials" / std::to_string(first.step.trial) /
                                std::to_string(first.at + run.iterations))
                                   .string();
    const auto is_used = [&](const std::string& name) {
      return std::ranges::any_of(places_, [&](const auto& entry) { return entry.second.folder == name; });
    };
    std::string name = folder;
    for (int again = 2; is_used(name); ++again) name = folder + "-" + std::to_string(again);
    return name;
  }

  // -- arrays --

  ArrayPace& pace_of(const std::vector<OpenStep>& steps) {
    return paces_[partition_key(spec_.settings(steps.front().step.trial), spec_.infusible)];
  }

  void learn_pace(const Work& work) {
    const std::optional<double> step_s = step_time_of(work.folder);
    if (!step_s) return;
    const double steps_s = *step_s * static_cast<double>(work.run.iterations * spec_.steps);
    pace_of(work.run.steps)
        .learn(work.run.steps.size(), differ(work.run.steps), *step_s, std::max(0.0, work.runtime - steps_s));
  }

  // -- results --

  void ended(const PooledEnd& end) {
    charge();
    const Work work = std::move(running_.at(end.id));
    running_.erase(end.id);
    slots_.push_front(work.slot);
    std::error_code ignored;
    fs::remove_all(joined_folder(work.folder), ignored);
    if (pool_.interrupt() != 0 && end.exit_code != 0) return;  // it is not done
    // Some jobs cannot be an array of differently many steps. If an array has no finite loss, each of its
    // trials has failed.
    if (end.exit_code != 0 && end.exit_code != static_cast<int>(ExitCode::Numeric) &&
        differ(work.run.steps)) {
      std::fprintf(stderr, "arrays hold trials of one rung from here on: %s\n", end.error.c_str());
      rules_.mixed = false;
      for (const OpenStep& one : work.run.steps) put_back(one);
      return;
    }
    if (end.exit_code == 0 && spec_.mode == SweepMode::Fused) learn_pace(work);
    for (std::size_t i = 0; i < work.run.steps.size(); ++i)
      take_in(work, end, work.run.steps[i], work.run.steps.size() > 1 ? static_cast<int>(i) : -1);
  }

  /// Takes in what a process came to for one of its trials.
  void take_in(const Work& work, const PooledEnd& end, const OpenStep& one, int member) {
    const JobOutcome outcome = member < 0 ? outcome_of(work.folder) : outcome_of(work.folder, member);
    const bool own_failure = end.exit_code == 0 && outcome.exit_code != 0;
    const auto place = places_.find(one.step.trial);
    TrialPlace here{.at = one.at + work.run.iterations,
                    .folder = work.folder,
                    .member = member,
                    .runtime = work.runtime / static_cast<double>(work.run.steps.size())};
    if (one.at > one.step.from && place != places_.end()) here.runtime += place->second.runtime;
    const int exit_code = own_failure ? outcome.exit_code : end.exit_code;
    if (exit_code == 0) places_[one.step.trial] = here;
    if (exit_code == 0 && here.at < one.step.to) {
      journal_.record(one.step, here);
      return put_back({one.step, here.at});
    }
    TrialResult result{.step = one.step,
                       .folder = here.folder,
                       .member = member,
                       .iterations = work.run.iterations,
                       .exit_code = exit_code,
                       .error = own_failure ? outcome.error : end.error,
                       .runtime = here.runtime,
                       .ended = wall_seconds()};
    result.values.emplace_back("final_loss", outcome.final_loss);
    result.values.insert(result.values.end(), outcome.metrics.begin(), outcome.metrics.end());
    finish(result);
  }

  void finish(const TrialResult& done) {
    if (done.exit_code == 0 && !value_of_metric(done, spec_.metric)) {
      std::string names;
      for (const auto& [name, value] : done.values) names += (names.empty() ? "" : ", ") + name;
      throw ConfigError(spec_.source + ": metric '" + spec_.metric + "' is none of this model's",
                        "it has " + names);
    }
    journal_.record(done);
    const TrialResult result = *journal_.result(done.step);
    std::fprintf(stderr, "trial %d (%s) %d to %d: %s  %.2f s\n", result.step.trial,
                 settings_text(spec_.settings(result.step.trial)).c_str(), result.step.from, result.step.to,
                 result.exit_code != 0           ? ("FAILED: " + result.error).c_str()
                 : !std::isfinite(result.metric) ? "FAILED: its loss is not finite"
                                                 : (spec_.metric + printed(" %.6g", result.metric)).c_str(),
                 result.runtime);
    settle(result);
    // The trial's next step, the shortest first.
    std::vector<TrialStep>& queue = queues_.at(result.step.trial);
    queue.erase(queue.begin());
    std::ranges::sort(queue, {}, &TrialStep::to);
    if (!queue.empty()) open(queue.front());
  }

  std::vector<TrialResult> all_results() const {
    std::vector<TrialResult> results;
    for (const TrialStep& step : order_) {
      std::optional<TrialResult> result = journal_.result({firsts_[step.trial], step.from, step.to});
      if (!result) continue;
      result->step = step;
      results.push_back(*std::move(result));
    }
    return results;
  }

  /// Deletes the checkpoints that nobody goes on from: all but each trial's newest, those of trials that are
  /// over too, and the best step's, which stays.
  template <class IsOver>
  void clean_up(IsOver is_over) {
    if (spec_.keep == KeptCheckpoints::All) return;
    const std::vector<TrialResult> done = all_results();
    std::set<std::string> kept;
    for (const auto& [trial, place] : places_) {
      if (!is_over(trial)) kept.insert(place.folder);
    }
    if (const int best = best_of(spec_, done); best >= 0) kept.insert(done[best].folder);
    std::error_code ignored;
    for (const TrialResult& one : done) {
      if (kept.count(one.folder) == 0 && cleaned_.insert(one.folder).second)
        fs::remove_all(fs::path(one.folder) / run_files::kCheckpoints, ignored);
    }
  }

  /// Checkpoints of arrays in which a search was killed: another array may have gone on instead.
  void remove_leftovers() const {
    std::set<std::string> done;
    for (const TrialResult& one : all_results()) done.insert(one.folder);
    std::error_code ignored;
    for (const auto& trial : fs::directory_iterator(fs::path(spec_.output_dir) / "trials", ignored)) {
      for (const auto& run : fs::directory_iterator(trial.path(), ignored)) {
        const std::string folder = run.path().string();
        if (done.count(folder) != 0) continue;
        fs::remove_all(is_joined_folder(folder) ? run.path() : run.path() / run_files::kCheckpoints, ignored);
      }
    }
  }

  const TuneSpec& spec_;
  TuneJournal journal_;
  Failed failed_;
  std::unique_ptr<Search> search_;
  std::vector<int> firsts_;                       // TuneSpec::first_trials
  std::map<int, std::vector<int>> equals_;        // trials by the first one with their settings
  std::map<std::pair<int, int>, Taken> taken_;    // by first trial and iterations
  std::map<int, std::vector<TrialStep>> queues_;  // by first trial; the one in front is open or running
  ArrayRules rules_;
  std::map<std::string, ArrayPace> paces_;  // by partition_key
  RunPool pool_;
  std::vector<TrialStep> order_;
  std::int64_t reported_ = 0;         // steps of order_ whose score the search has
  std::vector<OpenStep> open_;        // not running
  std::map<int, TrialPlace> places_;  // of each first trial, the newest
  std::map<int, Work> running_;       // by id
  std::deque<int> slots_;
  std::set<std::string> cleaned_;  // folders without checkpoints
  int started_ = 0;
  double charged_ = 0;  // until when running work has its time
};

}  // namespace

TuneResults run_tune(const TuneSpec& spec, Journal& journal, Failed failed, int& stopped) {
  return Tuner(spec, journal, failed).run(stopped);
}

}  // namespace millrace
