// The microbatches that are under way in a stage.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "runtime/base/ids.h"
#include "runtime/stage/layer_runner.h"

namespace millrace {

/// A slot for each microbatch between its first tensor and its last. Slots are few, so they are found by
/// looking, and used again, because their vectors have grown. Not thread-safe.
class LayerSlots {
 public:
  using Slots = std::vector<std::unique_ptr<LayerSlot>>;

  /// `num_places` is StageProgram's.
  explicit LayerSlots(int num_places) : num_places_(num_places) {}

  /// Returns the microbatch's slot. It is a fresh one if the microbatch has none yet.
  LayerSlot& of(MicrobatchId microbatch);
  /// Ends the slot when nothing of it is still to be computed or sent. `training`: its last backward must be
  /// done and its gradients sent; else its activations.
  void release_if_done(LayerSlot& slot, bool training);
  const Slots& all() const { return slots_; }
  void exchange(Slots& other) { slots_.swap(other); }

 private:
  int num_places_;
  Slots slots_, free_;
};

}  // namespace millrace
