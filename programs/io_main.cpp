// millrace-io: the I/O studies. `millrace dlio` and the others become it. Without the launcher it lacks what
// runs training jobs: `experiment` and `stalls job`.
#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include "driver/cli/command_group.h"
#include "driver/cli/command_support.h"
#include "driver/cli/command_tree.h"
#include "experiments/io/data/data_command.h"
#include "experiments/io/dlio/dlio_command.h"
#include "experiments/io/instrument/instrument_command.h"
#include "experiments/io/io_commands.h"
#include "experiments/io/stalls/stalls_command.h"
#include "experiments/io/trace/trace_command.h"
#include "runtime/base/json.h"
#include "runtime/base/version.h"
#ifdef MILLRACE_LAUNCHER
#include "experiments/io/experiment/experiment_command.h"
#include "experiments/io/job_stalls/job_stalls.h"
#endif

namespace millrace {
namespace {

template <const IoCommand& io, std::span<const Subcommand> (*below)()>
int run_below(const std::vector<std::string>& args) {
  return run_group(listed(io), below(), args);
}
template <const IoCommand& io>
CommandSpec io_spec() {
  return listed(io);
}

std::span<const Subcommand> stalls_commands() {
  static const std::vector<Subcommand> table = [] {
    const std::span<const Subcommand> below = stalls_subcommands();
    std::vector<Subcommand> all{below.front()};
#ifdef MILLRACE_LAUNCHER
    all.push_back({"job", job_stalls_spec, job_stalls_command});
#endif
    all.insert(all.end(), below.begin() + 1, below.end());
    return all;
  }();
  return table;
}

constexpr Subcommand kCommands[] = {
    {"data", io_spec<kIoData>, run_below<kIoData, data_subcommands>, data_subcommands},
    {"dlio", dlio_spec, dlio_command},
    {"trace", trace_spec, trace_command, trace_subcommands},
    {"instrument", instrument_spec, instrument_command, instrument_subcommands},
#ifdef MILLRACE_LAUNCHER
    {"experiment", experiment_spec, experiment_command},
#endif
    {"stalls", io_spec<kIoStalls>, run_below<kIoStalls, stalls_commands>, stalls_commands},
};

/// All commands with their flags, for the completion and the manual pages of `millrace`.
int print_commands() {
  CommandTree tree;
  for (const Subcommand& command : kCommands) tree.below.push_back(tree_of(command));
  return std::printf("%s\n", to_json(tree).dump().c_str()), 0;
}

int dispatch(const std::vector<std::string>& args) {
  if (args == std::vector<std::string>{"commands"}) return print_commands();
  if (!args.empty() && (args[0] == "--version" || args[0] == "-V" || args[0] == "version"))
    return std::printf("millrace-io %s\n", MILLRACE_VERSION), 0;
  return run_group(
      {.program = "millrace-io", .summary = "I/O studies: data sets, workloads, traces, stalls."}, kCommands,
      args);
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  return millrace::run_main(argc, argv, millrace::dispatch);
}
