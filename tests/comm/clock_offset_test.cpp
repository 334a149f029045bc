#include "runtime/comm/clock_offset.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <vector>

#include "runtime/comm/rank_threads.h"

namespace millrace {
namespace {

/// The host's clock, set forward or back.
class ShiftedClock final : public Clock {
 public:
  explicit ShiftedClock(std::chrono::nanoseconds by) : by_(by) {}
  TimePoint now() const override { return steady_clock().now() + by_; }
  void sleep_until(TimePoint when) override { steady_clock().sleep_until(when - by_); }
  bool wait_until(std::unique_lock<std::mutex>& lock, std::condition_variable& changed, TimePoint until,
                  const std::function<bool()>& ready) override {
    return steady_clock().wait_until(lock, changed, until - by_, ready);
  }
  void notify_all(std::condition_variable& changed) override { changed.notify_all(); }

 private:
  std::chrono::nanoseconds by_;
};

TEST(ClockOffset, IsFoundToWithinHalfARoundTrip) {
  using namespace std::chrono_literals;
  const std::vector<std::chrono::nanoseconds> shifts{0ns, 5h, -123456789ns, 0ns, 5h};
  std::vector<ClockOffset> found(shifts.size());
  run_as_threads(make_local_communicators(static_cast<int>(shifts.size()), 60s), [&](Communicator& ranks) {
    const auto r = static_cast<std::size_t>(ranks.rank().value);
    const ShiftedClock clock(shifts[r]);
    found[r] = measure_clock_offset(ranks, clock, "clock of host " + std::to_string(shifts[r].count()));
  });
  for (const std::size_t r : {1, 2}) {
    EXPECT_GT(found[r].round_trip_ns, 0);
    EXPECT_LE(std::llabs(found[r].ns + shifts[r].count()), found[r].round_trip_ns / 2 + 1) << "rank " << r;
  }
  EXPECT_EQ(found[4].ns, found[1].ns) << "one measurement for each clock";
  for (const std::size_t r : {0, 3}) {
    EXPECT_EQ(found[r].ns, 0) << "rank " << r << " has the clock of rank 0";
    EXPECT_EQ(found[r].round_trip_ns, 0);
  }
}

TEST(ClockOffset, OfOneRankIsNone) {
  auto alone = make_local_communicators(1, std::chrono::seconds(10));
  EXPECT_EQ(measure_clock_offset(*alone.front(), steady_clock(), name_of_steady_clock()).ns, 0);
  EXPECT_EQ(name_of_steady_clock(), name_of_steady_clock());
}

}  // namespace
}  // namespace millrace
