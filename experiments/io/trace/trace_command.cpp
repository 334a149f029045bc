#include "experiments/io/trace/trace_command.h"

#include "driver/cli/command_group.h"
#include "experiments/export/convert_command.h"
#include "experiments/io/capture/capture_command.h"
#include "experiments/io/io_commands.h"
#include "experiments/io/trace/generate_run_command.h"
#include "experiments/io/trace/plot_command.h"
#include "experiments/io/trace/preprocess_command.h"
#include "experiments/io/trace/similarity_command.h"

namespace millrace {
namespace {

// The order is that of a first session.
const std::vector<Subcommand>& trace_commands() {
  static const std::vector<Subcommand> table{
      {"capture", capture_spec, capture_command},
      {"generate", generate_run_spec, generate_run_command},
      {"preprocess", preprocess_spec, preprocess_command},
      {"plot", trace_plot_spec, trace_plot_command},
      {"similarity", similarity_spec, similarity_command},
      {"convert", convert_spec, convert_command},
  };
  return table;
}

}  // namespace

CommandSpec trace_spec() {
  return listed(kIoTrace);
}

std::span<const Subcommand> trace_subcommands() {
  return trace_commands();
}

int trace_command(const std::vector<std::string>& args) {
  return run_group(trace_spec(), trace_commands(), args);
}

}  // namespace millrace
