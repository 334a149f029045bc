// LSTMs over whole sequences. Parameter names and shapes are PyTorch's. T is the number of steps, B the
// microbatch, I inputs, H hidden units. Tensors are time-major, and states start at zero.
#pragma once

#include "runtime/layers/layer.h"

namespace millrace {

struct LstmOptions {
  std::int64_t in = 1, hidden = 1;
  double range = 0;               ///< initial values are uniform in +-range; 0: 1/sqrt(hidden), as PyTorch's
  bool zero_hidden_bias = false;  ///< bias_hh starts at zero (MLPerf's GNMT)
  bool zero_input_bias = false;   ///< bias_ih starts at zero
};

/// [T, B, I] -> [T, B, H]. Parameters weight_ih_l0 [4H, I], weight_hh_l0 [4H, H], bias_ih_l0, bias_hh_l0
/// [4H], with the gates in the order input, forget, cell, output. The gradient of each weight is one matrix
/// product over all steps.
LayerPtr lstm(const LstmOptions& options);

struct CarriedLstmOptions {
  LstmOptions sizes;
  double weight_drop = 0;  ///< probability that an element of weight_hh is left out of a forward
};
/// An LSTM over running text (CarryingLayer): it begins with the h and c [B, H] that it left. With weight
/// drop (arXiv 1708.02182, section 2) one mask on weight_hh serves all steps. Parameters and names are those
/// of salesforce/awd-lstm-lm: as lstm's, except that weight_hh_l0_raw follows weight_ih_l0.
LayerPtr carried_lstm(const CarriedLstmOptions& options);

/// [T, B, I], tokens int64 [T, B] -> [T, B, 2H]: side by side, an LSTM over each sentence and one over the
/// sentence read backwards from its last token. A sentence ends where the `padding` tokens begin. Outputs
/// there are zero, and the input's values there do not matter, as in torch's LSTM over packed sequences.
/// Parameters are lstm's, then the same with "_reverse". PipeDream's EmuBidirLSTM
/// (profiler/translation/seq2seq/models) has them below "bidir", and once more as two LSTMs of one direction,
/// "layer1" and "layer2".
LayerPtr bidirectional_lstm(const LstmOptions& options, std::int64_t padding = 0);

/// The state that an LSTM passes from one step to the next, for R independent rows: h and c, [R, H] each.
struct LstmState {
  at::Tensor h, c;
};
/// Computes one step of `lstm` after the state `before` (undefined: zero), for decoding. x is [R, I]; the
/// result is the new state, whose h is the output. `parameters` are lstm's. The sums are those of a step of
/// the whole sequence, in the same order.
LstmState lstm_step(const at::Tensor& x, const LstmState& before, std::span<const at::Tensor> parameters);

}  // namespace millrace
