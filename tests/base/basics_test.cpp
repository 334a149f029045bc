#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <csignal>
#include <functional>
#include <set>
#include <thread>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/error.h"
#include "runtime/base/files.h"
#include "runtime/base/ids.h"
#include "runtime/base/option_names.h"
#include "runtime/base/random.h"
#include "runtime/base/result.h"
#include "runtime/base/unfinished_file.h"

namespace millrace {
namespace {

TEST(Random, StreamsDependOnNameAndCountersOnly) {
  EXPECT_EQ(derive_seed(1, "a"), derive_seed(1, "a"));
  EXPECT_NE(derive_seed(1, "a"), derive_seed(1, "b"));
  EXPECT_NE(derive_seed(1, "a"), derive_seed(2, "a"));
  EXPECT_NE(derive_seed(1, "a", 1, 0), derive_seed(1, "a", 0, 1));
  RandomStream x(7), y(7);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(x.next(), y.next());
}

TEST(Random, BelowIsInRangeAndNormalHasUnitVariance) {
  RandomStream random(3);
  double sum = 0, squares = 0;
  constexpr int kCount = 20000;
  for (int i = 0; i < kCount; ++i) {
    ASSERT_LT(random.below(7), 7u);
    const double n = random.normal();
    sum += n;
    squares += n * n;
  }
  EXPECT_NEAR(sum / kCount, 0, 0.03);
  EXPECT_NEAR(squares / kCount, 1, 0.05);
}

TEST(VirtualClock, MovesOnlyForward) {
  VirtualClock clock;
  const TimePoint start = clock.now();
  clock.sleep_until(start + std::chrono::seconds(5));
  clock.sleep_until(start + std::chrono::seconds(2));
  clock.advance(std::chrono::seconds(1));
  EXPECT_EQ(clock.now() - start, std::chrono::seconds(6));
}

TEST(VirtualClock, MovesWhenAllItsUsersWaitAndAtOnceToTheFirstMoment) {
  VirtualClock clock;
  const TimePoint start = clock.now();
  std::barrier all_here(3);
  std::mutex mutex;
  std::condition_variable changed;
  bool ready = false;
  std::vector<std::int64_t> woken(3);
  const auto hours = [](int h) { return std::chrono::hours(h); };
  const auto since = [&] {
    return std::chrono::duration_cast<std::chrono::hours>(clock.now() - start).count();
  };
  std::vector<std::jthread> threads;
  threads.emplace_back([&] {
    const ClockUser user(clock);
    all_here.arrive_and_wait();
    clock.sleep_until(start + hours(2));
    woken[0] = since();
    const std::lock_guard lock(mutex);
    ready = true;
    clock.notify_all(changed);
  });
  threads.emplace_back([&] {  // woken by the first one
    const ClockUser user(clock);
    all_here.arrive_and_wait();
    std::unique_lock lock(mutex);
    EXPECT_TRUE(clock.wait_until(lock, changed, start + hours(9), [&] { return ready; }));
    woken[1] = since();
  });
  threads.emplace_back([&] {  // woken by nobody: the deadline takes no real time
    const ClockUser user(clock);
    all_here.arrive_and_wait();
    std::unique_lock lock(mutex);
    EXPECT_FALSE(clock.wait_until(lock, changed, start + hours(5), [] { return false; }));
    woken[2] = since();
  });
  threads.clear();
  EXPECT_EQ(woken, (std::vector<std::int64_t>{2, 2, 5}));
}

/// Runs `body` with its number on `count` threads that use the clock.
void as_users(VirtualClock& clock, int count, const std::function<void(int)>& body) {
  std::barrier all_here(count);
  std::vector<std::jthread> threads;
  for (int i = 0; i < count; ++i)
    threads.emplace_back([&, i] {
      const ClockUser user(clock);
      all_here.arrive_and_wait();
      body(i);
    });
}

TEST(VirtualClock, WakesAThreadOnlyWhenWhatItWaitsForIsTrue) {
  constexpr int kWaiters = 40;
  VirtualClock clock;
  const TimePoint start = clock.now();
  std::mutex mutex;
  std::condition_variable changed;
  int turn = 0;
  std::vector<int> looked(kWaiters + 1);
  as_users(clock, kWaiters + 1, [&](int i) {
    if (i == 0) {  // an hour has passed only when all others wait
      for (int hour = 1; hour <= kWaiters; ++hour) {
        clock.sleep_until(start + std::chrono::hours(hour));
        const std::lock_guard lock(mutex);
        turn = hour;
        clock.notify_all(changed);
      }
      return;
    }
    const auto own = std::this_thread::get_id();
    std::unique_lock lock(mutex);
    EXPECT_TRUE(clock.wait_until(lock, changed, TimePoint::max(), [&] {
      looked[i] += std::this_thread::get_id() == own;
      return turn >= i;
    }));
    EXPECT_EQ(clock.now(), start + std::chrono::hours(i));
    EXPECT_EQ(looked[i], 2) << "before and after its wait";
  });
}

TEST(VirtualClock, ManyDeadlinesPassInTheirOrder) {
  constexpr int kWaiters = 200;
  VirtualClock clock;
  const TimePoint start = clock.now();
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<int> passed;
  as_users(clock, kWaiters, [&](int i) {
    const int hour = 1 + i * 37 % kWaiters;  // each once
    const TimePoint until = start + std::chrono::hours(hour);
    std::unique_lock lock(mutex);
    EXPECT_FALSE(clock.wait_until(lock, changed, until, [] { return false; }));
    EXPECT_EQ(clock.now(), until);
    passed.push_back(hour);
  });
  EXPECT_EQ(passed.size(), kWaiters);
  EXPECT_TRUE(std::ranges::is_sorted(passed));
}

TEST(VirtualClock, AStopFromOutsideEndsWaitsAtOnce) {
  VirtualClock clock;
  const TimePoint start = clock.now();
  std::mutex mutex;
  std::condition_variable changed;
  int waiting = 0;
  bool stopped = false;
  std::jthread outside([&] {  // no user: the time does not wait for it
    std::unique_lock lock(mutex);
    clock.wait_until(lock, changed, TimePoint::max(), [&] { return waiting == 20; });
    stopped = true;
    clock.notify_all(changed);
  });
  as_users(clock, 20, [&](int) {
    std::unique_lock lock(mutex);
    ++waiting;
    clock.notify_all(changed);
    EXPECT_TRUE(clock.wait_until(lock, changed, TimePoint::max(), [&] { return stopped; }));
  });
  EXPECT_EQ(clock.now(), start);
}

TEST(Files, AtomicWriteReplacesAndLeavesNothingBehind) {
  char name[] = "/tmp/millrace-test-XXXXXX";
  const std::filesystem::path folder = ::mkdtemp(name);
  ASSERT_TRUE(write_file_atomically(folder / "f", "one"));
  ASSERT_TRUE(write_file_atomically(folder / "f", "two"));
  EXPECT_EQ(*read_file(folder / "f"), "two");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1);
  EXPECT_FALSE(write_file_atomically(folder / "absent" / "f", "x"));
  EXPECT_FALSE(read_file(folder));
  EXPECT_FALSE(read_file(folder / "f", 2));
  std::filesystem::remove_all(folder);
}

TEST(UnfinishedFiles, ASignalThatEndsTheProcessRemovesThem) {
  char name[] = "/tmp/millrace-test-XXXXXX";
  const std::filesystem::path folder = ::mkdtemp(name);
  const auto write = [&](const char* file) {
    const std::string path = folder / file;
    ::close(::open(path.c_str(), O_WRONLY | O_CREAT, 0600));
    return path;
  };
  const auto left = [&] {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder))
      names.insert(entry.path().filename());
    return names;
  };
  const auto ended_by = [&](int signal) {
    UnfinishedFile first(write("first")), second(write("second"));
    { const UnfinishedFile whole(write("whole")); }
    const UnfinishedFile moved = std::move(first);
    second = {};  // now the second file counts as whole
    const UnfinishedFile third(write("third"));
    if (const pid_t child = ::fork(); child == 0)
      ::raise(signal);  // the child must not remove its parent's files
    else
      ::waitpid(child, nullptr, 0);
    ::raise(left().size() == 4 ? signal : SIGKILL);
  };
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction inherited {};
    if (::sigaction(signal, nullptr, &inherited) == 0 && inherited.sa_handler == SIG_IGN) continue;  // nohup
    EXPECT_EXIT(ended_by(signal), testing::KilledBySignal(signal), "");
    EXPECT_EQ(left(), (std::set<std::string>{"second", "whole"})) << signal;
  }
  // A signal that the program ignores stays so.
  const auto ignores = [&] {
    ::signal(SIGHUP, SIG_IGN);
    const UnfinishedFile unfinished(write("kept"));
    ::raise(SIGHUP);
    ::_exit(left().contains("kept") ? 7 : 8);
  };
  EXPECT_EXIT(ignores(), testing::ExitedWithCode(7), "");
  std::filesystem::remove_all(folder);
}

#ifndef __SANITIZE_THREAD__  // it does not support threads of a forked child
TEST(UnfinishedFiles, OtherThreadsMakeNoneWhileASignalEndsTheProcess) {
  char name[] = "/tmp/millrace-test-XXXXXX";
  const std::filesystem::path folder = ::mkdtemp(name);
  const auto make_files = [&](int thread) {
    for (int i = 0;; ++i) {
      const std::string path = folder / (std::to_string(thread) + "-" + std::to_string(i));
      const UnfinishedFile unfinished(path);
      ::close(::open(path.c_str(), O_WRONLY | O_CREAT, 0600));
      ::unlink(path.c_str());
    }
  };
  for (int repeat = 0; repeat < 40; ++repeat) {
    const auto ended = [&] {
      for (int thread = 0; thread < 4; ++thread) std::thread(make_files, thread).detach();
      std::this_thread::sleep_for(std::chrono::microseconds(1000 + 97 * repeat));
      ::raise(SIGTERM);
    };
    EXPECT_EXIT(ended(), testing::KilledBySignal(SIGTERM), "");
    ASSERT_TRUE(std::filesystem::is_empty(folder)) << "repeat " << repeat;
  }
  std::filesystem::remove_all(folder);
}
#endif

TEST(OptionNames, AreFieldsInAProgramThatLinksTheLibrary) {
  const Problem problem{"--clip-norm", "is given beside --clip-value",
                        "see a--b, 'x --2' and \"--lr-step-size N\""};
  const std::string flags = to_string(problem);
  EXPECT_EQ(flags,
            "--clip-norm: is given beside --clip-value. Hint: see a--b, 'x --2' and \"--lr-step-size N\"");
  set_option_names(OptionNames::Fields);
  const std::string fields = to_string(problem);
  const ConfigError error("--backend shm: none", "use --backend auto (or --host-memory)");
  set_option_names(OptionNames::Flags);
  EXPECT_EQ(fields, "clip_norm: is given beside clip_value. Hint: see a--b, 'x --2' and \"lr_step_size N\"");
  EXPECT_STREQ(error.what(), "backend shm: none");
  EXPECT_EQ(error.hint(), "use backend auto (or host_memory)");
}

TEST(Check, PrintsTheDetail) {
  try {
    MILLRACE_CHECK(1 == 2, "left " << 1);
    FAIL();
  } catch (const InternalError& error) {
    EXPECT_NE(std::string(error.what()).find("1 == 2"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("left 1"), std::string::npos);
  }
}

}  // namespace
}  // namespace millrace
