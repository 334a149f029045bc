// The seconds of a step when steps follow each other.
#include <algorithm>
#include <vector>

#include "runtime/base/check.h"
#include "runtime/schedule/message.h"
#include "runtime/schedule/simulate.h"

namespace millrace {
namespace {

constexpr int kSteps = 4;  // the first fills the pipeline; the difference of the others repeats

}  // namespace

Schedule repeat_steps(const Schedule& schedule, PipelineShape& shape, int steps) {
  MILLRACE_CHECK(!is_asynchronous(schedule.kind));
  const int cycle = shape.replica_cycle();
  const int numbers = (shape.microbatches + cycle - 1) / cycle * cycle;
  shape.microbatches = numbers * steps;
  shape.arrays *= steps;
  Schedule repeated{.kind = schedule.kind, .ranks = {}};
  for (const auto& actions : schedule.ranks) {
    auto& list = repeated.ranks.emplace_back();
    list.reserve(actions.size() * static_cast<std::size_t>(steps));
    for (int step = 0; step < steps; ++step) {
      for (Action a : actions) {
        a.microbatch = MicrobatchId(a.microbatch.value + std::int64_t{step} * numbers);
        list.push_back(a);
      }
    }
  }
  return repeated;
}

Schedule in_turns(const Schedule& schedule, PipelineShape& shape, SimulationOptions& options,
                  std::vector<ScheduleCosts> turns) {
  const auto count = static_cast<int>(turns.size());
  Schedule all = repeat_steps(schedule, shape, count);
  const int of_each = shape.microbatches / count;
  const MessageIndex messages(shape);
  const auto not_sent = [&](const Action& a) {
    const std::int64_t message = is_transfer(a.op) ? messages.of(a) : -1;
    if (message < 0) return false;
    const ScheduleCosts& costs = turns[a.microbatch.value / of_each];
    const std::vector<double>& seconds = costs.transfers(a.op);
    const std::size_t link = messages.link_of(static_cast<std::size_t>(message));
    return link < seconds.size() && seconds[link] < 0;
  };
  for (auto& actions : all.ranks) std::erase_if(actions, not_sent);
  options.microbatch_costs = std::move(turns);
  options.microbatches_of_each = of_each;
  return all;
}

double steady_step(const Schedule& schedule, const PipelineShape& shape, const ScheduleCosts& costs,
                   const SimulationOptions& options) {
  PipelineShape longer = shape;
  const Schedule repeated = repeat_steps(schedule, longer, kSteps);
  const Simulation simulation = simulate(repeated, longer, costs, options);
  double middle = 0;
  for (std::size_t r = 0; r < simulation.ranks.size(); ++r) {
    const std::size_t half = schedule.ranks[r].size() * (kSteps / 2);
    if (half > 0) middle = std::max(middle, simulation.ranks[r][half - 1].end);
  }
  return (simulation.makespan - middle) / (kSteps - kSteps / 2);
}

}  // namespace millrace
