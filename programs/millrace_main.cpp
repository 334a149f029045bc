// millrace: the program that users type. Commands without LibTorch run here and start in milliseconds;
// `profile` and `train` are handed to millrace-worker beside it.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "driver/bleu/bleu_command.h"
#include "driver/cli/command_support.h"
#include "driver/cli/compute_specs.h"
#include "driver/cli/job_lists.h"
#include "driver/cli/translate_spec.h"
#include "driver/hosts/agent_command.h"
#include "driver/hosts/program_paths.h"
#include "driver/launch/launch_command.h"
#include "driver/launch/model_flags.h"
#include "driver/launch/network_launch.h"
#include "driver/launch/run_commands.h"
#include "driver/launch/translate_launch.h"
#include "driver/plan/plan_command.h"
#include "driver/simulate/simulate_command.h"
#include "experiments/data/data_command.h"
#include "experiments/dlio/dlio_command.h"
#include "experiments/export/convert_command.h"
#include "experiments/instrument/instrument_command.h"
#include "experiments/report/report_command.h"
#include "experiments/report/run_bleu.h"
#include "experiments/sweep/sweep_command.h"
#include "experiments/sweep/tune_command.h"
#include "experiments/trace/trace_command.h"
#include "runtime/base/error.h"
#include "runtime/base/failure_text.h"
#include "runtime/base/json.h"
#include "runtime/base/option_names.h"
#include "runtime/base/version.h"

namespace millrace {
namespace {

/// With less address space the worker dies in its libraries before it can say why.
constexpr rlim_t kLeastAddressSpace = rlim_t{512} << 20;

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
    return std::fputs(help_text(spec).c_str(), stdout), 0;
  }
  if (only_asks) device = ComputeDevice::Cpu;
  std::string worker = only_asks ? any_worker() : worker_path(device);
  if (worker.empty()) worker = worker_path(device);
  std::vector<std::string> words{worker, command};
  words.insert(words.end(), args.begin(), args.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  rlimit space{};
  if (::getrlimit(RLIMIT_AS, &space) == 0 && space.rlim_cur < kLeastAddressSpace) {
    std::fprintf(stderr,
                 "error: this shell allows %lld MiB of address space (ulimit -v), and LibTorch alone takes "
                 "about 450. Hint: allow at least %lld\n",
                 static_cast<long long>(space.rlim_cur >> 20),
                 static_cast<long long>(kLeastAddressSpace >> 20));
    return static_cast<int>(ExitCode::RunFailed);
  }
  ::execv(worker.c_str(), argv.data());
  std::fprintf(stderr, "millrace %s: cannot start %s: %s. Hint: %s\n", command.c_str(), worker.c_str(),
               std::strerror(errno), worker_hint(device).c_str());
  return static_cast<int>(ExitCode::Usage);
}

struct Command {
  const char* name;
  const char* group;
  CommandSpec (*spec)();
  int (*run)(const std::vector<std::string>& args);
};

// The order is that of a first session.
constexpr Command kCommands[] = {
    {"models", "Plan", models_spec,
     [](const std::vector<std::string>& a) { return hand_over(models_spec(), "models", a); }},
    {"profile", "Plan", profile_spec,
     [](const std::vector<std::string>& a) {
       return starts_profile_ranks(a) ? launch_profile(a) : hand_over(profile_spec(), "profile", a);
     }},
    {"plan", "Plan", plan_spec, plan_command},
    {"simulate", "Plan", simulate_spec, simulate_command},
    {"train", "Run", train_spec,
     [](const std::vector<std::string>& a) { return hand_over(train_spec(), "train", a); }},
    {"translate", "Run", translate_spec,
     [](const std::vector<std::string>& a) {
       return starts_translate_ranks(a) ? launch_translate(a) : hand_over(translate_spec(), "translate", a);
     }},
    {"launch", "Run", launch_spec,
     [](const std::vector<std::string>& a) {
       return launch_command(a, {.check = check_log_formats, .run = export_run});
     }},
    {"stop", "Run", stop_spec, stop_command},
    {"kill", "Run", kill_spec, kill_command},
    {"agent", "Run", agent_spec, agent_command},
    {"sweep", "Run", sweep_spec, sweep_command},
    {"tune", "Run", tune_spec, tune_command},
    {"fuse", "Run", fuse_spec,
     [](const std::vector<std::string>& a) { return hand_over(fuse_spec(), "fuse", a); }},
    {"split", "Run", split_spec,
     [](const std::vector<std::string>& a) { return hand_over(split_spec(), "split", a); }},
    {"runs", "Look", runs_spec, runs_command},
    {"status", "Look", status_spec, status_command},
    {"logs", "Look", logs_spec, logs_command},
    {"report", "Look", report_spec, report_command},
    {"bleu", "Look", bleu_spec,
     [](const std::vector<std::string>& a) {
       return scores_a_run(a) ? run_bleu_command(a) : bleu_command(a);
     }},
    {"trace", "Look", trace_spec, trace_command},
    {"data", "Study I/O", data_spec, data_command},
    {"dlio", "Study I/O", dlio_spec, dlio_command},
    {"instrument", "Look", instrument_spec, instrument_command},
};

void print_help() {
  std::printf("millrace %s: distributed pipeline training.\n\nUsage: millrace COMMAND [FLAGS]\n",
              MILLRACE_VERSION);
  std::string group;
  for (const Command& command : kCommands) {
    if (group != command.group) std::printf("\n%s:\n", (group = command.group).c_str());
    std::printf("  %-10s %s\n", command.name, command.spec().summary.c_str());
  }
  std::printf(
      "\n`millrace COMMAND --help` explains its flags. Exit codes: 0 done, 1 run failed, 2 usage or "
      "configuration,\n"
      "3 input data, 4 checkpoint, 5 another rank, 6 NaN or Inf, 75 stopped early with state saved, 128+n "
      "signal n.\n"
      "\nExamples:\n"
      "  millrace profile --model vgg16 --image-size 32 --classes 10 --out profile.json\n"
      "  millrace plan --profile profile.json --ranks 2 --out plan.json\n"
      "  millrace launch job.yaml\n");
}

int unknown_command(const std::string& name) {
  std::vector<std::string> names;
  for (const Command& command : kCommands) names.emplace_back(command.name);
  const std::optional<std::string> nearest = nearest_name(name, names);
  std::fprintf(stderr, "millrace: '%s' is not a command. Hint: %s\n", name.c_str(),
               nearest ? ("did you mean `millrace " + *nearest + "`?").c_str()
                       : "`millrace --help` lists the commands");
  return static_cast<int>(ExitCode::Usage);
}

int dispatch(const std::vector<std::string>& args) {
  if (args.size() > 1 && args[0] == "help") {  // help plan: as plan --help
    std::vector<std::string> words{args.begin() + 1, args.end()};
    words.emplace_back("--help");
    return dispatch(words);
  }
  if (args.empty() || args[0] == "--help" || args[0] == "-h" || args[0] == "help") {
    print_help();
    return args.empty() ? static_cast<int>(ExitCode::Usage) : 0;
  }
  if (args[0] == "--version" || args[0] == "-V" || args[0] == "version")
    return std::printf("millrace %s\n", MILLRACE_VERSION), 0;
  for (const Command& command : kCommands) {
    if (args[0] == command.name) return command.run({args.begin() + 1, args.end()});
  }
  return unknown_command(args[0]);
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  millrace::set_option_names(millrace::OptionNames::Flags);
  try {
    return millrace::code_after_output(millrace::dispatch({argv + 1, argv + argc}));
  } catch (const millrace::Error& error) {
    std::fprintf(stderr, "error: %s%s%s\n", error.what(),
                 error.hint().empty() ? "" : ". Hint: ", error.hint().c_str());
    return static_cast<int>(error.code());
  } catch (...) {
    std::fprintf(stderr, "error: %s\n", millrace::text_of_failure().c_str());
    return static_cast<int>(millrace::ExitCode::RunFailed);
  }
}
