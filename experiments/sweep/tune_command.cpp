#include "experiments/sweep/tune_command.h"

#include <cstdio>
#include <filesystem>

#include "driver/cli/command_support.h"
#include "experiments/sweep/run_tune.h"
#include "experiments/sweep/sweep_folder.h"
#include "experiments/sweep/tune_report.h"
#include "runtime/base/run_files.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

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
  for (int trial = 0; trial < spec.num_trials(); ++trial)
    std::printf("trial %d: %s\n", trial, settings_text(spec.settings(trial)).c_str());
}

void print_results(const TuneSpec& spec, const TuneResults& results) {
  if (results.best >= 0) {
    const TrialResult& best = results.steps[static_cast<std::size_t>(results.best)];
    std::printf("best trial %d (%s): %s %.6g after %d iterations, in %s\n", best.step.trial,
                settings_text(spec.settings(best.step.trial)).c_str(), spec.metric.c_str(), best.metric,
                best.step.to, place_text(best).c_str());
  }
  const TuneCost cost = cost_of(results);
  std::printf("cost: %lld iterations, %.1f s; with restarts %lld iterations, about %.1f s\n",
              static_cast<long long>(cost.iterations), cost.seconds,
              static_cast<long long>(cost.restarts_iterations), cost.restarts_seconds);
}

int run(const TuneSpec& spec, const Arguments& arguments, OutputFormat format) {
  const Result<RunLock> lock =
      take_folder(spec.output_dir, kTuneFormat, spec.identity, arguments.boolean("overwrite"));
  if (!lock) return exit_with(ExitCode::Usage, lock.problems());
  Result<Journal> journal = Journal::open(spec.output_dir, kTuneFormat, spec.identity);
  if (!journal) return exit_with(ExitCode::Usage, journal.problems());
  int stopped = 0;
  const TuneResults results =
      run_tune(spec, *journal, arguments.boolean("retry-failed") ? Failed::Retry : Failed::Keep, stopped);
  if (const Status written = write_tune_tables(spec, results); !written)
    return exit_with(ExitCode::RunFailed, written.problems());
  const fs::path report = fs::path(spec.output_dir) / run_files::kReport;
  if (const Status written = write_file_atomically(report, tune_report_html(spec, results)); !written)
    return exit_with(ExitCode::RunFailed, written.problems());
  if (stopped != 0) {
    std::fprintf(stderr, "millrace tune: stopped; the same command goes on from here\n");
    return static_cast<int>(ExitCode::Requeue);
  }
  if (format == OutputFormat::Json)
    std::printf("%s\n", to_json(spec, results).dump(1).c_str());
  else
    print_results(spec, results);
  std::fprintf(stderr, "report: %s\n", report.c_str());
  if (results.best >= 0) return 0;
  std::fprintf(stderr, "millrace tune: no trial came to a result; history.csv says why\n");
  return static_cast<int>(ExitCode::RunFailed);
}

}  // namespace

CommandSpec tune_spec() {
  CommandSpec spec;
  spec.command = "tune";
  spec.summary = "Search the settings of a job: random, Hyperband or ASHA; trials go on from checkpoints.";
  spec.positionals = {"TUNE.yaml"};
  spec.flags = {
      {.name = "output-dir",
       .short_name = 'o',
       .value = "DIR",
       .help =
           "Results go here (default: the file's output_dir, or runs/NAME). A folder of the same search goes "
           "on where it was stopped or killed."},
      {.name = "overwrite", .help = "Delete what the folder holds of a search, and begin again."},
      {.name = "retry-failed", .help = "Run again what failed; without it a failure stays on record."},
      {.name = "dry-run", .help = "Check everything, print brackets and trials, start nothing."},
      {.name = "format", .value = "text|json", .help = "Form of the result on stdout.", .fallback = "text"},
  };
  spec.examples = {"millrace tune tune.yaml --output-dir out", "millrace tune tune.yaml --dry-run"};
  return spec;
}

int tune_command(const std::vector<std::string>& args) {
  const CommandSpec command = tune_spec();
  const Result<Arguments> arguments = parse_arguments(command, args);
  if (!arguments) return exit_with(ExitCode::Usage, arguments.problems());
  if (arguments->wants_help()) return std::fputs(help_text(command).c_str(), stdout), 0;
  Problems problems;
  const OutputFormat format = output_format(*arguments, problems);
  Result<TuneSpec> spec = load_tune(arguments->positionals().front());
  if (!spec) append(problems, spec.problems());
  if (!problems.empty()) return exit_with(ExitCode::Usage, problems);
  if (arguments->has("output-dir")) spec->output_dir = arguments->string("output-dir");
  try {
    if (const Problems found = problems_before_start({*spec->job.with(spec->settings(0))}, spec->output_dir);
        !found.empty())
      return exit_with(ExitCode::Usage, found);
    if (arguments->boolean("dry-run")) return print_dry_run(*spec), 0;
    return run(*spec, *arguments, format);
  } catch (const Error& error) {
    return exit_with(error.code(), {{"millrace tune", error.what(), error.hint()}});
  }
}

}  // namespace millrace
