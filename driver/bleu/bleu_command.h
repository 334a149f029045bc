// `millrace bleu`: BLEU of translations. LibTorch-free.
#pragma once

#include <string>
#include <vector>

#include "driver/cli/cli.h"

namespace millrace {

CommandSpec bleu_spec();

/// What the flags of a command line with --run give for one file of hypotheses; its positionals are the
/// references.
struct FileScore {
  double bleu = 0;  ///< 0 to 100
  std::string signature;
};
Result<FileScore> score_file(Arguments& arguments, const std::string& hypotheses);

/// Prints scores to stdout, problems and warnings to stderr. Returns the exit code.
int bleu_command(const std::vector<std::string>& args);

}  // namespace millrace
