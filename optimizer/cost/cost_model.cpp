#include "optimizer/cost/cost_model.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "runtime/schedule/simulate.h"

namespace millrace {
namespace {

constexpr std::size_t kKeptSchedules = 4;  // two lengths of an asynchronous run, for two shapes
// Only so many pairs of replicas are searched for the slowest message of a link. The pattern repeats earlier.
constexpr int kMostPairs = 4096;
// The replicas of the last stage also add up their head's sums (StageExecutor::reduce_sums). Cross-entropy
// has four of them, in float64: three metrics and a weight.
constexpr Bytes kLossSums = 32;

// Returns two numbers of microbatches. The time between runs of these lengths is that of the steady state:
// both are past the fill, and whole multiples of the period after which the order repeats.
std::pair<int, int> asynchronous_run(const PipelineShape& shape) {
  const int fill = filling_of(shape);
  return {fill, 2 * fill};
}

std::vector<int> most_per_stage(const PipelineShape& shape, const std::vector<int>& by_rank) {
  std::vector<int> most;
  for (const auto& ranks : shape.ranks_of_stage) {
    int m = 0;
    for (RankId rank : ranks) m = std::max(m, by_rank[rank.value]);
    most.push_back(m);
  }
  return most;
}

bool same_shape(const PipelineShape& a, const PipelineShape& b) {
  return a.microbatches == b.microbatches && a.update_every == b.update_every &&
         a.ranks_of_stage == b.ranks_of_stage && a.links == b.links;
}

/// Returns whether the times from which list_schedule makes an order are equal.
bool same_times(const ScheduleCosts& a, const ScheduleCosts& b) {
  return a.forward == b.forward && a.backward_input == b.backward_input &&
         a.backward_weight == b.backward_weight;
}

/// Returns the number of microbatches of the replica that has most. Asynchronous schedules share them evenly.
double largest_share(ScheduleKind kind, int microbatches, std::size_t replicas) {
  const auto r = static_cast<int>(replicas);
  if (is_asynchronous(kind)) return static_cast<double>(microbatches) / r;
  return (microbatches + r - 1) / r;
}

/// Returns the seconds in which each rank computes.
std::map<int, double> busy_seconds(ScheduleKind kind, int microbatches, const std::vector<CutStage>& stages,
                                   const ScheduleCosts& costs) {
  std::map<int, double> busy;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const double seconds = largest_share(kind, microbatches, stages[s].ranks.size()) *
                           (costs.forward[s] + costs.backward_input[s] + costs.backward_weight[s]);
    for (RankId rank : stages[s].ranks) busy[rank.value] += seconds;
  }
  return busy;
}

/// Seconds of a stage's exchanges between replicas for a microbatch, with synchronized batch normalisation.
/// The forward exchanges a sum, a sum of squares and a count, the backward two sums, all in double. A
/// channel's weight and bias are 8 parameter bytes, its two sums 16 bytes.
struct StatisticsSeconds {
  double forward = 0, backward = 0;
};
StatisticsSeconds statistics_seconds(const LayerGraph& graph, const std::vector<int>& nodes,
                                     const AllReduceCost& cost) {
  StatisticsSeconds seconds;
  for (int i : nodes) {
    const LayerNode& node = graph.nodes[i];
    if (!graph.sync_batch_norm || !node.kind.starts_with("batch_norm")) continue;
    seconds.forward += cost.seconds(2 * node.parameter_bytes + 8);
    seconds.backward += cost.seconds(2 * node.parameter_bytes);
  }
  return seconds;
}

/// Returns the shape with the updates of such a plan: PipeDream-2BW updates once in each step.
PipelineShape with_updates(ScheduleKind kind, PipelineShape shape) {
  if (updates_after_several(kind)) shape.update_every = shape.microbatches;
  return shape;
}

/// Returns the moments of a stage that stashes so many microbatches and of which nothing else is known.
std::vector<std::vector<StageMoment>> moments_with(const std::vector<int>& stashed) {
  std::vector<std::vector<StageMoment>> moments;
  for (const int count : stashed) moments.push_back({StageMoment{.stashed = count}});
  return moments;
}

/// Returns a number of microbatches with which every rank's stash is as large as in any longer step. Every
/// replica then has more than the longest warm-up and its lag, each twice the number of ranks (schedules.md).
int enough_to_fill(ScheduleKind kind, const PipelineShape& shape) {
  if (is_asynchronous(kind)) return asynchronous_run(shape).second;
  int most = 1;
  for (const auto& ranks : shape.ranks_of_stage) most = std::max(most, static_cast<int>(ranks.size()));
  return std::min(shape.microbatches, most * (4 * shape.num_ranks() + 4));
}

/// Returns the shape of one of the equal pipelines of which `shape` consists. If g divides all numbers of
/// replicas, and the microbatches, then those with equal numbers modulo g meet the same replicas, and no
/// others.
PipelineShape one_of_equal_pipelines(PipelineShape shape) {
  int equal = std::gcd(shape.microbatches, shape.update_every);
  for (const auto& ranks : shape.ranks_of_stage) equal = std::gcd(equal, static_cast<int>(ranks.size()));
  int rank = 0;
  for (auto& ranks : shape.ranks_of_stage) {
    ranks.resize(ranks.size() / static_cast<std::size_t>(equal));
    for (RankId& id : ranks) id = RankId(rank++);
  }
  shape.microbatches /= equal;
  shape.update_every /= equal;
  return shape;
}

}  // namespace

double transfer_seconds(const ClusterSpec& cluster, RankId a, RankId b, Bytes bytes) {
  const ClusterLink link = cluster.link(a, b);
  const auto size = static_cast<double>(bytes);
  return link.latency_s + size / link.bandwidth + size * cluster.copy_seconds_per_byte(a, b);
}

std::vector<int> ports_of(const ClusterSpec& cluster) {
  std::vector<int> ports;
  if (cluster.hosts.size() > 1) {
    for (int r = 0; r < cluster.num_ranks(); ++r) ports.push_back(cluster.host_of(RankId(r)));
  } else if (cluster.levels.size() > 1) {
    for (int r = 0; r < cluster.num_ranks(); ++r) ports.push_back(r / cluster.levels.front().count);
  }
  return ports;
}

PairWire wire_between(const ClusterSpec& cluster, RankId a, RankId b) {
  const ClusterLink link = cluster.link(a, b);
  return {.latency_s = link.latency_s,
          .s_per_byte = 1 / link.bandwidth + cluster.copy_seconds_per_byte(a, b)};
}

AllReduceCost::AllReduceCost(const ClusterSpec& cluster, const std::vector<int>& ports,
                             const std::vector<RankId>& ranks, int sharing)
    : members_(static_cast<double>(ranks.size())), sharing_(sharing) {
  if (ranks.size() < 2) return;
  std::vector<int> hosts;
  for (RankId rank : ranks) hosts.push_back(ports.empty() ? 0 : ports[rank.value]);
  route_ = all_reduce_route(hosts, kDirectSumBytes + 1);
  std::optional<std::pair<int, int>> known;  // the same hosts have the same link, unless pairs were measured
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const std::size_t next = (i + 1) % ranks.size();
    const std::pair pair{hosts[i], hosts[next]};
    if (cluster.rank_links.empty() && known == pair) continue;
    known = pair;
    const ClusterLink link = cluster.link(ranks[i], ranks[next]);
    const double s_per_byte = 1 / link.bandwidth + cluster.copy_seconds_per_byte(ranks[i], ranks[next]);
    Slowest& slowest = hosts[i] == hosts[next] ? inside_ : between_;
    slowest.latency_s = std::max(slowest.latency_s, link.latency_s);
    slowest.s_per_byte = std::max(slowest.s_per_byte, s_per_byte);
  }
  if (all_reduce_route(hosts, 1).way == AllReduceWay::Tree) tree_levels_ = rank_tree(hosts).levels;
  std::map<int, double> passes;
  if (route_.way == AllReduceWay::Chain) {
    // Each segment sends to its neighbours, and receives as much.
    const std::size_t segments = route_.segments.size() - 1;
    for (std::size_t i = 0; i < segments; ++i)
      passes[hosts[route_.segments[i]]] += (i > 0) + (i + 1 < segments);
  }
  std::ranges::sort(hosts);
  for (auto host = hosts.begin(); host != hosts.end();) {
    const auto next = std::upper_bound(host, hosts.end(), *host);
    const auto own = static_cast<double>(next - host);
    const double pairs = own * (members_ - own);
    pairs_over_port_ = std::max(pairs_over_port_, pairs);
    if (route_.way == AllReduceWay::Direct) passes[*host] = pairs;
    if (route_.way == AllReduceWay::Scatter) passes[*host] = 2 * pairs / members_;
    host = next;
  }
  if (pairs_over_port_ > 0) passes_.assign(passes.begin(), passes.end());
}

std::vector<ReducePorts::Port> AllReduceCost::port_seconds(Bytes bytes) const {
  std::vector<ReducePorts::Port> ports;
  for (const auto& [host, times] : passes_)
    ports.push_back({host, times * static_cast<double>(bytes) * between_.s_per_byte});
  return ports;
}

double AllReduceCost::seconds(Bytes bytes) const {
  if (bytes == 0 || members_ < 2) return 0;
  const auto size = static_cast<double>(bytes);
  const double latency = std::max(inside_.latency_s, between_.latency_s);
  // The slower of two: a rank's own messages, and the messages of all ranks of a host over the host's port.
  const auto exchange = [&](double part) {
    return std::max((members_ - 1) * part * std::max(inside_.s_per_byte, between_.s_per_byte),
                    sharing_ * pairs_over_port_ * part * between_.s_per_byte);
  };
  if (bytes <= kDirectSumBytes && tree_levels_ > 0)
    return 2 * tree_levels_ * latency +
           (members_ - 1) * size * std::max(inside_.s_per_byte, between_.s_per_byte);
  if (route_.way == AllReduceWay::Direct || bytes <= kDirectSumBytes) return latency + exchange(size);
  if (route_.way == AllReduceWay::Scatter) return 2 * (latency + exchange(size / members_));
  const double chunks = route_.chunks;
  const double pieces = all_reduce_pieces(route_.chunks, bytes);
  const auto segments = static_cast<double>(route_.segments.size() - 1);
  const double inside = 2 * (inside_.latency_s + (chunks - 1) / chunks * size * inside_.s_per_byte);
  // Pieces go there and back. Two hosts do both at the same time; a host in the middle would have to send
  // both ways at once.
  const double times = segments == 2 ? (pieces + 1) / pieces : 2 * (pieces + segments - 2) / pieces;
  return inside + 2 * (segments - 1) * between_.latency_s + sharing_ * times * size * between_.s_per_byte;
}

Bytes AllReduceCost::added(Bytes bytes) const {
  return added_bytes(route_.way, static_cast<int>(members_), bytes);
}

double all_reduce_seconds(const ClusterSpec& cluster, const std::vector<RankId>& ranks, Bytes bytes) {
  return AllReduceCost(cluster, ports_of(cluster), ranks).seconds(bytes);
}

std::vector<AllReduceCost> all_reduce_costs(const ClusterSpec& cluster, const std::vector<int>& ports,
                                            const std::vector<std::vector<RankId>>& ranks_of_stage) {
  std::vector<std::vector<int>> hosts(ranks_of_stage.size());
  std::vector<int> users;  // indexed by host: the number of stages whose all-reduce uses its port
  for (std::size_t s = 0; s < ranks_of_stage.size() && !ports.empty(); ++s) {
    std::vector<int>& own = hosts[s];
    for (RankId rank : ranks_of_stage[s]) own.push_back(ports[rank.value]);
    std::ranges::sort(own);
    own.erase(std::unique(own.begin(), own.end()), own.end());
    if (own.size() < 2) own.clear();
    for (int host : own) {
      users.resize(std::max(users.size(), static_cast<std::size_t>(host) + 1));
      ++users[host];
    }
  }
  std::vector<AllReduceCost> costs;
  for (std::size_t s = 0; s < ranks_of_stage.size(); ++s) {
    int sharing = 1;
    for (int host : hosts[s]) sharing = std::max(sharing, users[host]);
    costs.emplace_back(cluster, ports, ranks_of_stage[s], sharing);
  }
  return costs;
}

namespace {

/// Returns what a rank holds at a moment beside weights, gradients and rule state, as whole numbers below
/// 2^53.
double bytes_at(const StageBytes& held, const StageMoment& moment) {
  return held.stash * (moment.stashed - moment.open) + held.half_done * moment.open +
         held.incoming * (moment.activations + 1) + held.outgoing * (moment.gradients + 1) +
         held.workspace_of(moment.op);
}

}  // namespace

StageBytes StageMemory::bytes() const {
  const auto number = [](Bytes bytes) { return static_cast<double>(bytes); };
  const double own = number(parameters), state = own * rule_copies;
  const double again = recompute ? number(saved) : 0;
  const double kept = number(recompute ? incoming : arrived);
  return {.weights = own + number(lowered),
          .state = own + (rule_shards == 1 ? state : std::ceil(state / rule_shards)) + number(loaded),
          .stash = recompute ? kept : number(saved) + kept,
          .half_done = number(between) + kept,
          .incoming = number(incoming),
          .outgoing = number(outgoing),
          .workspace = number(workspace) + again,
          .split_workspace = number(split_workspace) + again,
          .weight_workspace = number(weight_workspace),
          .reduced = number(reduced),
          .exchanged = number(exchanged)};
}

Bytes StageMemory::total() const {
  // Whole numbers below 2^53 add and multiply exactly in double. Larger sums end at the most that is stored.
  constexpr double kExact = 1LL << 52;
  static constexpr StageMoment kOne;
  const StageBytes held = bytes();
  double fullest = std::max(bytes_at(held, kOne) + held.reduced, held.exchanged);
  for (const StageMoment& moment : moments) fullest = std::max(fullest, bytes_at(held, moment));
  const double sum = (held.weights * versions + held.state) * arrays + fullest;
  return sum < kExact ? static_cast<Bytes>(sum) : saturating_bytes(sum);
}

Bytes CostModel::reduced_bytes(const std::vector<RankId>& ranks, Bytes parameters) const {
  const std::vector<int>& hosts = conditions_.host;
  const bool is_one_host = hosts.empty() || std::ranges::all_of(ranks, [&](RankId rank) {
                             return hosts[rank.value] == hosts[ranks.front().value];
                           });
  // A PipeDream graph and a profile made by hand do not say of which device they are.
  const bool is_of_cpu = graph_.device == "cpu" && graph_.measured.blocks > 0;
  if (ranks.size() < 2 || (is_of_cpu && is_one_host)) return 0;
  const auto chunks = static_cast<Bytes>(ranks.size());
  return chunks == 2 ? parameters : std::min(parameters, options_.bucket_bytes) / chunks * (chunks - 1);
}

int StashCounts::whole(std::size_t stage) const {
  int most = 0;
  for (const StageMoment& m : moments[stage]) most = std::max(most, m.stashed - m.open);
  return most;
}

CostModel::CostModel(const LayerGraph& graph, const ClusterSpec& cluster, CostOptions options)
    : graph_(graph), cluster_(cluster), options_(std::move(options)) {
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    node_index_.emplace(graph.nodes[i].name, static_cast<int>(i));
  }
  producers_edges_.resize(graph.edges.size());
  std::iota(producers_edges_.begin(), producers_edges_.end(), 0);
  std::stable_sort(producers_edges_.begin(), producers_edges_.end(),
                   [&](int a, int b) { return graph.edges[a].producer < graph.edges[b].producer; });
  place_.resize(graph.nodes.size());
  std::iota(place_.begin(), place_.end(), 0);
  if (const Result<std::vector<int>> order = graph.topological_order()) {
    for (std::size_t at = 0; at < order->size(); ++at) place_[(*order)[at]] = static_cast<int>(at);
  }
  conditions_.host = ports_of(cluster);
  conditions_.wire = [&cluster](int from, int to) { return wire_between(cluster, RankId(from), RankId(to)); };
  conditions_.peaks = false;
  make_sheets();
}

/// One sheet for the plain device and one for each kind that some rank is of.
void CostModel::make_sheets() {
  const std::size_t nodes = graph_.nodes.size();
  std::vector<int> sheet_of_kind(cluster_.kinds.size() + 1, -1);
  sheet_of_rank_.reserve(cluster_.num_ranks());
  const auto add = [&](const LayerGraph& profile, double speed) {
    Sheet& sheet = sheets_.emplace_back();
    for (auto* times : {&sheet.forward, &sheet.backward_input, &sheet.backward_weight}) times->resize(nodes);
    for (const LayerNode& node : profile.nodes) {
      const auto found = node_index_.find(node.name);
      if (found == node_index_.end()) continue;  // the planner has compared the profiles
      sheet.forward[found->second] = node.forward_s / speed;
      sheet.backward_input[found->second] = node.backward_input_s / speed;
      sheet.backward_weight[found->second] = node.backward_weight_s / speed;
    }
    sheet.loss_s = profile.loss_s / speed;
    sheet.update_s_per_byte = profile.update_s_per_byte / speed;
    sheet.update_copy_s_per_byte = profile.update_copy_s_per_byte / speed;
    sheet.norm_s_per_byte = profile.norm_s_per_byte / speed;
    sheet.sum_s_per_byte = profile.sum_s_per_byte / speed;
  };
  for (int r = 0; r < cluster_.num_ranks(); ++r) {
    const int kind = cluster_.kind_of(RankId(r));
    int& sheet = sheet_of_kind[kind + 1];
    if (sheet < 0) {
      sheet = num_sheets();
      const auto own = kind < 0 ? options_.profiles.end() : options_.profiles.find(cluster_.kinds[kind].name);
      const double speed = kind < 0 ? 1 : cluster_.kinds[kind].speed;
      own == options_.profiles.end() ? add(graph_, speed) : add(own->second, 1);
    }
    sheet_of_rank_.push_back(sheet);
  }
  if (sheets_.empty()) add(graph_, 1);
}

std::vector<CutStage> CostModel::stages_of(const Plan& plan) const {
  std::vector<CutStage> stages;
  for (const PlanStage& stage : plan.stages) {
    CutStage& cut = stages.emplace_back();
    cut.ranks = stage.ranks;
    cut.recompute = stage.recompute;
    for (const std::string& layer : stage.layers) {
      const auto found = node_index_.find(layer);
      MILLRACE_CHECK(found != node_index_.end(),
                     "layer '" << layer << "' is not in the profile: validate first");
      cut.nodes.push_back(found->second);
    }
    sort_by_execution(cut.nodes);
  }
  return stages;
}

void CostModel::sort_by_execution(std::vector<int>& nodes) const {
  const auto earlier = [&](int a, int b) { return place_[a] < place_[b]; };
  if (!std::is_sorted(nodes.begin(), nodes.end(), earlier)) std::sort(nodes.begin(), nodes.end(), earlier);
}

// A tensor that several layers of one stage read is sent to that stage once.
CostModel::Borders CostModel::borders_of(const std::vector<CutStage>& stages) const {
  std::vector<int> stage_of(graph_.nodes.size(), -1);
  for (std::size_t s = 0; s < stages.size(); ++s) {
    for (int node : stages[s].nodes) stage_of[node] = static_cast<int>(s);
  }
  Borders borders;
  borders.incoming.assign(stages.size(), 0);
  borders.arrived.assign(stages.size(), 0);
  borders.outgoing.assign(stages.size(), 0);
  struct Sent {
    StageId from, to;
    const std::string* tensor;
    Bytes bytes, back, kept;
  };
  std::vector<Sent> sent;  // one entry for each tensor and receiving stage
  for (std::size_t e = 0; e < producers_edges_.size();) {
    const int producer = graph_.edges[producers_edges_[e]].producer;
    const std::size_t first = sent.size();
    const StageId from(stage_of[producer]);
    for (; e < producers_edges_.size() && graph_.edges[producers_edges_[e]].producer == producer; ++e) {
      const LayerEdge& edge = graph_.edges[producers_edges_[e]];
      const StageId to(stage_of[edge.consumer]);
      if (to == from) continue;
      const Bytes back = edge.gradient_bytes.value_or(edge.bytes);
      const Bytes kept = edge.kept_bytes.value_or(edge.bytes);
      const auto known =
          std::find_if(sent.begin() + static_cast<std::ptrdiff_t>(first), sent.end(),
                       [&](const Sent& one) { return one.to == to && *one.tensor == edge.tensor; });
      if (known == sent.end()) {
        sent.push_back({from, to, &edge.tensor, edge.bytes, back, kept});
      } else {
        known->bytes = std::max(known->bytes, edge.bytes);
        known->kept = std::max(known->kept, kept);
        known->back = std::max(known->back, back);
      }
    }
  }
  std::stable_sort(sent.begin(), sent.end(), [](const Sent& a, const Sent& b) {
    return std::pair(a.from.value, a.to.value) < std::pair(b.from.value, b.to.value);
  });
  for (const Sent& one : sent) {
    if (borders.crossings.empty() || borders.crossings.back().from != one.from ||
        borders.crossings.back().to != one.to) {
      borders.crossings.push_back({one.from, one.to, 0});
      borders.back.push_back(0);
    }
    borders.crossings.back().bytes += one.bytes;
    borders.back.back() += one.back;
    borders.incoming[one.to.value] += one.bytes;
    borders.arrived[one.to.value] += one.kept;
    borders.outgoing[one.from.value] += one.bytes;
  }
  return borders;
}

PipelineShape CostModel::shape_of(const std::vector<CutStage>& stages, int microbatches) const {
  PipelineShape shape;
  shape.microbatches = microbatches;
  shape.arrays = options_.arrays;
  for (const CutStage& stage : stages) shape.ranks_of_stage.push_back(stage.ranks);
  for (const PlanCrossing& crossing : borders_of(stages).crossings) {
    shape.links.push_back({crossing.from, crossing.to});
  }
  return shape;
}

/// Returns the seconds of a message between the slowest pair of replicas that occurs: microbatch m goes from
/// replica m mod r to replica m mod r'.
double CostModel::message_seconds(const CutStage& from, const CutStage& to, Bytes bytes,
                                  int microbatches) const {
  const std::size_t pairs = std::lcm(from.ranks.size(), to.ranks.size());
  double worst = 0;
  for (std::size_t m = 0; m < pairs && static_cast<int>(m) < std::min(microbatches, kMostPairs); ++m) {
    const RankId a = from.ranks[m % from.ranks.size()];
    const RankId b = to.ranks[m % to.ranks.size()];
    if (a != b) worst = std::max(worst, transfer_seconds(cluster_, a, b, bytes));
  }
  return worst;
}

/// Returns the seconds of the all-reduce after the end of the last backward. StageExecutor fills buckets from
/// the last layer to the first. They leave one after the other while that backward goes on. If backwards are
/// split, they leave during the last pass over weight gradients.
CostModel::Exposed CostModel::exposed_reduce(const CutStage& stage, const Sheet& sheet,
                                             const AllReduceCost& cost, ScheduleKind kind) const {
  if (stage.ranks.size() < 2) return {};
  if (options_.reduce == ReduceModel::Serial) return {.seconds = cost.seconds(parameters_of(stage))};
  const bool split = traits_of(kind).splits_backward;
  double now = 0;
  double wire = 0;
  double first = -1;
  Bytes bucket = 0;
  for (std::size_t k = stage.nodes.size(); k-- > 0;) {
    const int i = stage.nodes[k];
    now += sheet.backward_weight[i] + (split ? 0 : sheet.backward_input[i]);
    bucket += graph_.nodes[i].parameter_bytes;
    if (bucket < options_.bucket_bytes && k > 0) continue;
    if (first < 0) first = now;
    wire = std::max(wire, now) + cost.seconds(bucket);
    bucket = 0;
  }
  return {.seconds = std::max(0.0, wire - now), .lead_s = now - first};
}

Bytes CostModel::parameters_of(const CutStage& stage) const {
  Bytes all = 0;
  for (int i : stage.nodes) all += graph_.nodes[i].parameter_bytes;
  return all;
}

ScheduleCosts CostModel::costs_of(const std::vector<CutStage>& stages, const PipelineShape& shape,
                                  ScheduleKind kind) const {
  ScheduleCosts costs{.reduces_beside = options_.reduce != ReduceModel::Serial};
  const std::vector<AllReduceCost> reduces =
      all_reduce_costs(cluster_, conditions_.host, shape.ranks_of_stage);
  for (const CutStage& stage : stages) {
    const bool last = &stage == &stages.back();
    double slowest = -1;
    double update = 0;
    const int microbatches = std::max(1, is_asynchronous(kind) ? shape.update_every : shape.microbatches);
    double updated = 0;  // bytes
    for (int i : stage.nodes) updated += graph_.nodes[i].updated_bytes(microbatches);
    const AllReduceCost& reduce = reduces[costs.forward.size()];
    // Bytes that a rank's processor adds to its own. It does nothing else meanwhile.
    const auto added = static_cast<double>(reduce.added(static_cast<Bytes>(updated)));
    costs.forward.push_back(0);
    costs.backward_input.push_back(0);
    costs.backward_weight.push_back(0);
    costs.reduce.push_back(0);
    ReducePorts& ports = costs.reduce_ports.emplace_back(reduce.port_seconds(parameters_of(stage)));
    const StatisticsSeconds statistics = statistics_seconds(graph_, stage.nodes, reduce);
    if (statistics.forward > 0) {
      costs.meets.resize(stages.size());
      costs.meets[costs.forward.size() - 1] = 1;
    }
    std::vector<int> seen;  // sheets that were compared; a stage is as slow as its slowest replica
    for (RankId rank : stage.ranks) {
      const int index = sheet_of(rank);
      if (std::find(seen.begin(), seen.end(), index) != seen.end()) continue;
      seen.push_back(index);
      const Sheet& sheet = sheets_[index];
      double forward = statistics.forward + (last ? sheet.loss_s : 0);
      double input = statistics.backward;
      double weight = 0;
      for (int i : stage.nodes) {
        forward += sheet.forward[i];
        input += sheet.backward_input[i];
        weight += sheet.backward_weight[i];
      }
      if (stage.recompute) input += forward - (last ? sheet.loss_s : 0);
      update = std::max(update, sheet.update_s_per_byte * updated + sheet.sum_s_per_byte * added);
      const Exposed exposed = exposed_reduce(stage, sheet, reduce, kind);
      costs.reduce.back() = std::max(costs.reduce.back(), exposed.seconds);
      ports.lead_s = std::max(ports.lead_s, exposed.lead_s);
      if (forward + input + weight <= slowest) continue;
      slowest = forward + input + weight;
      costs.forward.back() = forward;
      costs.backward_input.back() = input;
      costs.backward_weight.back() = weight;
    }
    if (last) costs.reduce.back() += reduce.seconds(kLossSums);
    costs.update.push_back(update);
  }
  const Borders borders = borders_of(stages);
  for (const StageLink& link : shape.all_links()) {
    const auto crossing =
        std::find_if(borders.crossings.begin(), borders.crossings.end(),
                     [&](const PlanCrossing& c) { return c.from == link.from && c.to == link.to; });
    // A turn may send nothing over a border in one direction. A negative time says so.
    const auto seconds = [&](Bytes bytes) {
      if (bytes == 0 && !graph_.turn.empty()) return -1.0;
      return message_seconds(stages[link.from.value], stages[link.to.value], bytes, shape.microbatches);
    };
    const Bytes there = crossing == borders.crossings.end() ? 0 : crossing->bytes;
    const Bytes back =
        crossing == borders.crossings.end() ? 0 : borders.back[crossing - borders.crossings.begin()];
    costs.transfer.push_back(seconds(there));
    costs.transfer_back.push_back(back == there ? costs.transfer.back() : seconds(back));
    costs.transfer_bytes.push_back(static_cast<double>(there));
    costs.transfer_back_bytes.push_back(static_cast<double>(back));
  }
  if (costs.transfer_back == costs.transfer) costs.transfer_back.clear();
  charge_copies(kind, stages, costs);
  if (options_.clips_norm) charge_norms(kind, stages, costs);
  return costs;
}

/// Adds the seconds of a pass over the gradient. With a flush, all ranks then add up a number for each
/// parameter.
void CostModel::charge_norms(ScheduleKind kind, const std::vector<CutStage>& stages,
                             ScheduleCosts& costs) const {
  std::vector<RankId> ranks;
  Bytes exchanged = 0;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    double parameters = 0, slowest = 0;
    for (int i : stages[s].nodes) {
      parameters += static_cast<double>(graph_.nodes[i].parameter_bytes);
      if (graph_.nodes[i].parameter_bytes > 0) exchanged += 16;  // a weight and a bias
    }
    for (RankId rank : stages[s].ranks) {
      slowest = std::max(slowest, sheets_[sheet_of(rank)].norm_s_per_byte);
      if (std::ranges::find(ranks, rank) == ranks.end()) ranks.push_back(rank);
    }
    if (is_asynchronous(kind))
      costs.update[s] += slowest * parameters;
    else
      costs.norm.push_back(slowest * parameters);
  }
  if (is_asynchronous(kind)) return;
  std::ranges::sort(ranks);
  costs.agreement = AllReduceCost(cluster_, conditions_.host, ranks).seconds(exchanged);
}

std::vector<std::unique_ptr<CostModel::Part>> CostModel::parts_of(
    std::vector<LayerGraph> graphs, std::map<std::string, std::vector<LayerGraph>> of_kinds) const {
  std::vector<std::unique_ptr<Part>> parts;
  for (std::size_t i = 0; i < graphs.size(); ++i) {
    Part& part = *parts.emplace_back(std::make_unique<Part>());
    part.graph = std::move(graphs[i]);
    CostOptions options = options_;
    // A kind that was measured with other parts keeps its whole profile.
    for (auto& [name, profile] : options.profiles)
      if (of_kinds[name].size() == graphs.size()) profile = std::move(of_kinds[name][i]);
    part.model = std::make_unique<CostModel>(part.graph, cluster_, std::move(options));
  }
  return parts;
}

std::vector<ScheduleCosts> CostModel::microbatch_costs(const std::vector<CutStage>& stages,
                                                       const PipelineShape& shape, ScheduleKind kind) {
  if (of_microbatches_.empty()) {
    std::map<std::string, std::vector<LayerGraph>> of_kinds;
    for (const auto& [name, profile] : options_.profiles) of_kinds[name] = profile.by_microbatch();
    of_microbatches_ = parts_of(graph_.by_microbatch(), std::move(of_kinds));
  }
  std::vector<ScheduleCosts> costs;
  for (const auto& one : of_microbatches_) costs.push_back(one->model->costs_of(stages, shape, kind));
  return costs;
}

std::vector<ScheduleCosts> CostModel::turn_costs(const std::vector<CutStage>& stages,
                                                 const PipelineShape& shape, ScheduleKind kind) {
  if (is_asynchronous(kind)) return {};  // no model is trained so
  if (of_turns_.empty() && !graph_.turns.empty()) {
    std::map<std::string, std::vector<LayerGraph>> of_kinds;
    for (const auto& [name, profile] : options_.profiles) of_kinds[name] = profile.turns;
    of_turns_ = parts_of(graph_.turns, std::move(of_kinds));
  }
  std::vector<ScheduleCosts> costs;
  for (const auto& one : of_turns_) costs.push_back(one->model->costs_of(stages, shape, kind));
  return costs;
}

/// PipeDream's last stage has nothing else under way when it updates. Under vertical sync and 2BW every stage
/// still needs an older version.
void CostModel::charge_copies(ScheduleKind kind, const std::vector<CutStage>& stages,
                              ScheduleCosts& costs) const {
  if (!is_asynchronous(kind)) return;
  int world = 0, before = 0;
  for (const CutStage& stage : stages) world += static_cast<int>(stage.ranks.size());
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const auto replicas = static_cast<int>(stages[s].ranks.size());
    const int warm_up = (world - 1 - before) / replicas;
    before += replicas;
    if (kind == ScheduleKind::PipeDream ? warm_up == 0 : kind == ScheduleKind::PipeDreamVSync && world == 1)
      continue;
    double parameters = 0, slowest = 0;
    for (int i : stages[s].nodes) parameters += static_cast<double>(graph_.nodes[i].parameter_bytes);
    for (RankId rank : stages[s].ranks)
      slowest = std::max(slowest, sheets_[sheet_of(rank)].update_copy_s_per_byte);
    costs.update[s] += slowest * parameters;
  }
}

/// The schedule that the runtime makes of a plan with these costs (schedule_of).
Result<Schedule> CostModel::schedule_for(ScheduleKind kind, const PipelineShape& shape,
                                         const ScheduleCosts& costs) const {
  if (kind != ScheduleKind::AutoOrder) return make_schedule(kind, shape);
  Plan plan{.schedule = kind, .microbatches = shape.microbatches};
  for (std::size_t s = 0; s < costs.forward.size(); ++s) {
    PlanStage& stage = plan.stages.emplace_back();
    stage.forward_s = costs.forward[s];
    stage.backward_s = costs.backward_input[s] + costs.backward_weight[s];
  }
  return schedule_of(plan, shape, Transport::Buffered);
}

/// Returns the schedule from a cache of the last few. The pointer is valid until the next call.
Result<const Schedule*> CostModel::prepared(ScheduleKind kind, const PipelineShape& shape,
                                            const ScheduleCosts& costs) {
  const auto found = std::find_if(prepared_.begin(), prepared_.end(), [&](const Prepared& p) {
    const bool same_order = kind != ScheduleKind::AutoOrder || same_times(p.costs, costs);
    return p.kind == kind && same_order && same_shape(p.shape, shape);
  });
  if (found != prepared_.end()) return &found->schedule;
  Result<Schedule> schedule = schedule_for(kind, shape, costs);
  if (!schedule) return schedule.problems();
  if (prepared_.size() == kKeptSchedules) prepared_.erase(prepared_.begin());
  // Making a schedule takes about as long as running it.
  for (const auto& actions : schedule->ranks) simulated_actions_ += static_cast<long>(actions.size());
  prepared_.push_back({kind, shape, costs, std::move(*schedule)});
  return &prepared_.back().schedule;
}

Result<Simulation> CostModel::run(ScheduleKind kind, const PipelineShape& shape, const StepCosts& costs) {
  const Result<const Schedule*> schedule = prepared(kind, shape, costs.all);
  if (!schedule) return schedule.problems();
  const auto simulated = [&](const Schedule& list, const PipelineShape& of,
                             const SimulationOptions& options) {
    for (const auto& actions : list.ranks) simulated_actions_ += static_cast<long>(actions.size());
    return simulate(list, of, costs.all, options);
  };
  if (costs.turns.empty()) return simulated(**schedule, shape, conditions_);
  PipelineShape whole = shape;
  SimulationOptions options = conditions_;
  const Schedule step = in_turns(**schedule, whole, options, costs.turns);
  return simulated(step, whole, options);
}

bool CostModel::replicas_can_meet(ScheduleKind kind, int microbatches, const std::vector<CutStage>& stages) {
  const PipelineShape shape = with_updates(kind, shape_of(stages, microbatches));
  const ScheduleCosts costs = costs_of(stages, shape, kind);
  if (costs.meets.empty()) return true;
  const Result<const Schedule*> schedule = prepared(kind, shape, costs);
  return schedule && check_meetings(**schedule, shape, Transport::Buffered, costs).empty();
}

Result<StashCounts> CostModel::stash(ScheduleKind kind, const PipelineShape& shape, Stash wanted) {
  const int stages = shape.num_stages();
  for (int s = 0; s < stages; ++s) {
    if (!is_asynchronous(kind) && shape.replicas(StageId(s)) > shape.microbatches)
      return Problem{"", "more replicas than microbatches", {}};
  }
  const auto of_each = static_cast<std::size_t>(stages);
  // With several stages on a rank, or an order that follows from the costs, one microbatch is a lower bound.
  const bool exists = !is_asynchronous(kind) && shape.arrays == 1;
  if (shape.has_chunks() || kind == ScheduleKind::AutoOrder || (wanted == Stash::Bound && exists))
    return StashCounts{moments_with(std::vector(of_each, 1)), std::vector(of_each, 1)};
  PipelineShape counted = with_updates(kind, shape);
  counted.links.clear();  // the order of computations does not depend on links
  if (shape.arrays == 1 && kind != ScheduleKind::GPipe) counted.microbatches = enough_to_fill(kind, counted);
  if (shape.arrays == 1) counted = one_of_equal_pipelines(std::move(counted));
  std::vector<int> key{static_cast<int>(kind), counted.microbatches, counted.update_every};
  for (int s = 0; s < stages; ++s) key.push_back(counted.replicas(StageId(s)));
  const auto known = stashes_.find(key);
  if (known != stashes_.end()) return known->second;
  StashCounts counts;
  const Result<Schedule> schedule = make_schedule(kind, counted);
  if (!schedule) return schedule.problems();
  counts.moments = fullest_moments(*schedule, counted);
  counts.versions = most_per_stage(counted, peaks_of(*schedule, counted).versions);
  return stashes_.emplace(std::move(key), std::move(counts)).first->second;
}

Result<double> CostModel::step_seconds(ScheduleKind kind, PipelineShape shape, const StepCosts& costs,
                                       Simulation* last) {
  const int microbatches = shape.microbatches;
  const auto simulated = [&](int length) -> Result<double> {
    shape.microbatches = length;
    Result<Simulation> simulation = run(kind, shape, costs);
    if (!simulation) return simulation.problems();
    const double makespan = simulation->makespan;
    if (last != nullptr) *last = std::move(*simulation);
    return makespan;
  };
  if (!is_asynchronous(kind)) return simulated(microbatches);
  const auto [shorter, longer] = asynchronous_run(shape);
  const Result<double> first = simulated(shorter);
  if (!first) return first;
  const Result<double> second = simulated(longer);
  if (!second) return second;
  return (*second - *first) / (longer - shorter) * microbatches;
}

double CostModel::length_share(ScheduleKind kind, const std::vector<CutStage>& stages, PipelineShape shape,
                               const ScheduleCosts& costs) {
  constexpr int kMostSteps = 64;
  if (!graph_.turns.empty()) return 1;
  SimulationOptions options = conditions_;
  options.microbatch_costs = microbatch_costs(stages, shape, kind);
  const auto measured = static_cast<int>(options.microbatch_costs.size());
  if (measured < 2) return 1;
  // After so many steps every measured microbatch has come equally often.
  const int per_step = shape.microbatches;
  int steps = std::min(kMostSteps, std::lcm(measured, per_step) / per_step);
  if (is_asynchronous(kind)) {
    shape.microbatches = std::lcm(asynchronous_run(shape).second, measured);
    steps = 1;
  }
  const Result<const Schedule*> schedule = prepared(kind, shape, costs);
  if (!schedule) return 1;
  const double alike = simulate(**schedule, shape, costs, conditions_).makespan;
  double sum = 0;
  for (int step = 0; step < steps; ++step) {
    sum += simulate(**schedule, shape, costs, options).makespan;
    auto& costs_of = options.microbatch_costs;
    std::rotate(costs_of.begin(), costs_of.begin() + per_step % measured, costs_of.end());
  }
  return alike > 0 ? sum / steps / alike : 1;
}

/// Returns the most bytes that a backward needs on top of the whole stash. The backward goes from the last
/// layer to the first and frees the saved tensors of each, so the layer with the largest workspace does not
/// always decide. The first half of a split backward keeps some of them.
Bytes CostModel::workspace_of(std::vector<int> nodes, Halves halves) const {
  sort_by_execution(nodes);
  Bytes most = 0, freed = 0;
  for (auto i = nodes.rbegin(); i != nodes.rend(); ++i) {
    const LayerNode& node = graph_.nodes[*i];
    most = std::max(most, own_workspace(node, halves) - freed);
    freed += freed_by(node, halves);
  }
  return most;
}

std::vector<StageMemory> CostModel::memory_of(const std::vector<CutStage>& stages, int microbatches) const {
  const Borders borders = borders_of(stages);
  std::vector<StageMemory> result;
  std::map<int, std::size_t> stage_of;
  // Stages of a rank share its batches. Ranks that share one stage share all.
  std::map<RankId, std::map<std::string, Bytes>> fields_of_rank;
  for (std::size_t s = 0; s < stages.size(); ++s)
    for (int i : stages[s].nodes) stage_of[i] = s;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    StageMemory& memory =
        result.emplace_back(StageMemory{.incoming = borders.incoming[s],
                                        .arrived = borders.arrived[s],
                                        .outgoing = borders.outgoing[s],
                                        .workspace = workspace_of(stages[s].nodes, Halves::Together),
                                        .split_workspace = workspace_of(stages[s].nodes, Halves::Apart),
                                        .weight_workspace = workspace_of(stages[s].nodes, Halves::Together),
                                        .rule_copies = options_.rule_copies,
                                        .rule_shards = options_.shards_of(stages[s].ranks),
                                        .recompute = stages[s].recompute,
                                        .arrays = options_.arrays});
    for (int i : stages[s].nodes) {
      memory.parameters += graph_.nodes[i].parameter_bytes;
      memory.lowered += graph_.nodes[i].lowered_bytes;
      memory.saved += graph_.nodes[i].saved_bytes;
      memory.between += graph_.nodes[i].kept_between();
    }
    const auto replicas = static_cast<int>(stages[s].ranks.size());
    const Bytes kept = std::max(0, (microbatches + replicas - 1) / replicas - 1);
    std::map<std::string, Bytes>& fields = fields_of_rank[stages[s].ranks.front()];
    const std::map<std::string, Bytes> before =
        graph_.turns.empty() ? std::map<std::string, Bytes>() : fields;
    memory.loaded = options_.loaded_ahead * graph_.bytes_of_fields(stages[s].nodes, fields);
    if (!graph_.turns.empty() && options_.loaded_ahead > 0) {
      for (const auto& [name, bytes] : fields)
        if (!before.contains(name) && graph_.is_read_in_turns(name)) memory.loaded += kept * bytes;
    }
    memory.reduced = reduced_bytes(stages[s].ranks, memory.parameters);
  }
  for (const auto& [user, s] : stage_of) {
    const LayerNode& node = graph_.nodes[user];
    const auto owner = node_index_.find(node.tied_to);
    const auto of_owner = owner == node_index_.end() ? stage_of.end() : stage_of.find(owner->second);
    if (of_owner == stage_of.end() || of_owner->second == s) continue;
    result[s].lowered += node.tied_bytes;
    for (const std::size_t end : {s, of_owner->second}) result[end].exchanged += node.tied_bytes;
  }
  return result;
}

/// Returns the peak bytes of each stage's fullest rank. A rank with several stages holds them all: its peak
/// is found by following its list action by action.
std::vector<Bytes> CostModel::peaks_under(const Schedule* schedule, const PipelineShape& shape,
                                          const std::vector<CutStage>& stages, const StashCounts& counts) {
  std::vector<StageMemory> memories = memory_of(stages, shape.microbatches / options_.arrays);
  std::vector<StageBytes> of_stage;
  std::vector<Bytes> peaks;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    StageMemory& memory = memories[s];
    memory.versions = counts.versions[s];
    memory.moments = counts.moments[s];
    peaks.push_back(memory.total());
    of_stage.push_back(memory.bytes());
  }
  if (!shape.has_chunks()) return peaks;
  const std::vector<double> by_rank = peak_bytes_of(*schedule, shape, of_stage);
  for (std::size_t s = 0; s < stages.size(); ++s) {
    double peak = 0;
    for (RankId rank : stages[s].ranks) peak = std::max(peak, by_rank[rank.value]);
    peaks[s] = saturating_bytes(peak);
  }
  return peaks;
}

Result<std::vector<Bytes>> CostModel::peaks(ScheduleKind kind, int microbatches,
                                            const std::vector<CutStage>& stages) {
  PipelineShape shape = with_updates(kind, shape_of(stages, microbatches));
  if (!shape.has_chunks() && kind != ScheduleKind::AutoOrder) {
    const Result<StashCounts> counts = stash(kind, shape);
    if (!counts) return counts.problems();
    return peaks_under(nullptr, shape, stages, *counts);
  }
  const ScheduleCosts costs = costs_of(stages, shape, kind);
  const Result<const Schedule*> schedule = prepared(kind, shape, costs);
  if (!schedule) return schedule.problems();
  return peaks_under(*schedule, shape, stages,
                     {.moments = fullest_moments(**schedule, shape),
                      .versions = most_per_stage(shape, peaks_of(**schedule, shape).versions)});
}

Result<StepEstimate> CostModel::estimate(ScheduleKind kind, int microbatches,
                                         const std::vector<CutStage>& stages) {
  const PipelineShape shape = with_updates(kind, shape_of(stages, microbatches));
  const StepCosts step_costs = this->step_costs(stages, shape, kind);
  const ScheduleCosts& costs = step_costs.all;
  StepEstimate estimate;
  Simulation simulation;
  const Result<double> step = step_seconds(kind, shape, step_costs, &simulation);
  if (!step) return step.problems();
  estimate.step_s = *step;
  Borders borders = borders_of(stages);
  for (const StageMemory& memory : memory_of(stages, microbatches))
    estimate.parameter_bytes.push_back(memory.parameters);
  Result<std::vector<Bytes>> peaks = this->peaks(kind, microbatches, stages);
  if (!peaks) return peaks.problems();
  estimate.peak_bytes = *std::move(peaks);
  for (std::size_t s = 0; s < stages.size(); ++s) {
    double bubble = 1;
    for (RankId rank : stages[s].ranks) bubble = std::min(bubble, simulation.bubble_fraction[rank.value]);
    estimate.bubble.push_back(bubble);
    estimate.forward_s.push_back(costs.forward[s]);
    estimate.backward_s.push_back(costs.backward_input[s] + costs.backward_weight[s]);
  }
  estimate.reduce_s = costs.reduce;
  if (!step_costs.turns.empty()) std::ranges::fill(estimate.reduce_s, 0);
  for (const ScheduleCosts& turn : step_costs.turns)
    std::ranges::transform(turn.reduce, estimate.reduce_s, estimate.reduce_s.begin(), std::plus());
  estimate.update_s = costs.update;
  for (std::size_t s = 0; s < costs.norm.size(); ++s) estimate.update_s[s] += costs.norm[s];
  estimate.crossings = std::move(borders.crossings);
  for (const PlanCrossing& crossing : estimate.crossings) {
    estimate.transfer_s.push_back(message_seconds(stages[crossing.from.value], stages[crossing.to.value],
                                                  crossing.bytes, microbatches));
  }
  return estimate;
}

double CostModel::busiest_rank_s(ScheduleKind kind, int microbatches,
                                 const std::vector<CutStage>& stages) const {
  const ScheduleCosts costs = costs_of(stages, shape_of(stages, microbatches), kind);
  double busiest = 0;
  for (const auto& [rank, seconds] : busy_seconds(kind, microbatches, stages, costs))
    busiest = std::max(busiest, seconds);
  return busiest;
}

// Simulates the step again without transfers, then also without all-reduces, then also without updates. The
// differences are the parts.
Result<StepBreakdown> CostModel::breakdown(ScheduleKind kind, int microbatches,
                                           const std::vector<CutStage>& stages) {
  const PipelineShape shape = with_updates(kind, shape_of(stages, microbatches));
  StepCosts costs = step_costs(stages, shape, kind);
  const ScheduleCosts all_costs = costs.all;
  StepBreakdown parts;
  double before = 0;
  using Term = std::vector<double> ScheduleCosts::*;
  const auto leave_out = [](ScheduleCosts& from, Term term) {
    const auto clear = [](std::vector<double>& all) {
      for (double& seconds : all)
        seconds = std::min(seconds, 0.0);  // a negative value means: nothing is sent
    };
    clear(from.*term);
    if (term == &ScheduleCosts::transfer) {
      clear(from.transfer_back);
      from.transfer_bytes.clear();
      from.transfer_back_bytes.clear();
    }
    if (term == &ScheduleCosts::reduce) from.reduce_ports.clear();
    if (term == &ScheduleCosts::update) from.norm.clear();  // the norm is a part of the update
  };
  const auto without = [&](Term term, double& part) -> Problems {
    if (term != nullptr) {
      leave_out(costs.all, term);
      for (ScheduleCosts& turn : costs.turns) leave_out(turn, term);
    }
    const Result<double> step = step_seconds(kind, shape, costs, nullptr);
    if (!step) return step.problems();
    part = term == nullptr ? *step : before - *step;
    before = *step;
    return {};
  };
  for (const auto& [term, part] :
       std::vector<std::pair<Term, double*>>{{nullptr, &parts.step_s},
                                             {&ScheduleCosts::transfer, &parts.transfer_s},
                                             {&ScheduleCosts::reduce, &parts.reduce_s},
                                             {&ScheduleCosts::update, &parts.update_s}}) {
    if (Problems problems = without(term, *part); !problems.empty()) return problems;
  }
  parts.lengths_s = parts.step_s * (length_share(kind, stages, shape, all_costs) - 1);
  parts.step_s += parts.lengths_s;
  const std::map<int, double> busy = busy_seconds(kind, microbatches, stages, costs.all);
  double busiest = 0;
  double rate = 0;
  for (const auto& [rank, seconds] : busy) {
    busiest = std::max(busiest, seconds);
    const Sheet& sheet = sheets_[sheet_of(RankId(rank))];
    double all = sheet.loss_s;
    for (std::size_t i = 0; i < sheet.forward.size(); ++i) {
      all += sheet.forward[i] + sheet.backward_input[i] + sheet.backward_weight[i];
    }
    rate += all > 0 ? 1 / all : 0;
  }
  parts.compute_s = rate > 0 ? microbatches / rate : 0;
  parts.imbalance_s = busiest - parts.compute_s;
  parts.bubble_s = before - busiest;
  return parts;
}

Plan CostModel::predict(const Plan& plan) {
  const std::vector<CutStage> stages = stages_of(plan);
  const int microbatches = plan.microbatches * options_.arrays;
  const Result<StepEstimate> estimate = this->estimate(plan.schedule, microbatches, stages);
  MILLRACE_CHECK(estimate.has_value(), to_string(estimate.problems()));
  const PipelineShape shape = with_updates(plan.schedule, shape_of(stages, microbatches));
  Plan result = plan;
  for (std::size_t s = 0; s < result.stages.size(); ++s) {
    result.stages[s].forward_s = estimate->forward_s[s];
    result.stages[s].backward_s = estimate->backward_s[s];
    result.stages[s].parameter_bytes = estimate->parameter_bytes[s];
    result.stages[s].peak_bytes = estimate->peak_bytes[s];
  }
  result.crossings = estimate->crossings;
  result.predicted_step_s =
      estimate->step_s * length_share(plan.schedule, stages, shape, costs_of(stages, shape, plan.schedule));
  if (graph_fingerprint_.empty()) graph_fingerprint_ = graph_.fingerprint();
  if (cluster_fingerprint_.empty()) cluster_fingerprint_ = cluster_.fingerprint();
  result.graph_fingerprint = graph_fingerprint_;
  result.cluster_fingerprint = cluster_fingerprint_;
  result.planned_for = {.precision = graph_.precision,
                        .microbatch = graph_.microbatch,
                        .lengths = graph_.length_ranges(),
                        .origin = graph_.measured.origin};
  if (cluster_.hosts.size() > 1) {
    for (const ClusterHost& host : cluster_.hosts)
      result.planned_for.hosts.push_back(host.name + ":" + std::to_string(host.devices));
  }
  return result;
}

Problems check_kind_profiles(const LayerGraph& graph, const ClusterSpec& cluster,
                             const std::map<std::string, LayerGraph>& profiles) {
  Problems problems;
  for (const auto& [kind, profile] : profiles) {
    std::vector<std::string> have, want;
    for (const LayerNode& node : profile.nodes) have.push_back(node.name);
    for (const LayerNode& node : graph.nodes) want.push_back(node.name);
    std::sort(have.begin(), have.end());
    std::sort(want.begin(), want.end());
    if (have != want || profile.microbatch != graph.microbatch) {
      problems.push_back({"kind " + kind, "its profile is of another model or microbatch",
                          "profile " + graph.model + " with microbatch " + std::to_string(graph.microbatch) +
                              " on a device of this kind"});
    }
  }
  for (const DeviceKind& kind : cluster.kinds) {
    if (!kind.profile.empty() && !profiles.contains(kind.name)) {
      problems.push_back({"kind " + kind.name, "its profile " + kind.profile + " was not read", ""});
    }
  }
  return problems;
}

Plan predict(const Plan& plan, const LayerGraph& graph, const ClusterSpec& cluster,
             const CostOptions& options) {
  return CostModel(graph, cluster, options).predict(plan);
}

}  // namespace millrace
