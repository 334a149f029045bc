// Tests requests to stop: their sources, the step at which they take effect, and the report of the first
// error.
#include <gtest/gtest.h>

#include "runtime/base/error.h"
#include "runtime/comm/rank_threads.h"
#include "runtime/comm/store.h"
#include "tests/train/pipeline_fixture.h"

namespace millrace {
namespace {

using std::chrono::milliseconds;

TEST(StopVote, AnyRanksRequestCountsAndAllEndAfterTheSameStep) {
  for (const int size : {1, 2, 3, 5}) {
    for (int asked = 0; asked < size; ++asked) {
      for (const StopReach reach :
           {StopReach{}, StopReach{.lag = 4, .ahead = 3}, {.lag = 2, .ahead = 1, .multiple = 6}}) {
        std::vector<std::int64_t> ends(size, -1);
        run_as_threads(make_local_communicators(size, milliseconds(20'000)), [&](Communicator& c) {
          const int me = c.rank().value;
          StopFlag flag{false};
          StopVote vote(c, &flag, reach);
          for (std::int64_t done = 1; done < 100; ++done) {
            if (me == asked && done == 10) flag = true;
            vote.completed(done);
            if (done < vote.limit()) continue;
            EXPECT_EQ(done, vote.limit());
            ends[me] = done;
            break;
          }
          vote.finish();
        });
        for (const std::int64_t end : ends) {
          EXPECT_EQ(end, ends[0]);
          EXPECT_GE(end, 10);
          EXPECT_LE(end, 10 + reach.lag + reach.ahead + reach.multiple);
          EXPECT_EQ(end % reach.multiple, 0);
        }
      }
    }
  }
}

TEST(StopVote, WithoutAFlagNothingIsSaid) {
  run_as_threads(make_local_communicators(3, milliseconds(20'000)), [&](Communicator& c) {
    StopVote vote(c, nullptr, {});
    for (int i = 1; i < 10; ++i) vote.completed(i);
    EXPECT_EQ(vote.limit(), StopVote::kNever);
    vote.finish();
  });
}

/// Sets a flag when it is asked for its n-th batch.
struct AskingBatches final : BatchSource {
  AskingBatches(const LayeredModel& model, int microbatch, StopFlag& flag, std::atomic<int>& given, int when)
      : inner(model, microbatch), flag(flag), given(given), when(when) {}
  Batch get(std::int64_t position) override {
    if (++given >= when) flag = true;
    return inner.get(position);
  }
  void seek(std::int64_t) override {}
  BatchExtent extent(std::int64_t position) const override { return inner.extent(position); }
  RandomBatches inner;
  StopFlag& flag;
  std::atomic<int>& given;
  int when;
};

TEST_F(Pipeline, AnEvaluationLooksAtTheStopFlag) {
  constexpr int kAskedAt = 50;
  const LayeredModel model = small_model();
  for (const auto& replicas : {std::vector<int>{1}, {1, 1, 1}, {2, 2}, {1, 1, 1, 1}}) {
    for (const std::int64_t every : {0, 2}) {  // checkpoints only at the end; also in the middle
      const Plan plan = plan_for(model, replicas, 4, ScheduleKind::OneFOneB);
      TrainOptions stopped = options(4);
      stopped.output_dir = (folder_ / ("out" + std::to_string(replicas.size()) + std::to_string(every) +
                                       std::to_string(replicas[0])))
                               .string();
      stopped.evaluate_every = every;
      StopFlag flag{false};
      stopped.stop = &flag;
      std::atomic<int> given{0};
      const auto train_with = [&](const TrainOptions& run, int evaluation) {
        auto ranks = make_ranks_(plan.num_ranks(), milliseconds(60'000));
        std::vector<RunReport> reports(ranks.size());
        std::vector<std::jthread> threads;
        for (std::size_t r = 0; r < ranks.size(); ++r) {
          threads.emplace_back([&, r] {
            at::set_num_threads(1);
            SteadyClock clock;
            Trainer trainer(
                {*ranks[r], clock, *device_}, model, plan, run, [&](const BatchNeeds&, const BatchNeeds&) {
                  return BatchSources{.train = std::make_unique<RandomBatches>(model, kMicrobatch),
                                      .evaluation = {.batches = std::make_unique<AskingBatches>(
                                                         model, kMicrobatch, flag, given, kAskedAt),
                                                     .microbatches = evaluation}};
                });
            reports[r] = trainer.run();
          });
        }
        threads.clear();
        return reports;
      };
      for (const RunReport& report : train_with(stopped, 2000)) {
        EXPECT_TRUE(report.stopped);
        EXPECT_EQ(report.steps, every == 0 ? 4 : 2);
        EXPECT_TRUE(report.evaluations.empty()) << "a part of an evaluation is none";
      }
      EXPECT_LT(given, kAskedAt + 200) << "the first stage and the last one read each microbatch";
      EXPECT_TRUE(fs::exists(fs::path(stopped.output_dir) / "checkpoints" / "latest"));
      // Who goes on begins with the evaluation that was left out.
      TrainOptions rest = stopped;
      rest.stop = nullptr;
      rest.resume = stopped.output_dir;
      std::vector<std::int64_t> evaluated;
      const std::vector<RunReport> reports = train_with(rest, 8);
      for (const EvaluationReport& one : reports.back().evaluations) evaluated.push_back(one.step);
      EXPECT_EQ(evaluated, every == 0 ? std::vector<std::int64_t>{4} : std::vector<std::int64_t>({2, 4}));
    }
  }
}

std::vector<std::unique_ptr<Communicator>> gloo_ranks(int size) {
  auto store = make_memory_store();
  std::vector<std::unique_ptr<Communicator>> ranks(size);
  std::vector<std::jthread> threads;
  for (int r = 0; r < size; ++r) {
    threads.emplace_back([&, r] {
      ranks[r] = make_communicator(
          {.backend = Backend::Gloo, .rank = RankId(r), .size = size, .deadline = milliseconds(20'000)},
          store);
    });
  }
  threads.clear();
  return ranks;
}

/// Whenever the request comes: nobody hangs, nobody passes the step at which the others end.
TEST_F(Pipeline, AnAsynchronousRunStopsAtAnyMoment) {
  const LayeredModel model = small_model();
  struct Run {
    ScheduleKind kind;
    std::vector<int> replicas;
    int microbatches;
  };
  const Run runs[] = {
      {ScheduleKind::PipeDream, {1, 1, 1, 1, 1}, 1}, {ScheduleKind::PipeDream, {3, 1}, 1},
      {ScheduleKind::PipeDream, {1, 2, 1}, 1},       {ScheduleKind::PipeDream, {4, 2}, 1},
      {ScheduleKind::PipeDream, {2, 3}, 1},          {ScheduleKind::PipeDream, {1, 4}, 1},
      {ScheduleKind::PipeDreamVSync, {1, 1, 1}, 1},  {ScheduleKind::PipeDreamVSync, {2, 2}, 1},
      {ScheduleKind::PipeDream2BW, {1, 1, 1, 1}, 4}, {ScheduleKind::PipeDream2BW, {2, 2}, 4}};
  for (const Run& run : runs) {
    const Plan plan = plan_for(model, run.replicas, run.microbatches, run.kind);
    for (const int when : {1, 2, 7, 30, 61}) {
      StopFlag flag{false};
      std::atomic<int> given{0};
      TrainOptions stopped = options(1200);
      stopped.stop = &flag;
      // One case runs over Gloo, where sends block.
      auto ranks =
          when == 7 ? gloo_ranks(plan.num_ranks()) : make_ranks_(plan.num_ranks(), milliseconds(20'000));
      std::vector<std::int64_t> steps(ranks.size(), -1);
      std::vector<std::jthread> threads;
      for (std::size_t r = 0; r < ranks.size(); ++r) {
        threads.emplace_back([&, r] {
          at::set_num_threads(1);
          SteadyClock clock;
          try {
            Trainer trainer({*ranks[r], clock, *device_}, model, plan, stopped,
                            [&](const BatchNeeds&, const BatchNeeds&) {
                              return BatchSources{.train = std::make_unique<AskingBatches>(
                                                      model, kMicrobatch, flag, given, when)};
                            });
            const RunReport report = trainer.run();
            EXPECT_TRUE(report.stopped);
            steps[r] = report.steps;
          } catch (const std::exception& error) {
            ADD_FAILURE() << to_string(run.kind) << " when " << when << ": " << error.what();
            ranks[r]->abort(error.what());
          }
        });
      }
      threads.clear();
      for (const std::int64_t n : steps) EXPECT_EQ(n, steps[0]) << to_string(run.kind) << " " << when;
      EXPECT_LT(steps[0], 300);
    }
  }
}

TEST(Errors, ARankRunnerKeepsTheClass) {
  const auto rethrown = [](const Error& error) { error.throw_with("step 3: "); };
  EXPECT_THROW(rethrown(PeerError("x")), PeerError);
  EXPECT_THROW(rethrown(DataError("x")), DataError);
  EXPECT_THROW(rethrown(OutOfMemory("x")), OutOfMemory);
  try {
    rethrown(NumericError("the loss is nan", "lower --lr"));
    FAIL();
  } catch (const NumericError& error) {
    EXPECT_STREQ(error.what(), "step 3: the loss is nan");
    EXPECT_EQ(error.hint(), "lower --lr");
    EXPECT_EQ(error.code(), ExitCode::Numeric);
  }
}

/// Data that fails at a position.
struct FailingBatches final : BatchSource {
  explicit FailingBatches(const LayeredModel& model) : inner(model, 3) {}
  Batch get(std::int64_t position) override {
    if (position == 9) throw DataError("sample 9 is damaged");
    return inner.get(position);
  }
  void seek(std::int64_t) override {}
  BatchExtent extent(std::int64_t position) const override { return inner.extent(position); }
  RandomBatches inner;
};

TEST_F(Pipeline, AFailureInAnActionKeepsItsClassAndTheOthersHearOfItAfterwards) {
  const LayeredModel model = small_model();
  const Plan plan = plan_for(model, {1, 1, 1}, 4, ScheduleKind::OneFOneB);
  auto ranks = make_ranks_(3, milliseconds(20'000));
  std::mutex mutex;
  std::vector<std::string> failures;
  std::vector<std::jthread> threads;
  for (std::size_t r = 0; r < 3; ++r) {
    threads.emplace_back([&, r] {
      at::set_num_threads(1);
      SteadyClock clock;
      const auto note = [&](const std::string& what) {
        const std::lock_guard lock(mutex);
        failures.push_back(what);
      };
      try {
        Trainer trainer({*ranks[r], clock, *device_}, model, plan, options(10),
                        [&](const BatchNeeds& needs, const BatchNeeds&) {
                          BatchSources sources{.train = std::make_unique<RandomBatches>(model, 3)};
                          if (needs.fields[0]) sources.train = std::make_unique<FailingBatches>(model);
                          return sources;
                        });
        trainer.run();
      } catch (const DataError& error) {
        // Time for the others to fail, if they had been told.
        std::this_thread::sleep_for(milliseconds(300));
        note(std::string("data: ") + error.what());
        ranks[r]->abort(error.what());
      } catch (const PeerError& error) {
        note(std::string("peer: ") + error.what());
      }
    });
  }
  threads.clear();
  ASSERT_EQ(failures.size(), 3u);
  EXPECT_EQ(failures[0].rfind("data: step 2, action", 0), 0u) << failures[0];
  EXPECT_EQ(failures[1].rfind("peer: ", 0), 0u) << failures[1];
}

}  // namespace
}  // namespace millrace
