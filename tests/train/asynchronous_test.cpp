// Asynchronous runs that are looked at, saved, stopped and resumed: none of it changes what is learnt.
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros_like.h>

#include <atomic>
#include <fstream>
#include <set>

#include "runtime/base/json.h"
#include "tests/train/pipeline_fixture.h"

namespace millrace {
namespace {

struct Pipe {
  ScheduleKind kind;
  std::vector<int> replicas;
  int microbatches = 1;
  bool normalises = false;  ///< conv_model, with running statistics
};

const Pipe kPipes[] = {
    {ScheduleKind::PipeDream, {1, 1, 1, 1}},
    {ScheduleKind::PipeDream, {2, 1}},
    {ScheduleKind::PipeDream, {1, 2}},
    {ScheduleKind::PipeDream, {3, 1}},
    {ScheduleKind::PipeDream, {2, 2}},
    {ScheduleKind::PipeDreamVSync, {1, 1, 1, 1}},
    {ScheduleKind::PipeDreamVSync, {2, 2}},
    {ScheduleKind::PipeDream2BW, {1, 1, 1}, 4},
    {ScheduleKind::PipeDream2BW, {2, 2}, 4},
    {ScheduleKind::PipeDream, {1, 1, 1}, 1, true},
    {ScheduleKind::PipeDream, {2, 2}, 1, true},
    {ScheduleKind::PipeDream, {3, 1}, 1, true},
    {ScheduleKind::PipeDream2BW, {1, 1}, 3, true},
};

LayeredModel model_of(const Pipe& pipe) {
  return pipe.normalises ? conv_model() : small_model();
}

std::string name_of(const Pipe& pipe) {
  return to_string(pipe.kind) + " " + ::testing::PrintToString(pipe.replicas) +
         (pipe.normalises ? " conv" : "");
}

std::string step_name(std::int64_t step) {
  char text[32];
  std::snprintf(text, sizeof text, "step-%08d", static_cast<int>(step));
  return text;
}

class Asynchronous : public Pipeline {
 protected:
  Plan plan_of(const Pipe& pipe) {
    return plan_for(model_of(pipe), pipe.replicas, pipe.microbatches, pipe.kind);
  }
  TrainOptions saving(std::int64_t steps, const std::string& folder,
                      UpdateRuleKind rule = UpdateRuleKind::Sgd) {
    TrainOptions result = options(steps, rule);
    result.output_dir = (folder_ / folder).string();
    return result;
  }
  fs::path checkpoint_of(const std::string& folder, std::int64_t step) {
    return folder_ / folder / "checkpoints" / step_name(step);
  }
};

/// Neither a save nor an evaluation drains the pipeline; also where they do not fall on whole turns of the
/// replicas.
TEST_F(Asynchronous, SavingAndEvaluatingChangeNothing) {
  for (const Pipe& pipe : kPipes) {
    const LayeredModel model = model_of(pipe);
    const std::int64_t steps = 24;
    evaluation_microbatches_ = 0;
    const Outcome plain = train(model, plan_of(pipe), options(steps));
    evaluation_microbatches_ = 5;
    TrainOptions events = saving(steps, "events");
    events.checkpoint_every = 4;
    events.evaluate_every = 3;
    const Outcome looked_at = train(model, plan_of(pipe), events);
    expect_equal(looked_at, plain, name_of(pipe));
    EXPECT_GE(looked_at.reports.back().evaluations.size(), 4u) << name_of(pipe);
    for (const EvaluationReport& e : looked_at.reports.back().evaluations) EXPECT_EQ(e.samples, 15);
    fs::remove_all(folder_ / "events");
  }
}

/// An evaluation in the middle uses the weights of that step, as in a run that ends there.
TEST_F(Asynchronous, AnEvaluationInFullFlightIsThatOfARunThatEndsThere) {
  for (const Pipe& pipe : kPipes) {
    evaluation_microbatches_ = 5;
    TrainOptions whole = options(12);
    whole.evaluate_every = 6;
    const Outcome ours = train(model_of(pipe), plan_of(pipe), whole);
    const Outcome shorter = train(model_of(pipe), plan_of(pipe), options(6));
    const EvaluationReport &a = ours.reports.back().evaluations.front(),
                           &b = shorter.reports.back().evaluations.front();
    EXPECT_EQ(a.step, 6) << name_of(pipe);
    EXPECT_EQ(b.step, 6) << name_of(pipe);
    EXPECT_EQ(a.values, b.values) << name_of(pipe);
  }
}

/// The stash is in the checkpoint: forwards after it use the versions that they would have used.
TEST_F(Asynchronous, GoesOnFromACheckpointAsIfNothingHadBeen) {
  for (const Pipe& pipe : kPipes) {
    for (UpdateRuleKind rule : {UpdateRuleKind::Sgd, UpdateRuleKind::Adam}) {
      const LayeredModel model = model_of(pipe);
      TrainOptions whole = saving(24, "whole", rule);
      whole.checkpoint_every = 6;
      const Outcome uninterrupted = train(model, plan_of(pipe), whole);
      for (std::int64_t step : {12, 18}) {
        TrainOptions rest = options(24, rule);
        rest.resume = checkpoint_of("whole", step).string();
        const Outcome resumed = train(model, plan_of(pipe), rest);
        for (const auto& [name, tensor] : uninterrupted.weights)
          EXPECT_TRUE(at::equal(tensor, resumed.weights.at(name)))
              << name_of(pipe) << " " << to_string(rule) << " from " << step << ": " << name;
      }
      fs::remove_all(folder_ / "whole");
    }
  }
}

/// Wherever the request falls, also right behind a checkpoint: all ranks end after the same minibatch, none
/// begins a later one, and what was saved goes on as if nothing had been.
TEST_F(Asynchronous, StopsAnywhereWithoutDeadlockAndGoesOn) {
  for (const Pipe& pipe :
       {Pipe{ScheduleKind::PipeDream, {1, 1, 1, 1}}, Pipe{ScheduleKind::PipeDream, {2, 1}},
        Pipe{ScheduleKind::PipeDreamVSync, {2, 2}}, Pipe{ScheduleKind::PipeDream2BW, {1, 1}, 3},
        Pipe{ScheduleKind::PipeDream, {1, 1}, 1, true}}) {
    const LayeredModel model = model_of(pipe);
    const std::int64_t steps = 96;
    const int per_step = pipe.kind == ScheduleKind::PipeDream2BW ? pipe.microbatches : 1;
    on_batch_ = {};
    const Outcome uninterrupted = train(model, plan_of(pipe), options(steps));
    for (std::int64_t at = 0; at < 12; ++at) {
      StopFlag stop{false};
      std::atomic<std::int64_t> furthest{-1};
      on_batch_ = [&](std::int64_t position) {
        if (position >= at) stop.store(true);
        for (std::int64_t seen = furthest;
             seen < position && !furthest.compare_exchange_weak(seen, position);) {
        }
      };
      TrainOptions stopped = saving(steps, "stopped");
      stopped.checkpoint_every = 4;
      stopped.stop = &stop;
      const Outcome begun = train(model, plan_of(pipe), stopped);
      ASSERT_TRUE(begun.reports[0].stopped) << name_of(pipe) << " at " << at;
      const auto saved = open_checkpoint(stopped.output_dir);
      ASSERT_TRUE(saved);
      EXPECT_EQ(furthest + 1, saved->info.step * per_step) << name_of(pipe) << " at " << at;
      if (pipe.normalises) {
        const std::string counter = "bn1.num_batches_tracked";
        EXPECT_EQ(saved->find(counter)->tensor(counter).item<std::int64_t>(), saved->info.step);
      }
      on_batch_ = {};
      TrainOptions rest = options(steps);
      rest.resume = stopped.output_dir;
      const Outcome resumed = train(model, plan_of(pipe), rest);
      for (const auto& [name, tensor] : uninterrupted.weights)
        EXPECT_TRUE(at::equal(tensor, resumed.weights.at(name)))
            << name_of(pipe) << " at " << at << ": " << name;
      fs::remove_all(stopped.output_dir);
    }
  }
}

/// Lists and memory do not grow with the number of steps.
TEST_F(Asynchronous, AnyNumberOfStepsBegins) {
  for (ScheduleKind kind : {ScheduleKind::PipeDream, ScheduleKind::PipeDream2BW}) {
    StopFlag stop{true};
    TrainOptions endless = saving(std::int64_t{1} << 40, "endless");
    endless.stop = &stop;
    const Outcome begun = train(small_model(), plan_of({kind, {1, 1}, 4}), endless);
    EXPECT_TRUE(begun.reports[0].stopped);
    EXPECT_LT(begun.reports[0].steps, 100);
    fs::remove_all(folder_ / "endless");
  }
}

TEST_F(Asynchronous, StepsEndWithAWholeTurnOfTheReplicas) {
  const Outcome outcome = train(small_model(), plan_of({ScheduleKind::PipeDream, {2, 3}}), options(15));
  for (const RunReport& report : outcome.reports) EXPECT_EQ(report.steps, 18);
}

/// Adam's bias correction needs how often each parameter was updated, whoever shared the minibatches.
TEST_F(Asynchronous, AdamCountsUpdatesAcrossReplication) {
  struct Case {
    std::vector<int> before, after;
    std::vector<std::int64_t> updates;  // each stage's updates after eight minibatches
    int per_update;                     // minibatches of an update afterwards
  };
  const LayeredModel model = small_model();
  for (const Case& c : {Case{{2, 1}, {1, 1}, {4, 8}, 1}, Case{{1, 1}, {2, 2}, {8, 8}, 2},
                        Case{{2, 2}, {1, 1}, {4, 4}, 1}, Case{{2}, {1}, {4}, 1}, Case{{1}, {2}, {8}, 2}}) {
    const Pipe before{ScheduleKind::PipeDream, c.before}, after{ScheduleKind::PipeDream, c.after};
    const std::string what = name_of(before) + " to " + name_of(after);
    TrainOptions first = saving(8, "before", UpdateRuleKind::Adam);
    first.checkpoint_at_end = true;
    train(model, plan_of(before), first);
    TrainOptions second = options(16, UpdateRuleKind::Adam);
    second.resume = first.output_dir;
    const Outcome ours = train(model, plan_of(after), second);
    Reference reference(model, plan_of(after), second);
    reference.load(*open_checkpoint(first.output_dir), c.updates);
    const int stages = static_cast<int>(c.after.size());
    const auto expected = reference.delayed(
        8 / c.per_update, c.per_update, [&](int s, std::int64_t t) { return t - (stages - 1 - s); }, 8);
    for (const auto& [name, tensor] : expected)
      EXPECT_TRUE(at::equal(tensor, ours.weights.at(name))) << what << ": " << name;
    fs::remove_all(first.output_dir);
  }
}

TEST_F(Asynchronous, UpdateCountsAreSavedForEachParameter) {
  const LayeredModel model = small_model();
  TrainOptions first = saving(8, "run", UpdateRuleKind::Adam);
  first.checkpoint_at_end = true;
  train(model, plan_of({ScheduleKind::PipeDream, {1, 1}}), first);
  first.steps = 12;
  first.resume = first.output_dir;
  first.output_dir = (folder_ / "second").string();
  train(model, plan_of({ScheduleKind::PipeDream, {2, 1}}), first);
  const auto saved = open_checkpoint(first.output_dir);
  ASSERT_TRUE(saved);
  EXPECT_EQ(saved->info.updates, 12);
  const std::string halved = "rule/updates/a.weight";
  ASSERT_TRUE(saved->find(halved));
  EXPECT_EQ(saved->find(halved)->tensor(halved).item<std::int64_t>(), 8 + 2);
  EXPECT_FALSE(saved->find("rule/updates/j.weight"));
}

/// Any other plan, also one that counts its steps in another way.
TEST_F(Asynchronous, GoesOnAfterAFlushingScheduleAndBack) {
  const LayeredModel model = small_model();
  TrainOptions first = saving(3, "flushing");
  first.checkpoint_at_end = true;
  train(model, plan_for(model, {1, 1}, 4, ScheduleKind::OneFOneB), first);
  TrainOptions second = saving(16, "flowing");
  second.resume = first.output_dir;
  second.resume_changes = {"all"};
  second.checkpoint_at_end = true;
  const Outcome ours = train(model, plan_of({ScheduleKind::PipeDream, {1, 1}}), second);
  EXPECT_EQ(ours.reports[0].steps, 4);
  TrainOptions third = options(5);
  third.resume = second.output_dir;
  third.resume_changes = {"all"};
  EXPECT_EQ(train(model, plan_for(model, {1, 1}, 4, ScheduleKind::OneFOneB), third).reports[0].steps, 1);
  third.resume = second.output_dir;
  EXPECT_THROW(train(model, plan_for(model, {1, 1}, 5, ScheduleKind::OneFOneB), third), std::exception);
}

/// Replicas that take turns log, trace and count what they do.
TEST_F(Asynchronous, ReplicatedRanksLogAndTraceWhatTheyDo) {
  TrainOptions traced = saving(12, "run");
  traced.trace_first = 4;
  traced.trace_count = 4;
  const Outcome outcome = train(small_model(), plan_of({ScheduleKind::PipeDream, {2, 1}}), traced);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(outcome.reports[rank].steps, 12);
    const fs::path trace = folder_ / "run" / ("trace.rank" + std::to_string(rank) + ".json");
    const auto spans = read_json(trace);
    ASSERT_TRUE(spans) << trace;
    EXPECT_NE(spans->dump().find("backward"), std::string::npos) << trace;
    std::ifstream log(folder_ / "run" / ("steps.rank" + std::to_string(rank) + ".jsonl"));
    std::string line;
    std::set<std::int64_t> steps;
    while (std::getline(log, line)) {
      const auto json = parse_json(line, "steps");
      ASSERT_TRUE(json);
      if (const Json* step = json->find("step")) steps.insert(step->as_int());
    }
    EXPECT_EQ(steps.size(), rank < 2 ? 6u : 12u);
    EXPECT_EQ(*steps.rbegin(), 11);
  }
}

/// Running statistics of a replicated stage are the mean of what its replicas saw, on all of them.
TEST_F(Asynchronous, ReplicasShareTheirRunningStatistics) {
  const LayeredModel model = conv_model();
  // One process with one and with two minibatches, both with the first weights.
  std::map<std::string, at::Tensor> alone[2];
  for (int i : {0, 1}) {
    TrainOptions still = options(i + 1);
    still.learning_rate.base = 0;
    alone[i] = train(model, plan_for(model, {1}, 1, ScheduleKind::OneFOneB), still).weights;
  }
  for (ScheduleKind kind : {ScheduleKind::OneFOneB, ScheduleKind::PipeDream}) {
    TrainOptions both = options(kind == ScheduleKind::PipeDream ? 2 : 1);
    const Outcome two = train(model, plan_for(model, {2}, 2, kind), both);
    for (const auto& [name, tensor] : two.weights) {
      if (name.find("running") == std::string::npos) continue;
      // One momentum step from the same start: r = 0.9 s + 0.1 b. From two in a row, b of the second.
      const at::Tensor start =
          name.find("mean") != std::string::npos ? at::zeros_like(tensor) : at::ones_like(tensor);
      const at::Tensor first = (alone[0].at(name) - 0.9 * start) / 0.1;
      const at::Tensor second = (alone[1].at(name) - 0.9 * (0.9 * start + 0.1 * first)) / 0.1;
      EXPECT_TRUE(at::allclose(tensor, 0.9 * start + 0.05 * (first + second), 1e-4, 1e-5))
          << to_string(kind) << " " << name;
    }
    EXPECT_EQ(two.weights.at("bn1.num_batches_tracked").item<std::int64_t>(), 1) << to_string(kind);
  }
}

TEST_F(Asynchronous, RatesMayFollowTheReplicasOfAStage) {
  const LayeredModel model = small_model();
  const Plan plan = plan_of({ScheduleKind::PipeDream, {2, 1}});
  TrainOptions half = options(2), usual = options(2);
  half.rate_by_replicas = true;
  half.rule = usual.rule = {.kind = UpdateRuleKind::Sgd, .momentum = 0};
  const TrainOptions begin = [&] {
    TrainOptions none = usual;
    none.learning_rate.base = 0;
    return none;
  }();
  usual.steps = half.steps = 2;
  const auto start = train(model, plan, begin).weights;
  const auto a = train(model, plan, usual).weights, b = train(model, plan, half).weights;
  // The first stage has the base rate (one update of two minibatches; the second one's gradient came through
  // other weights), the second stage half of it.
  const auto ratio = [&](const std::string& name) {
    return ((b.at(name) - start.at(name)).norm() / (a.at(name) - start.at(name)).norm()).item<double>();
  };
  EXPECT_NEAR(ratio("a.weight"), 1, 0.05);
  EXPECT_NEAR(ratio("j.weight"), 0.5, 0.05);
}

}  // namespace
}  // namespace millrace
