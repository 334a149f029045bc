#include "runtime/stage/stage_executor.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include <ATen/ops/clamp.h>

#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/model/field_limit.h"
#include "runtime/stage/flat_blocks.h"

namespace millrace {
StageExecutor::StageExecutor(const ExecutorParts& parts, const ExecutorOptions& options)
    : parts_(parts),
      options_(options),
      program_(compile_stage(parts.layout, parts.stage)),
      layers_(program_, parts_.store, options.seeds),
      slots_(program_.num_places),
      borders_(parts_, program_, layers_, slots_),
      heads_(program_, parts_.layout, layers_, parts.replicas, options.microbatches_per_update),
      ties_(parts_.layout, parts_.stage, parts_.ranks_of_stage, parts_.store, parts_.world, parts_.numbers),
      reducer_(parts.store, parts.replicas, program_, options.bucket_bytes),
      statistics_(parts_),
      versions_(parts.store),
      averages_(parts_) {
  begin({});
  layers_.set_masks(options.masks);
  parts_.store.make_copies(parts_.layout, parts_.stage,
                           options.microbatches_per_update / (parts.replicas ? parts.replicas->size() : 1));
  if (options.check_activations) layers_.set_finite_check(&finite_.emplace(program_, options.throws_at_once));
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
  heads_.begin();
  if (options_.keeps_written && context_.training) statistics_.keep(options_.keeps_statistics);
}

void StageExecutor::pause(std::int64_t cut) {
  paused_ = Paused{.context = context_};
  slots_.exchange(paused_->slots);
  borders_.exchange_posted(paused_->posted);
  statistics_.pause(cut, versions_.asynchronous());
}

void StageExecutor::go_on() {
  MILLRACE_CHECK(paused_ && slots_.all().empty());
  slots_.exchange(paused_->slots);
  borders_.exchange_posted(paused_->posted);
  statistics_.resume();
  begin(std::move(paused_->context));
  paused_.reset();
}

void StageExecutor::feed(MicrobatchId microbatch, const Batch& batch) {
  LayerSlot& slot = slots_.of(microbatch);
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
      return borders_.send(action, context_);
    case Op::RecvActivation:
    case Op::RecvGradient:
      return borders_.receive(action, context_);
    case Op::Reduce:
      reducer_.finish();
      reduce_sums();
      if (!versions_.asynchronous()) statistics_.join();
      return;
    case Op::Update:
      break;
  }
  MILLRACE_CHECK(false, "an Update needs its scalars: update()");
}

void StageExecutor::forward(MicrobatchId microbatch) {
  ties_.settle();
  const bool training = context_.training;
  LayerSlot& slot = slots_.of(microbatch);
  const VersionId version = training ? versions_.pin(microbatch) : parts_.store.current();
  if (training && versions_.asynchronous()) statistics_.before_forward(microbatch, versions_.replicas());
  const bool keeps = training && recomputes();
  const std::int64_t position = context_.position_of(microbatch);
  const std::int64_t drawn = position - (training ? 0 : context_.evaluation_shift);
  if (program_.writes.carried)
    slot.carried = carried_of_run().before(position, context_.extent_of(position).follows);
  if (keeps) slot.kept.assign(slot.values.begin(), slot.values.begin() + program_.num_incoming);
  layers_.forward(slot, drawn, version,
                  !training ? LayerRunner::Run::Evaluate
                  : keeps   ? LayerRunner::Run::TrainWithoutSaving
                            : LayerRunner::Run::Train);
  if (program_.writes.carried) keep_carried(slot);
  const bool marks = options_.marks_losses && !program_.heads.empty();
  if (marks) loss_marks_.first = parts_.device.mark();
  heads_.forward(slot, training);
  if (marks) loss_marks_.second = parts_.device.mark();
  // Only tensors that are still to be sent stay; those that the backward needs are saved.
  std::vector<at::Tensor> leaving(program_.num_places);
  for (const Border& border : program_.later) {
    for (const Port& port : border.ports) leaving[port.place] = slot.values[port.place];
  }
  slot.values = std::move(leaving);
  borders_.hand_over_activations(slot);
  if (!training) return slots_.release_if_done(slot, training);
  ++stashed_;
  peak_versions_ = std::max(peak_versions_, parts_.store.live_versions());
}

/// Keeps the layers' states for the following microbatch. Slots belong to microbatches that are in flight, or
/// about to be.
void StageExecutor::keep_carried(LayerSlot& slot) {
  std::int64_t oldest = slot.microbatch.value;
  for (const auto& other : slots_.all()) oldest = std::min(oldest, other->microbatch.value);
  carried_of_run().leave(context_.position_of(slot.microbatch), std::exchange(slot.left, {}),
                         context_.first_position + oldest);
}

void StageExecutor::backward(MicrobatchId microbatch, Op op, bool last_gradient) {
  LayerSlot& slot = slots_.of(microbatch);
  const VersionId version = parts_.store.version_of(microbatch);
  heads_.backward(slot, context_);
  if (recomputes()) {  // repeats the forward with the same weights and the same dropout: the same bits
    slot.values = std::exchange(slot.kept, {});
    slot.values.resize(program_.num_places);
    layers_.forward(slot, context_.position_of(microbatch), version, LayerRunner::Run::Again);
    slot.values.assign(program_.num_places, {});
  }
  if (op == Op::Backward) {
    layers_.backward(slot, version, [&](int layer) {
      if (last_gradient) reducer_.ready(layer);
    });
  } else {
    layers_.backward_input(slot, version);
  }
  borders_.hand_over_gradients(slot);
  if (op == Op::Backward) finish_backward(slot);
}

void StageExecutor::backward_weights(MicrobatchId microbatch, bool last_gradient) {
  LayerSlot& slot = slots_.of(microbatch);
  layers_.backward_weight(slot, [&](int layer) {
    if (last_gradient) reducer_.ready(layer);
  });
  finish_backward(slot);
}

/// Releases the weight version; the slot stays while input gradients wait to be sent.
void StageExecutor::finish_backward(LayerSlot& slot) {
  versions_.release(slot.microbatch);
  slot.through = true;
  --stashed_;
  slots_.release_if_done(slot, true);
}

void StageExecutor::finish_sends() {
  borders_.finish_sends();
  ties_.settle();
}

std::optional<NonfinitePlace> StageExecutor::nonfinite_place() {
  using Kind = NonfinitePlace::Kind;
  std::optional<NonfinitePlace> first = finite_ ? finite_->take() : std::nullopt;
  const auto take = [&](const std::optional<NonfinitePlace>& place) {
    if (place && (!first || place->order < first->order)) first = place;
  };
  take(heads_.first_nonfinite());
  const auto look = [&](const at::Tensor& flat, Kind kind, const char* what) {
    const std::vector<double> sums = square_sums_by_slot(parts_.store, flat);
    for (std::size_t s = 0; s < sums.size(); ++s) {
      const std::string& name = parts_.store.slots()[s].name;
      if (std::isfinite(sums[s])) continue;
      const std::optional<ParameterPlace> owner = find_parameter(parts_.layout.model, name);
      take(NonfinitePlace{NonfinitePlace::order_of(kind, 0, owner ? owner->layer : 0),
                          what + name + " (stage " + std::to_string(parts_.stage.value) + ")"});
    }
  };
  if (parts_.store.slots().empty()) return first;
  look(parts_.store.flat_weights(), Kind::Weight, "parameter ");
  look(parts_.store.flat_gradient(), Kind::WeightGradient, "the gradient of parameter ");
  return first;
}

void StageExecutor::complete_gradients() {
  if (std::exchange(gradients_complete_, true)) return;
  if (options_.stop_on_nonfinite) heads_.require_finite();  // before the loss is used
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

void StageExecutor::update(const std::vector<UpdateScalars>& scalars) {
  complete_gradients();
  gradients_complete_ = false;
  ParameterStore& store = parts_.store;
  if (store.slots().empty()) {
    store.publish([](const at::Tensor&, const at::Tensor&) {});  // versions advance on every stage alike
  } else {
    const std::vector<JobRule>& rules = parts_.rules.all;
    const bool sparse = rules.size() == 1 && !rules[0].part && store.jobs() == 1 &&
                        rules[0].rule->updates_touched(store.flat_weights());
    const std::vector<FlatRange> touched = sparse ? store.touched() : std::vector<FlatRange>();
    const int before = store.live_versions();
    const auto bytes = static_cast<std::int64_t>(store.flat_weights().nbytes());
    store.publish(
        [&](const at::Tensor& weights, const at::Tensor& gradient) {
          std::vector<UpdateRule::Update> updates;
          for (const JobRule& one : rules) {
            updates.push_back(one.update(store, weights, gradient, scalars.at(one.job)));
            if (sparse) updates.back().touched = &touched;
          }
          UpdateRule::apply_all_(updates);
        },
        sparse ? &touched : nullptr);
    const int versions = store.live_versions();
    parts_.device.updated(
        {.stage = parts_.stage.value, .jobs = store.jobs(), .bytes = bytes, .copied = versions > before});
    peak_versions_ = std::max(peak_versions_, versions);
  }
  statistics_.restore_ended();
  if (options_.keeps_written && std::ranges::any_of(scalars, &UpdateScalars::skip)) take_back(scalars);
  ties_.exchange_values();
}

/// Reverts what the forwards of a skipped step wrote.
void StageExecutor::take_back(const std::vector<UpdateScalars>& scalars) {
  std::vector<char> skipped;
  for (const UpdateScalars& job : scalars) skipped.push_back(job.skip ? 1 : 0);
  statistics_.put_back(skipped);
  if (options_.keeps_statistics)
    carried_.take_back(context_.first_position, skipped,
                       [this](std::int64_t position) { return context_.extent_of(position).follows; });
}

bool StageExecutor::use_averages(bool averages) {
  if (averages) carried_in_evaluation_.clear();
  if (!averages_.use(averages)) return false;
  ties_.settle();
  ties_.exchange_values();
  return true;
}

}  // namespace millrace
