#include "runtime/emulation/times_by_size.h"

#include <iterator>

#include "runtime/base/check.h"

namespace millrace {
namespace {

/// a x `of_a` + b x `of_b`
LayerSeconds sum_of(const LayerSeconds& a, double of_a, const LayerSeconds& b, double of_b) {
  return {.forward = a.forward * of_a + b.forward * of_b,
          .backward_input = a.backward_input * of_a + b.backward_input * of_b,
          .backward_weight = a.backward_weight * of_a + b.backward_weight * of_b};
}

}  // namespace

void TimesBySize::add(double size, const LayerSeconds& seconds) {
  Measured& measured = measured_[size];
  measured.sum = sum_of(measured.sum, 1, seconds, 1);
  ++measured.count;
}

LayerSeconds TimesBySize::at(double size) const {
  MILLRACE_CHECK(!measured_.empty(), "no microbatch was measured");
  const auto above = measured_.lower_bound(size);
  if (above != measured_.begin() && above != measured_.end()) {
    const auto& [low_size, low] = *std::prev(above);
    const auto& [high_size, high] = *above;
    const double share = (size - low_size) / (high_size - low_size);
    return sum_of(low.sum, (1 - share) / low.count, high.sum, share / high.count);
  }
  const auto& [end_size, end] = above == measured_.end() ? *measured_.rbegin() : *above;
  const bool stands_for_it = measured_.size() == 1 || size == end_size;
  const double growth = stands_for_it ? 1 : size / end_size;
  return sum_of(end.sum, growth / end.count, {}, 0);
}

}  // namespace millrace
