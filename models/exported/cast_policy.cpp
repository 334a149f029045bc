#include "models/exported/cast_policy.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace millrace {
namespace {

using Ops = std::string_view;

// A part of torch.autocast's list of operators with lower precision on the CPU.
constexpr auto kLower =
    std::to_array<Ops>({"linear", "mm", "addmm", "bmm", "baddbmm", "addbmm", "matmul", "conv1d", "conv2d",
                        "conv3d", "convolution", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
                        "scaled_dot_product_attention"});

// Operators whose output has the type of their input.
constexpr auto kPassOn = std::to_array<Ops>({"view",
                                             "reshape",
                                             "_unsafe_view",
                                             "flatten",
                                             "unflatten",
                                             "transpose",
                                             "permute",
                                             "t",
                                             "contiguous",
                                             "clone",
                                             "unsqueeze",
                                             "squeeze",
                                             "expand",
                                             "slice",
                                             "select",
                                             "split",
                                             "chunk",
                                             "cat",
                                             "stack",
                                             "narrow",
                                             "unbind",
                                             "add",
                                             "sub",
                                             "mul",
                                             "div",
                                             "neg",
                                             "relu",
                                             "gelu",
                                             "tanh",
                                             "sigmoid",
                                             "silu",
                                             "elu",
                                             "leaky_relu",
                                             "hardtanh",
                                             "hardswish",
                                             "hardsigmoid",
                                             "relu6",
                                             "dropout",
                                             "max_pool2d",
                                             "avg_pool2d",
                                             "adaptive_avg_pool2d",
                                             "detach",
                                             "pad",
                                             "constant_pad_nd"});

bool is_one_of(std::span<const Ops> list, const FlatCall& call) {
  std::string_view name = call.op;
  name.remove_prefix(std::min(name.size(), std::string_view("aten::").size()));
  if (name.ends_with('_')) name.remove_suffix(1);  // in place
  return std::ranges::find(list, name) != list.end();
}

}  // namespace

CastPolicy cast_policy_of(std::span<const FlatCall> calls, bool floating_constants) {
  if (floating_constants) return CastPolicy::Float32;
  bool lower = false;
  for (const FlatCall& call : calls) {
    if (is_one_of(kLower, call))
      lower = true;
    else if (!is_one_of(kPassOn, call))
      return CastPolicy::Float32;
  }
  return lower ? CastPolicy::Lower : CastPolicy::Promote;
}

}  // namespace millrace
