// Layers over tokens and vectors. Parameter names and shapes are PyTorch's. V vocabulary, F features, B
// microbatch, T positions, P chosen positions.
#pragma once

#include "runtime/layers/layer.h"

namespace millrace {

struct EmbeddingOptions {
  std::int64_t vocabulary = 1;
  std::int64_t features = 1;
  double deviation = 1;       ///< of the normal distribution of initial values; 0: see `range`
  double range = 0;           ///< uniform in +-range
  std::int64_t padding = -1;  ///< a row without gradient; -1: none
  bool zero_padding = true;   ///< that row starts at zero
  double max_norm = 0;        ///< rows that are longer are scaled to it before they are read; 0: none are
  double norm_type = 2;       ///< p of that norm
};
/// int64 [...] in [0, V) -> [..., F]. With a `max_norm` training writes the scaled rows to the weights, as
/// torch.nn.Embedding does, until none is longer; no gradient goes through the scaling. Evaluation reads the
/// same rows and writes nothing. The jobs of an array are called one after the other.
LayerPtr embedding(const EmbeddingOptions& options);

LayerPtr layer_norm(std::int64_t features, double epsilon = 1e-5);  ///< over the last dimension

/// x [B, T, F] + weight[:T], T at most `positions`. Parameter weight [positions, F], normal of `deviation`.
LayerPtr learned_positions(std::int64_t positions, std::int64_t features, double deviation);
/// scale * x [B, T, F] + sin and cos (arXiv 1706.03762, section 3.5), for any T; F is even.
LayerPtr sinusoidal_positions(std::int64_t features, double scale);

/// x [T, B, F] -> x with a mask [1, B, F] for all its steps (variational dropout, arXiv 1512.05287).
LayerPtr locked_dropout(double p);
/// x [..., F], tokens int64 [...] in [0, vocabulary) -> x without those tokens that a mask [vocabulary] drops
/// everywhere: dropout of whole rows of the embedding that x came from (arXiv 1708.02182, section 4.3).
LayerPtr row_dropout(std::int64_t vocabulary, double p);

LayerPtr concat_features();  ///< [..., F1], [..., F2], ... -> [..., F1 + F2 + ...]
/// x [..., F], tokens int64 [...] -> [..., F + 1]: after x's features 1, or 0 where the token is `padding`.
LayerPtr token_flag(std::int64_t padding = 0);
LayerPtr first_token();       ///< [B, T, F] -> [B, F]
LayerPtr gather_positions();  ///< [B, T, F], int64 [B, P] in [0, T) -> [B, P, F]

}  // namespace millrace
