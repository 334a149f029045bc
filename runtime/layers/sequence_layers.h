// Layers over tokens and vectors. Parameter names and shapes are PyTorch's. V is the vocabulary size, F
// features, B the microbatch size, T positions, P selected positions.
#pragma once

#include "runtime/layers/layer.h"

namespace millrace {

struct EmbeddingOptions {
  std::int64_t vocabulary = 1;
  std::int64_t features = 1;
  double deviation = 1;       ///< standard deviation of normal initial values, if `range` is 0
  double range = 0;           ///< above 0: initial values are uniform in +-range
  std::int64_t padding = -1;  ///< the row that gets no gradient; -1: none
  bool zero_padding = true;   ///< the row `padding` is initially zero
  /// rows with a greater norm are scaled to it before they are read; 0: no row is scaled
  double max_norm = 0;
  double norm_type = 2;  ///< p of that norm
};
/// int64 [...] in [0, V) -> [..., F]. With a `max_norm`, training writes rescaled rows to the weights until
/// none exceeds it, as torch.nn.Embedding does. No gradient flows through the scaling. Evaluation reads the
/// same rows and writes nothing. With a `max_norm`, the jobs of an array are called one after another.
LayerPtr embedding(const EmbeddingOptions& options);

LayerPtr layer_norm(std::int64_t features, double epsilon = 1e-5);  ///< normalises over the last dimension

/// Adds weight[:T] to x [B, T, F], with T at most `positions`. The parameter weight [positions, F] is
/// initially normal with standard deviation `deviation`.
LayerPtr learned_positions(std::int64_t positions, std::int64_t features, double deviation);
/// Returns scale * x [B, T, F] plus sines and cosines of the position (arXiv 1706.03762, section 3.5), for
/// any T. F must be even.
LayerPtr sinusoidal_positions(std::int64_t features, double scale);

/// Multiplies x [T, B, F] by one dropout mask [1, B, F] for all steps (variational dropout, arXiv
/// 1512.05287).
LayerPtr locked_dropout(double p);
/// x [..., F], tokens int64 [...] in [0, vocabulary) -> x with zeros in the rows of all dropped tokens,
/// chosen by a mask [vocabulary]. It drops whole rows of the embedding that produced x (arXiv 1708.02182,
/// section 4.3).
LayerPtr row_dropout(std::int64_t vocabulary, double p);

LayerPtr concat_features();  ///< [..., F1], [..., F2], ... -> [..., F1 + F2 + ...]
/// x [..., F], tokens int64 [...] -> [..., F + 1]. The added last feature is 0 if the token is `padding`,
/// else 1.
LayerPtr token_flag(std::int64_t padding = 0);
LayerPtr first_token();       ///< [B, T, F] -> [B, F]
LayerPtr gather_positions();  ///< [B, T, F], int64 [B, P] in [0, T) -> [B, P, F]

}  // namespace millrace
