#include "runtime/stage/stage_executor.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <span>
#include <utility>

#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/base/random.h"

namespace millrace {
namespace {

// Sends a link may have in flight before the oldest is waited for. Where a send holds its tensor: enough to
// never stall a valid schedule earlier than a rendezvous would, small enough to free the activations that
// were sent. Where it was copied: only against a first stage that runs ahead without bound (evaluation).
constexpr std::size_t kSendsInFlight = 4;
constexpr std::size_t kBufferedSendsInFlight = 64;

bool is_gradient(Op op) {
  return op == Op::SendGradient || op == Op::RecvGradient;
}

}  // namespace

StageExecutor::StageExecutor(const ExecutorParts& parts, const ExecutorOptions& options)
    : parts_(parts), options_(options), samples_(parts.layout.microbatch_size) {
  const StageLayout& layout = parts_.layout;
  is_last_ = parts_.stage.value == layout.num_stages() - 1;
  needs_input_ = layout.needs_input(parts_.stage);
  tensor_names_.push_back("input");
  for (const Crossing& c : layout.crossings) {
    if (c.to == parts_.stage) tensor_names_.push_back(c.tensor);
  }
  num_incoming_ = tensor_names_.size();
  recomputes_ = layout.recomputes[static_cast<std::size_t>(parts_.stage.value)] != 0;
  for (int index : layout.layers[parts_.stage.value]) {
    const NamedLayer& layer = layout.model.layers[index];
    Step step{.layer = &layer, .index = index};
    for (const std::string& name : layer.inputs) {
      step.inputs.push_back(tensor_index(name));
      step.needs.push_back(name != "input");
    }
    tensor_names_.push_back(layer.name);
    step.output = static_cast<int>(tensor_names_.size()) - 1;
    steps_.push_back(std::move(step));
  }
  find_last_reads();
  is_in_parts_.resize(tensor_names_.size(), 0);
  for (const Crossing& c : layout.crossings) {
    if (c.from == parts_.stage || (c.to == parts_.stage && !c.summed))
      is_in_parts_[tensor_index(c.tensor)] = 1;
  }
  for (int i = static_cast<int>(steps_.size()) - 1; i >= 0; --i) {
    const auto [begin, end] = parts_.store.gradient_range(i);
    const bool open = !buckets_.empty() &&
                      (buckets_.back().end - buckets_.back().begin) * std::int64_t{4} < options_.bucket_bytes;
    if (open) {
      buckets_.back().begin = begin;
      buckets_.back().first_layer = i;
    } else {
      buckets_.push_back({i, begin, end});
    }
  }
}

/// A forward holds a tensor as long as somebody is to read it; what the backward needs is in Slot::saved.
void StageExecutor::find_last_reads() {
  std::vector<char> stays(tensor_names_.size(), 0);
  for (const Crossing& c : parts_.layout.crossings) {
    if (c.from == parts_.stage) stays[tensor_index(c.tensor)] = 1;
  }
  if (is_last_ && !steps_.empty()) stays[steps_.back().output] = 1;  // the loss reads it
  for (auto step = steps_.rbegin(); step != steps_.rend(); ++step) {
    for (int tensor : step->inputs) {
      if (!std::exchange(stays[tensor], 1)) step->read_last.push_back(tensor);
    }
  }
}

int StageExecutor::tensor_index(const std::string& name) const {
  const auto found = std::ranges::find(tensor_names_, name);
  MILLRACE_CHECK(found != tensor_names_.end(),
                 "tensor " << name << " is not in stage " << parts_.stage.value);
  return static_cast<int>(found - tensor_names_.begin());
}

void StageExecutor::begin(std::int64_t first_position, double lr) {
  first_position_ = first_position;
  lr_ = lr;
}

void StageExecutor::set_versions(std::vector<std::int64_t> versions, int replica, int replicas) {
  versions_ = std::move(versions);
  base_version_ = parts_.store.current();
  for (std::size_t m = replica; m < versions_.size(); m += replicas)
    parts_.store.expect(VersionId(base_version_.value + versions_[m]));
}

VersionId StageExecutor::pin_version(MicrobatchId microbatch) {
  if (!training_) return parts_.store.current();
  if (versions_.empty()) return parts_.store.pin(microbatch);
  const VersionId version(base_version_.value + versions_.at(static_cast<std::size_t>(microbatch.value)));
  parts_.store.pin_expected(microbatch, version);
  return version;
}

void StageExecutor::feed(MicrobatchId microbatch, at::Tensor input, at::Tensor target) {
  Slot& slot = slots_[microbatch];
  slot.values.resize(tensor_names_.size());
  if (parts_.device && parts_.device->is_asynchronous()) {
    if (target.defined()) check_targets(target, parts_.layout.model.num_classes);
    input = parts_.device->upload(std::move(input));
    target = parts_.device->upload(std::move(target));
  }
  slot.values[0] = std::move(input);
  slot.target = std::move(target);
}

void StageExecutor::execute(const Action& action, bool last_gradient) {
  switch (action.op) {
    case Op::Forward:
      return forward(action.microbatch);
    case Op::Backward:
    case Op::BackwardInput:
      return backward(action.microbatch, action.op, last_gradient);
    case Op::BackwardWeight:
      return backward_weights(action.microbatch, last_gradient);
    case Op::SendActivation:
    case Op::SendGradient:
      return send(action);
    case Op::RecvActivation:
    case Op::RecvGradient:
      return receive(action);
    case Op::Reduce:
      return reduce();
    case Op::Update:
      return update();
  }
}

std::uint64_t StageExecutor::random_seed(const NamedLayer& layer, MicrobatchId microbatch) const {
  return derive_seed(options_.seed, layer.name,
                     static_cast<std::uint64_t>(first_position_ + microbatch.value));
}

/// From slot.values of what came in to those of what leaves; the others are freed after their last reader.
void StageExecutor::run_layers(Slot& slot, MicrobatchId microbatch, VersionId version, Run run) {
  const bool saves = run == Run::Train || run == Run::Again;
  if (saves) slot.saved.resize(steps_.size());
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    const Step& step = steps_[i];
    std::vector<at::Tensor> inputs;
    inputs.reserve(step.inputs.size());
    for (int index : step.inputs) inputs.push_back(slot.values[index]);
    const CallContext context{run != Run::Evaluate, random_seed(*step.layer, microbatch)};
    std::span<at::Tensor> buffers = parts_.store.buffers(static_cast<int>(i));
    std::vector<at::Tensor> copies;  // running means count a microbatch once
    if (run == Run::Again) {
      for (const at::Tensor& buffer : buffers) copies.push_back(buffer.clone());
      buffers = copies;
    }
    slot.values[step.output] =
        step.layer->layer->forward(inputs, parts_.store.parameters(version, static_cast<int>(i)), buffers,
                                   context, saves ? &slot.saved[i] : nullptr);
    for (int tensor : step.read_last) slot.values[tensor].reset();
  }
}

/// The forward again, with the same weights and the same dropout: the same bits.
void StageExecutor::recompute(Slot& slot, MicrobatchId microbatch, VersionId version) {
  slot.values = std::exchange(slot.kept, {});
  slot.values.resize(tensor_names_.size());
  run_layers(slot, microbatch, version, Run::Again);
  slot.values.assign(tensor_names_.size(), {});
}

void StageExecutor::forward(MicrobatchId microbatch) {
  Slot& slot = slots_[microbatch];
  slot.values.resize(tensor_names_.size());
  const VersionId version = pin_version(microbatch);
  const bool keeps = training_ && recomputes_;
  if (keeps)
    slot.kept.assign(slot.values.begin(), slot.values.begin() + static_cast<std::ptrdiff_t>(num_incoming_));
  run_layers(slot, microbatch, version,
             !training_ ? Run::Evaluate
             : keeps    ? Run::TrainWithoutSaving
                        : Run::Train);
  if (is_last_) add_loss(slot, slot.values[steps_.back().output]);
  // Only what is still to be sent stays; what the backward needs is in `saved`.
  std::vector<at::Tensor> leaving(tensor_names_.size());
  for (const Crossing& c : parts_.layout.crossings) {
    if (c.from == parts_.stage) leaving[tensor_index(c.tensor)] = slot.values[tensor_index(c.tensor)];
  }
  slot.values = std::move(leaving);
  hand_over_activations(microbatch);
  if (!training_) return release_if_sent(microbatch);
  ++stashed_;
  peak_versions_ = std::max(peak_versions_, parts_.store.live_versions());
}

/// On a device the sums stay there until somebody asks: reading them would stall it at every microbatch.
void StageExecutor::add_loss(Slot& slot, const at::Tensor& logits) {
  SavedLoss* saved = training_ ? &slot.loss : nullptr;
  if (!logits.device().is_cpu()) {
    const at::Tensor sums = cross_entropy_sums(logits, slot.target, saved);
    loss_on_device_ = loss_on_device_.defined() ? at::add(loss_on_device_, sums) : sums;
    ++microbatches_on_device_;
    return;
  }
  const LossResult result = cross_entropy(logits, slot.target, saved);
  losses_.loss += result.loss;
  losses_.sample_loss += result.loss * double(result.samples);
  losses_.microbatches += 1;
  losses_.samples += result.samples;
  losses_.top1 += result.top1;
  losses_.top5 += result.top5;
}

void StageExecutor::collect_losses() {
  if (!loss_on_device_.defined()) return;
  const at::Tensor sums = std::exchange(loss_on_device_, {}).cpu();
  const double* s = sums.const_data_ptr<double>();
  losses_.loss += s[0];
  losses_.sample_loss += s[1];
  losses_.microbatches += std::exchange(microbatches_on_device_, 0);
  losses_.samples += std::int64_t(s[2]);
  losses_.top1 += std::int64_t(s[3]);
  losses_.top5 += std::int64_t(s[4]);
}

void StageExecutor::start_loss_gradient(Slot& slot) {
  slot.gradients.resize(tensor_names_.size());
  if (is_last_) slot.gradients[steps_.back().output] = cross_entropy_backward(slot.loss, options_.loss_scale);
  slot.loss = {};
}

void StageExecutor::backward(MicrobatchId microbatch, Op op, bool last_gradient) {
  Slot& slot = slots_.at(microbatch);
  start_loss_gradient(slot);
  const VersionId version = parts_.store.version_of(microbatch);
  if (recomputes_) recompute(slot, microbatch, version);
  for (int i = static_cast<int>(steps_.size()) - 1; i >= 0; --i) {
    const Step& step = steps_[i];
    at::Tensor grad = take_gradient(slot, step.output);
    MILLRACE_CHECK(grad.defined(), "layer " << step.layer->name << " got no gradient");
    const std::span<const bool> needs(reinterpret_cast<const bool*>(step.needs.data()), step.needs.size());
    const auto parameters = parts_.store.parameters(version, i);
    const Layer& layer = *step.layer->layer;
    std::vector<at::Tensor> inputs;
    if (op == Op::Backward) {
      inputs = layer.backward(grad, parameters, slot.saved[i], needs, parts_.store.gradients(i));
      slot.saved[i] = {};
    } else {
      inputs = layer.backward_input(grad, parameters, slot.saved[i], needs);
      if (parameters.empty())
        slot.saved[i] = {};
      else
        slot.output_gradients[i] = std::move(grad);
    }
    for (std::size_t k = 0; k < inputs.size(); ++k) {
      if (step.needs[k]) add_gradient(slot, step.inputs[k], step.index, std::move(inputs[k]));
    }
    if (op == Op::Backward && last_gradient) reduce_ready_buckets(i);
  }
  slot.saved.resize(op == Op::Backward ? 0 : slot.saved.size());
  join_gradient_parts(slot);
  hand_over_gradients(microbatch);
  if (op == Op::Backward) finish_backward(microbatch);
}

void StageExecutor::add_gradient(Slot& slot, int tensor, int use, at::Tensor value) {
  if (is_in_parts_[tensor]) {
    slot.parts[tensor].push_back({use, std::move(value)});
    return;
  }
  at::Tensor& sum = slot.gradients[tensor];
  sum = sum.defined() ? at::add(sum, value) : std::move(value);  // never in place: inputs may share
}

/// The sum over all uses from the last layer to the first, whichever stage they are in and whenever they
/// came.
at::Tensor StageExecutor::take_gradient(Slot& slot, int tensor) {
  if (!is_in_parts_[tensor]) return std::move(slot.gradients[tensor]);
  auto node = slot.parts.extract(tensor);
  if (node.empty()) return std::move(slot.gradients[tensor]);  // the loss reads it
  std::vector<GradientPart>& parts = node.mapped();
  std::ranges::stable_sort(parts, std::greater(), &GradientPart::use);
  at::Tensor sum = std::move(parts.front().value);
  for (std::size_t i = 1; i < parts.size(); ++i) sum = at::add(sum, parts[i].value);
  return sum;
}

/// Gradients that go back use by use (Crossing::summed): one message.
void StageExecutor::join_gradient_parts(Slot& slot) {
  for (auto& [tensor, parts] : slot.parts) {
    std::vector<at::Tensor> values;
    for (GradientPart& part : parts) values.push_back(std::move(part.value));
    slot.gradients[tensor] = at::cat(values);
  }
  slot.parts.clear();
}

void StageExecutor::backward_weights(MicrobatchId microbatch, bool last_gradient) {
  Slot& slot = slots_.at(microbatch);
  for (int i = static_cast<int>(steps_.size()) - 1; i >= 0; --i) {
    if (auto found = slot.output_gradients.find(i); found != slot.output_gradients.end()) {
      steps_[i].layer->layer->backward_weight(found->second, slot.saved[i], parts_.store.gradients(i));
      slot.saved[i] = {};
    }
    if (last_gradient) reduce_ready_buckets(i);
  }
  slot.output_gradients.clear();
  slot.saved.clear();
  finish_backward(microbatch);
}

/// Releases the weight version; the slot stays while input gradients wait to be sent.
void StageExecutor::finish_backward(MicrobatchId microbatch) {
  parts_.store.release(microbatch);
  slots_.at(microbatch).through = true;
  --stashed_;
  release_if_sent(microbatch);
}

StageExecutor* StageExecutor::sibling(StageId stage, MicrobatchId microbatch) const {
  for (StageExecutor* other : siblings_) {
    if (other->stage() != stage) continue;
    const auto& ranks = parts_.ranks_of_stage.at(static_cast<std::size_t>(stage.value));
    const auto replica = static_cast<std::size_t>(microbatch.value) % ranks.size();
    return ranks[replica] == parts_.world.rank() ? other : nullptr;
  }
  return nullptr;
}

/// What other stages of this rank read goes to them at once; what is left in the slot is to be sent.
void StageExecutor::hand_over_activations(MicrobatchId microbatch) {
  if (siblings_.empty()) return;
  Slot& slot = slots_.at(microbatch);
  std::vector<char> to_send(tensor_names_.size(), 0);
  for (const Crossing& c : parts_.layout.crossings) {
    if (c.from != parts_.stage) continue;
    const int tensor = tensor_index(c.tensor);
    if (StageExecutor* other = sibling(c.to, microbatch))
      other->accept_activation(microbatch, c.tensor, slot.values[tensor]);
    else
      to_send[tensor] = 1;
  }
  for (std::size_t i = 0; i < slot.values.size(); ++i) {
    if (!to_send[i]) slot.values[i].reset();
  }
}

void StageExecutor::hand_over_gradients(MicrobatchId microbatch) {
  if (siblings_.empty()) return;
  Slot& slot = slots_.at(microbatch);
  for (const Crossing& c : parts_.layout.crossings) {
    if (c.to != parts_.stage) continue;
    StageExecutor* other = sibling(c.from, microbatch);
    if (other)
      other->accept_gradient(microbatch, c, std::exchange(slot.gradients[tensor_index(c.tensor)], {}));
  }
}

void StageExecutor::accept_activation(MicrobatchId microbatch, const std::string& tensor, at::Tensor value) {
  Slot& slot = slots_[microbatch];
  slot.values.resize(tensor_names_.size());
  slot.values[tensor_index(tensor)] = std::move(value);
}

void StageExecutor::accept_gradient(MicrobatchId microbatch, const Crossing& crossing, at::Tensor value) {
  Slot& slot = slots_[microbatch];
  const int tensor = tensor_index(crossing.tensor);
  if (crossing.summed) return add_gradient(slot, tensor, crossing.uses.front(), std::move(value));
  const std::int64_t samples = value.size(0) / crossing.gradient_parts();
  for (std::size_t i = 0; i < crossing.uses.size(); ++i) {
    add_gradient(slot, tensor, crossing.uses[i], value.narrow(0, std::int64_t(i) * samples, samples));
  }
}

/// Ends a slot when nothing of it is still to be computed or sent.
void StageExecutor::release_if_sent(MicrobatchId microbatch) {
  const Slot& slot = slots_.at(microbatch);
  const auto defined = [](const at::Tensor& t) { return t.defined(); };
  if (training_ && !slot.through) return;
  if (std::ranges::any_of(training_ ? slot.gradients : slot.values, defined)) return;
  slots_.erase(microbatch);
}

std::vector<int> StageExecutor::crossings_with(StageId from, StageId to) const {
  std::vector<int> result;
  for (std::size_t i = 0; i < parts_.layout.crossings.size(); ++i) {
    const Crossing& c = parts_.layout.crossings[i];
    if (c.from == from && c.to == to) result.push_back(static_cast<int>(i));
  }
  MILLRACE_CHECK(!result.empty(), "no tensor crosses from stage " << from.value << " to " << to.value);
  return result;
}

/// The messages of a transfer action, one for each crossing tensor. Tags are unique over the whole run.
std::vector<Transfer> StageExecutor::transfers(const Action& action,
                                               const std::vector<at::Tensor>& tensors) const {
  const bool gradient = is_gradient(action.op);
  const bool sends = action.op == Op::SendActivation || action.op == Op::SendGradient;
  const bool upstream = gradient == sends;  // the peer is the earlier stage
  const auto indices = upstream ? crossings_with(action.peer_stage, action.stage)
                                : crossings_with(action.stage, action.peer_stage);
  const std::uint64_t position = static_cast<std::uint64_t>(first_position_ + action.microbatch.value);
  std::vector<Transfer> result;
  for (std::size_t i = 0; i < indices.size(); ++i) {
    const std::uint64_t tag = (position * parts_.layout.crossings.size() + indices[i]) * 2 + gradient;
    result.push_back({sends ? Direction::Send : Direction::Receive, action.peer, tag, tensors[i],
                      to_string(action) + " of " + parts_.layout.crossings[indices[i]].tensor});
  }
  return result;
}

void StageExecutor::send(const Action& action) {
  Slot& slot = slots_.at(action.microbatch);
  const bool gradient = is_gradient(action.op);
  const auto indices = gradient ? crossings_with(action.peer_stage, action.stage)
                                : crossings_with(action.stage, action.peer_stage);
  std::vector<at::Tensor> tensors;
  for (int index : indices) {
    const int tensor = tensor_index(parts_.layout.crossings[index].tensor);
    at::Tensor& source = gradient ? slot.gradients[tensor] : slot.values[tensor];
    MILLRACE_CHECK(source.defined(), to_string(action) << ": nothing to send");
    tensors.push_back(source.contiguous());
    if (gradient) source.reset();
  }
  auto& in_flight = sends_[action.peer_stage.value];
  const std::size_t most = parts_.world.buffers_sends() ? kBufferedSendsInFlight : kSendsInFlight;
  while (in_flight.size() >= most) {
    in_flight.front()->wait();
    in_flight.pop_front();
  }
  in_flight.push_back(parts_.world.exchange(transfers(action, tensors)));
  if (gradient) return release_if_sent(action.microbatch);
  // A tensor may go to several stages of other ranks: it is dropped after the last of them.
  const auto& links = parts_.layout.links;
  const auto last = std::ranges::find_if(links.rbegin(), links.rend(), [&](const StageLink& l) {
    return l.from == parts_.stage && !sibling(l.to, action.microbatch);
  });
  if (last == links.rend() || last->to != action.peer_stage) return;
  slot.values.clear();
  if (!training_) release_if_sent(action.microbatch);
}

void StageExecutor::post_receive(const Action& action) {
  Message& message = posted_[to_string(action)];
  if (message.pending) return;
  const bool gradient = is_gradient(action.op);
  const auto indices = gradient ? crossings_with(action.stage, action.peer_stage)
                                : crossings_with(action.peer_stage, action.stage);
  const auto options = parts_.store.flat_weights().options();
  for (int index : indices) {
    const Crossing& crossing = parts_.layout.crossings[index];
    Shape shape = crossing.shape;
    shape[0] = samples_ * (gradient ? crossing.gradient_parts() : 1);
    message.tensors.push_back(at::empty(shape, options));
  }
  message.pending = parts_.world.exchange(transfers(action, message.tensors));
}

void StageExecutor::receive(const Action& action) {
  post_receive(action);
  auto node = posted_.extract(to_string(action));
  Message& message = node.mapped();
  message.pending->wait();
  const bool gradient = is_gradient(action.op);
  const auto indices = gradient ? crossings_with(action.stage, action.peer_stage)
                                : crossings_with(action.peer_stage, action.stage);
  for (std::size_t i = 0; i < indices.size(); ++i) {
    const Crossing& crossing = parts_.layout.crossings[indices[i]];
    if (gradient)
      accept_gradient(action.microbatch, crossing, message.tensors[i]);
    else
      accept_activation(action.microbatch, crossing.tensor, message.tensors[i]);
  }
}

void StageExecutor::finish_sends() {
  for (auto& [peer, in_flight] : sends_) {
    for (auto& pending : in_flight) pending->wait();
    in_flight.clear();
  }
}

void StageExecutor::reduce_ready_buckets(int layer) {
  if (!parts_.replicas) return;
  for (; next_bucket_ < buckets_.size() && buckets_[next_bucket_].first_layer >= layer; ++next_bucket_) {
    const Bucket& bucket = buckets_[next_bucket_];
    if (bucket.begin == bucket.end) continue;
    reductions_.push_back(parts_.replicas->all_reduce(
        parts_.store.flat_gradient().narrow(0, bucket.begin, bucket.end - bucket.begin),
        "REDUCE of bucket " + std::to_string(next_bucket_) + ", stage " +
            std::to_string(parts_.stage.value)));
  }
}

void StageExecutor::reduce() {
  if (!parts_.replicas) return;
  reduce_ready_buckets(0);
  if (is_last_) {
    collect_losses();
    // Added in the order of ranks, like gradients.
    at::Tensor sums = at::tensor({losses_.loss, losses_.sample_loss, double(losses_.microbatches),
                                  double(losses_.samples), double(losses_.top1), double(losses_.top5)},
                                 at::kDouble);
    parts_.replicas->all_reduce(sums, "REDUCE of the losses")->wait();
    const double* s = sums.const_data_ptr<double>();
    losses_ = {s[0], s[1], std::int64_t(s[2]), std::int64_t(s[3]), std::int64_t(s[4]), std::int64_t(s[5])};
  }
  for (auto& pending : reductions_) pending->wait();
  reductions_.clear();
  next_bucket_ = 0;
}

/// Before the update is published: nothing is made of such a loss.
void StageExecutor::check_loss() {
  if (!is_last_ || !options_.stop_on_nonfinite) return;
  collect_losses();
  if (std::isfinite(losses_.loss)) return;
  throw NumericError("the loss is " + std::to_string(losses_.mean_loss()),
                     "lower --lr or add --warmup-steps");
}

void StageExecutor::update() {
  check_loss();
  if (parts_.store.slots().empty()) {
    parts_.store.publish(
        [](const at::Tensor&, const at::Tensor&) {});  // versions advance on every stage alike
    return;
  }
  if (options_.gradient_scale != 1) parts_.store.flat_gradient().mul_(options_.gradient_scale);
  parts_.store.publish([&](at::Tensor weights, const at::Tensor& gradient) {
    parts_.rule.apply_(std::move(weights), gradient, lr_);
  });
  peak_versions_ = std::max(peak_versions_, parts_.store.live_versions());
}

LossSums StageExecutor::take_losses() {
  collect_losses();
  return std::exchange(losses_, {});
}

}  // namespace millrace
