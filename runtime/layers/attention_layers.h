// Attention layers. Parameter names and shapes are those of the reference models. B is the microbatch size, T
// the number of targets, S of sources, H of features.
#pragma once

#include "runtime/layers/layer.h"

namespace millrace {

struct BahdanauOptions {
  std::int64_t features = 1;
  double range = 0;  ///< all initial weights are uniform in +-range; 0: 1/sqrt(features), as in PyTorch
  std::int64_t padding = 0;  ///< source tokens with this value get no attention
};
/// Normalised Bahdanau attention (arXiv 1409.0473, normalised as in GNMT's code): queries y [T, B, H], keys e
/// [S, B, H], source tokens int64 [S, B] -> context [T, B, H], time-major.
///   s[b,t,i] = g (v/|v|) . tanh(Wq y[t,b] + Wk e[i,b] + beta), p = softmax over i, c[t,b] = sum_i p e[i,b]
/// Parameters linear_q.weight, linear_k.weight [H, H], linear_att = v [H], normalize_scalar = g [1],
/// normalize_bias = beta [H]. The whole tanh tensor [B, T, S, H] never exists: backward recomputes it for a
/// few t at a time.
LayerPtr bahdanau_attention(const BahdanauOptions& options);

/// Bahdanau attention for decoding, one query at a time. Tensors that do not change between steps are
/// computed once.
class BahdanauMemory {
 public:
  struct Look {
    at::Tensor probabilities;  // [R, S]
    at::Tensor context;        // [R, H]
  };
  /// `encoded` is [S, B, H] and `source` int64 [S, B]. `parameters` are those of bahdanau_attention().
  BahdanauMemory(const at::Tensor& encoded, const at::Tensor& source, std::span<const at::Tensor> parameters,
                 std::int64_t padding = 0);
  /// Computes the attention of `queries` [R, H]. `sentence_of_row` (int64 [R], ascending) is the sentence of
  /// each query.
  Look look(const at::Tensor& queries, const at::Tensor& sentence_of_row) const;

 private:
  at::Tensor encoded_, keys_;  // [B, S, H]
  at::Tensor padded_;          // bool [B, S]
  at::Tensor query_weight_;    // [H, H]
  at::Tensor direction_;       // [H]
};

enum class Causal { No, Yes };
struct AttentionOptions {
  std::int64_t heads = 1;
  /// applied to the probabilities; the mask depends on CallContext::random_seed alone
  double dropout = 0;
  Causal causal = Causal::No;  ///< Yes: a position attends to itself and to earlier positions
  bool packed = false;         ///< the single input is [B, T, 3H]: queries, keys and values concatenated
  bool masked = false;  ///< the last input is tokens int64 [B, T]; those equal to `padding` get no attention
  std::int64_t padding = 0;
};
/// Scaled dot-product attention with `heads` heads (arXiv 1706.03762, section 3.2): queries, keys, values [B,
/// T, H] (already projected) -> [B, T, H]. No parameters. Keeps B x heads x T x T probabilities for the
/// backward.
LayerPtr self_attention(const AttentionOptions& options);

}  // namespace millrace
