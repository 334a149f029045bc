// millrace: the program that users type. Commands without LibTorch run here and start in milliseconds;
// `profile` and `train` are handed to millrace-worker beside it, the I/O studies to millrace-io.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "driver/bleu/bleu_command.h"
#include "driver/checkpoint/checkpoint_command.h"
#include "driver/cli/command_support.h"
#include "driver/cli/command_tree.h"
#include "driver/flags/compute_specs.h"
#include "driver/flags/job_lists.h"
#include "driver/flags/translate_spec.h"
#include "driver/hosts/agent_command.h"
#include "driver/hosts/program_answer.h"
#include "driver/hosts/program_paths.h"
#include "driver/launch/emulate_command.h"
#include "driver/launch/launch_command.h"
#include "driver/launch/model_flags.h"
#include "driver/launch/network_launch.h"
#include "driver/launch/run_commands.h"
#include "driver/launch/translate_launch.h"
#include "driver/plan/device_profile_command.h"
#include "driver/plan/device_table_command.h"
#include "driver/plan/plan_command.h"
#include "driver/project/new_command.h"
#include "driver/simulate/simulate_command.h"
#include "driver/text/text_command.h"
#include "experiments/export/convert_command.h"
#include "experiments/io/io_commands.h"
#include "experiments/report/report_command.h"
#include "experiments/report/run_bleu.h"
#include "experiments/sweep/sweep_command.h"
#include "experiments/sweep/tune_command.h"
#include "runtime/base/error.h"
#include "runtime/base/files.h"
#include "runtime/base/json.h"
#include "runtime/base/text.h"
#include "runtime/base/version.h"

namespace millrace {
namespace {

/// With less address space the worker dies in its libraries before it can say why.
constexpr rlim_t kLeastAddressSpace = rlim_t{512} << 20;

/// Becomes the program words[0], whose other words are a command and its arguments. Returns the exit code if
/// it cannot be started.
int become(std::vector<std::string> words, const std::string& hint) {
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  ::execv(argv[0], argv.data());
  std::fprintf(stderr, "millrace %s: cannot start %s: %s. Hint: %s\n", words[1].c_str(), words[0].c_str(),
               std::strerror(errno), hint.c_str());
  return static_cast<int>(ExitCode::Usage);
}

/// Becomes the worker, which knows the models and their options: it prints the help too. Where there is none,
/// the help is what is known here.
int hand_over(const CommandSpec& spec, const std::string& command, const std::vector<std::string>& args) {
  // One job of an array says which program it needs.
  const Result<JobLists> jobs =
      command == "train" ? take_job_lists(spec, args) : Result<JobLists>(JobLists{{args}, {}});
  ComputeDevice device = ComputeDevice::Cpu;
  CommandSpec read = spec;  // of all flags only this one; wrong ones are the worker's to report
  for (Flag& flag : read.flags) {
    if (flag.name == "device") flag.target = into::choice(device, "device");
  }
  const Result<Arguments> arguments =
      parse_arguments(read, jobs ? jobs->args.front() : args, UnknownFlags::Leave);
  const bool wants_help = arguments && arguments->wants_help();
  const bool only_asks = wants_help || command == "models" || command == "fuse" || command == "split";
  if (wants_help && any_worker().empty()) {
    std::fprintf(stderr, "millrace %s: the options of the models are not shown without %s\n", command.c_str(),
                 worker_path(ComputeDevice::Cpu).c_str());
    return print_help(spec, *arguments);
  }
  if (only_asks) device = ComputeDevice::Cpu;
  std::string worker = only_asks ? any_worker() : worker_path(device);
  if (worker.empty()) worker = worker_path(device);
  std::vector<std::string> words{worker, command};
  words.insert(words.end(), args.begin(), args.end());
  rlimit space{};
  if (::getrlimit(RLIMIT_AS, &space) == 0 && space.rlim_cur < kLeastAddressSpace) {
    std::fprintf(stderr,
                 "error: this shell allows %lld MiB of address space (ulimit -v), and LibTorch alone takes "
                 "about 450. Hint: allow at least %lld\n",
                 static_cast<long long>(space.rlim_cur >> 20),
                 static_cast<long long>(kLeastAddressSpace >> 20));
    return static_cast<int>(ExitCode::RunFailed);
  }
  return become(words, worker_hint(device));
}

// ---- the commands

struct Command {
  const char* task;
  Subcommand command;
};

CommandSpec completion_spec();
int completion_command(const std::vector<std::string>& args);

/// A command of the worker.
template <CommandSpec (*spec)()>
int to_worker(const std::vector<std::string>& args) {
  return hand_over(spec(), spec().command, args);
}

constexpr const char* kIoProgram = "millrace-io";

/// A command of millrace-io, here only a line of the lists.
template <const IoCommand& io>
CommandSpec io_spec() {
  return listed(io);
}
template <const IoCommand& io>
int to_io(const std::vector<std::string>& args) {
  std::vector<std::string> words = split(io.command, ' ');
  words.insert(words.begin(), program_beside(kIoProgram));
  words.insert(words.end(), args.begin(), args.end());
  return become(words, "`scripts/build release millrace-io` builds it; it is installed beside millrace");
}

/// `millrace data`: the files of the I/O studies, and text for training.
std::span<const Subcommand> data_subcommands() {
  static constexpr Subcommand kTable[] = {{"generate", io_spec<kIoDataGenerate>, to_io<kIoDataGenerate>},
                                          {"check", io_spec<kIoDataCheck>, to_io<kIoDataCheck>},
                                          {"text", data_text_spec, data_text_command, data_text_subcommands}};
  return kTable;
}

// The commands stand by task; within a task in the order of a first session.
constexpr Command kCommands[] = {
    {"Plan and train", {"models", models_spec, to_worker<models_spec>}},
    {"Plan and train",
     {"profile", profile_spec,
      [](const std::vector<std::string>& a) {
        return starts_profile_ranks(a) ? launch_profile(a) : hand_over(profile_spec(), "profile", a);
      }}},
    {"Plan and train", {"device-profile", device_profile_spec, device_profile_command}},
    {"Plan and train", {"device-table", device_table_spec, device_table_command}},
    {"Plan and train", {"plan", plan_spec, plan_command}},
    {"Plan and train", {"simulate", simulate_spec, simulate_command}},
    {"Plan and train", {"train", train_spec, to_worker<train_spec>}},
    {"Plan and train", {"evaluate", evaluate_spec, to_worker<evaluate_spec>}},
    {"Plan and train", {"predict", predict_spec, to_worker<predict_spec>}},
    {"Run on several processes or hosts",
     {"launch", launch_spec,
      [](const std::vector<std::string>& a) {
        return launch_command(a, {.check = check_log_formats, .run = export_run});
      }}},
    {"Run on several processes or hosts", {"emulate", emulate_spec, emulate_command}},
    {"Run on several processes or hosts", {"agent", agent_spec, agent_command}},
    {"Look after runs", {"runs", runs_spec, runs_command}},
    {"Look after runs", {"status", status_spec, status_command}},
    {"Look after runs", {"explain", explain_spec, explain_command}},
    {"Look after runs", {"logs", logs_spec, logs_command}},
    {"Look after runs", {"stop", stop_spec, stop_command}},
    {"Look after runs", {"kill", kill_spec, kill_command}},
    {"Look after runs", {"checkpoint", checkpoint_spec, checkpoint_command, checkpoint_subcommands}},
    {"Look at results", {"report", report_spec, report_command}},
    {"Look at results",
     {"translate", translate_spec,
      [](const std::vector<std::string>& a) {
        return starts_translate_ranks(a) ? launch_translate(a) : hand_over(translate_spec(), "translate", a);
      }}},
    {"Look at results",
     {"bleu", bleu_spec,
      [](const std::vector<std::string>& a) {
        return scores_a_run(a) ? run_bleu_command(a) : bleu_command(a);
      }}},
    {"Train many settings", {"sweep", sweep_spec, sweep_command}},
    {"Train many settings", {"tune", tune_spec, tune_command}},
    {"Train many settings", {"fuse", fuse_spec, to_worker<fuse_spec>}},
    {"Train many settings", {"split", split_spec, to_worker<split_spec>}},
    {"Study I/O and traces",
     {"data", io_spec<kIoData>,
      [](const std::vector<std::string>& a) { return run_group(listed(kIoData), data_subcommands(), a); },
      data_subcommands}},
    {"Study I/O and traces", {"dlio", io_spec<kIoDlio>, to_io<kIoDlio>}},
    {"Study I/O and traces", {"trace", io_spec<kIoTrace>, to_io<kIoTrace>}},
    {"Study I/O and traces", {"instrument", io_spec<kIoInstrument>, to_io<kIoInstrument>}},
    {"Study I/O and traces", {"experiment", io_spec<kIoExperiment>, to_io<kIoExperiment>}},
    {"Study I/O and traces", {"stalls", io_spec<kIoStalls>, to_io<kIoStalls>}},
    {"Set up", {"new", new_spec, new_command}},
    {"Set up", {"completion", completion_spec, completion_command}},
};

constexpr char kExitCodes[] =
    "0 done, 1 run failed, 2 usage or configuration, 3 input data, 4 checkpoint, 5 another rank, "
    "6 NaN or Inf, 75 stopped early with state saved, 128+n signal n.";

const std::vector<std::string>& first_examples() {
  static const std::vector<std::string> examples{
      "millrace train --model mlp --rule adam --lr 0.001 --stages 2 --epochs 2 --output-dir runs/first",
      "millrace evaluate --model mlp --weights runs/first",
      "millrace report --run runs/first",
      "millrace profile --model mlp --ranks 2 --out profile.json",
      "millrace plan --profile profile.json --ranks 2 --out plan.json",
      "millrace train --model mlp --plan plan.json --steps 100 --output-dir runs/planned"};
  return examples;
}

void print_overview() {
  std::printf("millrace %s: distributed pipeline training.\n\nUsage: millrace COMMAND [FLAGS]\n",
              MILLRACE_VERSION);
  std::string task;
  for (const Command& command : kCommands) {
    if (task != command.task) std::printf("\n%s:\n", (task = command.task).c_str());
    std::fputs(list_entry(command.command.name, 10, command.command.spec().summary).c_str(), stdout);
  }
  std::fputs("\nExamples:\n", stdout);
  for (const std::string& example : first_examples()) std::printf("  %s\n", example.c_str());
  std::fputs(("\n" +
              wrapped("`millrace help COMMAND` explains its flags, `millrace help train all` all of "
                      "them. `millrace help --man DIR` writes manual pages, `millrace version` says "
                      "the version.",
                      0, 0) +
              wrapped("Exit codes: " + std::string(kExitCodes), 0, 2))
                 .c_str(),
             stdout);
}

// ---- completion and manual pages: the commands as a tree

/// The commands of millrace-io with their flags.
Result<CommandTree> tree_of_io() {
  const std::string program = program_beside(kIoProgram);
  const Result<std::string> answer = answer_of({program, "commands"}, std::chrono::seconds(30));
  if (!answer) return answer.problems();
  const Result<Json> json = parse_json(*answer, program + " commands");
  if (!json) return json.problems();
  return command_tree_from(*json);
}

/// All commands, with the options of the models where there is a worker to ask.
CommandTree command_tree() {
  CommandTree tree;
  tree.spec.summary = "distributed pipeline training.";
  tree.spec.examples = first_examples();
  const Result<Models> models = models_of_worker();
  if (!models)
    std::fprintf(stderr, "note: without the models' options: %s\n", to_string(models.problems()).c_str());
  const Result<CommandTree> io = tree_of_io();
  if (!io)
    std::fprintf(stderr, "note: without the flags of the I/O studies: %s\n",
                 to_string(io.problems()).c_str());
  GivenOptions unused;
  for (const Command& command : kCommands) {
    tree.below.push_back(tree_of(command.command));
    CommandSpec& spec = tree.below.back().spec;
    if (models && std::ranges::find(spec.flags, "model", &Flag::name) != spec.flags.end() &&
        spec.command != "models")
      spec = without_targets(with_model_options(std::move(spec), *models, unused));
  }
  if (io) fill_in(tree, *io);
  return tree;
}

CommandSpec completion_spec() {
  return {.command = "completion",
          .summary = "Print a script with which a shell completes commands, flags and values.",
          .positionals = {"bash|zsh|fish"},
          .examples = {"source <(millrace completion bash)", "millrace completion zsh > ~/.zfunc/_millrace",
                       "millrace completion fish > ~/.config/fish/completions/millrace.fish"}};
}

int completion_command(const std::vector<std::string>& args) {
  return run_command(completion_spec(), args, [](const Arguments& given, const Problems& problems) {
    if (!problems.empty()) return exit_with(ExitCode::Usage, problems);
    Shell shell{};
    if (std::optional<Problem> wrong = into::choice(shell, "shell").read({given.positionals().front()})) {
      wrong->where = "millrace completion";
      return exit_with(ExitCode::Usage, {*wrong});
    }
    std::fputs(completion_script(command_tree(), shell).c_str(), stdout);
    return 0;
  });
}

int write_manual_pages(const std::string& folder) {
  if (const Status made = make_writable_folder(folder); !made)
    return exit_with(ExitCode::Usage, made.problems());
  const auto pages = manual_pages(command_tree(), MILLRACE_VERSION, kExitCodes);
  for (const auto& [name, text] : pages) {
    if (const Status written = write_file_atomically(std::filesystem::path(folder) / name, text); !written)
      return exit_with(ExitCode::RunFailed, written.problems());
  }
  std::printf("%zu manual pages in %s; `man -M` wants them in a folder man1\n", pages.size(), folder.c_str());
  return 0;
}

// ---- dispatch

int unknown_command(const std::string& name) {
  std::vector<std::string> names;
  for (const Command& command : kCommands) names.emplace_back(command.command.name);
  const std::optional<std::string> nearest = nearest_name(name, names);
  std::fprintf(stderr, "millrace: '%s' is not a command. Hint: %s\n", name.c_str(),
               nearest ? ("did you mean `millrace " + *nearest + "`?").c_str()
                       : "`millrace --help` lists the commands");
  return static_cast<int>(ExitCode::Usage);
}

int dispatch(const std::vector<std::string>& args);

/// `help train data` is `train --help data`, `help trace plot` is `trace plot --help`.
int help_of(std::vector<std::string> words) {
  if (words[0] == "--man") {
    if (words.size() == 2) return write_manual_pages(words[1]);
    return exit_with(ExitCode::Usage,
                     {{"millrace help --man", "needs one folder", "`millrace help --man DIR`"}});
  }
  if (words[0].starts_with('-')) words.clear();
  words.insert(words.begin() + (words.empty() ? 0 : 1), "--help");
  return dispatch(words);
}

int dispatch(const std::vector<std::string>& args) {
  if (args.size() > 1 && args[0] == "help") return help_of({args.begin() + 1, args.end()});
  if (args.empty() || args[0] == "--help" || args[0] == "-h" || args[0] == "help") {
    print_overview();
    return args.empty() ? static_cast<int>(ExitCode::Usage) : 0;
  }
  if (args[0] == "--version" || args[0] == "-V" || args[0] == "version")
    return std::printf("millrace %s\n", MILLRACE_VERSION), 0;
  for (const Command& command : kCommands) {
    if (args[0] == command.command.name) return command.command.run({args.begin() + 1, args.end()});
  }
  return unknown_command(args[0]);
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  return millrace::run_main(argc, argv, millrace::dispatch);
}
