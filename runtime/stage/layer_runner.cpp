#include "runtime/stage/layer_runner.h"

#include <algorithm>
#include <functional>

#include <ATen/ops/add.h>
#include <ATen/ops/zeros.h>

#include "runtime/base/check.h"
#include "runtime/base/random.h"
#include "runtime/device/failures.h"
#include "runtime/layers/shape_errors.h"

namespace millrace {

void LayerSlot::clear() {
  microbatch = MicrobatchId(-1);
  values.clear();
  gradients.clear();
  parts.clear();
  saved.clear();
  kept.clear();
  carried.clear();
  left.clear();
  heads.clear();
  output_gradients.clear();
  through = false;
}

namespace {

using Phase = LayerObserver::Phase;

void cast_inputs(const LayerStep& step, std::vector<at::Tensor>& inputs) {
  if (step.compute == at::ScalarType::Undefined) return;
  for (at::Tensor& input : inputs) {
    if (input.is_floating_point()) input = input.to(step.compute);
  }
}

bool have(std::span<const at::Tensor> tensors, const std::vector<Shape>& shapes) {
  return std::ranges::equal(tensors, shapes, [](const at::Tensor& tensor, const Shape& shape) {
    return tensor.defined() && tensor.sizes() == shape;
  });
}

[[noreturn]] void throw_other_shape(const LayerStep& step, std::size_t output, const at::Tensor& made) {
  std::string read;
  for (const Shape& shape : step.input_shapes) read += (read.empty() ? "" : " and ") + text_of(shape);
  throw ConfigError("layer " + std::to_string(step.index) + " '" + step.named->name + "' (" +
                        step.layer->kind() + ") made " + text_of(made.sizes().vec()) + " of " + read +
                        "; its output_shape says " + text_of(step.output_shapes[output]),
                    "let output_shape return what the layer computes");
}

/// Checks the shapes and types of a layer's outputs: other stages receive tensors and return gradients of the
/// declared ones. Shapes are those of a microbatch of nominal extent, if the step has them; otherwise they
/// are not checked.
void check_outputs(const LayerStep& step, const LayerSlot& slot, std::span<const at::Tensor> inputs) {
  for (std::size_t k = 0; k < step.output_shapes.size(); ++k) {
    const at::Tensor& made = slot.values[step.outputs[k]];
    if (made.defined() && made.sizes() != step.output_shapes[k] && have(inputs, step.input_shapes))
        [[unlikely]]
      throw_other_shape(step, k, made);
  }
  for (std::size_t k = 0; k < step.output_dtypes.size(); ++k) {
    const at::Tensor& made = slot.values[step.outputs[k]];
    MILLRACE_CHECK(made.scalar_type() == step.output_dtypes[k],
                   "layer " << step.named->name << " made " << toString(made.scalar_type()) << ", said "
                            << toString(step.output_dtypes[k]));
  }
}

}  // namespace

std::vector<at::Tensor> LayerRunner::inputs_of(const LayerSlot& slot, const HeadStep& head) const {
  std::vector<at::Tensor> inputs;
  for (int place : head.inputs) {
    const at::Tensor& value = slot.values[place];
    // The tensor is undefined if the first job's tensor has the values of all jobs (JobTensors).
    inputs.push_back(value.defined() ? widened(value) : value);
  }
  return inputs;
}

void LayerRunner::add_gradients(LayerSlot& slot, const HeadStep& head, std::vector<at::Tensor> grads) const {
  cast_each(grads, head.input_dtypes);
  for (std::size_t k = 0; k < grads.size(); ++k) {
    if (head.needs[k]) add_gradient(slot, head.inputs[k], head.use, std::move(grads[k]));
  }
}

namespace {
std::span<const bool> bools(const std::vector<char>& flags) {
  return {reinterpret_cast<const bool*>(flags.data()), flags.size()};
}

/// Runs a call of a layer. An error names the layer, its kind, the call and the input shapes.
template <class Call>
auto named(const LayerStep& step, const char* call, const std::vector<at::Tensor>& given, Call&& run) {
  try {
    return run();
  } catch (...) {
    std::string shapes;
    for (const at::Tensor& tensor : given)
      shapes += (shapes.empty() ? "" : ", ") + (tensor.defined() ? text_of(tensor.sizes().vec()) : "none");
    rethrow_with("layer " + step.named->name + " (" + step.layer->kind() + "), " + call + " of " + shapes +
                 ": ");
  }
}

std::vector<at::Tensor> gradients_of_inputs(const LayerStep& step, const std::vector<at::Tensor>& grads,
                                            std::span<const at::Tensor> parameters, Saved& saved) {
  return step.multi ? step.multi->backward_input_all(grads, parameters, saved, bools(step.needs))
                    : step.layer->backward_input(grads[0], parameters, saved, bools(step.needs));
}
}  // namespace

/// Returns the tensors to which a layer adds its weight gradients: the store's. If the parameters are in a
/// lower precision, they are zeros of that precision (`own`), which add_sums() adds to the store's.
std::span<at::Tensor> LayerRunner::sums_for(std::size_t step, std::vector<at::Tensor>& own) {
  const auto sums = store_.gradients(static_cast<int>(step));
  if (!program_.steps[step].lowers_parameters) return sums;
  const at::ScalarType dtype = program_.steps[step].compute;
  for (const at::Tensor& sum : sums) own.push_back(at::zeros(sum.sizes(), sum.options().dtype(dtype)));
  return own;
}

void LayerRunner::add_sums(std::size_t step, const std::vector<at::Tensor>& own) {
  const auto sums = store_.gradients(static_cast<int>(step));
  for (std::size_t k = 0; k < own.size(); ++k) sums[k].add_(own[k]);
}

/// Runs a layer that carries states. A repeated forward starts with the same state and stores none.
std::vector<at::Tensor> LayerRunner::forward_carrying(LayerSlot& slot, std::size_t i,
                                                      std::span<const at::Tensor> inputs,
                                                      const CallContext& context, Saved* saved,
                                                      VersionId version, Run run) {
  const LayerStep& step = program_.steps[i];
  std::vector<at::Tensor> state(step.num_carried);
  if (!slot.carried.empty()) state = slot.carried[i];
  std::vector<at::Tensor> outputs = step.carrying->forward_all_from(
      inputs, store_.parameters(version, static_cast<int>(i)), state, context, saved);
  if (run == Run::Again) return outputs;
  slot.left.resize(program_.steps.size());
  slot.left[i] = std::move(state);
  return outputs;
}

void LayerRunner::forward(LayerSlot& slot, std::int64_t position, VersionId version, Run run) {
  const bool saves = run == Run::Train || run == Run::Again;
  if (saves) slot.saved.resize(program_.steps.size());
  std::vector<at::Tensor> inputs, copies;
  for (std::size_t i = 0; i < program_.steps.size(); ++i) {
    const LayerStep& step = program_.steps[i];
    inputs.clear();
    for (int place : step.inputs) inputs.push_back(slot.values[place]);
    CallContext context{
        .training = run != Run::Evaluate, .replicas = replicas_, .together = step.together, .masks = masks_};
    if (step.draws) {
      for (std::size_t job = 0; job < seeds_.size(); ++job) {
        const std::int64_t own = position - (run == Run::Evaluate ? 0 : begins_at_[job]);
        drawn_[job] = derive_seed(seeds_[job], step.named->name, static_cast<std::uint64_t>(own));
      }
      context.random_seed = drawn_.front();
      if (drawn_.size() > 1) context.job_seeds = drawn_;
    }
    std::span<at::Tensor> buffers = store_.buffers(static_cast<int>(i));
    // These run on copies, because running means must count a microbatch once.
    if (run == Run::Again || step.keeps_statistics) {
      copies.clear();
      for (const at::Tensor& buffer : buffers) copies.push_back(buffer.clone());
      buffers = copies;
    }
    Saved* saved = saves && step.has_backward ? &slot.saved[i] : nullptr;
    const auto parameters = store_.parameters(version, static_cast<int>(i));
    before(Phase::Forward, i);
    cast_inputs(step, inputs);
    if (!step.carrying && !step.multi) {
      slot.values[step.outputs[0]] = named(step, "forward", inputs, [&] {
        return step.layer->forward(inputs, parameters, buffers, context, saved);
      });
    } else {
      std::vector<at::Tensor> outputs = named(step, "forward", inputs, [&] {
        return step.carrying ? forward_carrying(slot, i, inputs, context, saved, version, run)
                             : step.multi->forward_all(inputs, parameters, buffers, context, saved);
      });
      MILLRACE_CHECK(outputs.size() == step.outputs.size(), "layer " << step.named->name);
      for (std::size_t k = 0; k < outputs.size(); ++k) slot.values[step.outputs[k]] = std::move(outputs[k]);
    }
    after(Phase::Forward, i);
    check_outputs(step, slot, inputs);
    if (finite_ && run != Run::Evaluate) [[unlikely]]
      for (int place : step.outputs) finite_->forward(slot.microbatch, step, slot.values[place], inputs);
    for (int place : step.read_last) slot.values[place].reset();
  }
}

void LayerRunner::add_gradient(LayerSlot& slot, int place, int use, at::Tensor value) const {
  const auto at = static_cast<std::size_t>(place);
  if (program_.in_parts[at]) {
    slot.parts.push_back({place, use, std::move(value)});
    return;
  }
  at::Tensor& sum = slot.gradients[at];
  // The sum is never in place: gradients of inputs may share memory.
  sum = sum.defined() ? at::add(sum, value) : std::move(value);
}

/// Returns the gradient of a tensor: the sum over all uses, from the last reader to the first, for any stages
/// and any order of arrival.
at::Tensor LayerRunner::take_gradient(LayerSlot& slot, int place) const {
  if (!program_.in_parts[place]) return std::move(slot.gradients[place]);
  const auto others = std::stable_partition(slot.parts.begin(), slot.parts.end(),
                                            [&](const GradientPart& p) { return p.place != place; });
  std::stable_sort(others, slot.parts.end(),
                   [](const GradientPart& a, const GradientPart& b) { return a.use > b.use; });
  at::Tensor sum;
  for (auto part = others; part != slot.parts.end(); ++part)
    sum = sum.defined() ? at::add(sum, part->value) : std::move(part->value);
  slot.parts.erase(others, slot.parts.end());
  return sum;
}

/// Takes the gradients of a layer's outputs. Returns false if no reader gave the layer a gradient.
bool LayerRunner::take_gradients(LayerSlot& slot, const LayerStep& step,
                                 std::vector<at::Tensor>& grads) const {
  grads.clear();
  bool any = false;
  for (int place : step.outputs) {
    grads.push_back(take_gradient(slot, place));
    any = any || grads.back().defined();
  }
  if (step.has_backward) MILLRACE_CHECK(any, "layer " << step.named->name << " got no gradient");
  return step.has_backward;
}

void LayerRunner::look_at(const LayerSlot& slot, const LayerStep& step,
                          const std::vector<at::Tensor>& gradients,
                          const std::vector<at::Tensor>& given) const {
  if (!finite_) [[likely]]
    return;
  for (const at::Tensor& gradient : gradients) finite_->backward(slot.microbatch, step, gradient, given);
}

void LayerRunner::spread(LayerSlot& slot, const LayerStep& step, std::vector<at::Tensor>& inputs) const {
  cast_each(inputs, step.input_dtypes);
  for (std::size_t k = 0; k < inputs.size(); ++k) {
    if (step.needs[k]) add_gradient(slot, step.inputs[k], step.index, std::move(inputs[k]));
  }
}

void LayerRunner::joint_step(LayerSlot& slot, VersionId version, std::size_t i) {
  const LayerStep& step = program_.steps[i];
  std::vector<at::Tensor> grads;
  if (!take_gradients(slot, step, grads)) return;
  const auto parameters = store_.parameters(version, static_cast<int>(i));
  Saved& saved = slot.saved[i];
  std::vector<at::Tensor> inputs;
  before(Phase::BackwardInput, i);
  named(step, "backward", grads, [&] {
    if (step.frozen) {
      inputs = gradients_of_inputs(step, grads, parameters, saved);
      return;
    }
    std::vector<at::Tensor> own;
    if (step.has_parameters) store_.touch(static_cast<int>(i), step.layer->rows_of_gradient(saved));
    const std::span<at::Tensor> sums = sums_for(i, own);
    if (!step.multi) {
      inputs = step.layer->backward(grads[0], parameters, saved, bools(step.needs), sums);
    } else {
      inputs = gradients_of_inputs(step, grads, parameters, saved);
      step.multi->backward_weight_all(grads, saved, sums);
    }
    add_sums(i, own);
  });
  after(Phase::BackwardInput, i);
  saved = {};
  look_at(slot, step, inputs, grads);
  spread(slot, step, inputs);
}

void LayerRunner::backward_input(LayerSlot& slot, VersionId version) {
  slot.output_gradients.resize(program_.steps.size());
  for (std::size_t i = program_.steps.size(); i-- > 0;) input_step(slot, version, i);
}

void LayerRunner::backward_layer_by_layer(LayerSlot& slot, VersionId version) {
  slot.output_gradients.resize(program_.steps.size());
  for (std::size_t i = program_.steps.size(); i-- > 0;) {
    input_step(slot, version, i);
    weight_step(slot, i);
  }
}

void LayerRunner::input_step(LayerSlot& slot, VersionId version, std::size_t i) {
  const LayerStep& step = program_.steps[i];
  std::vector<at::Tensor> grads;
  if (!take_gradients(slot, step, grads)) return;
  const auto parameters = store_.parameters(version, static_cast<int>(i));
  before(Phase::BackwardInput, i);
  std::vector<at::Tensor> inputs = named(step, "backward to its inputs", grads, [&] {
    return gradients_of_inputs(step, grads, parameters, slot.saved[i]);
  });
  after(Phase::BackwardInput, i);
  const std::vector<at::Tensor> given = finite_ ? grads : std::vector<at::Tensor>();
  if (step.has_parameters)
    slot.output_gradients[i] = std::move(grads);
  else
    slot.saved[i] = {};
  look_at(slot, step, inputs, given);
  spread(slot, step, inputs);
}

void LayerRunner::weight_step(LayerSlot& slot, std::size_t i) {
  std::vector<at::Tensor>& grads = slot.output_gradients[i];
  if (grads.empty()) return;
  const LayerStep& step = program_.steps[i];
  before(Phase::BackwardWeight, i);
  named(step, "backward to its weights", grads, [&] {
    std::vector<at::Tensor> own;
    if (step.has_parameters) store_.touch(static_cast<int>(i), step.layer->rows_of_gradient(slot.saved[i]));
    const std::span<at::Tensor> sums = sums_for(i, own);
    if (step.multi)
      step.multi->backward_weight_all(grads, slot.saved[i], sums);
    else
      step.layer->backward_weight(grads[0], slot.saved[i], sums);
    add_sums(i, own);
  });
  after(Phase::BackwardWeight, i);
  grads.clear();
  slot.saved[i] = {};
}

}  // namespace millrace
