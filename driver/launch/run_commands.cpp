#include "driver/launch/run_commands.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <optional>

#include "driver/cli/command_support.h"
#include "driver/launch/batch_job.h"
#include "driver/launch/console.h"
#include "driver/launch/explanation.h"
#include "driver/launch/run_state.h"
#include "driver/queues/shell_words.h"
#include "runtime/base/clock.h"
#include "runtime/base/flag.h"
#include "runtime/base/json.h"
#include "runtime/base/run_files.h"
#include "runtime/base/text.h"
#include "runtime/base/units.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

constexpr milliseconds kPoll{50};
constexpr milliseconds kFollowPoll{200};
// `kill`: from the second signal, which ends the ranks, to SIGKILL.
constexpr milliseconds kKillPatience{5000};

std::string step_text(const RunState& state) {
  if (state.step < 0) return "-";
  return std::to_string(state.step) + (state.steps > 0 ? "/" + std::to_string(state.steps) : "");
}

std::string loss_text(const RunState& state) {
  return state.loss ? printed("%.4f", *state.loss) : "-";
}

Json json_of(const fs::path& folder, const RunState& state) {
  Json ranks = Json::array();
  for (const RankStatus& rank : state.ranks)
    ranks.push_back(
        Json::object({{"state", to_string(rank.state)}, {"step", rank.step}, {"action", rank.action}}));
  Json json = Json::object({{"folder", folder.string()},
                            {"state", to_string(state.phase)},
                            {"model", state.model},
                            {"step", state.step},
                            {"steps", state.steps},
                            {"loss", state.loss ? Json(*state.loss) : Json()},
                            {"checkpoint", state.checkpoint},
                            {"ranks", ranks}});
  if (state.holder) {
    json["pid"] = state.holder->pid;
    json["host"] = state.holder->host;
  }
  if (state.failure) {
    json["failed_rank"] = state.failure->rank;
    json["error"] = state.failure->error;
    json["exit_code"] = state.failure->exit_code;
  }
  return json;
}

Status check_folder(const std::string& folder) {
  std::error_code error;
  if (fs::is_directory(folder, error)) return Ok{};
  return Problem{folder, "is not a folder", "give the output folder of a run"};
}

Problem no_run(const std::string& folder) {
  return {folder, "holds no run", "`millrace runs " + quoted(folder) + "` looks for runs below a folder"};
}

struct LookFlags {
  OutputFormat format = OutputFormat::Text;
};

CommandSpec look_spec(LookFlags& f, const char* command, const char* summary,
                      std::vector<std::string> examples) {
  CommandSpec spec;
  spec.command = command;
  spec.summary = summary;
  spec.positionals = {"DIR"};
  spec.flags = {flag("", "format", "text|json", "Form of the answer.", into::choice(f.format, "format"))};
  spec.examples = std::move(examples);
  return spec;
}

CommandSpec spec_of_runs(LookFlags& f) {
  return look_spec(f, "runs", "List the runs in a folder and below: state, step, loss, newest checkpoint.",
                   {"millrace runs runs", "millrace runs . --format json"});
}

CommandSpec spec_of_status(LookFlags& f) {
  return look_spec(f, "status", "Show whether a run goes on, what each rank does, and how a run has ended.",
                   {"millrace status out", "millrace status out --format json"});
}

int show_runs(const LookFlags& flags, const std::string& folder) {
  if (const Status there = check_folder(folder); !there) return exit_with(ExitCode::Usage, there.problems());
  const std::vector<fs::path> found = runs_below(folder);
  if (flags.format == OutputFormat::Json) {
    Json list = Json::array();
    for (const fs::path& run : found) list.push_back(json_of(run, read_run_state(run)));
    std::printf("%s\n", list.dump(2).c_str());
    return 0;
  }
  if (found.empty()) return std::printf("no run in %s\n", folder.c_str()), 0;
  std::vector<std::vector<std::string>> lines{
      {"run", "state", "model", "ranks", "step", "loss", "checkpoint", "last sign"}};
  for (const fs::path& run : found) {
    const RunState state = read_run_state(run);
    lines.push_back({run.string(), to_string(state.phase), state.model.empty() ? "-" : state.model,
                     std::to_string(state.ranks.size()), step_text(state), loss_text(state),
                     state.checkpoint.empty() ? "-" : state.checkpoint, age_text(state.changed)});
  }
  print_columns(lines);
  return 0;
}

/// A batch job that its queue knows, and that is not over.
struct LiveBatchJob {
  BatchJob job;
  QueueRecord record;
};

std::optional<LiveBatchJob> live_batch_job(const std::string& folder) {
  const std::optional<BatchJob> job = submitted_batch_job(folder);
  const auto record = job ? job->ask() : std::optional<QueueRecord>();
  if (!record || !*record || (*record)->is_over) return std::nullopt;
  return LiveBatchJob{*job, **record};
}

int show_status(const LookFlags& flags, const std::string& folder) {
  if (const Status there = check_folder(folder); !there) return exit_with(ExitCode::Usage, there.problems());
  const RunState state = read_run_state(folder);
  const std::optional<LiveBatchJob> batch = live_batch_job(folder);
  if (state.phase == RunPhase::None && !batch) return exit_with(ExitCode::Usage, {no_run(folder)});
  if (flags.format == OutputFormat::Json) {
    Json json = json_of(folder, state);
    if (batch) json["batch_job"] = Json::object({{"job", batch->job.id}, {"state", batch->record.state}});
    return std::printf("%s\n", json.dump(2).c_str()), 0;
  }
  if (batch)
    std::printf("%s: %s is %s\n", folder.c_str(), batch->job.name().c_str(), batch->record.state.c_str());
  if (state.phase == RunPhase::None) return 0;
  std::string first = folder + ": " + to_string(state.phase);
  if (state.holder && state.holder->pid > 0)
    first += ", process " + std::to_string(state.holder->pid) + " on " + state.holder->host;
  first += "; step " + step_text(state) + ", loss " + loss_text(state) + ", last sign of life " +
           (state.changed == fs::file_time_type{} ? "unknown" : age_text(state.changed) + " ago");
  std::printf("%s\n", first.c_str());
  if (state.failure)
    std::printf("rank %d failed: %s\n", state.failure->rank, escaped(state.failure->error).c_str());
  std::vector<std::vector<std::string>> lines{{"rank", "state", "step", "action"}};
  for (std::size_t rank = 0; rank < state.ranks.size(); ++rank)
    lines.push_back({std::to_string(rank), to_string(state.ranks[rank].state), state.ranks[rank].step,
                     state.ranks[rank].action});
  print_columns(lines);
  if (!state.checkpoint.empty()) std::printf("newest checkpoint: %s\n", state.checkpoint.c_str());
  return 0;
}

// ---- explain

struct ExplainFlags {
  OutputFormat format = OutputFormat::Text;
  int last = 6;
};

CommandSpec spec_of_explain(ExplainFlags& f) {
  CommandSpec spec;
  spec.command = "explain";
  spec.summary =
      "Say why a run failed or does not get on: which rank waited for which, and the last actions of each.";
  spec.positionals = {"DIR"};
  spec.flags = {flag("", "last", "N", "Actions and messages of each rank to show.",
                     into::integer(f.last, 0, static_cast<int>(FlightRecorder::kCapacity))),
                flag("", "format", "text|json", "Form of the answer.", into::choice(f.format, "format"))};
  spec.examples = {"millrace explain out", "millrace explain out --last 50 --format json"};
  return spec;
}

int show_explanation(const ExplainFlags& flags, const std::string& folder) {
  if (const Status there = check_folder(folder); !there) return exit_with(ExitCode::Usage, there.problems());
  const Result<Explanation> explained = explain_run(folder);
  if (!explained) return exit_with(ExitCode::Usage, explained.problems());
  const auto last = static_cast<std::size_t>(flags.last);
  if (flags.format == OutputFormat::Json)
    std::printf("%s\n", to_json(*explained, last).dump(1).c_str());
  else
    std::fputs(to_text(*explained, last).c_str(), stdout);
  return 0;
}

// ---- logs

struct LogsFlags {
  std::optional<int> rank;
  bool follow = false, results = false;
};

CommandSpec spec_of_logs(LogsFlags& f) {
  CommandSpec spec;
  spec.command = "logs";
  spec.summary = "Print what the ranks of a launched run have written.";
  spec.positionals = {"DIR"};
  spec.flags = {
      flag("", "rank", "N", "Only this rank (default: all).", into::integer(f.rank, 0, 1 << 20)),
      {.name = "follow",
       .short_name = 'f',
       .help = "Go on as the logs grow, until the run ends.",
       .target = into::on(f.follow)},
      flag("", "results", "The ranks' stdout (default: their stderr, which is the story of the run).",
           into::on(f.results)),
  };
  spec.examples = {"millrace logs out -f", "millrace logs out --rank 3"};
  return spec;
}

/// A rank's log, line by line as it grows.
struct GrowingLog {
  int rank = 0;
  fs::path path;
  std::streamoff at = 0;
  std::string pending{};

  void print(bool named, bool all) {
    std::error_code error;
    if (!fs::is_regular_file(path, error)) return;  // a FIFO would be waited for
    std::ifstream file(path, std::ios::binary);
    if (!file || !file.seekg(at)) return;
    char buffer[1 << 14];
    while (file.read(buffer, sizeof buffer), file.gcount() > 0) {
      at += file.gcount();
      pending.append(buffer, static_cast<std::size_t>(file.gcount()));
    }
    std::size_t start = 0;
    for (std::size_t end; (end = pending.find('\n', start)) != std::string::npos; start = end + 1)
      line(pending.substr(start, end - start), named);
    pending.erase(0, start);
    if (all && !pending.empty()) line(std::exchange(pending, {}), named);
  }

 private:
  void line(const std::string& text, bool named) const {
    const bool names_itself = text.starts_with("[rank");
    static const bool is_terminal = ::isatty(STDOUT_FILENO) == 1;
    std::printf("%s%s\n", named && !names_itself ? ("[rank " + std::to_string(rank) + "] ").c_str() : "",
                is_terminal ? on_terminal(text).c_str() : text.c_str());
  }
};

int show_logs(const LogsFlags& flags, const std::string& folder) {
  if (const Status there = check_folder(folder); !there) return exit_with(ExitCode::Usage, there.problems());
  std::vector<GrowingLog> logs;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(fs::path(folder) / "logs", error)) {
    const RankFiles files{"rank_", flags.results ? ".out" : ".err"};
    const std::optional<int> rank = files.rank_of(entry.path().filename().string());
    if (rank && (!flags.rank || *flags.rank == *rank)) logs.push_back({.rank = *rank, .path = entry.path()});
  }
  if (logs.empty())
    return exit_with(
        ExitCode::Usage,
        {{folder, flags.rank ? "has no log of rank " + std::to_string(*flags.rank) : "has no logs",
          "logs are of runs that `millrace launch` has started"}});
  std::ranges::sort(logs, {}, &GrowingLog::rank);
  SteadyClock clock;
  for (bool goes_on = true; goes_on;) {
    goes_on = flags.follow && is_locked(folder);
    for (GrowingLog& log : logs) log.print(!flags.rank, !goes_on);
    std::fflush(stdout);
    if (goes_on) clock.sleep_until(clock.now() + kFollowPoll);
  }
  return 0;
}

// ---- stop and kill

struct StopFlags {
  double wait_s = 180;
};

CommandSpec spec_of_stop(StopFlags& f) {
  CommandSpec spec;
  spec.command = "stop";
  spec.summary = "Ask a run to finish its step, save and end, and wait for its end.";
  spec.positionals = {"DIR"};
  spec.flags = {
      flag("", "wait", "SECONDS", "How long to wait for the end.", into::number(f.wait_s, 0, 86400))};
  spec.examples = {"millrace stop out"};
  return spec;
}

CommandSpec spec_of_kill(StopFlags& f) {
  CommandSpec spec = spec_of_stop(f);
  spec.command = "kill";
  spec.summary = "End a run at once, without saving, and wait for its end.";
  spec.examples = {"millrace kill out"};
  return spec;
}

/// Tells whether the process has the lock's file open: the number may be another process's by now.
bool has_open(std::int64_t pid, const fs::path& lock) {
  std::error_code error;
  const fs::path wanted = fs::canonical(lock, error);
  if (error) return false;
  for (const auto& entry : fs::directory_iterator("/proc/" + std::to_string(pid) + "/fd", error)) {
    if (fs::read_symlink(entry.path(), error) == wanted) return true;
  }
  return false;
}

constexpr milliseconds kQueuePoll{1000};

/// Ends a run that a batch job runs on another host, or will run.
int end_batch_job(const StopFlags& flags, const std::string& folder, LiveBatchJob batch, bool at_once) {
  SteadyClock clock;
  const TimePoint until = clock.now() + milliseconds(static_cast<std::int64_t>(flags.wait_s * 1e3));
  if (const Status told = stop_batch_job(batch.job, batch.record, at_once); !told)
    return exit_with(ExitCode::RunFailed, told.problems());
  while (std::optional<LiveBatchJob> now = live_batch_job(folder)) {
    if (clock.now() >= until)
      return exit_with(ExitCode::Peer,
                       {{folder,
                         "batch job " + now->job.id + " is " + now->record.state + " after " +
                             printed("%.0f s", flags.wait_s),
                         "give it more time with --wait, or `millrace kill " + quoted(folder) + "`"}});
    clock.sleep_until(clock.now() + kQueuePoll);
  }
  const RunState state = read_run_state(folder);
  std::printf(
      "%s: batch job %s has ended; %s at step %s%s\n", folder.c_str(), batch.job.id.c_str(),
      to_string(state.phase).c_str(), step_text(state).c_str(),
      state.checkpoint.empty() ? "; no checkpoint" : ("; newest checkpoint " + state.checkpoint).c_str());
  return 0;
}

int end_run(const StopFlags& flags, const std::string& folder, bool at_once) {
  if (const Status there = check_folder(folder); !there) return exit_with(ExitCode::Usage, there.problems());
  const std::optional<LockHolder> holder = lock_holder(folder);
  if (!holder || holder->host != host_name()) {
    if (std::optional<LiveBatchJob> batch = live_batch_job(folder))
      return end_batch_job(flags, folder, *std::move(batch), at_once);
  }
  if (!holder) {
    if (read_run_state(folder).phase == RunPhase::None) return exit_with(ExitCode::Usage, {no_run(folder)});
    std::printf("%s: no run goes on here\n", folder.c_str());
    return 0;
  }
  const auto pid = static_cast<pid_t>(holder->pid);
  if (holder->host != host_name())
    return exit_with(
        ExitCode::Usage,
        {{folder, "is held by process " + std::to_string(pid) + " on " + holder->host,
          "there: `millrace " + std::string(at_once ? "kill " : "stop ") + quoted(folder) + "`"}});
  const fs::path lock = fs::path(folder) / run_files::kLock;
  if (pid <= 1 || !has_open(pid, lock))
    return exit_with(
        ExitCode::Usage,
        {{folder, "is held by a process that cannot be seen from here (" + std::to_string(pid) + ")",
          "stop the run where it was started, or as its user"}});
  SteadyClock clock;
  const TimePoint until = clock.now() + milliseconds(static_cast<std::int64_t>(flags.wait_s * 1e3));
  const TimePoint kill_at = clock.now() + kKillPatience;
  ::kill(pid, SIGINT);
  if (at_once) ::kill(pid, SIGTERM);  // the second signal ends the ranks
  while (is_locked(folder) && clock.now() < until) {
    clock.sleep_until(clock.now() + kPoll);
    if (at_once && clock.now() >= kill_at && has_open(pid, lock)) ::kill(pid, SIGKILL);
  }
  if (is_locked(folder))
    return exit_with(ExitCode::Peer,
                     {{folder, "goes on after " + printed("%.0f s", flags.wait_s),
                       "give it more time with --wait, or `millrace kill " + quoted(folder) + "`"}});
  const RunState state = read_run_state(folder);
  if (state.phase == RunPhase::None)  // its ranks had written nothing yet
    return std::printf("%s: stopped before its first step\n", folder.c_str()), 0;
  std::printf(
      "%s: %s at step %s%s\n", folder.c_str(), to_string(state.phase).c_str(), step_text(state).c_str(),
      state.checkpoint.empty() ? "; no checkpoint" : ("; newest checkpoint " + state.checkpoint).c_str());
  return 0;
}

template <class Flags>
int run_on_folder(CommandSpec (*make)(Flags&), const std::vector<std::string>& args,
                  int (*act)(const Flags&, const std::string&)) {
  Flags flags;
  return run_command(make(flags), args, [&](const Arguments& given, const Problems& problems) {
    if (!problems.empty()) return exit_with(ExitCode::Usage, problems);
    return act(flags, given.positionals().front());
  });
}

}  // namespace

CommandSpec runs_spec() {
  return without_targets<LookFlags>(spec_of_runs);
}
int runs_command(const std::vector<std::string>& args) {
  return run_on_folder<LookFlags>(spec_of_runs, args, show_runs);
}

CommandSpec status_spec() {
  return without_targets<LookFlags>(spec_of_status);
}
int status_command(const std::vector<std::string>& args) {
  return run_on_folder<LookFlags>(spec_of_status, args, show_status);
}

CommandSpec explain_spec() {
  return without_targets<ExplainFlags>(spec_of_explain);
}
int explain_command(const std::vector<std::string>& args) {
  return run_on_folder<ExplainFlags>(spec_of_explain, args, show_explanation);
}

CommandSpec logs_spec() {
  return without_targets<LogsFlags>(spec_of_logs);
}
int logs_command(const std::vector<std::string>& args) {
  return run_on_folder<LogsFlags>(spec_of_logs, args, show_logs);
}

CommandSpec stop_spec() {
  return without_targets<StopFlags>(spec_of_stop);
}
int stop_command(const std::vector<std::string>& args) {
  return run_on_folder<StopFlags>(spec_of_stop, args, [](const StopFlags& f, const std::string& folder) {
    return end_run(f, folder, false);
  });
}

CommandSpec kill_spec() {
  return without_targets<StopFlags>(spec_of_kill);
}
int kill_command(const std::vector<std::string>& args) {
  return run_on_folder<StopFlags>(spec_of_kill, args, [](const StopFlags& f, const std::string& folder) {
    return end_run(f, folder, true);
  });
}

}  // namespace millrace
