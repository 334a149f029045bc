#include "runtime/stage/stage_borders.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <c10/util/accumulate.h>

#include "runtime/base/check.h"

namespace millrace {
namespace {

// Sends per link in flight before a wait for the oldest. If a send holds its tensor, the number is large
// enough never to stall a valid schedule earlier than a rendezvous would. It is small enough to free the
// activations that were sent. If the tensor was copied, waiting costs nothing: the number only bounds the
// list.
constexpr std::size_t kSendsInFlight = 4;
constexpr std::size_t kBufferedSendsInFlight = 64;

bool is_gradient(Op op) {
  return op == Op::SendGradient || op == Op::RecvGradient;
}

}  // namespace

StageBorders::StageBorders(const ExecutorParts& parts, const StageProgram& program, const LayerRunner& layers,
                           LayerSlots& slots)
    : parts_(parts), program_(program), layers_(layers), slots_(slots), shapes_(parts.layout) {}

StageBorders* StageBorders::sibling(int stage, MicrobatchId microbatch) const {
  const auto other = std::ranges::find_if(
      siblings_, [&](const StageBorders* one) { return one->parts_.stage == StageId(stage); });
  if (other == siblings_.end()) return nullptr;
  const auto& ranks = parts_.ranks_of_stage.at(stage);
  const auto replica = static_cast<std::size_t>(microbatch.value) % ranks.size();
  return ranks[replica] == parts_.world.rank() ? *other : nullptr;
}

void StageBorders::hand_over_activations(LayerSlot& slot) {
  if (siblings_.empty()) return;
  std::vector<char> to_send(slot.values.size(), 0);
  for (const Border& border : program_.later) {
    StageBorders* other = sibling(border.peer, slot.microbatch);
    if (!other) {
      for (const Port& port : border.ports) to_send[port.place] = 1;
      continue;
    }
    LayerSlot& theirs = other->slots_.of(slot.microbatch);
    const Border& entry = *other->program_.earlier_from(parts_.stage.value);
    for (std::size_t i = 0; i < border.ports.size(); ++i)
      theirs.values[entry.ports[i].place] = slot.values[border.ports[i].place];
  }
  for (std::size_t i = 0; i < slot.values.size(); ++i) {
    if (!to_send[i]) slot.values[i].reset();
  }
}

void StageBorders::hand_over_gradients(LayerSlot& slot) {
  // The per-use gradients of a tensor (Crossing::summed) are one message.
  for (const Border& border : program_.earlier) {
    for (const Port& port : border.gradients) {
      if (!program_.in_parts[port.place]) continue;
      std::vector<at::Tensor> values;
      for (GradientPart& part : slot.parts) {
        if (part.place == port.place) values.push_back(std::move(part.value));
      }
      slot.gradients[port.place] = at::cat(values);
    }
  }
  slot.parts.clear();
  if (siblings_.empty()) return;
  for (const Border& border : program_.earlier) {
    StageBorders* other = sibling(border.peer, slot.microbatch);
    if (!other) continue;
    LayerSlot& theirs = other->slots_.of(slot.microbatch);
    const Border& entry = *other->program_.later_to(parts_.stage.value);
    for (std::size_t i = 0; i < border.gradients.size(); ++i) {
      at::Tensor& mine = slot.gradients[border.gradients[i].place];
      other->accept_gradient(theirs, entry.gradients[i], std::exchange(mine, {}));
    }
  }
}

void StageBorders::accept_gradient(LayerSlot& slot, const Port& port, at::Tensor value) {
  const Crossing& crossing = parts_.layout.crossings[port.crossing];
  if (crossing.summed) return layers_.add_gradient(slot, port.place, crossing.uses.front(), std::move(value));
  const std::int64_t rows = value.size(0) / crossing.gradient_parts();
  for (std::size_t i = 0; i < crossing.uses.size(); ++i) {
    layers_.add_gradient(slot, port.place, crossing.uses[i],
                         value.narrow(0, static_cast<std::int64_t>(i) * rows, rows));
  }
}

StageBorders::Route StageBorders::route_of(const Action& action) const {
  const bool gradient = is_gradient(action.op);
  const bool sends = is_send(action.op);
  const bool upstream = gradient == sends;  // the peer is the earlier stage
  const int peer = action.peer_stage.value;
  const Border* border = upstream ? program_.earlier_from(peer) : program_.later_to(peer);
  MILLRACE_CHECK(border, "no tensor crosses between stages " << parts_.stage.value << " and " << peer);
  return {gradient ? &border->gradients : &border->ports, gradient, sends};
}

bool StageBorders::joins(const Route& route) const {
  if (!parts_.layout.joins_messages || route.ports->size() < 2) return false;
  const auto type_of = [&](const Port& port) {
    return parts_.layout.tensors[parts_.layout.crossings[port.crossing].tensor].spec.dtype;
  };
  return std::ranges::all_of(*route.ports, [&, first = type_of(route.ports->front())](const Port& p) {
    return type_of(p) == first;
  });
}

/// A tag is unique over the whole run.
std::uint64_t StageBorders::tag_of(const Action& action, const Route& route, const Port& port,
                                   const RunContext& context) const {
  const auto position = static_cast<std::uint64_t>(context.position_of(action.microbatch));
  return parts_.numbers.tag(position, static_cast<std::size_t>(port.crossing), parts_.layout.crossings.size(),
                            parts_.numbers.most_crossings) *
             2 +
         route.gradient;
}

std::vector<Transfer> StageBorders::transfers(const Action& action, const Route& route,
                                              const RunContext& context,
                                              const std::vector<at::Tensor>& tensors) const {
  std::vector<Transfer> result;
  result.reserve(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const Port& port = (*route.ports)[i];
    const Crossing& crossing = parts_.layout.crossings[port.crossing];
    const std::string* name = &parts_.layout.tensors[crossing.tensor].name;
    const std::size_t others = (route.ports->size() - tensors.size()) * (i == 0);
    result.push_back({route.sends ? Direction::Send : Direction::Receive, action.peer,
                      tag_of(action, route, port, context), tensors[i], LazyText([action, name, others] {
                        return to_string(action) + " of " + *name +
                               (others > 0 ? " and " + std::to_string(others) + " more" : "");
                      })});
  }
  return result;
}

void StageBorders::send(const Action& action, const RunContext& context) {
  LayerSlot& slot = slots_.of(action.microbatch);
  const Route route = route_of(action);
  std::vector<at::Tensor> tensors;
  tensors.reserve(route.ports->size());
  for (const Port& port : *route.ports) {
    at::Tensor& source = (route.gradient ? slot.gradients : slot.values)[port.place];
    MILLRACE_CHECK(source.defined(), to_string(action) << ": nothing to send");
    tensors.push_back(source.contiguous());
    if (route.gradient) source.reset();
  }
  if (!tensors.empty()) {
    auto& in_flight = sends_[action.peer_stage.value];
    const std::size_t most = parts_.world.buffers_sends() ? kBufferedSendsInFlight : kSendsInFlight;
    while (in_flight.size() >= most) {
      in_flight.front()->wait();
      in_flight.pop_front();
    }
    if (joins(route)) {
      for (at::Tensor& tensor : tensors) tensor = tensor.reshape({-1});
      tensors = {at::cat(tensors)};
    }
    in_flight.push_back(parts_.world.exchange(transfers(action, route, context, tensors)));
  }
  if (route.gradient) return slots_.release_if_done(slot, context.training);
  // A tensor may be sent to several stages of other ranks: it is dropped after the last send.
  const auto last =
      std::ranges::find_if(program_.later.rbegin(), program_.later.rend(),
                           [&](const Border& b) { return !sibling(b.peer, action.microbatch); });
  if (last == program_.later.rend() || last->peer != action.peer_stage.value) return;
  for (at::Tensor& value : slot.values) value.reset();
  if (!context.training) slots_.release_if_done(slot, context.training);
}

void StageBorders::post_receive(const Action& action, const RunContext& context) {
  const Route route = route_of(action);
  if (route.ports->empty()) return;
  const std::uint64_t tag = tag_of(action, route, route.ports->front(), context);
  if (std::ranges::find(posted_, tag, &Message::tag) != posted_.end()) return;
  Message message{.tag = tag};
  const auto& shapes = shapes_.of(context.extent_of(context.position_of(action.microbatch)));
  // float32 in a spec means the precision of the run.
  const auto options_of = [&, weights = parts_.store.flat_weights().options()](const Port& port) {
    const int tensor = parts_.layout.crossings[port.crossing].tensor;
    const at::ScalarType dtype = parts_.layout.tensors[tensor].spec.dtype;
    return dtype == at::kFloat ? weights : weights.dtype(dtype);
  };
  const auto shape_of = [&](const Port& port) {
    const Crossing& crossing = parts_.layout.crossings[port.crossing];
    Shape shape = shapes[crossing.tensor];
    if (route.gradient) shape[0] *= crossing.gradient_parts();
    return shape;
  };
  std::vector<at::Tensor> arriving;
  if (joins(route)) {
    std::int64_t elements = 0, begin = 0;
    for (const Port& port : *route.ports) elements += c10::multiply_integers(shape_of(port));
    arriving.push_back(at::empty({elements}, options_of(route.ports->front())));
    for (const Port& port : *route.ports) {
      const Shape shape = shape_of(port);
      const std::int64_t size = c10::multiply_integers(shape);
      message.tensors.push_back(arriving[0].narrow(0, begin, size).view(shape));
      begin += size;
    }
  } else {
    for (const Port& port : *route.ports)
      message.tensors.push_back(at::empty(shape_of(port), options_of(port)));
    arriving = message.tensors;
  }
  message.pending = parts_.world.exchange(transfers(action, route, context, arriving));
  posted_.push_back(std::move(message));
}

void StageBorders::receive(const Action& action, const RunContext& context) {
  const Route route = route_of(action);
  if (route.ports->empty()) return;
  post_receive(action, context);
  const auto at =
      std::ranges::find(posted_, tag_of(action, route, route.ports->front(), context), &Message::tag);
  Message message = std::move(*at);
  posted_.erase(at);
  message.pending->wait();
  LayerSlot& slot = slots_.of(action.microbatch);
  for (std::size_t i = 0; i < route.ports->size(); ++i) {
    const Port& port = (*route.ports)[i];
    if (route.gradient)
      accept_gradient(slot, port, std::move(message.tensors[i]));
    else
      slot.values[port.place] = std::move(message.tensors[i]);
  }
}

void StageBorders::finish_sends() {
  for (auto& [peer, in_flight] : sends_) {
    for (auto& pending : in_flight) pending->wait();
    in_flight.clear();
  }
}

}  // namespace millrace
