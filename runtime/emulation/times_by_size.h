// The times of a layer, by the size of its work on a microbatch. Microbatches of sentences differ in it.
#pragma once

#include <map>

#include "runtime/plan/layer_graph.h"

namespace millrace {

class TimesBySize {
 public:
  /// Adds the times of a measured microbatch. Any measure of its work serves as `size`.
  void add(double size, const LayerSeconds& seconds);

  /// Returns the times of a microbatch of `size`: the mean of those that were measured with this size.
  /// Between two measured sizes times lie on the line through both. Beyond all of them they grow and shrink
  /// as the size does. If only one size was measured, all microbatches take its times. At least one
  /// microbatch must have been added.
  LayerSeconds at(double size) const;

 private:
  struct Measured {
    LayerSeconds sum;
    int count = 0;
  };
  std::map<double, Measured> measured_;
};

}  // namespace millrace
