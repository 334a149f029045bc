#include "runtime/train/profiler.h"

#include <algorithm>
#include <set>
#include <unordered_map>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>

#include "runtime/base/error.h"
#include "runtime/base/median.h"
#include "runtime/stage/loss.h"
#include "runtime/stage/parameter_store.h"

namespace millrace {
namespace {

/// Seconds of one quantity, one for each repetition.
using Samples = std::vector<double>;

struct LayerSamples {
  Samples forward, backward_input, backward_weight;
};

class Pass {
 public:
  Pass(const StageLayout& layout, ParameterStore& store, const ProfileOptions& options, Clock& clock,
       Device& device)
      : samples(layout.model.layers.size()),
        layout_(layout),
        store_(store),
        options_(options),
        clock_(clock),
        device_(device) {
    for (std::size_t i = 0; i < layout.model.layers.size(); ++i)
      index_[layout.model.layers[i].name] = static_cast<int>(i);
  }

  void run(const at::Tensor& input, const at::Tensor& target, bool counted) {
    counted_ = counted;
    saved_.assign(layout_.model.layers.size(), {});
    values_.assign(layout_.model.layers.size(), {});
    gradients_.assign(layout_.model.layers.size(), {});
    forward(input);
    SavedLoss saved_loss;
    time(loss, [&] {
      cross_entropy(values_.back(), target, &saved_loss);
      gradients_.back() = cross_entropy_backward(saved_loss, 1.0);
    });
    if (!counted) {
      measure_saved();
      workspace_bytes.assign(saved_.size(), 0);
    }
    values_.assign(values_.size(), {});
    backward();
  }

  Samples loss;
  std::vector<LayerSamples> samples;
  std::vector<Bytes> saved_bytes, workspace_bytes;

 private:
  template <class Work>
  void time(Samples& into, Work&& work) {
    const TimePoint start = clock_.now();
    work();
    device_.synchronize();
    if (counted_) into.push_back(Seconds(clock_.now() - start).count());
  }

  void forward(const at::Tensor& input) {
    for (std::size_t i = 0; i < layout_.model.layers.size(); ++i) {
      const NamedLayer& layer = layout_.model.layers[i];
      std::vector<at::Tensor> inputs;
      for (const std::string& name : layer.inputs)
        inputs.push_back(name == "input" ? input : values_[index_.at(name)]);
      time(samples[i].forward, [&] {
        values_[i] = layer.layer->forward(inputs, store_.current_parameters(i), store_.buffers(i),
                                          {true, options_.seed + i}, &saved_[i]);
      });
    }
  }

  void backward() {
    for (int i = static_cast<int>(layout_.model.layers.size()) - 1; i >= 0; --i) {
      const NamedLayer& layer = layout_.model.layers[i];
      std::vector<char> needs;
      for (const std::string& name : layer.inputs) needs.push_back(name != "input");
      const std::span<const bool> wanted(reinterpret_cast<const bool*>(needs.data()), needs.size());
      const at::Tensor grad = std::move(gradients_[i]);
      const std::int64_t before = device_.memory().current;
      if (!counted_) device_.reset_peak_memory();
      std::vector<at::Tensor> inputs;
      time(samples[i].backward_input, [&] {
        inputs = layer.layer->backward_input(grad, store_.current_parameters(i), saved_[i], wanted);
      });
      time(samples[i].backward_weight,
           [&] { layer.layer->backward_weight(grad, saved_[i], store_.gradients(i)); });
      if (!counted_)
        workspace_bytes[i] = device_.memory().peak - before + static_cast<std::int64_t>(grad.nbytes());
      saved_[i] = {};
      for (std::size_t k = 0; k < inputs.size(); ++k) {
        if (!needs[k]) continue;
        at::Tensor& sum = gradients_[index_.at(layer.inputs[k])];
        sum = sum.defined() ? at::add(sum, inputs[k]) : inputs[k];
      }
    }
  }

  /// Bytes that a microbatch keeps until its backward, each storage at the first layer that keeps it; weights
  /// are not counted.
  void measure_saved() {
    std::set<const void*> seen;
    for (std::size_t i = 0; i < saved_.size(); ++i) {
      for (const at::Tensor& p : store_.current_parameters(i)) seen.insert(p.storage().data());
    }
    saved_bytes.assign(saved_.size(), 0);
    for (std::size_t i = 0; i < saved_.size(); ++i) {
      for (const at::Tensor& t : saved_[i].tensors) {
        if (t.defined() && seen.insert(t.storage().data()).second)
          saved_bytes[i] += static_cast<Bytes>(t.storage().nbytes());
      }
    }
  }

  const StageLayout& layout_;
  ParameterStore& store_;
  const ProfileOptions& options_;
  Clock& clock_;
  Device& device_;
  bool counted_ = false;
  std::unordered_map<std::string, int> index_;
  std::vector<Saved> saved_;
  std::vector<at::Tensor> values_, gradients_;
};

/// Seconds a byte of an update in place, and of one that leaves the version before to a microbatch.
struct UpdateSeconds {
  double in_place = 0, kept = 0;
};

UpdateSeconds update_seconds_per_byte(ParameterStore& store, const RuleOptions& options, int repetitions,
                                      Clock& clock, Device& device) {
  auto rule = make_update_rule(options, store.flat_weights());
  if (!rule) throw ConfigError(to_string(rule.problems()));
  Samples in_place, kept;
  // Two versions are alive in turn, as in a run: the memory of the one that is given up becomes the next.
  for (int i = 0; i < 2 * (repetitions + 1); ++i) {
    const MicrobatchId holder(i);
    const bool keeps = i % 2 == 1;
    if (keeps) store.pin(holder);
    const TimePoint start = clock.now();
    store.publish(
        [&](at::Tensor weights, const at::Tensor& gradient) { (*rule)->apply_(weights, gradient, 0.0); });
    device.synchronize();
    if (i > 1) (keeps ? kept : in_place).push_back(Seconds(clock.now() - start).count());
    if (keeps) store.release(holder);
  }
  const double bytes = double(store.flat_weights().nbytes());
  if (bytes <= 0) return {};
  return {median(in_place) / bytes, median(kept) / bytes};
}

/// Of all layers and the loss in one block: medians of its passes.
double block_total(const Pass& pass, std::size_t first) {
  const auto of = [&](const Samples& samples) {
    return median(Samples(samples.begin() + static_cast<std::ptrdiff_t>(first), samples.end()));
  };
  double total = of(pass.loss);
  for (const LayerSamples& s : pass.samples)
    total += of(s.forward) + of(s.backward_input) + of(s.backward_weight);
  return total;
}

/// Half the distance between the slowest and the fastest, as a share of the median.
double spread_of(const Samples& totals) {
  const auto [least, most] = std::minmax_element(totals.begin(), totals.end());
  const double middle = median(totals);
  return middle > 0 ? (*most - *least) / 2 / middle : 0;
}

}  // namespace

LayerGraph profile_model(const LayeredModel& model, const ProfileOptions& options, Clock& clock,
                         Device& device) {
  at::NoGradGuard no_grad;
  const Plan whole = uniform_plan(model.name, model.layer_names(), 1, 1, 1, ScheduleKind::OneFOneB);
  Result<StageLayout> made = make_layout(model, whole, options.microbatch);
  if (!made) throw ConfigError(to_string(made.problems()));
  const StageLayout& layout = *made;
  ParameterStore store(layout, StageId(0), options.seed, device.where());
  Shape shape{options.microbatch};
  shape.insert(shape.end(), model.input_shape.begin(), model.input_shape.end());
  const at::Tensor input = device.upload(at::randn(shape, at::kFloat));
  const at::Tensor target = device.upload(at::randint(model.num_classes, {options.microbatch}, at::kLong));

  Pass pass(layout, store, options, clock, device);
  for (int i = 0; i < std::max(1, options.warmup); ++i) pass.run(input, target, false);
  Samples totals;
  for (int block = 0; block < options.blocks; ++block) {
    if (options.before_block) options.before_block();
    const std::size_t first = pass.loss.size();
    for (int i = 0; i < options.repetitions; ++i) pass.run(input, target, true);
    totals.push_back(block_total(pass, first));
  }

  LayerGraph graph{.model = model.name, .microbatch = options.microbatch, .device = device.name()};
  graph.loss_s = median(pass.loss);
  std::unordered_map<std::string, int> index;
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    const NamedLayer& layer = model.layers[i];
    index[layer.name] = static_cast<int>(i);
    LayerSamples& s = pass.samples[i];
    Bytes parameter_bytes = 0;
    for (const at::Tensor& p : store.current_parameters(i)) parameter_bytes += static_cast<Bytes>(p.nbytes());
    Bytes activation = sizeof(float);
    for (std::int64_t d : layout.output_shapes[i]) activation *= d;
    graph.nodes.push_back({.name = layer.name,
                           .kind = layer.layer->kind(),
                           .forward_s = median(s.forward),
                           .backward_input_s = median(s.backward_input),
                           .backward_weight_s = median(s.backward_weight),
                           .parameter_bytes = parameter_bytes,
                           .activation_bytes = activation,
                           .saved_bytes = pass.saved_bytes[i],
                           .workspace_bytes = pass.workspace_bytes[i]});
    for (const std::string& name : layer.inputs) {
      if (name == "input") continue;
      const int producer = index.at(name);
      graph.edges.push_back({producer, static_cast<int>(i), name, graph.nodes[producer].activation_bytes});
    }
  }
  if (options.before_block) options.before_block();
  const UpdateSeconds update =
      update_seconds_per_byte(store, options.rule, std::max(3, options.repetitions), clock, device);
  graph.update_s_per_byte = update.in_place;
  graph.update_copy_s_per_byte = std::max(0.0, update.kept - update.in_place);
  graph.measured = {.ranks = 1, .blocks = options.blocks, .spread = spread_of(totals)};
  return graph;
}

}  // namespace millrace
