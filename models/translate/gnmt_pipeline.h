// Translates over the stages of a pipeline. Each rank holds a stage's layers, and batches of sentences follow
// each other through the ranks. The last stage does the search and sends its choices to the other stages.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "models/translate/gnmt_stages.h"
#include "models/translate/gnmt_translation.h"
#include "runtime/comm/communicator.h"

namespace millrace {

/// Sentences that are translated side by side, each with its begin and end.
using SentenceIds = std::vector<std::vector<std::uint32_t>>;

struct GnmtPipelineOptions {
  BeamOptions search;
  std::int64_t limit = 0;  ///< only words below this number are offered; 0: all
  int in_flight = 0;       ///< batches under way at the same time; 0: enough that all stages have work
  /// The number of this pipeline, and the number of pipelines over the same ranks. Each has a communicator
  /// and a thread of its own.
  int lane = 0, lanes = 1;
};

/// Translates batches. It is collective over `ranks`: rank s holds stage s of `stages` in `mine`, and all
/// ranks pass the same batches and options. At the last stage, `found` gets the index of each batch with its
/// hypotheses, in the order in which batches end. The hypotheses equal those of beam_search over the whole
/// model. A stage works at one batch at a time, and may wait as long as another stage works: the deadline of
/// `ranks` must allow that. Throws PeerError if a rank is lost. Runs under no_grad.
void translate_in_stages(
    const GnmtTranslator& mine, const GnmtStages& stages, Communicator& ranks,
    std::span<const SentenceIds> batches, const GnmtPipelineOptions& options,
    const std::function<void(std::size_t batch, std::vector<std::vector<Hypothesis>> found)>& found);

}  // namespace millrace
