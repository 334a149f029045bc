// Every schedule trains: those that flush as one process, the asynchronous ones by their formula.
#include "runtime/stage/tied_exchange.h"
#include "tests/comm/fake_nccl.h"
#include "tests/schedule/every_shape.h"
#include "tests/train/pipeline_fixture.h"

namespace millrace {
namespace {

/// `places` ranks (times replicas) with `chunks` stages each.
Plan chunked_plan(const LayeredModel& model, int places, int chunks, int microbatches, ScheduleKind kind,
                  int replicas = 1) {
  return uniform_plan(model.name, model.layer_names(), places * chunks, replicas, microbatches, kind, chunks);
}

struct ScheduleCase {
  ScheduleKind kind;
  int places, chunks;
};
/// Every kind that flushes, on two places and more, with as many stages on each as it may have.
const std::vector<ScheduleCase> kFlushing = [] {
  std::vector<ScheduleCase> cases;
  for (ScheduleKind kind : named_kinds(false)) {
    const int chunks = default_chunks(kind);
    cases.insert(cases.end(), {{kind, 2, chunks}, {kind, chunks > 1 ? 3 : 4, chunks}});
    if (traits_of(kind).chunks == Chunks::OneOrMore) cases.push_back({kind, 2, 2});
    if (traits_of(kind).chunks == Chunks::Several) cases.push_back({kind, 2, 3});
  }
  return cases;
}();

std::string name_of(const ScheduleCase& c) {
  return to_string(c.kind) + " " + std::to_string(c.places) + "x" + std::to_string(c.chunks);
}

TEST_F(Pipeline, EveryFlushingScheduleEqualsOneProcessBitForBit) {
  for (const LayeredModel& model : {small_model(), conv_model()}) {
    const Outcome one = train(model, plan_for(model, {1}, 6, ScheduleKind::OneFOneB), options(4));
    for (const ScheduleCase& c : kFlushing) {
      const Plan plan = chunked_plan(model, c.places, c.chunks, 6, c.kind);
      const Outcome ours = train(model, plan, options(4));
      expect_equal(ours, one, model.name + " " + name_of(c));
      const PipelineShape shape = shape_of(plan, *make_layout(model, plan, kMicrobatch), 6);
      const Peaks predicted = peaks_of(*schedule_of(plan, shape, Transport::Buffered), shape);
      for (std::size_t r = 0; r < ours.reports.size(); ++r) {
        EXPECT_EQ(ours.reports[r].peak_stash, predicted.stash[r]) << name_of(c) << " rank " << r;
        EXPECT_EQ(ours.reports[r].peak_versions, 1) << name_of(c) << " rank " << r;
      }
    }
  }
}

TEST_F(Pipeline, EverySchedulesMessagesKeepNcclsOrder) {
  const LayeredModel model = small_model();
  const Outcome one = train(model, plan_for(model, {1}, 6, ScheduleKind::OneFOneB), options(3));
  std::shared_ptr<FakeNcclWorld> world;
  make_ranks_ = [&](int size, std::chrono::milliseconds deadline) {
    world = std::make_shared<FakeNcclWorld>();
    return make_fake_nccl_communicators(size, deadline, world);
  };
  for (const ScheduleCase& c : kFlushing) {
    const Plan plan = chunked_plan(model, c.places, c.chunks, 6, c.kind);
    expect_equal(train(model, plan, options(3)), one, name_of(c));
    // Ranks that talk are connected, one communicator for each direction, and no others.
    const StageLayout layout = *make_layout(model, plan, kMicrobatch);
    RankPairs pairs = pairs_in(*schedule_of(plan, shape_of(plan, layout, 6), Transport::Rendezvous));
    std::vector<std::vector<RankId>> ranks_of_stage;
    for (const PlanStage& stage : plan.stages) ranks_of_stage.push_back(stage.ranks);
    pairs.merge(talking_pairs(layout.ties, ranks_of_stage));
    EXPECT_EQ(world->counts().communicators, 2 * std::ssize(pairs)) << name_of(c);
    EXPECT_EQ(world->counts().idle, 0) << name_of(c);
  }
}

/// Whatever the schedule, and with batch normalisation and dropout.
TEST_F(Pipeline, RecomputedForwardsGiveTheSameBits) {
  for (const LayeredModel& model : {small_model(), conv_model()}) {
    const Outcome one = train(model, plan_for(model, {1}, 6, ScheduleKind::OneFOneB), options(4));
    for (const ScheduleCase& c : {ScheduleCase{ScheduleKind::OneFOneB, 3, 1},
                                  {ScheduleKind::ZeroBubbleV, 2, 2},
                                  {ScheduleKind::ZeroBubbleH1, 2, 1},
                                  {ScheduleKind::OneFOneB, 1, 1}}) {
      Plan plan = chunked_plan(model, c.places, c.chunks, 6, c.kind);
      for (std::size_t s = 0; s < plan.stages.size(); ++s) plan.stages[s].recompute = s % 3 != 1;
      expect_equal(train(model, plan, options(4)), one, model.name + " " + name_of(c));
    }
    Plan asynchronous = plan_for(model, {1, 1, 1}, 1, ScheduleKind::PipeDream);
    const Outcome stashed = train(model, asynchronous, options(8));
    for (PlanStage& stage : asynchronous.stages) stage.recompute = true;
    expect_equal(train(model, asynchronous, options(8)), stashed, model.name + " pipedream");
  }
}

/// Two replicas of every stage of a schedule give what two replicas of the whole model give: the same sums
/// in the same order.
TEST_F(Pipeline, ReplicatedChunksEqualReplicasOfTheWholeModel) {
  const LayeredModel model = small_model();
  const Outcome two = train(model, plan_for(model, {2}, 8, ScheduleKind::OneFOneB), options(3));
  for (const ScheduleCase& c : kFlushing) {
    if (c.places > 2) continue;
    expect_equal(train(model, chunked_plan(model, c.places, c.chunks, 8, c.kind, 2), options(3)), two,
                 name_of(c));
  }
}

TEST_F(Pipeline, AsynchronousEqualsTheDelayedGradientFormula) {
  const LayeredModel model = small_model();
  for (int stages : {1, 2, 3, 4}) {
    const Plan plan = plan_for(model, std::vector<int>(stages, 1), 1, ScheduleKind::PipeDream);
    const Outcome ours = train(model, plan, options(12));
    // Weight stashing (SOSP'19, section 3.3): stage s uses the weights of p-1-s updates ago.
    const auto expected = Reference(model, plan, options(12)).delayed(12, 1, [&](int s, std::int64_t t) {
      return t - (stages - 1 - s);
    });
    for (const auto& [name, tensor] : expected)
      EXPECT_TRUE(at::equal(tensor, ours.weights.at(name))) << stages << " stages: " << name;
  }
}

TEST_F(Pipeline, VerticalSyncUsesOneVersionInAllStages) {
  const LayeredModel model = small_model();
  for (int stages : {1, 2, 3, 4}) {
    const Plan plan = plan_for(model, std::vector<int>(stages, 1), 1, ScheduleKind::PipeDreamVSync);
    const Outcome ours = train(model, plan, options(12));
    const auto expected = Reference(model, plan, options(12)).delayed(12, 1, [&](int, std::int64_t t) {
      return t - (stages - 1);
    });
    for (const auto& [name, tensor] : expected)
      EXPECT_TRUE(at::equal(tensor, ours.weights.at(name))) << stages << " stages: " << name;
  }
}

TEST_F(Pipeline, TwoBufferedWeightsAreDelayedByOneUpdateEverywhere) {
  const LayeredModel model = small_model();
  for (int stages : {1, 2, 3, 4}) {
    for (int per_update : {4, 6}) {
      const Plan plan = plan_for(model, std::vector<int>(stages, 1), per_update, ScheduleKind::PipeDream2BW);
      const Outcome ours = train(model, plan, options(6));
      // arXiv 2006.09503: w(t+1) = w(t) - lr grad f(w(t-1)).
      const auto expected =
          Reference(model, plan, options(6)).delayed(6, per_update, [](int, std::int64_t t) {
            return t - 1;
          });
      for (const auto& [name, tensor] : expected)
        EXPECT_TRUE(at::equal(tensor, ours.weights.at(name))) << stages << " stages: " << name;
    }
  }
}

// Ranks are minibatches apart when the signal comes; they must end after the same one, drained.
TEST_F(Pipeline, AnAsynchronousRunThatIsStoppedEqualsAShorterOne) {
  const LayeredModel model = small_model();
  const std::vector<std::tuple<ScheduleKind, std::vector<int>, int>> runs{
      {ScheduleKind::PipeDream, {1, 1, 1}, 1},
      {ScheduleKind::PipeDream, {2, 1}, 2},
      {ScheduleKind::PipeDream, {1, 3}, 3},
      {ScheduleKind::PipeDreamVSync, {1, 1}, 1},
      {ScheduleKind::PipeDream2BW, {1, 1, 1}, 4}};
  for (const auto& [kind, replicas, microbatches] : runs) {
    const Plan plan = plan_for(model, replicas, microbatches, kind);
    StopFlag stop{true};
    TrainOptions stopped = options(6000), whole = options(6000);
    stopped.learning_rate.total_steps = whole.learning_rate.total_steps = 6000;
    stopped.output_dir = (folder_ / ("stopped" + to_string(kind))).string();
    whole.output_dir = (folder_ / ("whole" + to_string(kind))).string();
    stopped.stop = &stop;
    const Outcome begun = train(model, plan, stopped);
    const int turns = updates_after_each(kind) ? replicas.back() : 1;
    whole.steps = static_cast<std::int64_t>(begun.losses.size()) * turns;
    ASSERT_GT(whole.steps, 0);
    ASSERT_LT(whole.steps, 300);
    whole.checkpoint_at_end = true;
    const Outcome shorter = train(model, plan, whole);
    EXPECT_EQ(begun.losses, shorter.losses) << to_string(kind);
    for (std::size_t s = 0; s < replicas.size(); ++s) {
      std::string bytes[2];
      for (int i : {0, 1}) {
        char step[32];
        std::snprintf(step, sizeof step, "step-%08d", static_cast<int>(whole.steps));
        const fs::path file = fs::path(i ? stopped.output_dir : whole.output_dir) / "checkpoints" / step /
                              ("stage" + std::to_string(s) + ".safetensors");
        const auto text = read_file(file);
        ASSERT_TRUE(text) << file;
        bytes[i] = *text;
      }
      EXPECT_TRUE(bytes[0] == bytes[1]) << to_string(kind) << " stage " << s;
    }
    for (const RunReport& report : begun.reports) EXPECT_TRUE(report.stopped);
    fs::remove_all(stopped.output_dir);
    fs::remove_all(whole.output_dir);
  }
}

TEST_F(Pipeline, StashAndVersionsAreWhatSimulateSays) {
  const LayeredModel model = small_model();
  for (ScheduleKind kind : {ScheduleKind::GPipe, ScheduleKind::OneFOneB, ScheduleKind::PipeDream,
                            ScheduleKind::PipeDreamVSync, ScheduleKind::PipeDream2BW}) {
    for (const auto& replicas : {std::vector<int>{1, 1}, {1, 1, 1, 1}, {2, 1}, {2, 2}}) {
      if (kind == ScheduleKind::PipeDreamVSync && replicas.front() != replicas.back()) continue;  // refused
      const Plan plan = plan_for(model, replicas, 8, kind);
      const auto layout = *make_layout(model, plan, kMicrobatch);
      // The whole run, for 2BW several updates.
      const PipelineShape shape = shape_of(plan, layout, kind == ScheduleKind::PipeDream2BW ? 24 : 8);
      const Simulation predicted = simulate(*make_schedule(kind, shape), shape, {});
      const Outcome outcome = train(model, plan, options(updates_after_each(kind) ? 8 : 3));
      for (std::size_t r = 0; r < outcome.reports.size(); ++r) {
        EXPECT_EQ(outcome.reports[r].peak_versions, predicted.peak_versions[r])
            << to_string(kind) << " rank " << r;
        EXPECT_EQ(outcome.reports[r].peak_stash, predicted.peak_stash[r]) << to_string(kind) << " rank " << r;
      }
    }
  }
}

}  // namespace
}  // namespace millrace
