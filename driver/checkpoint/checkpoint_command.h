// `millrace checkpoint`: lists, verifies, compares and prunes a run's checkpoints; exports and imports
// tensors. LibTorch-free.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "driver/cli/command_group.h"

namespace millrace {

CommandSpec checkpoint_spec();
std::span<const Subcommand> checkpoint_subcommands();
int checkpoint_command(const std::vector<std::string>& args);

CommandSpec checkpoint_ls_spec();
int checkpoint_ls_command(const std::vector<std::string>& args);
CommandSpec checkpoint_verify_spec();
int checkpoint_verify_command(const std::vector<std::string>& args);
CommandSpec checkpoint_prune_spec();
int checkpoint_prune_command(const std::vector<std::string>& args);
CommandSpec checkpoint_diff_spec();
int checkpoint_diff_command(const std::vector<std::string>& args);
CommandSpec checkpoint_export_spec();
int checkpoint_export_command(const std::vector<std::string>& args);
CommandSpec checkpoint_import_spec();
int checkpoint_import_command(const std::vector<std::string>& args);

}  // namespace millrace
