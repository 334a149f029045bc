// `millrace bleu --run`: every checkpoint of a run translated and scored; what the report draws of it.
// LibTorch-free.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/result.h"

namespace millrace {

/// A checkpoint's score.
struct CheckpointBleu {
  std::int64_t step = 0;
  std::optional<double> epochs;           ///< passes over the data until then
  std::optional<double> hours;            ///< of training until then: the sum of the steps' times
  std::optional<double> validation_loss;  ///< of the run's evaluation at this step
  double bleu = 0;
};

struct RunData;
/// The scores that the run itself has logged (`train --bleu-every`).
std::vector<CheckpointBleu> logged_bleu(const RunData& run);

/// Returns what `bleu --run` has written for the run in `folder`. Empty: nothing. Problem: it cannot be
/// read.
Result<std::vector<CheckpointBleu>> read_run_bleu(const std::string& folder);

/// The command: as bleu_command, for command lines with --run.
bool scores_a_run(const std::vector<std::string>& args);
int run_bleu_command(const std::vector<std::string>& args);

}  // namespace millrace
