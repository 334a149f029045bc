#include "driver/checkpoint/checkpoint_command.h"

namespace millrace {
namespace {

const std::vector<Subcommand>& checkpoint_commands() {
  static const std::vector<Subcommand> table{
      {"ls", checkpoint_ls_spec, checkpoint_ls_command},
      {"verify", checkpoint_verify_spec, checkpoint_verify_command},
      {"diff", checkpoint_diff_spec, checkpoint_diff_command},
      {"export", checkpoint_export_spec, checkpoint_export_command},
      {"import", checkpoint_import_spec, checkpoint_import_command},
      {"prune", checkpoint_prune_spec, checkpoint_prune_command},
  };
  return table;
}

}  // namespace

CommandSpec checkpoint_spec() {
  return group_spec("checkpoint", "Checkpoints: list, verify, compare, export, import, prune.");
}

std::span<const Subcommand> checkpoint_subcommands() {
  return checkpoint_commands();
}

int checkpoint_command(const std::vector<std::string>& args) {
  return run_group(checkpoint_spec(), checkpoint_commands(), args);
}

}  // namespace millrace
