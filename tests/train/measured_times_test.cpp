// Waits in the place of computation: drawn from measured times, and exact in total.
#include "runtime/train/measured_times.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/base/error.h"
#include "runtime/base/units.h"

namespace millrace {
namespace {

Span span(SpanKind kind, std::int64_t step, std::int64_t start, std::int64_t length) {
  return {.kind = kind, .stage = 0, .microbatch = step, .step = step, .start = start, .end = start + length};
}

/// Steps of 1, 2, ..., 10 ms after a first one of 100 ms, and an evaluation of 7 ms.
MeasuredTimes measured() {
  constexpr std::int64_t kMs = 1'000'000;
  std::vector<Span> spans{span(SpanKind::Forward, 0, 0, 100 * kMs)};
  for (std::int64_t step = 1; step <= 10; ++step)
    spans.push_back(span(SpanKind::Forward, step, (100 + step * 20) * kMs, step * kMs));
  spans.push_back(span(SpanKind::Forward, 11, 1000 * kMs, 7 * kMs));
  spans.push_back(span(SpanKind::Eval, 10, 999 * kMs, 9 * kMs));
  MeasuredTimes times;
  times.add(spans);
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

std::vector<double> draws(const MeasuredTimes& times, std::uint64_t seed, int rank, int count) {
  VirtualClock clock;
  ComputeWaits waits(times, seed, plan(), RankId(rank), clock);
  std::vector<double> all;
  for (int i = 0; i < count; ++i) {
    const TimePoint begin = clock.now();
    waits.wait(RunPart::Steps, SpanKind::Forward, 0, begin);
    all.push_back(Seconds(clock.now() - begin).count());
  }
  return all;
}

TEST(ComputeWaits, EachMeasuredTimeComesOnceBeforeAnyComesAgain) {
  const MeasuredTimes times = measured();
  const std::vector<double> first = draws(times, 1, 0, 15), second = draws(times, 1, 1, 15);
  for (std::size_t round = 0; round < 3; ++round) {  // of both replicas together
    std::vector<double> sorted;
    for (const auto* of : {&first, &second})
      sorted.insert(sorted.end(), of->begin() + static_cast<std::ptrdiff_t>(round * 5),
                    of->begin() + static_cast<std::ptrdiff_t>(round * 5 + 5));
    std::ranges::sort(sorted);
    for (std::size_t i = 0; i < 10; ++i) EXPECT_NEAR(sorted[i], double(i + 1) * 1e-3, 1e-9) << round;
  }
  EXPECT_FALSE(std::equal(first.begin(), first.begin() + 5, first.begin() + 5)) << "in another order";
  EXPECT_EQ(draws(times, 1, 0, 15), first) << "the seed decides";
  EXPECT_NE(draws(times, 2, 0, 15), first);
}

TEST(ComputeWaits, PartsOfARunAreApart) {
  const MeasuredTimes times = measured();
  VirtualClock clock;
  ComputeWaits waits(times, 1, plan(), RankId(0), clock);
  waits.wait(RunPart::FirstStep, SpanKind::Forward, 0, clock.now());
  EXPECT_NEAR(waits.drawn_s(), 0.1, 1e-9);
  waits.wait(RunPart::Evaluation, SpanKind::Forward, 0, clock.now());
  EXPECT_NEAR(waits.drawn_s(), 0.107, 1e-9);
  EXPECT_THROW(waits.wait(RunPart::Steps, SpanKind::Backward, 0, clock.now()), ConfigError);
  EXPECT_THROW(waits.wait(RunPart::Steps, SpanKind::Forward, 1, clock.now()), ConfigError);
}

TEST(ComputeWaits, LateWakeUpsAddNothingToTheTotal) {
  const MeasuredTimes times = measured();
  LateClock clock;
  ComputeWaits waits(times, 1, plan(), RankId(0), clock);
  for (int i = 0; i < 2000; ++i) waits.wait(RunPart::Steps, SpanKind::Forward, 0, clock.now());
  EXPECT_NEAR(waits.drawn_s(), 11, 1);
  EXPECT_NEAR(waits.waited_s() / waits.drawn_s(), 1, 1e-3) << "0.6 s of lateness, of which one wake-up stays";
}

}  // namespace
}  // namespace millrace
