#include "runtime/plan/layer_graph.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <queue>
#include <unordered_map>

#include "runtime/base/files.h"
#include "runtime/base/json.h"
#include "runtime/plan/array_profiles.h"
#include "runtime/plan/fingerprint.h"
#include "runtime/plan/limits.h"

namespace millrace {
namespace {

constexpr const char* kFormat = "millrace-profile-1";
constexpr const char* kFormatOfArrays = "millrace-profile-2";  // with what is known of job arrays
constexpr const char* kFormatOfTurns = "millrace-profile-3";   // and of turns

/// Returns whether sums over layers could wrap, or be inexact in a double.
bool too_many_bytes(const LayerGraph& graph) {
  Bytes sums[8] = {};
  for (const LayerNode& n : graph.nodes) {
    const Bytes of_node[] = {n.parameter_bytes, n.activation_bytes, n.saved_bytes,    n.workspace_bytes,
                             n.lowered_bytes,   n.field_bytes,      n.kept_between(), n.tied_bytes};
    for (int i = 0; i < 8; ++i) sums[i] = saturating_sum(sums[i], of_node[i]);
  }
  Bytes edges = 0;
  for (const LayerEdge& e : graph.edges) edges = saturating_sum(edges, e.bytes);
  return edges > kMostStoredBytes || *std::ranges::max_element(sums) > kMostStoredBytes;
}

bool is_seconds(const Json& value) {
  return value.is_number() && value.as_double() >= 0 && value.as_double() <= kMostLayerSeconds;
}

/// Reads [[forward, input gradient, weight gradient], ...].
void read_seconds(const Json& json, LayerNode& node, Problems& problems) {
  for (const Json& one : json.items()) {
    if (one.kind() != Json::Kind::Array || one.size() != 3 || !std::ranges::all_of(one.items(), is_seconds)) {
      problems.push_back({one.where(), "is not the three times of a microbatch in seconds", {}});
      return;
    }
    const auto& times = one.items();
    node.of_microbatches.push_back({times[0].as_double(), times[1].as_double(), times[2].as_double()});
  }
}

/// Adds an error if a layer or a tensor has another number of microbatches than the profile.
void check_count(const Json& json, std::size_t count, const LayerGraph& graph, Problems& problems) {
  if (count == 0 || count == graph.microbatches.size()) return;
  problems.push_back({json.where(),
                      "has numbers of " + std::to_string(count) + " microbatches, " +
                          std::to_string(graph.microbatches.size()) + " were measured",
                      {}});
}

/// Reads {"image": 12288, "label": 64}.
void read_fields(const Json& json, LayerNode& node, Problems& problems) {
  ObjectReader in(json, problems);
  Bytes sum = 0;
  for (const auto& [name, value] : json.members())
    sum = saturating_sum(sum, node.fields[name] = in.size(name, 0));
  in.finish();
  if (sum != node.field_bytes)
    problems.push_back(
        {json.where(),
         "'fields' add up to " + std::to_string(sum) + ", field_bytes is " + std::to_string(node.field_bytes),
         "leave `fields` out if only their sum is known"});
}

constexpr std::pair<const char*, std::optional<Bytes> LayerNode::*> kOptionalBytes[] = {
    {"saved_output_bytes", &LayerNode::saved_output_bytes},
    {"saved_input_bytes", &LayerNode::saved_input_bytes},
    {"between_bytes", &LayerNode::between_bytes},
    {"input_workspace_bytes", &LayerNode::input_workspace_bytes},
    {"weight_workspace_bytes", &LayerNode::weight_workspace_bytes},
};

LayerNode node_from(const Json& json, Problems& problems) {
  ObjectReader in(json, problems);
  LayerNode node{.name = in.string("name"),
                 .kind = in.string("kind", ""),
                 .forward_s = in.within("forward_s", 0, kMostLayerSeconds),
                 .backward_input_s = in.within("backward_input_s", 0, kMostLayerSeconds),
                 .backward_weight_s = in.within("backward_weight_s", 0, kMostLayerSeconds),
                 .parameter_bytes = in.size("parameter_bytes", 0),
                 .untouched_bytes = in.size("untouched_bytes", 0),
                 .lowered_bytes = in.size("lowered_bytes", 0),
                 .field_bytes = in.size("field_bytes", 0),
                 .activation_bytes = in.size("activation_bytes", 0),
                 .saved_bytes = in.size("saved_bytes", 0),
                 .tied_to = in.string("tied_to", ""),
                 .tied_bytes = in.size("tied_bytes", 0),
                 .workspace_bytes = in.size("workspace_bytes", 0)};
  for (const auto& [name, member] : kOptionalBytes)
    if (const Bytes bytes = in.size(name, -1); bytes >= 0) node.*member = bytes;
  if (const Json* fields = in.optional_object("fields")) read_fields(*fields, node, problems);
  if (const Json* all = in.optional_array("microbatches")) read_seconds(*all, node, problems);
  if (node.untouched_bytes > node.parameter_bytes)
    in.problem("untouched_bytes", "are more than the layer's parameter_bytes");
  in.finish();
  return node;
}

/// Reads {"dimensions": ["length"], "microbatches": [{"lengths": [18], "seconds": 0.1}, ...]}.
void read_lengths(const Json& json, LayerGraph& graph, Problems& problems) {
  ObjectReader in(json, problems);
  graph.dimensions = in.strings("dimensions");
  const Json* microbatches = in.array("microbatches");
  in.finish();
  if (!microbatches) return;
  for (const Json& one : microbatches->items()) {
    ObjectReader m(one, problems);
    MeasuredMicrobatch made{.seconds = m.within("seconds", 0, kMostLayerSeconds),
                            .loss_s = m.within("loss_s", 0, kMostLayerSeconds, 0)};
    const Json* lengths = m.array("lengths");
    m.finish();
    if (!lengths) continue;
    for (const Json& length : lengths->items()) {
      if (length.kind() != Json::Kind::Int || length.as_int() < 0) {
        problems.push_back({length.where(), "is not a length", {}});
        return;
      }
      made.lengths.push_back(length.as_int());
    }
    if (made.lengths.size() != graph.dimensions.size()) {
      problems.push_back({lengths->where(),
                          "has " + std::to_string(made.lengths.size()) + " lengths, there are " +
                              std::to_string(graph.dimensions.size()) + " dimensions",
                          {}});
      return;
    }
    graph.microbatches.push_back(std::move(made));
  }
}

Measured measured_from(const Json& json, Problems& problems) {
  ObjectReader in(json, problems);
  Measured measured{.ranks = in.whole("ranks", 1, 1 << 20, 1),
                    .core_share = in.within("core_share", 1e-6, 1, 1),
                    .blocks = in.whole("blocks", 1, 1 << 20, 1),
                    .spread = in.within("spread", 0, 1e6, 0),
                    .jitter = in.within("jitter", 0, 10, 0),
                    .origin = {.processor = in.string("processor", ""), .date = in.string("date", "")}};
  if (const Json* of_ranks = in.optional_array("rank_seconds")) {
    for (const Json& seconds : of_ranks->items()) {
      if (!seconds.is_number() || !(seconds.as_double() > 0))
        problems.push_back({seconds.where(), "is no time of a rank, in seconds above 0", {}});
      else
        measured.rank_seconds.push_back(seconds.as_double());
    }
    if (of_ranks->size() != static_cast<std::size_t>(measured.ranks))
      problems.push_back({of_ranks->where(),
                          "has times of " + std::to_string(of_ranks->size()) + " ranks, 'ranks' says " +
                              std::to_string(measured.ranks),
                          {}});
  }
  in.finish();
  return measured;
}

}  // namespace

Result<LayerGraph> LayerGraph::parse(std::string_view text, const std::string& name) {
  const Result<Json> json = parse_json(text, name);
  if (!json) {
    Problems problems = json.problems();
    problems.front().hint =
        "a profile is JSON from `millrace profile`, or a PipeDream graph with a name .txt";
    return problems;
  }
  return from(*json, name);
}

Result<LayerGraph> LayerGraph::from(const Json& json, const std::string& name) {
  Problems problems;
  ObjectReader in(json, problems);
  const std::string format = in.string("format");
  const std::string formats[] = {kFormat, kFormatOfArrays, kFormatOfTurns};
  if (std::ranges::find(formats, format) == std::end(formats) && json.is_object()) {
    in.problem("format",
               "is '" + format + "', expected '" + kFormat + "', '" + kFormatOfArrays + "' or '" +
                   kFormatOfTurns + "'",
               "make profiles with `millrace profile`");
  }
  LayerGraph graph{.model = in.string("model"),
                   .microbatch = in.whole("microbatch", 1, kMostFileSamples, 1),
                   .device = in.string("device", "cpu"),
                   .precision = in.string("precision", "float32"),
                   .loss_s = in.within("loss_s", 0, kMostLayerSeconds, 0),
                   .update_s_per_byte = in.within("update_s_per_byte", 0, 1, 0),
                   .update_copy_s_per_byte = in.within("update_copy_s_per_byte", 0, 1, 0),
                   .sync_batch_norm = in.boolean("sync_batch_norm", false),
                   .norm_s_per_byte = in.within("norm_s_per_byte", 0, 1, 0),
                   .sum_s_per_byte = in.within("sum_s_per_byte", 0, 1, 0),
                   .data_s = in.within("data_s", 0, kMostLayerSeconds, 0)};
  if (format != kFormat) {
    graph.jobs = in.whole("jobs", 1, kMostFileArrays, 1);
    graph.rule_state_bytes = in.size("rule_state_bytes", 0);
    if (const Json* arrays = in.optional_array("arrays"))
      graph.arrays = profiles_from(*arrays, name + ", arrays", problems);
  }
  if (format == kFormatOfTurns) {
    graph.turn = in.string("turn", "");
    if (const Json* turns = in.optional_array("turns"))
      graph.turns = profiles_from(*turns, name + ", turns", problems);
  }
  if (const Json* measured = in.optional_object("measured"))
    graph.measured = measured_from(*measured, problems);
  if (const Json* lengths = in.optional_object("lengths")) read_lengths(*lengths, graph, problems);
  const Json* layers = in.array("layers");
  const Json* edges = in.array("edges");
  in.finish();
  if (!layers || !edges) return problems;
  std::unordered_map<std::string, int> index;
  for (const Json& layer : layers->items()) {
    graph.nodes.push_back(node_from(layer, problems));
    check_count(layer, graph.nodes.back().of_microbatches.size(), graph, problems);
    if (!index.emplace(graph.nodes.back().name, static_cast<int>(graph.nodes.size()) - 1).second) {
      problems.push_back(
          {layer.where(), "layer '" + graph.nodes.back().name + "' appears twice", "names must be unique"});
    }
  }
  for (const Json& edge : edges->items()) {
    ObjectReader e(edge, problems);
    const std::string from = e.string("from"), to = e.string("to");
    LayerEdge made{.tensor = e.string("tensor", from), .bytes = e.size("bytes", 0)};
    if (const Json* all = e.optional_array("microbatches")) {
      for (const Json& bytes : all->items()) {
        if (bytes.kind() == Json::Kind::Int && bytes.as_int() >= 0 && bytes.as_int() <= kMostStoredBytes)
          made.of_microbatches.push_back(bytes.as_int());
        else
          problems.push_back({bytes.where(), "is no number of bytes", {}});
      }
      check_count(*all, made.of_microbatches.size(), graph, problems);
    }
    if (const Bytes back = e.size("gradient_bytes", -1); back >= 0) made.gradient_bytes = back;
    if (const Bytes kept = e.size("kept_bytes", -1); kept >= 0) made.kept_bytes = kept;
    e.finish();
    for (const std::string& end : {from, to}) {
      if (!index.contains(end))
        e.problem(end == from ? "from" : "to", "edge names the unknown layer '" + end + "'");
    }
    if (!index.contains(from) || !index.contains(to)) continue;
    made.producer = index[from];
    made.consumer = index[to];
    graph.edges.push_back(std::move(made));
  }
  if (graph.nodes.empty() && problems.empty()) problems.push_back({layers->where(), "has no layers", {}});
  if (problems.empty() && too_many_bytes(graph))
    problems.push_back({layers->where(), "the bytes of all layers add up to more than 8 PiB",
                        "sizes are bytes of one microbatch"});
  if (problems.empty()) problems = inner_profile_problems(graph, name);
  if (!problems.empty()) return problems;
  if (auto order = graph.topological_order(); !order) return Problem{name, to_string(order.problems()), {}};
  return graph;
}

Result<LayerGraph> LayerGraph::load(const std::string& path) {
  Result<std::string> text = read_file(path);
  if (!text) return text.problems();
  return parse(*text, path);
}

Bytes LayerGraph::bytes_of_fields(const std::vector<int>& layers,
                                  std::map<std::string, Bytes>& already) const {
  Bytes sum = 0;
  for (const int layer : layers) {
    const LayerNode& node = nodes[static_cast<std::size_t>(layer)];
    if (node.fields.empty()) sum += node.field_bytes;
    for (const auto& [name, bytes] : node.fields) {
      Bytes& counted = already[name];
      sum += std::max<Bytes>(0, bytes - counted);
      counted = std::max(counted, bytes);
    }
  }
  return sum;
}

bool LayerGraph::is_read_in_turns(const std::string& field) const {
  return std::ranges::count_if(turns, [&](const LayerGraph& one) {
           return std::ranges::any_of(one.nodes,
                                      [&](const LayerNode& node) { return node.fields.contains(field); });
         }) > 1;
}

std::string LayerGraph::to_json() const {
  return as_json().dump(1) + "\n";
}

Json LayerGraph::as_json() const {
  Json layers = Json::array(), edge_list = Json::array();
  for (const LayerNode& n : nodes) {
    layers.push_back(Json::object({{"name", n.name},
                                   {"kind", n.kind},
                                   {"forward_s", n.forward_s},
                                   {"backward_input_s", n.backward_input_s},
                                   {"backward_weight_s", n.backward_weight_s},
                                   {"parameter_bytes", n.parameter_bytes},
                                   {"activation_bytes", n.activation_bytes},
                                   {"saved_bytes", n.saved_bytes},
                                   {"workspace_bytes", n.workspace_bytes}}));
    if (n.untouched_bytes > 0) layers.items().back()["untouched_bytes"] = n.untouched_bytes;
    if (n.lowered_bytes > 0) layers.items().back()["lowered_bytes"] = n.lowered_bytes;
    if (n.field_bytes > 0) layers.items().back()["field_bytes"] = n.field_bytes;
    for (const auto& [name, bytes] : n.fields) layers.items().back()["fields"][name] = bytes;
    for (const auto& [name, member] : kOptionalBytes)
      if (n.*member) layers.items().back()[name] = *(n.*member);
    if (!n.tied_to.empty()) layers.items().back()["tied_to"] = n.tied_to;
    if (n.tied_bytes > 0) layers.items().back()["tied_bytes"] = n.tied_bytes;
    if (n.of_microbatches.empty()) continue;
    Json all = Json::array();
    for (const LayerSeconds& one : n.of_microbatches) {
      Json times = Json::array();
      for (double seconds : {one.forward, one.backward_input, one.backward_weight}) times.push_back(seconds);
      all.push_back(std::move(times));
    }
    layers.items().back()["microbatches"] = std::move(all);
  }
  for (const LayerEdge& e : edges) {
    edge_list.push_back(Json::object({{"from", nodes[e.producer].name},
                                      {"to", nodes[e.consumer].name},
                                      {"tensor", e.tensor},
                                      {"bytes", e.bytes}}));
    if (e.gradient_bytes) edge_list.items().back()["gradient_bytes"] = *e.gradient_bytes;
    if (e.kept_bytes) edge_list.items().back()["kept_bytes"] = *e.kept_bytes;
    if (e.of_microbatches.empty()) continue;
    Json all = Json::array();
    for (const Bytes bytes : e.of_microbatches) all.push_back(bytes);
    edge_list.items().back()["microbatches"] = std::move(all);
  }
  const bool of_arrays = jobs > 1 || !arrays.empty() || rule_state_bytes > 0;
  const bool of_turns = !turns.empty() || !turn.empty();
  Json json = Json::object({{"format", of_turns    ? kFormatOfTurns
                                       : of_arrays ? kFormatOfArrays
                                                   : kFormat},
                            {"model", model},
                            {"microbatch", microbatch},
                            {"device", device},
                            {"loss_s", loss_s},
                            {"update_s_per_byte", update_s_per_byte}});
  if (precision != "float32") json["precision"] = precision;
  if (update_copy_s_per_byte > 0) json["update_copy_s_per_byte"] = update_copy_s_per_byte;
  if (sync_batch_norm) json["sync_batch_norm"] = true;
  if (norm_s_per_byte > 0) json["norm_s_per_byte"] = norm_s_per_byte;
  if (sum_s_per_byte > 0) json["sum_s_per_byte"] = sum_s_per_byte;
  if (data_s > 0) json["data_s"] = data_s;
  if (!turn.empty()) json["turn"] = turn;
  if (jobs > 1) json["jobs"] = jobs;
  if (rule_state_bytes > 0) json["rule_state_bytes"] = rule_state_bytes;
  if (measured.blocks > 0) {
    json["measured"] =
        Json::object({{"ranks", measured.ranks}, {"blocks", measured.blocks}, {"spread", measured.spread}});
    if (measured.core_share < 1) json["measured"]["core_share"] = measured.core_share;
    if (measured.jitter > 0) json["measured"]["jitter"] = measured.jitter;
    if (!measured.rank_seconds.empty()) {
      Json of_ranks = Json::array();
      for (const double seconds : measured.rank_seconds) of_ranks.push_back(seconds);
      json["measured"]["rank_seconds"] = std::move(of_ranks);
    }
    if (!measured.origin.processor.empty()) json["measured"]["processor"] = measured.origin.processor;
    if (!measured.origin.date.empty()) json["measured"]["date"] = measured.origin.date;
  }
  if (!microbatches.empty()) {
    Json names = Json::array(), all = Json::array();
    for (const std::string& name : dimensions) names.push_back(name);
    for (const MeasuredMicrobatch& one : microbatches) {
      Json lengths = Json::array();
      for (const std::int64_t length : one.lengths) lengths.push_back(length);
      all.push_back(Json::object({{"lengths", std::move(lengths)}, {"seconds", one.seconds}}));
      if (one.loss_s > 0) all.items().back()["loss_s"] = one.loss_s;
    }
    json["lengths"] = Json::object({{"dimensions", std::move(names)}, {"microbatches", std::move(all)}});
  }
  json["layers"] = std::move(layers);
  json["edges"] = std::move(edge_list);
  if (!turns.empty()) json["turns"] = profiles_json(turns);
  if (!arrays.empty()) json["arrays"] = profiles_json(arrays);
  return json;
}

std::vector<double> LayerGraph::length_factors() const {
  double sum = 0;
  for (const MeasuredMicrobatch& one : microbatches) sum += one.seconds;
  if (sum <= 0) return {1.0};
  std::vector<double> factors;
  for (const MeasuredMicrobatch& one : microbatches)
    factors.push_back(one.seconds * static_cast<double>(microbatches.size()) / sum);
  return factors;
}

std::vector<LengthRange> LayerGraph::length_ranges() const {
  std::vector<LengthRange> ranges;
  for (std::size_t d = 0; d < dimensions.size() && !microbatches.empty(); ++d) {
    const std::int64_t first = microbatches.front().lengths[d];
    LengthRange& range = ranges.emplace_back(LengthRange{dimensions[d], first, first});
    for (const MeasuredMicrobatch& one : microbatches) {
      range.least = std::min(range.least, one.lengths[d]);
      range.most = std::max(range.most, one.lengths[d]);
      range.mean += static_cast<double>(one.lengths[d]) / static_cast<double>(microbatches.size());
    }
  }
  return ranges;
}

std::string to_string(const std::vector<LengthRange>& lengths) {
  std::string text;
  for (const LengthRange& range : lengths) {
    char mean[32];
    std::snprintf(mean, sizeof mean, "%.1f", range.mean);
    text += (text.empty() ? "" : ", ") + range.dimension + " " + std::to_string(range.least);
    if (range.most > range.least) text += ".." + std::to_string(range.most) + " (mean " + mean + ")";
  }
  return text;
}

std::vector<LayerGraph> LayerGraph::by_microbatch() const {
  const std::vector<double> factors = length_factors();
  if (factors.size() < 2) return {};
  LayerGraph alike = *this;
  alike.microbatches.clear();
  for (LayerNode& node : alike.nodes) node.of_microbatches.clear();
  for (LayerEdge& edge : alike.edges) edge.of_microbatches.clear();
  std::vector<LayerGraph> graphs(factors.size(), alike);
  // `mean`, which a run may have scaled, times the ratio of microbatch `b` to the mean of all `of`.
  const auto scaled = [&](double mean, std::size_t b, const auto& all, auto of) {
    double sum = 0;
    for (const auto& one : all) sum += of(one);
    return mean * (sum > 0 ? of(all[b]) * static_cast<double>(all.size()) / sum : factors[b]);
  };
  for (std::size_t b = 0; b < graphs.size(); ++b) {
    LayerGraph& graph = graphs[b];
    graph.loss_s = scaled(loss_s, b, microbatches, [](const MeasuredMicrobatch& m) { return m.loss_s; });
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      LayerNode& node = graph.nodes[i];
      const auto& all = nodes[i].of_microbatches;
      node.forward_s = scaled(node.forward_s, b, all, [](const LayerSeconds& s) { return s.forward; });
      node.backward_input_s =
          scaled(node.backward_input_s, b, all, [](const LayerSeconds& s) { return s.backward_input; });
      node.backward_weight_s =
          scaled(node.backward_weight_s, b, all, [](const LayerSeconds& s) { return s.backward_weight; });
    }
    for (std::size_t e = 0; e < edges.size(); ++e)
      if (!edges[e].of_microbatches.empty()) graph.edges[e].bytes = edges[e].of_microbatches[b];
  }
  return graphs;
}

Status LayerGraph::save(const std::string& path) const {
  return write_file_atomically(path, to_json());
}

Result<std::vector<int>> LayerGraph::topological_order() const {
  std::vector<int> missing(nodes.size(), 0);
  std::vector<std::vector<int>> consumers(nodes.size());
  for (const LayerEdge& e : edges) {
    ++missing[e.consumer];
    consumers[e.producer].push_back(e.consumer);
  }
  std::priority_queue<int, std::vector<int>, std::greater<>> ready;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (missing[i] == 0) ready.push(static_cast<int>(i));
  }
  std::vector<int> order;
  while (!ready.empty()) {
    const int node = ready.top();
    ready.pop();
    order.push_back(node);
    for (int consumer : consumers[node]) {
      if (--missing[consumer] == 0) ready.push(consumer);
    }
  }
  if (order.size() == nodes.size()) return order;
  const auto stuck = std::ranges::find_if(missing, [](int m) { return m > 0; });
  return Problem{"", "the graph has a cycle through layer '" + nodes[stuck - missing.begin()].name + "'",
                 "a profile is acyclic"};
}

std::string LayerGraph::fingerprint() const {
  return fingerprint_of(to_json());
}

}  // namespace millrace
