// The cuts of a GNMT when the stages of a pipeline translate, and the tensors that cross them.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/model/layered_model.h"
#include "runtime/plan/plan.h"

namespace millrace {

/// Words are read and scored by layers of these names; all layers of the decoder begin as the second does.
inline constexpr const char* kGnmtDecoder = "decoder.";
inline constexpr const char* kGnmtAttention = "decoder.att_rnn.attn";
inline constexpr const char* kGnmtClassifier = "decoder.classifier.classifier";
/// The second output of the attention: its probabilities [R, S], for the search.
inline constexpr const char* kGnmtLooks = "decoder.att_rnn.attn.probabilities";

/// The names of each stage's layers, in the model's order. The last stage has the classifier.
using GnmtStages = std::vector<std::vector<std::string>>;

/// `model` (of gnmt_model without dropout) as `plan`, read from `file`, cuts it. Layers that translating does
/// not need, those of dropout, are left out. Problems: layers of the model that the plan has not, or has
/// behind those that read them.
Result<GnmtStages> gnmt_stages(const LayeredModel& model, const Plan& plan, const std::string& file);

/// `stages` runs of layers of about the same work for a sentence whose translations are `beam` hypotheses.
/// Problem: there are not as many layers.
Result<GnmtStages> even_gnmt_stages(const LayeredModel& model, int stages, int beam);

/// A tensor that one stage makes and a later one reads.
struct GnmtCrossing {
  enum class When {
    Encoding,  ///< once, [S, B, features]
    Decoding,  ///< at every word, [R, features]
    Looking,   ///< at every word, [R, S]
  };
  std::string tensor;
  int from = 0, to = 0;  ///< stages
  When when = When::Encoding;
  std::int64_t features = 0;
};
/// Returns the crossings in an order that is the same on all ranks. The encoder's come first.
std::vector<GnmtCrossing> gnmt_crossings(const LayeredModel& model, const GnmtStages& stages);

}  // namespace millrace
