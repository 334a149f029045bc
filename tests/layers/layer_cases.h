// The layers that conformance suites run: one process against itself, and job arrays against their jobs.
#pragma once

#include <vector>

#include "runtime/layers/adaptive_softmax.h"
#include "runtime/layers/adversarial_layers.h"
#include "runtime/layers/attention_layers.h"
#include "runtime/layers/basic_layers.h"
#include "runtime/layers/image_layers.h"
#include "runtime/layers/point_layers.h"
#include "runtime/layers/recurrent_layers.h"
#include "runtime/layers/sequence_layers.h"
#include "runtime/layers/transposed_convolution.h"

namespace millrace {

enum class Order { AsAutograd, Own };

struct LayerCase {
  const char* name;
  LayerPtr layer;
  std::vector<Shape> inputs;
  std::vector<std::int64_t> limits = {};  ///< by input: integers below, if not 0
  Order order = Order::AsAutograd;
};

inline std::vector<LayerCase> layer_cases() {
  return {
      {"linear", linear(7, 5), {{3, 7}}},
      {"linear_wide", linear(64, 64), {{8, 64}}},
      {"linear_3d", linear(7, 5), {{3, 4, 7}}},
      {"linear_to_two", linear(64, 2), {{8, 64}}},
      {"linear_of_many_rows", linear(9, 8), {{400, 9}}},
      {"layer_norm", layer_norm(6), {{3, 4, 6}}},
      {"conv", conv2d({.in = 3, .out = 4, .kernel = 3, .padding = 1}), {{2, 3, 8, 8}}},
      {"conv_strided",
       conv2d({.in = 4, .out = 6, .kernel = 3, .stride = 2, .padding = 1, .bias = false}),
       {{2, 4, 9, 7}}},
      {"conv_1x1", conv2d({.in = 8, .out = 4, .kernel = 1}), {{2, 8, 5, 5}}},
      {"conv_grouped", conv2d({.in = 8, .out = 12, .padding = 1, .groups = 4}), {{2, 8, 6, 6}}},
      {"conv_depthwise",
       conv2d({.in = 6, .out = 6, .kernel = 5, .stride = 2, .padding = 2, .bias = false, .groups = 6}),
       {{2, 6, 9, 9}}},
      {"conv_wide", conv2d({.in = 4, .out = 6, .kernel = {1, 7}, .padding = {0, 3}}), {{2, 4, 5, 9}}},
      {"conv_high",
       conv2d({.in = 4, .out = 6, .kernel = {7, 1}, .padding = {3, 0}, .bias = false}),
       {{2, 4, 5, 9}}},
      {"conv_transpose",
       conv_transpose2d({.in = 4, .out = 6, .kernel = 4, .stride = 2, .padding = 1, .bias = false}),
       {{2, 4, 5, 3}}},
      {"conv_transpose_of_one_pixel", conv_transpose2d({.in = 8, .out = 4, .kernel = 4}), {{3, 8, 1, 1}}},
      {"conv_transpose_grouped",
       conv_transpose2d(
           {.in = 4, .out = 6, .kernel = 3, .stride = 3, .padding = 1, .output_padding = 2, .groups = 2}),
       {{2, 4, 4, 3}}},
      {"embedding", embedding({.vocabulary = 11, .features = 4}), {{3, 5}}, {11}},
      {"batch_norm", batch_norm2d(6), {{4, 6, 5, 5}}},
      {"batch_norm_mobile", batch_norm2d(6, {.momentum = 0.01, .epsilon = 1e-3}), {{4, 6, 5, 5}}},
      {"batch_norm_rows", batch_norm1d(6), {{4, 6}}},
      {"batch_norm_points", batch_norm1d(6), {{4, 5, 6}}},
      {"relu", relu(), {{4, 9}}},
      {"leaky_relu", leaky_relu(0.2), {{4, 9}}},
      {"gelu", gelu(), {{4, 9}}},
      {"gelu_odd", gelu(), {{3, 9}}},
      {"gelu_large", gelu(), {{256, 256}}},
      {"max_pool", max_pool2d(3, 2, 1), {{2, 3, 8, 8}}},
      {"max_pool_ceil", max_pool2d(3, 2, 0, LastWindow::Kept), {{2, 3, 8, 7}}},
      {"max_pool_ceil_of_less_than_a_window", max_pool2d(3, 2, 0, LastWindow::Kept), {{2, 3, 2, 2}}},
      {"max_pool_ceil_padded", max_pool2d(2, 2, 1, LastWindow::Kept), {{2, 3, 5, 4}}},
      {"adaptive_avg_pool", adaptive_avg_pool2d(2, 2), {{2, 3, 7, 7}}},
      {"avg_pool", avg_pool2d({.kernel = 2, .stride = 2}), {{2, 3, 7, 8}}},
      {"avg_pool_padded", avg_pool2d({.kernel = 3, .stride = 1, .padding = 1}), {{2, 3, 5, 5}}},
      {"avg_pool_of_the_image",
       avg_pool2d({.kernel = 3, .stride = 2, .padding = 1, .count_padding = false}),
       {{2, 3, 6, 6}}},
      {"concat", concat(), {{2, 3, 4, 4}, {2, 5, 4, 4}, {2, 1, 4, 4}}},
      {"scale_channels", scale_channels(), {{2, 3, 4, 5}, {2, 3, 1, 1}}},
      {"scale_one_pixel", scale_channels(), {{2, 3, 1, 1}, {2, 3, 1, 1}}},
      {"relu6", relu6(), {{40, 9}}},
      {"hard_sigmoid", hard_sigmoid(), {{40, 9}}},
      {"hard_swish", hard_swish(), {{40, 9}}},
      {"dropout", dropout(0.3), {{4, 50}}},
      {"flatten", flatten(), {{2, 3, 4, 5}}},
      {"add", add(), {{3, 4}, {3, 4}}},
      {"max_over_points", max_over_points(), {{3, 7, 5}}},
      {"transform_matrix", transform_matrix(3), {{4, 9}}},
      {"transform_points", transform_points(), {{4, 7, 3}, {4, 3, 3}}},
      {"concat_global", concat_global(), {{4, 5}, {4, 7, 3}}},
      {"gelu_tanh", gelu(GeluForm::Tanh), {{4, 9}}},
      {"gelu_tanh_even", gelu(GeluForm::Tanh), {{4, 8}}},
      {"tanh", tanh_layer(), {{4, 9}}},
      {"learned_positions", learned_positions(7, 6, 0.5), {{3, 4, 6}}},
      {"sinusoidal_positions", sinusoidal_positions(6, 2.5), {{3, 4, 6}}},
      {"concat_features", concat_features(), {{3, 4, 2}, {3, 4, 5}}},
      {"token_flag", token_flag(), {{6, 3, 5}, {6, 3}}, {0, 3}},
      {"adaptive_log_softmax",
       adaptive_log_softmax({.in = 9, .classes = 13, .cutoffs = {3, 7}, .divisor = 2}),
       {{6, 3, 9}, {6, 3}},
       {0, 13}},
      {"first_token", first_token(), {{3, 4, 5}}},
      {"gather_positions", gather_positions(), {{3, 4, 5}, {3, 6}}, {0, 4}},
      {"padded_embedding", embedding({.vocabulary = 5, .features = 4, .padding = 0}), {{3, 7}}, {5}},
      {"lstm", lstm({.in = 5, .hidden = 4}), {{6, 3, 5}}, {}, Order::Own},
      {"lstm_of_many_steps", lstm({.in = 5, .hidden = 4}), {{100, 3, 5}}, {}, Order::Own},
      {"lstm_one_step", lstm({.in = 5, .hidden = 4}), {{1, 3, 5}}, {}, Order::Own},
      {"carried_lstm",
       carried_lstm({.sizes = {.in = 5, .hidden = 4}, .weight_drop = 0.4}),
       {{6, 3, 5}},
       {},
       Order::Own},
      {"locked_dropout", locked_dropout(0.3), {{6, 3, 5}}},
      {"row_dropout", row_dropout(9, 0.4), {{6, 3, 5}, {6, 3}}, {0, 9}},
      {"bidirectional_lstm",
       bidirectional_lstm({.in = 5, .hidden = 4}),
       {{6, 3, 5}, {6, 3}},
       {0, 2},
       Order::Own},
      {"bahdanau_attention",
       bahdanau_attention({.features = 4}),
       {{3, 5, 4}, {6, 5, 4}, {6, 5}},
       {0, 0, 3},
       Order::Own},
      {"bahdanau_attention_in_tiles",
       bahdanau_attention({.features = 64}),
       {{9, 8, 64}, {128, 8, 64}, {128, 8}},
       {0, 0, 30},
       Order::Own},
      {"self_attention",
       self_attention({.heads = 3, .dropout = 0.2, .masked = true}),
       {{2, 5, 12}, {2, 5, 12}, {2, 5, 12}, {2, 5}},
       {0, 0, 0, 3},
       Order::Own},
      {"causal_attention",
       self_attention({.heads = 2, .dropout = 0.2, .causal = Causal::Yes, .packed = true}),
       {{2, 5, 24}},
       {},
       Order::Own},
  };
}

}  // namespace millrace
