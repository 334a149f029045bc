#include "runtime/stage/stage_executor.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/device/failures.h"

namespace millrace {
namespace {

// The number of sends that a link may have in flight before the oldest is waited for. If a send holds its
// tensor, the number must never stall a valid schedule earlier than a rendezvous would, and must soon free
// the activations that were sent. If the tensor was copied, waiting costs nothing, and the number only
// bounds the list.
constexpr std::size_t kSendsInFlight = 4;
constexpr std::size_t kBufferedSendsInFlight = 64;

bool is_gradient(Op op) {
  return op == Op::SendGradient || op == Op::RecvGradient;
}

/// Throws DataError if an integer field holds a value outside its limit that is not its padding either.
void check_limit(const FieldSpec& field, const at::Tensor& values) {
  if (field.limit <= 0 || values.scalar_type() != at::kLong || !values.device().is_cpu()) return;
  const at::Tensor flat = values.contiguous();
  const std::int64_t* value = flat.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < flat.numel(); ++i) {
    if ((value[i] >= 0 && value[i] < field.limit) || value[i] == field.padding) continue;
    throw DataError(field.name + " " + std::to_string(value[i]) + " is outside the model's " +
                        std::to_string(field.limit) + (field.name == "target" ? " classes" : " values"),
                    field.name == "target" ? "give --classes N as the data set has"
                                           : "the data set was made for another model or vocabulary");
  }
}

}  // namespace

StageExecutor::StageExecutor(const ExecutorParts& parts, const ExecutorOptions& options)
    : parts_(parts),
      options_(options),
      program_(compile_stage(parts.layout, parts.stage)),
      layers_(program_, parts_.store, options.seeds),
      ties_(parts_.layout, parts_.stage, parts_.ranks_of_stage, parts_.store, parts_.world, parts_.numbers),
      reducer_(parts.store, parts.replicas, program_, options.bucket_bytes),
      shapes_(parts_.layout),
      recomputes_(parts.layout.recomputes[parts.stage.value] != 0),
      sums_(program_.num_sums, 0.0) {
  begin({});
  layers_.set_masks(options.masks);
  parts_.store.make_copies(parts_.layout, parts_.stage,
                           options.microbatches_per_update / (parts.replicas ? parts.replicas->size() : 1));
  if (!options.sync_batch_norm || !parts.replicas) return;
  layers_.set_replicas(&statistics_sum_.emplace(*parts.replicas));
}

void StageExecutor::begin(RunContext context) {
  context_ = std::move(context);
  const auto jobs = static_cast<std::size_t>(parts_.store.jobs());
  if (!context_.extent_of)
    context_.extent_of = [nominal = parts_.layout.nominal](std::int64_t) { return nominal; };
  if (context_.loss_scales.empty()) context_.loss_scales.assign(jobs, 1.0);
  if (context_.begins.empty()) context_.begins.assign(jobs, 0);
  layers_.set_begins(context_.begins);
  step_total_.first = -1;
}

void StageExecutor::set_versions(const VersionRule& rule, VersionId oldest, int replica, int replicas) {
  versions_ = {rule, parts_.store.current(), oldest, replica, replicas};
  parts_.store.keep_from(version_for(replica));
}

VersionId StageExecutor::version_for(std::int64_t microbatch) const {
  const VersionsOfRun& v = *versions_;
  return std::max(v.oldest, VersionId(v.first.value + microbatch / v.rule.per_version - v.rule.lag));
}

VersionId StageExecutor::pin_version(MicrobatchId microbatch) {
  if (!training_) return parts_.store.current();
  if (!versions_) return parts_.store.pin(microbatch);
  const VersionId version = version_for(microbatch.value);
  parts_.store.pin(microbatch, version);
  return version;
}

/// Joins the running statistics of the replicas of a stage, which see different microbatches. Statistics
/// become the mean over the replicas. With the same number of microbatches each, that is what a single rank
/// has with the means of their batches. The mean is computed in double, so that joining equal values
/// changes nothing. A counter becomes the largest of all, which is replica 0's.
void StageExecutor::join_statistics() {
  if (!parts_.replicas) return;
  std::vector<at::Tensor> flat;
  const auto buffers = parts_.store.named_buffers();
  for (const auto& [name, buffer] : buffers) flat.push_back(buffer.reshape({-1}).to(at::kDouble));
  if (flat.empty()) return;
  at::Tensor sums = at::cat(flat);
  parts_.replicas->all_reduce(sums, "mean of running statistics, stage " + std::to_string(parts_.stage.value))
      ->wait();
  sums.div_(static_cast<double>(parts_.replicas->size()));
  std::int64_t at = 0;
  for (const auto& [name, buffer] : buffers) {
    at::Tensor mean = sums.narrow(0, at, buffer.numel()).view(buffer.sizes());
    buffer.copy_(buffer.is_floating_point() ? mean : mean.ceil());
    at += buffer.numel();
  }
}

/// Joins the statistics and keeps them at cuts, in asynchronous runs. It runs before each forward but the
/// first, so that a run that goes on from a cut does the same.
void StageExecutor::keep_statistics(MicrobatchId microbatch) {
  if (microbatch.value >= versions_->replicas) join_statistics();
  const std::int64_t round = microbatch.value / versions_->replicas * versions_->replicas;
  if (is_cut_ && round > 0 && is_cut_(round)) statistics_.emplace(round, parts_.store.copy_of_buffers());
}

void StageExecutor::pause(std::int64_t cut) {
  paused_ = Paused{.context = context_};
  paused_->slots.swap(slots_);
  paused_->posted.swap(posted_);
  const auto kept = statistics_.find(cut);
  if (kept != statistics_.end()) {
    paused_->statistics = std::move(kept->second);
    parts_.store.exchange_buffers(*paused_->statistics);
  } else if (versions_) {
    join_statistics();
  }
  statistics_.erase(statistics_.begin(), statistics_.upper_bound(cut));
}

void StageExecutor::go_on() {
  MILLRACE_CHECK(paused_ && slots_.empty());
  slots_.swap(paused_->slots);
  posted_.swap(paused_->posted);
  if (paused_->statistics) parts_.store.exchange_buffers(*paused_->statistics);
  begin(std::move(paused_->context));
  paused_.reset();
}

/// Returns the microbatch's slot; it makes one if there is none yet.
LayerSlot& StageExecutor::slot_for(MicrobatchId microbatch) {
  for (const auto& slot : slots_) {
    if (slot->microbatch == microbatch) return *slot;
  }
  if (free_slots_.empty()) free_slots_.push_back(std::make_unique<LayerSlot>());
  slots_.push_back(std::move(free_slots_.back()));
  free_slots_.pop_back();
  LayerSlot& slot = *slots_.back();
  slot.microbatch = microbatch;
  slot.values.resize(program_.num_places);
  slot.gradients.resize(program_.num_places);
  return slot;
}

void StageExecutor::feed(MicrobatchId microbatch, const Batch& batch) {
  LayerSlot& slot = slot_for(microbatch);
  for (const auto& [field, place] : program_.fields) {
    const FieldSpec& spec = parts_.layout.model.fields[field];
    at::Tensor value = batch.fields.at(field);
    MILLRACE_CHECK(value.defined(), "field " << spec.name << " was not loaded");
    check_limit(spec, value);
    if (value.is_floating_point()) value = value.to(parts_.store.flat_weights().scalar_type());
    slot.values[place] = parts_.device.upload(std::move(value));
  }
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
      break;
  }
  MILLRACE_CHECK(false, "an Update needs its scalars: update()");
}

void StageExecutor::forward(MicrobatchId microbatch) {
  ties_.settle();
  LayerSlot& slot = slot_for(microbatch);
  const VersionId version = pin_version(microbatch);
  if (training_ && versions_ && parts_.store.has_buffers()) keep_statistics(microbatch);
  const bool keeps = training_ && recomputes_;
  const std::int64_t position = context_.first_position + microbatch.value;
  const std::int64_t drawn = position - (training_ ? 0 : context_.evaluation_shift);
  if (program_.carries)
    slot.carried = carried_of_run().before(position, context_.extent_of(position).follows);
  if (keeps) slot.kept.assign(slot.values.begin(), slot.values.begin() + program_.num_incoming);
  layers_.forward(slot, drawn, version,
                  !training_ ? LayerRunner::Run::Evaluate
                  : keeps    ? LayerRunner::Run::TrainWithoutSaving
                             : LayerRunner::Run::Train);
  if (program_.carries) keep_carried(slot);
  run_heads(slot);
  // Only tensors that are still to be sent stay here. Layers have saved what the backward needs.
  std::vector<at::Tensor> leaving(program_.num_places);
  for (const Border& border : program_.later) {
    for (const Port& port : border.ports) leaving[port.place] = slot.values[port.place];
  }
  slot.values = std::move(leaving);
  hand_over_activations(slot);
  if (!training_) return release_if_sent(slot);
  ++stashed_;
  peak_versions_ = std::max(peak_versions_, parts_.store.live_versions());
}

/// Keeps the states that a microbatch leaves for the one that follows it. Slots belong to microbatches that
/// are in flight, or about to be.
void StageExecutor::keep_carried(LayerSlot& slot) {
  std::int64_t oldest = slot.microbatch.value;
  for (const auto& other : slots_) oldest = std::min(oldest, other->microbatch.value);
  carried_of_run().leave(context_.first_position + slot.microbatch.value, std::exchange(slot.left, {}),
                         context_.first_position + oldest);
}

/// Runs the heads and adds up their sums. On a device the sums stay there until they are asked for: reading
/// them would stall the device at every microbatch.
void StageExecutor::run_heads(LayerSlot& slot) {
  if (program_.heads.empty()) return;
  slot.heads.resize(program_.heads.size());
  for (std::size_t h = 0; h < program_.heads.size(); ++h) {
    const HeadStep& step = program_.heads[h];
    const std::vector<at::Tensor> inputs = layers_.inputs_of(slot, step);
    Saved* saved = training_ ? &slot.heads[h] : nullptr;
    const auto begin = static_cast<std::int64_t>(step.sums), size = static_cast<std::int64_t>(step.num_sums);
    try {
      if (inputs[0].device().is_cpu()) {
        step.head->forward(inputs, saved, std::span(sums_).subspan(step.sums, step.num_sums));
        continue;
      }
      if (!sums_on_device_.defined())
        sums_on_device_ =
            at::zeros({static_cast<std::int64_t>(program_.num_sums)}, inputs[0].options().dtype(at::kDouble));
      sums_on_device_.narrow(0, begin, size).add_(step.head->forward_on_device(inputs, saved));
    } catch (...) {
      rethrow_with("head " + step.named->name + ": ");
    }
  }
}

void StageExecutor::collect_sums() {
  if (!sums_on_device_.defined()) return;
  const at::Tensor sums = std::exchange(sums_on_device_, {}).cpu();
  for (std::size_t i = 0; i < sums_.size(); ++i) sums_[i] += sums.const_data_ptr<double>()[i];
}

/// Returns the microbatch's share of the loss of its step. With equal microbatches it is exactly 1 / their
/// number.
std::vector<LossScale> StageExecutor::scales_of(const HeadStep& head, MicrobatchId microbatch) {
  const std::int64_t position = context_.first_position + microbatch.value;
  const std::int64_t first = position - position % options_.microbatches_per_update;
  if (step_total_.first != first) {
    BatchExtent total = context_.extent_of(first);
    for (std::int64_t p = first + 1; p < first + options_.microbatches_per_update; ++p) {
      const BatchExtent one = context_.extent_of(p);
      total.samples += one.samples;
      for (std::size_t i = 0; i < one.counts.size(); ++i) total.counts[i] += one.counts[i];
    }
    step_total_ = {first, std::move(total)};
  }
  const auto weight_in = [&](const BatchExtent& e) {
    return static_cast<double>(head.count < 0 ? e.samples : e.counts.at(head.count));
  };
  const double all = std::max(1.0, weight_in(step_total_.second)),
               own = weight_in(context_.extent_of(position));
  std::vector<LossScale> of_jobs;
  for (const double scale : context_.loss_scales) {
    const double weight = head.named->weight * scale;
    of_jobs.push_back({.share = weight * (own / all), .unit = weight / all});
  }
  return of_jobs;
}

void StageExecutor::backward(MicrobatchId microbatch, Op op, bool last_gradient) {
  LayerSlot& slot = slot_for(microbatch);
  const VersionId version = parts_.store.version_of(microbatch);
  for (std::size_t h = program_.heads.size(); h-- > 0;) {
    const HeadStep& step = program_.heads[h];
    const std::span<const bool> needs(reinterpret_cast<const bool*>(step.needs.data()), step.needs.size());
    layers_.add_gradients(slot, step,
                          step.head->backward_of_jobs(slot.heads[h], scales_of(step, microbatch), needs));
  }
  slot.heads.clear();
  // The forward runs again with the same weights and the same dropout, which gives the same bits.
  if (recomputes_) {
    slot.values = std::exchange(slot.kept, {});
    slot.values.resize(program_.num_places);
    layers_.forward(slot, context_.first_position + microbatch.value, version, LayerRunner::Run::Again);
    slot.values.assign(program_.num_places, {});
  }
  if (op == Op::Backward) {
    layers_.backward(slot, version, [&](int layer) {
      if (last_gradient) reducer_.ready(layer);
    });
  } else {
    layers_.backward_input(slot, version);
  }
  // Gradients that go back use by use (Crossing::summed) are joined into one message.
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
  hand_over_gradients(slot);
  if (op == Op::Backward) finish_backward(slot);
}

void StageExecutor::backward_weights(MicrobatchId microbatch, bool last_gradient) {
  LayerSlot& slot = slot_for(microbatch);
  layers_.backward_weight(slot, [&](int layer) {
    if (last_gradient) reducer_.ready(layer);
  });
  finish_backward(slot);
}

/// Releases the weight version; the slot stays while input gradients wait to be sent.
void StageExecutor::finish_backward(LayerSlot& slot) {
  parts_.store.release(slot.microbatch);
  if (versions_) parts_.store.keep_from(version_for(slot.microbatch.value + versions_->replicas));
  slot.through = true;
  --stashed_;
  release_if_sent(slot);
}

StageExecutor* StageExecutor::sibling(int stage, MicrobatchId microbatch) const {
  const auto other = std::ranges::find(siblings_, StageId(stage), &StageExecutor::stage);
  if (other == siblings_.end()) return nullptr;
  const auto& ranks = parts_.ranks_of_stage.at(stage);
  const auto replica = static_cast<std::size_t>(microbatch.value) % ranks.size();
  return ranks[replica] == parts_.world.rank() ? *other : nullptr;
}

/// Gives the other stages of this rank the activations that they read. Those left in the slot are to be
/// sent.
void StageExecutor::hand_over_activations(LayerSlot& slot) {
  if (siblings_.empty()) return;
  std::vector<char> to_send(slot.values.size(), 0);
  for (const Border& border : program_.later) {
    StageExecutor* other = sibling(border.peer, slot.microbatch);
    if (!other) {
      for (const Port& port : border.ports) to_send[port.place] = 1;
      continue;
    }
    LayerSlot& theirs = other->slot_for(slot.microbatch);
    const Border& entry = *other->program_.earlier_from(parts_.stage.value);
    for (std::size_t i = 0; i < border.ports.size(); ++i)
      theirs.values[entry.ports[i].place] = slot.values[border.ports[i].place];
  }
  for (std::size_t i = 0; i < slot.values.size(); ++i) {
    if (!to_send[i]) slot.values[i].reset();
  }
}

void StageExecutor::hand_over_gradients(LayerSlot& slot) {
  if (siblings_.empty()) return;
  for (const Border& border : program_.earlier) {
    StageExecutor* other = sibling(border.peer, slot.microbatch);
    if (!other) continue;
    LayerSlot& theirs = other->slot_for(slot.microbatch);
    const Border& entry = *other->program_.later_to(parts_.stage.value);
    for (std::size_t i = 0; i < border.gradients.size(); ++i) {
      at::Tensor& mine = slot.gradients[border.gradients[i].place];
      other->accept_gradient(theirs, entry.gradients[i], std::exchange(mine, {}));
    }
  }
}

void StageExecutor::accept_gradient(LayerSlot& slot, const Port& port, at::Tensor value) {
  const Crossing& crossing = parts_.layout.crossings[port.crossing];
  if (crossing.summed) return layers_.add_gradient(slot, port.place, crossing.uses.front(), std::move(value));
  const std::int64_t rows = value.size(0) / crossing.gradient_parts();
  for (std::size_t i = 0; i < crossing.uses.size(); ++i) {
    layers_.add_gradient(slot, port.place, crossing.uses[i],
                         value.narrow(0, static_cast<std::int64_t>(i) * rows, rows));
  }
}

/// Frees a slot when nothing of it is still to be computed or sent.
void StageExecutor::release_if_sent(LayerSlot& slot) {
  const auto defined = [](const at::Tensor& t) { return t.defined(); };
  if (training_ && !slot.through) return;
  if (std::ranges::any_of(training_ ? slot.gradients : slot.values, defined)) return;
  const auto at = std::ranges::find(slots_, &slot, &std::unique_ptr<LayerSlot>::get);
  slot.clear();
  free_slots_.push_back(std::move(*at));
  slots_.erase(at);
}

StageExecutor::Route StageExecutor::route_of(const Action& action) const {
  const bool gradient = is_gradient(action.op);
  const bool sends = is_send(action.op);
  const bool upstream = gradient == sends;  // the peer is the earlier stage
  const int peer = action.peer_stage.value;
  const Border* border = upstream ? program_.earlier_from(peer) : program_.later_to(peer);
  MILLRACE_CHECK(border, "no tensor crosses between stages " << parts_.stage.value << " and " << peer);
  return {gradient ? &border->gradients : &border->ports, gradient, sends};
}

/// Returns a message tag that is unique over the whole run.
std::uint64_t StageExecutor::tag_of(const Action& action, const Port& port, bool gradient) const {
  const auto position = static_cast<std::uint64_t>(context_.first_position + action.microbatch.value);
  return parts_.numbers.tag(position, static_cast<std::size_t>(port.crossing), parts_.layout.crossings.size(),
                            parts_.numbers.most_crossings) *
             2 +
         gradient;
}

std::vector<Transfer> StageExecutor::transfers(const Action& action, const Route& route,
                                               const std::vector<at::Tensor>& tensors) const {
  std::vector<Transfer> result;
  result.reserve(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const Port& port = (*route.ports)[i];
    const Crossing& crossing = parts_.layout.crossings[port.crossing];
    const std::string* name = &parts_.layout.tensors[crossing.tensor].name;
    result.push_back({route.sends ? Direction::Send : Direction::Receive, action.peer,
                      tag_of(action, port, route.gradient), tensors[i],
                      LazyText([action, name] { return to_string(action) + " of " + *name; })});
  }
  return result;
}

void StageExecutor::send(const Action& action) {
  LayerSlot& slot = slot_for(action.microbatch);
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
    in_flight.push_back(parts_.world.exchange(transfers(action, route, tensors)));
  }
  if (route.gradient) return release_if_sent(slot);
  // A tensor may go to several stages of other ranks: it is dropped after the last of them.
  const auto last =
      std::ranges::find_if(program_.later.rbegin(), program_.later.rend(),
                           [&](const Border& b) { return !sibling(b.peer, action.microbatch); });
  if (last == program_.later.rend() || last->peer != action.peer_stage.value) return;
  for (at::Tensor& value : slot.values) value.reset();
  if (!training_) release_if_sent(slot);
}

void StageExecutor::post_receive(const Action& action) {
  const Route route = route_of(action);
  if (route.ports->empty()) return;
  const std::uint64_t tag = tag_of(action, route.ports->front(), route.gradient);
  if (std::ranges::find(posted_, tag, &Message::tag) != posted_.end()) return;
  Message message{.tag = tag};
  const auto& shapes = shapes_.of(context_.extent_of(context_.first_position + action.microbatch.value));
  const auto weights = parts_.store.flat_weights().options();
  for (const Port& port : *route.ports) {
    const Crossing& crossing = parts_.layout.crossings[port.crossing];
    const at::ScalarType dtype = parts_.layout.tensors[crossing.tensor].spec.dtype;
    Shape shape = shapes[crossing.tensor];
    if (route.gradient) shape[0] *= crossing.gradient_parts();
    // In a TensorSpec float32 means the precision of the run.
    message.tensors.push_back(at::empty(shape, dtype == at::kFloat ? weights : weights.dtype(dtype)));
  }
  message.pending = parts_.world.exchange(transfers(action, route, message.tensors));
  posted_.push_back(std::move(message));
}

void StageExecutor::receive(const Action& action) {
  const Route route = route_of(action);
  if (route.ports->empty()) return;
  post_receive(action);
  const auto at =
      std::ranges::find(posted_, tag_of(action, route.ports->front(), route.gradient), &Message::tag);
  Message message = std::move(*at);
  posted_.erase(at);
  message.pending->wait();
  LayerSlot& slot = slot_for(action.microbatch);
  for (std::size_t i = 0; i < route.ports->size(); ++i) {
    const Port& port = (*route.ports)[i];
    if (route.gradient)
      accept_gradient(slot, port, std::move(message.tensors[i]));
    else
      slot.values[port.place] = std::move(message.tensors[i]);
  }
}

void StageExecutor::finish_sends() {
  for (auto& [peer, in_flight] : sends_) {
    for (auto& pending : in_flight) pending->wait();
    in_flight.clear();
  }
  ties_.settle();
}

void StageExecutor::reduce() {
  reducer_.finish();
  reduce_sums();
  if (!versions_) join_statistics();
}

void StageExecutor::reduce_sums() {
  if (!parts_.replicas || program_.heads.empty()) return;
  collect_sums();
  at::Tensor sums = at::tensor(sums_, at::kDouble);
  parts_.replicas->all_reduce(sums, "REDUCE of the losses")->wait();
  std::copy_n(sums.const_data_ptr<double>(), sums_.size(), sums_.begin());
}

/// Throws NumericError if no job's loss is finite. It runs before the update is published, so that such a
/// loss changes no weights.
void StageExecutor::check_loss() {
  if (program_.heads.empty() || !options_.stop_on_nonfinite) return;
  collect_sums();
  const auto jobs = static_cast<std::size_t>(parts_.store.jobs());
  for (const HeadStep& step : program_.heads) {
    // In an array, one job with a finite loss is enough to go on.
    std::size_t finite = 0;
    for (std::size_t job = 0; job < jobs; ++job)
      finite += std::isfinite(sums_[step.sums + job * step.num_sums / jobs]);
    if (const double loss = sums_[step.sums]; finite == 0)
      throw NumericError("the loss is " + std::to_string(loss) +
                             (program_.heads.size() > 1 ? " in head " + step.named->name : ""),
                         "lower --lr or add --warmup-steps");
  }
}

void StageExecutor::complete_gradients() {
  if (std::exchange(gradients_complete_, true)) return;
  check_loss();
  ties_.add_gradients();
  if (parts_.store.slots().empty()) return;
  at::Tensor gradient = parts_.store.flat_gradient();
  if (options_.gradient_scale != 1) gradient.mul_(options_.gradient_scale);
  for (int job = 0; job < parts_.store.jobs(); ++job) {
    const auto j = static_cast<std::size_t>(job);
    const double value = j < options_.clip_values.size() ? options_.clip_values[j] : 0;
    if (const double most = value * context_.loss_scales[j]; most > 0)
      parts_.store.of_job(gradient, job).clamp_(-most, most);
  }
}

void StageExecutor::set_ended(const std::vector<char>& ended) {
  if (ended == ended_) return;
  ended_ = ended;
  if (parts_.store.has_buffers()) statistics_at_end_ = parts_.store.copy_of_buffers();
  written_at_end_.clear();
  const std::vector<int>& layers = parts_.layout.layers[parts_.stage.value];
  for (std::size_t l = 0; l < layers.size(); ++l) {
    std::size_t trained = 0;
    for (const ParameterSpec& spec : parts_.layout.model.layers[layers[l]].layer->parameters()) {
      if (spec.is_buffer) continue;
      const at::Tensor& own = parts_.store.current_parameters(static_cast<int>(l))[trained++];
      if (spec.written && spec.job >= 0 && ended_[spec.job]) written_at_end_.emplace_back(own, own.clone());
    }
  }
}

/// Restores the running statistics of ended jobs, and the rows of their embeddings. Forwards have changed
/// them, but nothing has read them since.
void StageExecutor::restore_ended() {
  for (std::size_t layer = 0; layer < statistics_at_end_.size(); ++layer) {
    const std::span<at::Tensor> buffers = parts_.store.buffers(static_cast<int>(layer));
    const std::size_t per_job = buffers.size() / ended_.size();
    for (std::size_t i = 0; i < buffers.size(); ++i)
      if (ended_[i / per_job]) buffers[i].copy_(statistics_at_end_[layer][i]);
  }
  for (const auto& [parameter, value] : written_at_end_) parameter.copy_(value);
}

void StageExecutor::update(const std::vector<UpdateScalars>& scalars) {
  complete_gradients();
  gradients_complete_ = false;
  if (parts_.store.slots().empty()) {
    // Nothing is updated, but versions advance on every stage alike.
    parts_.store.publish([](const at::Tensor&, const at::Tensor&) {});
  } else {
    const ParameterStore& store = parts_.store;
    parts_.store.publish([&](const at::Tensor& weights, const at::Tensor& gradient) {
      std::vector<UpdateRule::Update> updates;
      for (const JobRule& one : parts_.rules.all)
        updates.push_back(one.update(store, weights, gradient, scalars.at(one.job)));
      UpdateRule::apply_all_(updates);
    });
    peak_versions_ = std::max(peak_versions_, parts_.store.live_versions());
  }
  restore_ended();
  ties_.exchange_values();
}

bool StageExecutor::set_training(bool training) {
  if (!training) carried_in_evaluation_.clear();
  return std::exchange(training_, training) != training && exchange_averages();
}

/// Exchanges the trained weights and the averages in place: nothing else reads the newest weights while the
/// ranks rest.
bool StageExecutor::exchange_averages() {
  const at::Tensor weights = parts_.store.flat_weights();
  if (training_) {
    if (!trained_weights_.defined()) return false;
    weights.copy_(trained_weights_);
    trained_weights_.reset();
  } else {
    for (const JobRule& one : parts_.rules.all) {
      const at::Tensor averages = one.rule->averaged_weights();
      if (!averages.defined()) continue;
      if (!trained_weights_.defined()) trained_weights_ = weights.clone();
      const at::Tensor own = one.of(parts_.store, weights);
      const FlatRange shard = one.rule->shard();
      own.narrow(0, shard.begin, shard.size()).copy_(averages);
      one.rule->all_gather_(own);
    }
    if (!trained_weights_.defined()) return false;
  }
  parts_.store.weights_changed();
  ties_.settle();
  ties_.exchange_values();
  return true;
}

std::vector<double> StageExecutor::take_sums() {
  collect_sums();
  return std::exchange(sums_, std::vector<double>(program_.num_sums, 0.0));
}

LossSums StageExecutor::losses_of(std::span<const double> sums) const {
  if (program_.heads.empty()) return {};
  const LayeredModel& model = parts_.layout.model;
  std::vector<NamedValues> jobs = job_values(model, sums);
  NamedValues values = values_of_jobs(jobs);
  return {.values = std::move(values),
          .jobs = std::move(jobs),
          .weight = sums[program_.heads.front().sums + program_.heads.front().num_sums - 1]};
}

}  // namespace millrace
