#include "optimizer/cost_model.h"

#include <algorithm>
#include <numeric>

#include "optimizer/planner.h"
#include "runtime/schedule/simulate.h"

namespace millrace {
namespace {

constexpr std::size_t kKeptSchedules = 4;  // two lengths of the asynchronous run, for two shapes
// Pairs of replicas that are looked at for the slowest message of a link; the pattern repeats much earlier.
constexpr int kMostPairs = 4096;
// The last stage's replicas also add their losses: five doubles (StageExecutor::reduce).
constexpr Bytes kLossSums = 40;

// Run lengths whose difference is the steady state: whole rounds of every stage's replicas and whole updates,
// past the fill.
std::pair<int, int> asynchronous_run(const PipelineShape& shape) {
  int round = std::max(1, shape.update_every);
  for (const auto& ranks : shape.ranks_of_stage) round = std::lcm(round, static_cast<int>(ranks.size()));
  const int fill = (4 * shape.num_ranks() + round - 1) / round * round;
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

/// Microbatches of the replica that has most.
double rounds_of(ScheduleKind kind, int microbatches, std::size_t replicas) {
  const auto r = static_cast<int>(replicas);
  if (is_asynchronous(kind)) return static_cast<double>(microbatches) / r;
  return (microbatches + r - 1) / r;
}

/// The shape with the updates that a plan of this kind has: PipeDream-2BW's follow each step.
PipelineShape with_updates(ScheduleKind kind, PipelineShape shape) {
  if (kind == ScheduleKind::PipeDream2BW) shape.update_every = shape.microbatches;
  return shape;
}

/// By stage: backwards at most under way on a rank, from the input gradient to the weight gradient.
std::vector<int> most_open_backwards(const Schedule& schedule, int stages) {
  std::vector<int> most(static_cast<std::size_t>(stages), 1);
  for (const auto& actions : schedule.ranks) {
    std::vector<int> open(most.size(), 0);
    for (const Action& a : actions) {
      const auto s = static_cast<std::size_t>(a.stage.value);
      if (a.op == Op::BackwardInput) most[s] = std::max(most[s], ++open[s]);
      if (a.op == Op::BackwardWeight) --open[s];
    }
  }
  return most;
}

}  // namespace

double transfer_seconds(const ClusterSpec& cluster, RankId a, RankId b, Bytes bytes) {
  const ClusterLink link = cluster.link(a, b);
  const auto size = static_cast<double>(bytes);
  return link.latency_s + size / link.bandwidth + size * cluster.copy_seconds_per_byte(a, b);
}

RingCost::RingCost(const ClusterSpec& cluster, const std::vector<RankId>& ranks)
    : ranks_(static_cast<double>(ranks.size())) {
  for (std::size_t i = 0; ranks.size() > 1 && i < ranks.size(); ++i) {
    const RankId a = ranks[i];
    const RankId b = ranks[(i + 1) % ranks.size()];
    ClusterLink link = cluster.link(a, b);
    if (const double copy = cluster.copy_seconds_per_byte(a, b); copy > 0) {
      link.bandwidth = 1 / (1 / link.bandwidth + copy);
    }
    if (std::find(links_.begin(), links_.end(), link) == links_.end()) links_.push_back(link);
  }
}

double RingCost::seconds(Bytes bytes) const {
  if (bytes == 0) return 0;
  double worst = 0;
  for (const ClusterLink& link : links_) {
    const double moved = 2 * (ranks_ - 1) / ranks_ * static_cast<double>(bytes);
    worst = std::max(worst, 2 * (ranks_ - 1) * link.latency_s + moved / link.bandwidth);
  }
  return worst;
}

double all_reduce_seconds(const ClusterSpec& cluster, const std::vector<RankId>& ranks, Bytes bytes) {
  return RingCost(cluster, ranks).seconds(bytes);
}

Bytes StageMemory::total() const {
  return saturating_sum(saturating_sum(saturating_product(parameters, versions), once()),
                        saturating_product(stash(), stashed));
}

Bytes StageMemory::once() const {
  const Bytes gradients_and_state = saturating_product(parameters, 1 + rule_copies);
  const Bytes recomputed = recompute ? saturating_product(saved, open_backwards) : 0;
  const Bytes messages = saturating_product(saturating_sum(incoming, outgoing), 2);
  return saturating_sum(saturating_sum(gradients_and_state, recomputed), saturating_sum(messages, workspace));
}

Bytes StageMemory::stash() const {
  return recompute ? incoming : saturating_sum(saved, incoming);
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
  make_sheets();
}

/// One sheet for the plain device and one for each kind that some rank is of.
void CostModel::make_sheets() {
  const std::size_t nodes = graph_.nodes.size();
  std::vector<int> sheet_of_kind(cluster_.kinds.size() + 1, -1);
  sheet_of_rank_.reserve(static_cast<std::size_t>(cluster_.num_ranks()));
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
  };
  for (int r = 0; r < cluster_.num_ranks(); ++r) {
    const int kind = cluster_.kind_of(RankId(r));
    int& sheet = sheet_of_kind[static_cast<std::size_t>(kind + 1)];
    if (sheet < 0) {
      sheet = num_sheets();
      const auto own = kind < 0 ? options_.profiles.end()
                                : options_.profiles.find(cluster_.kinds[static_cast<std::size_t>(kind)].name);
      const double speed = kind < 0 ? 1 : cluster_.kinds[static_cast<std::size_t>(kind)].speed;
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
  borders.outgoing.assign(stages.size(), 0);
  std::vector<PlanCrossing> sent;  // by producer and stage
  for (std::size_t e = 0; e < producers_edges_.size();) {
    const int producer = graph_.edges[producers_edges_[e]].producer;
    const std::size_t first = sent.size();
    const StageId from(stage_of[producer]);
    for (; e < producers_edges_.size() && graph_.edges[producers_edges_[e]].producer == producer; ++e) {
      const LayerEdge& edge = graph_.edges[producers_edges_[e]];
      const StageId to(stage_of[edge.consumer]);
      if (to == from) continue;
      const auto known = std::find_if(sent.begin() + static_cast<std::ptrdiff_t>(first), sent.end(),
                                      [&](const PlanCrossing& c) { return c.to == to; });
      if (known == sent.end()) {
        sent.push_back({from, to, edge.bytes});
      } else {
        known->bytes = std::max(known->bytes, edge.bytes);
      }
    }
  }
  std::stable_sort(sent.begin(), sent.end(), [](const PlanCrossing& a, const PlanCrossing& b) {
    return std::pair(a.from.value, a.to.value) < std::pair(b.from.value, b.to.value);
  });
  for (const PlanCrossing& one : sent) {
    if (borders.crossings.empty() || borders.crossings.back().from != one.from ||
        borders.crossings.back().to != one.to) {
      borders.crossings.push_back({one.from, one.to, 0});
    }
    borders.crossings.back().bytes += one.bytes;
    borders.incoming[static_cast<std::size_t>(one.to.value)] += one.bytes;
    borders.outgoing[static_cast<std::size_t>(one.from.value)] += one.bytes;
  }
  return borders;
}

PipelineShape CostModel::shape_of(const std::vector<CutStage>& stages, int microbatches) const {
  PipelineShape shape;
  shape.microbatches = microbatches;
  for (const CutStage& stage : stages) shape.ranks_of_stage.push_back(stage.ranks);
  for (const PlanCrossing& crossing : borders_of(stages).crossings) {
    shape.links.push_back({crossing.from, crossing.to});
  }
  return shape;
}

/// Microbatch m goes from replica m mod r to replica m mod r': the slowest of the pairs that occur.
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

/// The buckets of StageExecutor, filled from the last layer to the first, leave one after the other while the
/// last backward goes on; what is not done when it ends is exposed.
double CostModel::exposed_reduce(const CutStage& stage, const Sheet& sheet, const RingCost& ring) const {
  if (stage.ranks.size() < 2) return 0;
  Bytes all = 0;
  for (int i : stage.nodes) all += graph_.nodes[i].parameter_bytes;
  if (options_.reduce == ReduceModel::Serial) return ring.seconds(all);
  double now = 0;
  double wire = 0;
  Bytes bucket = 0;
  for (std::size_t k = stage.nodes.size(); k-- > 0;) {
    const int i = stage.nodes[k];
    now += sheet.backward_input[i] + sheet.backward_weight[i];
    bucket += graph_.nodes[i].parameter_bytes;
    if (bucket < options_.bucket_bytes && k > 0) continue;
    wire = std::max(wire, now) + ring.seconds(bucket);
    bucket = 0;
  }
  return std::max(0.0, wire - now);
}

ScheduleCosts CostModel::costs_of(const std::vector<CutStage>& stages, const PipelineShape& shape) const {
  ScheduleCosts costs;
  for (const CutStage& stage : stages) {
    const bool last = &stage == &stages.back();
    double slowest = -1;
    double update = 0;
    Bytes parameters = 0;
    for (int i : stage.nodes) parameters += graph_.nodes[i].parameter_bytes;
    const RingCost ring(cluster_, stage.ranks);
    costs.forward.push_back(0);
    costs.backward_input.push_back(0);
    costs.backward_weight.push_back(0);
    costs.reduce.push_back(0);
    std::vector<int> seen;  // sheets; a stage is as slow as its slowest replica
    for (RankId rank : stage.ranks) {
      const int index = sheet_of(rank);
      if (std::find(seen.begin(), seen.end(), index) != seen.end()) continue;
      seen.push_back(index);
      const Sheet& sheet = sheets_[static_cast<std::size_t>(index)];
      double forward = last ? sheet.loss_s : 0;
      double input = 0;
      double weight = 0;
      for (int i : stage.nodes) {
        forward += sheet.forward[i];
        input += sheet.backward_input[i];
        weight += sheet.backward_weight[i];
      }
      if (stage.recompute) input += forward - (last ? sheet.loss_s : 0);
      update = std::max(update, sheet.update_s_per_byte * static_cast<double>(parameters));
      costs.reduce.back() = std::max(costs.reduce.back(), exposed_reduce(stage, sheet, ring));
      if (forward + input + weight <= slowest) continue;
      slowest = forward + input + weight;
      costs.forward.back() = forward;
      costs.backward_input.back() = input;
      costs.backward_weight.back() = weight;
    }
    if (last) costs.reduce.back() += ring.seconds(kLossSums);
    costs.update.push_back(update);
  }
  const Borders borders = borders_of(stages);
  for (const StageLink& link : shape.all_links()) {
    const auto crossing =
        std::find_if(borders.crossings.begin(), borders.crossings.end(),
                     [&](const PlanCrossing& c) { return c.from == link.from && c.to == link.to; });
    const Bytes bytes = crossing == borders.crossings.end() ? 0 : crossing->bytes;
    costs.transfer.push_back(
        message_seconds(stages[link.from.value], stages[link.to.value], bytes, shape.microbatches));
  }
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
      slowest = std::max(slowest, sheets_[static_cast<std::size_t>(sheet_of(rank))].update_copy_s_per_byte);
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

/// Valid until the next call.
Result<const Schedule*> CostModel::prepared(ScheduleKind kind, const PipelineShape& shape,
                                            const ScheduleCosts& costs) {
  const auto found = std::find_if(prepared_.begin(), prepared_.end(), [&](const Prepared& p) {
    return p.kind == kind && kind != ScheduleKind::AutoOrder && same_shape(p.shape, shape);
  });
  if (found != prepared_.end()) return &found->schedule;
  Result<Schedule> schedule = schedule_for(kind, shape, costs);
  if (!schedule) return schedule.problems();
  if (prepared_.size() == kKeptSchedules) prepared_.erase(prepared_.begin());
  // Making a schedule takes about as long as running it.
  for (const auto& actions : schedule->ranks) simulated_actions_ += static_cast<long>(actions.size());
  prepared_.push_back({kind, shape, std::move(*schedule)});
  return &prepared_.back().schedule;
}

Result<Simulation> CostModel::run(ScheduleKind kind, const PipelineShape& shape, const ScheduleCosts& costs) {
  const Result<const Schedule*> schedule = prepared(kind, shape, costs);
  if (!schedule) return schedule.problems();
  for (const auto& actions : (*schedule)->ranks) simulated_actions_ += static_cast<long>(actions.size());
  return simulate(**schedule, shape, costs);
}

/// Warm-up depths as make_schedule has them (pipedream.md 5.2): they fix what a rank holds at least.
Result<StashCounts> CostModel::stash(ScheduleKind kind, const PipelineShape& shape) {
  StashCounts counts;
  const int world = shape.num_ranks();
  const bool chunks = shape.has_chunks();
  int before = 0;
  for (int s = 0; s < shape.num_stages(); ++s) {
    const int r = shape.replicas(StageId(s));
    if (!is_asynchronous(kind) && r > shape.microbatches) {
      return Problem{"", "more replicas than microbatches", {}};
    }
    const int own = (shape.microbatches + r - 1) / r;
    const int depth = chunks || kind == ScheduleKind::AutoOrder ? 1 : (world - 1 - before) / r + 1;
    counts.microbatches.push_back(kind == ScheduleKind::GPipe ? own
                                  : is_asynchronous(kind)     ? depth
                                                              : std::min(own, depth));
    counts.versions.push_back(kind == ScheduleKind::PipeDream ? depth : 1);
    before += r;
  }
  return counts;
}

Result<double> CostModel::step_seconds(ScheduleKind kind, PipelineShape shape, const ScheduleCosts& costs,
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

/// Backward goes from the last layer to the first and frees what each has saved; so the most that it needs on
/// top of the whole stash is not always the most that a layer needs.
Bytes CostModel::workspace_of(std::vector<int> nodes) const {
  sort_by_execution(nodes);
  Bytes most = 0, freed = 0;
  for (auto i = nodes.rbegin(); i != nodes.rend(); ++i) {
    most = std::max(most, graph_.nodes[*i].workspace_bytes - freed);
    freed += graph_.nodes[*i].saved_bytes;
  }
  return most;
}

std::vector<StageMemory> CostModel::memory_of(const std::vector<CutStage>& stages) const {
  const Borders borders = borders_of(stages);
  std::vector<StageMemory> result;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    StageMemory& memory = result.emplace_back(StageMemory{.incoming = borders.incoming[s],
                                                          .outgoing = borders.outgoing[s],
                                                          .workspace = workspace_of(stages[s].nodes),
                                                          .rule_copies = options_.rule_copies,
                                                          .recompute = stages[s].recompute});
    for (int i : stages[s].nodes) {
      memory.parameters += graph_.nodes[i].parameter_bytes;
      memory.saved += graph_.nodes[i].saved_bytes;
    }
  }
  return result;
}

/// A rank with several stages holds them all: its peak follows its list action by action.
void CostModel::fill_memory(ScheduleKind kind, const PipelineShape& shape, const ScheduleCosts& costs,
                            const std::vector<CutStage>& stages, const Simulation& simulation,
                            StepEstimate& estimate) {
  const std::vector<int> stashed = most_per_stage(shape, simulation.peak_stash);
  const std::vector<int> versions = most_per_stage(shape, simulation.peak_versions);
  const bool recomputes =
      std::any_of(stages.begin(), stages.end(), [](const CutStage& stage) { return stage.recompute; });
  const bool chunks = shape.has_chunks();
  const Schedule* schedule = nullptr;  // for as many microbatches as were simulated last: enough
  if (chunks || recomputes) {
    PipelineShape simulated = shape;
    if (is_asynchronous(kind)) simulated.microbatches = asynchronous_run(shape).second;
    const Result<const Schedule*> found = prepared(kind, simulated, costs);
    MILLRACE_CHECK(found.has_value(), to_string(found.problems()));
    schedule = *found;
  }
  const std::vector<int> open =
      recomputes ? most_open_backwards(*schedule, shape.num_stages()) : std::vector<int>(stages.size(), 1);
  SimulationOptions bytes;
  std::vector<StageMemory> memories = memory_of(stages);
  for (std::size_t s = 0; s < stages.size(); ++s) {
    StageMemory& memory = memories[s];
    memory.versions = versions[s];
    memory.stashed = stashed[s];
    memory.open_backwards = open[s];
    estimate.parameter_bytes.push_back(memory.parameters);
    estimate.peak_bytes.push_back(memory.total());
    bytes.weight_bytes.push_back(static_cast<double>(memory.parameters));
    bytes.state_bytes.push_back(static_cast<double>(memory.once()));
    bytes.stash_bytes.push_back(static_cast<double>(memory.stash()));
  }
  if (!chunks) return;
  const std::vector<double> peaks = peak_bytes_of(*schedule, shape, bytes);
  for (std::size_t s = 0; s < stages.size(); ++s) {
    double peak = 0;
    for (RankId rank : stages[s].ranks) peak = std::max(peak, peaks[static_cast<std::size_t>(rank.value)]);
    estimate.peak_bytes[s] = saturating_bytes(peak);
  }
}

Result<StepEstimate> CostModel::estimate(ScheduleKind kind, int microbatches,
                                         const std::vector<CutStage>& stages) {
  const PipelineShape shape = with_updates(kind, shape_of(stages, microbatches));
  ScheduleCosts costs = costs_of(stages, shape);
  charge_copies(kind, stages, costs);
  StepEstimate estimate;
  Simulation simulation;
  const Result<double> step = step_seconds(kind, shape, costs, &simulation);
  if (!step) return step.problems();
  estimate.step_s = *step;
  Borders borders = borders_of(stages);
  for (std::size_t s = 0; s < stages.size(); ++s) {
    double bubble = 1;
    for (RankId rank : stages[s].ranks) bubble = std::min(bubble, simulation.bubble_fraction[rank.value]);
    estimate.bubble.push_back(bubble);
    estimate.forward_s.push_back(costs.forward[s]);
    estimate.backward_s.push_back(costs.backward_input[s] + costs.backward_weight[s]);
  }
  fill_memory(kind, shape, costs, stages, simulation, estimate);
  estimate.reduce_s = costs.reduce;
  estimate.update_s = costs.update;
  estimate.crossings = std::move(borders.crossings);
  for (const PlanCrossing& crossing : estimate.crossings) {
    estimate.transfer_s.push_back(message_seconds(stages[crossing.from.value], stages[crossing.to.value],
                                                  crossing.bytes, microbatches));
  }
  return estimate;
}

// The step again without transfers, then without all-reduces, then without updates: what each adds.
Result<StepBreakdown> CostModel::breakdown(ScheduleKind kind, int microbatches,
                                           const std::vector<CutStage>& stages) {
  const PipelineShape shape = with_updates(kind, shape_of(stages, microbatches));
  ScheduleCosts costs = costs_of(stages, shape);
  charge_copies(kind, stages, costs);
  StepBreakdown parts;
  double before = 0;
  const auto without = [&](std::vector<double>* term, double& part) -> Problems {
    if (term != nullptr) std::fill(term->begin(), term->end(), 0);
    const Result<double> step = step_seconds(kind, shape, costs, nullptr);
    if (!step) return step.problems();
    part = term == nullptr ? *step : before - *step;
    before = *step;
    return {};
  };
  for (auto& [term, part] :
       std::vector<std::pair<std::vector<double>*, double*>>{{nullptr, &parts.step_s},
                                                             {&costs.transfer, &parts.transfer_s},
                                                             {&costs.reduce, &parts.reduce_s},
                                                             {&costs.update, &parts.update_s}}) {
    if (Problems problems = without(term, *part); !problems.empty()) return problems;
  }
  std::map<int, double> busy;  // by rank
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const double seconds = rounds_of(kind, microbatches, stages[s].ranks.size()) *
                           (costs.forward[s] + costs.backward_input[s] + costs.backward_weight[s]);
    for (RankId rank : stages[s].ranks) busy[rank.value] += seconds;
  }
  double busiest = 0;
  double rate = 0;
  for (const auto& [rank, seconds] : busy) {
    busiest = std::max(busiest, seconds);
    const Sheet& sheet = sheets_[static_cast<std::size_t>(sheet_of(RankId(rank)))];
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
  const Result<StepEstimate> estimate = this->estimate(plan.schedule, plan.microbatches, stages_of(plan));
  MILLRACE_CHECK(estimate.has_value(), to_string(estimate.problems()));
  Plan result = plan;
  for (std::size_t s = 0; s < result.stages.size(); ++s) {
    result.stages[s].forward_s = estimate->forward_s[s];
    result.stages[s].backward_s = estimate->backward_s[s];
    result.stages[s].parameter_bytes = estimate->parameter_bytes[s];
    result.stages[s].peak_bytes = estimate->peak_bytes[s];
  }
  result.crossings = estimate->crossings;
  result.predicted_step_s = estimate->step_s;
  if (graph_fingerprint_.empty()) graph_fingerprint_ = graph_.fingerprint();
  if (cluster_fingerprint_.empty()) cluster_fingerprint_ = cluster_.fingerprint();
  result.graph_fingerprint = graph_fingerprint_;
  result.cluster_fingerprint = cluster_fingerprint_;
  return result;
}

Plan predict(const Plan& plan, const LayerGraph& graph, const ClusterSpec& cluster,
             const CostOptions& options) {
  return CostModel(graph, cluster, options).predict(plan);
}

}  // namespace millrace
