#include "experiments/sweep/sweep_command.h"

#include <algorithm>
#include <cstdio>
#include <set>

#include "experiments/sweep/partition.h"
#include "experiments/sweep/run_sweep.h"
#include "experiments/sweep/sweep_report.h"
#include "experiments/sweep/swept_command.h"
#include "runtime/base/text.h"

namespace millrace {
namespace {

constexpr int kMostCheckedJobs = 16;  // of an array

void print_dry_run(const SweepSpec& spec) {
  std::printf("%s: %d jobs, modes", spec.name.c_str(), spec.num_jobs);
  for (SweepMode mode : spec.modes) std::printf(" %s", to_string(mode).c_str());
  std::printf("; output in %s\n", spec.output_dir.c_str());
  for (int job = 0; job < spec.num_jobs; ++job)
    std::printf("job %d: %s\n", job, settings_text(spec.settings(job)).c_str());
  if (spec.plan) std::printf("%s", spec.plan->reasons.c_str());
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
    job["step_s"] = r.work.step_s;
    job["samples_per_s"] = r.work.samples_per_s;
    job["updates"] = r.work.updates;
    job["samples"] = r.work.samples;
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

/// "; 12.3 ms a step, 650 samples/s, 100 updates"; where a job read other samples than most it says so.
std::string work_text(const JobWork& work, std::int64_t usual) {
  if (work.updates == 0) return "";
  std::string text = printed("; %.4g ms a step, %.4g samples/s, %lld updates", work.step_s * 1e3,
                             work.samples_per_s, static_cast<long long>(work.updates));
  if (work.samples != usual)
    text += " (other work: " + std::to_string(work.samples) + " samples, most jobs read " +
            std::to_string(usual) + ")";
  return text;
}

void print_results(const SweepSpec& spec, const SweepResults& results) {
  const std::int64_t usual = usual_samples(results.jobs);
  for (const JobResult& r : results.jobs) {
    std::string text = r.exit_code != 0 ? "failed: " + r.error : printed("loss %.6f", r.final_loss);
    for (const auto& [name, value] : r.metrics)
      text += ", " + (name == "loss" ? std::string("evaluation loss") : name) + printed(" %.4f", value);
    text += work_text(r.work, usual);
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

/// One of each kind that will be run: a job of each partition, and an array of all, partly unfused.
std::vector<JobSpec> jobs_to_check(const SweepSpec& spec) {
  std::vector<JobSpec> jobs;
  const std::vector<std::string> infusible = infusible_among(spec.varied.flags());
  for (const Partition& part :
       partitions_of_first(spec.num_jobs, infusible, [&](int job) { return spec.settings(job); })) {
    JobSpec& job = jobs.emplace_back(*spec.job.with(spec.settings(part.front())));
    if (!infusible.empty()) job.source += " with " + partition_key(spec.settings(part.front()), infusible);
  }
  if (spec.has(SweepMode::Fused)) {
    const int count = std::min(spec.num_jobs, spec.array > 0 ? spec.array : kMostCheckedJobs);
    jobs.push_back(*fused_job(spec.job, all_settings(spec.varied, spec.seed, count), spec.unfused));
  }
  return jobs;
}

std::string failure_of(const SweepResults& results) {
  const int failed = results.num_failed();
  return failed > 0 ? std::to_string(failed) + " failed; --retry-failed tries them again" : "";
}

CommandSpec spec_of(SweptFlags& f) {
  return {
      .command = "sweep",
      .summary = "Train a job with many settings: one after another, side by side, or fused; measure each.",
      .positionals = {"SWEEP.yaml"},
      .flags = swept_flags(f, "sweep", "Check everything, print the jobs, start nothing.",
                           "Form of the results on stdout."),
      .examples = {"millrace sweep sweep.yaml --output-dir out", "millrace sweep sweep.yaml --dry-run"}};
}

constexpr SweptCommand<SweepSpec, SweepResults> kSweep{
    "sweep",       kSweepFormat,  load_sweep,   jobs_to_check,
    print_dry_run, run_sweep,     write_tables, sweep_report_html,
    to_json,       print_results, failure_of,   "{job: job.yaml, lists: {lr: [0.01, 0.1]}}"};

}  // namespace

CommandSpec sweep_spec() {
  return without_targets<SweptFlags>(spec_of);
}

int sweep_command(const std::vector<std::string>& args) {
  SweptFlags flags;
  return swept_command(kSweep, spec_of(flags), flags, args);
}

}  // namespace millrace
