// The one definition of a sum over ranks.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>

namespace millrace {

/// Writes ((p0 + p1) + p2) + ... into `into`, which may be one of the parts. At least two parts of one shape.
inline void sum_in_order(const std::vector<at::Tensor>& parts, at::Tensor into) {
  if (parts.size() == 2) {
    at::add_out(into, parts[0], parts[1]);
    return;
  }
  at::Tensor sum = at::add(parts[0], parts[1]);
  for (std::size_t i = 2; i < parts.size(); ++i) sum.add_(parts[i]);
  into.copy_(sum);
}

}  // namespace millrace
