#include "experiments/sweep/tune_command.h"

#include <algorithm>
#include <cstdio>

#include "experiments/sweep/partition.h"
#include "experiments/sweep/run_tune.h"
#include "experiments/sweep/swept_command.h"
#include "experiments/sweep/trial_run.h"
#include "experiments/sweep/tune_report.h"
#include "runtime/base/text.h"

namespace millrace {
namespace {

std::vector<Partition> partitions_of(const TuneSpec& spec) {
  return partitions_of_first(spec.num_trials(), spec.infusible,
                             [&](int trial) { return spec.settings(trial); });
}

void print_dry_run(const TuneSpec& spec) {
  std::printf("%s: %s, %d trials of up to %d iterations of %lld steps, %s; output in %s\n", spec.name.c_str(),
              to_string(spec.search.kind).c_str(), spec.num_trials(), spec.full(),
              static_cast<long long>(spec.steps), to_string(spec.mode).c_str(), spec.output_dir.c_str());
  if (spec.search.kind == SearchKind::Hyperband) {
    for (int s = whole_log(spec.search.most, spec.search.eta); s >= 0; --s) {
      std::printf("bracket %d:", s);
      for (const Rung& rung : bracket(spec.search.most, spec.search.eta, s, spec.search.skip_last))
        std::printf(" %d to %d", rung.trials, rung.iterations);
      std::printf("\n");
    }
  }
  if (const std::vector<Partition> parts = partitions_of(spec); parts.size() > 1) {
    std::printf("%zu partitions, each tried:\n", parts.size());
    for (const Partition& trials : parts)
      std::printf("  %s: %zu trials\n", partition_key(spec.settings(trials.front()), spec.infusible).c_str(),
                  trials.size());
  }
  const std::vector<int> firsts = spec.first_trials();
  for (int trial = 0; trial < spec.num_trials(); ++trial) {
    const std::string same = firsts[trial] == trial ? "" : printed(" (as trial %d)", firsts[trial]);
    std::printf("trial %d: %s%s\n", trial, settings_text(spec.settings(trial)).c_str(), same.c_str());
  }
}

void print_results(const TuneSpec& spec, const TuneResults& results) {
  if (results.best >= 0) {
    const TrialResult& best = results.steps[results.best];
    std::printf("best trial %d (%s): %s %.6g after %d iterations, in %s\n", best.step.trial,
                settings_text(spec.settings(best.step.trial)).c_str(), spec.metric.c_str(), best.metric,
                best.step.to, place_text(best.folder, best.member).c_str());
  }
  const TuneCost cost = cost_of(results);
  std::printf("cost: %lld iterations, %.1f s; with restarts %lld iterations, about %.1f s\n",
              static_cast<long long>(cost.iterations), cost.seconds,
              static_cast<long long>(cost.restarts_iterations), cost.restarts_seconds);
  if (spec.mode == SweepMode::Fused)
    std::printf("arrays: %lld, of %lld iterations in all\n", static_cast<long long>(cost.runs),
                static_cast<long long>(cost.run_iterations));
}

/// Returns from each partition the run that begins its trials: an array of them, or the first alone.
std::vector<JobSpec> jobs_to_check(const TuneSpec& spec) {
  std::vector<JobSpec> jobs;
  for (const Partition& trials : partitions_of(spec)) {
    ArrayRun run{.iterations = spec.full()};
    for (const int trial : trials) run.steps.push_back({.step = {.trial = trial, .to = spec.full()}});
    if (spec.mode != SweepMode::Fused)
      run.steps.resize(1);
    else if (spec.array > 0)
      run.steps.resize(std::min(run.steps.size(), static_cast<std::size_t>(spec.array)));
    JobSpec& job = jobs.emplace_back(trial_run(spec, run, {}, spec.output_dir).job);
    if (const std::string key = partition_key(spec.settings(trials.front()), spec.infusible); !key.empty())
      job.source += " with " + key;
  }
  return jobs;
}

std::string failure_of(const TuneResults& results) {
  return results.best >= 0 ? "" : "no trial came to a result; history.csv says why";
}

CommandSpec spec_of(SweptFlags& f) {
  return {
      .command = "tune",
      .summary = "Search the settings of a job: random, Hyperband or ASHA; trials go on from checkpoints.",
      .positionals = {"TUNE.yaml"},
      .flags = swept_flags(f, "search", "Check everything, print brackets and trials, start nothing.",
                           "Form of the result on stdout."),
      .examples = {"millrace tune tune.yaml --output-dir out", "millrace tune tune.yaml --dry-run"}};
}

constexpr SweptCommand<TuneSpec, TuneResults> kTune{
    "tune",
    kTuneFormat,
    load_tune,
    jobs_to_check,
    print_dry_run,
    run_tune,
    write_tune_tables,
    tune_report_html,
    to_json,
    print_results,
    failure_of,
    "{job: job.yaml, algorithm: random, trials: 8, space: {lr: {log_uniform: [1e-4, 1e-1]}}}"};

}  // namespace

CommandSpec tune_spec() {
  return without_targets<SweptFlags>(spec_of);
}

int tune_command(const std::vector<std::string>& args) {
  SweptFlags flags;
  return swept_command(kTune, spec_of(flags), flags, args);
}

}  // namespace millrace
