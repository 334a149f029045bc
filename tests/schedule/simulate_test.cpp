// Properties of the simulator's richer model.
#include "runtime/schedule/simulate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "runtime/base/error.h"
#include "runtime/base/random.h"
#include "runtime/schedule/message.h"
#include "tests/schedule/shapes.h"

namespace millrace {
namespace {

struct Case {
  std::string name;
  PipelineShape shape;
  Schedule schedule;
  ScheduleCosts costs;
};

/// All kinds, straight and replicated, with a skip, seeded random costs.
std::vector<Case> cases() {
  std::vector<Case> all;
  RandomStream random(11);
  const auto some = [&](std::size_t count, double most) {
    std::vector<double> values(count);
    for (double& v : values) v = random.uniform(0.1, most);
    return values;
  };
  for (const auto& replicas :
       {std::vector<int>{1}, {1, 1}, {1, 1, 1, 1}, {2, 1}, {1, 2, 2}, {3, 1, 2}, {4}}) {
    for (int m : {12, 24}) {
      for (ScheduleKind kind : {ScheduleKind::GPipe, ScheduleKind::OneFOneB, ScheduleKind::PipeDream}) {
        PipelineShape shape = replicated_shape(replicas, m);
        const std::size_t stages = replicas.size();
        if (stages == 3)
          shape.links = {{StageId(0), StageId(1)}, {StageId(0), StageId(2)}, {StageId(1), StageId(2)}};
        all.push_back({to_string(kind) + " " + ::testing::PrintToString(replicas) + " m=" + std::to_string(m),
                       shape, *make_schedule(kind, shape),
                       ScheduleCosts{.forward = some(stages, 1),
                                     .backward_input = some(stages, 1),
                                     .backward_weight = some(stages, 1),
                                     .reduce = some(stages, 2),
                                     .update = some(stages, 0.2),
                                     .transfer = some(shape.all_links().size(), 0.5)}});
      }
    }
  }
  return all;
}

SimulationOptions links(const Case& c, double latency, double bytes, double bandwidth) {
  const std::size_t n = c.shape.all_links().size();
  return {.latency = std::vector<double>(n, latency),
          .bytes = std::vector<double>(n, bytes),
          .bandwidth = std::vector<double>(n, bandwidth)};
}

void expect_same(const Simulation& a, const Simulation& b, const std::string& name) {
  EXPECT_EQ(a.makespan, b.makespan) << name;
  EXPECT_EQ(a.busy, b.busy) << name;
  EXPECT_EQ(a.peak_stash, b.peak_stash) << name;
  EXPECT_EQ(a.peak_versions, b.peak_versions) << name;
  for (std::size_t r = 0; r < a.ranks.size(); ++r) {
    for (std::size_t i = 0; i < a.ranks[r].size(); ++i) {
      ASSERT_EQ(a.ranks[r][i].start, b.ranks[r][i].start) << name;
      ASSERT_EQ(a.ranks[r][i].end, b.ranks[r][i].end) << name;
    }
  }
}

bool can_rendezvous(const Case& c) {
  return check(c.schedule, c.shape, Transport::Rendezvous).empty();
}

/// Longest way of microbatch 0 down and the last one up: no schedule beats it.
double chain_bound(const Case& c) {
  double seconds = 0;
  for (int s = 0; s < c.shape.num_stages(); ++s) {
    const auto i = static_cast<std::size_t>(s);
    seconds += c.costs.forward[i] + c.costs.backward_input[i];
  }
  return seconds;
}

TEST(SimulateModel, NothingSetChangesNothing) {
  for (const Case& c : cases()) {
    const Simulation plain = simulate(c.schedule, c.shape, c.costs);
    SimulationOptions neutral = links(c, 0, 1e6, 0);
    neutral.slowdown.assign(c.schedule.ranks.size(), 1);
    neutral.host.assign(c.schedule.ranks.size(), 0);  // one host: its ports are not used
    neutral.seed = 7;
    expect_same(plain, simulate(c.schedule, c.shape, c.costs, neutral), c.name);
    if (c.shape.all_links().size() < 2) {
      // A port of its own for each end is the same as a wire, when no rank has more than one peer.
      if (c.schedule.ranks.size() > 2) continue;
      neutral.host = {0, 1};
      neutral.host.resize(c.schedule.ranks.size());
      expect_same(plain, simulate(c.schedule, c.shape, c.costs, neutral), c.name);
    }
  }
}

TEST(SimulateModel, IsBoundedBelow) {
  for (const Case& c : cases()) {
    for (Transport transport : {Transport::Buffered, Transport::Rendezvous}) {
      if (transport == Transport::Rendezvous && !can_rendezvous(c)) continue;
      SimulationOptions options = links(c, 0.1, 10, 100);
      options.transport = transport;
      const Simulation s = simulate(c.schedule, c.shape, c.costs, options);
      EXPECT_GE(s.makespan * (1 + 1e-12), chain_bound(c)) << c.name;
      for (std::size_t r = 0; r < s.busy.size(); ++r) {
        EXPECT_GE(s.makespan * (1 + 1e-12), s.busy[r]) << c.name;
        EXPECT_LE(s.span[r], s.makespan * (1 + 1e-12)) << c.name;
        EXPECT_GE(s.span_bubble_fraction[r], -1e-12) << c.name;
      }
    }
  }
}

TEST(SimulateModel, ScalesWithItsCosts) {
  for (const Case& c : cases()) {
    ScheduleCosts costs = c.costs;
    for (auto* values : {&costs.forward, &costs.backward_input, &costs.backward_weight, &costs.reduce,
                         &costs.update, &costs.transfer}) {
      for (double& v : *values) v *= 4;  // a power of two: exact
    }
    SimulationOptions one = links(c, 0.25, 8, 64), four = links(c, 1, 8, 16);
    one.jitter = four.jitter = 0.2;
    one.host = four.host = std::vector<int>(c.schedule.ranks.size());
    std::iota(one.host.begin(), one.host.end(), 0), four.host = one.host;
    const Simulation small = simulate(c.schedule, c.shape, c.costs, one);
    EXPECT_EQ(small.makespan * 4, simulate(c.schedule, c.shape, costs, four).makespan) << c.name;
  }
}

TEST(SimulateModel, SlowerPartsNeverShorten) {
  for (const Case& c : cases()) {
    for (Transport transport : {Transport::Buffered, Transport::Rendezvous}) {
      if (transport == Transport::Rendezvous && !can_rendezvous(c)) continue;
      double before = 0;
      for (double latency : {0.0, 0.01, 0.3, 2.0}) {
        SimulationOptions options = links(c, latency, 1, 0);
        options.transport = transport;
        const double makespan = simulate(c.schedule, c.shape, c.costs, options).makespan;
        EXPECT_GE(makespan, before) << c.name << " latency " << latency;
        before = makespan;
      }
      for (std::size_t rank = 0; rank < c.schedule.ranks.size(); ++rank) {
        before = 0;
        for (double factor : {1.0, 1.01, 1.5, 4.0}) {
          SimulationOptions options{.transport = transport, .jitter = 0.3, .seed = 5};
          options.slowdown.assign(c.schedule.ranks.size(), 1);
          options.slowdown[rank] = factor;
          const double makespan = simulate(c.schedule, c.shape, c.costs, options).makespan;
          EXPECT_GE(makespan, before) << c.name << " rank " << rank << " factor " << factor;
          before = makespan;
        }
      }
    }
    const double plain = simulate(c.schedule, c.shape, c.costs).makespan;
    EXPECT_GE(simulate(c.schedule, c.shape, c.costs, {.sends = SendMode::Block}).makespan, plain) << c.name;
    double before = plain;
    for (int buckets : {2, 4, 100}) {
      const double makespan = simulate(c.schedule, c.shape, c.costs, {.reduce_buckets = buckets}).makespan;
      EXPECT_LE(makespan, before * (1 + 1e-12)) << c.name << " buckets " << buckets;
      before = makespan;
    }
  }
}

TEST(SimulateModel, JitterIsSeededAndCentred) {
  const Case c = cases()[8];
  const Simulation plain = simulate(c.schedule, c.shape, c.costs);
  const SimulationOptions noisy{.jitter = 0.1, .seed = 3};
  const Simulation a = simulate(c.schedule, c.shape, c.costs, noisy);
  expect_same(a, simulate(c.schedule, c.shape, c.costs, noisy), "same seed");
  EXPECT_NE(a.makespan, plain.makespan);
  EXPECT_NE(a.makespan, simulate(c.schedule, c.shape, c.costs, {.jitter = 0.1, .seed = 4}).makespan);
  double busy = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed)
    busy += simulate(c.schedule, c.shape, c.costs, {.jitter = 0.1, .seed = seed}).busy[0] / 200;
  // Mean 1: 200 runs of some 24 actions of sigma 0.1: the mean is within 0.5 % (four standard errors).
  EXPECT_NEAR(busy / plain.busy[0], 1, 0.005);
}

TEST(SimulateModel, TheCriticalPathFillsTheMakespan) {
  for (const Case& c : cases()) {
    for (Transport transport : {Transport::Buffered, Transport::Rendezvous}) {
      if (transport == Transport::Rendezvous && !can_rendezvous(c)) continue;
      for (SendMode sends : {SendMode::Overlap, SendMode::Block}) {
        SimulationOptions options = links(c, 0.05, 10, 100);
        options.transport = transport;
        options.sends = sends;
        const Simulation s = simulate(c.schedule, c.shape, c.costs, options);
        const auto path = critical_path(s, c.shape, transport);
        double at = 0;
        for (const CriticalStep& step : path) {
          ASSERT_EQ(step.start, at) << c.name << " " << to_string(step.action);
          ASSERT_GT(step.end, step.start) << c.name;
          at = step.end;
          for (const auto& actions : s.ranks) {
            for (const TimedAction& timed : actions) {
              const bool is_same_reduce = timed.action.op == Op::Reduce && step.action.op == Op::Reduce &&
                                          timed.action.stage == step.action.stage && timed.end == step.end;
              if (is_same_reduce) {
                ASSERT_LE(timed.start, step.start) << c.name << ": the last to come";
              }
              if (transport == Transport::Rendezvous && is_transfer(step.action.op) &&
                  timed.action == step.action) {
                ASSERT_EQ(timed.end, step.end) << c.name << ": the last of its exchange";
              }
            }
          }
        }
        ASSERT_EQ(at, s.makespan) << c.name;
      }
    }
  }
}

TEST(SimulateModel, LatencyIsNotOccupancy) {
  const PipelineShape shape = replicated_shape({1, 1}, 3);
  const Schedule schedule = *make_schedule(ScheduleKind::GPipe, shape);
  const ScheduleCosts costs{.forward = {1, 1}, .backward_input = {1, 1}, .backward_weight = {1, 1}};
  // Activations leave at 1, 2, 3 and arrive 10 later one after the other: 11, 12, 13; F2 ends at 14, the
  // backwards at 16, 18, 20; the last gradient arrives at 30 and its backward ends at 32.
  EXPECT_DOUBLE_EQ(simulate(schedule, shape, costs, {.latency = {10}}).makespan, 32);
  // The same 10 seconds as occupancy of the wire give 66 (Simulate.AWireCarriesOneMessageAtATime).
  EXPECT_DOUBLE_EQ(simulate(schedule, shape, costs, {.bytes = {50}, .bandwidth = {5}}).makespan, 66);
}

TEST(SimulateModel, EachPairOfRanksHasItsWire) {
  // Stage 1 has a replica beside stage 0 and one behind a slow wire. Activations leave at 1, 2, 3, 4. The far
  // ones have 10 bytes of 1 s and 5 s of latency: they arrive at 17 and 27.
  const PipelineShape shape = replicated_shape({1, 2}, 4);
  const Schedule schedule = *make_schedule(ScheduleKind::GPipe, shape);
  const ScheduleCosts costs{.forward = {1, 1},
                            .backward_input = {1, 1},
                            .backward_weight = {0, 0},
                            .transfer = {15},
                            .transfer_bytes = {10},
                            .transfer_back_bytes = {0}};
  SimulationOptions options;
  options.wire = [](int from, int to) {
    return from == 2 || to == 2 ? PairWire{.latency_s = 5, .s_per_byte = 1} : PairWire{};
  };
  const Simulation simulation = simulate(schedule, shape, costs, options);
  const auto ends = [&](std::size_t rank) {
    std::vector<double> all;
    for (const TimedAction& timed : simulation.ranks[rank])
      if (timed.action.op == Op::Forward) all.push_back(timed.end);
    return all;
  };
  EXPECT_EQ(ends(1), (std::vector<double>{2, 4}));
  EXPECT_EQ(ends(2), (std::vector<double>{18, 28}));
  // Without the bytes the costs' seconds hold for all pairs.
  ScheduleCosts seconds = costs;
  seconds.transfer_bytes.clear();
  seconds.transfer_back_bytes.clear();
  EXPECT_EQ(simulate(schedule, shape, seconds, options).makespan,
            simulate(schedule, shape, seconds).makespan);
}

TEST(SimulateModel, HostsShareAPort) {
  // Two replicas of stage 0 on host 0 send to two of stage 1 on host 1 at the same time: the port makes the
  // second one wait.
  const PipelineShape shape = replicated_shape({2, 2}, 2);
  const Schedule schedule = *make_schedule(ScheduleKind::OneFOneB, shape);
  const ScheduleCosts costs{
      .forward = {1, 1}, .backward_input = {1, 1}, .backward_weight = {0, 0}, .transfer = {3}};
  EXPECT_DOUBLE_EQ(simulate(schedule, shape, costs).makespan, 1 + 3 + 1 + 1 + 3 + 1);
  EXPECT_DOUBLE_EQ(simulate(schedule, shape, costs, {.host = {0, 0, 1, 1}}).makespan, 1 + 6 + 1 + 1 + 3 + 1);
  EXPECT_DOUBLE_EQ(simulate(schedule, shape, costs, {.host = {0, 1, 2, 3}}).makespan, 10);
}

/// Stage 0 on hosts 0 and 1, stage 1 on host 1. Replica 0 sends to the other host at 1 and gets a gradient
/// back at 4 to 5, replica 1 ends its backward at 8. By itself the all-reduce ends at 10.
TEST(SimulateModel, AnAllReduceGetsWhatMessagesLeaveOfAPort) {
  const PipelineShape shape = replicated_shape({2, 1}, 2);
  const Schedule schedule = *make_schedule(ScheduleKind::OneFOneB, shape);
  ScheduleCosts costs{.forward = {1, 1},
                      .backward_input = {1, 1},
                      .backward_weight = {0, 0},
                      .reduce = {2, 0},
                      .transfer = {1}};
  const auto makespan = [&](double seconds, double lead_s) {
    costs.reduce_ports = {{.ports = {{0, seconds}, {1, seconds}}, .lead_s = lead_s}, {}};
    return simulate(schedule, shape, costs, {.host = {0, 1, 1}}).makespan;
  };
  EXPECT_DOUBLE_EQ(makespan(0, 0), 10);
  EXPECT_DOUBLE_EQ(makespan(2, 0), 10);    // the gradient has passed
  EXPECT_DOUBLE_EQ(makespan(5, 4), 10);    // there is room for both
  EXPECT_DOUBLE_EQ(makespan(6, 4), 11);    // from 4 on the port has 6 seconds of sums and 1 of the message
  EXPECT_DOUBLE_EQ(makespan(6, 3.5), 11);  // half of the message comes before
}

TEST(SimulateModel, RendezvousWaitsForTheReceiver) {
  const PipelineShape shape = replicated_shape({1, 1}, 2);
  const Schedule schedule = *make_schedule(ScheduleKind::OneFOneB, shape);
  const ScheduleCosts costs{.forward = {1, 1}, .backward_input = {1, 1}, .backward_weight = {1, 1}};
  // Rank 0: F0 0-1; sends, F1 1-2, then its second send waits until rank 1 comes for it at 4 with the
  // gradient of microbatch 0; B0 4-6. Rank 1: F0 1-2, B0 2-4, F1 4-5, B1 5-7; B1 of rank 0 7-9.
  const Simulation s = simulate(schedule, shape, costs, {.transport = Transport::Rendezvous});
  EXPECT_DOUBLE_EQ(s.makespan, 9);
  for (const TimedAction& t : s.ranks[0]) {
    if (t.action.op == Op::SendActivation && t.action.microbatch == MicrobatchId(1)) {
      EXPECT_DOUBLE_EQ(t.start, 2);
      EXPECT_DOUBLE_EQ(t.end, 4);
    }
  }
}

TEST(SimulateModel, MicrobatchesHaveCostsOfTheirOwnInEachStage) {
  const PipelineShape shape = replicated_shape({1, 1}, 2);
  const Schedule schedule = *make_schedule(ScheduleKind::OneFOneB, shape);
  const ScheduleCosts mean{.forward = {2, 2}};
  // The first is short in stage 0 and long in stage 1, the second the other way round: nobody waits twice.
  const ScheduleCosts first{.forward = {1, 3}}, second{.forward = {3, 1}};
  EXPECT_DOUBLE_EQ(simulate(schedule, shape, mean, {}).makespan, 6);
  EXPECT_DOUBLE_EQ(simulate(schedule, shape, mean, {.microbatch_costs = {first, second}}).makespan, 5);
  EXPECT_DOUBLE_EQ(simulate(schedule, shape, mean, {.microbatch_costs = {second, first}}).makespan, 7);
  ScheduleCosts wide = second;
  wide.transfer = {10};  // for the activation and the gradient of this microbatch
  EXPECT_DOUBLE_EQ(simulate(schedule, shape, mean, {.microbatch_costs = {first, wide}}).makespan, 25);
}

/// Two replicas hold stages 0 and 2, two others 1 and 3. Each has one microbatch, which ends stage 2 at 8 and
/// stage 0 at 12.
TEST(SimulateModel, AnAllReduceGoesOnBesideTheOtherStagesOfARank) {
  PipelineShape shape = chain_shape(4, 2);
  const std::vector<RankId> front{RankId(0), RankId(1)}, back{RankId(2), RankId(3)};
  shape.ranks_of_stage = {front, back, front, back};
  const Schedule schedule = *make_schedule(ScheduleKind::Interleaved, shape);
  ScheduleCosts costs{.forward = {1, 1, 1, 1},
                      .backward_input = {1, 1, 1, 1},
                      .backward_weight = {1, 1, 1, 1},
                      .reduce = {1, 0, 5, 0}};
  EXPECT_DOUBLE_EQ(simulate(schedule, shape, costs).makespan, 12 + 1 + 5);
  costs.reduces_beside = true;
  EXPECT_DOUBLE_EQ(simulate(schedule, shape, costs).makespan, 8 + 5 + 1);
  costs.reduce = {1, 0, 3, 0};
  EXPECT_DOUBLE_EQ(simulate(schedule, shape, costs).makespan, 12 + 1);
}

TEST(SimulateModel, NormsAreWaitedForByAllRanks) {
  const PipelineShape shape = replicated_shape({1, 1}, 1);
  const Schedule schedule = *make_schedule(ScheduleKind::OneFOneB, shape);
  ScheduleCosts costs{
      .forward = {1, 1}, .backward_input = {1, 1}, .backward_weight = {1, 1}, .update = {0.5, 10}};
  EXPECT_DOUBLE_EQ(simulate(schedule, shape, costs).makespan, 14);  // rank 1 updates from 4 on
  costs.norm = {1, 2};
  costs.agreement = 0.25;
  // Rank 1 has its norm at 6, rank 0 at 7.
  const Simulation clipped = simulate(schedule, shape, costs);
  EXPECT_DOUBLE_EQ(clipped.makespan, 17.25);
  EXPECT_DOUBLE_EQ(clipped.ranks[0].back().end, 7.75);
  EXPECT_DOUBLE_EQ(steady_step(schedule, shape, costs), 16.25);

  // Ranks with two stages wait once for both updates.
  const PipelineShape chunks =
      shape_of(uniform_plan("m", {"a", "b", "c", "d"}, 4, 1, 2, ScheduleKind::Interleaved, 2));
  const Schedule interleaved = *make_schedule(ScheduleKind::Interleaved, chunks);
  ScheduleCosts unit{.forward = {1, 1, 1, 1}, .backward_input = {2, 2, 2, 2}};
  const double without = simulate(interleaved, chunks, unit).makespan;
  unit.norm = {0, 0, 0, 0};
  unit.agreement = 3;
  EXPECT_DOUBLE_EQ(simulate(interleaved, chunks, unit).makespan, without + 3);
}

/// One rank, then two replicas whose batch normalisations exchange: stage 0 takes 1 and 1, stage 1 takes 3
/// and 3.
TEST(SimulateModel, ReplicasThatMeetWaitForTheLast) {
  PipelineShape shape = chain_shape(2, 2);
  shape.ranks_of_stage = {{RankId(0)}, {RankId(1), RankId(2)}};
  const Schedule schedule = *make_schedule(ScheduleKind::GPipe, shape);
  ScheduleCosts costs{.forward = {1, 3}, .backward_input = {0.5, 2}, .backward_weight = {0.5, 1}};
  // Replica 1 begins at 2, a second later than replica 0; stage 0's backwards are at 7 to 8 and 8 to 9.
  EXPECT_DOUBLE_EQ(simulate(schedule, shape, costs).makespan, 9);
  costs.meets = {0, 1};
  // Both from 2 to 8; stage 0's at 8 and at 9.
  const Simulation met = simulate(schedule, shape, costs);
  EXPECT_DOUBLE_EQ(met.makespan, 10);
  EXPECT_EQ(met.busy, (std::vector<double>{4, 6, 6}));
  double end = 0;
  for (const CriticalStep& step : critical_path(met, shape, Transport::Buffered)) {
    EXPECT_DOUBLE_EQ(step.start, end);
    end = step.end;
  }
  EXPECT_DOUBLE_EQ(end, 10);
  PipelineShape turned = shape;  // the replica that comes last is looked at first
  turned.ranks_of_stage[1] = {RankId(2), RankId(1)};
  EXPECT_DOUBLE_EQ(simulate(*make_schedule(ScheduleKind::GPipe, turned), turned, costs).makespan, 10);
  // Replica 0 takes twice as long, and the other one with it: 2 to 8 to 14.
  EXPECT_DOUBLE_EQ(simulate(schedule, shape, costs, {.slowdown = {1, 2}}).makespan, 16);
  // A stage on one rank waits for no replica. In a round in which not all replicas have a microbatch,
  // replicas cannot wait for each other.
  costs.meets = {1, 0};
  EXPECT_DOUBLE_EQ(simulate(schedule, shape, costs).makespan, 9);
  costs.meets = {0, 1};
  shape.microbatches = 3;
  const Schedule odd = *make_schedule(ScheduleKind::GPipe, shape);
  EXPECT_FALSE(check_meetings(odd, shape, Transport::Buffered, costs).empty());
  ScheduleCosts alone = costs;
  alone.meets.clear();
  EXPECT_DOUBLE_EQ(simulate(odd, shape, costs).makespan, simulate(odd, shape, alone).makespan);
}

/// With split backwards the weight gradients wait for no replica. On both replicas 2F takes 2 to 5, and 2I 5
/// to 7.
TEST(SimulateModel, ReplicasMeetInTheInputsBackwardAlone) {
  PipelineShape shape = chain_shape(2, 2);
  shape.ranks_of_stage = {{RankId(0)}, {RankId(1), RankId(2)}};
  const auto compute = [](Op op, int stage, int microbatch) {
    return Action{op, StageId(stage), MicrobatchId(microbatch), {}, {}};
  };
  std::vector<std::vector<Action>> lists(3);
  for (int m = 0; m < 2; ++m) {
    lists[0].push_back(compute(Op::Forward, 0, m));
    for (const Op op : {Op::Forward, Op::BackwardInput, Op::BackwardWeight})
      lists[m + 1].push_back(compute(op, 1, m));
  }
  for (int m = 0; m < 2; ++m) lists[0].push_back(compute(Op::Backward, 0, m));
  const Schedule schedule = lower(ScheduleKind::Custom, shape, lists);
  const ScheduleCosts costs{
      .forward = {1, 3}, .backward_input = {0.5, 2}, .backward_weight = {0.5, 1}, .meets = {0, 1}};
  const Simulation met = simulate(schedule, shape, costs);
  EXPECT_DOUBLE_EQ(met.makespan, 9);
  for (const std::size_t rank : {1, 2}) {
    for (const TimedAction& t : met.ranks[rank]) {
      if (t.action.op == Op::Forward) {
        EXPECT_DOUBLE_EQ(t.start, 2);
      }
      if (t.action.op == Op::BackwardWeight) {
        EXPECT_DOUBLE_EQ(t.end, 8);
      }
    }
  }
}

TEST(SimulateModel, CountsBytes) {
  const PipelineShape shape = replicated_shape({1, 1}, 8);
  const ScheduleCosts costs{.forward = {1, 1}, .backward_input = {1, 1}};
  const SimulationOptions options{
      .bytes = {100},
      .stage_bytes = {{.weights = 1000, .state = 7, .stash = 10, .half_done = 10},
                      {.weights = 2000, .state = 8, .stash = 20, .half_done = 20}}};
  const Simulation flushing = simulate(*make_schedule(ScheduleKind::OneFOneB, shape), shape, costs, options);
  EXPECT_EQ(flushing.link_bytes, (std::vector<double>{1600}));
  EXPECT_EQ(flushing.peak_bytes, (std::vector<double>{1027, 2028}));
  // Gradients are reduced from the last backward on, which has one stash.
  SimulationOptions reducing = options;
  reducing.stage_bytes[0].reduced = 5000;
  EXPECT_EQ(simulate(*make_schedule(ScheduleKind::OneFOneB, shape), shape, costs, reducing).peak_bytes,
            (std::vector<double>{6017, 2028}));
  const Simulation stashing = simulate(*make_schedule(ScheduleKind::PipeDream, shape), shape, costs, options);
  EXPECT_EQ(stashing.peak_versions, (std::vector<int>{2, 1}));
  EXPECT_EQ(stashing.peak_bytes, (std::vector<double>{2027, 2028}));
}

}  // namespace
}  // namespace millrace
