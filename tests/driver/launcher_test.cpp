#include "driver/launcher.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "driver/launch_command.h"
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
    const LaunchOutcome outcome = run_ranks(processes, options, clock_);
    ::close(out);
    ::close(err);
    for (const RankExit& exit : outcome.exits)
      EXPECT_EQ(::kill(exit.pid, 0), -1) << "rank " << exit.rank << " is still there";
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
  EXPECT_LT(outcome.seconds, 2) << "SIGTERM is enough";
}

TEST_F(Launcher, KillMinusNine) {
  const LaunchOutcome outcome = run({kForever, "while ! [ -e $FOLDER/ready.0 ]; do :; done; kill -9 $$"});
  EXPECT_EQ(outcome.exit_code(), 137);
  ASSERT_EQ(outcome.first_failure, 1);
  EXPECT_EQ(outcome.exits[1].signal, SIGKILL);
}

TEST_F(Launcher, ARankThatIgnoresSigtermIsKilledAfterTheGrace) {
  const LaunchOutcome outcome =
      run({std::string("trap '' TERM; ") + kForever, "while ! [ -e $FOLDER/ready.0 ]; do :; done; exit 3"},
          {.grace = std::chrono::milliseconds(200)});
  EXPECT_EQ(outcome.exit_code(), 3);
  EXPECT_EQ(outcome.exits[0].signal, SIGKILL);
  EXPECT_GT(outcome.seconds, 0.2);
  EXPECT_LT(outcome.seconds, 4);
}

TEST_F(Launcher, GrandchildrenGoWithTheirRank) {
  const LaunchOutcome outcome = run({"sleep 1000 & echo $! > $FOLDER/grandchild; exit 1"});
  EXPECT_EQ(outcome.exit_code(), 1);
  EXPECT_LT(outcome.seconds, 4) << "although it holds the pipe";
  const pid_t grandchild = std::stoi(folder_.read("grandchild"));
  const TimePoint deadline = clock_.now() + std::chrono::seconds(5);
  const auto gone = [&] {
    std::string state;
    std::ifstream stat("/proc/" + std::to_string(grandchild) + "/stat");
    return !(stat >> state >> state >> state) || state == "Z";  // its new parent may not have waited yet
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

/// Signals go to the whole process: the launch runs in a child of its own.
int launch_and_signal(const TemporaryFolder& folder, const std::string& script, int signal) {
  const std::string ready = folder.path("ready.0");
  const pid_t launcher = ::fork();
  if (launcher == 0) {
    SteadyClock clock;
    const LaunchOutcome outcome = run_ranks({{.rank = 0,
                                              .argv = {"/bin/sh", "-c", script},
                                              .environment = {{"RANK", "0"}, {"FOLDER", folder.path()}}}},
                                            {}, clock);
    ::_exit(outcome.first_failure >= 0 ? 99 : outcome.exit_code());
  }
  SteadyClock clock;
  const TimePoint deadline = clock.now() + std::chrono::seconds(10);
  while (!std::filesystem::exists(ready) && clock.now() < deadline) std::this_thread::yield();
  ::kill(launcher, signal);
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
  std::filesystem::create_directories(folder.path("checkpoints"));
  folder.write("checkpoints/latest", "step-1");
  EXPECT_NE(failure_summary(outcome, job, "millrace launch job.yaml --set resume=X")
                .find("resume: millrace launch job.yaml --set resume=X"),
            std::string::npos);
}

}  // namespace
}  // namespace millrace
