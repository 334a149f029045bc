// `millrace train`: parse, load plan and data, build the world, construct the Trainer, run.
// One rank of a job (launch, torchrun: RANK and WORLD_SIZE are set), or all ranks of the plan as threads.
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>

#include <ATen/ops/zeros.h>

#include "data/dataset.h"
#include "driver/cli/command_support.h"
#include "driver/cli/job_lists.h"
#include "driver/worker/bleu_score.h"
#include "driver/worker/rounds.h"
#include "driver/worker/worker_data_report.h"
#include "driver/worker/worker_environment.h"
#include "driver/worker/worker_options.h"
#include "models/exported/exported_model.h"
#include "runtime/base/json.h"
#include "runtime/base/log.h"
#include "runtime/base/run_files.h"
#include "runtime/base/run_folder.h"
#include "runtime/base/text.h"
#include "runtime/checkpoint/initial_weights.h"
#include "runtime/comm/emulated_links.h"
#include "runtime/comm/rank_threads.h"
#include "runtime/layers/autograd_layer.h"
#include "runtime/layers/carrying_layer.h"
#include "runtime/plan/cluster_spec.h"
#include "runtime/plan/plan_rounds.h"
#include "runtime/plan/replicas.h"
#include "runtime/schedule/csv.h"
#include "runtime/stage/fuse.h"
#include "runtime/train/array_division.h"
#include "runtime/train/profiler.h"
#include "runtime/train/step_log.h"
#include "runtime/train/trainer.h"

namespace millrace {
namespace {

StopFlag stop_flag{false};

/// SIGINT, SIGTERM or SIGHUP: finish the step, save, exit with 75. A second SIGINT or SIGTERM ends the
/// process at once; a terminal that closes may send SIGHUP twice.
void stop_on_signals() {
  struct sigaction action {};
  action.sa_handler = [](int) { stop_flag.store(true); };
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
  for (int signal : {SIGINT, SIGTERM}) ::sigaction(signal, &action, nullptr);
  struct sigaction inherited {};
  action.sa_flags = SA_RESTART;
  const bool ignored =
      ::sigaction(SIGHUP, nullptr, &inherited) == 0 && inherited.sa_handler == SIG_IGN;  // nohup
  if (!ignored) ::sigaction(SIGHUP, &action, nullptr);
}

/// Beyond a limit on the size of files (ulimit -f) a write then fails, instead of ending the process.
void ignore_size_limit_signal() {
  ::signal(SIGXFSZ, SIG_IGN);
}

/// Everything the flags say, with the files they name loaded.
struct TrainSpec : TrainFlags {
  std::vector<LayeredModel> networks;  ///< by array; one, unless jobs are divided into several
  LayeredModel alone{};                ///< one job's: what data sets are read for
  /// Of job arrays: what each job was told, and the lists that it was told in.
  std::vector<TrainFlags> of_jobs{};
  std::vector<std::pair<std::string, std::vector<std::string>>> lists{};
  /// What layers choose, by the jobs of an array.
  std::map<std::size_t, std::shared_ptr<KernelChoices>> choices{};
  ArrayDivision division{};  ///< where nobody said into how many arrays
  bool own_data = false;     ///< jobs read different batches
  /// Of jobs that go on at different steps: what each has consumed. Else empty.
  std::vector<std::int64_t> positions{};

  std::uint64_t data_seed_of(std::size_t job) const {
    const TrainFlags& flags = of_jobs.empty() ? *this : of_jobs[job];
    return flags.data_seed.value_or(flags.options.seed);
  }
  std::size_t readers() const { return own_data ? of_jobs.size() : 1; }
  Plan pipeline;
  std::vector<std::string> plan_notes{};       ///< what the run has otherwise than its plan
  std::vector<ChannelDecorator> decorators{};  ///< of what joins the ranks
  std::shared_ptr<const BleuText> bleu_text{};
  std::int64_t steps_per_epoch = 0;
  std::string archive{}, trained_archive{};  ///< the model's, and what to write with its weights replaced
  Additions own{};
};

Result<Plan> plan_without_file(const TrainFlags& f, const LayeredModel& model) {
  const ScheduleKind kind = f.schedule.value_or(ScheduleKind::OneFOneB);
  int chunks = f.chunks;
  if (chunks == 0) chunks = is_v_shaped(kind) || kind == ScheduleKind::Interleaved ? 2 : 1;
  const Result<std::vector<int>> replicas = parse_replicas(f.replicas, f.stages);
  if (!replicas) return replicas.problems();
  const bool equal = std::ranges::count(*replicas, replicas->front()) == f.stages;
  if (!equal && chunks > 1)
    return Problem{"--replicas", "stages on the same rank have the same replicas", "give one number"};
  Plan plan = uniform_plan(model.name, model.layer_names(), chunks * f.stages, replicas->front(),
                           f.microbatches ? f.microbatches : 4, kind, chunks);
  if (!equal) set_replicas(plan, *replicas);
  // Two versions suffice if an update covers what is in flight.
  if (f.microbatches == 0 && kind == ScheduleKind::PipeDream2BW)
    plan.microbatches = std::max(plan.microbatches, least_update_every(shape_of(plan)));
  return plan;
}

/// A schedule's file has no form for unequal ones.
int replicas_for_file(const TrainFlags& f) {
  const Result<std::vector<int>> replicas = parse_replicas(f.replicas, 1);
  return replicas ? replicas->front() : 0;
}

/// The order of a file for the stages of `plan`, or for equal stages where it has them.
Result<Plan> plan_with_schedule_file(const TrainFlags& f, const LayeredModel& model, std::optional<Plan> plan,
                                     ScheduleFile& file) {
  file.name = f.schedule_file;
  Result<std::string> text = read_file(file.name);
  if (!text) return text.problems();
  file.text = *std::move(text);
  const int replicas = plan ? static_cast<int>(plan->stages.front().ranks.size()) : replicas_for_file(f);
  if (replicas < 1)
    return Problem{"--replicas", "must be one number of at least 1 with --schedule-file", "for example 2"};
  const Result<CsvSchedule> read = read_schedule_csv(file.text, file.name, {.replicas = replicas});
  if (!read) return read.problems();
  for (const std::string& note : read->notes) log_warning(file.name + ": " + note);
  if (!plan) {
    plan =
        uniform_plan(model.name, model.layer_names(), read->shape.num_stages(), 1, 1, ScheduleKind::Custom);
    for (std::size_t s = 0; s < plan->stages.size(); ++s)
      plan->stages[s].ranks = read->shape.ranks_of_stage[s];
  }
  plan->schedule = ScheduleKind::Custom;
  plan->microbatches = read->shape.microbatches;
  return *std::move(plan);
}

/// Nothing is compared with what a run is not.
void predicts_nothing(Plan& plan) {
  plan.predicted_step_s = plan.predicted_run_step_s = 0;
}

/// Problems where the plan of a file was made for another run; `notes` where just its predictions were.
Problems compare_with_run(const TrainFlags& f, Plan& plan, std::vector<std::string>& notes) {
  OtherThanPlanned other =
      compare(plan.planned_for, {to_string(f.options.precision), f.options.microbatch, {}});
  const bool predicts = plan.predicted_step_s > 0;
  if (predicts && f.microbatches > 0 && f.microbatches != plan.microbatches)
    other.notes.push_back("its predictions do not hold: they are for " + std::to_string(plan.microbatches) +
                          " microbatches in a step, the run has " + std::to_string(f.microbatches));
  if (predicts && f.schedule && *f.schedule != plan.schedule)
    other.notes.push_back("its predictions do not hold: they are for schedule " + to_string(plan.schedule) +
                          ", the run has " + to_string(*f.schedule));
  if (!other.notes.empty()) predicts_nothing(plan);
  for (const std::string& note : other.notes) notes.push_back(f.plan + ": " + note);
  return about_file(f.plan, std::move(other.problems));
}

/// `notes`: what the run has otherwise than the plan's predictions.
Result<Plan> plan_from(const TrainFlags& f, const LayeredModel& model, std::optional<ScheduleFile>& file,
                       std::vector<std::string>& notes) {
  std::optional<Plan> given;
  if (!f.plan.empty()) {
    Result<Plan> loaded = Plan::load(f.plan);
    if (!loaded) return loaded;
    given = *std::move(loaded);
    if (Problems problems = compare_with_run(f, *given, notes); !problems.empty()) return problems;
    if (f.microbatches > 0) given->microbatches = f.microbatches;
    if (f.schedule) given->schedule = *f.schedule;
  }
  Result<Plan> plan = !f.schedule_file.empty()
                          ? plan_with_schedule_file(f, model, std::move(given), file.emplace())
                      : given ? Result<Plan>(*std::move(given))
                              : plan_without_file(f, model);
  if (!plan) return plan;
  if (f.arrays > 0 && f.arrays != plan->arrays) {
    plan->arrays = f.arrays;
    predicts_nothing(*plan);  // was of another number
  }
  if (f.microbatches > 0 && updates_after_each(plan->schedule))
    log_warning("--microbatches has no effect on " + to_string(plan->schedule) +
                ", which updates after every minibatch of --microbatch samples");
  if (f.recompute) {
    for (PlanStage& stage : plan->stages) stage.recompute = true;
  }
  Problems problems = validate(*plan, model.name, model.layer_names());
  if (!f.plan.empty())
    for (Problem& problem : problems)
      problem.where = f.plan + (problem.where.empty() ? "" : ": " + problem.where);
  if (!problems.empty()) return problems;
  return plan;
}

/// --emulate-links: the links of a cluster file between the ranks of `plan`.
Result<ChannelDecorator> emulated_links(const std::string& path, const Plan& plan) {
  Result<ClusterSpec> loaded = ClusterSpec::load(path);
  if (!loaded) return loaded.problems();
  if (loaded->num_ranks() < plan.num_ranks()) {
    return Problem{"--emulate-links",
                   path + " has " + std::to_string(loaded->num_ranks()) + " ranks, the plan has " +
                       std::to_string(plan.num_ranks()),
                   "give the cluster that the plan was made for"};
  }
  EmulatedNetwork network;
  for (int rank = 0; rank < plan.num_ranks(); ++rank) network.hosts.push_back(loaded->host_of(RankId(rank)));
  network.wire = [cluster = *std::move(loaded)](int from, int to) {
    const RankId a(from), b(to);
    const ClusterLink link = cluster.link(a, b);
    return EmulatedWire{.latency_s = link.latency_s,
                        .seconds_per_byte = 1 / link.bandwidth + cluster.copy_seconds_per_byte(a, b)};
  };
  return ChannelDecorator([network](std::shared_ptr<Channel> channel) {
    return make_emulated_links(std::move(channel), network);
  });
}

/// Flags that do not go together.
Problems conflicts(const TrainFlags& f) {
  const TrainOptions& o = f.options;
  Problems problems;
  if (o.sync_batch_norm && f.autograd)
    problems.push_back({"--sync-batch-norm", "LibTorch's autograd does not see through the sum over replicas",
                        "leave out --autograd"});
  append(problems, conflicts(o.learning_rate, f.rate_in_epochs));
  if (o.sync_batch_norm && is_exported_model(f.model.name))
    problems.push_back({"--sync-batch-norm", "an exported model normalises as it was exported",
                        "leave it out: each replica takes the statistics of its own microbatches"});
  if (!o.init_from_ignore.empty() && o.init_from.empty())
    problems.push_back({"--init-from-ignore", "says nothing without --init-from", "give --init-from PATH"});
  if (o.checkpoint_every > 0 && o.output_dir.empty())
    problems.push_back({"--checkpoint-every", "needs a place for the checkpoints", "give --output-dir DIR"});
  if (o.checkpoint_at_end && o.output_dir.empty())
    problems.push_back({"--checkpoint-at-end", "needs a place for the checkpoint", "give --output-dir DIR"});
  if (o.overwrite && o.output_dir.empty())
    problems.push_back({"--overwrite", "says nothing without an output folder", "give --output-dir DIR"});
  append(problems, bleu_flag_problems(f.bleu));
  if (f.length_buckets > 0 && f.keep_last)
    problems.push_back({"--keep-last",
                        "says nothing with --length-buckets: what is left of a bucket is left out",
                        "give one of the two"});
  if (f.bleu.every > 0 && f.model.name != "gnmt")
    problems.push_back({"--bleu-every", "translates with gnmt, not with " + f.model.name, "leave it out"});
  if (!o.resume_changes.empty() && o.resume.empty())
    problems.push_back({"--resume-changes", "says nothing without --resume", "give --resume DIR"});
  return problems;
}

Result<LayeredModel> model_of(const TrainFlags& flags, const Additions& own) {
  Result<LayeredModel> model = make_model(flags.model.name, flags.model.options, own.models);
  if (!model || !flags.autograd) return model;
  const auto replace = [](LayeredModel& one) {
    for (NamedLayer& named : one.layers) {
      const Layer* layer = named.layer.get();
      if (!dynamic_cast<const MultiLayer*>(layer) && !dynamic_cast<const CarryingLayer*>(layer))
        named.layer = through_autograd(named.layer);
    }
  };
  replace(*model);
  for (Turn& turn : model->turns) replace(turn.model);
  return model;
}

/// Whether the jobs were told different options of the model.
bool models_differ(const std::vector<TrainFlags>& jobs) {
  const auto same = [](const GivenOption& a, const GivenOption& b) {
    return a.name == b.name && a.text == b.text;
  };
  const GivenOptions& first = jobs.front().model.options;
  return std::ranges::any_of(
      jobs, [&](const TrainFlags& f) { return !std::ranges::equal(f.model.options, first, same); });
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

/// What each of `jobs` has consumed, if --resume has them at different steps; else empty. Of a job that is
/// through, what the array has: it reads what another does. Whatever is wrong with the checkpoint is said by
/// the Trainer.
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

/// What the jobs [first, end) of one array cannot be that are at different steps.
Problems problems_of_steps(const TrainSpec& spec, std::size_t first, std::size_t end) {
  if (at_one_step(spec, first, end)) return {};
  const std::string apart = "the jobs of " + spec.options.resume + " are at different steps, ";
  const std::string hint =
      "give --arrays " + std::to_string(spec.positions.size()) + ": the jobs take turns in the pipeline";
  Problems problems;
  if (!spec.alone.dimensions.empty())
    problems.push_back(
        {"--resume",
         apart + "so that they read different samples, and those of " + spec.alone.name + " vary in length",
         hint});
  if (spec.keep_last)
    problems.push_back({"--keep-last", apart + "so that their epochs' incomplete steps come apart", hint});
  return problems;
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

std::shared_ptr<KernelChoices> new_choices(const TrainSpec& spec) {
  return std::make_shared<KernelChoices>(spec.kernels, choosing_clock());
}

/// Makes `arrays` job arrays of what the jobs are; the first ones have a job more where they cannot be equal.
Problems make_arrays(TrainSpec& spec, const std::vector<LayeredModel>& models, std::size_t arrays) {
  std::vector<LayeredModel> networks;
  spec.choices.clear();
  for (std::size_t array = 0, first = 0, end; array < arrays; ++array, first = end) {
    end = first + models.size() / arrays + (array < models.size() % arrays);
    if (Problems problems = problems_of_steps(spec, first, end); !problems.empty()) return problems;
    auto& choices = spec.choices[end - first];
    if (!choices) choices = new_choices(spec);
    Result<LayeredModel> fused = array_of(spec, models, first, end, choices);
    if (!fused) return fused.problems();
    networks.push_back(*std::move(fused));
  }
  spec.networks = std::move(networks);
  return {};
}

/// Makes `arrays` job arrays of the model, with what each job was told.
Problems fuse_jobs(TrainSpec& spec, const std::vector<TrainFlags>& jobs, std::size_t arrays) {
  if (arrays > jobs.size()) {
    return {
        {"--arrays",
         std::to_string(jobs.size()) + " jobs cannot be divided into " + std::to_string(arrays) + " arrays",
         "give at most " + std::to_string(jobs.size())}};
  }
  std::vector<LayeredModel> models(jobs.size(), spec.alone);
  Problems problems;
  if (models_differ(jobs)) {
    for (std::size_t b = 1; b < jobs.size(); ++b) {
      Result<LayeredModel> own = model_of(jobs[b], spec.own);
      if (!own)
        append(problems, own.problems());
      else
        models[b] = *std::move(own);
    }
  }
  if (!problems.empty()) return problems;
  spec.of_jobs = jobs;
  spec.positions = positions_in(spec.options.resume, jobs);
  spec.own_data = !read_the_same(spec, 0, jobs.size());
  std::string at;
  for (const std::int64_t position : spec.positions) at += " " + std::to_string(position);
  spec.options.rank_settings.emplace_back("positions of jobs", at.empty() ? "alike" : at);
  // One plan, one data set's fields, one checkpoint: all jobs are of one form, whatever arrays they are in.
  if (const auto whole = fuse(models, new_choices(spec), {.unfused = spec.unfused}); arrays > 1 && !whole)
    return whole.problems();
  problems = make_arrays(spec, models, arrays);
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

/// Whether the number of arrays is nobody's choice but this run's. Kernels over all jobs on a GPU pay by what
/// starting them costs; a run that is told to use them does.
bool chooses_arrays(const TrainSpec& spec) {
  if (spec.of_jobs.size() < 2 || spec.arrays > 0 || !spec.plan.empty() || spec.options.first_job)
    return false;
  if (spec.kernels == ArrayKernels::Fused || spec.device != ComputeDevice::Cpu) return false;
  if (first_carrying(spec.alone.layers)) return false;
  Plan several = spec.pipeline;
  several.arrays = 2;
  return validate(several, spec.alone.name, spec.alone.layer_names()).empty();
}

/// By the process that the others follow.
ArrayDivision measured_division(const TrainSpec& spec) {
  constexpr double kShort = 2e-3;  // seconds
  const std::vector<LayeredModel>& models = spec.networks.front().of_jobs;
  const std::shared_ptr<Device> device = make_cpu_device();
  ProfileOptions options{.microbatch = spec.options.microbatch,
                         .repetitions = 3,
                         .seed = spec.options.seed,
                         .precision = spec.options.precision};
  return divide_jobs({.jobs = models.size(),
                      .layers = spec.alone.layers.size(),
                      .stages = spec.pipeline.num_stages(),
                      .microbatches = spec.pipeline.microbatches},
                     [&](std::size_t jobs) {
                       const Result<LayeredModel> array = array_of(spec, models, 0, jobs, new_choices(spec));
                       if (!array) throw ConfigError(to_string(array.problems()));
                       const auto measure = [&] {
                         return microbatch_seconds(*array, options, choosing_clock(), *device);
                       };
                       options.repetitions = 3;
                       const double seconds = measure();
                       if (seconds > kShort) return seconds;
                       options.repetitions = 30;
                       return std::min(seconds, measure());
                     });
}

/// Divides the jobs again. Throws ConfigError.
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

Problems rule_problems(const TrainFlags& flags, bool asynchronous) {
  const TrainOptions& o = flags.options;
  Problems problems = validate(o.rule);
  append(problems, validate(o.rule, o.clip, asynchronous));
  append(problems, validate(in_steps(o.learning_rate, flags.rate_in_epochs, 1)));
  return problems;
}

/// A round of several in which the jobs are trained.
struct RoundPlace {
  std::size_t round = 0;
  int first_job = 0;
};

/// `jobs`: what each job was told, one if it is no array. `flag_problems`: values that do not fit their
/// flags. `place`: where these jobs are a part of all.
Result<TrainSpec> spec_from(const std::vector<TrainFlags>& jobs, const Additions& own,
                            const Problems& flag_problems, const std::optional<RoundPlace>& place) {
  const TrainFlags& flags = jobs.front();
  if (flags.model.name.empty()) return Problem{"--model", "is required", "for example --model mlp"};
  Result<LayeredModel> model = model_of(flags, own);
  if (!model) {
    Problems problems = flag_problems;
    append(problems, model.problems());
    return problems;
  }
  TrainSpec spec{flags, {*model}, *model};
  spec.own = own;
  TrainOptions& o = spec.options;
  Result<Plan> plan = plan_from(spec, *model, o.schedule, spec.plan_notes);
  if (plan && !plan->rounds.empty()) plan = plan->of_round(place ? place->round : 0);
  if (place) {
    o.first_job = place->first_job;
    o.output_dir = round_folder(o.output_dir, place->round);
    o.stop_on_nonfinite = false;  // the other rounds' jobs have nothing to do with it
  }
  const int arrays = plan ? plan->arrays : std::max(1, flags.arrays);
  Problems problems = flag_problems;
  if (jobs.size() > 1) {
    append(problems, fuse_jobs(spec, jobs, static_cast<std::size_t>(arrays)));
    if (problems.size() > flag_problems.size()) return problems;
  } else if (arrays > 1) {
    problems.push_back({"--arrays", "a single job is not divided into " + std::to_string(arrays) + " arrays",
                        "give --fused and a list of values, for example --lr 0.1 0.2"});
  }
  if (o.rate_by_replicas && plan && !updates_after_each(plan->schedule))
    problems.push_back({"--lr-by-replicas", "needs replicas that take turns",
                        "only with --schedule pipedream or pipedream-vsync"});
  if (spec.rate_by_length && spec.alone.dimensions.empty())
    problems.push_back(
        {"--lr-by-length", "the samples of " + spec.model.name + " are all of one length", "leave it out"});
  else if (spec.rate_by_length)
    o.rate_per_length = spec.alone.dimensions.front().nominal;
  append(problems, conflicts(spec));
  if (place && spec.bleu.every > 0)
    problems.push_back({"--bleu-every", "judges one job, the plan has several in rounds", "leave it out"});
  if (is_exported_model(o.save_weights) && (jobs.size() > 1 || place))
    problems.push_back({"--save-weights", "writes no .pt2 of the jobs of an array", "give FILE.safetensors"});
  else if (is_exported_model(o.save_weights)) {
    spec.archive = spec.model.name;
    spec.trained_archive = o.save_weights;
    o.save_weights += ".safetensors";  // until the archive is written
    if (!is_exported_model(spec.archive))
      problems.push_back({"--save-weights", "writes a .pt2 of an exported model only, not of " + spec.archive,
                          "give FILE.safetensors"});
  }
  if (!plan) append(problems, plan.problems());
  append(problems, validate(o.precision, o.loss_scale, plan && is_asynchronous(plan->schedule)));
  for (const TrainFlags& job : jobs) {
    append(problems, rule_problems(job, plan && is_asynchronous(plan->schedule)));
    if (&job != &jobs.front()) append(problems, conflicts(job.options.learning_rate, job.rate_in_epochs));
  }
  if (!spec.emulate_links.empty() && plan) {
    Result<ChannelDecorator> links = emulated_links(spec.emulate_links, *plan);
    if (!links)
      append(problems, links.problems());
    else
      spec.decorators.push_back(*std::move(links));
  }
  if (!problems.empty()) return problems;
  o.launcher = launcher_process();
  o.settings.emplace_back("keep-last", spec.keep_last ? "true" : "false");
  for (const auto& setting : recorded_options(spec.model.name, spec.model.options, own.models))
    o.settings.push_back(setting);
  const auto record_sampler = [&spec](Settings& settings) {
    if (spec.length_buckets > 0) settings.emplace_back("length-buckets", std::to_string(spec.length_buckets));
    if (spec.random_bptt) settings.emplace_back("random-bptt", "true");
  };
  record_sampler(o.settings);
  if (spec.data_seed) o.settings.emplace_back("data-seed", std::to_string(*spec.data_seed));
  for (std::size_t job = 0; job < o.jobs.size(); ++job) {
    Settings& mine = o.jobs[job].settings;
    mine.insert(mine.begin(), {"keep-last", spec.keep_last ? "true" : "false"});
    record_sampler(mine);
    if (jobs[job].data_seed) mine.emplace_back("data-seed", std::to_string(*jobs[job].data_seed));
  }
  spec.pipeline = *std::move(plan);
  return spec;
}

DatasetOptions dataset_options(const TrainSpec& spec, DataSplit split, std::size_t reader) {
  return {.path = spec.data,
          .split = split,
          .fields = spec.alone.fields,
          .seed = spec.data_seed_of(reader),
          .dimensions = spec.alone.dimensions,
          .per_step = split == DataSplit::Train
                          ? std::int64_t{spec.options.microbatch} * microbatches_per_step(spec.pipeline)
                          : spec.options.microbatch,
          .length_buckets = spec.length_buckets,
          .random_bptt = spec.random_bptt};
}

/// By reader: one for all jobs of an array, or one for each.
struct Datasets {
  std::vector<std::shared_ptr<const Dataset>> trains, tests;
  std::shared_ptr<const Dataset> train, test;  ///< the first
};

/// The data sets of a run that are open: rounds and readers of one seed share theirs.
using OpenDatasets = std::map<std::pair<DataSplit, std::uint64_t>, std::shared_ptr<const Dataset>>;

Result<Datasets> open_datasets(const TrainSpec& spec, OpenDatasets& open) {
  Datasets sets;
  const auto set_of = [&](DataSplit split, std::size_t reader) -> Result<std::shared_ptr<const Dataset>> {
    const DatasetOptions options = dataset_options(spec, split, reader);
    const auto known = open.find({split, options.seed});
    if (known != open.end()) return known->second;
    auto made = make_dataset(options, spec.own.datasets);
    if (made) open.emplace(std::pair(split, options.seed), *made);
    return made;
  };
  for (std::size_t reader = 0; reader < spec.readers(); ++reader) {
    auto train = set_of(DataSplit::Train, reader);
    if (!train) return train.problems();
    sets.trains.push_back(*train);
    if (!spec.evaluate) continue;
    auto test = set_of(DataSplit::Test, reader);
    if (!test) return test.problems();
    sets.tests.push_back(*test);
  }
  sets.train = sets.trains.front();
  if (spec.evaluate) sets.test = sets.tests.front();
  return sets;
}

/// Once for a job.
void log_notes(const TrainSpec& spec, const Datasets& sets) {
  std::vector<std::string> notes = sets.train->notes();
  if (sets.test) {
    for (const std::string& note : sets.test->notes()) {
      if (std::ranges::find(notes, note) == notes.end()) notes.push_back(note);
    }
  } else if (spec.evaluate) {
    notes.push_back("no evaluation: " + spec.data + " has no test or val folder");
  }
  for (const std::string& note : notes) log_warning(note);
  for (const std::string& note : spec.plan_notes) log_warning(note);
}

LoaderOptions loader_options(const TrainSpec& spec, std::size_t reader = 0) {
  LoaderOptions options{.microbatch = spec.options.microbatch,
                        .microbatches_per_step = microbatches_per_step(spec.pipeline),
                        .seed = spec.data_seed_of(reader),
                        .workers = spec.workers,
                        .keep_incomplete = spec.keep_last,
                        .page_locked = spec.device != ComputeDevice::Cpu};
  options.read_for(spec.alone);
  return options;
}

/// Whether the data's microbatches, of some hundred steps, are as long as those that the plan was made for:
/// what is otherwise, for the user.
std::vector<std::string> compare_lengths(const TrainSpec& spec, const Datasets& sets) {
  constexpr std::int64_t kMostSteps = 256;
  PlannedFor run = spec.pipeline.planned_for;
  if (run.lengths.empty()) return {};
  LoaderOptions options = loader_options(spec);
  options.workers = 0;
  const auto source = make_loader(sets.train, options);
  if (!source) return {};  // said where it is trained on
  LayerGraph seen;
  for (const Dimension& dimension : spec.alone.dimensions) seen.dimensions.push_back(dimension.name);
  const std::int64_t steps = std::min(kMostSteps, steps_per_epoch(*sets.train, options));
  for (std::int64_t at = 0; at < steps * options.microbatches_per_step; ++at)
    seen.microbatches.push_back({.lengths = (*source)->extent(at).lengths});
  run.lengths = seen.length_ranges();
  return compare(spec.pipeline.planned_for, run).notes;
}

/// With what its jobs read, which are those from `first` on.
TrainedArray array_for(const TrainSpec& spec, const Datasets& sets, const LayeredModel& network,
                       std::size_t first) {
  const auto of_reader = [&](std::size_t reader) {
    return batches_of(sets.trains[reader], sets.test ? sets.tests[reader] : nullptr,
                      loader_options(spec, reader));
  };
  if (network.fields.size() == spec.alone.fields.size())
    return {network, of_reader(spec.own_data ? first : 0)};
  TrainedArray array{network, {}};
  for (std::size_t reader = first; reader < first + static_cast<std::size_t>(network.jobs()); ++reader) {
    if (sets.trains[reader]->size() != sets.train->size())
      throw DataError("the data sets of job 0 and job " + std::to_string(reader) + " differ in size");
    array.of_jobs.push_back(of_reader(reader));
  }
  return array;
}

/// Of the data sets that have files; else null. Collective.
Json data_files(const Datasets& sets, Communicator& communicator) {
  Json result;
  for (const auto& [name, set] : {std::pair{"train", sets.train.get()}, {"test", sets.test.get()}}) {
    if (!set || set->name_of(0).empty()) continue;
    if (result.is_null()) result = Json::object({});
    result[name] = data_report(*set, communicator);
  }
  return result;
}

/// --bleu-every: what is translated, and when.
Status open_bleu_text(TrainSpec& spec, const Datasets& sets) {
  if (spec.bleu.every == 0) return Ok{};
  Settings recorded;
  for (const auto& setting : sets.train->recorded()) recorded.push_back(setting);
  auto text = read_bleu_text(spec.bleu, spec.alone.fields.front().limit, recorded);
  if (!text) return text.problems();
  spec.bleu_text = *std::move(text);
  spec.options.score_every = spec.bleu.every * spec.steps_per_epoch;
  spec.options.target_score = spec.bleu.target;
  spec.options.rank_settings.emplace_back("bleu", spec.bleu_text->fingerprint());
  return Ok{};
}

Json finite_or_null(double value) {
  return std::isfinite(value) ? Json(value) : Json();
}

/// The flags in which the jobs differ.
Json settings_of(const TrainSpec& spec, std::size_t job) {
  Json settings = Json::object({});
  for (const auto& [flag, values] : spec.lists) settings[flag] = values[job];
  return settings;
}

Json jobs_of(const TrainSpec& spec, const RunReport& report) {
  Json jobs = Json::array();
  for (std::size_t b = 0; b < report.jobs.size(); ++b) {
    const JobReport& job = report.jobs[b];
    Json losses = Json::array(), evaluation;
    for (double loss : job.losses) losses.push_back(finite_or_null(loss));
    if (!report.evaluations.empty()) {
      evaluation = Json::object({});
      const EvaluationReport& last = report.evaluations.back();
      for (const auto& [name, value] : last.jobs.empty() ? last.values : last.jobs[b])
        evaluation[name] = finite_or_null(value);
    }
    jobs.push_back(
        Json::object({{"job", static_cast<std::int64_t>(b) + spec.options.first_job.value_or(0)},
                      {"settings", settings_of(spec, b)},
                      {"first_step", job.first_step},
                      {"step", job.steps},
                      {"loss", job.losses.empty() ? Json() : finite_or_null(job.losses.back())},
                      {"status", job.nonfinite_step < 0 ? "ok" : "nonfinite"},
                      {"nonfinite_step", job.nonfinite_step < 0 ? Json() : Json(job.nonfinite_step)},
                      {"losses", losses},
                      {"evaluation", evaluation}}));
  }
  return jobs;
}

Json kernels_of(const TrainSpec& spec) {
  Json rows = Json::array();
  for (const auto& [jobs, choices] : spec.choices) {
    for (const KernelChoice& choice : choices->all())
      rows.push_back(Json::object({{"layer", choice.layer},
                                   {"kind", choice.kind},
                                   {"inputs", choice.inputs},
                                   {"kernel", choice.fused ? "fused" : "loop"},
                                   {"loop_s", choice.loop_s},
                                   {"fused_s", choice.fused_s}}));
  }
  return rows;
}

Json summary_of(const TrainSpec& spec, const RunReport& report, const Json& files) {
  Json evaluations = Json::array();
  for (const EvaluationReport& e : report.evaluations) {
    Json one = Json::object({{"step", e.step}, {"samples", static_cast<std::int64_t>(e.samples)}});
    for (const auto& [name, value] : e.values)
      one[numbered_from(name, spec.options.first_job.value_or(0))] = value;
    evaluations.push_back(std::move(one));
  }
  Json losses = Json::array(), lost = Json::array();
  for (const std::string& one : report.lost) lost.push_back(one);
  for (double loss : report.losses) losses.push_back(loss);
  const std::optional<LossScaleState>& scale = report.loss_scale;
  Json summary = Json::object({{"format", "millrace-summary-1"},
                               {"model", spec.alone.name},
                               {"data", spec.data},
                               {"ranks", spec.pipeline.num_ranks()},
                               {"stages", spec.pipeline.num_stages()},
                               {"schedule", to_string(spec.pipeline.schedule)},
                               {"microbatches", spec.pipeline.microbatches},
                               {"microbatch", spec.options.microbatch},
                               {"seed", static_cast<std::int64_t>(spec.options.seed)},
                               {"device", to_string(spec.device)},
                               {"precision", to_string(spec.options.precision)},
                               {"loss_scale", scale ? Json(scale->scale) : Json()},
                               {"skipped_steps", scale ? Json(scale->skipped) : Json()},
                               {"run", report.run},
                               {"steps", report.steps},
                               {"steps_per_epoch", spec.steps_per_epoch},
                               {"first_step", report.first_step},
                               {"stopped_early", report.stopped},
                               {"checkpoint_step", report.saved_step < 0 ? Json() : Json(report.saved_step)},
                               {"checkpoints_failed", report.failed_saves},
                               {"log_lines_lost", report.lost_log_lines},
                               {"lost", lost},
                               {"final_loss", report.losses.empty() ? Json() : Json(report.losses.back())},
                               {"median_step_s", report.median_step_s},
                               {"predicted_step_s", spec.pipeline.predicted_step_s},
                               {"samples_per_s", report.samples_per_s},
                               {"seconds", report.seconds},
                               {"peak_stash", report.peak_stash},
                               {"peak_versions", report.peak_versions},
                               {"peak_memory_bytes", report.peak_memory_bytes},
                               {"evaluations", evaluations},
                               {"data_files", files},
                               {"losses", losses}});
  if (spec.bleu_text) {
    Json scores = Json::array();
    for (const ScoreReport& score : report.scores) {
      Json one = Json::object(
          {{"step", score.step},
           {"epochs", static_cast<double>(score.step) / static_cast<double>(spec.steps_per_epoch)}});
      for (const auto& [name, value] : score.values) one[name] = value;
      one["seconds"] = score.seconds;
      scores.push_back(std::move(one));
    }
    summary["bleu"] = Json::object({{"signature", spec.bleu_text->signature()},
                                    {"source", spec.bleu.source},
                                    {"sentences", spec.bleu_text->sentences()},
                                    {"target", spec.bleu.target ? Json(*spec.bleu.target) : Json()},
                                    {"reached_target", report.reached_target},
                                    {"scores", scores}});
  }
  if (!spec.of_jobs.empty() || spec.options.first_job) {
    summary["jobs"] = jobs_of(spec, report);
    summary["arrays"] = spec.pipeline.arrays;
    summary["kernels"] = kernels_of(spec);
    Json tried = Json::array();
    for (const TriedArray& one : spec.division.tried)
      tried.push_back(Json::object({{"jobs", static_cast<std::int64_t>(one.jobs)}, {"job_s", one.job_s}}));
    summary["tried_arrays"] = tried;
  }
  return summary;
}

/// --explain
void print_kernels(const KernelChoices& choices) {
  if (choices.mode() != ArrayKernels::Auto) {
    std::printf("kernels: %s, nothing was measured\n", to_string(choices.mode()).c_str());
    return;
  }
  std::printf("%-24s %-18s %-6s %10s %10s  %s\n", "layer", "kind", "kernel", "loop us", "fused us",
              "inputs of a job");
  for (const KernelChoice& c : choices.all())
    std::printf("%-24s %-18s %-6s %10.1f %10s  %s\n", c.layer.c_str(), c.kind.c_str(),
                c.fused ? "fused" : "loop", c.loop_s * 1e6,
                c.fused_s > 0 ? printed("%.1f", c.fused_s * 1e6).c_str() : "-", c.inputs.c_str());
}

void print_scores(const RunReport& report) {
  if (report.scores.empty()) return;
  const auto bleu = [](const ScoreReport& score) { return score.values.front().second; };
  const ScoreReport& best = *std::ranges::max_element(report.scores, {}, bleu);
  const ScoreReport& last = report.scores.back();
  std::printf("BLEU %.2f after step %lld, the best %.2f after step %lld%s\n", bleu(last),
              static_cast<long long>(last.step), bleu(best), static_cast<long long>(best.step),
              report.reached_target ? "; the target is reached" : "");
}

void print_result(const RunReport& report) {
  if (report.losses.empty()) {
    std::printf("steps 0: nothing was trained%s\n",
                report.first_step > 0
                    ? (", the checkpoint is of step " + std::to_string(report.first_step)).c_str()
                    : "");
  } else {
    std::printf("steps %lld, final loss %.6f, %.2f ms per step (median), %.1f samples/s\n",
                static_cast<long long>(report.steps), report.losses.back(), report.median_step_s * 1e3,
                report.samples_per_s);
  }
  if (report.loss_scale)
    std::printf("loss scale %g, %lld of all steps skipped\n", report.loss_scale->scale,
                static_cast<long long>(report.loss_scale->skipped));
  print_scores(report);
  if (report.evaluations.empty()) return;
  std::string text;
  for (const auto& [name, value] : report.evaluations.back().values)
    text += (text.empty() ? "" : ", ") + name + " " + printed("%.4f", value);
  std::printf("evaluation: %s\n", text.c_str());
}

/// The rank of the last stage's first replica writes and prints the result of the job, and what of it is
/// missing on the disk. Null on the others. Of several rounds the summary is printed when all are done.
Json publish_summary(const TrainSpec& spec, RunReport& report, const Json& files, RankId rank) {
  if (rank != spec.pipeline.stages.back().ranks.front()) return {};
  for (const char* set : {"train", "test"}) {
    const Json* of_set = files.is_object() ? files.find(set) : nullptr;
    const std::string text = of_set ? data_report_text(*of_set) : "";
    if (!text.empty()) log_info(std::string("data ") + set + ": " + text);
  }
  Json summary = summary_of(spec, report, files);
  if (!spec.options.output_dir.empty()) {
    const auto path = std::filesystem::path(spec.options.output_dir) / run_files::kSummary;
    if (Status saved = write_file_atomically(path, summary.dump(1) + "\n"); !saved)
      report.lost.push_back("the summary (" + to_string(saved.problems()) + ")");
  }
  for (const std::string& lost : report.lost)
    log_error("the run is through, but this could not be written: " + lost);
  if (spec.format == OutputFormat::Json) {
    if (!spec.options.first_job) std::printf("%s\n", summary.dump(1).c_str());
    return summary;
  }
  print_result(report);
  for (std::size_t b = 0; b < report.jobs.size(); ++b) {
    std::string settings;
    for (const auto& [flag, values] : spec.lists) settings += " " + flag + "=" + values[b];
    const JobReport& job = report.jobs[b];
    const std::string loss = job.losses.empty() ? "done before, at step " + std::to_string(job.steps)
                                                : printed("final loss %.6f", job.losses.back());
    std::printf("job %zu:%s %s%s\n", b + static_cast<std::size_t>(spec.options.first_job.value_or(0)),
                settings.c_str(), loss.c_str(),
                job.nonfinite_step < 0
                    ? ""
                    : (", not finite from step " + std::to_string(job.nonfinite_step) + " on").c_str());
  }
  if (!spec.explain) return summary;
  for (const auto& [jobs, choices] : spec.choices) {
    if (spec.choices.size() > 1) std::printf("arrays of %zu jobs\n", jobs);
    print_kernels(*choices);
  }
  return summary;
}

/// The trained weights in an archive as the model's: what --save-weights FILE.pt2 asks for.
void write_archive(const TrainSpec& spec, RunReport& report, RankId rank) {
  if (spec.trained_archive.empty() || rank != RankId(0) || report.stopped || !report.lost.empty()) return;
  const Status written = write_trained_archive(spec.archive, spec.options.save_weights, spec.trained_archive);
  if (!written) {
    report.lost.push_back("the trained archive (" + to_string(written.problems()) + ")");
    return;
  }
  std::error_code ignored;
  std::filesystem::remove(spec.options.save_weights, ignored);
}

/// 75 only if there is a checkpoint of the step at which it stopped.
ExitCode exit_code_of(const RunReport& report) {
  if (report.lost_checkpoint) return ExitCode::Checkpoint;
  if (!report.lost.empty()) return ExitCode::RunFailed;
  return report.stopped ? ExitCode::Requeue : ExitCode::Done;
}

/// A round with what it reads; mostly the only one.
struct Round {
  TrainSpec spec;
  Datasets sets;
  RoundState state = RoundState::Untouched;
  std::string results;  ///< folder that they are in, or will be
  Json summary{};       ///< when it is done, on the rank that wrote it
};

ExitCode train_rank(Round& round, Communicator& communicator, Device& device) {
  const TrainSpec& spec = round.spec;
  const Datasets& sets = round.sets;
  SteadyClock clock;
  device.bind_thread();
  // The round before had its own, and so have arrays that were tried.
  if (spec.options.first_job || !spec.division.tried.empty()) device.reset_peak_memory();
  std::unique_ptr<WeightsScore> score;
  if (spec.bleu_text)
    score = make_bleu_score(spec.bleu_text, communicator, spec.threads, spec.options.output_dir);
  std::vector<TrainedArray> arrays;
  std::size_t first_job = 0;
  for (const LayeredModel& network : spec.networks) {
    arrays.push_back(array_for(spec, sets, network, first_job));
    first_job += static_cast<std::size_t>(network.jobs());
  }
  Trainer trainer({communicator, clock, device}, std::move(arrays), spec.pipeline, spec.options,
                  std::move(score));
  RunReport report = trainer.run();
  write_archive(spec, report, communicator.rank());
  Json summary = publish_summary(spec, report, data_files(sets, communicator), communicator.rank());
  if (!summary.is_null()) round.summary = std::move(summary);  // by one thread
  return exit_code_of(report);
}

/// Before data is read and the others are met. The Trainer checks again, with the folder locked. `flags`: of
/// the whole run.
Status check_outputs(const TrainFlags& spec, int rank) {
  const TrainOptions& o = spec.options;
  if (!o.output_dir.empty() && rank == 0 && o.resume.empty() && !o.overwrite) {
    if (Status unused = check_unused(o.output_dir); !unused) return unused;
  }
  if (spec.dry_run) return Ok{};
  if (!o.output_dir.empty()) {
    if (Status made = make_writable_folder(o.output_dir); !made) return made;
  }
  return o.save_weights.empty() ? Status(Ok{}) : make_place_for_file(o.save_weights);
}

void use_threads(const TrainSpec& spec) {
  set_compute_threads(spec.threads, spec.deterministic,
                      spec.device == ComputeDevice::Cpu ? Missing::Refuse : Missing::Warn);
}

std::shared_ptr<Device> device_or_throw(const TrainSpec& spec, int local_rank,
                                        const Accelerator& accelerator) {
  Result<std::shared_ptr<Device>> device = device_from(spec.device, local_rank, accelerator);
  if (!device) throw ConfigError(to_string(device.problems()));
  return *device;
}

/// All ranks as threads of this process.
ExitCode train_threads(Round& round, const Accelerator& accelerator) {
  const TrainSpec& spec = round.spec;
  std::vector<std::shared_ptr<Device>> devices;
  for (int rank = 0; rank < spec.pipeline.num_ranks(); ++rank)
    devices.push_back(device_or_throw(spec, rank, accelerator));
  auto communicators = make_local_communicators(spec.pipeline.num_ranks(), spec.deadline, spec.decorators);
  std::mutex mutex;
  ExitCode worst = ExitCode::Done;
  run_as_threads(communicators, [&](Communicator& communicator) {
    use_threads(spec);
    Device& device = *devices[static_cast<std::size_t>(communicator.rank().value)];
    const ExitCode code = train_rank(round, communicator, device);
    std::lock_guard lock(mutex);
    // What was lost says more than that it stopped.
    if (worst == ExitCode::Done || (worst == ExitCode::Requeue && code != ExitCode::Done)) worst = code;
  });
  return worst;
}

/// Rounds that the ranks train one after the other. More than one: what belongs to all of them.
struct Rounds {
  std::vector<Round> all;
  Plan plan{};             ///< of several: what divides the jobs
  TrainFlags flags{};      ///< of the whole run
  RunLock lock{};          ///< of several: the output folder's, on rank 0
  std::string resumed{};   ///< folder that several go on from, or empty
  bool continues = false;  ///< and that is the output folder

  bool several() const { return all.size() > 1; }
};

/// By rank 0: the folder of all rounds becomes this run's.
void claim_folder(Rounds& rounds) {
  const TrainOptions& o = rounds.flags.options;
  if (!rounds.several() || o.output_dir.empty()) return;
  const auto require = [](const Status& status) {
    if (!status) throw ConfigError(to_string(status.problems()));
  };
  require(make_writable_folder(o.output_dir));
  Result<RunLock> lock = RunLock::acquire(o.output_dir, new_run_id(), launcher_process());
  if (!lock) throw ConfigError(to_string(lock.problems()));
  rounds.lock = *std::move(lock);
  if (o.overwrite && !rounds.continues)
    require(remove_earlier_run(o.output_dir));
  else if (!rounds.continues)
    require(check_unused(o.output_dir));
  std::error_code ignored;
  std::filesystem::remove(std::filesystem::path(o.output_dir) / run_files::kSummary, ignored);
  require(rounds.plan.save((std::filesystem::path(o.output_dir) / run_files::kPlan).string()));
}

/// What all rounds together say, by the rank that wrote what each of them says.
ExitCode publish_rounds(const Rounds& rounds) {
  if (!rounds.several()) return ExitCode::Done;
  std::vector<Json> summaries;
  std::vector<std::string> folders;
  for (const Round& round : rounds.all) {
    if (round.state != RoundState::Done && round.summary.is_null()) return ExitCode::Done;  // another rank
    summaries.push_back(round.summary);
    folders.push_back(round.results);
    if (round.state != RoundState::Done) continue;
    const Result<Json> written =
        read_json((std::filesystem::path(round.results) / run_files::kSummary).string());
    if (!written) throw CheckpointError(to_string(written.problems()));
    summaries.back() = *written;
  }
  const Json all = joined_summary(summaries, rounds.plan.rounds);
  const std::string& folder = rounds.flags.options.output_dir;
  ExitCode code = ExitCode::Done;
  if (!folder.empty()) {
    const Status table = join_job_tables(folder, folders);
    const Status summary =
        write_file_atomically(std::filesystem::path(folder) / run_files::kSummary, all.dump(1) + "\n");
    for (const Status* status : {&table, &summary}) {
      if (*status) continue;
      log_error("the run is through, but this could not be written: " + to_string(status->problems()));
      code = ExitCode::RunFailed;
    }
  }
  if (rounds.flags.format == OutputFormat::Json)
    std::printf("%s\n", all.dump(1).c_str());
  else
    std::printf("%zu rounds done: %zu jobs, %.2f ms for a step of all\n", rounds.all.size(),
                all.find("jobs")->size(), all.find("median_step_s")->as_double() * 1e3);
  const auto& jobs = all.find("jobs")->items();
  if (std::ranges::any_of(jobs, [](const Json& job) { return job.find("status")->as_string() == "ok"; }))
    return code;
  log_error("the loss of every job is NaN or infinite");
  return ExitCode::Numeric;
}

/// One round after the other, as `train` runs them, until one does not come to its end.
ExitCode run_rounds(Rounds& rounds, const std::function<ExitCode(Round&, std::size_t)>& train) {
  for (std::size_t r = 0; r < rounds.all.size(); ++r) {
    Round& round = rounds.all[r];
    if (round.state == RoundState::Done) continue;
    if (const ExitCode code = train(round, r); code != ExitCode::Done) return code;
  }
  return publish_rounds(rounds);
}

void log_round(const Rounds& rounds, std::size_t r) {
  if (!rounds.several()) return;
  const int first = rounds.all[r].spec.options.first_job.value_or(0);
  log_info("round " + std::to_string(r + 1) + " of " + std::to_string(rounds.all.size()) + ": jobs " +
           std::to_string(first) + " to " + std::to_string(first + rounds.plan.rounds[r].jobs - 1));
}

ExitCode train_in_threads(Rounds& rounds, const Accelerator& accelerator) {
  claim_folder(rounds);
  if (TrainSpec& spec = rounds.all.front().spec; chooses_arrays(spec)) {
    divide(spec, measured_division(spec));
    log_info(division_text(spec));
  }
  return run_rounds(rounds, [&](Round& round, std::size_t r) {
    log_round(rounds, r);
    return train_threads(round, accelerator);
  });
}

/// All ranks divide as rank 0 measured. Collective.
void divide_as_rank_0(TrainSpec& spec, Communicator& world) {
  constexpr std::size_t kMostSizes = 64;  // 1, 2, 4, ... and all jobs
  const at::Tensor said = at::zeros({static_cast<std::int64_t>(1 + 2 * kMostSizes)}, at::kDouble);
  auto* values = said.mutable_data_ptr<double>();
  if (world.rank() == RankId(0)) {
    const ArrayDivision measured = measured_division(spec);
    *values++ = static_cast<double>(measured.arrays);
    for (const TriedArray& one : measured.tried) {
      *values++ = static_cast<double>(one.jobs);
      *values++ = one.job_s;
    }
  }
  world.all_reduce(said, "number of arrays")->wait();
  values = said.mutable_data_ptr<double>();
  ArrayDivision division{.arrays = static_cast<std::size_t>(*values++), .tried = {}};
  for (; *values > 0; values += 2) division.tried.push_back({static_cast<std::size_t>(values[0]), values[1]});
  divide(spec, std::move(division));
  if (world.rank() == RankId(0)) log_info(division_text(spec));
}

ExitCode train_process(Rounds& rounds, const JobEnvironment& job, const Accelerator& accelerator) {
  const TrainSpec& spec = rounds.all.front().spec;
  const std::shared_ptr<Device> device = device_or_throw(spec, job.local_rank, accelerator);
  const Plan& plan = rounds.several() ? rounds.plan : spec.pipeline;
  const JoinedJob joined = join_job(job,
                                    {.backend = spec.backend,
                                     .deadline = spec.deadline,
                                     .purpose = "train " + plan.model + " " + plan.fingerprint(),
                                     .decorators = spec.decorators},
                                    *device, accelerator);
  Communicator& world = *joined.communicator;
  try {
    if (job.rank == 0) claim_folder(rounds);
    if (rounds.several()) world.barrier();
    if (TrainSpec& first = rounds.all.front().spec; chooses_arrays(first)) divide_as_rank_0(first, world);
    return run_rounds(rounds, [&](Round& round, std::size_t r) {
      if (!rounds.several()) return train_rank(round, world, *device);
      if (job.rank == 0) log_round(rounds, r);
      // A round's groups of ranks have the names that another's have: each round is a group.
      std::vector<RankId> ranks;
      for (int rank = 0; rank < world.size(); ++rank) ranks.emplace_back(rank);
      const auto of_round = world.subgroup(ranks, run_files::kRounds.of(static_cast<int>(r)));
      return train_rank(round, *of_round, *device);
    });
  } catch (const std::exception& error) {
    world.abort(error.what());
    throw;
  }
}

/// As the Trainer does it, by one process and without taking anything.
void check_initial_weights(const TrainSpec& spec) {
  const TrainOptions& o = spec.options;
  if (o.init_from.empty() || !o.resume.empty()) return;
  const auto check = [&](const WeightFiles& files) {
    if (const Problems problems = check_weights(files, spec.alone, o.init_from_ignore); !problems.empty())
      throw CheckpointError("cannot start from " + o.init_from + ":\n" + to_string(problems));
  };
  std::error_code ignored;
  if (std::filesystem::is_directory(o.init_from, ignored)) {
    const Result<Checkpoint> checkpoint = open_checkpoint(o.init_from);
    if (!checkpoint) throw CheckpointError(to_string(checkpoint.problems()));
    WeightFiles files;
    for (const SafetensorsFile& shard : checkpoint->shards) files.push_back(&shard);
    return check(files);
  }
  const Result<SafetensorsFile> file = SafetensorsFile::open(o.init_from);
  if (!file) throw CheckpointError(to_string(file.problems()));
  check({&*file});
}

int print_dry_run(const Rounds& rounds) {
  const TrainSpec& spec = rounds.all.front().spec;
  const Datasets& sets = rounds.all.front().sets;
  check_initial_weights(spec);
  std::int64_t parameters = 0;
  for (const LayeredModel& network : spec.networks) parameters += network.num_parameters();
  std::printf("model %s, %lld parameters; data %s\n", spec.alone.name.c_str(),
              static_cast<long long>(parameters), sets.train->describe().c_str());
  std::printf("schedule %s, %d ranks, %d microbatches of %d samples, %lld steps\n",
              to_string(spec.pipeline.schedule).c_str(), spec.pipeline.num_ranks(),
              spec.pipeline.microbatches, spec.options.microbatch,
              static_cast<long long>(spec.options.steps));
  if (spec.pipeline.arrays > 1)
    std::printf("%zu jobs in %d arrays, in turn\n", spec.of_jobs.size(), spec.pipeline.arrays);
  for (int s = 0; s < spec.pipeline.num_stages(); ++s) {
    const PlanStage& stage = spec.pipeline.stages[s];
    std::printf("stage %d: %zu layers (%s .. %s) on %zu rank(s)\n", s, stage.layers.size(),
                stage.layers.front().c_str(), stage.layers.back().c_str(), stage.ranks.size());
  }
  if (rounds.several()) std::printf("%s\n", rounds_text(rounds.plan.rounds).c_str());
  return 0;
}

/// The rounds that the plan has for these jobs, one where it does not say; each with its part of what the
/// jobs were told.
Result<Rounds> rounds_from(const std::vector<TrainFlags>& jobs, const JobLists& lists, const Additions& own,
                           const Problems& flag_problems) {
  const TrainFlags& flags = jobs.front();
  const Result<std::vector<PlanRound>> planned = rounds_of_plan(flags.plan, jobs.size());
  if (!planned) return planned.problems();
  if (!planned->empty() && flags.arrays > 0)
    return Problem{"--arrays", "the plan says how the jobs are divided", "leave it out"};
  Rounds rounds{.flags = flags};
  std::vector<std::size_t> sizes{jobs.size()};
  if (planned->size() > 1) {
    sizes.clear();
    for (const PlanRound& round : *planned) sizes.push_back(static_cast<std::size_t>(round.jobs));
  }
  std::size_t from = 0;
  for (std::size_t r = 0; r < sizes.size(); ++r) {
    const auto part = [&](const auto& all) {
      const auto begin = all.begin() + static_cast<std::ptrdiff_t>(from);
      return std::decay_t<decltype(all)>(begin, begin + static_cast<std::ptrdiff_t>(sizes[r]));
    };
    std::optional<RoundPlace> place;
    if (sizes.size() > 1) place = {.round = r, .first_job = static_cast<int>(from)};
    Result<TrainSpec> spec = spec_from(part(jobs), own, flag_problems, place);
    if (!spec) return spec.problems();
    for (const auto& [flag, values] : lists.lists) spec->lists.emplace_back(flag, part(values));
    std::string results = spec->options.output_dir;
    rounds.all.push_back({.spec = *std::move(spec), .results = std::move(results)});
    from += sizes[r];
  }
  if (!rounds.several()) return rounds;
  rounds.resumed = flags.options.resume;
  rounds.plan = rounds.all.front().spec.pipeline;
  rounds.plan.rounds = *planned;
  return rounds;
}

/// The data sets, and what follows from how much there is.
Status open_data(Round& round, OpenDatasets& open) {
  TrainSpec& spec = round.spec;
  Result<Datasets> sets = open_datasets(spec, open);
  if (!sets) return sets.problems();
  const std::int64_t steps = steps_per_epoch(*sets->train, loader_options(spec));
  spec.steps_per_epoch = steps;
  spec.options.learning_rate = in_steps(spec.options.learning_rate, spec.rate_in_epochs, steps);
  for (std::size_t job = 0; job < spec.of_jobs.size(); ++job) {
    JobOptions& mine = spec.options.jobs[job];
    mine.learning_rate = in_steps(mine.learning_rate, spec.of_jobs[job].rate_in_epochs, steps);
    const Dataset& set = *sets->trains[spec.own_data ? job : 0];
    mine.settings.emplace_back("data", set.fingerprint());
    for (const auto& setting : set.recorded()) mine.settings.push_back(setting);
  }
  if (spec.epochs > 0) {
    spec.options.steps = steps * spec.epochs;
    for (JobOptions& job : spec.options.jobs) job.steps = spec.options.steps;
    if (spec.options.evaluate_every == 0) spec.options.evaluate_every = steps;
    if (spec.options.checkpoint_every == 0 && !spec.options.output_dir.empty())
      spec.options.checkpoint_every = steps;
  }
  if (const Status text = open_bleu_text(spec, *sets); !text) return text;
  // Ranks must see the same data, and a run that is resumed the data that it began with.
  spec.options.settings.emplace_back("data", sets->train->fingerprint());
  for (const auto& setting : sets->train->recorded()) spec.options.settings.push_back(setting);
  spec.options.rank_settings.emplace_back("evaluation data", sets->test ? sets->test->fingerprint() : "none");
  round.sets = *std::move(sets);
  return Ok{};
}

/// --resume of several rounds: those that are done are left alone, one goes on from its checkpoint, the
/// others begin.
Status go_on(Rounds& rounds) {
  const std::string& from = rounds.resumed;
  if (from.empty()) return Ok{};
  if (const Status same = same_rounds(from, rounds.plan); !same) return same;
  std::error_code ignored;
  rounds.continues = std::filesystem::equivalent(from, rounds.flags.options.output_dir, ignored);
  for (std::size_t r = 0; r < rounds.all.size(); ++r) {
    Round& round = rounds.all[r];
    TrainOptions& o = round.spec.options;
    RoundGoal goal{.first_job = o.first_job.value_or(0), .steps = o.steps};
    for (const JobOptions& job : o.jobs) goal.steps = std::max(goal.steps, job.steps.value_or(o.steps));
    for (int b = 0; b < rounds.plan.rounds[r].jobs; ++b) {
      goal.settings.push_back(settings_of(round.spec, static_cast<std::size_t>(b)));
      if (!o.save_weights.empty()) goal.weights.push_back(file_of_job(o.save_weights, goal.first_job + b));
    }
    const std::string folder = round_folder(from, r);
    const Result<RoundState> state = state_of_round(folder, goal);
    if (!state) return state.problems();
    round.state = *state;
    if (round.state == RoundState::Done) round.results = folder;
    o.resume = round.state == RoundState::Begun ? folder : "";
    if (round.state == RoundState::Untouched && rounds.continues) o.overwrite = true;
  }
  return Ok{};
}

}  // namespace

int train_command(const std::vector<std::string>& args, const Accelerator& accelerator,
                  const Additions& own) {
  return guarded([&] {
    GivenOptions ignored;
    const CommandSpec plain = with_additions(train_spec(), own, ignored);
    const Result<JobLists> lists = take_job_lists(plain, args);
    if (!lists) return report_problems(lists.problems(), ExitCode::Usage);
    std::vector<TrainFlags> flags(lists->args.size());  // what the targets of their flags point into
    Problems flag_problems;
    for (std::size_t job = 0; job < flags.size(); ++job) {
      const CommandSpec command = with_additions(train_spec(flags[job]), own, flags[job].model.options);
      const Result<Arguments> parsed = parse_arguments(command, lists->args[job]);
      if (!parsed) return report_problems(parsed.problems(), ExitCode::Usage);
      if (parsed->wants_help()) return std::fputs(help_text(command).c_str(), stdout), 0;
      for (const Problem& problem : parsed->problems())
        if (job == 0 || lists->has(problem.where.substr(2))) flag_problems.push_back(problem);
    }
    die_with_launcher();
    ignore_size_limit_signal();
    Result<JobEnvironment> job = read_environment();
    if (!job) return report_problems(job.problems(), ExitCode::Usage);
    if (job->distributed) set_log_prefix("rank" + std::to_string(job->rank));
    Result<Rounds> made = rounds_from(flags, *lists, own, flag_problems);
    if (!made) return report_problems(made.problems(), ExitCode::Usage);
    Rounds& rounds = *made;
    TrainSpec& first = rounds.all.front().spec;
    // Before data is read: the device is what a wrong machine lacks.
    if (const auto device = device_from(first.device, job->local_rank, accelerator); !device)
      return report_problems(device.problems(), ExitCode::Usage);
    if (job->distributed && first.pipeline.num_ranks() != job->size) {
      return report_problems(
          {{"--plan",
            "the plan has " + std::to_string(first.pipeline.num_ranks()) + " ranks, this job has " +
                std::to_string(job->size),
            "start exactly the plan's ranks, or plan again with --ranks " + std::to_string(job->size)}},
          ExitCode::Usage);
    }
    if (const Status outputs = check_outputs(rounds.flags, job->rank); !outputs)
      return report_problems(outputs.problems(), ExitCode::Usage);
    OpenDatasets open;
    for (Round& round : rounds.all) {
      if (const Status opened = open_data(round, open); !opened)
        return report_problems(opened.problems(), ExitCode::InputData);
    }
    // Rounds read data of one kind: the first says how long it is.
    const std::vector<std::string> other_lengths = compare_lengths(first, rounds.all.front().sets);
    for (const std::string& note : other_lengths) first.plan_notes.push_back(first.plan + ": " + note);
    if (!other_lengths.empty())
      for (Round& round : rounds.all) predicts_nothing(round.spec.pipeline);
    if (job->rank == 0) log_notes(first, rounds.all.front().sets);
    if (const Status resumed = go_on(rounds); !resumed)
      return report_problems(resumed.problems(), ExitCode::Checkpoint);
    if (first.dry_run) return print_dry_run(rounds);
    if (!rounds.flags.options.output_dir.empty()) {  // else there is nowhere to save: the signals just end it
      for (Round& round : rounds.all) round.spec.options.stop = &stop_flag;
      stop_on_signals();
    }
    use_threads(first);
    return static_cast<int>(job->distributed ? train_process(rounds, *job, accelerator)
                                             : train_in_threads(rounds, accelerator));
  });
}

}  // namespace millrace
