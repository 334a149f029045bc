// `millrace train`: parse, load plan and data, build the world, construct the Trainer, run.
// One rank of a job (launch, torchrun: RANK and WORLD_SIZE are set), or all ranks of the plan as threads.
#include <signal.h>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <optional>
#include <thread>

#include "driver/cli/command_support.h"
#include "driver/hosts/machine.h"
#include "driver/launch/launch_command.h"
#include "driver/worker/eager_step.h"
#include "driver/worker/emulation.h"
#include "driver/worker/memory_fit.h"
#include "driver/worker/next_order.h"
#include "driver/worker/train_beside.h"
#include "driver/worker/train_dry_run.h"
#include "driver/worker/train_ranks.h"
#include "driver/worker/train_summary.h"
#include "runtime/base/here_and_now.h"
#include "runtime/base/log.h"
#include "runtime/base/private_folder.h"
#include "runtime/base/progress_line.h"
#include "runtime/base/run_files.h"
#include "runtime/base/unfinished_file.h"

namespace millrace {
namespace {

StopFlag stop_flag{false};
std::vector<std::pair<int, struct sigaction>> replaced_handlers;  // by stop_on_signals()

/// SIGINT, SIGTERM, SIGHUP or SIGUSR1: finish the step, save, exit with 75. A second SIGINT or SIGTERM ends
/// the process at once; a terminal that closes may send SIGHUP twice.
void stop_on_signals() {
  struct sigaction action {};
  action.sa_handler = [](int) { stop_flag.store(true); };
  const auto handle = [&](int signal) {
    struct sigaction before {};
    if (::sigaction(signal, &action, &before) == 0) replaced_handlers.emplace_back(signal, before);
  };
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
  for (int signal : {SIGINT, SIGTERM}) handle(signal);
  struct sigaction inherited {};
  action.sa_flags = SA_RESTART;
  handle(SIGUSR1);
  const bool ignored =
      ::sigaction(SIGHUP, nullptr, &inherited) == 0 && inherited.sa_handler == SIG_IGN;  // nohup
  if (!ignored) handle(SIGHUP);
}

/// Signals do again what they did before stop_on_signals().
void restore_signals() {
  for (const auto& [signal, action] : replaced_handlers) ::sigaction(signal, &action, nullptr);
  replaced_handlers.clear();
}

/// Asks the run to stop before its time is over. The thread ends with the object.
class TimeLimit {
 public:
  /// `limit` counts from `begun`.
  TimeLimit(Seconds limit, TimePoint begun)
      : thread_([this, left = limit - std::min(limit / 10, kMostForSaving) -
                              Seconds(steady_clock().now() - begun)](const std::stop_token& ended) {
          std::unique_lock lock(mutex_);
          wake_.wait_for(lock, ended, left, [] { return false; });
          if (ended.stop_requested()) return;
          log_warning("the time limit is near");
          stop_flag.store(true);
        }) {}

 private:
  static constexpr Seconds kMostForSaving{60};
  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::jthread thread_;
};

/// Beyond a limit on the size of files (ulimit -f) a write then fails, instead of ending the process.
void ignore_size_limit_signal() {
  ::signal(SIGXFSZ, SIG_IGN);
}

/// A terminal sees every step go by, also through `millrace launch`, which says that it has one.
std::chrono::milliseconds print_interval() {
  return std::getenv(kLauncherHasTerminal) ? std::chrono::seconds(1) : progress_interval();
}

/// Decides what `--resume auto` means in this output folder. It goes on from a checkpoint, or begins over
/// what earlier attempts left that came to none. Each rank looks; a rank that finds otherwise than rank 0
/// ends the job (agree_on_settings in runtime/train/trainer.cpp).
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
    if (Status made = make_private_folder(o.output_dir); !made) return made;
  }
  return o.save_weights.empty() ? Status(Ok{}) : make_place_for_file(o.save_weights);
}

/// Judge: `evaluate`, a run of no steps that starts from weights.
enum class Purpose { Train, Judge };

/// One run of the command. `age`: since the start of this process, or since the launcher's order.
int train_once(const std::vector<std::string>& args, const Accelerator& accelerator, const Additions& own,
               Purpose purpose, Seconds age = process_age()) {
  const TimePoint begun = steady_clock().now() - duration_of(age_of_command(age).count());
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
      if (parsed->wants_help()) return print_help(command, *parsed);
      for (const Problem& problem : parsed->problems())
        if (job == 0 || lists->has(problem.where.substr(2))) flag_problems.push_back(problem);
    }
    die_with_launcher();
    ignore_size_limit_signal();
    Result<JobEnvironment> job = read_environment();
    if (!job) return report_problems(job.problems(), ExitCode::Usage);
    const Result<std::vector<Failpoint>> failpoints = planted_failpoints();
    if (!failpoints) return report_problems(failpoints.problems(), ExitCode::Usage);
    for (TrainFlags& told : flags) {
      told.options.host_folder = job->host_folder;
      if (job->has_launcher) told.store_folder = job->store_folder;
      told.options.failpoints = *failpoints;
    }
    if (job->distributed) set_log_prefix("rank" + std::to_string(job->rank));
    for (TrainFlags& told : flags) told.options.print_interval = print_interval();
    for (TrainFlags& told : flags) told.options.command = command_of_process();
    for (TrainFlags& told : flags)
      if (std::optional<Problem> wrong = settle_batch(told)) flag_problems.push_back(*std::move(wrong));
    std::optional<WorkingLine> working;
    std::optional<TimeLimit> time_limit;
    if (job->rank == 0) working.emplace("prepares data and model");
    if (const Status settled = settle_resume(flags, job->rank); !settled)
      return report_problems(settled.problems(), ExitCode::Usage);
    Result<Rounds> made = rounds_from(flags, *lists, own, flag_problems);
    if (!made) return report_problems(made.problems(), ExitCode::Usage);
    Rounds& rounds = *made;
    TrainSpec& first = rounds.all.front().spec;
    // Before data is read: the device is what a wrong machine lacks.
    if (!first.emulated)
      if (const auto device = device_from(first.device, job->local_rank, accelerator); !device)
        return report_problems(device.problems(), ExitCode::Usage);
    if (job->distributed && first.emulated && first.emulated->is_virtual())
      return report_problems(
          {{"--clock virtual", "is the time of one process, and this job's ranks are processes",
            "start `millrace train` by itself: its ranks are threads"}},
          ExitCode::Usage);
    if (job->distributed && first.pipeline.num_ranks() != job->size) {
      return report_problems(
          {{"--plan",
            "the plan has " + std::to_string(first.pipeline.num_ranks()) + " ranks, this job has " +
                std::to_string(job->size),
            "start exactly the plan's ranks, or plan again with --ranks " + std::to_string(job->size) +
                (job->scheduler.empty() ? "" : " (" + job->scheduler + ")")}},
          ExitCode::Usage);
    }
    if (first.device == ComputeDevice::Cpu && !first.dry_run) {
      std::vector<int> ranks{job->rank};
      if (!job->distributed)
        for (int rank = 1; rank < first.pipeline.num_ranks(); ++rank) ranks.push_back(rank);
      for (const Round& round : rounds.all)
        if (const Status fit = weights_fit(round.spec.networks, round.spec.pipeline, ranks, free_memory());
            !fit)
          return report_problems(fit.problems(), ExitCode::Usage);
    }
    if (job->rank == 0 && purpose == Purpose::Train)
      if (const Status same = check_eager_step(first.model.name, first.model.options); !same)
        return report_problems(same.problems(), ExitCode::Usage);
    if (const Status outputs = check_outputs(rounds.flags, job->rank); !outputs)
      return report_problems(outputs.problems(), ExitCode::Usage);
    OpenDatasets open;
    for (Round& round : rounds.all) {
      if (const Status opened = open_data(round, open); !opened)
        return report_problems(opened.problems(), ExitCode::InputData);
    }
    if (purpose == Purpose::Judge && !rounds.all.front().sets.test)
      return report_problems({nothing_to_judge_on(first)}, ExitCode::InputData);
    // Rounds read data of one kind: the first says how long it is.
    const std::vector<std::string> other_lengths = compare_lengths(first, rounds.all.front().sets);
    for (const std::string& note : other_lengths) first.plan_notes.push_back(first.plan + ": " + note);
    if (!other_lengths.empty())
      for (Round& round : rounds.all) predicts_nothing(round.spec.pipeline);
    if (job->rank == 0) log_notes(first, rounds.all.front().sets);
    if (const Status resumed = go_on(rounds); !resumed)
      return report_problems(resumed.problems(), ExitCode::Checkpoint);
    if (first.dry_run) return working.reset(), print_dry_run(rounds);
    const bool saves = rounds.flags.options.saves();
    const bool is_virtual = first.emulated && first.emulated->is_virtual();
    if (saves) {
      for (Round& round : rounds.all) round.spec.options.stop = &stop_flag;
      if (rounds.flags.time_limit) time_limit.emplace(*rounds.flags.time_limit, begun);
    }
    // Else there is nothing to save: the signals just end it.
    if (saves && !is_virtual) {
      stop_on_signals();
    } else if (job->rank == 0 && purpose == Purpose::Train) {
      tell_when_interrupted(
          is_virtual
              ? "millrace train: stopped before its end; an emulated run leaves the logs of its steps"
              : "millrace train: stopped before its end; no weights were saved: give --output-dir DIR");
    }
    working.reset();
    use_threads(first);
    return static_cast<int>(job->distributed ? train_process(rounds, *job, accelerator)
                                             : train_in_threads(rounds, accelerator));
  });
}

}  // namespace

int train_command(const std::vector<std::string>& args, const Accelerator& accelerator,
                  const Additions& own) {
  if (std::ranges::find(args, kBeside) != args.end()) return train_beside(args, accelerator, own);
  Seconds age = process_age();
  for (std::vector<std::string> words = args;;) {
    const int code = train_once(words, accelerator, own, Purpose::Train, age);
    age = {};
    if (code != static_cast<int>(ExitCode::Peer)) return code;
    restore_signals();
    if (stop_flag.load()) return code;
    // A peer is lost, and the launcher may have another one: with this process it need not start a new one.
    std::optional<std::vector<std::string>> again = next_order();
    if (!again) return code;
    words = *std::move(again);
  }
}

int evaluate_command(const std::vector<std::string>& args, const Accelerator& accelerator,
                     const Additions& own) {
  return guarded([&] {
    EvaluateFlags flags;
    const CommandSpec spec = with_additions(evaluate_spec(flags), own, flags.train.model.options);
    const Result<Arguments> parsed = parse_arguments(spec, args);
    if (!parsed) return report_problems(parsed.problems(), ExitCode::Usage);
    if (parsed->wants_help()) return print_help(spec, *parsed);
    if (!parsed->problems().empty()) return report_problems(parsed->problems(), ExitCode::Usage);
    tell_of_interrupt(spec);
    std::vector<std::string> words{"--steps=0", "--init-from=" + flags.weights};
    for (std::size_t i = 0; i < args.size(); ++i) {
      if (args[i] == "--weights")
        ++i;
      else if (!args[i].starts_with("--weights="))
        words.push_back(args[i]);
    }
    return train_once(words, accelerator, own, Purpose::Judge);
  });
}

}  // namespace millrace
