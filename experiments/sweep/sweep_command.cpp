#include "experiments/sweep/sweep_command.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <set>

#include "driver/cli/command_support.h"
#include "driver/launch/launch_command.h"
#include "experiments/sweep/run_sweep.h"
#include "experiments/sweep/sweep_folder.h"
#include "experiments/sweep/sweep_report.h"
#include "runtime/base/run_files.h"
#include "runtime/base/text.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

constexpr int kMostCheckedJobs = 16;  // of an array

void print_dry_run(const SweepSpec& spec) {
  std::printf("%s: %d jobs, modes", spec.name.c_str(), spec.num_jobs);
  for (SweepMode mode : spec.modes) std::printf(" %s", to_string(mode).c_str());
  std::printf("; output in %s\n", spec.output_dir.c_str());
  for (int job = 0; job < spec.num_jobs; ++job)
    std::printf("job %d: %s\n", job, settings_text(spec.settings(job)).c_str());
  if (!spec.measures) return;
  const MeasureSpec& m = spec.measure;
  std::printf("measured: %d epochs of %lld steps, the first %d not counted, %d times\n", m.epochs,
              static_cast<long long>(m.iterations), m.warmup_epochs, m.repeats);
}

Json to_json(const SweepSpec& spec, const SweepResults& results) {
  Json jobs = Json::array(), measurements = Json::array();
  for (const JobResult& r : results.jobs) {
    Json job = Json::object({{"job", r.job}, {"mode", to_string(r.mode)}, {"exit_code", r.exit_code}});
    for (const Setting& setting : spec.settings(r.job)) job["settings"][setting.flag] = setting.text;
    job["final_loss"] = r.final_loss;
    for (const auto& [name, value] : r.metrics) job["evaluation"][name] = value;
    job["seconds"] = r.counters.seconds;
    job["error"] = r.error;
    job["folder"] = r.folder;
    jobs.push_back(std::move(job));
  }
  for (const Measurement& m : results.measurements)
    measurements.push_back(Json::object({{"mode", to_string(m.mode)},
                                         {"B", m.jobs},
                                         {"unfused", m.unfused},
                                         {"repeat", m.repeat},
                                         {"samples_per_s", m.samples_per_s},
                                         {"error", m.error}}));
  return Json::object({{"format", kSweepFormat},
                       {"output_dir", spec.output_dir},
                       {"failed", results.num_failed()},
                       {"jobs", jobs},
                       {"measurements", measurements}});
}

void print_results(const SweepSpec& spec, const SweepResults& results) {
  for (const JobResult& r : results.jobs) {
    std::string text = r.exit_code != 0 ? "failed: " + r.error : printed("loss %.6f", r.final_loss);
    for (const auto& [name, value] : r.metrics)
      text += ", " + (name == "loss" ? std::string("evaluation loss") : name) + printed(" %.4f", value);
    std::printf("%s job %d (%s): %s\n", to_string(r.mode).c_str(), r.job,
                settings_text(spec.settings(r.job)).c_str(), text.c_str());
  }
  const Curves curves = curves_of(results, precision_of(spec));
  for (const ModeCurves& mode : curves.modes) {
    std::set<int> sizes;
    for (const RateCurve& curve : mode.repeats)
      for (const auto& [jobs, rate] : curve) sizes.insert(jobs);
    for (int jobs : sizes) {
      const Band band = band_at(mode, jobs);
      std::printf("%s B=%d: %.1f samples/s", mode.mode.c_str(), jobs, band.mean);
      if (curves.serial > 0) std::printf(", %.2f times serial", band.mean / curves.serial);
      std::printf("\n");
    }
  }
}

/// One of each kind that will be run: a job, and an array of all, partly unfused.
std::vector<JobSpec> jobs_to_check(const SweepSpec& spec) {
  std::vector<JobSpec> jobs{*spec.job.with(spec.settings(0))};
  if (spec.has(SweepMode::Fused)) {
    const int count = std::min(spec.num_jobs, spec.array > 0 ? spec.array : kMostCheckedJobs);
    jobs.push_back(*fused_job(spec.job, all_settings(spec.varied, spec.seed, count), spec.unfused));
  }
  return jobs;
}

int run(SweepSpec& spec, const Arguments& arguments, OutputFormat format) {
  const Result<RunLock> lock =
      take_folder(spec.output_dir, kSweepFormat, spec.identity, arguments.boolean("overwrite"));
  if (!lock) return exit_with(ExitCode::Usage, lock.problems());
  Result<Journal> journal = Journal::open(spec.output_dir, kSweepFormat, spec.identity);
  if (!journal) return exit_with(ExitCode::Usage, journal.problems());
  int stopped = 0;
  const SweepResults results =
      run_sweep(spec, *journal, arguments.boolean("retry-failed") ? Failed::Retry : Failed::Keep, stopped);
  if (const Status written = write_tables(spec, results); !written)
    return exit_with(ExitCode::RunFailed, written.problems());
  const fs::path report = fs::path(spec.output_dir) / run_files::kReport;
  if (const Status written = write_file_atomically(report, sweep_report_html(spec, results)); !written)
    return exit_with(ExitCode::RunFailed, written.problems());
  if (stopped != 0) {
    std::fprintf(stderr, "millrace sweep: stopped; the same command goes on from here\n");
    return static_cast<int>(ExitCode::Requeue);
  }
  if (format == OutputFormat::Json)
    std::printf("%s\n", to_json(spec, results).dump(1).c_str());
  else
    print_results(spec, results);
  std::fprintf(stderr, "report: %s\n", report.c_str());
  if (const int failed = results.num_failed(); failed > 0) {
    std::fprintf(stderr, "millrace sweep: %d failed; --retry-failed tries them again\n", failed);
    return static_cast<int>(ExitCode::RunFailed);
  }
  return 0;
}

}  // namespace

CommandSpec sweep_spec() {
  CommandSpec spec;
  spec.command = "sweep";
  spec.summary = "Train a job with many settings: one after another, side by side, or fused; measure each.";
  spec.positionals = {"SWEEP.yaml"};
  spec.flags = {
      {.name = "output-dir",
       .short_name = 'o',
       .value = "DIR",
       .help =
           "Results go here (default: the file's output_dir, or runs/NAME). A folder of the same sweep goes "
           "on where it was stopped or killed."},
      {.name = "overwrite", .help = "Delete what the folder holds of a sweep, and begin again."},
      {.name = "retry-failed", .help = "Run again what failed; without it a failure stays on record."},
      {.name = "dry-run", .help = "Check everything, print the jobs, start nothing."},
      {.name = "format", .value = "text|json", .help = "Form of the results on stdout.", .fallback = "text"},
  };
  spec.examples = {"millrace sweep sweep.yaml --output-dir out", "millrace sweep sweep.yaml --dry-run"};
  return spec;
}

int sweep_command(const std::vector<std::string>& args) {
  const CommandSpec command = sweep_spec();
  const Result<Arguments> arguments = parse_arguments(command, args);
  if (!arguments) return exit_with(ExitCode::Usage, arguments.problems());
  if (arguments->wants_help()) return std::fputs(help_text(command).c_str(), stdout), 0;
  Problems problems;
  const OutputFormat format = output_format(*arguments, problems);
  Result<SweepSpec> spec = load_sweep(arguments->positionals().front());
  if (!spec) append(problems, spec.problems());
  if (!problems.empty()) return exit_with(ExitCode::Usage, problems);
  if (arguments->has("output-dir")) spec->output_dir = arguments->string("output-dir");
  try {
    if (const Problems found = problems_before_start(jobs_to_check(*spec), spec->output_dir); !found.empty())
      return exit_with(ExitCode::Usage, found);
    if (arguments->boolean("dry-run")) return print_dry_run(*spec), 0;
    return run(*spec, *arguments, format);
  } catch (const Error& error) {
    return exit_with(error.code(), {{"millrace sweep", error.what(), error.hint()}});
  }
}

}  // namespace millrace
