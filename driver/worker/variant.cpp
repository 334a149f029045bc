#include "driver/worker/variant.h"

#include <utility>

#include "driver/cli/command_support.h"
#include "driver/worker/emulation.h"
#include "driver/worker/rounds.h"
#include "driver/worker/train_data.h"
#include "runtime/base/flag.h"
#include "runtime/base/json.h"
#include "runtime/base/text.h"
#include "runtime/emulation/idle_model.h"
#include "runtime/train/measured_times.h"
#include "runtime/train/trainer.h"

namespace millrace {
namespace {

constexpr double kLeastInterval = 0.01;  // seconds
constexpr std::int64_t kAllSteps = std::int64_t{1} << 60;

/// Finds flags that ask for what a run without computation cannot give.
Problems values_asked_for(const TrainSpec& spec) {
  const TrainOptions& o = spec.options;
  Problems problems;
  const std::pair<bool, const char*> asked[] = {{!o.save_weights.empty(), "--save-weights"},
                                                {!o.keep_best.empty(), "--keep-best"},
                                                {spec.bleu.every > 0, "--bleu-every"},
                                                {o.early_stop.has_value(), "--early-stop"},
                                                {spec.autograd, "--autograd"}};
  for (const auto& [given, flag] : asked)
    if (given)
      problems.push_back(
          {flag, "a run of --variant sleep computes no values", "leave it out, or choose another variant"});
  if (spec.device != ComputeDevice::Cpu)
    problems.push_back({"--variant sleep",
                        "waits in the host's time, and takes no --device " + to_string(spec.device),
                        "leave --device out: the times may come from any device"});
  return problems;
}

Status sleep(TrainSpec& spec) {
  Problems problems = values_asked_for(spec);
  if (spec.variant_from.empty())
    problems.push_back(
        {"--variant sleep", "takes its times from an instrumented run",
         "train once with --variant instrumented --output-dir DIR, and give --variant-from DIR"});
  if (!problems.empty()) return problems;
  if (!spec.of_jobs.empty() && spec.arrays == 0) spec.arrays = spec.pipeline.arrays;  // nothing to try
  int jobs = 0;
  for (const LayeredModel& network : spec.networks) jobs += network.jobs();
  std::vector<std::string> folders;
  for (const std::string& folder : split(spec.variant_from, ',')) {
    if (folder.empty()) continue;
    const Result<std::string> place =
        round_like(folder, jobs, spec.pipeline.arrays, spec.options.first_job.value_or(0));
    if (!place) return place.problems();
    folders.push_back(*place);
  }
  Result<MeasuredTimes> times =
      MeasuredTimes::read(folders, spec.pipeline, spec.options.microbatch, jobs,
                          spec.variant_beyond ? OutsideMeasured::TakeNearest : OutsideMeasured::Refuse);
  if (!times) return times.problems();
  for (const std::string& doubt : (*times).doubts()) spec.plan_notes.push_back("--variant-from: " + doubt);
  for (LayeredModel& network : spec.networks) network = idle_model(std::move(network));
  spec.options.waits = std::make_shared<const MeasuredTimes>(*std::move(times));
  spec.options.nonfinite = {};  // tensors hold anything
  // A run that computes does not go on from this one's checkpoints.
  spec.options.settings.emplace_back("variant", to_string(*spec.variant));
  return Ok{};
}

Status generate(TrainSpec& spec) {
  if (spec.data.starts_with("synthetic"))
    return Problem{"--variant generated", "the data are generated already: --data " + spec.data,
                   "give the real data to --data"};
  if (!spec.variant_from.empty()) {
    spec.data = spec.variant_from;
    return Ok{};
  }
  OpenDatasets open;
  const Result<Datasets> real = open_datasets(spec, open);
  if (!real) return real.problems();
  spec.data = "synthetic:" + std::to_string((*real).train->size());
  return Ok{};
}

/// Decides whether --counters sample.
Status settle_counters(TrainSpec& spec) {
  const bool in_virtual_time = spec.emulated && spec.emulated->is_virtual();
  if (!spec.counters)
    spec.counters = spec.variant && *spec.variant != RunVariant::Original && !in_virtual_time ? 1 : 0;
  if (*spec.counters == 0) return Ok{};
  if (*spec.counters < kLeastInterval)
    return Problem{"--counters", "is below " + shortest_text(kLeastInterval) + " s", "for example 1"};
  if (spec.options.output_dir.empty())
    return Problem{"--counters", "needs a place for what it records", "give --output-dir DIR"};
  if (in_virtual_time)
    return Problem{"--counters", "counts in real time, and the run's is virtual", "leave it out"};
  return Ok{};
}

/// Makes `spec` the variant that its flags name.
Status apply_to(TrainSpec& spec) {
  if (spec.variant_beyond && spec.variant != RunVariant::Sleep)
    return Problem{"--variant-beyond", "says nothing without --variant sleep", "leave it out"};
  if (!spec.variant && spec.variant_from.empty()) return Ok{};
  if (!spec.variant)
    return Problem{"--variant-from", "says nothing without a variant", "give --variant sleep or generated"};
  const RunVariant variant = *spec.variant;
  const std::string flag = "--variant " + to_string(variant);
  TrainOptions& o = spec.options;
  if (variant == RunVariant::Original || variant == RunVariant::Instrumented) {
    if (!spec.variant_from.empty())
      return Problem{"--variant-from", "says nothing with " + flag,
                     "only sleep and generated take something from it"};
  }
  if (variant == RunVariant::Original) {
    o.trace_count = 0;
    return Ok{};
  }
  if (o.output_dir.empty())
    return Problem{flag, "needs a place for what it records", "give --output-dir DIR"};
  o.trace_first = 0;
  o.trace_count = kAllSteps;
  o.phases = true;
  if (variant == RunVariant::Sleep) return sleep(spec);
  return variant == RunVariant::Generated ? generate(spec) : Status(Ok{});
}

}  // namespace

Status apply_variant(TrainSpec& spec) {
  if (const Status applied = apply_to(spec); !applied) return applied;
  return settle_counters(spec);
}

Json variant_as_json(const TrainSpec& spec, const RunReport& report) {
  if (!spec.variant) return {};
  Json json = Json::object({{"name", to_string(*spec.variant)}});
  if (!spec.variant_from.empty()) json["from"] = spec.variant_from;
  if (spec.options.waits) {
    json["times"] = spec.options.waits->source();
    json["drawn_s"] = report.drawn_s;
    json["waited_s"] = report.waited_s;
  }
  return json;
}

}  // namespace millrace
