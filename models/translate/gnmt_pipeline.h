// Translating over the stages of a pipeline: batches of sentences follow each other through the ranks, each
// of which holds a stage's layers. The search is at the last stage; what it decides goes back to the others.
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
  std::int64_t limit = 0;  ///< only words below it are offered; 0: all
  int in_flight = 0;       ///< batches under way at the same time; 0: enough that all stages have work
  /// Pipelines over the same ranks, each with a communicator and a thread of its own: which this is, of how
  /// many.
  int lane = 0, lanes = 1;
};

/// Collective over `ranks`, rank s of which holds stage s of `stages` in `mine`; all have the same batches
/// and options. At the last stage `found` gets the hypotheses of every batch (its place in `batches`), those
/// that beam_search over the whole model finds, in the order in which they are done. At any time a stage
/// works at one batch; a wait for another stage is as long as its work: `ranks` must have a deadline for
/// that. Throws PeerError if one is lost. Runs under no_grad.
void translate_in_stages(
    const GnmtTranslator& mine, const GnmtStages& stages, Communicator& ranks,
    std::span<const SentenceIds> batches, const GnmtPipelineOptions& options,
    const std::function<void(std::size_t batch, std::vector<std::vector<Hypothesis>> found)>& found);

}  // namespace millrace
