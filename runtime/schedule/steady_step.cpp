// What a step costs when one follows the other.
#include <algorithm>
#include <numeric>

#include "runtime/base/check.h"
#include "runtime/schedule/simulate.h"

namespace millrace {
namespace {

constexpr int kSteps = 4;  // the first fills the pipeline; the difference of the others repeats

/// Microbatches of a step rounded up to whole turns of all replicas: those of the next step start again with
/// the first replica.
int numbers_of_a_step(const PipelineShape& shape) {
  int turn = 1;
  for (const auto& ranks : shape.ranks_of_stage) turn = std::lcm(turn, static_cast<int>(ranks.size()));
  return (shape.microbatches + turn - 1) / turn * turn;
}

}  // namespace

double steady_step(const Schedule& schedule, const PipelineShape& shape, const ScheduleCosts& costs,
                   const SimulationOptions& options) {
  MILLRACE_CHECK(!is_asynchronous(schedule.kind));
  const int numbers = numbers_of_a_step(shape);
  PipelineShape longer = shape;
  longer.microbatches = numbers * kSteps;
  Schedule repeated{.kind = schedule.kind, .ranks = {}};
  for (const auto& actions : schedule.ranks) {
    auto& list = repeated.ranks.emplace_back();
    list.reserve(actions.size() * kSteps);
    for (int step = 0; step < kSteps; ++step) {
      for (Action a : actions) {
        a.microbatch = MicrobatchId(a.microbatch.value + std::int64_t{step} * numbers);
        list.push_back(a);
      }
    }
  }
  const Simulation simulation = simulate(repeated, longer, costs, options);
  double middle = 0;
  for (std::size_t r = 0; r < simulation.ranks.size(); ++r) {
    const std::size_t half = schedule.ranks[r].size() * (kSteps / 2);
    if (half > 0) middle = std::max(middle, simulation.ranks[r][half - 1].end);
  }
  return (simulation.makespan - middle) / (kSteps - kSteps / 2);
}

}  // namespace millrace
