#include <algorithm>
#include <cmath>
#include <set>
#include <unordered_map>

#include "runtime/base/json.h"
#include "runtime/plan/plan.h"
#include "runtime/plan/plan_rounds.h"

namespace millrace {
namespace {

std::string stage_name(std::size_t s) {
  return "stage " + std::to_string(s);
}

/// Returns errors for unknown layers, layers that no stage has, and stages out of order. `index`: layer name
/// -> index in the model.
Problems validate_layers(const Plan& plan, const std::vector<std::string>& layers) {
  Problems problems;
  if (plan.stages.size() > layers.size()) {
    problems.push_back({"",
                        "the plan has " + std::to_string(plan.stages.size()) + " stages, the model has " +
                            std::to_string(layers.size()) + " layers",
                        "use fewer stages"});
  }
  std::set<std::string> placed;
  const std::set<std::string> known(layers.begin(), layers.end());
  std::string first;  // layer of the plan
  bool strange = true;
  for (const PlanStage& stage : plan.stages) {
    for (const std::string& layer : stage.layers) {
      if (first.empty()) first = layer;
      strange = strange && !known.contains(layer);
    }
  }
  if (strange && !first.empty())
    return {
        {"", "no layer of the plan is one of " + plan.model + "; its first is '" + first + "'",
         "plan with a profile of `millrace profile`; plans of PipeDream's graph.txt are drawn and simulated "
         "only"}};
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    for (const std::string& layer : plan.stages[s].layers) {
      placed.insert(layer);
      if (known.contains(layer)) continue;
      const auto near = nearest_name(layer, layers);
      problems.push_back({stage_name(s), "model " + plan.model + " has no layer '" + layer + "'",
                          near ? "did you mean '" + *near + "'?" : "was the plan made for another model?"});
    }
  }
  for (const std::string& layer : layers) {
    if (!placed.contains(layer))
      problems.push_back(
          {"", "no stage has layer '" + layer + "'", "every layer of the model needs a stage"});
  }
  return problems;
}

}  // namespace

Problems validate(const Plan& plan) {
  Problems problems;
  if (plan.stages.empty()) problems.push_back({"stages", "the plan has no stages", {}});
  if (plan.microbatches < 1)
    problems.push_back(
        {"microbatches", "is " + std::to_string(plan.microbatches) + ", must be at least 1", {}});
  if (plan.arrays < 1)
    problems.push_back({"arrays", "is " + std::to_string(plan.arrays) + ", must be at least 1", {}});
  if (plan.arrays > 1 && is_asynchronous(plan.schedule))
    problems.push_back({"arrays",
                        "several arrays fill the pipeline one after the other, which " +
                            to_string(plan.schedule) + " keeps full by itself",
                        "use a schedule that flushes, for example 1f1b, or one array"});
  if (plan.arrays > 1 && plan.schedule == ScheduleKind::Custom)
    problems.push_back(
        {"arrays", "a schedule that is read from a file ends with one update", "use one array"});
  append(problems, round_problems(plan));
  std::set<std::string> layers;
  std::set<RankId> ranks;
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const PlanStage& stage = plan.stages[s];
    if (stage.layers.empty()) problems.push_back({stage_name(s), "has no layers", {}});
    if (stage.ranks.empty())
      problems.push_back({stage_name(s), "has no ranks", "each stage needs at least one"});
    for (const std::string& layer : stage.layers) {
      if (!layers.insert(layer).second)
        problems.push_back({stage_name(s), "layer '" + layer + "' is in two places", {}});
    }
    std::set<RankId> here;
    for (RankId rank : stage.ranks) {
      const bool again = !here.insert(rank).second, elsewhere = !ranks.insert(rank).second;
      if (again || (elsewhere && !allows_chunks(plan.schedule)))
        problems.push_back({stage_name(s), "rank " + std::to_string(rank.value) + " is used twice",
                            "a rank holds one stage; several only with interleaved and V schedules"});
    }
    if (!is_asynchronous(plan.schedule) && static_cast<int>(stage.ranks.size()) > plan.microbatches) {
      problems.push_back({stage_name(s),
                          "has " + std::to_string(stage.ranks.size()) + " replicas for " +
                              std::to_string(plan.microbatches) + " microbatches",
                          "use at least as many microbatches as replicas"});
    }
    if (plan.arrays > 1 && !stage.ranks.empty() &&
        plan.microbatches % static_cast<int>(stage.ranks.size()) != 0)
      problems.push_back({stage_name(s),
                          "the " + std::to_string(plan.microbatches) +
                              " microbatches of each array do not divide among " +
                              std::to_string(stage.ranks.size()) + " replicas",
                          "with several arrays use a multiple of the replicas"});
  }
  int expected = 0;
  for (RankId rank : ranks) {
    if (rank.value != expected++) {
      problems.push_back(
          {"ranks",
           "ranks are not 0.." + std::to_string(ranks.size() - 1) + ": found " + std::to_string(rank.value),
           "number the ranks from 0 without gaps"});
      break;
    }
  }
  return problems;
}

Problems validate(const Plan& plan, const std::string& model, const std::vector<std::string>& layers) {
  Problems problems = validate(plan);
  if (plan.model != model) {
    problems.push_back({"model", "the plan was made for model '" + plan.model + "', this is '" + model + "'",
                        "plan again from a profile of " + model});
    return problems;
  }
  for (Problem& problem : validate_layers(plan, layers)) problems.push_back(std::move(problem));
  return problems;
}

OtherThanPlanned compare(const PlannedFor& planned, const PlannedFor& run, int microbatches) {
  constexpr double kLengthsAreAlike = 0.1;  // times follow the mean length, nearly
  OtherThanPlanned other;
  if (planned.microbatch == 0 || run.microbatch == 0) return other;
  if (planned.precision != run.precision)
    other.problems.push_back(
        {"",
         "the plan was made for precision " + planned.precision + ", the run computes in " + run.precision,
         "give --precision " + planned.precision + ", or plan again from a profile with --precision " +
             run.precision});
  if (planned.microbatch != run.microbatch)
    other.notes.push_back("its predictions do not hold: they are for microbatches of " +
                          std::to_string(planned.microbatch) + " samples, the run has " +
                          std::to_string(run.microbatch) + "; profile with --microbatch " +
                          std::to_string(run.microbatch) + " and plan again");
  const auto differs = [&](const LengthRange& range) {
    const auto found = std::ranges::find(planned.lengths, range.dimension, &LengthRange::dimension);
    return found != planned.lengths.end() && found->mean > 0 &&
           std::abs(range.mean / found->mean - 1) > kLengthsAreAlike;
  };
  if (std::ranges::any_of(run.lengths, differs))
    other.notes.push_back("its predictions do not hold: they are for microbatches of " +
                          to_string(planned.lengths) + ", this data has " + to_string(run.lengths) +
                          "; profile with this --data and --microbatches " + std::to_string(microbatches) +
                          ", and plan again");
  return other;
}

Problems validate(const Plan& plan, const LayerGraph& graph) {
  std::vector<std::string> names;
  for (const LayerNode& node : graph.nodes) names.push_back(node.name);
  Problems problems = validate(plan, graph.model, names);
  std::unordered_map<std::string, int> stage_of;
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    for (const std::string& layer : plan.stages[s].layers) stage_of.emplace(layer, static_cast<int>(s));
  }
  for (const LayerEdge& e : graph.edges) {
    const auto from = stage_of.find(names[e.producer]), to = stage_of.find(names[e.consumer]);
    if (from == stage_of.end() || to == stage_of.end() || from->second <= to->second) continue;
    problems.push_back({stage_name(static_cast<std::size_t>(to->second)),
                        "layer '" + to->first + "' needs '" + from->first + "' of the later stage " +
                            std::to_string(from->second),
                        "order the stages along the graph"});
  }
  return problems;
}

}  // namespace millrace
