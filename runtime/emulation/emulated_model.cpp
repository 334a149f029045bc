#include "runtime/emulation/emulated_model.h"

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <utility>

#include <ATen/ops/empty.h>

#include "runtime/emulation/emulated_device.h"
#include "runtime/emulation/stand_ins.h"
#include "runtime/emulation/times_by_size.h"
#include "runtime/model/stage_layout.h"
#include "runtime/plan/plan.h"
#include "runtime/rules/precision.h"

namespace millrace {
namespace {

at::Tensor without_values(const Shape& shape, at::ScalarType dtype) {
  return at::empty(shape, at::TensorOptions(dtype).device(at::kMeta));
}

Bytes bytes_of(const TensorSpec& spec) {
  Bytes bytes = static_cast<Bytes>(c10::elementSize(spec.dtype));
  for (const std::int64_t size : spec.shape) bytes *= size;
  return bytes;
}

/// The data that a layer or head keeps from forward to backward: shapes, and as many bytes as the profile
/// specifies.
struct Kept {
  std::vector<TensorSpec> inputs;
  std::vector<at::Tensor> held_inputs, held_outputs;  ///< each is counted once, even with other holders
  std::unique_ptr<EmulatedDevice::Block> bytes;       ///< in addition to these
  Bytes output_bytes = 0;
  double share = 1;  ///< size relative to the profile's longest microbatch
  LayerSeconds seconds;
};

Kept& kept_in(Saved& saved) {
  return *static_cast<Kept*>(saved.extra.get());
}

void keep(Saved& saved, std::span<const at::Tensor> inputs) {
  const auto kept = std::make_shared<Kept>();
  kept->inputs = specs_of(inputs);
  saved.extra = kept;
}

std::vector<at::Tensor> gradients_of(Saved& saved, std::span<const bool> needs) {
  std::vector<at::Tensor> gradients(needs.size());
  for (std::size_t i = 0; i < needs.size(); ++i) {
    const TensorSpec& input = kept_in(saved).inputs[i];
    if (needs[i]) gradients[i] = without_values(input.shape, input.dtype);
  }
  return gradients;
}

Bytes bytes_of(std::span<const at::Tensor> tensors) {
  Bytes bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += static_cast<Bytes>(tensor.nbytes());
  return bytes;
}

/// The costs of a layer.
struct Costs {
  LayerNode node;
  TimesBySize times;               ///< by work_of()
  std::vector<std::size_t> apart;  ///< inputs whose sizes are not proportional to the outputs'
  Bytes most_output = 0;           ///< in the profile's longest microbatch; 0: all are equal
  Bytes counted_elsewhere = 0;     ///< inputs that the layer keeps and that count in other layers
};

/// Returns a measure of a layer's work on a microbatch: the bytes of its outputs. If inputs have independent
/// sizes (`apart`), it is the product of both: attention compares each word of one sentence with each word of
/// the other. `input_bytes` maps an input's number to its bytes.
double work_of(Bytes outputs, std::span<const std::size_t> apart, const auto& input_bytes) {
  Bytes others = 0;
  for (const std::size_t input : apart) others += input_bytes(input);
  return double(outputs) * (apart.empty() ? 1.0 : double(others));
}

/// A layer that replaces `layer`. It keeps as many bytes as the profile specifies.
class EmulatedLayer : public StandInLayer {
 public:
  EmulatedLayer(LayerPtr layer, const Costs& costs) : StandInLayer(std::move(layer)), costs_(costs) {}
  static at::Tensor state(const Shape& shape, at::ScalarType dtype) { return without_values(shape, dtype); }
  std::vector<ParameterSpec> parameters() const override {
    std::vector<ParameterSpec> specs = layer_->parameters();
    for (ParameterSpec& spec : specs) {
      spec.init = Init::Zeros;  // initial values would be drawn on the host for nothing
      spec.value = at::Tensor();
    }
    return specs;
  }
  std::vector<at::Tensor> copies(const Shape&, std::span<const at::Tensor>) const override {
    const Bytes bytes = costs_.node.lowered_bytes - costs_.node.tied_bytes;
    return bytes > 0 ? std::vector{without_values({bytes}, at::kByte)} : std::vector<at::Tensor>{};
  }
  std::vector<at::Tensor> forward_all(std::span<const at::Tensor> inputs, std::span<const at::Tensor>,
                                      std::span<at::Tensor>, const CallContext&,
                                      Saved* saved) const override {
    EmulatedDevice& device = EmulatedDevice::of_thread();
    std::vector<at::Tensor> outputs;
    for (const TensorSpec& spec : layer_->outputs(specs_of(inputs)))
      outputs.push_back(without_values(spec.shape, spec.dtype));
    const Bytes made = bytes_of(outputs);
    const auto input_bytes = [&](std::size_t i) { return static_cast<Bytes>(inputs[i].nbytes()); };
    const LayerSeconds seconds = costs_.times.at(work_of(made, costs_.apart, input_bytes));
    device.compute(seconds.forward);
    if (saved) {
      keep(*saved, inputs);
      Kept& kept = kept_in(*saved);
      kept.output_bytes = made;
      kept.seconds = seconds;
      if (costs_.most_output > 0) kept.share = std::min(1.0, double(made) / double(costs_.most_output));
      // A held tensor counts once. Bytes in its place would count in addition to it while it exists.
      Bytes bytes = share_of(costs_.node.saved_bytes, kept);
      if (share_of(costs_.node.saved_output_bytes.value_or(0), kept) >= made) {
        kept.held_outputs = outputs;
        bytes -= made;
      }
      const Bytes of_inputs = costs_.node.saved_input_bytes.value_or(0);
      if (share_of(of_inputs + costs_.counted_elsewhere, kept) >= bytes_of(inputs)) {
        kept.held_inputs.assign(inputs.begin(), inputs.end());
        bytes -= share_of(of_inputs, kept);
      }
      kept.bytes = std::make_unique<EmulatedDevice::Block>(device, std::max<Bytes>(0, bytes), true);
    }
    return outputs;
  }
  std::vector<at::Tensor> backward_input_all(std::span<const at::Tensor>, std::span<const at::Tensor>,
                                             Saved& saved, std::span<const bool> needs) const override {
    EmulatedDevice& device = EmulatedDevice::of_thread();
    Kept& kept = kept_in(saved);
    // The gradients of the outputs are already allocated.
    device.touch(std::max<Bytes>(0, share_of(costs_.node.input_workspace(), kept) - kept.output_bytes));
    device.compute(kept.seconds.backward_input);
    std::vector<at::Tensor> gradients = gradients_of(saved, needs);
    // This is kept for the weight gradients; the runner holds the gradients of the outputs.
    Bytes between = share_of(costs_.node.kept_between(), kept) - kept.output_bytes;
    kept.held_outputs.clear();
    if (between < bytes_of(kept.held_inputs)) kept.held_inputs.clear();
    between -= bytes_of(kept.held_inputs);
    kept.bytes->resize(std::max<Bytes>(0, between));
    return gradients;
  }
  void backward_weight_all(std::span<const at::Tensor>, Saved& saved, std::span<at::Tensor>) const override {
    EmulatedDevice& device = EmulatedDevice::of_thread();
    const Kept& kept = kept_in(saved);
    device.touch(share_of(costs_.node.weight_workspace_bytes.value_or(0), kept));
    device.compute(kept.seconds.backward_weight);
  }

 private:
  static Bytes share_of(Bytes bytes, const Kept& kept) { return Bytes(double(bytes) * kept.share); }

  Costs costs_;
};

class EmulatedHead final : public StandInHead {
 public:
  /// `times` are forward times, by the bytes of the head's inputs.
  EmulatedHead(HeadPtr head, TimesBySize times) : StandInHead(std::move(head)), times_(std::move(times)) {}
  std::vector<at::Tensor> backward(Saved& saved, LossScale, std::span<const bool> needs) const override {
    return gradients_of(saved, needs);
  }

 private:
  void run(std::span<const at::Tensor> inputs, Saved* saved) const override {
    EmulatedDevice::of_thread().compute(times_.at(double(bytes_of(inputs))).forward);
    if (saved) keep(*saved, inputs);
  }
  TimesBySize times_;
};

/// Returns by layer the bytes of the parameters that it owns, counted as in the profiler.
std::vector<Bytes> parameter_bytes(const LayeredModel& model) {
  std::vector<Bytes> all;
  for (const NamedLayer& layer : model.layers) {
    Bytes& bytes = all.emplace_back();
    for (const ParameterSpec& spec : layer.layer->parameters())
      if (!spec.is_buffer && !layer.is_tied(spec)) bytes += bytes_of({.shape = spec.shape});
  }
  return all;
}

/// The bytes of a microbatch.
struct Sizes {
  std::vector<std::vector<Bytes>> inputs;  ///< by layer and input
  std::vector<Bytes> outputs;              ///< by layer
  std::vector<Bytes> head_inputs;          ///< by head
};

Sizes sizes_of(const StageLayout& layout, const BatchExtent& extent) {
  const std::vector<Shape> shapes = tensor_shapes(layout, extent);
  const auto each = [&](const std::vector<int>& list) {
    std::vector<Bytes> bytes;
    for (const int t : list) {
      const auto tensor = static_cast<std::size_t>(t);
      bytes.push_back(bytes_of({.shape = shapes[tensor], .dtype = layout.tensors[tensor].spec.dtype}));
    }
    return bytes;
  };
  const auto sum = [&](const std::vector<int>& list) {
    const std::vector<Bytes> bytes = each(list);
    return std::accumulate(bytes.begin(), bytes.end(), Bytes{0});
  };
  Sizes sizes;
  for (const std::vector<int>& list : layout.reads) sizes.inputs.push_back(each(list));
  for (const std::vector<int>& list : layout.makes) sizes.outputs.push_back(sum(list));
  for (const std::vector<int>& list : layout.head_reads) sizes.head_inputs.push_back(sum(list));
  return sizes;
}

/// Returns the layout of the whole model on one rank, for the profile's microbatches.
Result<StageLayout> layout_of(const LayeredModel& model, const LayerGraph& profile) {
  const Plan whole = uniform_plan(model.name, model.layer_names(), 1, 1, 1, ScheduleKind::OneFOneB);
  return make_layout(model, whole, profile.microbatch,
                     value_named<Precision>(profile.precision).value_or(Precision::Float32));
}

/// Compares the sizes of the model's layers with those of the profile. The error names the first layer that
/// differs.
Status compare_sizes(const LayeredModel& model, const LayerGraph& profile,
                     const std::map<std::string, const LayerNode*>& nodes) {
  const std::string hint =
      "it was measured with other options of the model (widths, image size, classes): measure it again with "
      "those of the run";
  int differ = 0;
  std::string first;
  const std::vector<Bytes> parameters = parameter_bytes(model);
  const auto compare = [&](const std::vector<Bytes>& run, Bytes LayerNode::*there, const char* what) {
    for (std::size_t i = 0; i < run.size(); ++i) {
      // The jobs of an array that share batches also share outputs of layers without parameters.
      if (model.jobs() > 1 && parameters[i] == 0) continue;
      const std::string& name = model.layers[i].name;
      const Bytes measured = nodes.at(name)->*there;
      if (measured == run[i]) continue;
      if (++differ == 1)
        first = "layer " + name + " has " + std::to_string(measured) + " bytes of " + what + " there, and " +
                std::to_string(run[i]) + " in the run";
    }
  };
  compare(parameters, &LayerNode::parameter_bytes, "parameters");
  // If microbatches differ in length, the profile has the means over its data.
  if (differ == 0 && model.dimensions.empty()) {
    const Result<StageLayout> layout = layout_of(model, profile);
    if (!layout) return layout.problems();
    compare(sizes_of(*layout, layout->nominal).outputs, &LayerNode::activation_bytes, "output");
  }
  if (differ == 0) return Ok{};
  if (differ > 1)
    first +=
        "; " + std::to_string(differ - 1) + (differ == 2 ? " other layer differs" : " other layers differ");
  return Problem{"", first, hint};
}

/// Adds to each layer the inputs that it keeps and that count in other layers. A tensor from another stage
/// counts in the layer that keeps the most of it: a profile has one stage, so it may count in the layer that
/// computed it.
void add_inputs(std::map<std::string, Costs>& costs, const LayerGraph& profile, const Plan& plan) {
  std::map<std::string, int> stage_of;
  for (std::size_t s = 0; s < plan.stages.size(); ++s)
    for (const std::string& layer : plan.stages[s].layers) stage_of[layer] = static_cast<int>(s);
  // By tensor and stage: the bytes kept, and the layer that keeps the most.
  std::map<std::pair<std::string, int>, std::pair<Bytes, std::string>> arrived;
  for (const LayerEdge& edge : profile.edges) {
    const std::string& to = profile.nodes[static_cast<std::size_t>(edge.consumer)].name;
    costs.at(to).counted_elsewhere += edge.kept_bytes.value_or(0);
    if (stage_of[profile.nodes[static_cast<std::size_t>(edge.producer)].name] == stage_of[to]) continue;
    auto& [bytes, layer] = arrived[{edge.tensor, stage_of[to]}];
    if (const Bytes kept = edge.kept_bytes.value_or(edge.bytes); kept > bytes) bytes = kept, layer = to;
  }
  for (const auto& [tensor, kept] : arrived) {
    if (kept.first == 0) continue;
    Costs& of = costs.at(kept.second);
    of.node.saved_bytes += kept.first;
    if (of.counted_elsewhere < kept.first) continue;  // the profile does not show that it is an input
    of.counted_elsewhere -= kept.first;
    of.node.saved_input_bytes = of.node.saved_input_bytes.value_or(0) + kept.first;
  }
}

/// Returns the inputs of layer `i` whose sizes are not proportional to the outputs' over the measured
/// microbatches.
std::vector<std::size_t> inputs_apart(const std::vector<Sizes>& measured, std::size_t i) {
  std::vector<std::size_t> apart;
  const Sizes& first = measured.front();
  for (std::size_t input = 0; input < first.inputs[i].size(); ++input) {
    const auto follows = [&](const Sizes& one) {
      return double(one.inputs[i][input]) * double(first.outputs[i]) ==
             double(first.inputs[i][input]) * double(one.outputs[i]);
    };
    if (!std::ranges::all_of(measured, follows)) apart.push_back(input);
  }
  return apart;
}

/// Adds the times of `profile`, measured for a microbatch of `sizes`.
void add_times(const LayeredModel& model, const LayerGraph& profile, const Sizes& sizes,
               std::map<std::string, Costs>& costs, std::vector<TimesBySize>& heads) {
  std::map<std::string, double> work;
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    const std::string& name = model.layers[i].name;
    const auto input_bytes = [&](std::size_t input) { return sizes.inputs[i][input]; };
    work[name] = work_of(sizes.outputs[i], costs.at(name).apart, input_bytes);
  }
  for (const LayerNode& node : profile.nodes)
    costs[node.name].times.add(work[node.name], {.forward = node.forward_s,
                                                 .backward_input = node.backward_input_s,
                                                 .backward_weight = node.backward_weight_s});
  for (std::size_t h = 0; h < heads.size(); ++h)
    heads[h].add(double(sizes.head_inputs[h]),
                 {.forward = profile.loss_s / static_cast<double>(heads.size())});
}

/// Makes the layers and heads of `model` use the times and the memory of `profile`, which has the same
/// layers.
Status emulate(LayeredModel& model, const LayerGraph& profile, const Plan& plan) {
  const Result<StageLayout> layout = layout_of(model, profile);
  if (!layout) return layout.problems();
  std::map<std::string, Costs> costs;
  std::vector<TimesBySize> heads(model.heads.size());
  for (const LayerNode& node : profile.nodes) costs[node.name].node = node;
  add_inputs(costs, profile, plan);
  const std::vector<LayerGraph> each = profile.by_microbatch();
  if (each.empty()) add_times(model, profile, sizes_of(*layout, layout->nominal), costs, heads);
  std::vector<Sizes> measured;
  for (const MeasuredMicrobatch& microbatch : profile.microbatches) {
    BatchExtent extent = layout->nominal;
    if (microbatch.lengths.size() == extent.lengths.size()) extent.lengths = microbatch.lengths;
    measured.push_back(sizes_of(*layout, extent));
  }
  for (std::size_t i = 0; !each.empty() && i < model.layers.size(); ++i) {
    Costs& of = costs.at(model.layers[i].name);
    of.apart = inputs_apart(measured, i);
    for (const Sizes& sizes : measured) of.most_output = std::max(of.most_output, sizes.outputs[i]);
  }
  for (std::size_t m = 0; m < each.size(); ++m) add_times(model, each[m], measured[m], costs, heads);
  for (NamedLayer& layer : model.layers)
    layer.layer = stand_in<EmulatedLayer>(layer.layer, costs.at(layer.name));
  for (std::size_t h = 0; h < heads.size(); ++h)
    model.heads[h].head = std::make_shared<EmulatedHead>(model.heads[h].head, heads[h]);
  return Ok{};
}

}  // namespace

Result<LayeredModel> emulated_model(LayeredModel model, const LayerGraph& profile, const Plan& plan) {
  if (profile.model != model.name)
    return Problem{"", "it is of model " + profile.model + ", the run trains " + model.name,
                   "measure one: millrace profile --model " + model.name};
  if (profile.jobs != model.jobs())
    return Problem{"",
                   "it is of an array of " + std::to_string(profile.jobs) + " jobs, the run has " +
                       std::to_string(model.jobs()),
                   "measure one with --jobs " + std::to_string(model.jobs())};
  std::map<std::string, const LayerNode*> nodes;
  for (const LayerNode& node : profile.nodes) nodes[node.name] = &node;
  const std::string measured_otherwise =
      "it was measured with other options of the model: measure it again with those of the run";
  std::set<std::string> names;
  for (const NamedLayer& layer : model.layers) {
    names.insert(layer.name);
    if (!nodes.contains(layer.name)) return Problem{"", "it has no layer " + layer.name, measured_otherwise};
  }
  for (const LayerNode& node : profile.nodes)
    if (!names.contains(node.name))
      return Problem{"", "it has a layer " + node.name + ", the run has none", measured_otherwise};
  if (profile.turns.size() != model.turns.size())
    return Problem{"",
                   "it has " + std::to_string(profile.turns.size()) + " turns, the run has " +
                       std::to_string(model.turns.size()),
                   "profile the model again, or take the profile as it was measured"};
  if (const Status same = compare_sizes(model, profile, nodes); !same) return same.problems();
  // A turn has the model's layers. Its profile has their costs in that turn.
  for (std::size_t t = 0; t < model.turns.size(); ++t)
    if (const Status turn = emulate(model.turns[t].model, profile.turns[t], plan); !turn)
      return turn.problems();
  if (const Status whole = emulate(model, profile, plan); !whole) return whole.problems();
  return model;
}

}  // namespace millrace
