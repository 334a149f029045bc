// Models that are trained in turns: what a step of several updates is predicted to take.
#include <gtest/gtest.h>

#include "optimizer/cost/cost_model.h"
#include "optimizer/planner/objective.h"
#include "optimizer/planner/plan_jobs.h"
#include "optimizer/planner/planner.h"

namespace millrace {
namespace {

constexpr Bytes kSecond = 1'000'000'000;  // bytes that a link carries in a second

/// A generator of images and a discriminator of real and of made ones, as DCGAN's, in whole seconds.
LayerGraph generator_and_discriminator() {
  const auto graph = [](LayerNode generator, LayerNode discriminator, double loss_s) {
    generator.name = "generator";
    discriminator.name = "discriminator";
    LayerGraph made{.model = "gan", .loss_s = loss_s, .update_s_per_byte = 1};
    made.nodes = {std::move(generator), std::move(discriminator)};
    made.edges = {{0, 1, "images", kSecond}};
    return made;
  };
  // The first turn trains the discriminator on images that get no gradient.
  LayerGraph first =
      graph({.forward_s = 1}, {.forward_s = 4, .backward_weight_s = 4, .parameter_bytes = 2}, 1);
  first.turn = "discriminator";
  first.edges[0].gradient_bytes = 0;
  LayerGraph second = graph({.forward_s = 1, .backward_weight_s = 2, .parameter_bytes = 3},
                            {.forward_s = 2, .backward_input_s = 2}, 0);
  second.turn = "generator";
  second.edges[0].gradient_bytes = kSecond;
  LayerGraph whole =
      graph({.forward_s = 2, .backward_weight_s = 2, .parameter_bytes = 3},
            {.forward_s = 6, .backward_input_s = 2, .backward_weight_s = 4, .parameter_bytes = 2}, 1);
  whole.turns = {first, second};
  return whole;
}

ClusterSpec cluster_of(int ranks) {
  ClusterSpec cluster = ClusterSpec::local(ranks);
  cluster.levels[0].bandwidth = kSecond;
  cluster.levels[0].latency_s = 0;
  return cluster;
}

Plan plan_of(const std::vector<std::vector<std::string>>& stages, int microbatches) {
  Plan plan{.model = "gan", .schedule = ScheduleKind::OneFOneB, .microbatches = microbatches};
  for (const auto& layers : stages)
    plan.stages.push_back({.layers = layers, .ranks = {RankId(plan.num_stages())}});
  return plan;
}

TEST(Turns, OneRankRunsThemOneAfterTheOther) {
  const LayerGraph graph = generator_and_discriminator();
  const Plan plan = plan_of({{"generator", "discriminator"}}, 1);
  // 1 + 4 + 1 + 4 + 2, then 1 + 2 + 2 + 2 + 3.
  EXPECT_DOUBLE_EQ(predict(plan, graph, cluster_of(1)).predicted_step_s, 22);
  EXPECT_DOUBLE_EQ(
      predict(plan_of({{"generator", "discriminator"}}, 3), graph, cluster_of(1)).predicted_step_s,
      3 * (10 + 7) + 2 + 3);
}

TEST(Turns, TwoRanksAreNotBusyInTheSameTurn) {
  const LayerGraph graph = generator_and_discriminator();
  const ClusterSpec cluster = cluster_of(2);
  const Plan plan = plan_of({{"generator"}, {"discriminator"}}, 1);
  // Rank 0 makes images until 1 and, as nothing comes back to it, again until 2. Rank 1 has the first at 2:
  // forward and loss until 7, backward until 11, update until 13; then forward until 15, backward until 17.
  // The gradient is there at 18, rank 0's backward ends at 20, its update at 23.
  const Plan predicted = predict(plan, graph, cluster);
  EXPECT_DOUBLE_EQ(predicted.predicted_step_s, 23);
  // A plan has the sums over all turns for each stage.
  EXPECT_DOUBLE_EQ(predicted.stages[1].forward_s, 7);
  EXPECT_DOUBLE_EQ(predicted.stages[1].backward_s, 6);

  CostModel model(graph, cluster);
  const StepBreakdown parts = *model.breakdown(plan.schedule, 1, model.stages_of(plan));
  EXPECT_DOUBLE_EQ(parts.step_s, 23);
  EXPECT_DOUBLE_EQ(parts.transfer_s, 2);
  EXPECT_DOUBLE_EQ(parts.update_s, 5);
  EXPECT_DOUBLE_EQ(parts.compute_s + parts.imbalance_s + parts.bubble_s + parts.update_s + parts.reduce_s +
                       parts.transfer_s,
                   parts.step_s);
  // The next step's first images are made beside nothing: they need the update.
  EXPECT_DOUBLE_EQ(step_in_a_run(plan, model), 23);
}

/// Without its turns the same profile says less: that all of a rank's work could go on beside the other's.
TEST(Turns, AreMoreThanTheirSums) {
  LayerGraph graph = generator_and_discriminator();
  const ClusterSpec cluster = cluster_of(2);
  const Plan plan = plan_of({{"generator"}, {"discriminator"}}, 4);
  const double in_turns = predict(plan, graph, cluster).predicted_step_s;
  graph.turns.clear();
  EXPECT_GT(in_turns, predict(plan, graph, cluster).predicted_step_s);
}

TEST(Turns, ThePlannerTakesTheBetterOfTheTwoRanks) {
  const LayerGraph graph = generator_and_discriminator();
  const ClusterSpec cluster = cluster_of(2);
  const PlannerOptions options{.microbatches = 4};
  const Plan best = *plan_layers(graph, cluster, options);
  Plan replicated = plan_of({{"generator", "discriminator"}}, 4);
  replicated.stages[0].ranks = {RankId(0), RankId(1)};
  for (const Plan& other : {replicated, plan_of({{"generator"}, {"discriminator"}}, 4)})
    EXPECT_LE(best.predicted_step_s, predict(other, graph, cluster).predicted_step_s);
  const Result<Plan> asynchronous =
      plan_layers(graph, cluster, {.microbatches = 4, .schedule = ScheduleKind::PipeDream});
  ASSERT_FALSE(asynchronous);
  EXPECT_NE(to_string(asynchronous.problems()).find("trained in turns"), std::string::npos);
}

/// The memory includes the bytes that all-reduces receive, and the batches that are loaded ahead.
TEST(Memory, BatchesAheadAndWhatAllReducesReceiveCount) {
  LayerGraph graph{.model = "one"};
  graph.nodes = {
      {.name = "layer", .forward_s = 1, .parameter_bytes = 1000, .field_bytes = 7, .saved_bytes = 10}};
  const auto peak = [&](int ranks, int microbatches) {
    Plan plan{.model = "one", .schedule = ScheduleKind::OneFOneB, .microbatches = microbatches};
    plan.stages.push_back({.layers = {"layer"}});
    for (int r = 0; r < ranks; ++r) plan.stages[0].ranks.emplace_back(r);
    return predict(plan, graph, cluster_of(ranks), {.rule_copies = 2}).stages[0].peak_bytes;
  };
  EXPECT_EQ(peak(1, 2), 4 * 1000 + 8 * 7 + 10);
  EXPECT_EQ(peak(2, 2), 4 * 1000 + 8 * 7 + 10 + 1000);
  EXPECT_EQ(peak(4, 4), 4 * 1000 + 8 * 7 + 10 + 750);
}

/// Layers that read the same field need it once on a rank, and so do several stages of one rank.
TEST(Memory, AFieldCountsOnceOnARank) {
  LayerGraph graph{.model = "five"};
  for (int i = 0; i < 5; ++i) {
    graph.nodes.push_back({.name = "l" + std::to_string(i), .forward_s = 1, .field_bytes = 7});
    if (i > 0) graph.edges.push_back({.producer = i - 1, .consumer = i, .tensor = "t" + std::to_string(i)});
  }
  const auto peaks = [&](const std::vector<std::vector<std::string>>& layers) {
    const Plan plan = predict(plan_of(layers, 4), graph, cluster_of(static_cast<int>(layers.size())));
    std::vector<Bytes> all;
    for (const PlanStage& stage : plan.stages) all.push_back(stage.peak_bytes);
    return all;
  };
  EXPECT_EQ(peaks({{"l0", "l1", "l2", "l3", "l4"}}), (std::vector<Bytes>{8 * 35})) << "only sums are known";
  for (LayerNode& node : graph.nodes) node.fields = {{"mask", 7}};
  graph.nodes[3].fields["label"] = 5;
  graph.nodes[3].field_bytes = 12;
  EXPECT_EQ(peaks({{"l0", "l1", "l2", "l3", "l4"}}), (std::vector<Bytes>{8 * 12}));
  EXPECT_EQ(peaks({{"l0", "l1"}, {"l2", "l3", "l4"}}), (std::vector<Bytes>{8 * 7, 8 * 12}));
  Plan chunks = plan_of({{"l0"}, {"l1"}, {"l2"}, {"l3", "l4"}}, 4);
  chunks.schedule = ScheduleKind::Interleaved;
  for (int s = 0; s < 4; ++s) chunks.stages[s].ranks = {RankId(s % 2)};
  const Plan interleaved = predict(chunks, graph, cluster_of(2));
  EXPECT_EQ(interleaved.stages[0].peak_bytes, 8 * 7) << "and with its third stage";
  EXPECT_EQ(interleaved.stages[1].peak_bytes, 8 * 12);
  // A limit that the sum over layers exceeds is no limit.
  const Result<Plan> fits = plan_layers(graph, cluster_of(1), {.microbatches = 4, .memory_per_rank = 8 * 12});
  EXPECT_TRUE(fits) << to_string(fits.problems());
  const Result<Plan> none =
      plan_layers(graph, cluster_of(1), {.microbatches = 4, .memory_per_rank = 8 * 12 - 1});
  EXPECT_FALSE(none);
  // A field that two turns read waits for the second one: three microbatches besides the one under way.
  for (int t = 0; t < 2; ++t) graph.turns.push_back(graph);
  graph.turns[1].turns.clear();
  for (LayerNode& node : graph.turns[0].nodes) node.fields.erase("label");
  EXPECT_EQ(peaks({{"l0", "l1", "l2", "l3", "l4"}}), (std::vector<Bytes>{8 * 12 + 3 * 7}));
}

/// Three jobs as arrays of two and of one: unequal arrays in one round.
TEST(Turns, ArraysOfJobsTakeThemToo) {
  LayerGraph graph = generator_and_discriminator();
  LayerGraph two = generator_and_discriminator();
  two.jobs = 2;
  for (LayerGraph& turn : two.turns) turn.jobs = 2;
  graph.arrays = {two};  // an array of two jobs is as quick as one job
  const Result<JobsAnswer> answer =
      plan_jobs(graph, cluster_of(1), {.microbatches = 1, .schedule = ScheduleKind::OneFOneB}, 3);
  ASSERT_TRUE(answer) << to_string(answer.problems());
  EXPECT_DOUBLE_EQ(answer->candidates.front().total_s, 44);
}

}  // namespace
}  // namespace millrace
