#include "runtime/stage/layer_slots.h"

#include <algorithm>

namespace millrace {

LayerSlot& LayerSlots::of(MicrobatchId microbatch) {
  for (const auto& slot : slots_) {
    if (slot->microbatch == microbatch) return *slot;
  }
  if (free_.empty()) free_.push_back(std::make_unique<LayerSlot>());
  slots_.push_back(std::move(free_.back()));
  free_.pop_back();
  LayerSlot& slot = *slots_.back();
  slot.microbatch = microbatch;
  slot.values.resize(num_places_);
  slot.gradients.resize(num_places_);
  return slot;
}

void LayerSlots::release_if_done(LayerSlot& slot, bool training) {
  const auto defined = [](const at::Tensor& t) { return t.defined(); };
  if (training && !slot.through) return;
  if (std::ranges::any_of(training ? slot.gradients : slot.values, defined)) return;
  const auto at = std::ranges::find(slots_, &slot, &std::unique_ptr<LayerSlot>::get);
  slot.clear();
  free_.push_back(std::move(*at));
  slots_.erase(at);
}

}  // namespace millrace
