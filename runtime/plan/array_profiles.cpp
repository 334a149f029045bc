#include "runtime/plan/array_profiles.h"

#include <algorithm>
#include <cmath>

namespace millrace {
namespace {

/// The position between two measurements: 0 is the first, 1 the second.
struct Between {
  double share = 0;
  double operator()(double a, double b) const { return a + (b - a) * share; }
  Bytes operator()(Bytes a, Bytes b) const {
    const double between = static_cast<double>(a) + static_cast<double>(b - a) * share;
    return saturating_bytes(std::ceil(between - 1e-6));
  }
};

/// Interpolates every number of `a` that depends on the jobs, towards `b`.
LayerGraph between(const LayerGraph& a, const LayerGraph& b, int jobs) {
  const Between at{static_cast<double>(jobs - a.jobs) / (b.jobs - a.jobs)};
  LayerGraph made = a;
  made.arrays.clear();
  made.jobs = jobs;
  made.rule_state_bytes = at(a.rule_state_bytes, b.rule_state_bytes);
  for (double LayerGraph::*value :
       {&LayerGraph::loss_s, &LayerGraph::update_s_per_byte, &LayerGraph::update_copy_s_per_byte,
        &LayerGraph::norm_s_per_byte, &LayerGraph::sum_s_per_byte, &LayerGraph::data_s})
    made.*value = at(a.*value, b.*value);
  made.measured.spread = std::max(a.measured.spread, b.measured.spread);
  made.measured.jitter = std::max(a.measured.jitter, b.measured.jitter);
  for (std::size_t m = 0; m < std::min(a.microbatches.size(), b.microbatches.size()); ++m)
    for (double MeasuredMicrobatch::*value : {&MeasuredMicrobatch::seconds, &MeasuredMicrobatch::loss_s})
      made.microbatches[m].*value = at(a.microbatches[m].*value, b.microbatches[m].*value);
  for (std::size_t n = 0; n < a.nodes.size(); ++n) {
    for (double LayerNode::*value :
         {&LayerNode::forward_s, &LayerNode::backward_input_s, &LayerNode::backward_weight_s})
      made.nodes[n].*value = at(a.nodes[n].*value, b.nodes[n].*value);
    for (Bytes LayerNode::*value :
         {&LayerNode::parameter_bytes, &LayerNode::untouched_bytes, &LayerNode::lowered_bytes,
          &LayerNode::activation_bytes, &LayerNode::saved_bytes, &LayerNode::workspace_bytes,
          &LayerNode::tied_bytes})
      made.nodes[n].*value = at(a.nodes[n].*value, b.nodes[n].*value);
    made.nodes[n].field_bytes = 0;
    for (auto& [name, bytes] : made.nodes[n].fields) {
      const auto of_b = b.nodes[n].fields.find(name);
      if (of_b != b.nodes[n].fields.end()) bytes = at(a.nodes[n].fields.at(name), of_b->second);
      made.nodes[n].field_bytes += bytes;
    }
    if (made.nodes[n].fields.empty())
      made.nodes[n].field_bytes = at(a.nodes[n].field_bytes, b.nodes[n].field_bytes);
    for (std::optional<Bytes> LayerNode::*value :
         {&LayerNode::saved_output_bytes, &LayerNode::saved_input_bytes, &LayerNode::between_bytes,
          &LayerNode::input_workspace_bytes, &LayerNode::weight_workspace_bytes})
      if (a.nodes[n].*value && b.nodes[n].*value)
        made.nodes[n].*value = at(*(a.nodes[n].*value), *(b.nodes[n].*value));
    auto& each = made.nodes[n].of_microbatches;
    each.resize(std::min(each.size(), b.nodes[n].of_microbatches.size()));
    for (std::size_t m = 0; m < each.size(); ++m) {
      for (double LayerSeconds::*value :
           {&LayerSeconds::forward, &LayerSeconds::backward_input, &LayerSeconds::backward_weight})
        each[m].*value = at(each[m].*value, b.nodes[n].of_microbatches[m].*value);
    }
  }
  for (std::size_t e = 0; e < a.edges.size(); ++e) {
    made.edges[e].bytes = at(a.edges[e].bytes, b.edges[e].bytes);
    for (std::optional<Bytes> LayerEdge::*bytes : {&LayerEdge::gradient_bytes, &LayerEdge::kept_bytes})
      if (a.edges[e].*bytes && b.edges[e].*bytes)
        made.edges[e].*bytes = at(*(a.edges[e].*bytes), *(b.edges[e].*bytes));
    auto& each = made.edges[e].of_microbatches;
    each.resize(std::min(each.size(), b.edges[e].of_microbatches.size()));
    for (std::size_t m = 0; m < each.size(); ++m) each[m] = at(each[m], b.edges[e].of_microbatches[m]);
  }
  for (std::size_t t = 0; t < a.turns.size(); ++t) made.turns[t] = between(a.turns[t], b.turns[t], jobs);
  return made;
}

/// The profile's own size first, then those of its arrays.
std::vector<const LayerGraph*> measured(const LayerGraph& profile) {
  std::vector<const LayerGraph*> all{&profile};
  for (const LayerGraph& array : profile.arrays) all.push_back(&array);
  return all;
}

}  // namespace

std::vector<int> measured_sizes(const LayerGraph& profile) {
  std::vector<int> sizes;
  for (const LayerGraph* one : measured(profile)) sizes.push_back(one->jobs);
  return sizes;
}

bool is_measured(const LayerGraph& profile, int jobs) {
  return std::ranges::any_of(measured(profile), [&](const LayerGraph* one) { return one->jobs == jobs; });
}

Result<LayerGraph> profile_of_array(const LayerGraph& profile, int jobs) {
  const std::vector<const LayerGraph*> all = measured(profile);
  const auto above = std::ranges::find_if(all, [&](const LayerGraph* one) { return one->jobs >= jobs; });
  if (above == all.end() || jobs < all.front()->jobs) {
    std::string sizes;
    for (const LayerGraph* one : all) sizes += (sizes.empty() ? "" : ",") + std::to_string(one->jobs);
    return Problem{"profile", "has arrays of " + sizes + " jobs, not of " + std::to_string(jobs),
                   "profile again, for example with --jobs " + sizes + "," + std::to_string(jobs)};
  }
  if ((*above)->jobs > jobs) return between(**(above - 1), **above, jobs);
  LayerGraph made = **above;
  made.arrays.clear();
  return made;
}

std::vector<LayerGraph> profiles_from(const Json& list, const std::string& where, Problems& problems) {
  std::vector<LayerGraph> profiles;
  for (std::size_t i = 0; i < list.items().size(); ++i) {
    Result<LayerGraph> one = LayerGraph::from(list.items()[i], where + "[" + std::to_string(i) + "]");
    if (one)
      profiles.push_back(*std::move(one));
    else
      append(problems, one.problems());
  }
  return profiles;
}

Json profiles_json(const std::vector<LayerGraph>& profiles) {
  Json list = Json::array();
  for (const LayerGraph& one : profiles) list.push_back(one.as_json());
  return list;
}

namespace {

constexpr const char* kMeasuredAlike = "`millrace profile` measures all of them alike";

/// Checks that `inner` is of the same model, measured in the same way.
void compare(const LayerGraph& inner, const LayerGraph& profile, const std::string& where,
             Problems& problems) {
  const auto differs = [&](const std::string& what, const std::string& has, const std::string& expected) {
    problems.push_back({where, what + " is " + has + ", the profile's is " + expected, kMeasuredAlike});
  };
  if (inner.model != profile.model) differs("model", inner.model, profile.model);
  if (inner.device != profile.device) differs("device", inner.device, profile.device);
  if (inner.precision != profile.precision) differs("precision", inner.precision, profile.precision);
  if (inner.microbatch != profile.microbatch)
    differs("microbatch", std::to_string(inner.microbatch), std::to_string(profile.microbatch));
  if (!inner.arrays.empty()) problems.push_back({where, "has arrays itself", "one list of all sizes"});
  const bool same_layers =
      std::ranges::equal(inner.nodes, profile.nodes, {}, &LayerNode::name, &LayerNode::name);
  const bool same_edges =
      std::ranges::equal(inner.edges, profile.edges, [](const LayerEdge& a, const LayerEdge& b) {
        return a.producer == b.producer && a.consumer == b.consumer && a.tensor == b.tensor;
      });
  if (!same_layers || !same_edges)
    problems.push_back({where, "has other layers or tensors than the profile", kMeasuredAlike});
}

void check_turns(const LayerGraph& profile, const std::string& name, Problems& problems) {
  for (std::size_t t = 0; t < profile.turns.size(); ++t) {
    const LayerGraph& turn = profile.turns[t];
    const std::string where = name + ", turns[" + std::to_string(t) + "]";
    compare(turn, profile, where, problems);
    if (!turn.turns.empty()) problems.push_back({where, "has turns itself", "one list of all turns"});
    if (!turn.microbatches.empty())
      problems.push_back({where, "has microbatches of several lengths", "a turn has their means"});
    if (turn.jobs != profile.jobs)
      problems.push_back(
          {where,
           "is of " + std::to_string(turn.jobs) + " jobs, the profile of " + std::to_string(profile.jobs),
           kMeasuredAlike});
  }
  if (profile.turns.empty() || !problems.empty()) return;
  for (std::size_t n = 0; n < profile.nodes.size(); ++n) {
    const LayerNode& node = profile.nodes[n];
    Bytes trained = 0;
    for (const LayerGraph& turn : profile.turns) trained += turn.nodes[n].parameter_bytes;
    if (trained == node.parameter_bytes) continue;
    problems.push_back({name + ", turns",
                        "train " + std::to_string(trained) + " bytes of parameters of layer " + node.name +
                            ", which has " + std::to_string(node.parameter_bytes),
                        "each layer is trained by one turn"});
  }
}

}  // namespace

Problems inner_profile_problems(const LayerGraph& profile, const std::string& name) {
  Problems problems;
  check_turns(profile, name, problems);
  int before = profile.jobs;
  for (std::size_t i = 0; i < profile.arrays.size(); ++i) {
    const LayerGraph& array = profile.arrays[i];
    const std::string where = name + ", arrays[" + std::to_string(i) + "]";
    if (array.jobs <= before) {
      problems.push_back(
          {where, "is of " + std::to_string(array.jobs) + " jobs, after one of " + std::to_string(before),
           "arrays are in order of their jobs, each once"});
    }
    before = array.jobs;
    compare(array, profile, where, problems);
    if (!std::ranges::equal(array.turns, profile.turns, {}, &LayerGraph::turn, &LayerGraph::turn))
      problems.push_back({where, "has other turns than the profile", kMeasuredAlike});
  }
  return problems;
}

}  // namespace millrace
