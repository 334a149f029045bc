#include "experiments/io/experiment/experiment_command.h"

#include <cstdio>

#include "experiments/drawing/figures.h"
#include "experiments/io/experiment/experiment_report.h"
#include "experiments/io/experiment/run_experiment.h"
#include "experiments/io/io_commands.h"
#include "experiments/sweep/swept_command.h"
#include "runtime/base/text.h"

namespace millrace {
namespace {

void print_dry_run(const ExperimentSpec& spec) {
  std::printf("%s: %zu cells; output in %s\n", spec.name.c_str(), spec.cells.size(), spec.output_dir.c_str());
  for (const ExperimentCell& cell : spec.cells) std::printf("%s\n", spec.key_of(cell).c_str());
  if (spec.captured > 0)
    std::printf("and each variant, and DLIO, %d more times under trace capture\n", spec.captured);
}

/// A run of each workload. Data that are still to be generated, and the variant, are left out: what they need
/// is not there yet.
std::vector<JobSpec> jobs_to_check(const ExperimentSpec& spec) {
  std::vector<JobSpec> jobs;
  for (std::size_t w = 0; w < spec.workloads.size(); ++w) {
    const ExperimentWorkload& workload = spec.workloads[w];
    for (std::size_t d = 0; d < workload.data.size(); ++d) {
      Result<JobSpec> job = spec.job_of({.workload = w,
                                         .data = d,
                                         .variant = RunVariant::Original,
                                         .ranks = workload.ranks.front(),
                                         .batch = workload.batch.front()});
      if (!job) throw ConfigError(workload.name + ": " + to_string(job.problems()));
      set_flag(*job, "variant", std::nullopt);
      if (!workload.data[d].generate.empty()) set_flag(*job, "data", "synthetic");
      job->source += ": " + workload.name;
      jobs.push_back(*std::move(job));
    }
  }
  return jobs;
}

Json to_json(const ExperimentSpec& spec, const ExperimentResults& results) {
  Json cells = Json::array(), comparisons = Json::array();
  for (const CellResult& one : results.cells)
    cells.push_back(Json::object({{"cell", spec.key_of(spec.cells[one.cell])},
                                  {"exit_code", one.exit_code},
                                  {"error", one.error},
                                  {"run_s", one.run_s},
                                  {"wall_s", one.wall_s},
                                  {"samples_per_s", one.samples_per_s},
                                  {"compute_s", one.compute_s}}));
  for (const Comparison& one : results.comparisons)
    comparisons.push_back(Json::object({{"group", one.group},
                                        {"variant", one.variant},
                                        {"beside", one.beside},
                                        {"what", one.what},
                                        {"mean_ratio", one.mean},
                                        {"least", one.least},
                                        {"most", one.most}}));
  Json alike = Json::array();
  for (const IoSimilarity& one : results.alike)
    alike.push_back(Json::object({{"group", one.group},
                                  {"variant", one.variant},
                                  {"tracesim", one.score},
                                  {"low", one.low},
                                  {"high", one.high}}));
  return Json::object({{"format", kExperimentFormat},
                       {"similarity", alike},
                       {"output_dir", spec.output_dir},
                       {"failed", results.num_failed()},
                       {"cells", cells},
                       {"comparisons", comparisons}});
}

void print_results(const ExperimentSpec& spec, const ExperimentResults& results) {
  for (const CellResult& one : results.cells)
    std::printf("%s: %s\n", spec.key_of(spec.cells[one.cell]).c_str(),
                one.exit_code != 0
                    ? ("failed: " + one.error).c_str()
                    : ("run " + duration_figure(one.run_s) + ", " + figure(one.samples_per_s) + " samples/s")
                          .c_str());
  for (const Comparison& one : results.comparisons)
    std::printf("%s, %s beside %s: %s %+.2f %%%s\n", one.group.c_str(), one.variant.c_str(),
                one.beside.c_str(), one.what.c_str(), (one.mean - 1) * 100,
                one.ratios.size() < 2  // a repeat alone has no range
                    ? ""
                    : printed(" (%+.2f to %+.2f)", (one.least - 1) * 100, (one.most - 1) * 100).c_str());
  for (const IoSimilarity& one : results.alike)
    std::printf("%s, file calls of %s beside the original's: tracesim/1 %.3f%s\n", one.group.c_str(),
                one.variant.c_str(), one.score,
                one.low < one.high ? printed(" (%.3f to %.3f)", one.low, one.high).c_str() : "");
}

std::string failure_of(const ExperimentResults& results) {
  const int failed = results.num_failed();
  return failed > 0 ? std::to_string(failed) + " cells failed; --retry-failed tries them again" : "";
}

CommandSpec line_of(SweptFlags& f) {
  return {.command = kIoExperiment.command,
          .summary = kIoExperiment.summary,
          .positionals = {"GRID.yaml"},
          .flags = swept_flags(f, "grid", "Check everything, print the cells, start nothing.",
                               "Form of the results on stdout."),
          .examples = {"millrace experiment experiments/grids/unet3d.yaml --output-dir out",
                       "millrace experiment grid.yaml --dry-run"}};
}

constexpr SweptCommand<ExperimentSpec, ExperimentResults> kExperiment{
    "experiment",
    kExperimentFormat,
    load_experiment,
    jobs_to_check,
    print_dry_run,
    run_experiment,
    write_experiment_tables,
    experiment_report_html,
    to_json,
    print_results,
    failure_of,
    "{variants: [original, instrumented, sleep], workloads: [{name: mine, job: job.yaml}]}"};

}  // namespace

CommandSpec experiment_spec() {
  return without_targets<SweptFlags>(line_of);
}

int experiment_command(const std::vector<std::string>& args) {
  SweptFlags flags;
  return swept_command(kExperiment, line_of(flags), flags, args);
}

}  // namespace millrace
