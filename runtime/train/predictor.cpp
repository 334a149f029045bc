#include "runtime/train/predictor.h"

#include <algorithm>
#include <map>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/layers/shape_errors.h"
#include "runtime/model/field_limit.h"
#include "runtime/model/stage_layout.h"
#include "runtime/stage/layer_runner.h"

namespace millrace {
namespace {

StageLayout layout_of(const LayeredModel& model, Precision precision) {
  if (model.jobs() > 1)
    throw ConfigError(model.name + " is an array of " + std::to_string(model.jobs()) + " jobs",
                      "give the model of one job, and its weights: `millrace split` parts them");
  const Plan whole = uniform_plan(model.name, model.layer_names(), 1, 1, 1, ScheduleKind::OneFOneB);
  Result<StageLayout> layout = make_layout(model, whole, /*microbatch_size=*/1, precision);
  if (!layout) throw ConfigError(to_string(layout.problems()));
  return *std::move(layout);
}

std::vector<char> read_by_layers(const LayeredModel& model) {
  std::vector<char> reads(model.fields.size());
  for (std::size_t f = 0; f < reads.size(); ++f) {
    reads[f] = std::ranges::any_of(model.layers, [&](const NamedLayer& layer) {
      return std::ranges::find(layer.inputs, model.fields[f].name) != layer.inputs.end();
    });
  }
  return reads;
}

/// Throws DataError unless `value` is a batch of the field's samples. Lengths are arbitrary.
void check_field(const FieldSpec& field, const at::Tensor& value) {
  if (!value.defined())
    throw DataError("the batch has no '" + field.name + "', which the model reads",
                    "Batch::fields holds a tensor for each field of the model, in its order");
  Shape expected = field.shape;
  const std::int64_t samples = value.dim() > field.batch_dimension ? value.size(field.batch_dimension) : 0;
  expected.insert(expected.begin() + field.batch_dimension, samples);
  bool fits = samples > 0 && value.dim() == static_cast<std::int64_t>(expected.size()) &&
              at::isFloatingType(value.scalar_type()) == at::isFloatingType(field.dtype);
  for (std::size_t d = 0; fits && d < expected.size(); ++d)
    fits = expected[d] < 0 || value.size(static_cast<std::int64_t>(d)) == expected[d];
  if (fits) return check_limit(field, value);
  std::string wanted;
  for (std::size_t d = 0; d < expected.size(); ++d) {
    const bool is_batch = d == static_cast<std::size_t>(field.batch_dimension);
    wanted += (d ? ", " : "") + (is_batch          ? "N"
                                 : expected[d] < 0 ? std::string("length")
                                                   : std::to_string(expected[d]));
  }
  throw DataError("'" + field.name + "' is " + c10::toString(value.scalar_type()) + " " +
                      text_of(value.sizes().vec()) + ", the model reads " + c10::toString(field.dtype) +
                      " [" + wanted + "]",
                  "N is the number of samples");
}

}  // namespace

struct Predictor::Impl {
  Impl(const LayeredModel& model, const PredictorOptions& options)
      : device(options.device ? options.device : make_cpu_device()),
        layout(layout_of(model, options.precision)),
        program(compile_stage(layout, StageId(0))),
        store(layout, StageId(0), /*seed=*/0, device->where()),
        layers(program, store, /*seed=*/0),
        reads(read_by_layers(layout.model)) {}

  std::shared_ptr<Device> device;
  StageLayout layout;
  StageProgram program;
  ParameterStore store;
  LayerRunner layers;
  std::vector<char> reads;
};

Predictor::Predictor(LayeredModel model, const NamedTensors& weights, const PredictorOptions& options)
    : impl_(std::make_unique<Impl>(model, options)) {
  std::map<std::string, at::Tensor> given(weights.begin(), weights.end());
  Problems problems;
  // adds the other names of tied parameters, which a state_dict has
  for (const NamedLayer& layer : model.layers) {
    for (const auto& [own, owner] : layer.tied) given.erase(layer.name + "." + own);
  }
  for (auto& [name, tensor] : stage_weights(impl_->store)) {
    const auto found = given.find(name);
    if (found == given.end() || !found->second.defined()) {
      problems.push_back({"weights", "have no tensor " + name, {}});
      continue;
    }
    if (found->second.sizes() != tensor.sizes())
      problems.push_back({"weights",
                          name + " has shape " + text_of(found->second.sizes().vec()) + ", the model has " +
                              text_of(tensor.sizes().vec()),
                          "make the model with the options of the training"});
    else
      tensor.copy_(found->second);
    given.erase(found);
  }
  for (const auto& [name, tensor] : given)
    problems.push_back({"weights", "have " + name + ", which " + model.name + " has not", {}});
  if (!problems.empty()) throw CheckpointError(to_string(problems));
  impl_->store.weights_changed();
}

Predictor::Predictor(LayeredModel model, const OpenedWeights& weights, const PredictorOptions& options)
    : impl_(std::make_unique<Impl>(model, options)) {
  const WeightFiles files = weights.files();
  Problems problems = weights.verify();
  if (problems.empty()) problems = check_weights(files, model, options.ignored);
  if (!problems.empty()) throw CheckpointError(to_string(problems));
  load_weights(files, model, options.ignored, impl_->store, WeightsOf::Evaluation);
  impl_->store.weights_changed();
}

Predictor::~Predictor() = default;
Predictor::Predictor(Predictor&&) noexcept = default;

const LayeredModel& Predictor::model() const {
  return impl_->layout.model;
}

const std::vector<char>& Predictor::reads() const {
  return impl_->reads;
}

std::vector<at::Tensor> Predictor::forward(const Batch& batch) {
  const at::NoGradGuard no_grad;
  impl_->device->bind_thread();
  LayerSlot slot;
  slot.values.resize(static_cast<std::size_t>(impl_->program.num_places));
  const std::vector<FieldSpec>& fields = model().fields;
  for (const auto& [index, place] : impl_->program.fields) {
    const auto f = static_cast<std::size_t>(index);
    at::Tensor value = f < batch.fields.size() ? batch.fields[f] : at::Tensor();
    if (!value.defined() && !impl_->reads[f]) continue;
    check_field(fields[f], value);
    slot.values[place] = impl_->device->upload(value.to(fields[f].dtype));
  }
  impl_->layers.forward(slot, /*position=*/0, impl_->store.current(), LayerRunner::Run::Evaluate);
  std::vector<at::Tensor> results;
  for (const HeadStep& head : impl_->program.heads)
    results.push_back(impl_->layers.inputs_of(slot, head).front());
  return results;
}

}  // namespace millrace
