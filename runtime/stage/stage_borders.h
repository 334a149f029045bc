// The tensors that cross a stage's borders: as messages to stages of other ranks, in memory to stages of this
// rank.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "runtime/schedule/schedule.h"
#include "runtime/stage/layer_slots.h"
#include "runtime/stage/run_context.h"
#include "runtime/stage/stage_parts.h"

namespace millrace {

/// Moves activations and gradients between the slots of this stage and its neighbours. Not thread-safe.
/// Throws PeerError.
class StageBorders {
 public:
  /// A posted receive.
  struct Message {
    std::uint64_t tag;  ///< the tag of its first tensor identifies the message
    std::vector<at::Tensor> tensors;
    std::unique_ptr<Pending> pending;
  };

  /// All must outlive the object.
  StageBorders(const ExecutorParts& parts, const StageProgram& program, const LayerRunner& layers,
               LayerSlots& slots);
  /// Adds another stage of this rank (interleaved and V schedules). The schedule has no transfers between the
  /// two stages.
  void connect(StageBorders& other) { siblings_.push_back(&other); }

  /// Posts the receive of an upcoming Recv action, so that the transfer overlaps computation.
  void post_receive(const Action& action, const RunContext& context);
  /// Waits for the tensors of a Recv action and puts them into the microbatch's slot.
  void receive(const Action& action, const RunContext& context);
  /// Sends the tensors of a Send action from the microbatch's slot. Waits if too many sends are in flight.
  void send(const Action& action, const RunContext& context);
  /// Hands activations to the other stages of this rank that read them. Tensors left in the slot are sent
  /// later.
  void hand_over_activations(LayerSlot& slot);
  void hand_over_gradients(LayerSlot& slot);
  /// Waits for the sends in flight.
  void finish_sends();
  /// Swaps the receives that were posted and not yet taken with `other`.
  void exchange_posted(std::vector<Message>& other) { posted_.swap(other); }

 private:
  /// The ports of a transfer action.
  struct Route {
    const std::vector<Port>* ports;
    bool gradient;
    bool sends;
  };
  Route route_of(const Action& action) const;
  /// Returns whether the tensors of a transfer are one message, which has the tag of the first. They then
  /// have equal types.
  bool joins(const Route& route) const;
  std::uint64_t tag_of(const Action& action, const Route& route, const Port& port,
                       const RunContext& context) const;
  /// Returns a transfer for each of `tensors`: one for each port, or one for all of them.
  std::vector<Transfer> transfers(const Action& action, const Route& route, const RunContext& context,
                                  const std::vector<at::Tensor>& tensors) const;
  /// Returns the stage of this rank that runs `microbatch` of `stage`, or null if another rank runs it.
  StageBorders* sibling(int stage, MicrobatchId microbatch) const;
  void accept_gradient(LayerSlot& slot, const Port& port, at::Tensor value);

  const ExecutorParts& parts_;
  const StageProgram& program_;
  const LayerRunner& layers_;
  LayerSlots& slots_;
  ShapeCache shapes_;
  std::vector<StageBorders*> siblings_;
  std::vector<Message> posted_;
  std::unordered_map<int, std::deque<std::unique_ptr<Pending>>> sends_;  ///< by peer stage
};

}  // namespace millrace
