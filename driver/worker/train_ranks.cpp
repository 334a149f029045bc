#include "driver/worker/train_ranks.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <functional>
#include <mutex>
#include <utility>

#include <ATen/ops/zeros.h>

#include "data/files/data_kinds.h"
#include "driver/cli/command_support.h"
#include "driver/worker/bleu_score.h"
#include "driver/worker/emulation.h"
#include "driver/worker/next_order.h"
#include "driver/worker/train_arrays.h"
#include "driver/worker/train_summary.h"
#include "models/exported/exported_model.h"
#include "runtime/base/failure_text.h"
#include "runtime/base/json.h"
#include "runtime/base/log.h"
#include "runtime/base/run_files.h"
#include "runtime/comm/rank_threads.h"
#include "runtime/comm/recorded_channel.h"
#include "runtime/counters/counter_sampler.h"
#include "runtime/profile/array_division.h"
#include "runtime/train/shared_schedules.h"
#include "runtime/train/trainer.h"

namespace millrace {
namespace {

/// Writes the trained weights into an archive like the model's, which --save-weights FILE.pt2 asks for.
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

/// Returns 75 only if there is a checkpoint of the step at which the run stopped.
ExitCode exit_code_of(const RunReport& report) {
  if (report.lost_checkpoint) return ExitCode::Checkpoint;
  if (!report.lost.empty()) return ExitCode::RunFailed;
  return report.stopped ? ExitCode::Requeue : ExitCode::Done;
}

Clock& clock_of(const TrainSpec& spec) {
  return spec.emulated ? spec.emulated->clock() : steady_clock();
}

/// Runs one trainer to its end, from where `options` say.
RunReport run_trainer(const Round& round, const TrainOptions& options, const World& world) {
  const TrainSpec& spec = round.spec;
  std::unique_ptr<WeightsScore> score;
  if (spec.bleu_text)
    score = make_bleu_score(spec.bleu_text, world.communicator, spec.threads, options.output_dir);
  std::vector<TrainedArray> arrays;
  std::size_t first_job = 0;
  for (const LayeredModel& network : spec.networks) {
    arrays.push_back(array_for(spec, round.sets, network, first_job));
    first_job += static_cast<std::size_t>(network.jobs());
  }
  return Trainer(world, std::move(arrays), spec.pipeline, options, std::move(score)).run();
}

/// Runs trainers until one comes to its end. Each goes on from the checkpoint that the one before it went
/// back to.
RunReport run_with_rollbacks(const Round& round, const World& world) {
  TrainOptions options = round.spec.options;
  for (;;) {
    try {
      return run_trainer(round, options, world);
    } catch (const RollbackError& error) {
      if (world.communicator.rank() == RankId(0))
        log_warning(std::string(error.what()) + "; going back to the checkpoint of step " +
                    std::to_string(error.saved));
      options.rolled_back_at = error.failed;
      options.resume = options.output_dir;
      options.overwrite = false;
    }
  }
}

/// Returns what --counters asks a process to count, with `of_host` for its host too.
CounterOptions counters_of(const TrainSpec& spec, bool of_host) {
  return {.interval = std::chrono::milliseconds(std::llround(spec.counters.value_or(0) * 1e3)),
          .host = of_host,
          .data = paths_of_data(spec.data)};
}

/// The counting beside a rank.
struct Counted {
  int ranks = 1;         ///< of the process, from this one on; 0: nothing, another rank does it
  bool of_host = false;  ///< the host's counts too
};

/// Trains a round as one rank.
ExitCode train_rank(Round& round, Communicator& communicator, Device& device, FlightRecorder& recorder,
                    Failpoints& failpoints, const Counted& counted) {
  const TrainSpec& spec = round.spec;
  Clock& clock = clock_of(spec);
  device.bind_thread();
  // The round before had its own, and so have arrays that were tried.
  if (spec.options.first_job || !spec.division.tried.empty()) device.reset_peak_memory();
  failpoints.reach("model", 0);
  World world{communicator, clock, device};
  world.recorder = &recorder;
  const CounterOptions counters = counters_of(spec, counted.of_host);
  if (counters.any() && counted.ranks > 0) world.counters = &counters, world.counted_ranks = counted.ranks;
  if (!spec.options.failpoints.empty()) world.failpoints = &failpoints;
  RunReport report = run_with_rollbacks(round, world);
  write_archive(spec, report, communicator.rank());
  Json summary = publish_summary(spec, report, data_files(round.sets, communicator), communicator.rank());
  if (!summary.is_null()) round.summary = std::move(summary);  // by one thread
  return exit_code_of(report);
}

std::shared_ptr<Device> device_or_throw(const TrainSpec& spec, int local_rank,
                                        const Accelerator& accelerator) {
  Result<std::shared_ptr<Device>> device = device_from(spec.device, local_rank, accelerator);
  if (!device) throw ConfigError(to_string(device.problems()));
  return *device;
}

/// Trains a round with all ranks as threads of this process.
ExitCode train_threads(Round& round, const Accelerator& accelerator) {
  round.spec.options.shared_schedules = std::make_shared<SharedSchedules>();
  const TrainSpec& spec = round.spec;
  const int ranks = spec.pipeline.num_ranks();
  std::vector<std::shared_ptr<Device>> devices;
  std::vector<ChannelDecorator> decorators = spec.decorators;
  if (spec.emulated) {
    std::vector<std::shared_ptr<EmulatedDevice>> emulated;
    for (int rank = 0; rank < ranks; ++rank) emulated.push_back(spec.emulated->device(RankId(rank)));
    devices.assign(emulated.begin(), emulated.end());
    decorators = spec.emulated->decorators(
        [emulated = std::move(emulated)](int rank) -> EmulatedDevice& { return *emulated.at(rank); });
  } else {
    for (int rank = 0; rank < ranks; ++rank) devices.push_back(device_or_throw(spec, rank, accelerator));
  }
  std::deque<FlightRecorder> recorders;  // by rank
  for (int rank = 0; rank < ranks; ++rank) recorders.emplace_back(steady_clock());
  decorators.push_back([&](std::shared_ptr<Channel> channel) {
    FlightRecorder& own = recorders[static_cast<std::size_t>(channel->rank())];
    return make_recorded_channel(std::move(channel), own);
  });
  Clock& clock = clock_of(spec);
  // In virtual time a peer may be long at work, and a wait takes no time.
  const bool is_virtual = spec.emulated && spec.emulated->is_virtual();
  auto communicators = make_local_communicators(
      ranks, is_virtual ? std::chrono::hours(24 * 365) : spec.deadline, decorators, clock);
  std::mutex mutex;
  ExitCode worst = ExitCode::Done;
  const std::string mark = job_mark();
  run_as_threads(
      communicators,
      [&](Communicator& communicator) {
        set_job_mark(mark);
        use_threads(spec);
        Device& device = *devices[communicator.rank().value];
        const int rank = communicator.rank().value;
        Failpoints failpoints(spec.options.failpoints, rank, clock);
        if (spec.emulated) spec.emulated->begin();
        const ExitCode code =
            train_rank(round, communicator, device, recorders[static_cast<std::size_t>(rank)], failpoints,
                       {.ranks = rank == 0 ? ranks : 0, .of_host = rank == 0});
        std::lock_guard lock(mutex);
        // A loss says more than the fact that the run stopped.
        if (worst == ExitCode::Done || (worst == ExitCode::Requeue && code != ExitCode::Done)) worst = code;
      },
      clock);
  return worst;
}

/// Makes the folder of all rounds this run's. Rank 0 calls it.
void claim_folder(Rounds& rounds) {
  const TrainOptions& o = rounds.flags.options;
  if (!rounds.several() || o.output_dir.empty()) return;
  const auto require = [](const Status& status) {
    if (!status) throw ConfigError(to_string(status.problems()));
  };
  require(make_writable_folder(o.output_dir));
  Result<RunLock> lock = RunLock::acquire(o.output_dir, new_run_id(), launched_run());
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

/// Writes and prints what all rounds together say. The rank that wrote each round's summary does it.
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
    std::printf("%s%zu rounds done: %zu jobs, %.2f ms for a step of all\n", job_mark().c_str(),
                rounds.all.size(), all.find("jobs")->size(), all.find("median_step_s")->as_double() * 1e3);
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

}  // namespace

void use_threads(const TrainFlags& flags) {
  show_cpp_frames(flags.cpp_frames);
  set_compute_threads(flags.threads, flags.deterministic,
                      flags.device == ComputeDevice::Cpu ? Missing::Refuse : Missing::Warn);
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

namespace {

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

}  // namespace

ExitCode train_process(Rounds& rounds, const JobEnvironment& job, const Accelerator& accelerator) {
  const TrainSpec& spec = rounds.all.front().spec;
  std::shared_ptr<Device> device;
  std::vector<ChannelDecorator> decorators = spec.decorators;
  if (spec.emulated) {
    const std::shared_ptr<EmulatedDevice> emulated = spec.emulated->device(RankId(job.rank));
    device = emulated;
    decorators = spec.emulated->decorators([emulated](int) -> EmulatedDevice& { return *emulated; });
  } else {
    device = device_or_throw(spec, job.local_rank, accelerator);
  }
  const Plan& plan = rounds.several() ? rounds.plan : spec.pipeline;
  const Counted counted{.of_host = job.local_rank == 0};
  FlightRecorder recorder(steady_clock());
  Failpoints failpoints(spec.options.failpoints, job.rank, clock_of(spec));
  failpoints.reach("meeting", 0);
  const JoinedJob joined = join_job(job,
                                    {.backend = spec.backend,
                                     .deadline = spec.deadline,
                                     .meets_later = start_patience(),
                                     .purpose = "train " + plan.model + " " + plan.fingerprint() +
                                                (spec.wire_checksum ? " with checksums" : ""),
                                     .encrypt = spec.encrypt,
                                     .decorators = std::move(decorators),
                                     .recorder = &recorder},
                                    *device, accelerator);
  Communicator& world = *joined.communicator;
  tell_of_meeting();
  try {
    if (job.rank == 0) claim_folder(rounds);
    if (rounds.several()) world.barrier();
    if (TrainSpec& first = rounds.all.front().spec; chooses_arrays(first)) divide_as_rank_0(first, world);
    return run_rounds(rounds, [&](Round& round, std::size_t r) {
      if (!rounds.several()) return train_rank(round, world, *device, recorder, failpoints, counted);
      if (job.rank == 0) log_round(rounds, r);
      // A round's groups of ranks have the names that another's have: each round is a group.
      std::vector<RankId> ranks;
      for (int rank = 0; rank < world.size(); ++rank) ranks.emplace_back(rank);
      const auto of_round = world.subgroup(ranks, run_files::kRounds.of(static_cast<int>(r)));
      return train_rank(round, *of_round, *device, recorder, failpoints, counted);
    });
  } catch (...) {
    world.abort(text_of_failure());
    throw;
  }
}

}  // namespace millrace
