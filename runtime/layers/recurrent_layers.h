// LSTMs over whole sequences. Parameter names and shapes are PyTorch's. T steps, B microbatch, I inputs, H
// hidden units; tensors are time-major, states start at zero.
#pragma once

#include "runtime/layers/layer.h"

namespace millrace {

struct LstmOptions {
  std::int64_t in = 1, hidden = 1;
  double range = 0;               ///< initial values are uniform in +-range; 0: 1/sqrt(hidden), as PyTorch's
  bool zero_hidden_bias = false;  ///< bias_hh starts at zero (MLPerf's GNMT)
  bool zero_input_bias = false;   ///< so does bias_ih
};

/// [T, B, I] -> [T, B, H]. Parameters weight_ih_l0 [4H, I], weight_hh_l0 [4H, H], bias_ih_l0, bias_hh_l0
/// [4H]; gates in the order input, forget, cell, output. The weight gradient is one matrix product for each
/// weight over all steps.
LayerPtr lstm(const LstmOptions& options);

struct CarriedLstmOptions {
  LstmOptions sizes;
  double weight_drop = 0;  ///< probability that an element of weight_hh is left out of a forward
};
/// The same over text that runs on (CarryingLayer): it begins with the h and c [B, H] that it left. Weight
/// drop (arXiv 1708.02182, section 2): one mask on weight_hh for all steps. Parameters and names are those of
/// salesforce/awd-lstm-lm: lstm's, but weight_hh_l0_raw, after weight_ih_l0.
LayerPtr carried_lstm(const CarriedLstmOptions& options);

/// [T, B, I], tokens int64 [T, B] -> [T, B, 2H]: an LSTM over each sentence, and one over each sentence read
/// from its last token back, side by side. A sentence ends where the `padding` tokens begin; outputs there
/// are zero, and what the input holds there does not matter: torch's LSTM over packed sequences. Parameters
/// as lstm's, then the same with "_reverse"; PipeDream's EmuBidirLSTM (profiler/translation/seq2seq/models)
/// has them below "bidir", and once more as two LSTMs of one direction, "layer1" and "layer2".
LayerPtr bidirectional_lstm(const LstmOptions& options, std::int64_t padding = 0);

/// What an LSTM hands from a step to the next, for R rows that go on by themselves: h and c, [R, H] each.
struct LstmState {
  at::Tensor h, c;
};
/// One step of `lstm` after `before` (undefined: zero), for decoding: x [R, I] -> the state after it, whose h
/// is the output. `parameters` as lstm's. The same sums in the same order as a step of the whole sequence.
LstmState lstm_step(const at::Tensor& x, const LstmState& before, std::span<const at::Tensor> parameters);

}  // namespace millrace
