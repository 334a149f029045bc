// A simulated run written down as spans is measured back: then the model's error is nothing.
#include "runtime/schedule/measured_costs.h"

#include <gtest/gtest.h>

#include <cmath>

#include "runtime/base/random.h"
#include "runtime/schedule/simulate.h"
#include "tests/schedule/every_shape.h"
#include "tests/schedule/shapes.h"

namespace millrace {
namespace {

constexpr int kTracedSteps = 6;

/// The schedule's steps one after the other, as a trace of nanoseconds.
std::vector<std::vector<Span>> traced(const Schedule& schedule, const PipelineShape& shape,
                                      const ScheduleCosts& costs, const SimulationOptions& options = {}) {
  PipelineShape longer = shape;
  const bool flushes = !is_asynchronous(schedule.kind);
  const Schedule repeated = flushes ? repeat_steps(schedule, longer, kTracedSteps) : schedule;
  const int of_step = updates_after_each(schedule.kind) ? 1 : longer.microbatches / kTracedSteps;
  const Simulation simulation = simulate(repeated, longer, costs, options);
  std::vector<std::vector<Span>> spans;
  for (const auto& actions : simulation.ranks) {
    auto& mine = spans.emplace_back();
    for (const TimedAction& timed : actions) {
      mine.push_back({.kind = span_kind(timed.action.op),
                      .stage = static_cast<std::int16_t>(timed.action.stage.value),
                      .peer = timed.action.peer.value,
                      .microbatch = timed.action.microbatch.value,
                      .step = timed.action.microbatch.value / of_step,
                      .start = std::llround(timed.start * 1e9),
                      .end = std::llround(timed.end * 1e9)});
    }
  }
  return spans;
}

Plan plan_of(ScheduleKind kind, const PipelineShape& shape) {
  Plan plan{.model = "m", .schedule = kind, .microbatches = shape.microbatches};
  for (const auto& ranks : shape.ranks_of_stage) plan.stages.push_back({.layers = {"l"}, .ranks = ranks});
  return plan;
}

/// The same run on a device that works while its host goes on: the host waits for messages, and sends them,
/// from the moment at which it has handed over the computation before.
std::vector<Span> handed_over(const std::vector<Span>& spans) {
  std::vector<Span> early;
  std::int64_t handed = 0;  // when the host had nothing more to do
  for (std::size_t i = 0; i < spans.size(); ++i) {
    const Span& span = spans[i];
    const bool of_host = span.kind == SpanKind::Send || span.kind == SpanKind::Wait;
    early.push_back(span);
    if (of_host) early.back().start = std::min(span.start, handed);
    handed = of_host ? span.end : i == 0 ? span.start : std::max(handed, span.start);
  }
  return early;
}

TEST(MeasuredCosts, AHostThatGoesOnChangesNothing) {
  const PipelineShape shape = replicated_shape({1, 1, 1}, 6);
  const Result<Schedule> schedule = make_schedule(ScheduleKind::OneFOneB, shape, Transport::Buffered);
  ASSERT_TRUE(schedule);
  ScheduleCosts costs{.forward = {0.02, 0.01, 0.03},
                      .backward_input = {0.01, 0.02, 0.01},
                      .backward_weight = {0.02, 0.02, 0.01}};
  costs.update.assign(3, 0.005);
  costs.transfer.assign(shape.all_links().size(), 0.001);
  const std::vector<std::vector<Span>> plain = traced(*schedule, shape, costs);
  std::vector<std::vector<Span>> early;
  int moved = 0;
  for (const auto& rank : plain) {
    early.push_back(handed_over(rank));
    for (std::size_t i = 0; i < rank.size(); ++i) moved += early.back()[i].start != rank[i].start;
  }
  EXPECT_GT(moved, 10);
  const Plan plan = plan_of(ScheduleKind::OneFOneB, shape);
  const Result<MeasuredCosts> one = measured_costs(plan, shape, plain),
                              other = measured_costs(plan, shape, early);
  ASSERT_TRUE(one && other);
  EXPECT_EQ(other->step_s, one->step_s);
  EXPECT_EQ(other->costs.forward, one->costs.forward);
  EXPECT_EQ(other->costs.backward_input, one->costs.backward_input);
  EXPECT_EQ(other->costs.transfer, one->costs.transfer);
  ASSERT_EQ(other->each.size(), one->each.size());
  for (std::size_t s = 0; s < one->each.size(); ++s) EXPECT_EQ(other->each[s].seconds, one->each[s].seconds);
}

TEST(MeasuredCosts, OfASimulatedRunSimulateToTheSameStep) {
  int compared = 0;
  for (std::uint64_t seed = 0; seed < 120; ++seed) {
    RandomStream random(derive_seed(seed, "measured"));
    const ScheduleKind kinds[] = {ScheduleKind::GPipe,        ScheduleKind::OneFOneB,
                                  ScheduleKind::ZeroBubbleH1, ScheduleKind::ZeroBubbleH2,
                                  ScheduleKind::ZeroBubbleV,  ScheduleKind::Interleaved,
                                  ScheduleKind::VHalf,        ScheduleKind::DualPipeV};
    const ScheduleKind kind = kinds[random.below(std::size(kinds))];
    const int places = static_cast<int>(2 + random.below(3)),
              m = 2 * places + static_cast<int>(random.below(4));
    const PipelineShape shape = kind == ScheduleKind::Interleaved ? interleaved_shape(places, 2, m, 1)
                                : is_v_shaped(kind)               ? v_shape(places, m)
                                                    : replicated_shape(std::vector<int>(places, 1), m);
    const Result<Schedule> schedule = make_schedule(kind, shape, Transport::Buffered);
    ASSERT_TRUE(schedule);
    ScheduleCosts costs;
    for (int s = 0; s < shape.num_stages(); ++s) {
      costs.forward.push_back(random.uniform(0.01, 0.03));
      costs.backward_input.push_back(random.uniform(0.01, 0.03));
      costs.backward_weight.push_back(random.uniform(0.01, 0.03));
      costs.update.push_back(random.uniform(0, 0.02));
    }
    const bool transfers = random.below(2) == 0;
    costs.transfer.assign(shape.all_links().size(), transfers ? random.uniform(0.0005, 0.002) : 0);
    const Plan plan = plan_of(kind, shape);
    const Result<MeasuredCosts> measured = measured_costs(plan, shape, traced(*schedule, shape, costs));
    ASSERT_TRUE(measured) << to_string(measured.problems());
    for (std::size_t s = 0; s < costs.forward.size(); ++s) {
      EXPECT_NEAR(measured->alone.forward[s], costs.forward[s], 1e-8) << "seed " << seed;
      EXPECT_NEAR(measured->alone.backward_input[s] + measured->alone.backward_weight[s],
                  costs.backward_input[s] + costs.backward_weight[s], 1e-8);
    }
    const Result<double> again = simulated_step(plan, shape, measured->costs);
    ASSERT_TRUE(again);
    EXPECT_EQ(measured->steps, kTracedSteps - 1);
    // A transfer that nobody waited for is free here, and a wire that another message holds counts as time.
    EXPECT_NEAR(*again, measured->step_s, (transfers ? 0.02 : 1e-6) * measured->step_s)
        << "seed " << seed << " " << to_string(kind);
    ++compared;
  }
  EXPECT_EQ(compared, 120);
}

TEST(MeasuredCosts, ActionsThatJitterReplayToTheMeasuredStep) {
  int compared = 0;
  double worst_of_means = 0;
  for (std::uint64_t seed = 0; seed < 120; ++seed) {
    RandomStream random(derive_seed(seed, "replayed"));
    const ScheduleKind kinds[] = {ScheduleKind::GPipe,        ScheduleKind::OneFOneB,
                                  ScheduleKind::ZeroBubbleH2, ScheduleKind::Interleaved,
                                  ScheduleKind::DualPipeV,    ScheduleKind::PipeDream,
                                  ScheduleKind::PipeDream2BW, ScheduleKind::AutoOrder};
    const ScheduleKind kind = kinds[random.below(std::size(kinds))];
    const int places = static_cast<int>(2 + random.below(3)),
              m = 2 * places * (1 + static_cast<int>(random.below(2)));
    const bool replicas = kind == ScheduleKind::GPipe || kind == ScheduleKind::OneFOneB;
    std::vector<int> counts(places, 1);
    if (replicas) counts[random.below(counts.size())] = 2;
    PipelineShape shape = kind == ScheduleKind::Interleaved ? interleaved_shape(places, 2, m, 1)
                          : is_v_shaped(kind)               ? v_shape(places, m)
                                                            : replicated_shape(counts, m);
    ScheduleCosts costs;
    for (int s = 0; s < shape.num_stages(); ++s) {
      costs.forward.push_back(random.uniform(0.01, 0.03));
      costs.backward_input.push_back(random.uniform(0.01, 0.03));
      costs.backward_weight.push_back(random.uniform(0.01, 0.03));
      costs.reduce.push_back(random.uniform(0, 0.02));
      costs.update.push_back(random.uniform(0, 0.02));
    }
    const bool transfers = random.below(2) == 0;
    costs.transfer.assign(shape.all_links().size(), transfers ? random.uniform(0.0005, 0.002) : 0);
    const Plan plan = plan_of(kind, shape);
    PipelineShape run = shape;
    if (is_asynchronous(kind)) run.microbatches = (updates_after_each(kind) ? 16 : kTracedSteps) * m;
    const Result<Schedule> schedule = schedule_of(plan, run, Transport::Buffered);
    ASSERT_TRUE(schedule) << to_string(schedule.problems());
    auto spans = traced(*schedule, run, costs, {.jitter = 0.3, .seed = seed});
    if (is_asynchronous(kind))  // keeps only spans away from the start and the end of the run
      for (auto& rank : spans)
        std::erase_if(rank, [&](const Span& span) {
          return span.microbatch < 2 * m || span.microbatch >= run.microbatches - m;
        });
    const Result<MeasuredCosts> measured = measured_costs(plan, shape, spans);
    ASSERT_TRUE(measured) << to_string(measured.problems());
    const Result<double> again = replayed_step(plan, shape, *measured),
                         means = simulated_step(plan, shape, measured->costs);
    ASSERT_TRUE(again && means);
    // Asynchronous: what was in flight where the trace begins takes mean times.
    const double tolerance = is_asynchronous(kind) ? 0.05 : transfers ? 0.002 : 1e-6;
    EXPECT_NEAR(*again, measured->step_s, tolerance * measured->step_s)
        << "seed " << seed << " " << to_string(kind);
    if (!is_asynchronous(kind))
      worst_of_means = std::max(worst_of_means, std::abs(*means / measured->step_s - 1));
    ++compared;
  }
  EXPECT_EQ(compared, 120);
  EXPECT_GT(worst_of_means, 0.03);  // there is something to replay
}

/// Returns a span of microbatch `step` in the step of the same number. `start` and `end` are milliseconds.
Span span_of(SpanKind kind, int stage, int peer, int step, int start, int end) {
  return {.kind = kind,
          .stage = static_cast<std::int16_t>(stage),
          .peer = peer,
          .microbatch = step,
          .step = step,
          .start = start * 1'000'000LL,
          .end = end * 1'000'000LL};
}

TEST(MeasuredCosts, SendsAndWhatWasThereAlreadyBelongToTheComputation) {
  const PipelineShape shape = replicated_shape({1, 1}, 1);
  std::vector<std::vector<Span>> spans(2);
  const auto add = [&](int rank, SpanKind kind, int stage, int peer, int step, int start, int end) {
    spans[rank].push_back(span_of(kind, stage, peer, step, start, end));
  };
  for (int step = 0; step < 4; ++step) {
    const int t = 100 * step;
    add(0, SpanKind::Data, 0, -1, step, t, t + 2);
    add(0, SpanKind::Forward, 0, -1, step, t + 2, t + 12);
    add(0, SpanKind::Send, 0, 1, step, t + 12, t + 15);
    add(1, SpanKind::Wait, 1, 0, step, t, t + 20);  // 5 ms after the send
    add(1, SpanKind::Forward, 1, -1, step, t + 20, t + 30);
    add(1, SpanKind::Backward, 1, -1, step, t + 30, t + 50);
    add(1, SpanKind::Send, 1, 0, step, t + 50, t + 51);
    add(1, SpanKind::Update, 1, -1, step, t + 51, t + 100);
    add(0, SpanKind::Wait, 0, 1, step, t + 60, t + 63);  // had been there
    add(0, SpanKind::Backward, 0, -1, step, t + 63, t + 90);
    add(0, SpanKind::Update, 0, -1, step, t + 90, t + 100);
  }
  const Result<MeasuredCosts> measured = measured_costs(plan_of(ScheduleKind::OneFOneB, shape), shape, spans);
  ASSERT_TRUE(measured) << to_string(measured.problems());
  EXPECT_NEAR(measured->step_s, 0.1, 1e-9);
  EXPECT_NEAR(measured->costs.forward[0], 0.015, 1e-9);
  EXPECT_NEAR(measured->alone.forward[0], 0.010, 1e-9);
  EXPECT_NEAR(measured->costs.update[1], 0.049, 1e-9);
  EXPECT_EQ(measured->steps, 3);
}

/// All ranks wait for the last one's norm: that is nobody's update.
TEST(MeasuredCosts, WaitsForAllRanksAreNoUpdates) {
  const PipelineShape shape = replicated_shape({1, 1}, 1);
  std::vector<std::vector<Span>> spans(2);
  const auto add = [&](int rank, SpanKind kind, int peer, int step, int start, int end) {
    spans[rank].push_back(span_of(kind, rank, peer, step, start, end));
  };
  for (int step = 0; step < 4; ++step) {
    const int t = 100 * step;
    add(0, SpanKind::Forward, -1, step, t, t + 10);
    add(0, SpanKind::Send, 1, step, t + 10, t + 10);
    add(0, SpanKind::Wait, 1, step, t + 10, t + 40);
    add(0, SpanKind::Backward, -1, step, t + 40, t + 80);
    add(0, SpanKind::Wait, -1, step, t + 80, t + 85);
    add(0, SpanKind::Update, -1, step, t + 85, t + 100);
    add(1, SpanKind::Wait, 0, step, t, t + 10);
    add(1, SpanKind::Forward, -1, step, t + 10, t + 20);
    add(1, SpanKind::Backward, -1, step, t + 20, t + 40);
    add(1, SpanKind::Send, 0, step, t + 40, t + 40);
    add(1, SpanKind::Wait, -1, step, t + 40, t + 85);
    add(1, SpanKind::Update, -1, step, t + 85, t + 95);
  }
  const Plan plan = plan_of(ScheduleKind::OneFOneB, shape);
  const Result<MeasuredCosts> measured = measured_costs(plan, shape, spans);
  ASSERT_TRUE(measured) << to_string(measured.problems());
  EXPECT_NEAR(measured->costs.update[0], 0.015, 1e-9);
  EXPECT_NEAR(measured->costs.update[1], 0.010, 1e-9);
  EXPECT_NEAR(measured->costs.agreement, 0.005, 1e-9);
  EXPECT_EQ(measured->costs.norm, (std::vector<double>{0, 0}));
  const Result<double> again = simulated_step(plan, shape, measured->costs),
                       replayed = replayed_step(plan, shape, *measured);
  ASSERT_TRUE(again && replayed);
  EXPECT_NEAR(*again, 0.1, 1e-9);
  EXPECT_NEAR(*replayed, 0.1, 1e-9);
}

TEST(MeasuredCosts, GapsAndPausesBetweenStepsAreNoStepsTime) {
  const PipelineShape shape = replicated_shape({1, 1, 1}, 4);
  const ScheduleCosts costs{.forward = {0.01, 0.02, 0.01},
                            .backward_input = {0.01, 0.01, 0.02},
                            .backward_weight = {0.01, 0.01, 0.01},
                            .reduce = {},
                            .update = {0.001, 0.002, 0.001},
                            .transfer = {0.0005, 0.0005}};
  constexpr std::int64_t kFarMicrobatches = 4000, kFarSteps = 1000, kSecond = 1'000'000'000;
  for (ScheduleKind kind : {ScheduleKind::OneFOneB, ScheduleKind::PipeDream}) {
    PipelineShape run = shape;
    if (kind == ScheduleKind::PipeDream) run.microbatches = 8 * filling_of(shape);
    const Plan plan = plan_of(kind, shape);
    const auto spans = traced(*make_schedule(kind, run, Transport::Buffered), run, costs);
    const Result<MeasuredCosts> whole = measured_costs(plan, shape, spans);
    ASSERT_TRUE(whole) << to_string(whole.problems());
    // Repeats the steps much later, and puts an evaluation of a second into the middle of the first ones.
    auto apart = spans;
    const std::int64_t pause_after = whole->steps / 2;
    for (auto& rank : apart) {
      std::int64_t until = 0;
      for (const Span& span : rank)
        if (span.step <= pause_after) until = std::max(until, span.end);
      if (kind == ScheduleKind::OneFOneB) {
        for (Span& span : rank)
          if (span.step > pause_after) span.start += kSecond, span.end += kSecond;
        rank.push_back({.kind = SpanKind::Eval, .step = pause_after, .start = until, .end = until + kSecond});
      }
      const std::size_t once = rank.size();
      for (std::size_t i = 0; i < once; ++i) {
        Span late = rank[i];
        late.step += kFarSteps, late.microbatch += kFarMicrobatches;
        late.start += 100 * kSecond, late.end += 100 * kSecond;
        rank.push_back(late);
      }
    }
    const Result<MeasuredCosts> parts = measured_costs(plan, shape, apart);
    ASSERT_TRUE(parts) << to_string(parts.problems());
    const bool pauses = kind == ScheduleKind::OneFOneB;
    EXPECT_EQ(parts->each.size(), pauses ? 4u : 2u);
    EXPECT_EQ(parts->steps, 2 * whole->steps - (pauses ? 2 : 0));
    EXPECT_NEAR(parts->step_s, whole->step_s, 0.02 * whole->step_s) << to_string(kind);
    for (std::size_t s = 0; s < 3; ++s)
      EXPECT_NEAR(parts->costs.forward[s], whole->costs.forward[s], 0.02 * whole->costs.forward[s]);
    const Result<double> replayed = replayed_step(plan, shape, *parts);
    ASSERT_TRUE(replayed) << to_string(replayed.problems());
    EXPECT_NEAR(*replayed, parts->step_s, 0.05 * parts->step_s) << to_string(kind);
  }
}

TEST(MeasuredCosts, SaysWhatIsMissing) {
  const PipelineShape shape = replicated_shape({1, 1}, 2);
  const Plan plan = plan_of(ScheduleKind::OneFOneB, shape);
  EXPECT_FALSE(measured_costs(plan, shape, {}));
  EXPECT_FALSE(measured_costs(plan, shape, {{}, {}}));
  const Schedule schedule = *make_schedule(ScheduleKind::OneFOneB, shape, Transport::Buffered);
  const ScheduleCosts costs{.forward = {1, 1},
                            .backward_input = {1, 1},
                            .backward_weight = {1, 1},
                            .reduce = {},
                            .update = {},
                            .transfer = {}};
  auto spans = traced(schedule, shape, costs);
  ASSERT_TRUE(measured_costs(plan, shape, spans));
  for (auto& rank : spans) std::erase_if(rank, [](const Span& s) { return s.step > 1; });
  const Result<MeasuredCosts> two = measured_costs(plan, shape, spans);
  ASSERT_FALSE(two);
  EXPECT_NE(to_string(two.problems()).find("--trace-steps"), std::string::npos);
}

}  // namespace
}  // namespace millrace
