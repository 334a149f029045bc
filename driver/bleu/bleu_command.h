// `millrace bleu`: BLEU of translations. LibTorch-free.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "driver/cli/cli.h"
#include "runtime/metrics/bleu.h"
#include "runtime/metrics/significance.h"

namespace millrace {

/// The flags of `millrace bleu`.
struct BleuFlags {
  BleuCompat compat = BleuCompat::Sacrebleu2;
  std::optional<BleuTokens> tokens;    ///< nothing: the compared program's
  std::optional<Smoothing> smoothing;  ///< likewise
  BleuOptions options;                 ///< smooth_value, max_order and reference_length alone
  bool lowercase = false, preserve_case = false;
  int num_refs = 1;  ///< tab-separated in one file; 0: as many as there are
  std::vector<std::string> systems;
  bool sentences = false, detokenize = false, force = false;
  // -- of a run's checkpoints --
  std::optional<std::string> run, input;
  std::string translate;
  // -- significance --
  bool confidence = false, paired_bootstrap = false, paired_randomization = false;
  int confidence_samples = 1000, bootstrap_samples = 1000, randomization_trials = 10'000;
  std::uint64_t seed = ResamplingOptions{}.seed;
  // -- output --
  bool score_only = false, short_signature = false;
  int width = 2;
  OutputFormat format = OutputFormat::Text;
};

CommandSpec bleu_spec(BleuFlags& flags);
CommandSpec bleu_spec();

/// The score of one file of hypotheses. The command line has --run, and its positionals are the references.
struct FileScore {
  double bleu = 0;  ///< 0 to 100
  std::string signature;
};
Result<FileScore> score_file(const BleuFlags& flags, const Arguments& given, const std::string& hypotheses);

/// Prints scores to stdout, problems and warnings to stderr. Returns the exit code.
int bleu_command(const std::vector<std::string>& args);

}  // namespace millrace
