#include "driver/worker/train_spec.h"

#include <algorithm>
#include <filesystem>

#include "data/files/scalar_files.h"
#include "driver/cli/command_support.h"
#include "driver/worker/emulation.h"
#include "driver/worker/rounds.h"
#include "driver/worker/train_arrays.h"
#include "driver/worker/variant.h"
#include "driver/worker/worker_environment.h"
#include "driver/worker/worker_options.h"
#include "models/exported/exported_model.h"
#include "optimizer/cost/cost_model.h"
#include "runtime/base/here_and_now.h"
#include "runtime/base/log.h"
#include "runtime/base/run_files.h"
#include "runtime/comm/emulated_links.h"
#include "runtime/comm/wire_checksum.h"
#include "runtime/layers/soft_cross_entropy.h"
#include "runtime/model/spread_tables.h"
#include "runtime/plan/cluster_spec.h"
#include "runtime/plan/replicas.h"
#include "runtime/saved/hash.h"
#include "runtime/schedule/csv.h"
#include "runtime/train/trainer.h"

namespace millrace {

namespace {

/// Problems of flags that say otherwise where stages are, or in what order they run.
Problems spread_tables_conflicts(const TrainFlags& f) {
  Problems problems;
  const auto refuse = [&](bool given, const char* flag) {
    if (given)
      problems.push_back({flag, "says otherwise than --spread-tables where the model's parts are",
                          "give --replicas N and no other flag of the plan"});
  };
  refuse(!f.plan.empty(), "--plan");
  refuse(f.stages > 1, "--stages");
  refuse(f.chunks > 0, "--chunks");
  refuse(f.schedule.has_value(), "--schedule");
  refuse(!f.schedule_file.empty(), "--schedule-file");
  return problems;
}

Result<Plan> plan_without_file(const TrainFlags& f, const LayeredModel& model) {
  if (f.spread_tables) {
    const Result<std::vector<int>> replicas = parse_replicas(f.replicas, 1);
    if (!replicas) return replicas.problems();
    return spread_tables_plan(model, replicas->front(),
                              f.microbatches ? f.microbatches : std::max(4, replicas->front()));
  }
  const ScheduleKind kind = f.schedule.value_or(ScheduleKind::OneFOneB);
  int chunks = f.chunks;
  if (chunks == 0) chunks = default_chunks(kind);
  if (const auto layers = static_cast<std::int64_t>(model.layer_names().size());
      std::int64_t{chunks} * f.stages > layers)
    return Problem{"--stages",
                   model.name + " has " + std::to_string(layers) + " layers, too few for " +
                       std::to_string(f.stages) + " stages" +
                       (chunks > 1 ? " of " + std::to_string(chunks) + " chunks" : ""),
                   "at most --stages " + std::to_string(layers / chunks)};
  const Result<std::vector<int>> replicas = parse_replicas(f.replicas, f.stages);
  if (!replicas) return replicas.problems();
  const bool equal = std::ranges::count(*replicas, replicas->front()) == f.stages;
  if (!equal && chunks > 1)
    return Problem{"--replicas", "stages on the same rank have the same replicas", "give one number"};
  Plan plan = uniform_plan(model.name, model.layer_names(), chunks * f.stages, replicas->front(),
                           f.microbatches ? f.microbatches : 4, kind, chunks);
  if (!equal) set_replicas(plan, *replicas);
  // Two versions suffice if an update covers what is in flight.
  if (f.microbatches == 0 && updates_after_several(kind))
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

}  // namespace

std::optional<Problem> settle_batch(TrainFlags& f) {
  if (!f.batch) return std::nullopt;
  const int microbatch = f.options.microbatch;
  if (f.microbatches > 0) return Problem{"--batch", "says the same as --microbatches", "give one of the two"};
  if (*f.batch % microbatch != 0)
    return Problem{"--batch",
                   std::to_string(*f.batch) + " samples are no whole number of microbatches of " +
                       std::to_string(microbatch),
                   "give a multiple of --microbatch"};
  f.microbatches = *f.batch / microbatch;
  return std::nullopt;
}

void predicts_nothing(Plan& plan) {
  plan.predicted_step_s = plan.predicted_run_step_s = 0;
}

namespace {

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
  const std::string doubt = doubt_of(plan.planned_for.origin, processor_name(), utc_now());
  if (predicts && other.notes.empty() && !doubt.empty()) other.notes.push_back(doubt);
  for (const std::string& note : other.notes) notes.push_back(f.plan + ": " + note);
  return about_file(f.plan, std::move(other.problems));
}

/// `notes`: what the run has otherwise than the plan's predictions.
Result<Plan> plan_from(const TrainFlags& f, const PlanFile& plan_file, const LayeredModel& model,
                       std::optional<ScheduleFile>& file, std::vector<std::string>& notes) {
  if (f.spread_tables) {
    if (Problems problems = spread_tables_conflicts(f); !problems.empty()) return problems;
  }
  std::optional<Plan> given;
  if (plan_file) {
    if (!*plan_file) return *plan_file;
    given = **plan_file;
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

/// Names the flags of emulated devices that were given.
Problems idle_flags(const EmulationFlags& given) {
  const EmulationFlags none;
  const std::pair<const char*, bool> flags[] = {
      {"--device-profile", !given.profile.empty()},
      {"--clock", given.clock != none.clock},
      {"--payload", given.payload != none.payload},
      {"--jitter", given.jitter.of_profile || given.jitter.sigma > 0},
      {"--straggler", given.stragglers.of_profile || !given.stragglers.of_ranks.empty()},
      {"--emulated-devices", given.devices > 0},
      {"--share-devices", !given.share.empty()}};
  Problems problems;
  for (const auto& [flag, is_given] : flags)
    if (is_given)
      problems.push_back({flag, "says nothing without emulated devices", "give --device emulated"});
  return problems;
}

/// --emulate-links: the links of a cluster file between the ranks of `plan`. `folder`:
/// TrainFlags::store_folder.
Result<ChannelDecorator> emulated_links(const std::string& path, const Plan& plan,
                                        const std::string& folder) {
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
  std::vector<int> ports = ports_of(*loaded);
  ports.resize(static_cast<std::size_t>(plan.num_ranks()));
  network.ports =
      std::make_shared<EmulatedPorts>(std::move(ports), folder.empty() ? "" : folder + "/emulated_ports");
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
  if (!o.keep_best.empty() && o.output_dir.empty())
    problems.push_back({"--keep-best", "needs a place for the checkpoint", "give --output-dir DIR"});
  if (o.checkpoint_at_end && o.output_dir.empty())
    problems.push_back({"--checkpoint-at-end", "needs a place for the checkpoint", "give --output-dir DIR"});
  const std::string in_common = "the hosts have output folders of their own",
                    rounds = ", and the jobs are trained in rounds";
  const char* share = "give an --output-dir that all hosts see, or leave it out";
  if (o.host_folder && !o.save_weights.empty()) problems.push_back({"--save-weights", in_common, share});
  // Jobs in rounds have a folder for each round.
  const bool apart_in_rounds = o.host_folder && o.first_job;
  if (apart_in_rounds && !o.keep_best.empty()) problems.push_back({"--keep-best", in_common + rounds, share});
  if (apart_in_rounds && o.checkpoint_every > 0)
    problems.push_back({"--checkpoint-every", in_common + rounds, share});
  if (apart_in_rounds && o.checkpoint_at_end)
    problems.push_back({"--checkpoint-at-end", in_common + rounds, share});
  if (apart_in_rounds && !o.resume.empty()) problems.push_back({"--resume", in_common + rounds, share});
  if (f.time_limit && !o.saves())
    problems.push_back({"--time-limit", "needs a place to save what was trained", "give --output-dir DIR"});
  if (o.overwrite && o.output_dir.empty())
    problems.push_back({"--overwrite", "says nothing without an output folder", "give --output-dir DIR"});
  append(problems, bleu_flag_problems(f.bleu));
  if (f.length_buckets > 0 && f.keep_last)
    problems.push_back({"--keep-last",
                        "says nothing with --length-buckets: what is left of a bucket is left out",
                        "give one of the two"});
  if (f.bleu.every > 0 && f.model.name != "gnmt" && f.model.name != "gnmt_large")
    problems.push_back(
        {"--bleu-every", "translates with gnmt and gnmt_large, not with " + f.model.name, "leave it out"});
  if (!o.resume_changes.empty() && o.resume.empty())
    problems.push_back({"--resume-changes", "says nothing without --resume", "give --resume DIR"});
  return problems;
}

/// Where the numbers of steps go beside the step logs. A round has files of its own.
void add_scalar_files(TrainSpec& spec, const std::optional<RoundPlace>& place) {
  namespace fs = std::filesystem;
  const EarlierRun earlier = !spec.options.resume.empty() ? EarlierRun::Continued
                             : spec.options.overwrite     ? EarlierRun::Replaced
                                                          : EarlierRun::Refused;
  const std::string round = place ? run_files::kRounds.of(static_cast<int>(place->round)) : "";
  if (!spec.tensorboard.empty())
    spec.options.scalars.push_back([folder = fs::path(spec.tensorboard) / round, earlier](std::int64_t from) {
      return open_tensorboard(folder, from, earlier);
    });
  if (!spec.scalars.empty()) {
    const fs::path file = spec.scalars;
    spec.options.scalars.push_back([file = file.parent_path() / round / file.filename(), earlier](
                                       std::int64_t from) { return open_scalar_table(file, from, earlier); });
  }
}

Problems rule_problems(const TrainFlags& flags, bool asynchronous) {
  const TrainOptions& o = flags.options;
  Problems problems = validate(o.rule);
  append(problems, validate(o.rule, o.clip, asynchronous));
  append(problems, validate(in_steps(o.learning_rate, flags.rate_in_epochs, 1)));
  return problems;
}

}  // namespace

Result<TrainSpec> spec_from(const std::vector<TrainFlags>& jobs, const std::vector<LayeredModel>& models,
                            const PlanFile& plan_file, const Additions& own, const Problems& flag_problems,
                            const std::optional<RoundPlace>& place) {
  const TrainFlags& flags = jobs.front();
  const LayeredModel& model = models.front();
  TrainSpec spec{flags, {model}, model};
  spec.own = own;
  TrainOptions& o = spec.options;
  Result<Plan> plan = plan_from(spec, plan_file, model, o.schedule, spec.plan_notes);
  if (plan && !plan->rounds.empty()) plan = plan->of_round(place ? place->round : 0);
  if (place) {
    o.first_job = place->first_job;
    o.output_dir = round_folder(o.output_dir, place->round);
    o.stop_on_nonfinite = false;  // the other rounds' jobs have nothing to do with it
  }
  add_scalar_files(spec, place);
  if (plan)
    spec.pipeline = *plan;
  else
    spec.pipeline.arrays = std::max(1, flags.arrays);
  Problems problems = flag_problems;
  if (jobs.size() > 1) {
    append(problems, fuse_jobs(spec, jobs, models));
    if (problems.size() > flag_problems.size()) return problems;
  } else if (spec.pipeline.arrays > 1) {
    problems.push_back(
        {"--arrays", "a single job is not divided into " + std::to_string(spec.pipeline.arrays) + " arrays",
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
  } else if (const auto ending = std::filesystem::path(o.save_weights).extension();
             ending == ".pt" || ending == ".pth" || ending == ".onnx" || ending == ".bin" ||
             ending == ".ckpt") {
    problems.push_back({"--save-weights",
                        "writes safetensors, and '" + o.save_weights + "' is a name of another format",
                        "give FILE.safetensors; Python reads it with safetensors.torch.load_file"});
  }
  if (!plan) append(problems, plan.problems());
  append(problems, validate(o.precision, o.loss_scale, plan && is_asynchronous(plan->schedule)));
  append(problems, validate(o.nonfinite,
                            {.asynchronous = plan && is_asynchronous(plan->schedule),
                             .scales_loss = kind_of(o.precision, o.loss_scale).scaling != LossScaling::None,
                             .several_jobs = jobs.size() > 1 || place,
                             .saves = o.saves() && (o.checkpoint_every > 0 || flags.epochs > 0)}));
  for (const TrainFlags& job : jobs) {
    append(problems, rule_problems(job, plan && is_asynchronous(plan->schedule)));
    if (&job != &jobs.front()) append(problems, conflicts(job.options.learning_rate, job.rate_in_epochs));
  }
  if (spec.wire_checksum) spec.decorators.emplace_back(make_checked_channel);
  if (!spec.emulation.links.empty() && plan) {
    Result<ChannelDecorator> links = emulated_links(spec.emulation.links, *plan, spec.store_folder);
    if (!links)
      append(problems, links.problems());
    else
      spec.decorators.push_back(*std::move(links));
  }
  if (spec.device != ComputeDevice::Emulated) append(problems, idle_flags(spec.emulation));
  if (!problems.empty()) return problems;
  if (spec.device == ComputeDevice::Emulated) {
    if (Status emulated = Emulation::set_up(spec); !emulated) return emulated.problems();
  }
  o.launched_run = launched_run();
  o.rescues = launcher_rescues();
  append(o.settings, recorded(data_flags(spec)));
  for (const auto& setting : recorded_options(spec.model.name, spec.model.options, own.models))
    o.settings.push_back(setting);
  if (const std::vector<std::int64_t>* weights = class_units(*model.heads.front().head)) {
    std::string units;
    for (const std::int64_t unit : *weights) units += std::to_string(unit) + "\n";
    o.settings.emplace_back("class-weights", spec.class_weights == kBalancedClasses
                                                 ? std::string(kBalancedClasses)
                                                 : "of a file, " + sha256(units).substr(0, 16));
  }
  for (std::size_t job = 0; job < o.jobs.size(); ++job) {
    TrainFlags of_job = jobs[job];
    append(o.jobs[job].settings, recorded(data_flags(of_job)));
  }
  if (const Status variant = apply_variant(spec); !variant) return variant.problems();
  return spec;
}

}  // namespace millrace
