// `millrace train`: parse, load plan and data, build the world, construct the Trainer, run.
// One rank of a job (launch, torchrun: RANK and WORLD_SIZE are set), or all ranks of the plan as threads.
#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <mutex>

#include <ATen/ops/zeros.h>

#include "driver/cli/command_support.h"
#include "driver/cli/job_lists.h"
#include "driver/worker/bleu_score.h"
#include "driver/worker/rounds.h"
#include "driver/worker/train_arrays.h"
#include "driver/worker/train_data.h"
#include "driver/worker/train_spec.h"
#include "driver/worker/train_summary.h"
#include "driver/worker/worker_environment.h"
#include "driver/worker/worker_options.h"
#include "models/exported/exported_model.h"
#include "runtime/base/failure_text.h"
#include "runtime/base/json.h"
#include "runtime/base/log.h"
#include "runtime/base/run_files.h"
#include "runtime/base/run_folder.h"
#include "runtime/checkpoint/initial_weights.h"
#include "runtime/comm/rank_threads.h"
#include "runtime/plan/plan_rounds.h"
#include "runtime/profile/array_division.h"
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

/// What `--resume auto` means in this output folder: to go on from it, or to begin, over what attempts left
/// that came to no checkpoint. Each rank looks; ranks that find otherwise than rank 0 end the job
/// (agree_on_settings in runtime/train/trainer.cpp).
Status settle_resume(std::vector<TrainFlags>& jobs, int rank) {
  const TrainOptions& given = jobs.front().options;
  if (given.resume != kResumeAuto) return Ok{};
  const std::string folder = given.output_dir;
  if (folder.empty())
    return Problem{"--resume", "auto goes on in the output folder", "give --output-dir DIR"};
  if (given.overwrite)
    return Problem{"--overwrite", "would delete what --resume auto goes on from", "leave one of them out"};
  const bool goes_on = can_go_on(folder);
  // A run that is done without a checkpoint stays: the check of the folder refuses it.
  std::error_code ignored;
  const bool is_done = std::filesystem::exists(std::filesystem::path(folder) / run_files::kSummary, ignored);
  const std::string left = goes_on || is_done ? "" : earlier_run(folder);
  if (rank == 0 && !goes_on)
    log_info("--resume auto: " + folder + " holds no checkpoint: the run begins" +
             (left.empty() ? "" : ", over what an attempt left (" + left + ")"));
  for (TrainFlags& job : jobs) {
    job.options.resume = goes_on ? folder : "";
    job.options.overwrite = !left.empty();
    if (!goes_on) job.options.resume_changes.clear();
  }
  return Ok{};
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
  show_cpp_frames(spec.cpp_frames);
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
    Device& device = *devices[communicator.rank().value];
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
  } catch (...) {
    world.abort(text_of_failure());
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
  if (flags.model.name.empty()) return Problem{"--model", "is required", "for example --model mlp"};
  const Result<std::vector<LayeredModel>> models = models_of(jobs, own);
  if (!models) {
    Problems problems = flag_problems;
    append(problems, models.problems());
    return problems;
  }
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
    Result<TrainSpec> spec = spec_from(part(jobs), part(*models), own, flag_problems, place);
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
    if (const Status settled = settle_resume(flags, job->rank); !settled)
      return report_problems(settled.problems(), ExitCode::Usage);
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
            "start exactly the plan's ranks, or plan again with --ranks " + std::to_string(job->size) +
                (job->scheduler.empty() ? "" : " (" + job->scheduler + ")")}},
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
