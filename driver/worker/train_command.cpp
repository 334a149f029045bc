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

/// One run of the command: steps that run in order, until one of them ends it with an exit code.
class TrainOnce {
 public:
  using Ended = std::optional<int>;

  /// `age`: since the start of this process, or since the launcher's order.
  TrainOnce(const Accelerator& accelerator, const Additions& own, Purpose purpose, Seconds age)
      : accelerator_(accelerator),
        own_(own),
        purpose_(purpose),
        begun_(steady_clock().now() - duration_of(age_of_command(age).count())) {}

  int run(const std::vector<std::string>& args) {
    if (const Ended ended = read_flags(args)) return *ended;
    for (const auto step : {&TrainOnce::read_job, &TrainOnce::make_rounds, &TrainOnce::check_ranks,
                            &TrainOnce::check_model, &TrainOnce::open_sets, &TrainOnce::find_resumed})
      if (const Ended ended = (this->*step)()) return *ended;
    if (first().dry_run) return working_.reset(), print_dry_run(*rounds_);
    take_signals();
    working_.reset();
    use_threads(first());
    return static_cast<int>(job_->distributed ? train_process(*rounds_, *job_, accelerator_)
                                              : train_in_threads(*rounds_, accelerator_));
  }

 private:
  Ended read_flags(const std::vector<std::string>& args) {
    GivenOptions ignored;
    Result<JobLists> lists = take_job_lists(with_additions(train_spec(), own_, ignored), args);
    if (!lists) return report_problems(lists.problems(), ExitCode::Usage);
    lists_ = *std::move(lists);
    flags_.resize(lists_.args.size());  // what the targets of their flags point into
    for (std::size_t job = 0; job < flags_.size(); ++job) {
      const CommandSpec command = with_additions(train_spec(flags_[job]), own_, flags_[job].model.options);
      const Result<Arguments> parsed = parse_arguments(command, lists_.args[job]);
      if (!parsed) return report_problems(parsed.problems(), ExitCode::Usage);
      if (parsed->wants_help()) return print_help(command, *parsed);
      for (const Problem& problem : parsed->problems())
        if (job == 0 || lists_.has(problem.where.substr(2))) flag_problems_.push_back(problem);
    }
    return std::nullopt;
  }

  Ended read_job() {
    die_with_launcher();
    ignore_size_limit_signal();
    Result<JobEnvironment> job = read_environment();
    if (!job) return report_problems(job.problems(), ExitCode::Usage);
    job_ = *std::move(job);
    const Result<std::vector<Failpoint>> failpoints = planted_failpoints();
    if (!failpoints) return report_problems(failpoints.problems(), ExitCode::Usage);
    if (job_->distributed) set_log_prefix("rank" + std::to_string(job_->rank));
    const std::vector<Flag> all = train_spec().flags;
    for (TrainFlags& flags : flags_) {
      flags.options.host_folder = job_->host_folder;
      if (job_->has_launcher) flags.store_folder = job_->store_folder;
      flags.options.failpoints = *failpoints;
      flags.options.print_interval = print_interval();
      flags.options.command = command_of_process();
      for (std::string& key : flags.options.resume_changes) key = name_of_alias(all, key);
      if (std::optional<Problem> wrong = settle_batch(flags)) flag_problems_.push_back(*std::move(wrong));
    }
    if (job_->rank == 0) working_.emplace("prepares data and model");
    return std::nullopt;
  }

  Ended make_rounds() {
    if (const Status settled = settle_resume(flags_, job_->rank); !settled)
      return report_problems(settled.problems(), ExitCode::Usage);
    Result<Rounds> made = rounds_from(flags_, lists_, own_, flag_problems_);
    if (!made) return report_problems(made.problems(), ExitCode::Usage);
    rounds_ = *std::move(made);
    return std::nullopt;
  }

  /// Before data is read: the device is what a wrong machine lacks.
  Ended check_ranks() {
    if (!first().emulated)
      if (const auto device = device_from(first().device, job_->local_rank, accelerator_); !device)
        return report_problems(device.problems(), ExitCode::Usage);
    if (!job_->distributed) return std::nullopt;
    if (first().emulated && first().emulated->is_virtual())
      return report_problems(
          {{"--clock virtual", "is the time of one process, and this job's ranks are processes",
            "start `millrace train` by itself: its ranks are threads"}},
          ExitCode::Usage);
    if (first().pipeline.num_ranks() == job_->size) return std::nullopt;
    return report_problems(
        {{"--plan",
          "the plan has " + std::to_string(first().pipeline.num_ranks()) + " ranks, this job has " +
              std::to_string(job_->size),
          "start exactly the plan's ranks, or plan again with --ranks " + std::to_string(job_->size) +
              (job_->scheduler.empty() ? "" : " (" + job_->scheduler + ")")}},
        ExitCode::Usage);
  }

  Ended check_model() {
    if (first().device == ComputeDevice::Cpu && !first().dry_run) {
      std::vector<int> ranks{job_->rank};
      if (!job_->distributed)
        for (int rank = 1; rank < first().pipeline.num_ranks(); ++rank) ranks.push_back(rank);
      for (const Round& round : rounds_->all)
        if (const Status fit = weights_fit(round.spec.networks, round.spec.pipeline, ranks, free_memory());
            !fit)
          return report_problems(fit.problems(), ExitCode::Usage);
    }
    if (job_->rank == 0 && purpose_ == Purpose::Train)
      if (const Status same = check_eager_step(first().model.name, first().model.options); !same)
        return report_problems(same.problems(), ExitCode::Usage);
    if (const Status outputs = check_outputs(rounds_->flags, job_->rank); !outputs)
      return report_problems(outputs.problems(), ExitCode::Usage);
    return std::nullopt;
  }

  Ended open_sets() {
    OpenDatasets open;
    for (Round& round : rounds_->all) {
      if (const Status opened = open_data(round, open); !opened)
        return report_problems(opened.problems(), ExitCode::InputData);
    }
    const Datasets& sets = rounds_->all.front().sets;
    if (purpose_ == Purpose::Judge && !sets.test)
      return report_problems({nothing_to_judge_on(first())}, ExitCode::InputData);
    // Rounds read data of one kind: the first says how long it is.
    const std::vector<std::string> other_lengths = compare_lengths(first(), sets);
    for (const std::string& note : other_lengths) first().plan_notes.push_back(first().plan + ": " + note);
    if (!other_lengths.empty())
      for (Round& round : rounds_->all) predicts_nothing(round.spec.pipeline);
    if (job_->rank == 0) log_notes(first(), sets);
    return std::nullopt;
  }

  Ended find_resumed() {
    const Status resumed = go_on(*rounds_);
    return resumed ? std::nullopt : Ended(report_problems(resumed.problems(), ExitCode::Checkpoint));
  }

  void take_signals() {
    const bool saves = rounds_->flags.options.saves();
    const bool is_virtual = first().emulated && first().emulated->is_virtual();
    if (saves) {
      for (Round& round : rounds_->all) round.spec.options.stop = &stop_flag;
      if (rounds_->flags.time_limit) time_limit_.emplace(*rounds_->flags.time_limit, begun_);
    }
    // Else there is nothing to save: the signals just end it.
    if (saves && !is_virtual) {
      stop_on_signals();
    } else if (job_->rank == 0 && purpose_ == Purpose::Train) {
      tell_when_interrupted(
          is_virtual
              ? "millrace train: stopped before its end; an emulated run leaves the logs of its steps"
              : "millrace train: stopped before its end; no weights were saved: give --output-dir DIR");
    }
  }

  TrainSpec& first() { return rounds_->all.front().spec; }

  const Accelerator& accelerator_;
  const Additions& own_;
  const Purpose purpose_;
  const TimePoint begun_;
  JobLists lists_;
  std::vector<TrainFlags> flags_;  ///< by job
  Problems flag_problems_;         ///< values that do not fit
  std::optional<JobEnvironment> job_;
  std::optional<Rounds> rounds_;
  std::optional<WorkingLine> working_;
  std::optional<TimeLimit> time_limit_;
};

int train_once(const std::vector<std::string>& args, const Accelerator& accelerator, const Additions& own,
               Purpose purpose, Seconds age = process_age()) {
  return guarded([&] { return TrainOnce(accelerator, own, purpose, age).run(args); });
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
