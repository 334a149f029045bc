#include "runtime/train/run_outputs.h"
#include "runtime/base/private_folder.h"

#include <chrono>
#include <cmath>
#include <optional>
#include <system_error>
#include <utility>

#include <ATen/ops/full.h>

#include "runtime/base/log.h"
#include "runtime/base/numbers.h"
#include "runtime/base/run_files.h"
#include "runtime/base/text.h"
#include "runtime/comm/clock_offset.h"
#include "runtime/saved/checkpoint_folder.h"
#include "runtime/trace/flight_recorder.h"

namespace millrace {
namespace {

void require(const Status& status) {
  if (!status) throw ConfigError(to_string(status.problems()));
}

}  // namespace

std::filesystem::path RunOutputs::checkpoints() const {
  const std::filesystem::path folder = t_.options.output_dir;
  const auto& own = t_.options.host_folder;
  return folder / (own ? run_files::kHostCheckpoints.of(own->host) : run_files::kCheckpoints);
}

std::filesystem::path RunOutputs::best() const {
  if (t_.options.host_folder) return checkpoints() / run_files::kBest;
  return std::filesystem::path(t_.options.output_dir) / run_files::kBest;
}

/// Rank 0 collects the files that the others write: their `folder` must be the same one. Collective.
void RunOutputs::require_shared(const std::filesystem::path& folder) const {
  // A network file system may show a new file late.
  constexpr std::chrono::seconds kPatience{3};
  constexpr std::chrono::milliseconds kPause{20};
  Communicator& ranks = t_.world.communicator;
  if (ranks.size() == 1) return;
  const bool first_rank = ranks.rank() == RankId(0);
  const std::string probe =
      run_files::kProbe + broadcast_text(ranks, first_rank ? new_run_id() : std::string());
  const std::string host = broadcast_text(ranks, first_rank ? host_name() : std::string());
  auto problem = t_.together("trying " + folder.string(), [&] {
    if (first_rank) require(write_file_atomically(folder / probe, host + "\n"));
  });
  const auto seen = [&] {
    std::error_code ignored;
    return std::filesystem::exists(folder / probe, ignored);
  };
  if (!problem) {
    problem = t_.together("looking for rank 0's file in " + folder.string(), [&] {
      const TimePoint end = t_.world.clock.now() + kPatience;
      while (!seen() && t_.world.clock.now() < end) t_.world.clock.sleep_until(t_.world.clock.now() + kPause);
      if (seen()) return;
      throw ConfigError(folder.string() + " on host " + host_name() +
                            " is not the folder that rank 0 has on " + host +
                            ": a file of rank 0 does not appear in it",
                        "give a folder on a file system that all hosts share, the same for every rank");
    });
  }
  std::error_code ignored;
  if (first_rank) std::filesystem::remove(folder / probe, ignored);
  if (problem) throw ConfigError(to_string(*problem));
}

void RunOutputs::claim() {
  const bool first_rank = t_.world.communicator.rank() == RankId(0);
  const std::string fresh = first_rank ? new_run_id() : "";
  const auto problem = t_.together("preparing the outputs", [&] {
    if (!t_.options.save_weights.empty()) require(make_place_for_file(t_.options.save_weights));
    if (t_.options.output_dir.empty()) return;
    require(make_private_folder(t_.options.output_dir));
    if (!first_rank) return;
    Result<RunLock> held = RunLock::acquire(t_.options.output_dir, fresh, t_.options.launched_run);
    if (!held) throw ConfigError(to_string(held.problems()));
    lock_ = std::move(*held);
    if (t_.options.resume.empty() && !t_.options.overwrite) require(check_unused(t_.options.output_dir));
  });
  if (problem) throw ConfigError(problem->what);
  if (!t_.options.output_dir.empty()) run_ = broadcast_text(t_.world.communicator, fresh);
  if (!t_.options.host_folder && !t_.options.output_dir.empty()) require_shared(t_.options.output_dir);
  if (!t_.options.save_weights.empty())
    require_shared(std::filesystem::absolute(t_.options.save_weights).parent_path());
}

void RunOutputs::resume_from(const CheckpointInfo& checkpoint, const std::filesystem::path& folder) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const fs::path checkpoints = fs::path(t_.options.output_dir) / run_files::kCheckpoints;
  const bool own = !t_.options.output_dir.empty() && fs::weakly_canonical(folder, ignored).parent_path() ==
                                                         fs::weakly_canonical(checkpoints, ignored);
  continues_ = broadcast_text(t_.world.communicator, own ? "own" : "") == "own";
  if (continues_) run_ = checkpoint.run;
  parent_ = continues_ ? checkpoint.parent : checkpoint.run + " step " + std::to_string(checkpoint.step);
}

/// Takes the folder for this run. Rank 0 calls it before the others open their files.
void RunOutputs::take_folder() const {
  const std::filesystem::path folder = t_.options.output_dir;
  if (continues_ && t_.options.overwrite) {
    throw ConfigError("--overwrite would delete " + t_.options.resume + ", which --resume goes on from",
                      "leave one of them out, or give another --output-dir");
  }
  if (continues_) {
    // of the best checkpoints: a crash leaves one there, and its steps are repeated
    constexpr int kBranches = 3;
    if (!t_.options.host_folder)  // else the launcher has the folder of all checkpoints
      for (const auto& of_run : {checkpoints(), best()})
        if (std::filesystem::exists(of_run)) require(go_on_from(of_run, run_, t_.done));
    prune_branches(folder / run_files::kBest, run_, kBranches);
  } else if (t_.options.overwrite) {
    require(remove_earlier_run(folder));
  } else {
    require(check_unused(folder));
  }
  remove_unfinished(folder);
  remove_failures(folder);
  std::error_code ignored;
  std::filesystem::remove(folder / run_files::kSummary, ignored);  // this run has none yet
  require(t_.plan.save((folder / run_files::kPlan).string()));
  if (t_.options.schedule) {
    require(write_file_atomically(folder / run_files::kSchedule, t_.options.schedule->text));
  } else {
    std::filesystem::remove(folder / run_files::kSchedule, ignored);
  }
}

/// Opens the sinks for the numbers of steps, before any file of an earlier run is changed. Collective. Throws
/// ConfigError.
void RunOutputs::open_scalars(std::vector<std::unique_ptr<ScalarSink>>& sinks) {
  const auto problem = t_.together("opening the files of scalars", [&] {
    for (const OpenScalarSink& open : t_.options.scalars)
      if (t_.owns_loss()) sinks.push_back(open(t_.start));
  });
  if (problem) throw ConfigError(problem->what);
}

void RunOutputs::open() {
  const std::int64_t clock_ns = t_.world.clock.now().time_since_epoch().count();
  const std::int64_t unix_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::system_clock::now().time_since_epoch())
                                   .count();
  std::vector<std::unique_ptr<ScalarSink>> sinks;
  if (!t_.options.scalars.empty()) open_scalars(sinks);
  std::int64_t offset_ns = 0;
  if (!t_.options.output_dir.empty()) offset_ns = open_logs(clock_ns, unix_ns);
  const double to_unix_s = static_cast<double>(unix_ns - clock_ns + offset_ns) * 1e-9;
  for (auto& sink : sinks) t_.log.add_sink(std::move(sink), to_unix_s);
}

/// Converts all ranks' times to those of rank 0: ranks on its host share its clock, and the others measure
/// their offset from it. Collective.
void RunOutputs::tie_clocks(StepLogHeader& header) const {
  const World& world = t_.world;
  if (header.ranks == 1) return;
  const ClockOffset measured = measure_clock_offset(
      world.communicator, world.clock, world.clock_name.empty() ? name_of_steady_clock() : world.clock_name);
  const std::int64_t own = header.unix_ns - header.clock_ns;
  const std::string of_rank_0 = broadcast_text(world.communicator, std::to_string(own));
  header.clock_offset_ns = number_of<std::int64_t>(of_rank_0).value_or(own) + measured.ns - own;
  header.clock_round_trip_ns = measured.round_trip_ns;
  constexpr std::int64_t kNoticed = 3'000'000'000;
  if (const std::int64_t ahead = -header.clock_offset_ns; ahead < -kNoticed || ahead > kNoticed)
    log_warning("the clock of rank " + std::to_string(header.rank) +
                printed(" is %.0f s %s rank 0's: its logs and traces have the times of that one",
                        std::abs(static_cast<double>(ahead)) * 1e-9, ahead > 0 ? "ahead of" : "behind"));
}

std::int64_t RunOutputs::open_logs(std::int64_t clock_ns, std::int64_t unix_ns) {
  const int rank = t_.world.communicator.rank().value;
  auto problem = t_.together("taking the output folder", [&] {
    if (rank == 0) take_folder();
  });
  if (problem) throw ConfigError(problem->what);
  StepLogHeader header{.run = run_,
                       .command = t_.options.command,
                       .rank = rank,
                       .stage = t_.first().stage.value,
                       .ranks = t_.world.communicator.size(),
                       .writes_jobs = t_.is_one_of_several() && t_.owns_loss(),
                       .first_job = t_.first_job(),
                       .own_steps = t_.job_steps.apart(),
                       .clock_ns = clock_ns,
                       .unix_ns = unix_ns};
  tie_clocks(header);
  problem = t_.together("opening the logs", [&] {
    const std::filesystem::path folder = t_.options.output_dir;
    std::error_code ignored;
    // The launcher has joined the usable shards; old shards would count as this run's newest.
    if (t_.options.host_folder && t_.options.host_folder->first_rank)
      for (const auto& own : {best(), checkpoints()})
        for (const auto& entry : std::filesystem::directory_iterator(own, ignored))
          if (entry.path() != best()) std::filesystem::remove_all(entry.path(), ignored);
    if (t_.world.recorder)
      t_.world.recorder->open(folder / run_files::kFlight.of(rank), rank, t_.first().stage.value,
                              unix_ns + header.clock_offset_ns);
    t_.status = StatusBoard(folder / run_files::kStatus.of(rank), rank, t_.first().stage.value);
    t_.log = StepLog(folder, header, continues_ ? t_.done : 0);
    if (t_.world.counters)
      counters_ = std::make_unique<CounterSampler>(folder / run_files::kCounters.of(rank),
                                                   CounterHeader{.run = run_,
                                                                 .rank = rank,
                                                                 .ranks = t_.world.counted_ranks,
                                                                 .clock_ns = clock_ns,
                                                                 .unix_ns = unix_ns,
                                                                 .clock_offset_ns = header.clock_offset_ns},
                                                   *t_.world.counters, continues_);
  });
  if (problem) throw ConfigError(problem->what);
  t_.report.run = run_;
  return header.clock_offset_ns;
}

void RunOutputs::finish() {
  counters_.reset();
  at::Tensor lost = at::full({2}, static_cast<double>(t_.log.lost_lines()), at::kDouble);
  double* const counts = lost.mutable_data_ptr<double>();  // lines, logs
  counts[1] = t_.log.is_in_place() ? 0 : 1;
  if (t_.world.communicator.size() > 1 && !t_.options.output_dir.empty())
    t_.world.communicator.all_reduce(lost, "lost log lines")->wait();
  t_.report.lost_log_lines = static_cast<std::int64_t>(counts[0]);
  if (counts[1] > 0)
    t_.report.lost.push_back("the logs and results until now: " + t_.options.output_dir +
                             " was deleted or replaced while the run wrote into it");
  if (t_.report.lost_log_lines > 0 && t_.owns_loss())
    log_warning(std::to_string(t_.report.lost_log_lines) +
                " line(s) of the steps' logs could not be written");
}

void RunOutputs::log_end() const {
  if (!t_.options.launched_run.empty() || t_.options.output_dir.empty()) return;
  if (const auto first = failure_of(t_.options.output_dir);
      first && first->rank != t_.world.communicator.rank().value)
    log_error("rank " + std::to_string(first->rank) + " failed before: " + first->error);
  log_error("this rank ends after step " + std::to_string(t_.done) +
            (t_.report.saved_step < 0
                 ? "; no checkpoint was saved (--checkpoint-every N saves them)"
                 : "; the newest checkpoint is of step " + std::to_string(t_.report.saved_step) +
                       ": --resume " + t_.options.output_dir));
}

void RunOutputs::note_failure(ExitCode code, const std::string& error, const std::string& hint) const {
  if (t_.options.output_dir.empty() || code == ExitCode::Requeue) return;
  write_failure(t_.options.output_dir, {.rank = t_.world.communicator.rank().value,
                                        .step = t_.done,
                                        .exit_code = static_cast<int>(code),
                                        .error = error,
                                        .hint = hint});
}

}  // namespace millrace
