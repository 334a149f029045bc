#include "driver/worker/program.h"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <optional>
#include <set>

#include "data/files/data_kinds.h"
#include "driver/cli/command_support.h"
#include "driver/launch/launch_command.h"
#include "driver/launch/network_launch.h"
#include "driver/plan/plan_command.h"
#include "driver/simulate/simulate_command.h"
#include "runtime/base/text.h"
#include "runtime/base/version.h"

namespace millrace {
namespace {

const std::vector<std::string> kCommands{"models", "profile",  "plan",    "simulate",
                                         "train",  "evaluate", "predict", "launch"};

std::string this_program(const char* called) {
  std::error_code error;
  const auto path = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? called : path.string();
}

Problems problems_of(const Additions& own) {
  Problems problems = validate(model_descriptions(own.models));
  std::set<std::string> names;
  for (const NamedDataset& dataset : own.datasets) {
    const bool plain =
        !dataset.name.empty() && dataset.name.find_first_of(":/.") == std::string::npos && dataset.make;
    if (!plain || std::ranges::count(data_kinds(), dataset.name, &DataKind::prefix) > 0)
      problems.push_back({"--data", "'" + dataset.name + "' cannot be the name of a data set of one's own",
                          "a word without ':', '/' and '.', and what makes it"});
    if (!names.insert(dataset.name).second)
      problems.push_back({"--data", "two data sets are called '" + dataset.name + "'", {}});
  }
  return problems;
}

int print_help(const std::string& name) {
  std::printf("%s: millrace %s with models of its own.\n\nUsage: %s COMMAND [FLAGS]\n\n", name.c_str(),
              MILLRACE_VERSION, name.c_str());
  for (const CommandSpec& spec : {models_spec(), profile_spec(), plan_spec(), simulate_spec(), train_spec(),
                                  evaluate_spec(), predict_spec(), launch_spec()})
    std::printf("  %-10s %s\n", spec.command.c_str(), spec.summary.c_str());
  std::printf("\n`%s COMMAND --help` explains its flags.\n", name.c_str());
  return 0;
}

int dispatch(const std::string& self, const std::vector<std::string>& args, const Additions& own,
             const Accelerator& accelerator) {
  const std::string name = std::filesystem::path(self).filename().string();
  const std::string command = args.empty() ? "" : args[0];
  const std::vector<std::string> rest(args.empty() ? args.end() : args.begin() + 1, args.end());
  if (command.empty() || command == "--help" || command == "-h" || command == "help") {
    print_help(name);
    return command.empty() ? static_cast<int>(ExitCode::Usage) : 0;
  }
  if (command == "train") return train_command(rest, accelerator, own);
  if (command == "evaluate") return evaluate_command(rest, accelerator, own);
  if (command == "predict") return predict_command(rest, accelerator, own);
  if (command == "profile")
    return starts_profile_ranks(rest) ? launch_profile(rest, self) : profile_command(rest, accelerator, own);
  if (command == "models") return models_command(rest, own);
  if (command == "plan") return plan_command(rest);
  if (command == "simulate") return simulate_command(rest);
  if (command == "launch") return launch_command(rest, {}, self);
  const std::optional<std::string> nearest = nearest_name(command, kCommands);
  std::fprintf(stderr, "%s: '%s' is not a command. Hint: %s\n", name.c_str(), command.c_str(),
               nearest ? ("did you mean '" + *nearest + "'?").c_str()
                       : ("`" + name + " --help` lists the commands").c_str());
  return static_cast<int>(ExitCode::Usage);
}

}  // namespace

int run_program(int argc, char** argv, const Additions& own, const Accelerator& accelerator) {
  prepare_process();
  if (const Problems problems = problems_of(own); !problems.empty())
    return report_problems(problems, ExitCode::Usage);
  const std::vector<std::string> args(argv + std::min(argc, 1), argv + argc);
  return code_after_output(
      guarded([&] { return dispatch(this_program(argc > 0 ? argv[0] : ""), args, own, accelerator); }));
}

}  // namespace millrace
