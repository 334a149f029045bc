// Waits in the place of computation: drawn from measured times, and exact in total.
#include "runtime/train/measured_times.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "runtime/base/error.h"
#include "runtime/base/units.h"
#include "tests/driver/temporary_folder.h"

namespace millrace {
namespace {

Span span(SpanKind kind, std::int64_t step, std::int64_t start, std::int64_t length) {
  return {.kind = kind, .stage = 0, .microbatch = step, .step = step, .start = start, .end = start + length};
}

constexpr std::int64_t kGiga = 1'000'000'000;

/// Of two ranks: steps of 1, 2, ..., 10 ms (rank 1: 11 to 20) after a first one of 100 ms, their backwards
/// twice as long, and an evaluation of 7 ms.
MeasuredTimes measured() {
  constexpr std::int64_t kMs = 1'000'000;
  MeasuredTimes times;
  for (const std::int64_t more : {0, 10}) {
    std::vector<Span> spans{span(SpanKind::Forward, 0, 0, 100 * kMs)};
    for (std::int64_t step = 1; step <= 10; ++step) {
      spans.push_back(span(SpanKind::Backward, step, (150 + step * 100) * kMs, 2 * (step + more) * kMs));
      spans.push_back(span(SpanKind::Forward, step, (100 + step * 100) * kMs, (step + more) * kMs));
    }
    spans.push_back(span(SpanKind::Forward, 11, 5000 * kMs, 7 * kMs));
    spans.push_back(span(SpanKind::Eval, 10, 4999 * kMs, 9 * kMs));
    times.add(std::move(spans));
  }
  return times;
}

/// Wakes up 0.3 ms too late.
class LateClock final : public Clock {
 public:
  TimePoint now() const override { return clock_.now(); }
  void sleep_until(TimePoint when) override {
    clock_.sleep_until(when);
    clock_.advance(std::chrono::microseconds(300));
  }
  bool wait_until(std::unique_lock<std::mutex>& lock, std::condition_variable& changed, TimePoint until,
                  const std::function<bool()>& ready) override {
    return clock_.wait_until(lock, changed, until, ready);
  }
  void notify_all(std::condition_variable& changed) override { clock_.notify_all(changed); }

 private:
  VirtualClock clock_;
};

/// A stage with two replicas, and one that rank 0 has alone.
Plan plan() {
  Plan plan;
  plan.stages = {{.layers = {"a"}, .ranks = {RankId(0), RankId(1)}}, {.layers = {"b"}, .ranks = {RankId(0)}}};
  return plan;
}

std::vector<double> draws(const MeasuredTimes& times, std::uint64_t seed, int rank, SpanKind kind,
                          int count) {
  VirtualClock clock;
  ComputeWaits waits(times, seed, plan(), RankId(rank), clock);
  std::vector<double> all;
  for (int i = 0; i < count; ++i) {
    const TimePoint begin = clock.now();
    waits.wait(RunPart::Steps, kind, 0, begin);
    all.push_back(Seconds(clock.now() - begin).count());
  }
  return all;
}

TEST(ComputeWaits, EachMeasuredTimeComesOnceBeforeAnyComesAgain) {
  const MeasuredTimes times = measured();
  const std::vector<double> all = draws(times, 1, 0, SpanKind::Forward, 30);
  for (std::size_t round = 0; round < 3; ++round) {
    std::vector<double> sorted(all.begin() + static_cast<std::ptrdiff_t>(round * 10),
                               all.begin() + static_cast<std::ptrdiff_t>(round * 10 + 10));
    std::ranges::sort(sorted);
    for (std::size_t i = 0; i < 10; ++i) EXPECT_NEAR(sorted[i], double(i + 1) * 1e-3, 1e-9) << round;
  }
  EXPECT_FALSE(std::equal(all.begin(), all.begin() + 10, all.begin() + 10)) << "in another order";
  EXPECT_EQ(draws(times, 1, 0, SpanKind::Forward, 30), all) << "the seed decides";
  EXPECT_NE(draws(times, 2, 0, SpanKind::Forward, 30), all);
}

TEST(ComputeWaits, WhatWasSlowTogetherStaysTogether) {
  const MeasuredTimes times = measured();
  const std::vector<double> forward = draws(times, 1, 0, SpanKind::Forward, 30),
                            backward = draws(times, 1, 0, SpanKind::Backward, 30),
                            other = draws(times, 1, 1, SpanKind::Forward, 30);
  for (std::size_t i = 0; i < forward.size(); ++i) {
    EXPECT_NEAR(backward[i], 2 * forward[i], 1e-9) << i;
    EXPECT_NEAR(other[i], forward[i] + 0.01, 1e-9) << "the other replica's own times, of the same steps";
  }
}

TEST(ComputeWaits, PartsOfARunAreApart) {
  const MeasuredTimes times = measured();
  VirtualClock clock;
  ComputeWaits waits(times, 1, plan(), RankId(0), clock);
  waits.wait(RunPart::FirstStep, SpanKind::Forward, 0, clock.now());
  EXPECT_NEAR(waits.drawn_s(), 0.1, 1e-9);
  waits.wait(RunPart::Evaluation, SpanKind::Forward, 0, clock.now());
  EXPECT_NEAR(waits.drawn_s(), 0.107, 1e-9);
  EXPECT_THROW(waits.wait(RunPart::Steps, SpanKind::Update, 0, clock.now()), ConfigError);
  EXPECT_THROW(waits.wait(RunPart::Steps, SpanKind::Forward, 1, clock.now()), ConfigError);
}

/// One rank's forwards of stage 0, in ms by step after a first one.
MeasuredTimes forwards(const std::vector<std::int64_t>& ms) {
  MeasuredTimes times;
  std::vector<Span> spans{span(SpanKind::Forward, 0, 0, 1)};
  for (std::size_t i = 0; i < ms.size(); ++i)
    spans.push_back(span(SpanKind::Forward, static_cast<std::int64_t>(i) + 1,
                         static_cast<std::int64_t>(i + 1) * kGiga, ms[i] * 1'000'000));
  times.add(std::move(spans));
  return times;
}

TEST(MeasuredTimes, BetweenTwoRunsEveryQuantileLiesBetweenTheirs) {
  const MeasuredTimes small = forwards({2, 1, 4, 3}), large = forwards({10, 40, 30, 20});
  std::vector<double> before(4, 0);
  for (const double share : {0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0}) {
    const MeasuredTimes between = MeasuredTimes::mix(small, large, share);
    const auto* times = between.find(RunPart::Steps, SpanKind::Forward, 0);
    ASSERT_TRUE(times);
    ASSERT_EQ(times->size(), 1u);
    std::vector<double> sorted = times->front();
    ASSERT_EQ(sorted.size(), 4u);
    std::ranges::sort(sorted);
    for (std::size_t i = 0; i < 4; ++i) {
      const double low = double(i + 1) * 1e-3, high = double(i + 1) * 1e-2;
      EXPECT_NEAR(sorted[i], low * (1 - share) + high * share, 1e-9) << share;
      EXPECT_GE(sorted[i], before[i]) << "it grows with the batch, " << share;
    }
    before = sorted;
  }
  // What was slow stays in its step: the order is that of the nearer run.
  const auto order = [](const MeasuredTimes& of) {
    return of.find(RunPart::Steps, SpanKind::Forward, 0)->front();
  };
  EXPECT_LT(order(MeasuredTimes::mix(small, large, 0.25))[1],
            order(MeasuredTimes::mix(small, large, 0.25))[0]);
  EXPECT_GT(order(MeasuredTimes::mix(small, large, 0.75))[1],
            order(MeasuredTimes::mix(small, large, 0.75))[0]);
}

TEST(MeasuredTimes, RunsOfAnotherLengthMixByQuantile) {
  const MeasuredTimes mixed = MeasuredTimes::mix(forwards({1, 2, 3}), forwards({5}), 0.5);
  EXPECT_EQ(mixed.find(RunPart::Steps, SpanKind::Forward, 0)->front(),
            (std::vector<double>{3e-3, 3.5e-3, 4e-3}));
  EXPECT_NEAR(forwards({4}).scaled(1.5).find(RunPart::Steps, SpanKind::Forward, 0)->front().front(), 6e-3,
              1e-12);
}

/// Turns of 1 and of 30 ms in each of three steps after the first.
TEST(ComputeWaits, TurnsOfAStepAreApart) {
  constexpr std::int64_t kMs = 1'000'000;
  MeasuredTimes times;
  std::vector<Span> spans;
  for (std::int64_t step = 0; step <= 3; ++step) {
    spans.push_back(span(SpanKind::Forward, step, step * kGiga, kMs));
    spans.push_back(span(SpanKind::Forward, step, step * kGiga + 100 * kMs, 30 * kMs));
  }
  times.add(std::move(spans));
  VirtualClock clock;
  ComputeWaits waits(times, 1, plan(), RankId(0), clock);
  for (int step = 1; step <= 6; ++step) {
    waits.set_turn(0);
    waits.wait(RunPart::Steps, SpanKind::Forward, 0, clock.now());
    EXPECT_NEAR(waits.drawn_s(), 31e-3 * (step - 1) + 1e-3, 1e-9);
    waits.set_turn(1);
    waits.wait(RunPart::Steps, SpanKind::Forward, 0, clock.now());
    EXPECT_NEAR(waits.drawn_s(), 31e-3 * step, 1e-9);
  }
}

class MeasuredRuns : public ::testing::Test {
 protected:
  /// Writes the files of a run of one rank whose forwards took `ms`.
  std::string run_with(int microbatch, std::int64_t ms, const std::string& more = "") {
    const std::filesystem::path folder = folder_.path(std::to_string(microbatch));
    std::filesystem::create_directories(folder);
    EXPECT_TRUE(one_.save((folder / "plan.json").string()));
    std::ofstream(folder / "summary.json") << "{\"microbatch\": " << microbatch << more << "}";
    std::ofstream(folder / "trace.rank0.json") << spans_to_json(
        {span(SpanKind::Forward, 0, 0, 1), span(SpanKind::Forward, 1, kGiga, ms * 1'000'000)});
    return folder.string();
  }
  TemporaryFolder folder_;
  const Plan one_{.model = "m", .stages = {{.layers = {"a"}, .ranks = {RankId(0)}}}};
};

TEST_F(MeasuredRuns, TimesThatFallWithTheBatchAreDoubted) {
  const std::string small = run_with(1, 18), middle = run_with(3, 14), large = run_with(8, 40);
  const Result<MeasuredTimes> falls = MeasuredTimes::read({small, middle, large}, one_, 2, 1);
  ASSERT_TRUE(falls) << to_string(falls.problems());
  ASSERT_EQ(falls->doubts().size(), 1u);
  EXPECT_NE(falls->doubts()[0].find("of 1 takes 18.000 ms, one of 3 only 14.000 ms"), std::string::npos)
      << falls->doubts()[0];
  EXPECT_TRUE(MeasuredTimes::read({small, middle, large}, one_, 4, 1)->doubts().empty()) << "rises there";
  EXPECT_TRUE(MeasuredTimes::read({small, middle, large}, one_, 3, 1)->doubts().empty()) << "was measured";
}

TEST_F(MeasuredRuns, OtherJobsAreRefused) {
  const std::string two = run_with(4, 10, ", \"jobs\": [{}, {}]");
  EXPECT_TRUE(MeasuredTimes::read({two}, one_, 4, 2));
  const Result<MeasuredTimes> one = MeasuredTimes::read({two}, one_, 4, 1);
  ASSERT_FALSE(one);
  EXPECT_NE(to_string(one.problems()).find("2 job(s) in 1 array(s), this run has 1"), std::string::npos)
      << to_string(one.problems());
}

TEST(ComputeWaits, LateWakeUpsAddNothingToTheTotal) {
  const MeasuredTimes times = measured();
  LateClock clock;
  ComputeWaits waits(times, 1, plan(), RankId(0), clock);
  for (int i = 0; i < 1000; ++i) waits.wait(RunPart::Steps, SpanKind::Forward, 0, clock.now());
  EXPECT_NEAR(waits.drawn_s(), 5.5, 1e-9);
  EXPECT_NEAR(waits.waited_s() / waits.drawn_s(), 1, 1e-3) << "0.3 s of lateness, of which one wake-up stays";
}

}  // namespace
}  // namespace millrace
