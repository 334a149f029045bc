// BLEU while a run trains (`train --bleu-every`): the ranks share a text's sentences, each with the whole
// model's weights of that moment.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "driver/flags/compute_specs.h"
#include "runtime/comm/communicator.h"
#include "runtime/train/weights_score.h"

namespace millrace {

/// The text to translate, and the references to compare it with. A process reads it once, before the first
/// step. Immutable; thread-safe.
class BleuText {
 public:
  virtual ~BleuText() = default;
  /// Returns a text that differs where texts or flags differ. Ranks compare it.
  virtual std::string fingerprint() const = 0;
  virtual std::string signature() const = 0;  ///< sacreBLEU's, of the score
  virtual std::int64_t sentences() const = 0;
  virtual std::int64_t vocabulary() const = 0;  ///< tokens of the target's
};

/// Flags that do not go together, or without each other.
Problems bleu_flag_problems(const ScoreFlags& flags);

/// `vocabulary`: of the model; `recorded`: of the training data, as checkpoints record it. Problems: of
/// --bleu-translate, of files, of texts that differ in length. Throws DataError for the source.
Result<std::shared_ptr<const BleuText>> read_bleu_text(const ScoreFlags& flags, std::int64_t vocabulary,
                                                       const Settings& recorded);

/// A rank's. `threads`: batches at a time, each on a core; `output_dir`: gets the translations as
/// bleu/step-N; empty: nothing is written. `world` outlives it.
std::unique_ptr<WeightsScore> make_bleu_score(std::shared_ptr<const BleuText> text, Communicator& world,
                                              int threads, const std::string& output_dir);

}  // namespace millrace
