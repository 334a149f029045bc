// LSTMs over whole sequences. Parameter names and shapes are PyTorch's. T is the number of steps, B the
// microbatch size, I inputs, H hidden units. Tensors are time-major, and initial states are zero.
#pragma once

#include "runtime/layers/layer.h"

namespace millrace {

struct LstmOptions {
  std::int64_t in = 1, hidden = 1;
  double range = 0;               ///< initial values are uniform in +-range; 0: 1/sqrt(hidden), as in PyTorch
  bool zero_hidden_bias = false;  ///< bias_hh is initially zero (MLPerf's GNMT)
  bool zero_input_bias = false;   ///< bias_ih is initially zero
};

/// [T, B, I] -> [T, B, H]. Parameters weight_ih_l0 [4H, I], weight_hh_l0 [4H, H], bias_ih_l0, bias_hh_l0
/// [4H], with the gates in the order input, forget, cell, output. Each weight's gradient is one matrix
/// product over all steps.
LayerPtr lstm(const LstmOptions& options);

struct CarriedLstmOptions {
  LstmOptions sizes;
  double weight_drop = 0;  ///< probability that an element of weight_hh is dropped in a forward
};
/// An LSTM over running text (CarriesState): it starts with its previous h and c [B, H]. With weight drop
/// (arXiv 1708.02182, section 2), one mask on weight_hh serves all steps. Parameters and names are those of
/// salesforce/awd-lstm-lm: as in lstm, except that weight_hh_l0_raw follows weight_ih_l0.
LayerPtr carried_lstm(const CarriedLstmOptions& options);

/// [T, B, I], tokens int64 [T, B] -> [T, B, 2H]: the concatenation of an LSTM over each sentence and an LSTM
/// over the reversed sentence. A sentence ends at its first `padding` token. Outputs there are zero, and the
/// input's values there do not matter, as in torch's LSTM over packed sequences. Parameters are those of
/// lstm, then the same names with "_reverse". PipeDream's EmuBidirLSTM (profiler/translation/seq2seq/models)
/// has them below "bidir", and again as two unidirectional LSTMs, "layer1" and "layer2".
LayerPtr bidirectional_lstm(const LstmOptions& options, std::int64_t padding = 0);

/// The state between steps of an LSTM, for R independent rows: h and c, [R, H] each.
struct LstmState {
  at::Tensor h, c;
};
/// Returns the state after one step of `lstm` from the state `before` (undefined: zero), for decoding. x is
/// [R, I]; the new state's h is the output. `parameters` are those of lstm. The sums have the same order as
/// in a step over the whole sequence.
LstmState lstm_step(const at::Tensor& x, const LstmState& before, std::span<const at::Tensor> parameters);

}  // namespace millrace
