#include "experiments/io/instrument/instrument_command.h"

#include "driver/cli/command_group.h"
#include "experiments/io/instrument/fit_command.h"
#include "experiments/io/instrument/process_command.h"
#include "experiments/io/io_commands.h"

namespace millrace {
namespace {

constexpr Subcommand kInstrumentCommands[] = {
    {"process", instrument_process_spec, instrument_process_command},
    {"plot", instrument_plot_spec, instrument_plot_command},
    {"fit", instrument_fit_spec, instrument_fit_command},
};

}  // namespace

CommandSpec instrument_spec() {
  return listed(kIoInstrument);
}

std::span<const Subcommand> instrument_subcommands() {
  return kInstrumentCommands;
}

int instrument_command(const std::vector<std::string>& args) {
  return run_group(instrument_spec(), kInstrumentCommands, args);
}

}  // namespace millrace
