// The schedule that a plan names.
#include <algorithm>

#include "runtime/schedule/csv.h"
#include "runtime/schedule/list_schedule.h"
#include "runtime/schedule/schedule.h"

namespace millrace {
namespace {

/// The plan's predicted times, half of each backward for the input gradient; a plan without them: F = I = W.
ScheduleCosts costs_of_plan(const Plan& plan) {
  const bool known = std::ranges::all_of(
      plan.stages, [](const PlanStage& s) { return s.forward_s > 0 && s.backward_s > 0; });
  ScheduleCosts costs;
  for (const PlanStage& stage : plan.stages) {
    costs.forward.push_back(known ? stage.forward_s : 1);
    costs.backward_input.push_back(known ? stage.backward_s / 2 : 1);
    costs.backward_weight.push_back(known ? stage.backward_s / 2 : 1);
  }
  return costs;
}

}  // namespace

Result<Schedule> schedule_of(const Plan& plan, const PipelineShape& shape, Transport transport,
                             const std::optional<ScheduleFile>& file) {
  Result<Schedule> schedule = Schedule{};
  if (plan.schedule == ScheduleKind::AutoOrder) {
    schedule = list_schedule(shape, costs_of_plan(plan));
  } else if (plan.schedule == ScheduleKind::Custom && file) {
    Result<CsvSchedule> read =
        read_schedule_csv(file->text, file->name, {.replicas = shape.replicas(StageId(0)), .shape = &shape});
    if (!read) return read.problems();
    schedule = std::move(read->schedule);
  } else {
    return make_schedule(plan.schedule, shape, transport);
  }
  if (schedule && transport == Transport::Rendezvous) return for_rendezvous(*std::move(schedule), shape);
  return schedule;
}

Schedule forward_schedule(const PipelineShape& shape, Transport transport) {
  std::vector<std::vector<Action>> ranks(shape.num_ranks());
  for (int s = 0; s < shape.num_stages(); ++s) {
    for (std::int64_t m = 0; m < shape.microbatches; ++m) {
      const Action forward{.op = Op::Forward, .stage = StageId(s), .microbatch = MicrobatchId(m)};
      ranks[shape.rank_of(forward.stage, forward.microbatch).value].push_back(forward);
    }
  }
  for (auto& order : ranks) {
    std::ranges::stable_sort(order, {}, [](const Action& a) {
      return std::pair(a.microbatch.value + a.stage.value, -a.stage.value);
    });
  }
  Schedule schedule = lower(ScheduleKind::Custom, shape, std::move(ranks));
  for (auto& actions : schedule.ranks)
    std::erase_if(actions, [](const Action& a) { return a.op == Op::Reduce || a.op == Op::Update; });
  return transport == Transport::Rendezvous ? for_rendezvous(std::move(schedule), shape) : schedule;
}

}  // namespace millrace
