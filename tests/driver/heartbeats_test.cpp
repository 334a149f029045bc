// Ranks without a sign of life, and what `status` calls each rank.
#include "driver/hosts/heartbeats.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <optional>
#include <stop_token>
#include <thread>

#include "driver/launch/run_state.h"
#include "runtime/base/files.h"
#include "runtime/base/json.h"
#include "runtime/base/run_files.h"
#include "runtime/base/run_folder.h"
#include "tests/driver/temporary_folder.h"

namespace millrace {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class RankSigns : public testing::Test {
 protected:
  /// Writes a rank's status file as the rank does.
  void shows(int rank, std::int64_t beat, std::int64_t step = 3, const std::string& action = "0F1",
             double slow = 0) {
    Json json =
        Json::object({{"beat", beat}, {"rank", rank}, {"stage", rank}, {"step", step}, {"action", action}});
    if (slow > 0) json["slow"] = slow;
    ASSERT_TRUE(write_file_atomically(folder_.path(run_files::kStatus.of(rank)), json.dump() + "\n"));
  }
  static std::int64_t now_ms() {
    return std::chrono::duration_cast<milliseconds>(std::chrono::system_clock::now().time_since_epoch())
        .count();
  }
  std::vector<RankState> states() {
    std::vector<RankState> found;
    for (const RankStatus& rank : read_run_state(folder_.path("")).ranks) found.push_back(rank.state);
    return found;
  }

  TemporaryFolder folder_;
};

TEST_F(RankSigns, ABeatThatStandsStillIsSilence) {
  Heartbeats watch(folder_.path(""), seconds(2));
  TimePoint now(seconds(100));
  const auto silent = [&](milliseconds later) { return watch.silence(0, ::getpid(), now += later); };
  for (int i = 0; i < 20; ++i) EXPECT_FALSE(silent(seconds(1))) << "it has not begun";
  shows(0, 1000);
  for (const int later : {500, 500, 500, 600}) EXPECT_FALSE(silent(milliseconds(later)));
  const auto found = silent(milliseconds(500));
  ASSERT_TRUE(found);
  EXPECT_EQ(*found,
            "no sign of life for 2.1 s (limit 2.0 s): its host does not run it, or its disk takes nothing");
  shows(0, 2000);
  EXPECT_FALSE(silent(milliseconds(500))) << "it goes on";
}

TEST_F(RankSigns, BeforeTheFirstBeatOnlyASuspendedProcessIsSilent) {
  const pid_t child = ::fork();
  if (child == 0)
    for (;;) ::pause();
  Heartbeats watch(folder_.path(""), seconds(2));
  TimePoint now(seconds(100));
  const auto silent = [&] { return watch.silence(0, child, now += milliseconds(500)); };
  for (int i = 0; i < 20; ++i) EXPECT_FALSE(silent()) << "it loads";
  ::kill(child, SIGSTOP);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, WUNTRACED), child);
  int looks = 1;
  std::optional<std::string> found;
  while (!(found = silent()) && looks < 20) ++looks;
  EXPECT_EQ(looks, 4) << "2 s, from the last look that found it awake";
  EXPECT_EQ(found.value_or(""), "no sign of life for 2.0 s (limit 2.0 s): suspended (SIGSTOP or a debugger)");
  ::kill(child, SIGKILL);
  ::waitpid(child, &status, 0);
}

/// The whole machine may have been suspended, and the launcher with it.
TEST_F(RankSigns, WhoDidNotLookBlamesNobody) {
  Heartbeats watch(folder_.path(""), seconds(2));
  shows(0, 1000);
  EXPECT_FALSE(watch.silence(0, ::getpid(), TimePoint(seconds(100))));
  EXPECT_FALSE(watch.silence(0, ::getpid(), TimePoint(seconds(500))));
  EXPECT_FALSE(watch.silence(0, ::getpid(), TimePoint(seconds(501))));
  Heartbeats off(folder_.path(""), seconds(0));
  EXPECT_FALSE(off.silence(0, ::getpid(), TimePoint(seconds(100))));
  EXPECT_FALSE(off.silence(0, ::getpid(), TimePoint(seconds(101))));
}

TEST_F(RankSigns, StatesOfARunThatGoesOn) {
  const Result<RunLock> lock = RunLock::acquire(folder_.path(""), "run");
  ASSERT_TRUE(lock);
  shows(0, now_ms(), -1, "start");
  shows(1, now_ms());
  shows(2, now_ms(), 3, "0F1", 2.5);
  shows(3, now_ms() - 60'000);
  shows(4, now_ms(), 20, "done");
  shows(5, now_ms());
  write_failure(folder_.path(""), {.rank = 5, .step = 3, .exit_code = 1, .error = "out of order"});
  EXPECT_EQ(states(), (std::vector{RankState::Starting, RankState::Healthy, RankState::Slow, RankState::Lost,
                                   RankState::Done, RankState::Failed}));
}

TEST_F(RankSigns, AClockThatIsWrongIsNoSilence) {
  const Result<RunLock> lock = RunLock::acquire(folder_.path(""), "run");
  ASSERT_TRUE(lock);
  shows(0, now_ms() - 3'600'000);
  shows(1, now_ms() + 3'600'000);
  const std::jthread beats([&](const std::stop_token& stop) {
    for (int i = 1; !stop.stop_requested(); ++i) {
      shows(0, now_ms() - 3'600'000 + i);
      shows(1, now_ms() + 3'600'000 + i);
      std::this_thread::sleep_for(milliseconds(10));
    }
  });
  EXPECT_EQ(states(), (std::vector{RankState::Healthy, RankState::Healthy}));
}

TEST_F(RankSigns, OneRankOfAFailedRunIsTheOneThatFailed) {
  shows(0, now_ms());
  shows(1, now_ms());
  write_failure(folder_.path(""), {.rank = 0, .step = 3, .exit_code = 5, .error = "lost rank 1"});
  write_failure(folder_.path(""), {.rank = 1, .step = 3, .exit_code = 137, .error = "killed"});
  EXPECT_EQ(states(), (std::vector{RankState::Stopped, RankState::Failed}));
}

TEST_F(RankSigns, WhoIsGoneWithoutAWordIsLost) {
  shows(0, now_ms());
  EXPECT_EQ(states(), std::vector{RankState::Lost});
}

}  // namespace
}  // namespace millrace
