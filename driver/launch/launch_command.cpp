#include "driver/launch/launch_command.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <tuple>

#include "data/files/data_kinds.h"
#include "driver/cli/command_support.h"
#include "driver/flags/compute_specs.h"
#include "driver/hosts/program_answer.h"
#include "driver/hosts/program_paths.h"
#include "driver/launch/batch_job.h"
#include "driver/launch/console.h"
#include "driver/launch/detached_launch.h"
#include "driver/launch/explanation.h"
#include "driver/launch/held_checkpoints.h"
#include "driver/launch/host_launch.h"
#include "driver/launch/local_ranks.h"
#include "driver/launch/restarts.h"
#include "driver/launch/run_manifest.h"
#include "driver/launch/run_state.h"
#include "driver/launch/task_environment.h"
#include "driver/queues/shell_words.h"
#include "runtime/base/files.h"
#include "runtime/base/numbers.h"
#include "runtime/base/private_folder.h"
#include "runtime/base/run_files.h"
#include "runtime/base/run_folder.h"
#include "runtime/base/text.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

// After a failure: ranks that are left may have a model to write (runtime/saved/rescued.h).
constexpr const char* kJobCopy = "job.yaml";  // in the output folder
constexpr std::chrono::milliseconds kRescueGrace{15'000};
constexpr std::chrono::minutes kWorkerDeadline{10};  // it may have to read large data

std::string seconds_text(double seconds) {
  return printed("%.2f s", seconds);
}

std::string log_path(const JobSpec& job, int rank) {
  return (fs::path(job.output_dir) / "logs" / ("rank_" + std::to_string(rank))).string();
}

ComputeDevice device_of(const JobSpec& job) {
  const std::string* device = job.find("device");
  return value_named<ComputeDevice>(device ? *device : "").value_or(ComputeDevice::Cpu);
}

std::string padded(std::string text, std::size_t width) {
  text.resize(std::max(text.size(), width), ' ');
  return text + "  ";
}

/// Removes the status and failure files of an earlier run: its ranks' last actions would look like this
/// run's. Its results stay until the ranks have taken the folder, because they may yet refuse it.
void remove_stale_files(const JobSpec& job) {
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(newest_round(job.output_dir), ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(run_files::kStatus.prefix) || name.starts_with(run_files::kFlight.prefix))
      fs::remove(entry.path(), ignored);
  }
  remove_failures(newest_round(job.output_dir));
}

/// A fresh run does not write over an earlier one unless it was told to.
Status check_output(const JobSpec& job) {
  if (job.find("resume") || job.find("overwrite")) return Ok{};
  return check_unused(job.output_dir);
}

/// The folder is this job's until the lock is let go.
Result<RunLock> lock_output(const JobSpec& job, const std::string& run) {
  if (Status made = make_private_folder(job.output_dir); !made) return made.problems();
  return RunLock::acquire(job.output_dir, run);
}

Status prepare_output(const JobSpec& job) {
  if (Status unused = check_output(job); !unused) return unused;
  if (Status made = make_private_folder(fs::path(job.output_dir) / "logs"); !made) return made;
  remove_stale_files(job);
  // `env:` may hold secrets.
  return write_file_atomically(fs::path(job.output_dir) / kJobCopy, to_yaml(job), Readers::Private);
}

/// What is printed may be pasted anywhere.
void hide_secrets(std::vector<std::pair<std::string, std::string>>& environment) {
  for (auto& [name, value] : environment)
    if (is_secret(name)) value = "(hidden)";
}

std::string assignment(const std::pair<std::string, std::string>& variable) {
  return variable.first + "=" + quoted(variable.second);
}

/// Says once what all ranks have in common.
void print_dry_run(JobSpec job, std::vector<RankProcess> processes, OutputFormat format) {
  hide_secrets(job.environment);
  for (RankProcess& process : processes) hide_secrets(process.environment);
  if (format == OutputFormat::Json) {
    Json ranks = Json::array();
    for (const RankProcess& process : processes) {
      Json argv = Json::array(), environment = Json::object();
      for (const std::string& word : process.argv) argv.push_back(word);
      for (const auto& [name, value] : process.environment) environment[name] = value;
      ranks.push_back(Json::object(
          {{"rank", process.rank}, {"stage", process.stage}, {"argv", argv}, {"environment", environment}}));
      if (process.host >= 0) ranks.items().back()["host"] = job.hosts.entries[process.host].login();
    }
    std::printf(
        "%s\n",
        Json::object({{"name", job.name}, {"output_dir", job.output_dir}, {"ranks", ranks}}).dump(2).c_str());
    return;
  }
  std::printf("%s\n", to_yaml(job).c_str());
  const bool together = processes.size() > 1;
  const RankProcess& first = processes.front();
  const auto is_of_all = [&](const auto& variable) {
    return together && std::ranges::all_of(processes, [&](const RankProcess& other) {
             return std::ranges::count(other.environment, variable) > 0;
           });
  };
  const bool one_command =
      together && std::ranges::all_of(processes, [&](const RankProcess& p) { return p.argv == first.argv; });
  std::string all;
  for (const auto& variable : first.environment)
    if (is_of_all(variable)) all += " " + assignment(variable);
  if (one_command) all += " " + command_line(first.argv);
  if (!all.empty()) std::printf("every rank:%s\n", all.c_str());
  for (const RankProcess& process : processes) {
    std::string line = "rank " + std::to_string(process.rank);
    if (process.host >= 0) line += " on " + job.hosts.entries[process.host].login();
    line += ":";
    for (const auto& variable : process.environment)
      if (!is_of_all(variable)) line += " " + assignment(variable);
    if (!one_command) line += " " + command_line(process.argv);
    std::printf("%s\n", line.c_str());
  }
}

/// Returns the same command with --set resume=DIR and without --overwrite, which would delete what it
/// resumes.
std::string resume_command_of(const std::vector<std::string>& args, const JobSpec& job) {
  std::vector<std::string> command{"millrace", "launch"};
  for (std::size_t i = 0; i < args.size(); ++i) {
    const auto sets = [&](const std::string& text) {
      return text.rfind("resume=", 0) == 0 || text.rfind("overwrite=", 0) == 0;
    };
    if (args[i] == "--set" && i + 1 < args.size() && sets(args[i + 1])) {
      ++i;
    } else if (args[i] != "--overwrite" && !(args[i].rfind("--set=", 0) == 0 && sets(args[i].substr(6)))) {
      command.push_back(args[i]);
    }
  }
  command.insert(command.end(), {"--set", "resume=" + job.output_dir});
  if (job.find("overwrite")) command.insert(command.end(), {"--set", "overwrite=false"});
  return command_line(command);
}

/// Returns the command with the run's own copy of the job in the place of a job file that is gone.
std::string with_job_file(std::string command, const JobSpec& job) {
  std::error_code error;
  const std::string copy = (fs::path(job.output_dir) / kJobCopy).string(), named = " " + quoted(job.source);
  const std::size_t at = command.find(named);
  if (at != std::string::npos && !fs::exists(job.source, error) && fs::exists(copy, error))
    command.replace(at, named.size(), " " + quoted(copy));
  return command;
}

/// Whether the job can go on from what its folder holds. Until the ranks of a job that overwrites have taken
/// the folder, that is another run's.
bool is_resumable(const JobSpec& job) {
  return can_go_on(job.output_dir) &&
         (!job.find("overwrite") || !read_run_state(job.output_dir).ranks.empty());
}

/// How to go on, if there is something to go on from.
std::string way_on(const JobSpec& job, const std::string& resume_command) {
  if (is_resumable(job)) return "resume: " + with_job_file(resume_command, job) + "\n";
  if (device_of(job) == ComputeDevice::Emulated) return "";  // it has nothing to save
  const std::string* every = job.find("checkpoint-every");
  if (every && *every != "0") return "no checkpoint was saved\n";
  return "Hint: no checkpoint was saved; `checkpoint_every: N` in the job saves one every N steps\n";
}

/// Returns the steps and actions of all ranks as text. It changes with every action of any rank.
std::string progress_of(const JobSpec& job) {
  std::string text;
  const fs::path round = newest_round(job.output_dir);
  for (int rank = 0; rank < job.ranks; ++rank) {
    const RankStatus status = status_of(round, rank);
    text += status.step + " " + status.action + "\n";
  }
  return text;
}

/// The rank that this action waits for, or -1: "1RECV_F3<0@2" waits for rank 2.
int peer_of(const std::string& action) {
  if (action.find("RECV") == std::string::npos && action.find("SEND") == std::string::npos) return -1;
  const std::size_t at = action.find('@');
  return at == std::string::npos ? -1 : std::atoi(action.c_str() + at + 1);
}

/// Follows "waits for" from the rank that gave up to a rank that waits for nobody, and returns its position
/// in the outcome. It returns -1 if the failure is no wait, or if ranks wait for each other.
int awaited_rank(const LaunchOutcome& outcome, const JobSpec& job) {
  const auto& exits = outcome.exits;
  const RankExit& first = exits.at(outcome.first_failure);
  if (first.signal != 0 || first.status != static_cast<int>(ExitCode::Peer) || !first.lost.empty()) return -1;
  const auto suspended = std::ranges::find_if(exits, &RankExit::was_suspended);
  if (suspended != exits.end()) return static_cast<int>(suspended - exits.begin());
  const fs::path round = newest_round(job.output_dir);
  std::vector<char> seen(exits.size(), 0);
  int at = outcome.first_failure;
  for (;;) {
    const RankExit& exit = exits[at];
    if (seen[at]++) return -1;  // they wait for each other
    const std::string action = status_of(round, exit.rank).action;
    const int peer = peer_of(action);
    const auto next = std::ranges::find_if(exits, [&](const RankExit& other) {
      if (peer >= 0) return other.rank == peer;
      // Replicas wait for each other's gradients.
      return action.find("REDUCE") != std::string::npos && other.stage == exit.stage && other.stage >= 0 &&
             status_of(round, other.rank).action.find("REDUCE") == std::string::npos;
    });
    if (next == exits.end()) break;
    at = static_cast<int>(next - exits.begin());
  }
  // A rank that failed by itself is no riddle; one that had to be ended is.
  const RankExit& last = exits[at];
  return at != outcome.first_failure && last.signal != 0 ? at : -1;
}

/// A rank that was killed, or failed before it was the run's, could not say so itself.
void note_failure(const LaunchOutcome& outcome, const JobSpec& job) {
  if (outcome.first_failure < 0) return;
  const fs::path folder = newest_round(job.output_dir);
  const int awaited = awaited_rank(outcome, job);
  const RankExit& rank = outcome.exits[awaited < 0 ? outcome.first_failure : awaited];
  std::error_code ignored;
  if (fs::exists(folder / run_files::kFailure.of(rank.rank), ignored)) return;
  const RankStatus place = status_of(folder, rank.rank);
  std::string error = place.step == "-" ? "" : "step " + place.step + ", action " + place.action + ": ";
  if (awaited < 0)
    error += end_text(rank);
  else
    error += rank.was_suspended ? "suspended (SIGSTOP or a debugger)"
                                : "it did not get on, and others waited for it";
  for (const std::string& line : rank.last_lines) error += "; " + line;
  write_failure(folder, {.rank = rank.rank,
                         .step = number_of<std::int64_t>(place.step).value_or(-1),
                         .exit_code = rank.exit_code(),
                         .error = error});
}

/// Leaves beside the ranks' files what `millrace explain` says now. Returns the line that names the command.
std::string write_explanation(const LaunchOutcome& outcome, const JobSpec& job) {
  constexpr std::size_t kRecords = 20;
  if (outcome.first_failure < 0) return "";
  const Result<Explanation> explained = explain_run(job.output_dir);
  if (!explained) return "";  // the ranks came to no step
  const Status written = write_file_atomically(newest_round(job.output_dir) / run_files::kFailureSummary,
                                               to_json(*explained, kRecords).dump(1) + "\n");
  return (written ? "" : "warning: " + to_string(written.problems()) + "\n") +
         ("who waited for whom: millrace explain " + quoted(job.output_dir) + "\n");
}

std::string final_message(const LaunchOutcome& outcome, const JobSpec& job,
                          const std::string& resume_command) {
  if (outcome.first_failure >= 0) return failure_summary(outcome, job, resume_command);
  const std::string after = " after " + seconds_text(outcome.seconds) + "\n";
  if (outcome.interrupt != 0 && outcome.exit_code() != 0)
    return "millrace launch: stopped by " + signal_text(outcome.interrupt) + after +
           way_on(job, resume_command);
  if (outcome.exit_code() != 0)
    return "millrace launch: a rank was asked to stop, all ended" + after + way_on(job, resume_command);
  return "millrace launch: " + std::to_string(outcome.exits.size()) + " ranks done in " +
         seconds_text(outcome.seconds) + ", results in " + job.output_dir +
         "\nreport: millrace report --run " + quoted(job.output_dir) + "\n";
}

struct LaunchFlags {
  std::optional<std::string> worker, output_dir, log;
  std::optional<std::string> max_restarts, spare_hosts, smaller_plans;
  std::optional<std::string> on, hosts, workdir, millrace, client, container, container_runtime, mounts;
  std::vector<std::string> sets;
  std::optional<PrintedForm> print;
  bool overwrite = false, dry_run = false, requeue = false, detach = false;
  OutputFormat format = OutputFormat::Text;
};

Target into_form(std::optional<PrintedForm>& form) {
  const std::vector<std::string> names = split(form_names("|"), '|');
  Target target = into::parsed(form, [names](const std::string& text) -> Result<PrintedForm> {
    const Result<std::size_t> place = choice_from(text, "form", names);
    if (!place) return place.problems();
    return printed_forms()[*place];
  });
  target.names = names;
  return target;
}

CommandSpec spec_of(LaunchFlags& f) {
  CommandSpec spec;
  spec.command = "launch";
  spec.summary =
      "Start the ranks of a job, here or on other hosts, collect their logs, and end all when one fails.";
  spec.positionals = {"JOB.yaml"};
  spec.flags = {
      flag("", "worker", "PROGRAM",
           "What each rank runs: your own program (docs/your-model.md) instead of millrace-worker.",
           into::text(f.worker)),
      {.name = "set",
       .value = "KEY=VALUE",
       .help = "Set a key of the job file; env.NAME=VALUE sets an environment variable of the ranks.",
       .repeatable = true,
       .target = into::texts(f.sets)},
      flag("", "output-dir", "DIR",
           "Logs, results and checkpoints go here (default: the job's output_dir, or runs/NAME).",
           into::text(f.output_dir), 'o'),
      flag("", "overwrite",
           "Delete an earlier run in the output folder; without it a folder that holds one is refused.",
           into::on(f.overwrite)),
      flag("", "dry-run", "Check everything, print the job and what each rank would run, start nothing.",
           into::on(f.dry_run)),
      flag("", "log", "FORMATS",
           "Write the finished run for other tools into DIR/export, as `millrace trace convert --to` does: "
           "mllog, chrome, perfetto, tensorboard, prometheus, csv, mlflow or all, comma-separated.",
           into::text(f.log)),
      flag("", "format", "text|json", "Form of the final result, or of --dry-run.",
           into::choice(f.format, "format")),
      flag("", "detach",
           "Return when the ranks have been started, or the batch job is submitted. `millrace "
           "status`, "
           "logs and stop look after the run.",
           into::on(f.detach)),
      flag("", "max-restarts", "N",
           "Start a job that failed again from its newest checkpoint, at most N times (default: 0). Ranks "
           "that "
           "are left on this host keep their processes. It ends with exit code 93 when three restarts in a "
           "row "
           "came no further.",
           into::text(f.max_restarts)),
      flag("Hosts", "spare-hosts", "LIST",
           "With --max-restarts: hosts that take the places of lost ones, in this order.",
           into::text(f.spare_hosts)),
      flag("Hosts", "smaller-plans", "auto|LIST",
           "With --max-restarts: plans with which the job goes on where no spare is left; auto: those that "
           "`millrace plan --smaller` wrote beside the job's plan.",
           into::text(f.smaller_plans)),
      flag("", "print", form_names("|"),
           "Print the job as a script, commands or a manifest for another launcher, and start nothing. "
           "Manifests "
           "need --container.",
           into_form(f.print)),
      flag("Hosts", "hosts", "LIST",
           "Run the ranks on these hosts: [USER@]HOST[[:PORT]:RANKS],... or @FILE. The first ranks are on "
           "the first "
           "host "
           "(default: the job's hosts, else all ranks here).",
           into::text(f.hosts)),
      flag("Hosts", "on", engine_names("|"),
           "The engine that starts the ranks. slurm and pbs take the nodes of their allocation and submit a "
           "batch job where there is none; mpi takes those of PBS or LSF; local ignores the job's hosts "
           "(default: ssh with hosts).",
           into::text(f.on)),
      flag("Hosts", "workdir", "DIR",
           "The folder on every host in which ranks run, and to which relative paths belong (default: the "
           "path of "
           "the current folder).",
           into::text(f.workdir)),
      flag("Hosts", "remote-millrace", "PROGRAM",
           "millrace on the hosts (default: the path of this program; in containers and pods the one in "
           "PATH).",
           into::text(f.millrace)),
      flag("Hosts", "client", "PROGRAM",
           "The engine's program (ssh, srun, mpirun or kubectl), or one that is called like it.",
           into::text(f.client)),
      flag("Hosts", "container", "IMAGE", "Run the ranks of each host in a container of this image.",
           into::text(f.container)),
      flag("Hosts", "container-runtime", "docker|podman|apptainer|enroot",
           "What starts the containers (default: docker).", into::text(f.container_runtime)),
      flag("Hosts", "mounts", "LIST",
           "Folders of the host that the containers see, beside the working folder: "
           "/data,/models:/inside:ro,...",
           into::text(f.mounts)),
      flag("Hosts", "requeue",
           "With slurm and pbs: a job that its queue stops, for another job or (Slurm) at its time limit, "
           "saves "
           "and goes on later.",
           into::on(f.requeue)),
  };
  spec.examples = {"millrace launch job.yaml --set steps=200 --output-dir out",
                   "millrace launch job.yaml --hosts node1:2,node2:2",
                   "millrace launch job.yaml --on slurm --set slurm.partition=gpu --set slurm.time=2:00:00",
                   "millrace launch job.yaml --print slurm", "millrace launch job.yaml --dry-run"};
  return spec;
}

}  // namespace

CommandSpec launch_spec() {
  return without_targets<LaunchFlags>(spec_of);
}

std::vector<RankProcess> rank_processes(const JobSpec& job, const std::string& worker,
                                        const std::string& store) {
  std::vector<RankProcess> processes;
  std::vector<std::string> argv = train_arguments(job);
  argv.insert(argv.begin(), worker);
  const auto has = [&](const char* name) {
    return std::getenv(name) != nullptr || std::any_of(job.environment.begin(), job.environment.end(),
                                                       [&](const auto& e) { return e.first == name; });
  };
  const std::string* threads = job.find("threads");
  for (int rank = 0; rank < job.ranks; ++rank) {
    RankProcess process{.rank = rank, .stage = job.stage_of_rank.at(rank), .argv = argv};
    process.environment = job.environment;
    const auto added = rank_environment(rank, job.ranks, store);
    process.environment.insert(process.environment.end(), added.begin(), added.end());
    // Ranks share the cores: without this each would start a thread for every core.
    if (!has("OMP_NUM_THREADS"))
      process.environment.emplace_back("OMP_NUM_THREADS", threads ? *threads : "1");
    process.log = log_path(job, rank);
    processes.push_back(std::move(process));
  }
  return processes;
}

std::string failure_summary(const LaunchOutcome& outcome, const JobSpec& job,
                            const std::string& resume_command) {
  const RankExit& first = outcome.exits.at(outcome.first_failure);
  const int awaited = awaited_rank(outcome, job);
  const RankExit& shown = awaited >= 0 ? outcome.exits[awaited] : first;
  const fs::path round = newest_round(job.output_dir);
  const RankStatus place = status_of(round, shown.rank);
  const auto name = [](const RankExit& exit) {
    return "rank " + std::to_string(exit.rank) +
           (exit.stage < 0 ? "" : " (stage " + std::to_string(exit.stage) + ")");
  };
  // The rank's message stands above, and there is no place in a run to tell of.
  const bool refused_checkpoint =
      first.signal == 0 && first.status == static_cast<int>(ExitCode::Checkpoint) &&
      std::ranges::all_of(outcome.exits,
                          [&](const RankExit& exit) { return status_of(round, exit.rank).step == "-"; });
  if ((is_refusal(first) && place.step == "-") || refused_checkpoint)
    return "\nmillrace launch: refused by " + name(first) + ", " + end_text(first) +
           "; nothing was trained. Logs: " + (fs::path(job.output_dir) / "logs").string() + "\n";
  const std::string where = " at step " + place.step + ", action " + place.action;
  std::string text = "\nmillrace launch: " + name(shown);
  if (awaited < 0) {
    text += " failed first: " + end_text(first) + where;
  } else {
    text += std::string(shown.was_suspended ? " was suspended (SIGSTOP or a debugger)" : " did not get on") +
            where + "; others waited for it, " + name(first) + " gave up first: " + end_text(first);
  }
  text += ", " + seconds_text(first.after_s) + " after the start\n";
  for (const std::string& line : first.last_lines) text += "    | " + on_terminal(line) + "\n";
  text += "\n    " + padded("rank", 4) + padded("stage", 5) + padded("pid", 8) + padded("step", 7) +
          padded("action", 14) + padded("after", 10) + padded("end", 30) + "log\n";
  std::vector<const RankExit*> by_order;
  for (const RankExit& exit : outcome.exits) by_order.push_back(&exit);
  std::sort(by_order.begin(), by_order.end(), [&](const RankExit* a, const RankExit* b) {
    return std::tuple(a != &shown, a != &first, a->order) < std::tuple(b != &shown, b != &first, b->order);
  });
  for (const RankExit* exit : by_order) {
    const RankStatus status = status_of(round, exit->rank);
    text += (exit == &shown ? "  > " : "    ") + padded(std::to_string(exit->rank), 4) +
            padded(exit->stage < 0 ? "-" : std::to_string(exit->stage), 5) +
            padded(exit->pid < 0 ? "-" : std::to_string(exit->pid), 8) + padded(status.step, 7) +
            padded(status.action, 14) + padded(seconds_text(exit->after_s), 10) +
            padded(end_text(*exit), 30) + log_path(job, exit->rank) + ".err\n";
  }
  text += "\n" + way_on(job, resume_command);
  return text;
}

Result<JobEnd> run_job(const JobSpec& given, const std::string& worker, const std::string& resume_command,
                       const std::string& command, Survivors* kept, const SignalGuard* signals) {
  JobSpec job = given;
  const std::string run = new_run_id();
  Result<RunLock> lock = lock_output(job, run);
  if (!lock) return lock.problems();
  SteadyClock clock;
  std::optional<SignalGuard> own_signals;
  if (!signals) signals = &own_signals.emplace();
  Survivors own_reached;
  Survivors& reached = kept ? *kept : own_reached;
  if (!job.hosts.entries.empty()) {
    const Result<int> gathered = gather_held(job, reached, *signals, clock);
    if (!gathered) return gathered.problems();
    if (*gathered != 0) {
      LaunchOutcome stopped{.interrupt = *gathered};
      std::string message = final_message(stopped, job, resume_command);
      return JobEnd{std::move(stopped), std::move(message), *std::move(lock)};
    }
    if (const Status settled = settle_resume(job); !settled) return settled.problems();
  }
  if (const Status prepared = prepare_output(job); !prepared) return prepared.problems();
  if (const Status written = write_file_atomically(fs::path(job.output_dir) / kRunManifest,
                                                   run_manifest(job, run, command).dump(2) + "\n");
      !written)
    return written.problems();
  const StoreFolder store;
  std::vector<RankProcess> processes = rank_processes(job, worker, store.path());
  for (RankProcess& process : processes) {
    process.environment.emplace_back("MILLRACE_RUN", run);
    if (job.restarts.most > 0) process.environment.emplace_back("MILLRACE_RESCUE", "1");
    if (::isatty(STDERR_FILENO)) process.environment.emplace_back(kLauncherHasTerminal, "1");
  }
  LaunchOptions options;
  if (!job.hosts.entries.empty()) {
    processes = host_processes(job, std::move(processes), new_run_id() + new_run_id());
    Result<LaunchOptions> made = host_options(job, processes, reached, kept != nullptr);
    if (!made) return made.problems();
    options = *std::move(made);
  }
  options.signals = signals;
  options.progress = [&] { return progress_of(job); };
  options.heartbeats = std::make_shared<Heartbeats>(job.output_dir, heartbeat_of(job));
  options.append_logs = job.find("resume") != nullptr;
  if (job.restarts.most > 0) options.grace = kRescueGrace;
  options.kept = kept;
  options.started = started_teller();
  LaunchOutcome outcome = run_ranks(processes, std::move(options), clock);
  note_failure(outcome, job);
  std::string message = final_message(outcome, job, resume_command) + write_explanation(outcome, job);
  return JobEnd{std::move(outcome), std::move(message), *std::move(lock)};
}

std::string worker_of(const JobSpec& job) {
  return job.worker.empty() ? worker_path(device_of(job)) : job.worker;
}

Problems check_job(const JobSpec& job, const std::string& worker) {
  Problems problems;
  std::error_code ignored;
  const bool here = job.hosts.on.empty();
  if (here && !job.hosts.container.image.empty())
    problems.push_back({"container", "is for ranks on hosts",
                        "hosts: [localhost:" + std::to_string(job.ranks) + "] is this one"});
  if (here && ::access(worker.c_str(), X_OK) != 0) {
    problems.push_back(
        {worker, "is missing: it is the program that trains",
         job.worker.empty() ? worker_hint(device_of(job)) : "--worker names a program that can be run"});
  }
  // A worker of the user's may know data sets by other names.
  if (const std::string* data = job.find("data"); data && job.worker.empty() && here) {
    for (const std::string& path : paths_of_data(*data)) {
      if (!fs::exists(path, ignored))
        problems.push_back({path, "is not there", "data: give a folder, or synthetic"});
    }
  }
  if (const std::string* from = job.find("resume");
      from && *from != kResumeAuto && !fs::exists(*from, ignored)) {
    problems.push_back(
        {*from, "is not there",
         "resume: give the output folder of an earlier run; auto: go on if there is something"});
  }
  if (const std::string* from = job.find("init-from"); from && !fs::exists(*from, ignored)) {
    problems.push_back({*from, "is not there", "init_from: give a safetensors file or a checkpoint"});
  }
  if (const Status unused = check_output(job); !unused) append(problems, unused.problems());
  if (const std::string left = earlier_run(job.output_dir);
      job.hosts.requeue && job.find("overwrite") && !left.empty() && waits_in_queue(job))
    problems.push_back(
        {job.output_dir,
         "holds an earlier run (" + left + "), and a job that comes back to the queue would delete its own",
         "remove that run, or give another --output-dir; --requeue goes on without --overwrite"});
  fs::path folder = fs::absolute(job.output_dir, ignored);
  while (!folder.empty() && !fs::exists(folder, ignored) && folder.has_relative_path())
    folder = folder.parent_path();
  if (!fs::is_directory(folder, ignored)) {
    problems.push_back({job.output_dir, folder.string() + " is not a folder", "give another --output-dir"});
  } else if (::access(folder.c_str(), W_OK | X_OK) != 0) {
    problems.push_back({job.output_dir, folder.string() + " is not writable", "give another --output-dir"});
  }
  return problems;
}

namespace {

/// Has the worker check the job, with its model, plan and data. Nothing where the ranks are on other hosts or
/// in containers: there the worker may be another one.
Problems answer_of_worker(const JobSpec& job, const std::string& worker) {
  if (!job.hosts.on.empty()) return {};
  std::vector<std::string> argv{"env"};
  for (const auto& [name, value] : job.environment) argv.push_back(name + "=" + value);
  argv.push_back(worker);
  const std::vector<std::string> arguments = train_arguments(job);
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  argv.emplace_back("--dry-run");
  const Result<std::string> answer = answer_of(argv, kWorkerDeadline);
  if (answer) return {};
  return {{job.source, "the worker refuses it: " + answer.problems().front().what, {}}};
}

/// A scheduler that starts this command several times would have the whole job trained so often.
Status check_started_once() {
  const Result<std::optional<TaskPlace>> task = task_of_environment();
  if (!task) return task.problems();
  if (!*task) {
    const char* rank = std::getenv("PMIX_RANK");
    if (!is_task_of_pmix() || std::string(rank) == "0") return Ok{};
    return Problem{
        "millrace launch",
        std::string("a launcher that speaks PMIx starts this command several times (PMIX_RANK=") + rank + ")",
        "start it once, or let each task be a rank: `millrace train --plan plan.json ...` in its place"};
  }
  const TaskPlace& place = **task;
  return Problem{
      "millrace launch",
      place.scheduler + " starts this command " + std::to_string(place.size) +
          " times, and each would train the whole job (" + place.variables + ")",
      "start it once, or let each task be a rank: `millrace train --plan plan.json ...` in its place"};
}

/// The engine that takes the job as a batch job, which gets an allocation; null: this process starts its
/// ranks.
const Engine* becomes_batch_job(const JobSpec& job) {
  const Engine* engine = waits_in_queue(job);
  return engine && engine->queue->script ? engine : nullptr;
}

/// The hosts of a job that lists none are those of the allocation.
Status find_hosts(JobSpec& job) {
  return job.hosts.on.empty() || !job.hosts.entries.empty() ? Ok{} : place_on_hosts(job);
}

/// This command, but for what concerns who starts it.
std::vector<std::string> words_of_launch(const std::vector<std::string>& args) {
  std::vector<std::string> words{own_program(), "launch"};
  for (std::size_t i = 0; i < args.size(); ++i) {
    if (args[i] == "--print")
      ++i;
    else if (!args[i].starts_with("--print=") && args[i] != "--detach")
      words.push_back(args[i]);
  }
  return words;
}

/// The command that the batch job runs. One that comes back to the queue must not delete what it goes on
/// from.
std::vector<std::string> batch_command(const JobSpec& job, const std::string& engine,
                                       const std::vector<std::string>& args) {
  std::vector<std::string> words = words_of_launch(args);
  if (job.hosts.requeue) std::erase(words, "--overwrite");
  // The job may name no engine when its script is printed.
  if (std::ranges::none_of(
          words, [](const std::string& word) { return word == "--on" || word.starts_with("--on="); }))
    words.push_back("--on=" + engine);
  return words;
}

int run_batch(const JobSpec& job, const Engine& engine, const LaunchFlags& flags,
              const std::vector<std::string>& args) {
  const std::vector<std::string> command = batch_command(job, engine.name, args);
  if (flags.dry_run) {
    const Result<std::string> script = engine.queue->script(job, command);
    if (!script) return exit_with(ExitCode::Usage, script.problems());
    std::printf("%s\n%s", to_yaml(job).c_str(), script->c_str());
    return 0;
  }
  const Result<BatchJob> batch = submit_batch_job(job, engine, command);
  if (!batch) return exit_with(ExitCode::Usage, batch.problems());
  print_without_waiting(STDERR_FILENO, "millrace launch: " + batch->name() + ", output in " + job.output_dir +
                                           "/" + engine.name + "-" + batch->id + ".out and .err\n");
  return flags.detach ? 0 : follow_batch_job(*batch);
}

/// A person stops a job by SIGINT, and a queue by SIGTERM: what the queue has stopped goes on later.
void requeue_if_stopped_by_queue(const JobSpec& job, const LaunchOutcome& outcome) {
  const Engine* engine =
      job.hosts.requeue && outcome.interrupt != SIGINT ? find_engine(job.hosts.on) : nullptr;
  if (!engine || !engine->queue->requeue || waits_in_queue(job)) return;
  const Status requeued = engine->queue->requeue();
  print_without_waiting(STDERR_FILENO, requeued ? "millrace launch: the batch job is back in " +
                                                      std::string(engine->title) + "'s queue\n"
                                                : to_string(requeued.problems()) + "\n");
}

/// The exit code of a run. A stop before the first step loses nothing, so the job can go on from what was
/// there, also if a rank hung then. A job that would be started again can, too, whatever became of its ranks.
int exit_code_of(const LaunchOutcome& outcome, const JobSpec& job) {
  const int code = outcome.exit_code();
  if (outcome.interrupt == 0 || outcome.hurried ||
      (code != 128 + outcome.interrupt && code != static_cast<int>(ExitCode::Peer)))
    return code;
  const fs::path round = newest_round(job.output_dir);
  bool has_begun = false;
  for (int rank = 0; rank < job.ranks && !outcome.exits.empty(); ++rank)
    has_begun = has_begun || status_of(round, rank).step != "-";
  const bool loses_nothing = !has_begun || job.restarts.most > 0;
  return loses_nothing && is_resumable(job) ? static_cast<int>(ExitCode::Requeue) : code;
}

/// Waits before a restart. Returns the signal that asks for an end, or 0.
int wait_before_restart(std::chrono::milliseconds delay, const SignalGuard& signals) {
  pollfd polled{.fd = signals.descriptor(), .events = POLLIN, .revents = 0};
  for (const TimePoint end = steady_clock().now() + delay;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - steady_clock().now());
    ::poll(&polled, 1, static_cast<int>(std::max<std::int64_t>(left.count(), 0)));
    if (const std::vector<int> came = signals.read(); !came.empty()) return came.front();
    if (left.count() <= 0) return 0;
  }
}

/// Ends a job that a signal met while it waited for its restart. Returns the exit code.
int end_before_restart(const JobSpec& job, int signal, const std::string& resume_command) {
  print_without_waiting(STDERR_FILENO, "millrace launch: stopped by signal " + std::to_string(signal) +
                                           " before the restart\n" + way_on(job, resume_command));
  if (!is_resumable(job)) return 128 + signal;
  requeue_if_stopped_by_queue(job, {.interrupt = signal});
  return static_cast<int>(ExitCode::Requeue);
}

/// State that the runs of a job share.
struct JobRuns {
  Restarts restarts;
  const SignalGuard& signals;
  Survivors kept{};
  RunLock lock{};  ///< holds the folder between runs: `millrace stop` finds a job that waits for its restart
  int code = 0;    ///< exit code of the last run
  int interrupt = 0;  ///< signal that came during the last run
};

/// One run of the job, to its end. Returns how to go on, if there is a way.
std::optional<Restarts::Again> run_once(const JobSpec& job, const std::string& worker,
                                        const std::vector<std::string>& args, JobRuns& runs) {
  runs.lock = RunLock();
  try {
    std::vector<std::string> typed{"millrace", "launch"};
    typed.insert(typed.end(), args.begin(), args.end());
    // A GPU that was in a broken transfer is not trusted again.
    const bool may_keep = job.restarts.most > 0 && device_of(job) == ComputeDevice::Cpu;
    Result<JobEnd> end = run_job(job, worker, resume_command_of(args, job), command_line(typed),
                                 may_keep ? &runs.kept : nullptr, &runs.signals);
    if (!end) {
      runs.code = exit_with(ExitCode::Usage, end.problems());
      return std::nullopt;
    }
    runs.lock = std::move(end->lock);
    print_without_waiting(STDERR_FILENO, end->message);
    runs.code = exit_code_of(end->outcome, job);
    runs.interrupt = end->outcome.interrupt;
    if (const std::optional<std::int64_t> step = keep_what_is_left(end->outcome, job))
      print_without_waiting(STDERR_FILENO,
                            "millrace launch: the ranks that are left have the whole model after step " +
                                std::to_string(*step) + ": it is saved\n");
    if (runs.code == static_cast<int>(ExitCode::Requeue)) requeue_if_stopped_by_queue(job, end->outcome);
    return runs.restarts.after(end->outcome, job);
  } catch (const Error& error) {
    Problems lines;  // hosts that cannot run their ranks have a line each
    for (const std::string& line : split(error.what(), '\n')) lines.push_back({"millrace launch", line, {}});
    if (!lines.empty()) lines.back().hint = error.hint();
    runs.code = exit_with(error.code(), lines);
    if (Result<RunLock> again = RunLock::acquire(job.output_dir, new_run_id())) runs.lock = *std::move(again);
    const auto* unready = dynamic_cast<const UnreadyHosts*>(&error);
    return runs.restarts.after_failed_start(job, unready ? unready->hosts() : std::vector<std::size_t>());
  }
}

int launch(const LaunchFlags& flags, const std::vector<std::string>& args, const std::string& file,
           Problems problems, const RunExporter& exporter, const std::string& worker_here) {
  std::vector<JobOverride> overrides;
  for (const std::string& text : flags.sets) {
    if (const Result<JobOverride> one = parse_override(text)) {
      overrides.push_back(*one);
    } else {
      append(problems, one.problems());
    }
  }
  for (const auto& [key, value] : {std::pair("worker", &flags.worker),
                                   {"on", &flags.on},
                                   {"hosts", &flags.hosts},
                                   {"workdir", &flags.workdir},
                                   {"remote-millrace", &flags.millrace},
                                   {"client", &flags.client},
                                   {"container", &flags.container},
                                   {"container-runtime", &flags.container_runtime},
                                   {"mounts", &flags.mounts},
                                   {"max-restarts", &flags.max_restarts},
                                   {"spare-hosts", &flags.spare_hosts},
                                   {"smaller-plans", &flags.smaller_plans}}) {
    if (*value) overrides.push_back({key, **value});
  }
  if (flags.output_dir) overrides.push_back({"output-dir", *flags.output_dir});
  if (flags.overwrite) overrides.push_back({"overwrite", "true"});
  if (flags.requeue) overrides.push_back({"requeue", "true"});
  if (flags.format == OutputFormat::Json) overrides.push_back({"format", "json"});
  const bool exports = flags.log && exporter.check;
  if (exports) {
    for (Problem problem : exporter.check(*flags.log)) {
      problem.where = "--log";
      problems.push_back(std::move(problem));
    }
  }
  const Result<Json> text = read_yaml(file);  // a restart is of this text, whatever becomes of the file
  Result<JobSpec> job = text ? load_job(*text, file, overrides, worker_here) : text.problems();
  if (!job) append(problems, job.problems());
  const Engine* batch = job ? becomes_batch_job(*job) : nullptr;
  if (!problems.empty()) return exit_with(ExitCode::Usage, problems);
  for (const std::string& note : job->notes)
    std::fprintf(stderr, "note: %s: %s\n", job->source.c_str(), note.c_str());
  if (const Status once = check_started_once(); !once && !flags.dry_run)
    return exit_with(ExitCode::Usage, once.problems());
  if (flags.print) {
    // A batch script is the form of the engine of its name.
    const Result<std::string> text = flags.print->print(*job, batch_command(*job, flags.print->name, args));
    if (!text) return exit_with(ExitCode::Usage, text.problems());
    std::fputs(text->c_str(), stdout);
    return 0;
  }
  if (const Status placed = batch ? Ok{} : find_hosts(*job); !placed)
    return exit_with(ExitCode::Usage, placed.problems());
  const std::string worker = worker_of(*job);
  if (const Problems found = check_job(*job, worker); !found.empty())
    return exit_with(ExitCode::Usage, found);
  if (batch) return run_batch(*job, *batch, flags, args);
  if (flags.detach && !flags.dry_run) return launch_detached(*job, words_of_launch(args));
  if (flags.dry_run) {
    if (const Problems found = answer_of_worker(*job, worker); !found.empty())
      return exit_with(ExitCode::Usage, found);
    std::vector<RankProcess> processes = rank_processes(*job, worker, "FOLDER");
    if (!job->hosts.entries.empty()) processes = host_processes(*job, std::move(processes), "TOKEN");
    print_dry_run(*job, std::move(processes), flags.format);
    return 0;
  }
  int code = 0;
  {
    const SignalGuard signals;  // of all runs, and of the time between them
    JobRuns runs{.restarts = Restarts(*job), .signals = signals};
    while (const std::optional<Restarts::Again> again = run_once(*job, worker, args, runs)) {
      if (runs.interrupt == 0) {
        print_without_waiting(STDERR_FILENO, again->text + "\n");
        runs.interrupt = wait_before_restart(again->delay, signals);
      }
      if (runs.interrupt != 0) {
        runs.code = end_before_restart(*job, runs.interrupt, resume_command_of(args, *job));
        break;
      }
      overrides.insert(overrides.end(), again->overrides.begin(), again->overrides.end());
      job = load_job(*text, file, overrides, worker_here);
      const Status placed = job ? find_hosts(*job) : job.problems();
      if (!placed) return exit_with(ExitCode::Usage, placed.problems());
    }
    if (!runs.restarts.why_not().empty())
      print_without_waiting(STDERR_FILENO, "millrace launch: " + runs.restarts.why_not() + "\n");
    code = runs.restarts.exit_code(runs.code);
    signals.read();  // one that comes now changes nothing
  }
  // A failed run's files are worth exporting too; its exit code stays.
  const int exported =
      exports && code != static_cast<int>(ExitCode::Usage) ? exporter.run(job->output_dir, *flags.log) : 0;
  return code != 0 ? code : exported;
}

}  // namespace

int launch_command(const std::vector<std::string>& args, const RunExporter& exporter,
                   const std::string& worker_here) {
  LaunchFlags flags;
  return run_command(spec_of(flags), args, [&](const Arguments& given, Problems problems) {
    return launch(flags, args, given.positionals().front(), std::move(problems), exporter, worker_here);
  });
}

}  // namespace millrace
