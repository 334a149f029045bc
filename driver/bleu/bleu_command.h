// `millrace bleu`: BLEU of translations. LibTorch-free.
#pragma once

#include <string>
#include <vector>

#include "driver/cli/cli.h"

namespace millrace {

CommandSpec bleu_spec();

/// Prints scores to stdout, problems and warnings to stderr. Returns the exit code.
int bleu_command(const std::vector<std::string>& args);

}  // namespace millrace
