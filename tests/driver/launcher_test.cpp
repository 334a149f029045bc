#include "driver/launch/launcher.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <thread>

#include "driver/launch/console.h"
#include "driver/launch/launch_command.h"
#include "driver/launch/local_ranks.h"
#include "runtime/base/error.h"
#include "runtime/base/units.h"
#include "tests/driver/temporary_folder.h"

namespace millrace {
namespace {

/// A launch of shell scripts; what reaches the console is kept.
class Launcher : public testing::Test {
 protected:
  LaunchOutcome run(const std::vector<std::string>& scripts, LaunchOptions options = {}) {
    std::vector<RankProcess> processes;
    for (const std::string& script : scripts) {
      const int rank = static_cast<int>(processes.size());
      processes.push_back({.rank = rank,
                           .stage = rank,
                           .argv = {"/bin/sh", "-c", script},
                           .environment = {{"RANK", std::to_string(rank)}, {"FOLDER", folder_.path()}},
                           .log = folder_.path("rank_" + std::to_string(rank))});
    }
    const int out =
        ::open(folder_.path("console.out").c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    const int err =
        ::open(folder_.path("console.err").c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    options.out = out;
    options.err = err;
    const LaunchOutcome outcome = run_ranks(processes, std::move(options), clock_);
    ::close(out);
    ::close(err);
    for (const RankExit& exit : outcome.exits)
      EXPECT_EQ(::kill(exit.pid, 0), exit.is_kept ? 0 : -1) << "rank " << exit.rank;
    return outcome;
  }

  /// Shell: waits without end, ends by SIGTERM.
  static constexpr const char* kForever =
      "echo ready > $FOLDER/ready.$RANK; while :; do read x < $FOLDER/fifo; done";
  void SetUp() override { ASSERT_EQ(::mkfifo(folder_.path("fifo").c_str(), 0600), 0); }

  TemporaryFolder folder_;
  SteadyClock clock_;
};

TEST_F(Launcher, AllDone) {
  const LaunchOutcome outcome =
      run({"echo result; echo story >&2", "echo \"[rank1] log line\" >&2; printf unfinished >&2"});
  EXPECT_EQ(outcome.exit_code(), 0);
  EXPECT_EQ(outcome.first_failure, -1);
  EXPECT_EQ(folder_.read("console.out"), "result\n") << "stdout is not decorated";
  const std::string err = folder_.read("console.err");
  EXPECT_NE(err.find("[rank 0] story\n"), std::string::npos);
  EXPECT_NE(err.find("[rank1] log line\n"), std::string::npos) << "named once";
  EXPECT_NE(err.find("[rank 1] unfinished\n"), std::string::npos);
  EXPECT_EQ(folder_.read("rank_0.out"), "result\n");
  EXPECT_EQ(folder_.read("rank_1.err"), "[rank1] log line\nunfinished") << "the log is raw";
}

TEST_F(Launcher, ARefusalInTheSameWordsIsShownOnce) {
  const std::string refuse = "echo 'error: no such layer' >&2; echo 'Hint: name another' >&2; ";
  // The first one that ends would end the other one.
  const auto end_after = [](const char* own, const char* other) {
    return std::string("> $FOLDER/said.") + own + "; while [ ! -e $FOLDER/said." + other +
           " ]; do :; done; exit 2";
  };
  const LaunchOutcome outcome = run({refuse + end_after("0", "1"),
                                     refuse + "echo 'error: and no such rank' >&2; " + end_after("1", "0"),
                                     "echo same >&2", "echo same >&2"});
  EXPECT_EQ(outcome.exit_code(), 2);
  const std::string err = folder_.read("console.err");
  const auto times = [&](const std::string& text) {
    int found = 0;
    for (std::size_t at = err.find(text); at != std::string::npos; at = err.find(text, at + 1)) ++found;
    return found;
  };
  EXPECT_EQ(times("error: no such layer"), 1) << err;
  EXPECT_EQ(times("Hint: name another"), 1) << err;
  EXPECT_EQ(times("[rank 1] error: and no such rank"), 1) << err;
  for (int rank : {0, 1})
    EXPECT_NE(folder_.read("rank_" + std::to_string(rank) + ".err").find("no such layer"), std::string::npos)
        << "the logs hold everything";
}

TEST_F(Launcher, EnvironmentStdinAndProcessGroup) {
  const LaunchOutcome outcome =
      run({"read x && exit 9; test \"$RANK\" = 0 || exit 8; test \"$(ps -o pgid= -p $$ | tr -d ' ')\" = $$ "
           "|| exit 7"});
  EXPECT_EQ(outcome.exit_code(), 0);
}

TEST_F(Launcher, TheFirstFailureEndsTheOthersAndNamesTheCode) {
  const LaunchOutcome outcome =
      run({kForever, "while ! [ -e $FOLDER/ready.0 ]; do :; done; echo why >&2; exit 6", kForever});
  EXPECT_EQ(outcome.exit_code(), 6);
  ASSERT_EQ(outcome.first_failure, 1);
  EXPECT_EQ(outcome.exits[1].last_lines, (std::vector<std::string>{"why"}));
  EXPECT_EQ(outcome.exits[0].signal, SIGTERM);
  EXPECT_TRUE(outcome.exits[0].consequence);
}

TEST_F(Launcher, KillMinusNine) {
  const LaunchOutcome outcome = run({kForever, "while ! [ -e $FOLDER/ready.0 ]; do :; done; kill -9 $$"});
  EXPECT_EQ(outcome.exit_code(), 137);
  ASSERT_EQ(outcome.first_failure, 1);
  EXPECT_EQ(outcome.exits[1].signal, SIGKILL);
}

TEST(Terminals, GetNoControlCharactersOfRanks) {
  EXPECT_EQ(on_terminal("a\tb \x1b[2J\x07 \u00e9\xff"), "a\tb \\x1b[2J\\x07 \u00e9\\xff");
  EXPECT_EQ(on_terminal("10 %\r20 %\r100 %\r"), "100 %");
  EXPECT_EQ(on_terminal(""), "");
}

/// A rank that meets rank 1, loses it, and does as it is told.
constexpr const char* kKept =
    "while [ ! -e $FOLDER/last ]; do\n  printf J >&3\n  echo > $FOLDER/met\n"
    "  while [ ! -e $FOLDER/pid.1 ]; do :; done\n  while kill -0 $(cat $FOLDER/pid.1) 2>&-; do :; done\n"
    "  echo lost >&2\n  printf W >&3\n  read -r order <&3 || exit 7\n  printf '%s\\n' \"$order\" >> "
    "$FOLDER/orders\n"
    "done";
/// Its peer: the first is killed when they have met, the next one ends well.
constexpr const char* kLost =
    "[ ! -e $FOLDER/last ] || exit 0\nwhile [ ! -e $FOLDER/met ]; do :; done\n> $FOLDER/last\n"
    "echo $$ > $FOLDER/pid; mv $FOLDER/pid $FOLDER/pid.1\nkill -9 $$";

TEST_F(Launcher, ARankThatWaitsIsKeptForTheNextRun) {
  Survivors kept;
  const LaunchOutcome first = run({kKept, kLost}, {.kept = &kept});
  EXPECT_EQ(first.exit_code(), 137);
  ASSERT_EQ(first.first_failure, 1);
  ASSERT_TRUE(first.exits[0].is_kept);
  EXPECT_TRUE(first.exits[0].consequence);
  EXPECT_EQ(first.exits[0].exit_code(), 5);
  EXPECT_EQ(first.exits[0].last_lines, (std::vector<std::string>{"lost"}));
  EXPECT_FALSE(first.exits[1].is_kept);
  const LaunchOutcome second = run({kKept, kLost}, {.append_logs = true, .kept = &kept});
  EXPECT_EQ(second.exit_code(), 0);
  EXPECT_EQ(second.exits[0].pid, first.exits[0].pid);
  EXPECT_NE(second.exits[1].pid, first.exits[1].pid);
  const Result<RankOrder> order = order_from(folder_.read("orders"));
  ASSERT_TRUE(order) << to_string(order.problems());
  EXPECT_EQ(order->argv, (std::vector<std::string>{"/bin/sh", "-c", kKept}));
  EXPECT_EQ(order->environment.front(), (std::pair<std::string, std::string>{"RANK", "0"}));
  EXPECT_FALSE(order_from("{}"));
  EXPECT_FALSE(order_from("{\"argv\":[1],\"environment\":[]}"));
}

TEST_F(Launcher, AKeptRankThatIsKilledGetsANewProcess) {
  Survivors kept;
  const LaunchOutcome first = run({kKept, kLost}, {.kept = &kept});
  ASSERT_TRUE(first.exits[0].is_kept);
  ::kill(first.exits[0].pid, SIGKILL);
  siginfo_t info{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(first.exits[0].pid), &info, WEXITED | WNOWAIT), 0);
  const LaunchOutcome second = run({kKept, kLost}, {.kept = &kept});
  EXPECT_EQ(second.exit_code(), 0);
  EXPECT_NE(second.exits[0].pid, first.exits[0].pid);
}

TEST_F(Launcher, KeptRanksEndWithTheirList) {
  pid_t left = -1;
  {
    Survivors kept;
    const LaunchOutcome outcome = run({kKept, kLost}, {.kept = &kept});
    ASSERT_TRUE(outcome.exits[0].is_kept);
    left = outcome.exits[0].pid;
  }
  EXPECT_EQ(::kill(left, 0), -1);
}

/// It has met its peer, but does not notice that it is gone.
TEST_F(Launcher, ARankThatMayBeKeptIsKilledAfterTheGrace) {
  Survivors kept;
  const LaunchOutcome outcome = run(
      {std::string("printf J >&3; ") + kForever, "while ! [ -e $FOLDER/ready.0 ]; do :; done; kill -9 $$"},
      {.grace = std::chrono::milliseconds(200), .kept = &kept});
  EXPECT_EQ(outcome.exit_code(), 137);
  EXPECT_EQ(outcome.exits[0].signal, SIGKILL) << "SIGTERM would end it, and what it was to save";
  EXPECT_FALSE(outcome.exits[0].is_kept);
}

/// It would hold up the others until they give up, which may take minutes.
TEST_F(Launcher, ASuspendedRankIsLostAfterTheLimit) {
  const std::string status = folder_.path("status.rank1.json");
  const LaunchOutcome outcome =
      run({kForever,
           "while ! [ -e $FOLDER/ready.0 ]; do :; done; echo '{\"beat\":1}' >" + status + "; kill -STOP $$"},
          {.heartbeats = std::make_shared<Heartbeats>(folder_.path(""), std::chrono::milliseconds(500))});
  EXPECT_EQ(outcome.exit_code(), 5);
  ASSERT_EQ(outcome.first_failure, 1);
  EXPECT_NE(outcome.exits[1].lost.find("no sign of life for "), std::string::npos) << outcome.exits[1].lost;
  EXPECT_NE(outcome.exits[1].lost.find("suspended (SIGSTOP"), std::string::npos) << outcome.exits[1].lost;
  EXPECT_EQ(outcome.exits[0].signal, SIGTERM);
}

TEST_F(Launcher, ARankThatIgnoresSigtermIsKilledAfterTheGrace) {
  const LaunchOutcome outcome =
      run({std::string("trap '' TERM; ") + kForever, "while ! [ -e $FOLDER/ready.0 ]; do :; done; exit 3"},
          {.grace = std::chrono::milliseconds(200)});
  EXPECT_EQ(outcome.exit_code(), 3);
  EXPECT_EQ(outcome.exits[0].signal, SIGKILL);
  EXPECT_GT(outcome.seconds, 0.2);
}

TEST_F(Launcher, GrandchildrenGoWithTheirRank) {
  const LaunchOutcome outcome = run({"sleep 1000 & echo $! > $FOLDER/grandchild; exit 1"});
  EXPECT_EQ(outcome.exit_code(), 1);
  const pid_t grandchild = std::stoi(folder_.read("grandchild"));
  const TimePoint deadline = clock_.now() + std::chrono::seconds(60);
  const auto gone = [&] {
    std::string state;
    std::ifstream stat("/proc/" + std::to_string(grandchild) + "/stat");
    return !(stat >> state >> state >> state) ||
           state == "Z";  // the grandchild's new parent may not have waited yet
  };
  while (!gone() && clock_.now() < deadline) std::this_thread::yield();
  EXPECT_TRUE(gone());
}

TEST_F(Launcher, ALostPeerIsNotTheCause) {
  // Rank 0 sees the broken connection and ends (code 5) before the launcher hears of rank 1.
  const LaunchOutcome outcome =
      run({"while ! [ -e $FOLDER/ready.1 ]; do :; done; echo ready > $FOLDER/ready.0; exit 5",
           "trap '' TERM; echo ready > $FOLDER/ready.1; while ! [ -e $FOLDER/ready.0 ]; do :; done; exit 6"});
  EXPECT_EQ(outcome.exits[1].signal, 0);
  EXPECT_EQ(outcome.exits[1].status, 6);
  EXPECT_EQ(outcome.first_failure, 1);
  EXPECT_EQ(outcome.exit_code(), 6);
}

TEST_F(Launcher, AMissingProgramLeavesNobodyBehind) {
  const std::vector<RankProcess> processes{{.rank = 0, .argv = {"/bin/sh", "-c", "while :; do :; done"}},
                                           {.rank = 1, .argv = {"/no/such/program"}}};
  EXPECT_THROW(run_ranks(processes, {}, clock_), ConfigError);
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1) << "no child is left";
}

/// Signals go to the whole process: the launch runs in a child of its own. `signal` 0: none.
int launch_and_signal(const TemporaryFolder& folder, const std::string& script, int signal, int times = 1,
                      LaunchOptions options = {}) {
  const std::string ready = folder.path("ready.0");
  const pid_t launcher = ::fork();
  if (launcher == 0) {
    SteadyClock clock;
    const LaunchOutcome outcome = run_ranks({{.rank = 0,
                                              .argv = {"/bin/sh", "-c", script},
                                              .environment = {{"RANK", "0"}, {"FOLDER", folder.path()}}}},
                                            std::move(options), clock);
    ::_exit(outcome.first_failure >= 0 ? 99 : outcome.exit_code());
  }
  SteadyClock clock;
  const TimePoint deadline = clock.now() + std::chrono::seconds(60);
  while (signal != 0 && !std::filesystem::exists(ready) && clock.now() < deadline) std::this_thread::yield();
  for (int i = 0; i < times && signal != 0; ++i) {
    ::kill(launcher, signal);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  int status = 0;
  ::waitpid(launcher, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

TEST_F(Launcher, SignalsAreForwarded) {
  EXPECT_EQ(launch_and_signal(folder_, kForever, SIGTERM), 143);
  std::filesystem::remove(folder_.path("ready.0"));
  EXPECT_EQ(launch_and_signal(folder_, std::string("trap 'exit 75' INT; ") + kForever, SIGINT), 75)
      << "saved its state";
}

TEST_F(Launcher, AHangupIsAStopRequestAndMayComeTwice) {
  const std::string saves =
      "trap 'for i in 1 2 3 4 5; do sleep 0.1; done; exit 75' HUP; echo ready > $FOLDER/ready.0; "
      "while :; do sleep 0.05; done";
  EXPECT_EQ(launch_and_signal(folder_, saves, SIGHUP, /*times=*/3), 75) << "saved its state";
  std::filesystem::remove(folder_.path("ready.0"));
  // nohup: it goes on to its end.
  struct sigaction ignore {
  }, old{};
  ignore.sa_handler = SIG_IGN;
  ::sigaction(SIGHUP, &ignore, &old);
  EXPECT_EQ(launch_and_signal(folder_, "echo ready > $FOLDER/ready.0; kill -HUP $$; sleep 0.3", SIGHUP), 0);
  ::sigaction(SIGHUP, &old, nullptr);
}

TEST_F(Launcher, ARankThatWasAskedToStopGivesTheOthersTimeToSave) {
  // Rank 0 got a signal of its own, told rank 1 and ended; rank 1 takes longer than the grace of a failure.
  const LaunchOutcome outcome =
      run({"exit 75", "trap 'exit 9' TERM; for i in 1 2 3 4 5 6; do sleep 0.1; done; exit 75"},
          {.grace = std::chrono::milliseconds(100)});
  EXPECT_EQ(outcome.exit_code(), 75);
  EXPECT_EQ(outcome.first_failure, -1);
  EXPECT_EQ(outcome.exits[1].status, 75);
  EXPECT_TRUE(outcome.stopped_early);
}

TEST_F(Launcher, AFailureBesideARequeueIsTheHeadline) {
  const LaunchOutcome outcome = run({"exit 75", "sleep 0.3; exit 4"});
  EXPECT_EQ(outcome.exit_code(), 4);
  EXPECT_EQ(outcome.first_failure, 1);
}

TEST_F(Launcher, TheGraceOfAStopIsPutOffWhileRanksGetOn) {
  // The launch runs in a child process, so that it alone gets the signal.
  const auto code = [&](bool gets_on) {
    const std::string script =
        std::string(
            "trap 'asked=1' TERM; echo ready > $FOLDER/ready.0; while [ -z \"$asked\" ]; do sleep 0.02; "
            "done; for i in 1 2 3 4 5 6 7 8; do ") +
        (gets_on ? "echo $i > $FOLDER/step; " : "") + "sleep 0.15; done; exit 75";
    std::filesystem::remove(folder_.path("ready.0"));
    std::filesystem::remove(folder_.path("step"));
    return launch_and_signal(folder_, script, SIGTERM, 1,
                             {.interrupt_grace = std::chrono::milliseconds(600),
                              .progress = [this] { return folder_.read("step"); }});
  };
  EXPECT_EQ(code(true), 75);
  EXPECT_EQ(code(false), 143) << "killed";
}

TEST_F(Launcher, ARankThatAStopSignalEndsIsNotWaitedForByTheOthers) {
  // The launch runs in a child process, so that it alone gets the signal.
  const std::string ready = folder_.path("ready.0");
  const pid_t launcher = ::fork();
  if (launcher == 0) {
    run({std::string("while [ ! -e $FOLDER/ready.1 ]; do :; done; ") + kForever,
         "trap '' TERM; echo ready > $FOLDER/ready.1; while :; do sleep 0.05; done"},
        {.grace = std::chrono::milliseconds(200), .interrupt_grace = std::chrono::hours(1)});
    ::_exit(0);
  }
  const TimePoint deadline = clock_.now() + std::chrono::seconds(60);
  while (!std::filesystem::exists(ready) && clock_.now() < deadline) std::this_thread::yield();
  ::kill(launcher, SIGTERM);
  ::waitpid(launcher, nullptr, 0);  // not until the grace of a rank that saves is over
}

TEST_F(Launcher, ASuspendedRankIsKnown) {
  const LaunchOutcome outcome = run(
      {"echo $$ > $FOLDER/pid; kill -STOP $$; exit 0",
       "while ! grep -q '^State:.*T' /proc/$(cat $FOLDER/pid 2>/dev/null)/status 2>/dev/null; do sleep 0.02; "
       "done; exit 5"},
      {.grace = std::chrono::minutes(10)});  // it could not use it
  EXPECT_EQ(outcome.exit_code(), 5);
  EXPECT_TRUE(outcome.exits[0].was_suspended);
  EXPECT_FALSE(outcome.exits[1].was_suspended);
  EXPECT_EQ(outcome.exits[0].signal, SIGKILL);
}

/// Nobody reads the pipes that the launch prints to.
TEST_F(Launcher, AStalledConsoleHoldsUpNeitherTheRanksNorASignal) {
  for (const bool interrupted : {false, true}) {
    int out[2], err[2];
    ASSERT_EQ(::pipe2(out, O_CLOEXEC), 0);
    ASSERT_EQ(::pipe2(err, O_CLOEXEC), 0);
    const std::string flood =
        "i=0; while [ $i -lt 3000 ]; do echo \"$i a line of a hundred characters or so, which "
        "soon fills every pipe that nobody reads from, as is\" >&2; i=$((i+1)); done; ";
    const std::string script = interrupted ? flood + kForever : flood + "echo result";
    std::filesystem::remove(folder_.path("ready.0"));
    const int code =
        launch_and_signal(folder_, script, interrupted ? SIGTERM : 0, 1, {.out = out[1], .err = err[1]});
    EXPECT_EQ(code, interrupted ? 143 : 0);
    for (int fd : {out[0], out[1], err[0], err[1]}) ::close(fd);
  }
}

TEST(ConsoleTest, ASlowReaderGetsEverything) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  std::string expected, got;
  for (int i = 0; i < 20'000; ++i) expected += "line " + std::to_string(i) + "\n";
  std::jthread reader([&] {
    char buffer[1 << 14];
    for (ssize_t n; (n = ::read(ends[0], buffer, sizeof buffer)) > 0;) {
      got.append(buffer, static_cast<std::size_t>(n));
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  {
    Console console(ends[1], Console::kResults);
    for (int i = 0; i < 20'000; ++i) console.print("line " + std::to_string(i));
    EXPECT_TRUE(console.finish(std::chrono::seconds(10)));
  }
  EXPECT_EQ(::fcntl(ends[1], F_GETFL) & O_NONBLOCK, 0) << "others share it";
  ::close(ends[1]);
  reader.join();
  EXPECT_TRUE(got == expected);
  ::close(ends[0]);
}

/// A terminal cuts the bar instead of wrapping it, and what follows a full bar stands below it.
TEST(ConsoleTest, ATerminalGetsABarOfOneRow) {
  int ours = -1, terminal = -1;
  ASSERT_EQ(::openpty(&ours, &terminal, nullptr, nullptr, nullptr), 0);
  {
    Console console(terminal, Console::kStory);
    console.print("[rank1] t INFO step=1/2 loss=1");
    console.print("[rank1] said");
    console.print("[rank1] t INFO step=2/2 loss=1");
    EXPECT_TRUE(console.finish(std::chrono::seconds(5)));
  }
  ::close(terminal);  // else a read would wait where something is missing
  const std::string half = "\r\x1b[K\x1b[?7l[############............] step=1/2 loss=1\x1b[?7h",
                    full = "\r\x1b[K\x1b[?7l[########################] step=2/2 loss=1\x1b[?7h",
                    expected = half + "\r\x1b[K[rank1] said\r\n" + half + full + "\r\n";
  std::string shown(expected.size(), '\0');
  for (std::size_t at = 0; at < shown.size();) {
    const ssize_t n = ::read(ours, shown.data() + at, shown.size() - at);
    ASSERT_GT(n, 0);
    at += static_cast<std::size_t>(n);
  }
  EXPECT_EQ(shown, expected);
  ::close(ours);
}

TEST(ConsoleTest, WhatNobodyReadsIsLeftOutByWholeLinesAndCounted) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  Console console(ends[1], 1000);
  for (int i = 0; i < 5000; ++i) console.print("line " + std::to_string(i) + std::string(90, '.'));
  EXPECT_FALSE(console.finish(std::chrono::milliseconds(20)));
  std::string got;
  char buffer[1 << 14];
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  const auto read_all = [&] {
    for (ssize_t n; (n = ::read(ends[0], buffer, sizeof buffer)) > 0;)
      got.append(buffer, static_cast<std::size_t>(n));
  };
  read_all();
  console.flush();
  read_all();
  console.print("the last line");
  read_all();
  const std::size_t note = got.find(" lines are left out here");
  ASSERT_NE(note, std::string::npos);
  EXPECT_EQ(got.substr(got.size() - 14), "the last line\n");
  const auto lines = std::count(got.begin(), got.end(), '\n') - 2;
  const std::size_t number = got.rfind(' ', note - 1) + 1;
  EXPECT_EQ(lines + std::stoi(got.substr(number)), 5000) << got.substr(number, 40);
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST(StoreFolders, WhatAKilledLauncherLeftGoesWithTheNext) {
  const TemporaryFolder temporary;
  ::setenv("TMPDIR", temporary.path().c_str(), 1);
  const pid_t killed = ::fork();
  if (killed == 0) {
    const StoreFolder store;
    ::kill(::getpid(), SIGKILL);
  }
  ::waitpid(killed, nullptr, 0);
  const auto folders = [&] {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(temporary.path()))
      names.push_back(entry.path().string());
    std::sort(names.begin(), names.end());
    return names;
  };
  const std::vector<std::string> left = folders();
  ASSERT_EQ(left.size(), 1u) << "nobody could clean up";
  std::filesystem::create_directory(
      temporary.path("millrace-store-mine"));  // a folder without a lock must stay
  {
    const StoreFolder one, two;
    EXPECT_TRUE(std::filesystem::exists(one.path())) << "a living launcher's stays";
    EXPECT_FALSE(std::filesystem::exists(left[0]));
    EXPECT_EQ(std::filesystem::status(one.path()).permissions(), std::filesystem::perms::owner_all);
  }
  EXPECT_EQ(folders(), std::vector<std::string>{temporary.path("millrace-store-mine")});
  ::unsetenv("TMPDIR");
}

TEST(StoreFolders, NobodyTakesANewOneForAbandoned) {
  const TemporaryFolder temporary;
  ::setenv("TMPDIR", temporary.path().c_str(), 1);
  std::atomic<int> lost = 0;
  std::vector<std::jthread> launchers;
  for (int i = 0; i < 8; ++i)
    launchers.emplace_back([&] {
      for (int again = 0; again < 200; ++again) {
        const StoreFolder store;
        if (!std::filesystem::exists(store.path())) ++lost;
      }
    });
  launchers.clear();
  EXPECT_EQ(lost, 0);
  ::unsetenv("TMPDIR");
}

TEST(FailureSummary, NamesTheRankThatTheOthersWaitFor) {
  const TemporaryFolder folder;
  // 0 waits for 1, 1 waits for 2, and 2 computes without end.
  folder.write("status.rank0.json", R"({"rank":0,"stage":0,"step":7,"action":"0RECV_B3>1@1"})");
  folder.write("status.rank1.json", R"({"rank":1,"stage":1,"step":7,"action":"1RECV_B3>2@2"})");
  folder.write("status.rank2.json", R"({"rank":2,"stage":2,"step":7,"action":"2F4"})");
  const JobSpec job{
      .name = "j", .source = "job.yaml", .output_dir = folder.path(), .ranks = 3, .stage_of_rank = {0, 1, 2}};
  LaunchOutcome outcome{
      .exits = {{.rank = 0, .stage = 0, .pid = 11, .status = 5, .after_s = 9, .last_lines = {"no message"}},
                {.rank = 1, .stage = 1, .pid = 12, .status = 5, .order = 1, .consequence = true},
                {.rank = 2, .stage = 2, .pid = 13, .signal = 9, .order = 2, .consequence = true}},
      .first_failure = 0};
  const auto summary = [&] { return failure_summary(outcome, job, "again"); };
  for (const char* part : {"rank 2 (stage 2) did not get on at step 7, action 2F4; others waited for it, "
                           "rank 0 (stage 0) gave up first: exit code 5, 9.00 s",
                           "| no message", "  > 2"})
    EXPECT_NE(summary().find(part), std::string::npos) << part << summary();
  outcome.exits[2].was_suspended = true;
  EXPECT_NE(summary().find("rank 2 (stage 2) was suspended (SIGSTOP"), std::string::npos) << summary();
  // If ranks wait for each other in a circle, none of them is the cause. A failure that is no consequence is
  // the headline even if a rank was suspended.
  outcome.exits[2].was_suspended = false;
  folder.write("status.rank2.json", R"({"rank":2,"stage":2,"step":7,"action":"2RECV_F4<1@1"})");
  EXPECT_NE(summary().find("rank 0 (stage 0) failed first"), std::string::npos) << summary();
  outcome.exits[0].status = 6;
  outcome.exits[2].was_suspended = true;
  EXPECT_NE(summary().find("rank 0 (stage 0) failed first: exit code 6"), std::string::npos) << summary();
}

TEST(FailureSummary, ARefusalIsOneLine) {
  const TemporaryFolder folder;
  const JobSpec job{
      .name = "j", .source = "job.yaml", .output_dir = folder.path(), .ranks = 2, .stage_of_rank = {0, 1}};
  const LaunchOutcome outcome{
      .exits = {{.rank = 0, .stage = 0, .status = 2, .last_lines = {"error: no such layer"}},
                {.rank = 1, .stage = 1, .status = 2, .order = 1}},
      .first_failure = 0};
  EXPECT_EQ(failure_summary(outcome, job, "again"),
            "\nmillrace launch: refused by rank 0 (stage 0), exit code 2; nothing was trained. Logs: " +
                folder.path() + "/logs\n");
  folder.write("status.rank0.json", R"({"rank":0,"stage":0,"step":7,"action":"0F4"})");
  EXPECT_NE(failure_summary(outcome, job, "again").find("| error: no such layer"), std::string::npos)
      << "it ran for some time";
}

TEST(FailureSummary, NamesRankStepActionLogAndTheWayOn) {
  const TemporaryFolder folder;
  folder.write("status.rank1.json", "{\"rank\":1,\"stage\":1,\"step\":17,\"action\":\"1F3\"}      \n");
  folder.write("status.rank0.json", "{\"rank\":0,\"sta");
  const JobSpec job{
      .name = "j", .source = "job.yaml", .output_dir = folder.path(), .ranks = 2, .stage_of_rank = {0, 1}};
  LaunchOutcome outcome{
      .exits =
          {{.rank = 0, .stage = 0, .pid = 11, .status = 5, .order = 1, .consequence = true},
           {.rank = 1, .stage = 1, .pid = 12, .signal = 9, .after_s = 3.25, .last_lines = {"last words"}}},
      .first_failure = 1};
  const std::string text = failure_summary(outcome, job, "millrace launch job.yaml --set resume=X");
  for (const char* expected : {"rank 1 (stage 1) failed first: killed by signal 9 (SIGKILL) at step 17, "
                               "action 1F3, 3.25 s after the start",
                               "| last words", "> 1", "exit code 5", "logs/rank_1.err", "checkpoint_every"}) {
    EXPECT_NE(text.find(expected), std::string::npos) << expected << "\n" << text;
  }
  std::filesystem::create_directories(folder.path("checkpoints/step-00000001"));
  EXPECT_NE(failure_summary(outcome, job, "millrace launch job.yaml --set resume=X")
                .find("resume: millrace launch job.yaml --set resume=X"),
            std::string::npos);
}

}  // namespace
}  // namespace millrace
