#include "runtime/train/profiler.h"

#include <algorithm>
#include <set>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>

#include "runtime/base/error.h"
#include "runtime/base/median.h"
#include "runtime/stage/layer_runner.h"
#include "runtime/stage/parameter_store.h"

namespace millrace {
namespace {

/// Seconds of one quantity, one for each repetition.
using Samples = std::vector<double>;

struct LayerSamples {
  Samples forward, backward_input, backward_weight;
};

/// Of one of the microbatches measured.
struct BatchSamples {
  Samples loss;
  std::vector<LayerSamples> layers;
};

std::int64_t elements_of(const Shape& shape) {
  std::int64_t elements = 1;
  for (std::int64_t d : shape) elements *= d;
  return elements;
}

Bytes bytes_of(const TensorSpec& spec) {
  return static_cast<Bytes>(c10::elementSize(spec.dtype)) * elements_of(spec.shape);
}

/// One microbatch through the whole model as one stage, by the program that training runs.
class Pass final : private LayerObserver {
 public:
  Pass(const StageLayout& layout, ParameterStore& store, const ProfileOptions& options, Clock& clock,
       Device& device)
      : saved_bytes(layout.model.layers.size()),
        workspace_bytes(layout.model.layers.size()),
        program_(compile_stage(layout, StageId(0))),
        runner_(program_, store, std::vector(static_cast<std::size_t>(store.jobs()), options.seed)),
        store_(store),
        clock_(clock),
        device_(device),
        growth_(layout.model.layers.size()) {
    runner_.set_observer(this);
  }

  /// `counted`: times go there; null: memory is measured, `output_bytes` by layer.
  void run(const Batch& batch, BatchSamples* counted, std::span<const Bytes> output_bytes = {}) {
    counted_ = counted;
    output_bytes_ = output_bytes;
    slot_.clear();
    slot_.values.resize(static_cast<std::size_t>(program_.num_places));
    slot_.gradients.resize(static_cast<std::size_t>(program_.num_places));
    for (const auto& [field, place] : program_.fields)
      slot_.values[static_cast<std::size_t>(place)] = batch.fields[static_cast<std::size_t>(field)];
    runner_.forward(slot_, 0, store_.current(), LayerRunner::Run::Train);
    run_heads();
    if (!counted) measure_saved();
    slot_.values.assign(slot_.values.size(), {});
    runner_.backward_layer_by_layer(slot_, store_.current());
  }

  std::vector<Bytes> saved_bytes, workspace_bytes;

 private:
  void before(Phase phase, std::size_t) override {
    if (phase != Phase::BackwardWeight && !counted_) memory_before_ = device_.memory().current;
    if (phase == Phase::BackwardInput && !counted_) device_.reset_peak_memory();
    start_ = clock_.now();
  }

  void after(Phase phase, std::size_t step) override {
    device_.synchronize();
    if (counted_) {
      LayerSamples& s = counted_->layers[step];
      Samples& into = phase == Phase::Forward         ? s.forward
                      : phase == Phase::BackwardInput ? s.backward_input
                                                      : s.backward_weight;
      into.push_back(Seconds(clock_.now() - start_).count());
      return;
    }
    if (phase == Phase::Forward) growth_[step] = device_.memory().current - memory_before_;
    // The gradient that came in is there before, and counts as the layer's.
    if (phase != Phase::Forward)
      workspace_bytes[step] = device_.memory().peak - memory_before_ + output_bytes_[step];
  }

  void run_heads() {
    const TimePoint start = clock_.now();
    std::vector<double> sums(program_.num_sums, 0.0);
    for (const HeadStep& head : program_.heads) {
      const std::vector<at::Tensor> inputs = runner_.inputs_of(slot_, head);
      Saved saved;
      if (inputs[0].device().is_cpu())
        head.head->forward(inputs, &saved, std::span(sums).subspan(head.sums, head.num_sums));
      else
        head.head->forward_on_device(inputs, &saved);
      const std::span<const bool> needs(reinterpret_cast<const bool*>(head.needs.data()), head.needs.size());
      runner_.add_gradients(slot_, head, head.head->backward(saved, {}, needs));
    }
    device_.synchronize();
    if (counted_) counted_->loss.push_back(Seconds(clock_.now() - start).count());
  }

  /// Bytes that a microbatch keeps until its backward, each storage at the first layer that keeps it; weights
  /// are not counted.
  void measure_saved() {
    std::set<const void*> seen;
    for (std::size_t i = 0; i < program_.steps.size(); ++i) {
      for (const at::Tensor& p : store_.current_parameters(static_cast<int>(i)))
        seen.insert(p.storage().data());
    }
    for (std::size_t i = 0; i < program_.steps.size(); ++i) {
      saved_bytes[i] = 0;
      for (const at::Tensor& t : slot_.saved[i].tensors) {
        if (t.defined() && seen.insert(t.storage().data()).second)
          saved_bytes[i] += static_cast<Bytes>(t.storage().nbytes());
      }
      // Autograd's graph does not say what it keeps: what the forward left in memory, its outputs included.
      if (slot_.saved[i].extra) saved_bytes[i] = std::max<Bytes>(saved_bytes[i], growth_[i]);
    }
  }

  StageProgram program_;
  LayerRunner runner_;
  ParameterStore& store_;
  Clock& clock_;
  Device& device_;
  BatchSamples* counted_ = nullptr;
  TimePoint start_{};
  std::int64_t memory_before_ = 0;
  LayerSlot slot_;
  std::span<const Bytes> output_bytes_;  ///< by layer
  std::vector<Bytes> growth_;            ///< by layer: memory after its forward less that before
};

/// What a version's copy of a layer's parameters in a lower precision takes.
Bytes lowered_bytes(const StageLayout& layout, const NamedLayer& layer) {
  if (!layout.casts() || layer.layer->cast_policy() != CastPolicy::Lower) return 0;
  Bytes bytes = 0;
  for (const ParameterSpec& spec : layer.layer->parameters()) {
    if (!spec.is_buffer) bytes += bytes_of({.shape = spec.shape, .dtype = layout.lower});
  }
  return bytes;
}

/// Seconds a byte of an update in place, and of one that leaves the version before to a microbatch; what the
/// rules keep.
struct UpdateCost {
  double in_place = 0, kept = 0;
  Bytes state_bytes = 0;
};

UpdateCost measure_update(ParameterStore& store, std::size_t num_layers, const RuleOptions& options,
                          int repetitions, Clock& clock, Device& device) {
  const auto jobs = static_cast<std::size_t>(store.jobs());
  std::vector<std::unique_ptr<UpdateRule>> rules;
  for (std::size_t job = 0; job < jobs; ++job)
    rules.push_back(make_update_rule(options, jobs > 1 ? store.job(static_cast<int>(job)) : store));
  Samples in_place, kept;
  // Two versions are alive in turn, as in a run: the memory of the one that is given up becomes the next.
  for (int i = 0; i < 2 * (repetitions + 1); ++i) {
    const MicrobatchId holder(i);
    const bool keeps = i % 2 == 1;
    if (keeps) store.pin(holder);
    const TimePoint start = clock.now();
    store.publish([&](const at::Tensor& weights, const at::Tensor& gradient) {
      for (std::size_t job = 0; job < jobs; ++job) {
        const int j = static_cast<int>(job);
        rules[job]->apply_(store.of_job(weights, j), store.of_job(gradient, j), {});
      }
    });
    for (std::size_t layer = 0; layer < num_layers; ++layer)  // copies in a lower precision are the update's
      store.current_parameters(static_cast<int>(layer));
    device.synchronize();
    if (i > 1) (keeps ? kept : in_place).push_back(Seconds(clock.now() - start).count());
    if (keeps) store.release(holder);
  }
  const double bytes = double(store.flat_weights().nbytes());
  if (bytes <= 0) return {};
  UpdateCost cost{median(in_place) / bytes, median(kept) / bytes};
  for (const auto& rule : rules) {
    for (const auto& [name, tensor] : rule->state()) cost.state_bytes += static_cast<Bytes>(tensor.nbytes());
  }
  return cost;
}

/// Of all layers and the loss: medians of the passes from `first` on.
double total_of(const BatchSamples& batch, std::size_t first = 0) {
  const auto of = [&](const Samples& samples) {
    if (samples.empty()) return 0.0;  // a layer without weights
    return median(Samples(samples.begin() + static_cast<std::ptrdiff_t>(first), samples.end()));
  };
  double total = of(batch.loss);
  for (const LayerSamples& s : batch.layers)
    total += of(s.forward) + of(s.backward_input) + of(s.backward_weight);
  return total;
}

/// The mean over the microbatches of what `of` says of each.
template <class Of>
double mean(const std::vector<BatchSamples>& batches, Of of) {
  double sum = 0;
  for (const BatchSamples& batch : batches) sum += of(batch);
  return sum / static_cast<double>(batches.size());
}

/// Bytes of each tensor for a microbatch of `extent`, by index in StageLayout::tensors.
std::vector<Bytes> tensor_bytes(const StageLayout& layout, const BatchExtent& extent) {
  std::vector<Bytes> bytes;
  std::vector<Shape> shapes = tensor_shapes(layout, extent);
  for (std::size_t t = 0; t < shapes.size(); ++t)
    bytes.push_back(bytes_of({.shape = std::move(shapes[t]), .dtype = layout.tensors[t].spec.dtype}));
  return bytes;
}

/// What each layer makes, of tensors with these bytes.
std::vector<Bytes> output_bytes(const StageLayout& layout, const std::vector<Bytes>& tensors) {
  std::vector<Bytes> bytes;
  for (const auto& made : layout.makes) {
    Bytes& sum = bytes.emplace_back();
    for (int t : made) sum += tensors[static_cast<std::size_t>(t)];
  }
  return bytes;
}

/// What layer `i` reads of others. Of a job array the tensors "NAME@0", "NAME@1", ... are one edge.
void add_edges(LayerGraph& graph, const StageLayout& layout, int i, const std::vector<Bytes>& tensors) {
  const bool array = layout.model.jobs() > 1;
  const auto first = static_cast<std::ptrdiff_t>(graph.edges.size());
  std::set<int> read;
  for (int t : layout.reads[static_cast<std::size_t>(i)]) {
    const ModelTensor& tensor = layout.tensors[static_cast<std::size_t>(t)];
    if (tensor.layer < 0 || !read.insert(t).second) continue;
    const std::string name = array ? tensor.name.substr(0, tensor.name.rfind('@')) : tensor.name;
    const auto known = std::find_if(graph.edges.begin() + first, graph.edges.end(), [&](const LayerEdge& e) {
      return array && e.producer == tensor.layer && e.tensor == name;
    });
    if (known != graph.edges.end())
      known->bytes += tensors[static_cast<std::size_t>(t)];
    else
      graph.edges.push_back({tensor.layer, i, name, tensors[static_cast<std::size_t>(t)]});
  }
}

/// Half the distance between the slowest and the fastest, as a share of the median.
double spread_of(const Samples& totals) {
  const auto [least, most] = std::minmax_element(totals.begin(), totals.end());
  const double middle = median(totals);
  return middle > 0 ? (*most - *least) / 2 / middle : 0;
}

}  // namespace

Batch random_batch(const LayeredModel& model, const BatchExtent& extent, Device& device) {
  Batch batch;
  for (const FieldSpec& field : model.fields) {
    const Shape shape = field_shape(field, extent);
    at::Tensor value;
    if (at::isFloatingType(field.dtype))
      value = at::randn(shape, at::TensorOptions(field.dtype));
    else
      value = at::randint(std::max<std::int64_t>(2, field.limit ? field.limit : 2), shape,
                          at::TensorOptions(field.dtype));
    batch.fields.push_back(device.upload(std::move(value)));
  }
  return batch;
}

ProfileBatches spread_batches(const LayeredModel& model, BatchSource& source, std::int64_t steps,
                              int microbatches_per_step, int count, Device& device) {
  const std::int64_t per_step = microbatches_per_step;
  const auto elements_at = [&](std::int64_t position) {
    const BatchExtent extent = source.extent(position);
    std::int64_t elements = 0;
    for (const FieldSpec& field : model.fields) elements += elements_of(field_shape(field, extent));
    return elements;
  };
  struct Step {
    std::int64_t elements = 0, first = 0;
  };
  std::vector<Step> all;
  std::int64_t longest = 0, most = -1;
  for (std::int64_t s = 0; s < steps; ++s) {
    Step& step = all.emplace_back(Step{.first = s * per_step});
    for (std::int64_t m = 0; m < per_step; ++m) {
      const std::int64_t elements = elements_at(step.first + m);
      step.elements += elements;
      if (elements > most) most = elements, longest = step.first + m;
    }
  }
  std::ranges::stable_sort(all, {}, &Step::elements);
  const auto one = [&](std::int64_t position) {
    source.seek(position);
    ProfileBatches::One made{.extent = source.extent(position), .batch = source.get(position)};
    for (at::Tensor& field : made.batch.fields) field = device.upload(std::move(field));
    return made;
  };
  ProfileBatches batches;
  const std::int64_t chosen = std::min(steps, (count + per_step - 1) / per_step);
  for (std::int64_t i = 0; i < chosen; ++i) {
    const Step& step = all[static_cast<std::size_t>((2 * i + 1) * steps / (2 * chosen))];
    for (std::int64_t m = 0; m < per_step; ++m) batches.timed.push_back(one(step.first + m));
  }
  if (steps > 0) batches.longest = one(longest);
  return batches;
}

LayerGraph profile_model(const LayeredModel& model, const ProfileOptions& options, Clock& clock,
                         Device& device, ProfileBatches batches) {
  at::NoGradGuard no_grad;
  const Plan whole = uniform_plan(model.name, model.layer_names(), 1, 1, 1, ScheduleKind::OneFOneB);
  Result<StageLayout> made = make_layout(model, whole, options.microbatch, options.precision);
  if (!made) throw ConfigError(to_string(made.problems()));
  const StageLayout& layout = *made;
  ParameterStore store(layout, StageId(0), std::vector(static_cast<std::size_t>(model.jobs()), options.seed),
                       device.where());
  if (batches.timed.empty())
    batches.timed.push_back({layout.nominal, random_batch(model, layout.nominal, device)});
  const ProfileBatches::One& longest = batches.longest ? *batches.longest : batches.timed.back();

  Pass pass(layout, store, options, clock, device);
  const std::vector<Bytes> longest_bytes = output_bytes(layout, tensor_bytes(layout, longest.extent));
  for (int i = 0; i < std::max(1, options.warmup); ++i) pass.run(longest.batch, nullptr, longest_bytes);
  std::vector<BatchSamples> samples(batches.timed.size());
  for (BatchSamples& of : samples) of.layers.resize(model.layers.size());
  Samples totals;
  for (int block = 0; block < options.blocks; ++block) {
    if (options.before_block) options.before_block();
    const std::size_t first = samples.front().loss.size();
    for (int i = 0; i < options.repetitions; ++i) {
      for (std::size_t b = 0; b < samples.size(); ++b) pass.run(batches.timed[b].batch, &samples[b]);
    }
    totals.push_back(mean(samples, [&](const BatchSamples& batch) { return total_of(batch, first); }));
  }

  LayerGraph graph{.model = model.name,
                   .microbatch = options.microbatch,
                   .device = device.name(),
                   .precision = to_string(options.precision)};
  std::vector<Bytes> mean_bytes(layout.tensors.size(), 0);
  for (const ProfileBatches::One& one : batches.timed) {
    const std::vector<Bytes> bytes = tensor_bytes(layout, one.extent);
    for (std::size_t t = 0; t < bytes.size(); ++t) mean_bytes[t] += bytes[t];
  }
  for (Bytes& bytes : mean_bytes) bytes /= static_cast<Bytes>(batches.timed.size());
  const std::vector<Bytes> mean_outputs = output_bytes(layout, mean_bytes);
  if (!model.dimensions.empty()) {
    for (const Dimension& dimension : model.dimensions) graph.dimensions.push_back(dimension.name);
    for (std::size_t b = 0; b < samples.size(); ++b)
      graph.microbatches.push_back({batches.timed[b].extent.lengths, total_of(samples[b])});
  }
  graph.loss_s = mean(samples, [](const BatchSamples& batch) { return median(batch.loss); });
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    const NamedLayer& layer = model.layers[i];
    const auto seconds = [&](Samples LayerSamples::*phase) {
      return mean(samples, [&](const BatchSamples& batch) {
        const Samples& of = batch.layers[i].*phase;
        return of.empty() ? 0.0 : median(of);
      });
    };
    Bytes parameter_bytes = 0;
    for (const ParameterSpec& spec : layer.layer->parameters()) {
      if (!spec.is_buffer && !layer.is_tied(spec)) parameter_bytes += bytes_of({.shape = spec.shape});
    }
    graph.nodes.push_back({.name = layer.name,
                           .kind = layer.layer->kind(),
                           .forward_s = seconds(&LayerSamples::forward),
                           .backward_input_s = seconds(&LayerSamples::backward_input),
                           .backward_weight_s = seconds(&LayerSamples::backward_weight),
                           .parameter_bytes = parameter_bytes,
                           .lowered_bytes = lowered_bytes(layout, layer),
                           .activation_bytes = mean_outputs[i],
                           .saved_bytes = pass.saved_bytes[i],
                           .workspace_bytes = pass.workspace_bytes[i]});
    add_edges(graph, layout, static_cast<int>(i), mean_bytes);
  }
  if (options.before_block) options.before_block();
  const UpdateCost update = measure_update(store, model.layers.size(), options.rule,
                                           std::max(3, options.repetitions), clock, device);
  graph.update_s_per_byte = update.in_place;
  graph.update_copy_s_per_byte = std::max(0.0, update.kept - update.in_place);
  graph.jobs = model.jobs();
  graph.rule_state_bytes = update.state_bytes;
  graph.measured = {.ranks = 1, .blocks = options.blocks, .spread = spread_of(totals)};
  return graph;
}

}  // namespace millrace
