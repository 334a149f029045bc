#include "runtime/profile/profile_graph.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <numbers>
#include <optional>
#include <set>
#include <utility>

#include "runtime/base/median.h"

namespace millrace {
namespace {

Bytes bytes_of(const TensorSpec& spec) {
  return static_cast<Bytes>(c10::elementSize(spec.dtype)) * elements_of(spec.shape);
}

/// Passes from `first` up to, but not including, `last`.
struct PassRange {
  std::size_t first = 0, last = std::numeric_limits<std::size_t>::max();
};

/// Returns the median of the passes in `range`; 0 if there are none, as for a layer without weights.
double middle(const Samples& samples, const PassRange& range) {
  const std::size_t last = std::min(range.last, samples.size());
  if (last <= range.first) return 0;
  const auto begin = samples.begin();
  return median(
      Samples(begin + static_cast<std::ptrdiff_t>(range.first), begin + static_cast<std::ptrdiff_t>(last)));
}

/// The seconds of one of the microbatches.
struct BatchSeconds {
  double loss = 0;
  std::vector<LayerSeconds> layers;
  double total() const {
    double sum = loss;
    for (const LayerSeconds& s : layers) sum += s.forward + s.backward_input + s.backward_weight;
    return sum;
  }
  void operator+=(const BatchSeconds& more) {
    loss += more.loss;
    for (std::size_t i = 0; i < layers.size(); ++i) {
      layers[i].forward += more.layers[i].forward;
      layers[i].backward_input += more.layers[i].backward_input;
      layers[i].backward_weight += more.layers[i].backward_weight;
    }
  }
};

/// Returns medians over the passes in `range`. The medians of layers do not add up to the median of a pass.
/// Between layers memory is freed and tensors are passed on, and each layer waits for a GPU
/// (Pass::add_whole). Layers are therefore scaled to add up to the whole.
BatchSeconds seconds_of(const BatchSamples& batch, const PassRange& range = {}) {
  BatchSeconds seconds{.loss = middle(batch.loss, range), .layers = {}};
  double forward = 0, backward = 0;
  for (const LayerSamples& of : batch.layers) {
    const LayerSeconds& s = seconds.layers.emplace_back(LayerSeconds{
        middle(of.forward, range), middle(of.backward_input, range), middle(of.backward_weight, range)});
    forward += s.forward;
    backward += s.backward_input + s.backward_weight;
  }
  const double of_forward = forward > 0 ? middle(batch.forward, range) / forward : 1,
               of_backward = backward > 0 ? middle(batch.backward, range) / backward : 1;
  for (LayerSeconds& s : seconds.layers) {
    s.forward *= of_forward;
    s.backward_input *= of_backward;
    s.backward_weight *= of_backward;
  }
  return seconds;
}

/// Returns the seconds of each microbatch, all turns together.
std::vector<BatchSeconds> seconds_of_each(const TurnSamples& turns, const PassRange& range = {}) {
  std::vector<BatchSeconds> each;
  for (const BatchSamples& batch : turns.front()) each.push_back(seconds_of(batch, range));
  for (std::size_t t = 1; t < turns.size(); ++t) {
    for (std::size_t b = 0; b < each.size(); ++b) each[b] += seconds_of(turns[t][b], range);
  }
  return each;
}

/// Returns the mean of `of(batch)` over the microbatches.
template <class Of>
double mean(const std::vector<BatchSeconds>& batches, Of of) {
  double sum = 0;
  for (const BatchSeconds& batch : batches) sum += of(batch);
  return sum / static_cast<double>(batches.size());
}

/// Returns the bytes of the fields that each layer reads, by name. The heads' fields count in the last layer.
std::vector<std::map<std::string, Bytes>> fields_of(const StageLayout& layout,
                                                    const std::vector<Bytes>& tensors) {
  std::vector<std::map<std::string, Bytes>> fields(layout.reads.size());
  const auto add = [&](std::map<std::string, Bytes>& into, const std::vector<int>& all) {
    for (const int t : all)
      if (layout.tensors[t].field >= 0) into[layout.tensors[t].name] = tensors[t];
  };
  for (std::size_t l = 0; l < fields.size(); ++l) add(fields[l], layout.reads[l]);
  for (const std::vector<int>& head : layout.head_reads) add(fields.back(), head);
  return fields;
}

Bytes sum_of(const std::map<std::string, Bytes>& fields) {
  Bytes sum = 0;
  for (const auto& [name, bytes] : fields) sum += bytes;
  return sum;
}

/// Returns the layer that owns parameters of `layer`; empty: it owns all of them.
std::string owner_of(const NamedLayer& layer, const LayeredModel& model) {
  if (layer.tied.empty()) return {};
  const std::optional<ParameterPlace> place = find_parameter(model, layer.tied.front().second);
  return place ? model.layers[place->layer].name : std::string();
}

/// Returns whether layer `l` reads `tensor` in a turn (`there`), and whether its gradient is returned
/// (`back`).
struct InTurn {
  bool there = false, back = false;
};
InTurn in_turn(const StageLayout& turn, std::size_t l, const std::string& tensor) {
  for (const int t : turn.reads[l]) {
    const ModelTensor& read = turn.tensors[t];
    if (read.name == tensor) return {.there = true, .back = read.wants_gradient};
  }
  return {};
}

/// Merges the inputs that the layers keep in each turn.
KeptInputs kept_inputs(const std::vector<const PassBytes*>& passes) {
  KeptInputs kept = passes.front()->keeps_counted;
  for (const auto& pass : passes) {
    for (std::size_t l = 0; l < kept.size(); ++l)
      std::ranges::transform(kept[l], pass->keeps_counted[l], kept[l].begin(), std::logical_or<>());
  }
  return kept;
}

/// Returns the bytes sent across a border between two layers: the mean over the microbatches, and each
/// microbatch's if lengths differ. With `turn`, they are the bytes of that turn in both directions. In a job
/// array the tensors "NAME@0", "NAME@1", ... are one edge.
std::vector<LayerEdge> edges_of(const StageLayout& layout, const std::vector<Bytes>& mean,
                                const std::vector<std::vector<Bytes>>& of_each, const KeptInputs& kept,
                                const StageLayout* turn = nullptr) {
  const bool array = layout.model.jobs() > 1;
  std::vector<LayerEdge> edges;
  for (std::size_t l = 0; l < layout.reads.size(); ++l) {
    const auto first = std::ssize(edges);
    std::set<int> read;
    for (std::size_t input = 0; input < layout.reads[l].size(); ++input) {
      const int t = layout.reads[l][input];
      const ModelTensor& tensor = layout.tensors[t];
      if (tensor.layer < 0 || !read.insert(t).second) continue;
      LayerEdge edge{tensor.layer, static_cast<int>(l),
                     array ? tensor.name.substr(0, tensor.name.rfind('@')) : tensor.name, mean[t]};
      if (!of_each.empty()) edge.of_microbatches = of_each[t];
      edge.kept_bytes = kept[l][input] != 0 ? edge.bytes : 0;
      if (turn != nullptr) {
        const InTurn ways = in_turn(*turn, l, tensor.name);
        edge.gradient_bytes = ways.back ? edge.bytes : 0;
        if (!ways.there) edge.bytes = 0;
      }
      const auto known = std::find_if(edges.begin() + first, edges.end(), [&](const LayerEdge& e) {
        return array && e.producer == edge.producer && e.tensor == edge.tensor;
      });
      if (known == edges.end()) {
        edges.push_back(std::move(edge));
        continue;
      }
      known->bytes += edge.bytes;
      // If the jobs' tensors are together, the first job's tensor contains all of them.
      if (*known->kept_bytes > 0 || *edge.kept_bytes > 0) known->kept_bytes = known->bytes;
      if (edge.gradient_bytes) *known->gradient_bytes += *edge.gradient_bytes;
      for (std::size_t m = 0; m < edge.of_microbatches.size(); ++m)
        known->of_microbatches[m] += edge.of_microbatches[m];
    }
  }
  return edges;
}

/// Returns half the distance between the slowest and the fastest block, as a share of the median.
double spread_of(const Samples& totals) {
  const auto [least, most] = std::minmax_element(totals.begin(), totals.end());
  const double middle = median(totals);
  return middle > 0 ? (*most - *least) / 2 / middle : 0;
}

/// Returns Measured::jitter of passes, `repetitions` of which are a block.
double jitter_of(const TurnSamples& turns, std::size_t repetitions) {
  std::vector<double> ratios;  // logarithms, of any two passes of a block
  const auto add = [&](const Samples& passes) {
    for (std::size_t i = 0; i < passes.size(); ++i) {
      const std::size_t end = std::min(passes.size(), (i / repetitions + 1) * repetitions);
      for (std::size_t j = i + 1; j < end; ++j)
        if (passes[i] > 0 && passes[j] > 0) ratios.push_back(std::abs(std::log(passes[i] / passes[j])));
    }
  };
  for (const std::vector<BatchSamples>& turn : turns) {
    for (const BatchSamples& batch : turn) {
      add(batch.forward);
      add(batch.backward);
    }
  }
  // The logarithm of two draws' ratio is normal with sigma sqrt(2). Half of a normal distribution's draws are
  // within 0.6745 of its sigma. Load of other programs in some passes has little effect on a median.
  return median(ratios) / (0.6745 * std::numbers::sqrt2);
}

/// Returns the costs of one turn, as part of `whole`, the graph of all turns.
LayerGraph turn_of(const LayerGraph& whole, const StageLayout& turn, const std::string& name,
                   const std::vector<BatchSamples>& samples, const PassBytes& pass) {
  LayerGraph graph = whole;
  graph.turn = name;
  graph.turns.clear();
  graph.dimensions.clear();
  graph.microbatches.clear();
  std::vector<BatchSeconds> each;
  for (const BatchSamples& batch : samples) each.push_back(seconds_of(batch));
  graph.loss_s = mean(each, [](const BatchSeconds& batch) { return batch.loss; });
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    LayerNode& node = graph.nodes[i];
    const auto seconds = [&](double LayerSeconds::*phase) {
      return mean(each, [&](const BatchSeconds& batch) { return batch.layers[i].*phase; });
    };
    node.forward_s = seconds(&LayerSeconds::forward);
    node.backward_input_s = seconds(&LayerSeconds::backward_input);
    node.backward_weight_s = seconds(&LayerSeconds::backward_weight);
    if (turn.model.layers[i].frozen) node.parameter_bytes = node.untouched_bytes = 0;
    node.saved_bytes = pass.saved_bytes[i];
    node.saved_output_bytes = pass.saved_output_bytes[i];
    node.saved_input_bytes = pass.saved_input_bytes[i];
    node.between_bytes = pass.between_bytes[i];
    node.workspace_bytes = pass.workspace_bytes[i];
    node.input_workspace_bytes = pass.input_workspace_bytes[i];
    node.weight_workspace_bytes = pass.weight_workspace_bytes[i];
    node.of_microbatches.clear();
  }
  return graph;
}

/// The bytes of all tensors of a graph: means over the microbatches, and each microbatch's by tensor.
struct TensorBytes {
  std::vector<Bytes> mean;
  std::vector<std::vector<Bytes>> of_each;
};
TensorBytes tensor_bytes_of(const ProfileMeasurements& m) {
  TensorBytes all{std::vector<Bytes>(m.layout.tensors.size(), 0),
                  std::vector<std::vector<Bytes>>(m.layout.tensors.size())};
  for (const ProfileBatches::One& one : m.batches.timed) {
    const std::vector<Bytes> bytes = tensor_bytes(m.layout, one.extent);
    for (std::size_t t = 0; t < bytes.size(); ++t) {
      all.mean[t] += bytes[t];
      all.of_each[t].push_back(bytes[t]);
    }
  }
  for (Bytes& bytes : all.mean) bytes /= static_cast<Bytes>(m.batches.timed.size());
  return all;
}

/// Returns the total seconds of the microbatches in each block.
Samples totals_of_blocks(const ProfileMeasurements& m) {
  Samples totals;
  const auto repetitions = static_cast<std::size_t>(m.options.repetitions);
  for (std::size_t block = 0; block < static_cast<std::size_t>(m.options.blocks); ++block) {
    double& total = totals.emplace_back();
    for (const BatchSeconds& batch :
         seconds_of_each(m.times, {block * repetitions, (block + 1) * repetitions}))
      total += batch.total();
  }
  return totals;
}

/// Sets the bytes of the fields that layers read, if batches are prefetched into device memory.
void take_fields(LayerGraph& graph, const ProfileMeasurements& m, const StageLayout& layout) {
  if (!m.batches_wait_on_device) return;
  const auto fields = fields_of(layout, tensor_bytes(layout, longest_of(m.batches).extent));
  for (std::size_t i = 0; i < fields.size(); ++i) {
    graph.nodes[i].fields = fields[i];
    graph.nodes[i].field_bytes = sum_of(fields[i]);
  }
}

LayerNode node_of(const ProfileMeasurements& m, std::size_t i, const std::vector<BatchSeconds>& each) {
  const NamedLayer& layer = m.model.layers[i];
  const auto seconds = [&](double LayerSeconds::*phase) {
    return mean(each, [&](const BatchSeconds& batch) { return batch.layers[i].*phase; });
  };
  const auto most = [&](std::vector<Bytes> PassBytes::*bytes) {
    Bytes result = 0;
    for (const PassBytes* pass : m.bytes) result = std::max(result, (pass->*bytes)[i]);
    return result;
  };
  Bytes parameter_bytes = 0, tied_bytes = 0;
  for (const ParameterSpec& spec : layer.layer->parameters()) {
    if (spec.is_buffer) continue;
    (layer.is_tied(spec) ? tied_bytes : parameter_bytes) += bytes_of({.shape = spec.shape});
  }
  return {.name = layer.name,
          .kind = layer.layer->kind(),
          .forward_s = seconds(&LayerSeconds::forward),
          .backward_input_s = seconds(&LayerSeconds::backward_input),
          .backward_weight_s = seconds(&LayerSeconds::backward_weight),
          .parameter_bytes = parameter_bytes,
          .lowered_bytes = m.store.bytes_of_copies(static_cast<int>(i)) + tied_bytes,
          .saved_bytes = most(&PassBytes::saved_bytes),
          .saved_output_bytes = most(&PassBytes::saved_output_bytes),
          .saved_input_bytes = most(&PassBytes::saved_input_bytes),
          .between_bytes = most(&PassBytes::between_bytes),
          .tied_to = owner_of(layer, m.model),
          .tied_bytes = tied_bytes,
          .workspace_bytes = most(&PassBytes::workspace_bytes),
          .input_workspace_bytes = most(&PassBytes::input_workspace_bytes),
          .weight_workspace_bytes = most(&PassBytes::weight_workspace_bytes)};
}

}  // namespace

std::int64_t elements_of(const Shape& shape) {
  std::int64_t elements = 1;
  for (std::int64_t d : shape) elements *= d;
  return elements;
}

std::vector<Bytes> tensor_bytes(const StageLayout& layout, const BatchExtent& extent) {
  std::vector<Bytes> bytes;
  std::vector<Shape> shapes = tensor_shapes(layout, extent);
  for (std::size_t t = 0; t < shapes.size(); ++t)
    bytes.push_back(bytes_of({.shape = std::move(shapes[t]), .dtype = layout.tensors[t].spec.dtype}));
  return bytes;
}

std::vector<Bytes> output_bytes(const StageLayout& layout, const std::vector<Bytes>& tensors) {
  std::vector<Bytes> bytes;
  for (const auto& made : layout.makes) {
    Bytes& sum = bytes.emplace_back();
    for (int t : made) sum += tensors[t];
  }
  return bytes;
}

std::vector<const StageLayout*> turns_of(const StageLayout& layout) {
  std::vector<const StageLayout*> turns;
  for (const StageLayout& turn : layout.turns) turns.push_back(&turn);
  if (turns.empty()) turns.push_back(&layout);
  return turns;
}

const ProfileBatches::One& longest_of(const ProfileBatches& batches) {
  return batches.longest ? *batches.longest : batches.timed.back();
}

LayerGraph graph_of(const ProfileMeasurements& m) {
  LayerGraph graph{.model = m.model.name,
                   .microbatch = m.options.microbatch,
                   .device = m.device,
                   .precision = to_string(m.options.precision),
                   .sync_batch_norm = m.options.sync_batch_norm};
  const std::vector<BatchSeconds> each = seconds_of_each(m.times);
  if (!m.model.dimensions.empty()) {
    for (const Dimension& dimension : m.model.dimensions) graph.dimensions.push_back(dimension.name);
    for (std::size_t b = 0; b < each.size(); ++b)
      graph.microbatches.push_back({m.batches.timed[b].extent.lengths, each[b].total(), each[b].loss});
  }
  const bool lengths_differ = graph.microbatches.size() > 1;
  graph.loss_s = mean(each, [](const BatchSeconds& batch) { return batch.loss; });
  const TensorBytes tensors = tensor_bytes_of(m);
  const std::vector<Bytes> mean_outputs = output_bytes(m.layout, tensors.mean);
  for (std::size_t i = 0; i < m.model.layers.size(); ++i) {
    graph.nodes.push_back(node_of(m, i, each));
    graph.nodes.back().activation_bytes = mean_outputs[i];
    if (lengths_differ)
      for (const BatchSeconds& batch : each) graph.nodes.back().of_microbatches.push_back(batch.layers[i]);
  }
  take_fields(graph, m, m.layout);
  graph.edges =
      edges_of(m.layout, tensors.mean, lengths_differ ? tensors.of_each : std::vector<std::vector<Bytes>>(),
               kept_inputs(m.bytes));
  graph.jobs = m.model.jobs();
  graph.measured = {.ranks = 1,
                    .blocks = m.options.blocks,
                    .spread = spread_of(totals_of_blocks(m)),
                    .jitter = jitter_of(m.times, static_cast<std::size_t>(m.options.repetitions))};
  return graph;
}

void add_turns(LayerGraph& graph, const ProfileMeasurements& m) {
  std::vector<LayerGraph> of_turns;
  const TensorBytes tensors = tensor_bytes_of(m);
  const KeptInputs kept = kept_inputs(m.bytes);
  for (std::size_t t = 0; t < m.layout.turns.size(); ++t) {
    const StageLayout& turn = m.layout.turns[t];
    of_turns.push_back(turn_of(graph, turn, m.model.turns[t].name, m.times[t], *m.bytes[t]));
    of_turns.back().edges = edges_of(m.layout, tensors.mean, {}, kept, &turn);
    take_fields(of_turns.back(), m, turn);
  }
  graph.turns = std::move(of_turns);
}

}  // namespace millrace
