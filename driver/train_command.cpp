// `millrace train`: parse, load plan and data, build the world, construct the Trainer, run.
// One rank of a job (launch, torchrun: RANK and WORLD_SIZE are set), or all ranks of the plan as threads.
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <mutex>
#include <thread>

#include "data/dataset.h"
#include "driver/worker_environment.h"
#include "driver/worker_options.h"
#include "runtime/base/json.h"
#include "runtime/base/log.h"
#include "runtime/layers/autograd_layer.h"
#include "runtime/schedule/csv.h"
#include "runtime/train/trainer.h"

namespace millrace {
namespace {

StopFlag stop_flag{false};

/// SIGINT or SIGTERM: finish the step, save, exit with 75. The second one ends the process at once.
void stop_on_signals() {
  struct sigaction action {};
  action.sa_handler = [](int) { stop_flag.store(true); };
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
  for (int signal : {SIGINT, SIGTERM}) ::sigaction(signal, &action, nullptr);
}

/// Beyond a limit on the size of files (ulimit -f) a write then fails, instead of ending the process.
void ignore_size_limit_signal() {
  ::signal(SIGXFSZ, SIG_IGN);
}

/// Everything the flags say, with the files they name loaded.
struct TrainSpec {
  LayeredModel model;
  Plan plan;
  TrainOptions options;
  std::string data;
  bool evaluate = true;
  int workers = 1;
  int threads = 1;
  bool deterministic = false;
  bool dry_run = false;
  bool json = false;
  std::string device;
  std::string backend;
  std::chrono::milliseconds deadline{};
  std::int64_t epochs = 0;
  std::int64_t warmup_epochs = 0;
};

Plan plan_without_file(Arguments& a, const LayeredModel& model, ScheduleKind kind, int microbatches) {
  int chunks = static_cast<int>(a.integer("chunks", 0, 1024));
  if (chunks == 0) chunks = is_v_shaped(kind) || kind == ScheduleKind::Interleaved ? 2 : 1;
  return uniform_plan(
      model.name, model.layer_names(), chunks * static_cast<int>(a.integer("stages", 1, 1024)),
      static_cast<int>(a.integer("replicas", 1, 1024)), microbatches ? microbatches : 4, kind, chunks);
}

/// The order of a file for the stages of `plan`, or for equal stages where it has them.
Result<Plan> plan_with_schedule_file(Arguments& a, const LayeredModel& model, std::optional<Plan> plan,
                                     ScheduleFile& file) {
  file.name = a.string("schedule-file");
  Result<std::string> text = read_file(file.name);
  if (!text) return text.problems();
  file.text = *std::move(text);
  const int replicas = plan ? static_cast<int>(plan->stages.front().ranks.size())
                            : static_cast<int>(a.integer("replicas", 1, 1024));
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
  plan->versions = VersionPolicy::Flush;
  plan->microbatches = read->shape.microbatches;
  return *std::move(plan);
}

Result<Plan> plan_from(Arguments& a, const LayeredModel& model, std::optional<ScheduleFile>& file) {
  Result<ScheduleKind> kind = parse_schedule_kind(a.string("schedule"), "--schedule");
  if (!kind) return kind.problems();
  const int microbatches = static_cast<int>(a.integer("microbatches", 0, 1 << 20));
  std::optional<Plan> given;
  if (a.has("plan")) {
    Result<Plan> loaded = Plan::load(a.string("plan"));
    if (!loaded) return loaded;
    given = *std::move(loaded);
    if (microbatches > 0) given->microbatches = microbatches;
    if (a.has("schedule")) {
      given->schedule = *kind;
      given->versions = is_asynchronous(*kind) ? VersionPolicy::Stash : VersionPolicy::Flush;
    }
  }
  Result<Plan> plan = a.has("schedule-file")
                          ? plan_with_schedule_file(a, model, std::move(given), file.emplace())
                      : given ? Result<Plan>(*std::move(given))
                              : Result<Plan>(plan_without_file(a, model, *kind, microbatches));
  if (!plan) return plan;
  if (a.boolean("recompute")) {
    for (PlanStage& stage : plan->stages) stage.recompute = true;
  }
  if (Problems problems = validate(*plan, model.name, model.layer_names()); !problems.empty())
    return problems;
  return plan;
}

/// "lr,data" -> lr, data.
std::vector<std::string> words_of(const std::string& list) {
  std::vector<std::string> words;
  for (std::size_t at = 0; at < list.size();) {
    const std::size_t end = std::min(list.find(',', at), list.size());
    if (end > at) words.push_back(list.substr(at, end - at));
    at = end + 1;
  }
  return words;
}

Result<TrainSpec> spec_from(Arguments& a) {
  TrainSpec spec;
  if (!a.has("model")) return Problem{"--model", "is required", "for example --model mlp"};
  Result<LayeredModel> model = model_from(a);
  if (!model) return model.problems();
  spec.model = *std::move(model);
  if (a.boolean("autograd")) {
    for (NamedLayer& named : spec.model.layers) named.layer = through_autograd(named.layer);
  }
  TrainOptions& o = spec.options;
  Result<Plan> plan = plan_from(a, spec.model, o.schedule);
  Problems problems;
  o.steps = a.integer("steps", 0, INT64_MAX / 1024);
  o.microbatch = static_cast<int>(a.integer("microbatch", 1, 1 << 20));
  o.seed = static_cast<std::uint64_t>(a.integer("seed", 0, INT64_MAX));
  o.rule = {.kind = a.string("rule"),
            .momentum = a.number("momentum", 0, 1),
            .weight_decay = a.number("weight-decay", 0, 1e3)};
  o.learning_rate = {.base = a.number("lr", 0, 1e6),
                     .policy = a.string("lr-policy"),
                     .warmup_steps = a.integer("warmup-steps", 0, INT64_MAX),
                     .step_size = a.integer("lr-step-size", 0, INT64_MAX),
                     .gamma = a.number("gamma", 0, 1)};
  o.output_dir = a.string("output-dir");
  o.overwrite = a.boolean("overwrite");
  o.resume = a.string("resume");
  o.resume_changes = words_of(a.string("resume-changes"));
  o.checkpoint_deadline =
      std::chrono::milliseconds(static_cast<std::int64_t>(a.number("checkpoint-timeout", 0.001, 1e8) * 1000));
  o.launcher = launcher_process();
  o.settings.emplace_back("dropout", Json(a.number("dropout", -1, 0.999)).dump());
  o.checkpoint_every = a.integer("checkpoint-every", 0, INT64_MAX);
  o.checkpoint_at_end = a.boolean("checkpoint-at-end");
  o.evaluate_every = a.integer("evaluate-every", 0, INT64_MAX);
  o.print_every = a.integer("print-every", 1, INT64_MAX);
  o.trace_first = a.integer("trace-first", 0, INT64_MAX);
  o.trace_count = a.integer("trace-steps", 0, 1 << 20);
  o.save_weights = a.string("save-weights");
  spec.data = a.string("data");
  spec.evaluate = !a.boolean("no-evaluation");
  spec.workers = static_cast<int>(a.integer("workers", 0, 256));
  spec.threads = static_cast<int>(a.integer("threads", 1, 1024));
  spec.deterministic = a.boolean("deterministic");
  spec.dry_run = a.boolean("dry-run");
  spec.json = a.string("format") == "json";
  spec.device = a.string("device");
  spec.backend = a.string("backend");
  spec.deadline =
      std::chrono::milliseconds(static_cast<std::int64_t>(a.number("timeout", 0.001, 1e6) * 1000));
  spec.epochs = a.integer("epochs", 0, 1'000'000);
  spec.warmup_epochs = a.integer("warmup-epochs", 0, 1'000'000);
  if (spec.warmup_epochs > 0 && o.learning_rate.warmup_steps > 0)
    problems.push_back({"--warmup-epochs", "is given beside --warmup-steps", "give one of them"});
  problems.insert(problems.begin(), a.problems().begin(), a.problems().end());
  if (!plan) append(problems, plan.problems());
  for (const Problem& p : validate(o.learning_rate)) problems.push_back(p);
  if (o.checkpoint_every > 0 && o.output_dir.empty())
    problems.push_back({"--checkpoint-every", "needs a place for the checkpoints", "give --output-dir DIR"});
  if (o.checkpoint_at_end && o.output_dir.empty())
    problems.push_back({"--checkpoint-at-end", "needs a place for the checkpoint", "give --output-dir DIR"});
  if (o.overwrite && o.output_dir.empty())
    problems.push_back({"--overwrite", "says nothing without an output folder", "give --output-dir DIR"});
  if (!o.resume_changes.empty() && o.resume.empty())
    problems.push_back({"--resume-changes", "says nothing without --resume", "give --resume DIR"});
  if (!problems.empty()) return problems;
  spec.plan = *std::move(plan);
  return spec;
}

DatasetOptions dataset_options(const TrainSpec& spec, const std::string& split) {
  return {.path = spec.data,
          .split = split,
          .sample_shape = spec.model.input_shape,
          .num_classes = spec.model.num_classes,
          .seed = spec.options.seed};
}

struct Datasets {
  std::shared_ptr<const Dataset> train, test;
};

Result<Datasets> open_datasets(const TrainSpec& spec) {
  auto train = make_dataset(dataset_options(spec, "train"));
  if (!train) return train.problems();
  Datasets sets{.train = *train};
  if (spec.evaluate) {
    if (auto test = make_dataset(dataset_options(spec, "test")); test)
      sets.test = *test;
    else
      log_warning("no evaluation: " + to_string(test.problems()));
  }
  return sets;
}

LoaderOptions loader_options(const TrainSpec& spec, const BatchNeeds& needs) {
  return {.microbatch = spec.options.microbatch,
          .microbatches_per_step = microbatches_per_step(spec.plan),
          .seed = spec.options.seed,
          .workers = spec.workers,
          .want_input = needs.input,
          .want_target = needs.target,
          .page_locked = spec.device != "cpu",
          .mine = needs.mine};
}

std::unique_ptr<BatchSource> loader_or_throw(const std::shared_ptr<const Dataset>& dataset,
                                             const LoaderOptions& options) {
  auto loader = make_loader(dataset, options);
  if (!loader) throw DataError(to_string(loader.problems()));
  return std::move(*loader);
}

MakeBatches batches_of(const TrainSpec& spec, const Datasets& sets) {
  return [&spec, &sets](const BatchNeeds& train, const BatchNeeds& evaluation) {
    BatchSources sources;
    if (train.input || train.target) sources.train = loader_or_throw(sets.train, loader_options(spec, train));
    if (sets.test) {
      LoaderOptions options = loader_options(spec, evaluation);
      options.microbatches_per_step = 1;
      options.shuffle = false;
      options.keep_incomplete = true;
      sources.evaluation.microbatches = steps_per_epoch(*sets.test, options);
      sources.evaluation.last_samples =
          sets.test->size() - (sources.evaluation.microbatches - 1) * spec.options.microbatch;
      if (evaluation.input || evaluation.target)
        sources.evaluation.batches = loader_or_throw(sets.test, options);
    }
    return sources;
  };
}

Json summary_of(const TrainSpec& spec, const RunReport& report) {
  Json evaluations = Json::array();
  for (const EvaluationReport& e : report.evaluations) {
    evaluations.push_back(Json::object(
        {{"step", e.step}, {"loss", e.loss}, {"top1", e.top1}, {"top5", e.top5}, {"samples", e.samples}}));
  }
  Json losses = Json::array(), lost = Json::array();
  for (const std::string& one : report.lost) lost.push_back(one);
  for (double loss : report.losses) losses.push_back(loss);
  return Json::object({{"format", "millrace-summary-1"},
                       {"model", spec.model.name},
                       {"data", spec.data},
                       {"ranks", spec.plan.num_ranks()},
                       {"stages", spec.plan.num_stages()},
                       {"schedule", to_string(spec.plan.schedule)},
                       {"microbatches", spec.plan.microbatches},
                       {"microbatch", spec.options.microbatch},
                       {"seed", static_cast<std::int64_t>(spec.options.seed)},
                       {"device", spec.device},
                       {"run", report.run},
                       {"steps", report.steps},
                       {"first_step", report.first_step},
                       {"stopped_early", report.stopped},
                       {"checkpoint_step", report.saved_step < 0 ? Json() : Json(report.saved_step)},
                       {"checkpoints_failed", report.failed_saves},
                       {"log_lines_lost", report.lost_log_lines},
                       {"lost", lost},
                       {"final_loss", report.losses.empty() ? Json() : Json(report.losses.back())},
                       {"median_step_s", report.median_step_s},
                       {"predicted_step_s", spec.plan.predicted_step_s},
                       {"samples_per_s", report.samples_per_s},
                       {"seconds", report.seconds},
                       {"peak_stash", report.peak_stash},
                       {"peak_versions", report.peak_versions},
                       {"peak_memory_bytes", report.peak_memory_bytes},
                       {"evaluations", evaluations},
                       {"losses", losses}});
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
  if (!report.evaluations.empty())
    std::printf("evaluation: top-1 %.4f, top-5 %.4f, loss %.4f\n", report.evaluations.back().top1,
                report.evaluations.back().top5, report.evaluations.back().loss);
}

/// The rank of the last stage's first replica writes and prints the result of the job, and what of it is
/// missing on the disk.
void publish_summary(const TrainSpec& spec, RunReport& report, RankId rank) {
  if (rank != spec.plan.stages.back().ranks.front()) return;
  const Json summary = summary_of(spec, report);
  if (!spec.options.output_dir.empty()) {
    const auto path = std::filesystem::path(spec.options.output_dir) / "summary.json";
    if (Status saved = write_file_atomically(path, summary.dump(1) + "\n"); !saved)
      report.lost.push_back("the summary (" + to_string(saved.problems()) + ")");
  }
  for (const std::string& lost : report.lost)
    log_error("the run is through, but this could not be written: " + lost);
  if (spec.json) {
    std::printf("%s\n", summary.dump(1).c_str());
    return;
  }
  print_result(report);
}

/// 75 only if there is a checkpoint of the step at which it stopped.
ExitCode exit_code_of(const RunReport& report) {
  if (report.lost_checkpoint) return ExitCode::Checkpoint;
  if (!report.lost.empty()) return ExitCode::RunFailed;
  return report.stopped ? ExitCode::Requeue : ExitCode::Done;
}

ExitCode train_rank(const TrainSpec& spec, const Datasets& sets, Communicator& communicator, Device& device) {
  SteadyClock clock;
  device.bind_thread();
  Trainer trainer({communicator, clock, device}, spec.model, spec.plan, spec.options, batches_of(spec, sets));
  RunReport report = trainer.run();
  publish_summary(spec, report, communicator.rank());
  return exit_code_of(report);
}

/// Before data is read and the others are met. The Trainer checks again, with the folder locked.
Status check_outputs(const TrainSpec& spec, int rank) {
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
                      spec.device == "cpu" ? Missing::Refuse : Missing::Warn);
}

std::shared_ptr<Device> device_or_throw(const TrainSpec& spec, int local_rank,
                                        const Accelerator& accelerator) {
  Result<std::shared_ptr<Device>> device = device_from(spec.device, local_rank, accelerator);
  if (!device) throw ConfigError(to_string(device.problems()));
  return *device;
}

/// All ranks as threads of this process. The first failure is the one reported; the others only follow it.
ExitCode train_threads(const TrainSpec& spec, const Datasets& sets, const Accelerator& accelerator) {
  std::vector<std::shared_ptr<Device>> devices;
  for (int rank = 0; rank < spec.plan.num_ranks(); ++rank)
    devices.push_back(device_or_throw(spec, rank, accelerator));
  auto communicators = make_local_communicators(spec.plan.num_ranks(), spec.deadline);
  std::mutex mutex;
  std::exception_ptr first;
  ExitCode worst = ExitCode::Done;
  {
    std::vector<std::jthread> threads;
    for (auto& communicator : communicators) {
      threads.emplace_back([&, c = communicator.get()] {
        try {
          use_threads(spec);
          Device& device = *devices[static_cast<std::size_t>(c->rank().value)];
          const ExitCode code = train_rank(spec, sets, *c, device);
          std::lock_guard lock(mutex);
          // What was lost says more than that it stopped.
          if (worst == ExitCode::Done || (worst == ExitCode::Requeue && code != ExitCode::Done)) worst = code;
        } catch (const std::exception& error) {
          {
            std::lock_guard lock(mutex);
            if (!first) first = std::current_exception();
          }
          c->abort(error.what());
        }
      });
    }
  }
  if (first) std::rethrow_exception(first);
  return worst;
}

ExitCode train_process(const TrainSpec& spec, const Datasets& sets, const JobEnvironment& job,
                       const Accelerator& accelerator) {
  const std::shared_ptr<Device> device = device_or_throw(spec, job.local_rank, accelerator);
  const JoinedJob joined =
      join_job(job, {.backend = spec.backend, .deadline = spec.deadline}, *device, accelerator);
  return train_rank(spec, sets, *joined.communicator, *device);
}

int print_dry_run(const TrainSpec& spec, const Datasets& sets) {
  std::printf("model %s, %lld parameters; data %s\n", spec.model.name.c_str(),
              static_cast<long long>(spec.model.num_parameters()), sets.train->describe().c_str());
  std::printf("schedule %s, %d ranks, %d microbatches of %d samples, %lld steps\n",
              to_string(spec.plan.schedule).c_str(), spec.plan.num_ranks(), spec.plan.microbatches,
              spec.options.microbatch, static_cast<long long>(spec.options.steps));
  for (int s = 0; s < spec.plan.num_stages(); ++s) {
    const PlanStage& stage = spec.plan.stages[s];
    std::printf("stage %d: %zu layers (%s .. %s) on %zu rank(s)\n", s, stage.layers.size(),
                stage.layers.front().c_str(), stage.layers.back().c_str(), stage.ranks.size());
  }
  return 0;
}

}  // namespace

int train_command(const std::vector<std::string>& args, const Accelerator& accelerator) {
  return guarded([&] {
    const CommandSpec command = train_spec();
    Result<Arguments> parsed = parse_arguments(command, args);
    if (!parsed) return report_problems(parsed.problems(), ExitCode::Usage);
    if (parsed->wants_help()) return std::fputs(help_text(command).c_str(), stdout), 0;
    die_with_launcher();
    ignore_size_limit_signal();
    Result<JobEnvironment> job = read_environment();
    if (!job) return report_problems(job.problems(), ExitCode::Usage);
    if (job->distributed) set_log_prefix("rank" + std::to_string(job->rank));
    Result<TrainSpec> spec = spec_from(*parsed);
    if (!spec) return report_problems(spec.problems(), ExitCode::Usage);
    // Before data is read: the device is what a wrong machine lacks.
    if (const auto device = device_from(spec->device, job->local_rank, accelerator); !device)
      return report_problems(device.problems(), ExitCode::Usage);
    if (job->distributed && spec->plan.num_ranks() != job->size) {
      return report_problems(
          {{"--plan",
            "the plan has " + std::to_string(spec->plan.num_ranks()) + " ranks, this job has " +
                std::to_string(job->size),
            "start exactly the plan's ranks, or plan again with --ranks " + std::to_string(job->size)}},
          ExitCode::Usage);
    }
    if (const Status outputs = check_outputs(*spec, job->rank); !outputs)
      return report_problems(outputs.problems(), ExitCode::Usage);
    Result<Datasets> sets = open_datasets(*spec);
    if (!sets) return report_problems(sets.problems(), ExitCode::InputData);
    const std::int64_t steps = steps_per_epoch(*sets->train, loader_options(*spec, {}));
    if (spec->warmup_epochs > 0) spec->options.learning_rate.warmup_steps = steps * spec->warmup_epochs;
    if (spec->epochs > 0) {
      spec->options.steps = steps * spec->epochs;
      if (spec->options.evaluate_every == 0) spec->options.evaluate_every = steps;
      if (spec->options.checkpoint_every == 0 && !spec->options.output_dir.empty())
        spec->options.checkpoint_every = steps;
    }
    // Ranks must see the same data, and a run that is resumed the data that it began with.
    spec->options.settings.emplace_back("data", sets->train->fingerprint());
    spec->options.rank_settings.emplace_back("evaluation data",
                                             sets->test ? sets->test->fingerprint() : "none");
    if (spec->dry_run) return print_dry_run(*spec, *sets);
    if (!spec->options.output_dir.empty()) {  // else there is nowhere to save: the signals just end it
      spec->options.stop = &stop_flag;
      stop_on_signals();
    }
    use_threads(*spec);
    return static_cast<int>(job->distributed ? train_process(*spec, *sets, *job, accelerator)
                                             : train_threads(*spec, *sets, accelerator));
  });
}

}  // namespace millrace
