#include "driver/plan/run_profile.h"

#include <filesystem>
#include <unordered_map>

#include "driver/cli/command_support.h"
#include "runtime/base/files.h"
#include "runtime/base/run_files.h"
#include "runtime/schedule/measured_costs.h"

namespace millrace {
namespace {

/// Sums of the profile over one stage.
struct StageSums {
  double forward = 0, input = 0, weight = 0, updated_bytes = 0;
};

double ratio(double measured, double profiled) {
  return profiled > 0 && measured > 0 ? measured / profiled : 1;
}

}  // namespace

LayerGraph scaled_to(const LayerGraph& profile, const Plan& plan,
                     const std::vector<std::vector<Span>>& spans_by_rank, Problems& problems) {
  LayerGraph result = profile;
  const Result<MeasuredCosts> measured = measured_costs(plan, shape_of(plan), spans_by_rank);
  if (!measured) {
    append(problems, measured.problems());
    return result;
  }
  std::unordered_map<std::string, std::size_t> stage_of;
  for (std::size_t s = 0; s < plan.stages.size(); ++s)
    for (const std::string& layer : plan.stages[s].layers) stage_of.emplace(layer, s);
  std::vector<StageSums> sums(plan.stages.size());
  for (const LayerNode& node : profile.nodes) {
    StageSums& of = sums[stage_of.at(node.name)];
    of.forward += node.forward_s;
    of.input += node.backward_input_s;
    of.weight += node.backward_weight_s;
    of.updated_bytes += node.updated_bytes(plan.microbatches);
  }
  sums.back().forward += profile.loss_s;  // the last forward has the loss
  const ScheduleCosts& costs = measured->alone;
  const auto backward_ratio = [&](std::size_t s, double measured_s, double profiled_s) {
    const PlanStage& stage = plan.stages[s];
    // A stage that recomputes runs its forward again: that is in the measured backward.
    const double again = stage.recompute ? costs.forward[s] : 0;
    if (measured->split_backwards)
      return ratio(measured_s - (profiled_s == sums[s].input ? again : 0), profiled_s);
    return ratio(costs.backward_input[s] + costs.backward_weight[s] - again, sums[s].input + sums[s].weight);
  };
  for (LayerNode& node : result.nodes) {
    const std::size_t s = stage_of.at(node.name);
    node.forward_s *= ratio(costs.forward[s], sums[s].forward);
    node.backward_input_s *= backward_ratio(s, costs.backward_input[s], sums[s].input);
    node.backward_weight_s *= backward_ratio(s, costs.backward_weight[s], sums[s].weight);
  }
  result.loss_s *= ratio(costs.forward.back(), sums.back().forward);
  double update_s = 0, bytes = 0;
  for (std::size_t s = 0; s < sums.size(); ++s) {
    update_s += measured->costs.update[s];
    bytes += sums[s].updated_bytes;
  }
  // An asynchronous update has the copy of the weights in it: which part is which is not in a trace.
  if (bytes > 0 && update_s > 0 && !is_asynchronous(plan.schedule))
    result.update_s_per_byte = update_s / bytes;
  result.measured = {.ranks = plan.num_ranks(), .blocks = 0, .spread = 0};
  return result;
}

Result<LayerGraph> profile_of_run(const LayerGraph& profile, const std::string& folder) {
  const Result<Plan> plan = Plan::load((std::filesystem::path(folder) / run_files::kPlan).string());
  if (!plan) return plan.problems();
  if (Problems problems = validate(*plan, profile); !problems.empty())
    return about_file((std::filesystem::path(folder) / run_files::kPlan).string(), std::move(problems));
  std::vector<std::vector<Span>> spans;
  Problems problems;
  for (int rank = 0; rank < plan->num_ranks(); ++rank) {
    const std::string path = (std::filesystem::path(folder) / run_files::kTrace.of(rank)).string();
    const Result<std::string> text = read_file(path);
    Result<std::vector<Span>> read =
        text ? spans_from_json(*text, path) : Result<std::vector<Span>>(text.problems());
    if (read) {
      spans.push_back(*std::move(read));
    } else {
      append(problems, read.problems());
    }
  }
  if (!problems.empty()) return problems;
  LayerGraph scaled = scaled_to(profile, *plan, spans, problems);
  if (!problems.empty()) return about_file(folder, std::move(problems));
  return scaled;
}

}  // namespace millrace
