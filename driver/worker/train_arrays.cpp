#include "driver/worker/train_arrays.h"

#include <algorithm>

#include "data/files/augmentation.h"
#include "driver/worker/class_weights.h"
#include "models/exported/exported_model.h"
#include "runtime/base/text.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/layers/autograd_layer.h"
#include "runtime/layers/carrying_layer.h"
#include "runtime/model/fuse.h"
#include "runtime/model/mixed_targets.h"
#include "runtime/profile/profiler.h"
#include "runtime/rules/rule_table.h"
#include "runtime/train/trainer.h"

namespace millrace {

namespace {

/// Whether the jobs were told different options of the model.
bool models_differ(const std::vector<TrainFlags>& jobs) {
  const auto same = [](const GivenOption& a, const GivenOption& b) {
    return a.name == b.name && a.text == b.text;
  };
  const GivenOptions& first = jobs.front().model.options;
  return std::ranges::any_of(
      jobs, [&](const TrainFlags& f) { return !std::ranges::equal(f.model.options, first, same); });
}

/// Every layer that it may be through LibTorch's autograd (--autograd).
void use_autograd(LayeredModel& model) {
  for (NamedLayer& named : model.layers) {
    const Layer* layer = named.layer.get();
    if (!dynamic_cast<const MultiLayer*>(layer) && !dynamic_cast<const CarryingLayer*>(layer))
      named.layer = through_autograd(named.layer);
  }
  for (Turn& turn : model.turns) use_autograd(turn.model);
}

bool at_one_step(const TrainSpec& spec, std::size_t first, std::size_t end) {
  const auto& at = spec.positions;
  return at.empty() || std::all_of(at.begin() + static_cast<std::ptrdiff_t>(first),
                                   at.begin() + static_cast<std::ptrdiff_t>(end),
                                   [&](std::int64_t own) { return own == at[first]; });
}

bool read_the_same(const TrainSpec& spec, std::size_t first, std::size_t end) {
  for (std::size_t job = first + 1; job < end; ++job)
    if (spec.data_seed_of(job) != spec.data_seed_of(first)) return false;
  return at_one_step(spec, first, end);
}

/// Returns what each of `jobs` has consumed if --resume has them at different steps; else it is empty. A job
/// that is through has what the array has, because it reads what another job does. The Trainer says what is
/// wrong with the checkpoint.
std::vector<std::int64_t> positions_in(const std::string& resume, const std::vector<TrainFlags>& jobs) {
  if (resume.empty() || jobs.size() < 2) return {};
  const Result<Checkpoint> checkpoint = open_checkpoint(resume);
  if (!checkpoint || checkpoint->info.jobs.size() != jobs.size()) return {};
  std::vector<std::int64_t> positions;
  for (std::size_t job = 0; job < jobs.size(); ++job) {
    const JobProgress& own = checkpoint->info.jobs[job];
    const bool through = jobs[job].epochs == 0 && own.step >= jobs[job].options.steps;
    positions.push_back(through ? checkpoint->info.position : own.position);
  }
  return positions;
}

/// Why the jobs [first, end) cannot be one array, whose microbatches have one size for all; empty: they can.
std::string why_apart(const TrainSpec& spec, std::size_t first, std::size_t end) {
  const bool one_step = at_one_step(spec, first, end);
  const std::string differ = one_step ? "" : "the jobs are at different steps, and ";
  if (!spec.alone.dimensions.empty() && !read_the_same(spec, first, end))
    return differ + "the samples of " + spec.alone.name + " vary in length, of which each job reads its own";
  if (spec.keep_last && !one_step)
    return differ + "with --keep-last their epochs' incomplete steps come apart";
  return {};
}

/// The jobs from `first` to before `end` as one array.
Result<LayeredModel> array_of(const TrainSpec& spec, const std::vector<LayeredModel>& models,
                              std::size_t first, std::size_t end,
                              const std::shared_ptr<KernelChoices>& choices) {
  return fuse(
      {models.begin() + static_cast<std::ptrdiff_t>(first),
       models.begin() + static_cast<std::ptrdiff_t>(end)},
      choices,
      {.data = read_the_same(spec, first, end) ? JobData::Shared : JobData::Own, .unfused = spec.unfused});
}

/// Whether several arrays are nobody's choice but this run's. A run that is told to use kernels over all jobs
/// does.
bool may_divide(const TrainSpec& spec) {
  if (spec.of_jobs.size() < 2 || spec.arrays > 0 || !spec.plan.empty() || spec.options.first_job)
    return false;
  if (spec.kernels == ArrayKernels::Fused || first_carrying(spec.alone.layers)) return false;
  Plan several = spec.pipeline;
  several.arrays = 2;
  return validate(several, spec.alone.name, spec.alone.layer_names()).empty();
}

/// No clock decides what a deterministic run computes: kernels over all jobs round differently.
std::shared_ptr<KernelChoices> new_choices(const TrainSpec& spec) {
  const bool timed = spec.kernels == ArrayKernels::Auto;
  return std::make_shared<KernelChoices>(timed && spec.deterministic ? ArrayKernels::Loop : spec.kernels,
                                         choosing_clock());
}

/// Makes `arrays` job arrays of what the jobs are; the first ones have a job more where they cannot be equal.
Problems make_arrays(TrainSpec& spec, const std::vector<LayeredModel>& models, std::size_t arrays) {
  std::vector<LayeredModel> networks;
  spec.choices.clear();
  for (std::size_t array = 0, first = 0, end; array < arrays; ++array, first = end) {
    end = first + models.size() / arrays + (array < models.size() % arrays);
    if (const std::string why = why_apart(spec, first, end); !why.empty()) {
      const std::string by_seed = at_one_step(spec, first, end) ? "give one --data-seed for all jobs" : "";
      const std::string by_arrays =
          "give --arrays " + std::to_string(models.size()) + ": the jobs take turns in the pipeline";
      return {{"--arrays", "the jobs cannot share an array: " + why,
               first_carrying(spec.alone.layers) ? by_seed
               : by_seed.empty()                 ? by_arrays
                                                 : by_seed + ", or " + by_arrays}};
    }
    auto& choices = spec.choices[end - first];
    if (!choices) choices = new_choices(spec);
    Result<LayeredModel> fused = array_of(spec, models, first, end, choices);
    if (!fused) return fused.problems();
    networks.push_back(*std::move(fused));
  }
  spec.networks = std::move(networks);
  return {};
}

}  // namespace

namespace {
/// Makes the model of a job as its flags say, with what its samples' augmentation and weights add.
Result<LayeredModel> model_of(const TrainFlags& job, const Additions& own) {
  Result<LayeredModel> model = make_model(job.model.name, job.model.options, own.models);
  if (!model) return model;
  bool mixes = false;
  if (!job.augment.empty()) {
    const auto steps = augment_steps_from(job.augment);
    if (!steps) return steps.problems();
    mixes = find_step(*steps, Augmentation::Mixup) != nullptr;
  }
  if (mixes && !job.class_weights.empty())
    return Problem{"--class-weights", "a sample that mixup makes has two classes",
                   "leave one of the two out"};
  if (mixes) {
    if (const Status mixed = mix_targets(*model); !mixed) return mixed.problems();
  }
  if (const Status weighed = apply_class_weights(*model, job, own); !weighed) return weighed.problems();
  apply_ignored_labels(*model, job, own);
  return model;
}
}  // namespace

Result<std::vector<LayeredModel>> models_of(const std::vector<TrainFlags>& jobs, const Additions& own) {
  if (jobs.size() > 1 && !jobs.front().class_weights.empty())
    return Problem{"--class-weights", "the jobs of an array have one loss, in which samples count alike",
                   "leave out --fused: train the jobs one by one (millrace sweep)"};
  Result<LayeredModel> first = model_of(jobs.front(), own);
  if (!first) return first.problems();
  if (!models_differ(jobs)) {  // the jobs share layers, and what a layer without weights makes of one input
    if (jobs.front().autograd) use_autograd(*first);
    return std::vector<LayeredModel>(jobs.size(), *std::move(first));
  }
  std::vector<LayeredModel> models{*std::move(first)};
  Problems problems;
  for (std::size_t b = 1; b < jobs.size(); ++b) {
    Result<LayeredModel> model = model_of(jobs[b], own);
    if (!model)
      append(problems, model.problems());
    else
      models.push_back(*std::move(model));
  }
  if (!problems.empty()) return problems;
  complete(models);
  if (jobs.front().autograd) std::ranges::for_each(models, use_autograd);
  return models;
}

Problems fuse_jobs(TrainSpec& spec, const std::vector<TrainFlags>& jobs,
                   const std::vector<LayeredModel>& models) {
  auto arrays = static_cast<std::size_t>(spec.pipeline.arrays);
  if (arrays > jobs.size()) {
    return {
        {"--arrays",
         std::to_string(jobs.size()) + " jobs cannot be divided into " + std::to_string(arrays) + " arrays",
         "give at most " + std::to_string(jobs.size())}};
  }
  spec.of_jobs = jobs;
  spec.positions = positions_in(spec.options.resume, jobs);
  spec.own_data = !read_the_same(spec, 0, jobs.size());
  std::string at;
  for (const std::int64_t position : spec.positions) at += " " + std::to_string(position);
  spec.options.rank_settings.emplace_back("positions of jobs", at.empty() ? "alike" : at);
  if (may_divide(spec)) spec.apart = why_apart(spec, 0, jobs.size());
  if (!spec.apart.empty()) {
    arrays = jobs.size();
    spec.pipeline.arrays = static_cast<int>(arrays);
  }
  // One plan, one data set's fields, one checkpoint: all jobs are of one form, whatever arrays they are in.
  if (arrays > 1) {
    if (const auto whole = fuse(models, new_choices(spec), {.unfused = spec.unfused}); !whole)
      return whole.problems();
  }
  const Problems problems = make_arrays(spec, models, arrays);
  if (!problems.empty()) return problems;
  for (const TrainFlags& job : jobs) {
    const TrainOptions& o = job.options;
    spec.options.jobs.push_back(
        {.seed = o.seed, .rule = o.rule, .clip = o.clip, .learning_rate = o.learning_rate, .steps = o.steps});
    for (const auto& setting : recorded_options(job.model.name, job.model.options, spec.own.models))
      spec.options.jobs.back().settings.push_back(setting);
  }
  return {};
}

bool chooses_arrays(const TrainSpec& spec) {
  return spec.device == ComputeDevice::Cpu && spec.apart.empty() && may_divide(spec);
}

ArrayDivision measured_division(const TrainSpec& spec) {
  const std::vector<LayeredModel>& models = spec.networks.front().of_jobs;
  const std::shared_ptr<Device> device = make_cpu_device();
  const ProfileOptions options{.microbatch = spec.options.microbatch,
                               .repetitions = 3,
                               .seed = spec.options.seed,
                               .precision = spec.options.precision};
  BetweenMicrobatches between{
      .rule_states = static_cast<int>(states_of(spec.options.jobs.front().rule).size()),
      .microbatches = spec.pipeline.microbatches};
  const auto seconds_of = [&](std::size_t jobs) {
    const Result<LayeredModel> array = array_of(spec, models, 0, jobs, new_choices(spec));
    if (!array) throw ConfigError(to_string(array.problems()));
    // On one rank an array goes on for many steps before the next one begins (TrainOptions::stretch_s).
    if (spec.pipeline.num_ranks() > 1) between.other_jobs = static_cast<int>(models.size() - jobs);
    return microbatch_seconds(*array, options, choosing_clock(), *device, between);
  };
  return divide_jobs({.jobs = models.size(),
                      .layers = spec.alone.layers.size(),
                      .stages = spec.pipeline.num_stages(),
                      .microbatches = spec.pipeline.microbatches},
                     seconds_of);
}

void divide(TrainSpec& spec, ArrayDivision division) {
  spec.division = std::move(division);
  const std::size_t arrays = spec.division.arrays;
  if (arrays == 1) return;
  const std::vector<LayeredModel> models = spec.networks.front().of_jobs;
  if (const Problems problems = make_arrays(spec, models, arrays); !problems.empty())
    throw ConfigError(to_string(problems));
  spec.pipeline.arrays = static_cast<int>(arrays);
}

std::string division_text(const TrainSpec& spec) {
  std::string tried;
  for (const TriedArray& one : spec.division.tried)
    tried += (tried.empty() ? "" : ", ") + std::to_string(one.jobs) + ": " + printed("%.3f", one.job_s * 1e3);
  return std::to_string(spec.of_jobs.size()) + " jobs in " + std::to_string(spec.division.arrays) +
         (spec.division.arrays == 1 ? " array" : " arrays") +
         "; milliseconds of a job's microbatch, by jobs of an array: " + tried;
}

}  // namespace millrace
