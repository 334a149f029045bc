// The microbatches in flight in a stage.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "runtime/base/ids.h"
#include "runtime/stage/layer_runner.h"

namespace millrace {

/// One slot per microbatch between its first tensor and its last. There are few slots, so a linear search
/// finds them. They are reused, because their vectors have grown. Not thread-safe.
class LayerSlots {
 public:
  using Slots = std::vector<std::unique_ptr<LayerSlot>>;

  /// `num_places` is that of the StageProgram.
  explicit LayerSlots(int num_places) : num_places_(num_places) {}

  /// Returns the microbatch's slot; a fresh one if the microbatch has none yet.
  LayerSlot& of(MicrobatchId microbatch);
  /// Releases the slot if it has nothing left to compute or send. `training`: its last backward must be
  /// complete and its gradients sent; otherwise its activations.
  void release_if_done(LayerSlot& slot, bool training);
  const Slots& all() const { return slots_; }
  void exchange(Slots& other) { slots_.swap(other); }

 private:
  int num_places_;
  Slots slots_, free_;
};

}  // namespace millrace
