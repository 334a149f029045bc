#include "experiments/io/dlio/dlio_command.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <random>
#include <thread>

#include "driver/cli/command_support.h"
#include "driver/hosts/program_paths.h"
#include "driver/launch/launcher.h"
#include "driver/launch/local_ranks.h"
#include "experiments/io/dlio/dlio_output.h"
#include "experiments/io/dlio/dlio_run.h"
#include "experiments/io/dlio/mlperf_storage.h"
#include "experiments/io/io_commands.h"
#include "runtime/base/files.h"
#include "runtime/base/text.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

// Environment variables of a process of the job.
constexpr const char *kSegment = "MILLRACE_DLIO_SEGMENT", *kProcess = "MILLRACE_DLIO_PROCESS",
                     *kRandom = "MILLRACE_DLIO_RANDOM";

// One process loses nothing to others that the machine lets wait (measured: 99.5 % utilisation at 0.38 ms
// with 8 ranks on two busy cores, 71 to 98 % with two processes); beyond some ranks its own loop would show.
constexpr int kRanksOfProcess = 16;

enum class MlperfMode { None, DataSize, Run };
constexpr auto names_of(MlperfMode) {
  return std::to_array<std::string_view>({"none", "datasize", "run"});
}

/// The whole command line; `completed` gives what was not given its value.
struct DlioCommand {
  DlioConfig config;
  DlioRunOptions run;
  std::optional<int> processes;
  std::optional<std::string> output_dir;
  MlperfMode mlperf = MlperfMode::None;
  int hosts = 1;
  std::optional<Bytes> host_memory;
  OutputFormat format = OutputFormat::Text;
  bool dry_run = false;
};

std::string default_output(const DlioConfig& config) {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d-%H-%M-%S", &parts);
  return (fs::path("hydra_log") / config.model.name / text).string();
}

Bytes memory_of_host() {
  const Json lines = proc_lines("/proc/meminfo");
  const Json* total = lines.find("MemTotal");
  return total ? static_cast<Bytes>(std::strtod(total->as_string().c_str(), nullptr)) * 1024 : 0;
}

Result<DlioCommand> completed(DlioCommand command, const Arguments& arguments) {
  Problems problems = arguments.problems();
  std::vector<std::string> words;
  std::string hydra_folder;
  for (const std::string& word : arguments.positionals()) {
    const std::size_t at = word.find("hydra.run.dir=");
    if (at != std::string::npos && at <= 2) {
      hydra_folder = word.substr(at + 14);
    } else {
      words.push_back(word);
    }
  }
  Result<DlioConfig> config = load_dlio_config(words);
  if (!config) append(problems, config.problems());
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  if (!command.processes)
    command.processes = std::min((command.run.ranks + kRanksOfProcess - 1) / kRanksOfProcess, cores);
  if (!command.host_memory) command.host_memory = memory_of_host();
  if (command.processes > command.run.ranks)
    problems.push_back({"--processes", "are more than the ranks", "each process drives at least one rank"});
  if (!problems.empty()) return problems;
  command.config = std::move(*config);
  // The launcher says the folder of this very run so, behind what the user gave.
  command.run.output = !hydra_folder.empty()                   ? hydra_folder
                       : command.output_dir                    ? *command.output_dir
                       : !command.config.output.folder.empty() ? command.config.output.folder
                                                               : default_output(command.config);
  append(problems, check_run(command.config, command.run));
  if (!problems.empty()) return problems;
  return command;
}

/// One process of the job: where it meets the others is in its environment.
int run_as_process(DlioCommand command, const char* segment) {
  const char* number = std::getenv(kProcess);
  const char* random = std::getenv(kRandom);
  if (!number || !random)
    return exit_with(ExitCode::Usage, {{kSegment, std::string("is set without ") + kProcess,
                                        "unset it: `millrace dlio` sets it for its processes"}});
  command.run.random_seed = std::strtoull(random, nullptr, 10);
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  ProcessGroup group(segment, std::atoi(number),
                     {.timeout = command.run.timeout,
                      .spin = std::chrono::microseconds(command.processes <= cores ? 100 : 0)});
  run_dlio_process(command.config, command.run, group);
  return 0;
}

/// Starts the processes of one run with the arguments as they were given, and `more`.
int run_job(const std::vector<std::string>& args, const std::vector<std::string>& more,
            const DlioCommand& command, const std::string& output) {
  if (const Status made = make_writable_folder(output); !made)
    return exit_with(ExitCode::Usage, made.problems());
  const StoreFolder meeting;
  const std::string segment = meeting.path() + "/segment";
  ProcessGroup::create(segment, *command.processes);
  const std::string random = std::to_string(std::random_device{}());
  std::vector<RankProcess> processes;
  for (int p = 0; p < *command.processes; ++p) {
    RankProcess process{.rank = p};
    process.argv = {own_program(), "dlio"};
    process.argv.insert(process.argv.end(), args.begin(), args.end());
    process.argv.insert(process.argv.end(), more.begin(), more.end());
    // Defaults that depend on the clock or the machine are settled once, here.
    process.argv.insert(process.argv.end(), {"++hydra.run.dir=" + output});
    process.environment = {{kSegment, segment}, {kProcess, std::to_string(p)}, {kRandom, random}};
    processes.push_back(std::move(process));
  }
  SteadyClock clock;
  const LaunchOutcome outcome = run_ranks(processes, {}, clock);
  if (outcome.first_failure >= 0) {
    const RankExit& first = outcome.exits.at(outcome.first_failure);
    std::fprintf(stderr, "millrace dlio: process %d failed first: %s\n", first.rank, end_text(first).c_str());
  }
  return outcome.exit_code();
}

void print_config(const DlioCommand& command) {
  std::printf("%s\n", Json::object({{"workload", command.config.tree},
                                    {"ranks", command.run.ranks},
                                    {"processes", *command.processes},
                                    {"output", command.run.output}})
                          .dump(2)
                          .c_str());
  for (const std::string& note : command.config.notes) std::fprintf(stderr, "note: %s\n", note.c_str());
}

int print_size(const DlioCommand& command, const MlperfSize& size) {
  if (command.format == OutputFormat::Json) {
    std::printf("%s\n", Json::object({{"samples_for_steps", size.samples_for_steps},
                                      {"samples_for_memory", size.samples_for_memory},
                                      {"num_files_train", size.files},
                                      {"gib", size.gib}})
                            .dump(1)
                            .c_str());
    return 0;
  }
  std::printf(
      "%s, %d accelerators on %d hosts of %.1f GiB: at least %lld samples (%lld for 500 steps, %lld for five "
      "times the memory)\n",
      command.config.workload.c_str(), command.run.ranks, command.hosts,
      static_cast<double>(*command.host_memory) / static_cast<double>(kGiB),
      static_cast<long long>(size.samples), static_cast<long long>(size.samples_for_steps),
      static_cast<long long>(size.samples_for_memory));
  std::printf("++workload.dataset.num_files_train=%lld   (%.1f GiB)\n", static_cast<long long>(size.files),
              size.gib);
  return 0;
}

/// A number of the summary's `metric`, or of another part.
double metric_of(const std::string& folder, const char* name, const char* part = "metric") {
  const Result<Json> summary = read_json(folder + "/summary.json");
  const Json* metric = summary ? summary->find(part) : nullptr;
  const Json* value = metric ? metric->find(name) : nullptr;
  if (!value || !value->is_number()) throw DataError(folder + "/summary.json: has no " + name);
  return value->as_double();
}

/// A warm-up and five runs with seeds of their own, then the verdict.
int run_mlperf(const std::vector<std::string>& args, const DlioCommand& command, const MlperfSize& size) {
  std::vector<MlperfRun> runs;
  for (int run = 0; run <= 5; ++run) {
    const std::string folder = command.run.output + (run == 0 ? "/warm-up" : "/run_" + std::to_string(run));
    std::printf("MLPerf Storage: %s\n", run == 0 ? "warm-up" : printed("run %d of 5", run).c_str());
    std::fflush(stdout);
    std::vector<std::string> more{"++workload.train.seed=" + std::to_string(command.config.train.seed + run)};
    if (run > 0) more.push_back("++workload.workflow.generate_data=false");
    if (const int code = run_job(args, more, command, folder); code != 0) return code;
    if (run > 0)
      runs.push_back({metric_of(folder, "train_au_mean_percentage"),
                      metric_of(folder, "train_throughput_mean_samples_per_second"),
                      metric_of(folder, "train_compute_error_percentage", "millrace")});
  }
  const MlperfVerdict verdict = mlperf_verdict(command.config, size, runs);
  Json list = Json::array(), reasons = Json::array();
  for (const MlperfRun& run : runs)
    list.push_back(Json::object({{"au_percentage", run.au},
                                 {"samples_per_second", run.throughput},
                                 {"compute_error_percentage", run.compute_error}}));
  for (const std::string& reason : verdict.reasons) reasons.push_back(reason);
  const Json report = Json::object({{"format", "millrace-mlperf-storage-1"},
                                    {"workload", command.config.workload},
                                    {"accelerators", command.run.ranks},
                                    {"verdict", verdict.passes ? "pass" : "fail"},
                                    {"reasons", reasons},
                                    {"runs", list}});
  write_json_file(command.run.output + "/mlperf_report.json", report);
  if (command.format == OutputFormat::Json) {
    std::printf("%s\n", report.dump(1).c_str());
  } else {
    for (std::size_t i = 0; i < runs.size(); ++i)
      std::printf("run %zu: AU %.2f %%, %.2f samples/s\n", i + 1, runs[i].au, runs[i].throughput);
    std::printf("%s\n", verdict.passes ? "PASS" : "FAIL");
    for (const std::string& reason : verdict.reasons) std::printf("  %s\n", reason.c_str());
  }
  return verdict.passes ? 0 : static_cast<int>(ExitCode::RunFailed);
}

int run_given(const std::vector<std::string>& args, DlioCommand given, const Arguments& arguments) {
  const Result<DlioCommand> command = completed(std::move(given), arguments);
  if (!command) return exit_with(ExitCode::Usage, command.problems());
  if (const char* segment = std::getenv(kSegment)) return run_as_process(*command, segment);
  if (command->dry_run) return print_config(*command), 0;
  const MlperfSize size =
      mlperf_size(command->config, command->run.ranks, command->hosts, *command->host_memory);
  if (command->mlperf == MlperfMode::DataSize) return print_size(*command, size);
  if (command->mlperf == MlperfMode::Run) return run_mlperf(args, *command, size);
  for (const std::string& note : command->config.notes) std::fprintf(stderr, "note: %s\n", note.c_str());
  return run_job(args, {}, *command, command->run.output);
}

CommandSpec spec_of(DlioCommand& c) {
  CommandSpec spec = listed(kIoDlio);
  spec.positionals = {"workload=NAME|FILE..."};
  spec.flags = {
      flag("", "ranks", "N", "Emulated accelerators.", into::integer(c.run.ranks, 1, 65536), 'n'),
      flag("", "processes", "N",
           "Processes that drive them (default: one for every 16 ranks, at most one for each core).",
           into::integer(c.processes, 1, 65536)),
      flag("", "output-dir", "DIR",
           "summary.json, outputs of each rank, log (default: hydra_log/MODEL/TIME; hydra.run.dir=DIR "
           "sets it too).",
           into::text(c.output_dir), 'o'),
      flag("", "clock", "real|virtual",
           "virtual: computation, preprocessing and pauses take no time; reads are done and timed, and "
           "played through on time lines.",
           into::choice(c.run.clock, "clock")),
      flag("", "check", "none|contents",
           "contents: compare every sample that is read with what was generated.",
           into::choice(c.run.check, "check")),
      flag("", "calibration-steps", "N",
           "Steps without data before training, to know what the loop itself costs; 0: none.",
           into::integer(c.run.calibration_steps, 0, 1'000'000)),
      flag("", "timeout", "SECONDS", "Longest wait for a batch or for another process.",
           into::duration(c.run.timeout, 1, 1e6)),
      flag("", "dry-run", "Print the configuration after all overrides and stop.", into::on(c.dry_run)),
      flag("", "format", "text|json", "How to print --mlperf's results.", into::choice(c.format, "format")),
      flag("MLPerf Storage", "mlperf", "none|datasize|run",
           "MLPerf Storage: datasize prints how many files its rules ask for; run does a warm-up and "
           "five runs and gives the verdict.",
           into::choice(c.mlperf, "mode")),
      flag("MLPerf Storage", "hosts", "N", "Hosts of the rule for the data's size.",
           into::integer(c.hosts, 1, 1'000'000)),
      flag("MLPerf Storage", "host-memory", "BYTES", "Memory of one (default: this one's).",
           into::bytes(c.host_memory)),
  };
  spec.interrupted = "files that are finished stay";
  spec.examples = {
      "millrace dlio workload=unet3d_h100 ++workload.workflow.generate_data=True "
      "++workload.dataset.num_files_train=16 --ranks 2",
      "millrace dlio workload=my.yaml ++workload.reader.batch_size=4 --output-dir out --check contents",
      "millrace dlio workload=resnet50_h100 --mlperf datasize --ranks 8 --host-memory 512GiB"};
  return spec;
}

}  // namespace

CommandSpec dlio_spec() {
  return without_targets<DlioCommand>(spec_of);
}

int dlio_command(const std::vector<std::string>& args) {
  DlioCommand command;
  const CommandSpec spec = spec_of(command);
  const Result<Arguments> arguments = parse_arguments(spec, args);
  if (!arguments) return exit_with(ExitCode::Usage, arguments.problems());
  if (arguments->wants_help()) {
    std::string names;
    for (const std::string& name : shipped_workloads()) names += (names.empty() ? "" : " ") + name;
    const int code = print_help(spec, *arguments);
    if (code == 0) std::printf("\nShipped workloads: %s\nKeys and overrides: docs/dlio.md\n", names.c_str());
    return code;
  }
  tell_of_interrupt(spec);
  try {
    return run_given(args, std::move(command), *arguments);
  } catch (const Error& error) {
    return exit_with(error.code(), {{"millrace dlio", error.what(), error.hint()}});
  }
}

}  // namespace millrace
