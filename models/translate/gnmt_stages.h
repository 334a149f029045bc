// The stages of a GNMT that translates in a pipeline, and the tensors between the stages.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/model/layered_model.h"
#include "runtime/plan/plan.h"

namespace millrace {

/// Names of GNMT's layers. The names of all layers of the decoder begin with kGnmtDecoder.
inline constexpr const char* kGnmtDecoder = "decoder.";
inline constexpr const char* kGnmtAttention = "decoder.att_rnn.attn";
inline constexpr const char* kGnmtClassifier = "decoder.classifier.classifier";
/// The second output of the attention: its probabilities [R, S], for the search.
inline constexpr const char* kGnmtLooks = "decoder.att_rnn.attn.probabilities";

/// The names of each stage's layers, in the model's order. The last stage has the classifier.
using GnmtStages = std::vector<std::vector<std::string>>;

/// Returns the stages into which `plan`, read from `file`, cuts `model` (gnmt_model without dropout). Dropout
/// layers of the plan are left out. Problems: a layer of the model that the plan does not have, or has behind
/// a layer that reads it.
Result<GnmtStages> gnmt_stages(const LayeredModel& model, const Plan& plan, const std::string& file);

/// Cuts the layers into `stages` stages of about the same work for a sentence with `beam` hypotheses.
/// Problem: there are fewer layers than stages.
Result<GnmtStages> even_gnmt_stages(const LayeredModel& model, int stages, int beam);

/// A tensor that one stage makes and a later one reads.
struct GnmtCrossing {
  enum class When {
    Encoding,  ///< sent once, [S, B, features]
    Decoding,  ///< sent at every word, [R, features]
    Looking,   ///< sent at every word, [R, S]
  };
  std::string tensor;
  int from = 0, to = 0;  ///< stages
  When when = When::Encoding;
  std::int64_t features = 0;
};
/// Returns the crossings in an order that is the same on all ranks. The encoder's are first.
std::vector<GnmtCrossing> gnmt_crossings(const LayeredModel& model, const GnmtStages& stages);

}  // namespace millrace
