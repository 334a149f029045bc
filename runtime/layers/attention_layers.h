// Attention. Parameter names and shapes are those of the reference models. B microbatch, T targets, S
// sources, H features.
#pragma once

#include "runtime/layers/layer.h"

namespace millrace {

struct BahdanauOptions {
  std::int64_t features = 1;
  double range = 0;          ///< of all initial weights; 0: 1/sqrt(features), as PyTorch's
  std::int64_t padding = 0;  ///< source tokens that nothing looks at
};
/// Normalised Bahdanau attention (arXiv 1409.0473, normalised as in GNMT's code): queries y [T, B, H], keys
/// e [S, B, H], source tokens int64 [S, B] -> context [T, B, H], time-major.
///   s[b,t,i] = g (v/|v|) . tanh(Wq y[t,b] + Wk e[i,b] + beta), p = softmax over i, c[t,b] = sum_i p e[i,b]
/// Parameters linear_q.weight, linear_k.weight [H, H], linear_att = v [H], normalize_scalar = g [1],
/// normalize_bias = beta [H]. The tanh tensor B T S H is never whole: it is made again in backward, a few t
/// at a time.
LayerPtr bahdanau_attention(const BahdanauOptions& options);

/// The same attention for decoding, a query at a time: what does not change from step to step is made once.
class BahdanauMemory {
 public:
  struct Look {
    at::Tensor probabilities;  // [R, S]
    at::Tensor context;        // [R, H]
  };
  /// `encoded` [S, B, H], `source` int64 [S, B], `parameters` as bahdanau_attention's.
  BahdanauMemory(const at::Tensor& encoded, const at::Tensor& source, std::span<const at::Tensor> parameters,
                 std::int64_t padding = 0);
  /// `queries` [R, H] of sentences `sentence_of_row` (int64 [R], rising).
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
  double dropout = 0;          ///< of the probabilities; mask from CallContext::random_seed alone
  Causal causal = Causal::No;  ///< a position looks at itself and those before
  bool packed = false;         ///< one input [B, T, 3H]: queries, keys, values side by side
  bool masked = false;  ///< a last input: tokens int64 [B, T], of which those of `padding` are not looked at
  std::int64_t padding = 0;
};
/// Scaled dot-product attention of `heads` heads (arXiv 1706.03762, section 3.2): queries, keys, values
/// [B, T, H] (already projected) -> [B, T, H]. No parameters. Keeps B x heads x T x T probabilities.
LayerPtr self_attention(const AttentionOptions& options);

}  // namespace millrace
