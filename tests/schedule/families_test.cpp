// The published figures of every schedule: anchors from an independent simulator, closed formulas, orders.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "runtime/schedule/list_schedule.h"
#include "runtime/schedule/schedule.h"
#include "tests/schedule/every_shape.h"

namespace millrace {
namespace {

using Kind = ScheduleKind;

/// p places with the chunks that the schedule wants.
PipelineShape shape_for(Kind kind, int p, int microbatches, int chunks = 2) {
  if (is_v_shaped(kind)) return v_shape(p, microbatches);
  if (kind == Kind::Interleaved) return interleaved_shape(p, chunks, microbatches);
  return chain_shape(p, microbatches);
}

/// A rank's F = I = 1 and W = `weight`, shared by its chunks.
ScheduleCosts rank_costs(const PipelineShape& shape, double weight) {
  const double share = static_cast<double>(shape.num_ranks()) / shape.num_stages();
  const auto n = static_cast<std::size_t>(shape.num_stages());
  return {.forward = std::vector<double>(n, share),
          .backward_input = std::vector<double>(n, share),
          .backward_weight = std::vector<double>(n, share * weight)};
}

struct Figures {
  double makespan = 0, span = 0;
  std::vector<double> peaks;  ///< each rank's peak in microbatches; a chunk's microbatch counts as a share
  double idle(int microbatches, double weight = 1) const { return makespan - microbatches * (2 + weight); }
};

Figures figures(Kind kind, const PipelineShape& shape, double weight = 1) {
  const Result<Schedule> schedule = make_schedule(kind, shape);
  EXPECT_TRUE(schedule) << to_string(kind) << ": " << (schedule ? "" : to_string(schedule.problems()));
  if (!schedule) return {};
  const Simulation s = simulate(*schedule, shape, rank_costs(shape, weight));
  Figures f{.makespan = s.makespan};
  for (const auto& actions : s.ranks) {
    const auto computes = [](const TimedAction& t) { return is_compute(t.action.op); };
    const auto first = std::ranges::find_if(actions, computes);
    const auto last = std::find_if(actions.rbegin(), actions.rend(), computes);
    f.span = std::max(f.span, last->end - first->start);
  }
  for (int peak : s.peak_stash) f.peaks.push_back(peak * 1.0 * shape.num_ranks() / shape.num_stages());
  return f;
}

std::vector<double> equal_peaks(int p, double peak) {
  return std::vector<double>(p, peak);
}

TEST(Families, ReproduceTheAnchors) {
  struct Row {
    Kind kind;
    int chunks;
    double m8, m8_light, m16, p8;
    std::vector<double> peaks;
  };
  const Row rows[] = {
      {Kind::GPipe, 1, 33, 30.25, 57, 117, {8, 8, 8, 8}},
      {Kind::OneFOneB, 1, 33, 30.25, 57, 117, {4, 3, 2, 1}},
      {Kind::Interleaved, 2, 28.5, 26.125, 52.5, 106.5, {5.5, 4.5, 3.5, 2.5}},
      {Kind::Interleaved, 4, 26.25, 24.0625, 50.25, 101.25, {4.75, 4.25, 3.75, 3.25}},
      {Kind::ZeroBubbleH1, 1, 27, 25.75, 51, 103, {4, 4, 4, 4}},
      {Kind::ZeroBubbleH2, 1, 27, 25, 51, 103, {7, 7, 7, 7}},
      {Kind::ZeroBubbleV, 2, 25.5, 23.5, 49.5, 99.5, {4, 4, 4, 4}},
      {Kind::DualPipeV, 2, 25.5, 23.875, 49.5, 99.5, {4.5, 4.5, 4.5, 4.5}},  // see
                                                                             // AnOverlappedPairWaitsForBoth
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(to_string(row.kind) + " v=" + std::to_string(row.chunks));
    const Figures m8 = figures(row.kind, shape_for(row.kind, 4, 8, row.chunks));
    EXPECT_DOUBLE_EQ(m8.makespan, row.m8);
    EXPECT_EQ(m8.peaks, row.peaks);
    EXPECT_DOUBLE_EQ(figures(row.kind, shape_for(row.kind, 4, 8, row.chunks), 0.75).makespan, row.m8_light);
    EXPECT_DOUBLE_EQ(figures(row.kind, shape_for(row.kind, 4, 16, row.chunks)).makespan, row.m16);
    EXPECT_DOUBLE_EQ(figures(row.kind, shape_for(row.kind, 8, 32, row.chunks)).makespan, row.p8);
  }
  for (Kind kind : {Kind::ZeroBubbleH2, Kind::ZeroBubbleV}) {  // no idle time between a rank's first and last
    EXPECT_DOUBLE_EQ(figures(kind, shape_for(kind, 4, 8)).span, 24);
    EXPECT_DOUBLE_EQ(figures(kind, shape_for(kind, 4, 16)).span, 48);
    EXPECT_DOUBLE_EQ(figures(kind, shape_for(kind, 8, 32)).span, 96);
  }
}

TEST(Families, FollowTheClosedFormulas) {
  for (int p = 1; p <= 8; ++p) {
    for (int m : {2 * p, 3 * p, 4 * p}) {
      SCOPED_TRACE("p=" + std::to_string(p) + " m=" + std::to_string(m));
      for (int v = 2; v <= 4; ++v) {
        const Figures f = figures(Kind::Interleaved, interleaved_shape(p, v, m));
        EXPECT_NEAR(f.idle(m), 3.0 * (p - 1) / v, 1e-9);
        for (int r = 0; r < p; ++r)
          EXPECT_NEAR(f.peaks[r], std::min<double>(m, p + (p - 1.0) / v - 2.0 * r / v), 1e-9);
      }
      const Figures h1 = figures(Kind::ZeroBubbleH1, chain_shape(p, m));
      EXPECT_DOUBLE_EQ(h1.idle(m), p - 1);
      EXPECT_EQ(h1.peaks, equal_peaks(p, p));
      const Figures h2 = figures(Kind::ZeroBubbleH2, chain_shape(p, m));
      EXPECT_DOUBLE_EQ(h2.span, 3.0 * m);
      EXPECT_EQ(h2.peaks, equal_peaks(p, 2 * p - 1));
      const Figures v = figures(Kind::ZeroBubbleV, v_shape(p, m));
      EXPECT_DOUBLE_EQ(v.span, 3.0 * m);
      EXPECT_EQ(v.peaks, equal_peaks(p, p));
      const Figures dual = figures(Kind::DualPipeV, v_shape(p, m));
      EXPECT_EQ(dual.peaks, equal_peaks(p, p + 0.5));
      EXPECT_DOUBLE_EQ(dual.idle(m), (p - 1) / 2.0);  // F and B one after the other
      const Figures half = figures(Kind::VHalf, v_shape(p, m)), least = figures(Kind::VMin, v_shape(p, m));
      EXPECT_DOUBLE_EQ(half.idle(m), p <= 2 ? p - 1 : 1.5 * p - 2.5);
      EXPECT_DOUBLE_EQ(least.idle(m), p == 1 ? 0 : 2 * p - 2.5);
      // Half and two thirds of 1F1B's 3 (p - 1); (p + 2) / 2 and (p + 4) / 3 microbatches.
      EXPECT_LE(half.idle(m), 1.5 * (p - 1));
      EXPECT_LE(least.idle(m), 2.0 * (p - 1));
      EXPECT_LE(std::ranges::max(half.peaks), (p + 2) / 2.0);
      EXPECT_LE(std::ranges::max(least.peaks), (p + 4) / 3.0);
    }
  }
}

/// K trainings share one fill and one drain; nothing else of a schedule changes.
TEST(Families, SeveralArraysShareTheBubble) {
  for (int p = 1; p <= 4; ++p) {
    for (int m = 1; m <= 5; ++m) {
      for (int k = 1; k <= 5; ++k) {
        SCOPED_TRACE("p=" + std::to_string(p) + " m=" + std::to_string(m) + " k=" + std::to_string(k));
        PipelineShape shape = chain_shape(p, m * k);
        shape.arrays = k;
        for (const Kind kind : {Kind::GPipe, Kind::OneFOneB, Kind::ZeroBubbleH1}) {
          const Result<Schedule> schedule = make_schedule(kind, shape);
          ASSERT_TRUE(schedule);
          const Simulation s = simulate(*schedule, shape, rank_costs(shape, 1));
          EXPECT_EQ(s.peak_versions, std::vector<int>(p, 1));
          const Result<Schedule> one = make_schedule(kind, chain_shape(p, m * k));
          EXPECT_DOUBLE_EQ(s.makespan, simulate(*one, chain_shape(p, m * k), rank_costs(shape, 1)).makespan);
          for (const auto& actions : schedule->ranks)
            EXPECT_EQ(std::ranges::count(actions, Op::Update, &Action::op), k);
          if (kind == Kind::ZeroBubbleH1) continue;
          for (const double bubble : s.bubble_fraction)
            EXPECT_NEAR(bubble, (p - 1.0) / (k * m + p - 1), 1e-12);
        }
      }
    }
  }
}

/// Without a flush: while an array's last gradients come back, the next one's microbatches are forwarded.
TEST(Families, ArraysFollowWithoutAFlush) {
  PipelineShape shape = chain_shape(2, 4);
  shape.arrays = 2;
  EXPECT_EQ(
      to_string(*make_schedule(Kind::OneFOneB, shape)),
      "1f1b\n"
      "0F0 0SEND_F0>1@1 0F1 0SEND_F1>1@1 0RECV_B0<1@1 0B0 0F2 0SEND_F2>1@1 0RECV_B1<1@1 0B1 0UPDATE1 0F3 "
      "0SEND_F3>1@1 0RECV_B2<1@1 0B2 0RECV_B3<1@1 0B3 0UPDATE3\n"
      "1RECV_F0<0@0 1F0 1B0 1SEND_B0>0@0 1RECV_F1<0@0 1F1 1B1 1SEND_B1>0@0 1RECV_F2<0@0 1UPDATE1 1F2 1B2 "
      "1SEND_B2>0@0 1RECV_F3<0@0 1F3 1B3 1SEND_B3>0@0 1UPDATE3\n");
}

/// DualPipeV as the anchors have it: a pair that is to be overlapped starts when both its tensors are there,
/// and both its results leave at its end. Here as two computations after each other, without overlap.
Schedule with_joined_pairs(Schedule schedule) {
  for (auto& actions : schedule.ranks) {
    bool joined_one =
        &actions != &schedule.ranks.back();  // the first pair of the last place is not overlapped
    for (std::size_t i = 0; i < actions.size(); ++i) {
      if (actions[i].op != Op::Forward) continue;
      std::size_t next = i + 1;
      while (next < actions.size() && is_transfer(actions[next].op)) ++next;
      if (next == actions.size() || actions[next].op != Op::Backward || !std::exchange(joined_one, true))
        continue;
      std::size_t end = next + 1;
      while (end < actions.size() && is_transfer(actions[end].op)) ++end;
      const auto at = [&](std::size_t k) { return actions.begin() + static_cast<std::ptrdiff_t>(k); };
      const auto receives = [](const Action& a) {
        return a.op == Op::RecvActivation || a.op == Op::RecvGradient;
      };
      const auto computes = [](const Action& a) { return is_compute(a.op); };
      const auto middle = std::stable_partition(at(i), at(next), receives);
      std::stable_partition(middle, at(next + 1), computes);
      i = next;
    }
  }
  return schedule;
}

TEST(Families, AnOverlappedPairWaitsForBoth) {
  const std::tuple<int, int, double, double> rows[] = {
      {4, 8, 1, 27}, {4, 8, 0.75, 25.375}, {4, 16, 1, 51}, {8, 32, 1, 103}};
  for (const auto& [p, m, weight, makespan] : rows) {
    const PipelineShape shape = v_shape(p, m);
    const Schedule joined = with_joined_pairs(*make_schedule(Kind::DualPipeV, shape));
    EXPECT_DOUBLE_EQ(simulate(joined, shape, rank_costs(shape, weight)).makespan, makespan);
  }
}

/// Computations of a rank in PyTorch's words.
std::string words_of(const std::vector<Action>& actions) {
  std::string words;
  for (const Action& a : actions) {
    if (is_compute(a.op)) words += (words.empty() ? "" : ",") + to_string(a);
  }
  return words;
}
TEST(Families, ZeroBubbleOrdersAreTheirPapers) {
  const Schedule h1 = *make_schedule(Kind::ZeroBubbleH1, chain_shape(3, 3));
  EXPECT_EQ(words_of(h1.ranks[0]), "0F0,0F1,0F2,0I0,0W0,0I1,0W1,0I2,0W2");
  EXPECT_EQ(words_of(h1.ranks[2]), "2F0,2I0,2F1,2I1,2F2,2I2,2W0,2W1,2W2");
  const Schedule v = *make_schedule(Kind::ZeroBubbleV, v_shape(2, 3));
  EXPECT_EQ(words_of(v.ranks[0]), "0F0,0F1,0F2,3F0,3I0,3W0,3F1,3I1,3W1,0I0,0W0,3F2,3I2,3W2,0I1,0W1,0I2,0W2");
  EXPECT_EQ(words_of(v.ranks[1]), "1F0,2F0,1F1,2F1,2I0,2W0,1F2,1I0,1W0,2F2,2I1,2W1,1I1,2I2,1I2,1W1,2W2,1W2");
}

TEST(Families, AsynchronousSchedulesHoldTheirVersions) {
  const auto peaks = [](Kind kind, const PipelineShape& shape) {
    const Schedule schedule = *make_schedule(kind, shape);
    return peaks_of(schedule, shape).versions;
  };
  EXPECT_EQ(peaks(Kind::PipeDream, chain_shape(4, 12)), (std::vector<int>{4, 3, 2, 1}));
  EXPECT_EQ(peaks(Kind::PipeDreamVSync, chain_shape(4, 12)), (std::vector<int>{4, 4, 4, 4}));
  EXPECT_EQ(peaks(Kind::PipeDream2BW, chain_shape(4, 16)), (std::vector<int>{2, 2, 2, 2}));
}

TEST(Families, TheStashLimitIsWhatIsHeld) {
  for (int p = 1; p <= 8; ++p) {
    for (Kind kind :
         {Kind::GPipe, Kind::OneFOneB, Kind::Interleaved, Kind::ZeroBubbleH1, Kind::ZeroBubbleH2,
          Kind::ZeroBubbleV, Kind::VHalf, Kind::VMin, Kind::DualPipeV, Kind::PipeDream, Kind::PipeDream2BW}) {
      const PipelineShape shape = shape_for(kind, p, 4 * p, 3);
      const std::vector<int> stash = peaks_of(*make_schedule(kind, shape), shape).stash;
      int most = 0, limit = 0;
      for (int r = 0; r < p; ++r) {
        most = std::max(most, stash[r]);
        limit = std::max(limit, stash_limit(kind, shape, RankId(r)));
        if (!is_v_shaped(kind)) {
          EXPECT_EQ(stash[r], stash_limit(kind, shape, RankId(r))) << to_string(kind);
        }
      }
      EXPECT_EQ(most, limit) << to_string(kind) << " p=" << p;
    }
  }
}

TEST(Families, AsynchronousSchedulesHaveNoBubbleAfterTheFill) {
  for (int p = 1; p <= 6; ++p) {
    for (Kind kind : {Kind::PipeDream, Kind::PipeDreamVSync, Kind::PipeDream2BW}) {
      const Figures few = figures(kind, chain_shape(p, 4 * p)), many = figures(kind, chain_shape(p, 9 * p));
      EXPECT_DOUBLE_EQ(many.makespan - few.makespan, 5 * p * 3) << to_string(kind) << " p=" << p;
      for (int s = 0; s < p; ++s) EXPECT_EQ(many.peaks[s], p - s);
    }
  }
}

TEST(Families, InterleavedTakesAnyNumberOfMicrobatches) {
  // A step that is not whole cycles costs no more than the next one that is.
  for (int p : {2, 3, 4, 5}) {
    for (int v = 2; v <= 4; ++v) {
      for (int m = p; m <= 4 * p; ++m) {
        const double whole =
            figures(Kind::Interleaved, interleaved_shape(p, v, (m + p - 1) / p * p)).makespan;
        EXPECT_LE(figures(Kind::Interleaved, interleaved_shape(p, v, m)).makespan, whole)
            << "p=" << p << " v=" << v << " m=" << m;
      }
    }
  }
}

TEST(Families, ForwardVersionsAreTheirFormulas) {
  const int p = 4, m = 16;
  const PipelineShape shape = chain_shape(p, m);
  const auto versions = [&](Kind kind) { return forward_versions(*make_schedule(kind, shape), shape); };
  const auto stash = versions(Kind::PipeDream), sync = versions(Kind::PipeDreamVSync),
             two = versions(Kind::PipeDream2BW), flush = versions(Kind::ZeroBubbleH1);
  for (int s = 0; s < p; ++s) {
    for (int k = 0; k < m; ++k) {
      const auto i = static_cast<std::size_t>(s * m + k);
      EXPECT_EQ(stash[i], std::max(0, k - (p - 1 - s)));  // w_s^(t - (p-1-s))
      EXPECT_EQ(sync[i], std::max(0, k - (p - 1)));       // w^(t - p + 1) everywhere
      EXPECT_EQ(two[i], std::max(0, k / 4 - 1));          // w(t-1) of batch t
      EXPECT_EQ(flush[i], 0);
    }
  }
}

/// `ranks` stages of one rank, then two that each rank has a replica of; links as of DLRM.
PipelineShape spread_shape(int ranks, int microbatches) {
  PipelineShape shape{.microbatches = microbatches};
  std::vector<RankId> all;
  for (int r = 0; r < ranks; ++r) {
    shape.ranks_of_stage.push_back({RankId(r)});
    shape.links.push_back({StageId(r), StageId(ranks + 1)});
    all.emplace_back(r);
  }
  shape.ranks_of_stage.insert(shape.ranks_of_stage.end(), {all, all});
  shape.links.push_back({StageId(ranks), StageId(ranks + 1)});
  return shape;
}

TEST(Families, SpreadTablesAreValidForAllShapes) {
  constexpr Kind kind = Kind::SpreadTables;
  for (int ranks = 2; ranks <= 4; ++ranks) {
    for (int m = ranks; m <= 3 * ranks; ++m) {
      PipelineShape shape = spread_shape(ranks, m);
      expect_valid(kind, shape, "r=" + std::to_string(ranks) + " m=" + std::to_string(m));
      EXPECT_LE(std::ranges::max(peaks_of(*make_schedule(kind, shape), shape).stash), ranks + 2);
      if (m % ranks != 0 || HasFatalFailure()) continue;
      shape.arrays = 2, shape.microbatches = 2 * m;
      expect_valid(kind, shape, "two arrays, r=" + std::to_string(ranks) + " m=" + std::to_string(m));
    }
  }
  for_every_shape(3, 4, 2, 2, [&](const ShapeCase& c) {
    if (c.kind == Kind::OneFOneB && c.microbatches >= c.replicas)
      expect_valid(kind, interleaved_shape(c.places, c.chunks, c.microbatches, c.replicas), c.name());
  });
}

TEST(Families, SpreadTablesExchangeBesideTheStageThatNeedsNone) {
  const PipelineShape shape = spread_shape(3, 3);
  const Schedule schedule = *make_schedule(Kind::SpreadTables, shape);
  for (const auto& actions : schedule.ranks) {
    const auto place = [&](Op op, int stage) {
      return std::ranges::find_if(
                 actions,
                 [&](const Action& a) { return a.op == op && (stage < 0 || a.stage == StageId(stage)); }) -
             actions.begin();
    };
    EXPECT_LT(place(Op::SendActivation, -1), place(Op::Forward, 3));
    EXPECT_LT(place(Op::Forward, 3), place(Op::RecvActivation, 4));
    EXPECT_LT(place(Op::SendGradient, 4), place(Op::Backward, 3));
    EXPECT_LT(place(Op::Backward, 3), place(Op::RecvGradient, -1));
  }
}

TEST(Families, RefuseArraysThatDoNotFit) {
  PipelineShape shape = chain_shape(2, 6);
  for (const int arrays : {0, 4, 7}) {
    shape.arrays = arrays;
    EXPECT_FALSE(make_schedule(Kind::OneFOneB, shape)) << arrays;
  }
  shape.arrays = 2;
  EXPECT_TRUE(make_schedule(Kind::OneFOneB, shape));
  for (const Kind kind : {Kind::PipeDream, Kind::PipeDreamVSync, Kind::PipeDream2BW})
    EXPECT_FALSE(make_schedule(kind, shape));
  PipelineShape replicated = chain_shape(2, 6, 2);  // three microbatches of each array on two replicas
  replicated.arrays = 2;
  EXPECT_FALSE(make_schedule(Kind::OneFOneB, replicated));
}

TEST(Families, RefuseShapesThatDoNotFit) {
  PipelineShape uneven = interleaved_shape(2, 2, 4);
  uneven.ranks_of_stage[3] = {RankId(0)};
  PipelineShape mixed = v_shape(2, 4);
  mixed.ranks_of_stage[0].push_back(RankId(2));
  PipelineShape every = chain_shape(4, 8);
  every.update_every = 2;
  const std::tuple<Kind, PipelineShape, const char*> cases[] = {
      {Kind::OneFOneB, v_shape(2, 4), "one stage per rank"},
      {Kind::ZeroBubbleH2, interleaved_shape(2, 2, 4), "one stage per rank"},
      {Kind::PipeDream, v_shape(2, 4), "one stage per rank"},
      {Kind::ZeroBubbleV, chain_shape(4, 4), "two stages per rank"},
      {Kind::VMin, interleaved_shape(2, 2, 4), "on the ranks of stage"},
      {Kind::Interleaved, v_shape(2, 4), "on the ranks of stage"},
      {Kind::Interleaved, uneven, "on the ranks of stage"},
      {Kind::DualPipeV, mixed, "as many replicas"},
      {Kind::PipeDream2BW, every, "more than two versions"},
      {Kind::PipeDream2BW, chain_shape(4, 9), "not whole updates"},
      {Kind::PipeDreamVSync, chain_shape(2, 3, 2), "do not divide"},
      {Kind::Custom, chain_shape(2, 3), "read from a file"},
      {Kind::ZeroBubbleV, v_shape(2, 1, 2), "replicas for 1 microbatches"},
  };
  for (const auto& [kind, shape, message] : cases) {
    const Result<Schedule> schedule = make_schedule(kind, shape);
    ASSERT_FALSE(schedule) << to_string(kind) << " " << message;
    EXPECT_NE(to_string(schedule.problems()).find(message), std::string::npos)
        << to_string(schedule.problems());
  }
}

}  // namespace
}  // namespace millrace
