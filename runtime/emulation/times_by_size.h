// The times of a layer as a function of the size of its work on a microbatch, which differs between
// microbatches of sentences.
#pragma once

#include <map>

#include "runtime/plan/layer_graph.h"

namespace millrace {

class TimesBySize {
 public:
  /// Adds the times of a measured microbatch. `size` may be any measure of its work.
  void add(double size, const LayerSeconds& seconds);

  /// Returns the times of a microbatch of `size`: the mean of those measured with this size. Between two
  /// measured sizes, times are interpolated linearly. Beyond all of them, they are proportional to the size.
  /// If only one size was measured, all microbatches have its times. At least one microbatch must have been
  /// added.
  LayerSeconds at(double size) const;

 private:
  struct Measured {
    LayerSeconds sum;
    int count = 0;
  };
  std::map<double, Measured> measured_;
};

}  // namespace millrace
