// The bytes that a rank holds of a stage.
#include <gtest/gtest.h>

#include "tests/optimizer/every_cut.h"
#include "tests/schedule/shapes.h"

namespace millrace {
namespace {

const StageMemory kHeld{.parameters = 1000,
                        .saved = 100,
                        .between = 130,
                        .incoming = 10,
                        .arrived = 4,
                        .outgoing = 7,
                        .workspace = 50,
                        .split_workspace = 60,
                        .rule_copies = 2};
constexpr Bytes kWeights = 1000 * (1 + 1 + 2), kSends = 10 + 7;

Bytes total(StageMemory held, std::vector<StageMoment> moments) {
  held.moments = moments;
  return held.total();
}

/// Replicas are counted once for each of the equal pipelines into which a layout falls apart.
TEST(StashCounts, AreThoseOfTheWholeSchedule) {
  const LayerGraph graph{.model = "m", .nodes = {{.name = "a"}}};
  const ClusterSpec cluster = ClusterSpec::local(1);
  for (const ScheduleKind kind :
       {ScheduleKind::GPipe, ScheduleKind::OneFOneB, ScheduleKind::ZeroBubbleH1, ScheduleKind::ZeroBubbleH2,
        ScheduleKind::PipeDream, ScheduleKind::PipeDreamVSync, ScheduleKind::PipeDream2BW}) {
    for (const auto& replicas :
         {std::vector<int>{4, 4, 4}, {2, 4, 6}, {6, 3}, {8}, {4, 8, 4}, {2, 2, 12}, {3, 5}}) {
      for (const int microbatches : {16, 24, 30}) {
        PipelineShape shape = replicated_shape(replicas, microbatches);
        if (kind == ScheduleKind::PipeDream2BW) shape.update_every = shape.microbatches;
        const Result<StashCounts> counts = CostModel(graph, cluster).stash(kind, shape);
        if (is_asynchronous(kind)) shape.microbatches = 2 * filling_of(shape);
        const Result<Schedule> whole = make_schedule(kind, shape);
        ASSERT_EQ(counts.has_value(), whole.has_value());
        if (!whole) continue;
        SCOPED_TRACE(to_string(kind) + ::testing::PrintToString(replicas) + std::to_string(microbatches));
        EXPECT_EQ(counts->moments, fullest_moments(*whole, shape));
        const std::vector<int> of_ranks = peaks_of(*whole, shape).versions;
        for (std::size_t s = 0; s < replicas.size(); ++s) {
          int most = 0;
          for (const RankId rank : shape.ranks_of_stage[s]) most = std::max(most, of_ranks[rank.value]);
          EXPECT_EQ(counts->versions[s], most);
        }
      }
    }
  }
}

TEST(StageMemory, CountsTheFullestMoment) {
  EXPECT_EQ(total(kHeld, {{.stashed = 3, .activations = 2, .gradients = 1}}),
            kWeights + 3 * 104 + 2 * 10 + 7 + kSends + 50);
  // A backward to the inputs has two whole stashes and the rest of an earlier backward.
  const StageMoment half{.stashed = 3, .open = 1, .op = Op::BackwardInput};
  EXPECT_EQ(total(kHeld, {half}), kWeights + 2 * 104 + 134 + kSends + 60);
  EXPECT_EQ(total(kHeld, {half, {.stashed = 2}}), total(kHeld, {half}));
}

TEST(StageMemory, WithRecomputeHasTheSavedTensorsOfOneBackward) {
  StageMemory held = kHeld;
  held.recompute = true;
  EXPECT_EQ(total(held, {{.stashed = 3}}), kWeights + 3 * 10 + 100 + kSends + 50);
  const StageMoment half{.stashed = 3, .open = 1, .op = Op::BackwardInput};
  EXPECT_EQ(total(held, {half}), kWeights + 2 * 10 + 140 + 100 + kSends + 60);
}

/// Two layers; the second one uses the first one's parameters.
LayerGraph tied_graph() {
  LayerGraph graph{.model = "tied", .microbatch = 1};
  graph.nodes = {
      {.name = "first",
       .parameter_bytes = 1000,
       .saved_bytes = 10,
       .between_bytes = 25,
       .workspace_bytes = 70,
       .input_workspace_bytes = 40,
       .weight_workspace_bytes = 30},
      {.name = "second", .lowered_bytes = 800, .saved_bytes = 10, .tied_to = "first", .tied_bytes = 800}};
  graph.edges = {{.producer = 0, .consumer = 1, .tensor = "first", .bytes = 5}};
  return graph;
}

TEST(StageMemory, HasACopyOfParametersThatAnotherStageOwns) {
  const LayerGraph graph = tied_graph();
  const ClusterSpec cluster = ranks(2);
  const CostModel model(graph, cluster);
  const auto apart = model.memory_of({{{0}, {RankId(0)}}, {{1}, {RankId(1)}}}, 1);
  EXPECT_EQ(apart[0].lowered, 0);
  EXPECT_EQ(apart[1].lowered, 2 * 800);
  EXPECT_EQ(model.memory_of({{{0, 1}, {RankId(0)}}}, 1)[0].lowered, 800);
}

TEST(StageMemory, OfASplitBackwardIsWhatTheHalvesKeep) {
  const LayerGraph graph = tied_graph();
  const Result<LayerGraph> read = LayerGraph::parse(graph.to_json(), "written");
  ASSERT_TRUE(read) << to_string(read.problems());
  EXPECT_EQ(read->nodes[0].between_bytes, 25);
  EXPECT_EQ(read->nodes[0].weight_workspace_bytes, 30);
  EXPECT_EQ(read->nodes[1].between_bytes, std::nullopt);
  EXPECT_EQ(read->nodes[1].tied_to, "first");
  EXPECT_EQ(read->nodes[1].tied_bytes, 800);
  const ClusterSpec cluster = ranks(2);
  const CostModel model(*read, cluster);
  const StageMemory held = model.memory_of({{{0}, {RankId(0)}}, {{1}, {RankId(1)}}}, 1)[0];
  EXPECT_EQ(held.workspace, 70);
  EXPECT_EQ(held.split_workspace, 40);
  EXPECT_EQ(model.memory_of({{{0, 1}, {RankId(0)}}}, 1)[0].between, 25 + 10);
}

TEST(StageMemory, CpuRanksOfOneHostReceiveNoGradients) {
  LayerGraph graph = tied_graph();
  const auto received = [&](const ClusterSpec& cluster) {
    return CostModel(graph, cluster).memory_of({{{0, 1}, {RankId(0), RankId(1)}}}, 1)[0].reduced;
  };
  ClusterSpec apart = ranks(2);
  apart.levels.insert(apart.levels.begin(), {1, 1e9, 1e-5});
  EXPECT_EQ(received(ranks(2)), 1000) << "the profile does not say how it was measured";
  graph.measured = {.ranks = 2, .blocks = 3};
  EXPECT_EQ(received(ranks(2)), 0);
  EXPECT_EQ(received(apart), 1000);
  graph.device = "cuda";
  EXPECT_EQ(received(ranks(2)), 1000);
}

// Following the list action by action finds the same as the fullest moments, where a rank has one stage.
TEST(StageMemory, IsWhatARanksListSays) {
  const StageBytes bytes = kHeld.bytes();
  for (const ScheduleKind kind : {ScheduleKind::OneFOneB, ScheduleKind::GPipe, ScheduleKind::ZeroBubbleH1}) {
    const PipelineShape shape = replicated_shape({1, 1, 1}, 5);
    const Schedule schedule = *make_schedule(kind, shape);
    const std::vector<double> by_rank = peak_bytes_of(schedule, shape, {bytes, bytes, bytes});
    const auto moments = fullest_moments(schedule, shape);
    for (std::size_t s = 0; s < 3; ++s) EXPECT_EQ(by_rank[s], static_cast<double>(total(kHeld, moments[s])));
  }
}

// Two stages of a rank wait for four messages together, and one backward runs at a time.
TEST(StageMemory, OfTwoStagesOnARankIsThatOfOneList) {
  const PipelineShape shape = interleaved_shape(2, 2, 4);
  const Schedule schedule = *make_schedule(ScheduleKind::Interleaved, shape);
  const auto peak = [&](const StageBytes& of_each) {
    return peak_bytes_of(schedule, shape, std::vector(4, of_each))[1];
  };
  EXPECT_EQ(peak({.workspace = 50}), 50);
  EXPECT_EQ(peak({.weights = 100, .state = 7}), 2 * 107);
  EXPECT_EQ(peak({.incoming = 10, .outgoing = 10}), (2 + kReceivesAhead) * 10);
  // 0SEND_F3 2B1: what stage 0 has sent may still be there, and its receives of two gradients are posted.
  const StageBytes sends{.outgoing = 10}, computes{.workspace = 100};
  EXPECT_EQ(peak_bytes_of(schedule, shape, {sends, {}, computes, {}})[0], 100 + 10 + 2 * 10);
}

}  // namespace
}  // namespace millrace
