// Checkpoints that are written while training goes on: the same files, and nothing lost whatever happens.
#include "runtime/checkpoint/background_saver.h"

#include <latch>

#include "runtime/base/error.h"
#include "runtime/comm/rank_threads.h"
#include "tests/train/pipeline_fixture.h"

namespace millrace {
namespace {

using std::chrono::milliseconds;

TEST(BackgroundSaver, SavesWhileTheRanksDoOtherThings) {
  for (const int size : {1, 2, 3}) {
    std::latch released(1);
    std::vector<int> results(static_cast<std::size_t>(size), -1);
    run_as_threads(make_local_communicators(size, milliseconds(20'000)), [&](Communicator& world) {
      BackgroundSaver saver(world, steady_clock());
      const int me = world.rank().value;
      saver.start([] {},
                  [&](Communicator& ranks) {
                    released.wait();
                    return run_together(ranks, milliseconds(20'000), "waiting", [&] {
                      if (ranks.rank() == RankId(0)) throw CheckpointError("full");
                    });
                  });
      // The saves wait for what comes after these exchanges.
      for (int step = 0; size > 1 && step < 20; ++step) world.barrier();
      if (me == 0) released.count_down();
      const std::optional<RankProblem> problem = saver.finish();
      ASSERT_TRUE(problem);
      EXPECT_EQ(to_string(*problem), "rank 0: full");
      saver.start([] {}, [&](Communicator&) -> std::optional<RankProblem> { throw CheckpointError("late"); });
      EXPECT_THROW(saver.finish(), CheckpointError);
      saver.start([] { throw CheckpointError("no memory"); }, [&](Communicator&) { return std::nullopt; });
      EXPECT_THROW(saver.copied(), CheckpointError);
      EXPECT_THROW(saver.finish(), CheckpointError);
      saver.start([] {},
                  [&](Communicator&) {
                    results[static_cast<std::size_t>(me)] = me;
                    return std::nullopt;
                  });
      EXPECT_FALSE(saver.finish());
    });
    for (int rank = 0; rank < size; ++rank) EXPECT_EQ(results[static_cast<std::size_t>(rank)], rank);
  }
}

class BackgroundSaves : public Pipeline {
 protected:
  TrainOptions in(const std::string& name, std::int64_t steps, std::int64_t every, bool background) {
    TrainOptions o = options(steps);
    o.output_dir = (folder_ / name).string();
    o.checkpoint_every = every;
    o.keep_checkpoints = 0;
    o.background_saves = background;
    return o;
  }
  /// The shards of all checkpoints by name.
  std::map<std::string, std::string> shards_in(const std::string& name) {
    std::map<std::string, std::string> shards;
    for (const auto& entry : fs::recursive_directory_iterator(folder_ / name / "checkpoints")) {
      const fs::path& path = entry.path();
      EXPECT_EQ(path.string().find(".tmp"), std::string::npos) << path;
      if (path.extension() == ".safetensors")
        shards[path.parent_path().filename().string() + "/" + path.filename().string()] = *read_file(path);
    }
    return shards;
  }

  LayeredModel model_ = small_model();
};

TEST_F(BackgroundSaves, WriteTheSameFilesAndLeaveTheLossAsItIs) {
  struct Case {
    const char* name;
    std::vector<int> replicas;
    ScheduleKind schedule;
    UpdateRuleKind rule = UpdateRuleKind::Sgd;
    bool shard_state = false;
  };
  for (const Case& c :
       std::initializer_list<Case>{{"alone", {1}, ScheduleKind::OneFOneB},
                                   {"pipeline", {1, 1, 1}, ScheduleKind::OneFOneB, UpdateRuleKind::Adam},
                                   {"replicas", {2, 1}, ScheduleKind::GPipe},
                                   {"sharded", {2}, ScheduleKind::OneFOneB, UpdateRuleKind::Adam, true},
                                   {"pipedream", {1, 1, 1}, ScheduleKind::PipeDream},
                                   {"pipedream replicas", {2, 1}, ScheduleKind::PipeDream}}) {
    const Plan plan = plan_for(model_, c.replicas, 4, c.schedule);
    std::map<std::string, std::string> files[2];
    Outcome outcomes[2];
    for (const bool background : {false, true}) {
      TrainOptions o = in(c.name + std::to_string(background), 6, 2, background);
      o.rule.kind = c.rule;
      o.rule.shard_state = c.shard_state;
      faults_.clear();
      if (background)  // the next step is at its update long before the copy is made
        faults_ = {{.place = "snapshot", .step = 2, .action = FailpointAction::Delay, .seconds = 0.1}};
      outcomes[background] = train(model_, plan, o);
      files[background] = shards_in(c.name + std::to_string(background));
      for (const RunReport& report : outcomes[background].reports) {
        EXPECT_EQ(report.saved_step, 6) << c.name;
        EXPECT_EQ(report.failed_saves, 0) << c.name;
      }
      EXPECT_EQ(outcomes[background].reports[0].snapshot_bytes > 0, background) << c.name;
    }
    expect_equal(outcomes[true], outcomes[false], c.name);
    EXPECT_EQ(files[true].size(), 3 * c.replicas.size()) << c.name;
    EXPECT_TRUE(files[true] == files[false]) << c.name;
  }
}

TEST_F(BackgroundSaves, AResumedRunIsTheUnbrokenOne) {
  for (const ScheduleKind schedule : {ScheduleKind::OneFOneB, ScheduleKind::PipeDream}) {
    const std::string name = to_string(schedule);
    const Plan plan = plan_for(model_, {1, 1}, 4, schedule);
    const Outcome whole = train(model_, plan, in(name, 12, 2, true));
    ASSERT_TRUE(
        write_file_atomically(folder_ / name / "checkpoints/step-00000012/stage1.safetensors", "damaged"));
    TrainOptions rest = in(name + " again", 12, 2, true);
    rest.resume = (folder_ / name).string();
    const Outcome resumed = train(model_, plan, rest);
    EXPECT_EQ(resumed.reports[0].first_step, 10) << "step 12 is damaged";
    EXPECT_EQ(resumed.losses, (std::vector<double>{whole.losses.begin() + 10, whole.losses.end()})) << name;
  }
}

TEST_F(BackgroundSaves, ARunThatIsStoppedWaitsForThem) {
  for (const ScheduleKind schedule : {ScheduleKind::OneFOneB, ScheduleKind::PipeDream}) {
    StopFlag stop{false};
    TrainOptions o = in(to_string(schedule), 1000, 1, true);
    o.stop = &stop;
    on_batch_ = [&](std::int64_t position) {
      if (position == 40) stop = true;
    };
    const Outcome outcome = train(model_, plan_for(model_, {1, 1}, 4, schedule), o);
    on_batch_ = {};
    ASSERT_TRUE(outcome.reports[0].stopped);
    const auto saved = open_checkpoint(o.output_dir);
    ASSERT_TRUE(saved);
    EXPECT_EQ(saved->info.step, outcome.reports[0].first_step + outcome.reports[0].steps);
    EXPECT_EQ(saved->info.step, outcome.reports[1].saved_step);
  }
}

TEST_F(BackgroundSaves, ARankThatFailsLeavesWholeCheckpoints) {
  const TrainOptions o = in("out", 1000, 1, true);
  on_batch_ = [](std::int64_t position) {
    if (position == 41) throw DataError("broken sample");
  };
  EXPECT_THROW(train(model_, plan_for(model_, {1, 1}, 4, ScheduleKind::OneFOneB), o), DataError);
  const auto saved = open_checkpoint(o.output_dir);
  ASSERT_TRUE(saved);
  EXPECT_GE(saved->info.step, 9);
  EXPECT_LE(saved->info.step, 10);
}

TEST_F(BackgroundSaves, WhatIsNotFiniteIsNotSaved) {
  TrainOptions o = in("out", 60, 1, true);
  o.learning_rate.base = 1e19;
  try {
    train(model_, plan_for(model_, {1, 1}, 4, ScheduleKind::OneFOneB), o);
    FAIL() << "went well";
  } catch (const NumericError& error) {
    const auto saved = open_checkpoint(o.output_dir);
    const std::string expected =
        saved ? "the checkpoint of step " + std::to_string(saved->info.step) + " is from before it"
              : "no checkpoint was saved before it";
    EXPECT_NE(error.hint().find(expected), std::string::npos) << error.hint();
  }
}

}  // namespace
}  // namespace millrace
