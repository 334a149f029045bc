// Whole jobs that are asked to stop, suspended, killed, or left without memory, files or peers.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <functional>
#include <optional>
#include <sstream>
#include <thread>

#include "runtime/base/json.h"
#include "tests/worker/job_fixture.h"

namespace millrace {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

/// Until `done()`; false if it is not within a minute.
bool eventually(const std::function<bool()>& done) {
  for (const auto end = Clock::now() + std::chrono::seconds(60); Clock::now() < end;) {
    if (done()) return true;
    std::this_thread::sleep_for(milliseconds(5));
  }
  return done();
}

class Stops : public Jobs {
 protected:
  void SetUp() override {
    Jobs::SetUp();
    fs::create_directory(folder_ / "tmp");
  }
  void TearDown() override {
    if (launcher_ > 0) ::kill(launcher_, SIGKILL), ::waitpid(launcher_, nullptr, 0);
    Jobs::TearDown();
  }

  /// `millrace ARGUMENTS` beside this test, output in `log`; through `wrapper` if there is one.
  void start(const std::string& arguments, const std::string& wrapper = "") {
    const std::string line = "cd " + folder_.string() + " && TMPDIR=" + (folder_ / "tmp").string() +
                             " exec " + wrapper + " " MILLRACE_BIN_DIR "/millrace " + arguments +
                             " >log 2>&1";
    const char* const argv[] = {"/bin/bash", "-c", line.c_str(), nullptr};
    ::signal(SIGHUP, SIG_DFL);  // these tests may run under nohup
    ASSERT_EQ(::posix_spawn(&launcher_, argv[0], nullptr, nullptr, const_cast<char**>(argv), environ), 0);
  }
  /// Exit code of what was started, or 128 + signal; nothing within `limit`: -1.
  int end(std::chrono::seconds limit = std::chrono::seconds(100)) {
    int status = 0;
    for (const auto by = Clock::now() + limit; Clock::now() < by;
         std::this_thread::sleep_for(milliseconds(5))) {
      if (::waitpid(launcher_, &status, WNOHANG) != launcher_) continue;
      launcher_ = -1;
      return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
    return -1;
  }
  void signal_launcher(int signal) { ::kill(launcher_, signal); }

  /// Processes of this test's folder with RANK=`rank` in their environment.
  std::vector<pid_t> processes_of(int rank) {
    std::vector<pid_t> found;
    for (const auto& entry : fs::directory_iterator("/proc")) {
      const std::string name = entry.path().filename().string();
      if (name.find_first_not_of("0123456789") != std::string::npos) continue;
      std::error_code error;
      if (fs::read_symlink(entry.path() / "cwd", error) != folder_ || error) continue;
      std::ostringstream environment;
      environment << std::ifstream(entry.path() / "environ").rdbuf();
      const std::string text = '\0' + environment.str();
      if (text.find(std::string("\0RANK=", 6) + std::to_string(rank) + '\0') != std::string::npos)
        found.push_back(std::stoi(name));
    }
    return found;
  }
  void signal_rank(int rank, int signal) {
    const auto pids = processes_of(rank);
    ASSERT_EQ(pids.size(), 1u);
    ::kill(pids[0], signal);
  }
  bool has_step(int step, const std::string& out = "out") {
    return bytes(out + "/steps.rank0.jsonl").find("\"step\":" + std::to_string(step) + ",") !=
           std::string::npos;
  }
  bool is_saved(const std::string& out = "out") { return fs::exists(folder_ / out / "checkpoints/latest"); }
  bool says(const std::string& text) { return bytes("log").find(text) != std::string::npos; }

  pid_t launcher_ = -1;
};

constexpr const char* kEndless =
    "model: mlp\nwidth: 64\nstages: 3\nmicrobatches: 6\nno-evaluation: true\nsteps: 1000000\noutput-dir: "
    "out\n";

TEST_F(Stops, ARequestToAnyRankStopsAllAndSaves) {
  for (int rank = 0; rank < 3; ++rank) {
    fs::remove_all(folder_ / "out");
    write("job.yaml", kEndless);
    start("launch job.yaml");
    ASSERT_TRUE(eventually([&] { return has_step(3); })) << bytes("log");
    signal_rank(rank, SIGTERM);
    EXPECT_EQ(end(), 75) << rank << bytes("log");
    EXPECT_TRUE(is_saved());
    EXPECT_TRUE(says("a rank was asked to stop")) << bytes("log");
    EXPECT_TRUE(says("resume: millrace launch")) << bytes("log");
    EXPECT_FALSE(says("failed first")) << bytes("log");
  }
}

/// It has nothing to save, and a step of many ranks may take minutes.
TEST_F(Stops, AnEmulatedRunEndsAtOnce) {
  ASSERT_EQ(run("profile --model mlp --width 64 --microbatch 8 --out profile.json").code, 0);
  write("job.yaml", kEndless + std::string("microbatch: 8\n"));
  start("emulate job.yaml --device-profile profile.json");
  ASSERT_TRUE(eventually([&] { return has_step(3, "out-emulated"); })) << bytes("log");
  signal_launcher(SIGTERM);
  EXPECT_EQ(end(), 128 + SIGTERM) << bytes("log");
  EXPECT_TRUE(says("stopped before its end")) << bytes("log");
}

TEST_F(Stops, AHangupSavesAndNohupGoesOn) {
  write("job.yaml", kEndless);
  start("launch job.yaml");
  ASSERT_TRUE(eventually([&] { return has_step(3); })) << bytes("log");
  signal_launcher(SIGHUP);
  signal_launcher(SIGHUP);
  EXPECT_EQ(end(), 75) << bytes("log");
  EXPECT_TRUE(is_saved());
  EXPECT_TRUE(says("resume: millrace launch")) << bytes("log");
  // Under nohup neither the launcher nor a rank takes notice; SIGTERM still counts.
  start("launch job.yaml --output-dir more", "nohup");
  ASSERT_TRUE(eventually([&] { return has_step(3, "more"); })) << bytes("log");
  signal_launcher(SIGHUP);
  signal_rank(1, SIGHUP);
  ASSERT_TRUE(eventually([&] { return has_step(200, "more"); })) << bytes("log");
  EXPECT_FALSE(is_saved("more"));
  signal_launcher(SIGTERM);
  EXPECT_EQ(end(), 75) << bytes("log");
}

/// Slurm's --signal=USR1@90 and other warnings of a scheduler, which may come more than once.
TEST_F(Stops, AWarningBySigusr1Saves) {
  ::signal(SIGUSR1, SIG_DFL);
  write("job.yaml", kEndless);
  start("launch job.yaml");
  ASSERT_TRUE(eventually([&] { return has_step(3); })) << bytes("log");
  signal_launcher(SIGUSR1);
  signal_launcher(SIGUSR1);
  EXPECT_EQ(end(), 75) << bytes("log");
  EXPECT_TRUE(is_saved());
}

TEST_F(Stops, NothingSavedNothingToResume) {
  write("job.yaml", kEndless);
  start("launch job.yaml");
  ASSERT_TRUE(eventually([&] { return has_step(1); })) << bytes("log");
  signal_rank(1, SIGSTOP);  // so that no checkpoint can be saved
  signal_launcher(SIGINT);
  std::this_thread::sleep_for(milliseconds(300));
  signal_launcher(SIGINT);
  EXPECT_EQ(end(), 130) << bytes("log");
  EXPECT_FALSE(is_saved());
  EXPECT_FALSE(says("resume:")) << bytes("log");
  EXPECT_TRUE(says("no checkpoint was saved")) << bytes("log");
}

/// "STEP LOSS" of all steps, in their order: first those that rank 2 logs, then those of its replica.
std::string losses_in(const fs::path& out) {
  std::string text;
  for (const int rank : {2, 3}) {
    std::ifstream log(out / ("steps.rank" + std::to_string(rank) + ".jsonl"));
    for (std::string line; std::getline(log, line);) {
      const Result<Json> step = parse_json(line, "steps");
      const Json* loss = step ? step->find("loss") : nullptr;
      if (loss && loss->is_number()) text += step->find("step")->dump() + " " + loss->dump() + "\n";
    }
  }
  return text;
}

bool is_stopped(const std::vector<pid_t>& pids) {
  std::string stat;
  if (pids.size() == 1) std::getline(std::ifstream("/proc/" + std::to_string(pids[0]) + "/stat"), stat);
  return stat.find(") T ") != std::string::npos;
}

/// One rank is killed while they train, another one while they start again. Rank 3 stops itself each time
/// before it trains, so that this test can look.
TEST_F(Stops, RanksThatAreLeftKeepTheirProcesses) {
  write("job.yaml",
        "model: mlp\nwidth: 16\nstages: 2\nreplicas: 2\nmicrobatches: 4\nmicrobatch: 2\nsteps: 20\nseed: 3\n"
        "threads: 1\ndeterministic: true\ncheckpoint-every: 8\nno-evaluation: true\ntimeout: 60\n");
  ASSERT_EQ(run("launch job.yaml -o whole --set save-weights=whole.safetensors").code, 0) << bytes("log");
  const std::string whole = losses_in(folder_ / "whole");
  ASSERT_EQ(std::ranges::count(whole, '\n'), 2 * 20) << whole;
  // Rank 1 does two forwards a step: the 30th is in step 15, and a later process of it does fewer.
  start(
      "launch job.yaml -o out --set save-weights=out.safetensors --max-restarts 5 --set "
      "env.MILLRACE_FAILPOINTS=forward:rank=1:hit=30:action=kill,model:rank=3:action=stop");
  ASSERT_TRUE(eventually([&] { return is_stopped(processes_of(3)); })) << bytes("log");
  std::vector<std::vector<pid_t>> first;
  for (int rank = 0; rank < 4; ++rank) first.push_back(processes_of(rank));
  signal_rank(3, SIGCONT);
  ASSERT_TRUE(eventually([&] { return says("restart 1 of 5") && is_stopped(processes_of(3)); }))
      << bytes("log");
  EXPECT_TRUE(says("restart 1 of 5 at once, from step-")) << bytes("log");
  EXPECT_TRUE(says("3 of 4 ranks keep their processes")) << bytes("log");
  for (const int rank : {0, 2, 3}) EXPECT_EQ(processes_of(rank), first[rank]) << rank;
  EXPECT_NE(processes_of(1), first[1]);
  signal_rank(0, SIGKILL);
  signal_rank(3, SIGCONT);
  ASSERT_TRUE(eventually([&] { return says("restart 2 of 5") && is_stopped(processes_of(3)); }))
      << bytes("log");
  EXPECT_EQ(processes_of(3), first[3]);
  EXPECT_NE(processes_of(0), first[0]);
  signal_rank(3, SIGCONT);
  EXPECT_EQ(end(), 0) << bytes("log");
  EXPECT_EQ(losses_in(folder_ / "out"), whole) << bytes("log");
  EXPECT_TRUE(bytes("out.safetensors") == bytes("whole.safetensors"));
}

/// A preempted job is to be queued again, whatever its launcher does when the signal comes.
TEST_F(Stops, AStopWhileRanksStartAgainIsResumable) {
  write("job.yaml",
        "model: mlp\nwidth: 16\nstages: 2\nreplicas: 2\nmicrobatches: 4\nmicrobatch: 2\nsteps: 20\nseed: 3\n"
        "threads: 1\ndeterministic: true\ncheckpoint-every: 8\nno-evaluation: true\ntimeout: 60\n");
  ASSERT_EQ(run("launch job.yaml -o whole").code, 0) << bytes("log");
  const std::string killed = "forward:rank=1:hit=30:action=kill";
  const auto restarts = [&] { return says("restart 1 of 5"); };
  struct Moment {
    const char* name;
    std::string failpoints;
    std::function<bool()> is_there;
  };
  for (const Moment& moment : {Moment{"the rank is dead", killed, [&] { return says("fires in step"); }},
                               Moment{"the others end", killed, [&] { return says("lost"); }},
                               Moment{"the restart begins", killed, restarts},
                               Moment{"a rank loads", killed + ",model:rank=3:action=stop",
                                      [&] { return restarts() && is_stopped(processes_of(3)); }},
                               Moment{"they meet", killed + ",meeting:rank=3:action=stop",
                                      [&] { return restarts() && is_stopped(processes_of(3)); }}}) {
    fs::remove_all(folder_ / "out");
    write("log", "");
    start("launch job.yaml -o out --max-restarts 5 --set env.MILLRACE_FAILPOINTS=" + moment.failpoints);
    const bool is_held = moment.failpoints != killed;
    if (is_held) {  // in the first start
      ASSERT_TRUE(eventually([&] { return is_stopped(processes_of(3)); })) << bytes("log");
      signal_rank(3, SIGCONT);
    }
    ASSERT_TRUE(eventually(moment.is_there)) << moment.name << bytes("log");
    signal_launcher(SIGTERM);
    if (is_held) signal_rank(3, SIGCONT);
    EXPECT_EQ(end(), 75) << moment.name << bytes("log");
    EXPECT_TRUE(says("resume: millrace launch")) << moment.name << bytes("log");
    const Ran rest = run("launch job.yaml -o out --set resume=auto");
    EXPECT_EQ(rest.code, 0) << moment.name << rest.output;
    EXPECT_EQ(losses_in(folder_ / "out"), losses_in(folder_ / "whole")) << moment.name;
  }
}

/// What the folder holds until the ranks take it is the run that the user wants to replace.
TEST_F(Stops, AJobThatOverwritesDoesNotGoOnFromTheEarlierRun) {
  write("job.yaml",
        "model: mlp\nwidth: 16\nstages: 2\nmicrobatches: 2\nmicrobatch: 2\nsteps: 4\nthreads: 1\n"
        "checkpoint-every: 2\nno-evaluation: true\ntimeout: 60\n");
  ASSERT_EQ(run("launch job.yaml -o out").code, 0) << bytes("log");
  const Ran killed =
      run("launch job.yaml -o out --overwrite --set env.MILLRACE_FAILPOINTS=model:rank=1:action=kill");
  EXPECT_EQ(killed.code, 137) << killed.output;
  EXPECT_NE(killed.output.find("no checkpoint was saved"), std::string::npos) << killed.output;
  EXPECT_EQ(killed.output.find("resume:"), std::string::npos) << killed.output;
}

TEST_F(Stops, ASuspendedRankIsTheHeadline) {
  for (const char* backend : {"shm", "tcp"}) {
    for (const int victim : {0, 1, 2}) {
      fs::remove_all(folder_ / "out");
      write("job.yaml", std::string(kEndless) + "timeout: 3\nbackend: " + backend + "\n");
      start("launch job.yaml");
      ASSERT_TRUE(eventually([&] { return has_step(3); })) << bytes("log");
      signal_rank(victim, SIGSTOP);
      EXPECT_EQ(end(std::chrono::seconds(60)), 5) << bytes("log");
      EXPECT_TRUE(says("millrace launch: rank " + std::to_string(victim) + " (stage " +
                       std::to_string(victim) + ") was suspended"))
          << backend << bytes("log");
    }
  }
}

TEST_F(Stops, AnInterruptDuringAnEvaluationSaves) {
  write("job.yaml",
        "model: mlp\nwidth: 256\nstages: 2\nmicrobatches: 2\nmicrobatch: 2\ndata: synthetic:4000000\nsteps: "
        "3\noutput-dir: out\n");
  start("launch job.yaml");
  const auto evaluates = [&] {  // after three steps
    const Result<Json> status = read_json((folder_ / "out/status.rank0.json").string());
    return status && status->find("step") && status->find("step")->as_int() == 3;
  };
  ASSERT_TRUE(eventually(evaluates)) << bytes("log");
  signal_launcher(SIGINT);
  EXPECT_EQ(end(), 75) << bytes("log");
  EXPECT_TRUE(is_saved());
  EXPECT_TRUE(says("the evaluation of step 3 was interrupted")) << bytes("log");
  // Only the evaluation is left to do.
  write("rest.yaml",
        "model: mlp\nwidth: 256\nstages: 2\nmicrobatches: 2\nmicrobatch: 2\ndata: "
        "synthetic:4000000\nsteps: 3\nno-evaluation: true\noutput-dir: out\nresume: out\n"
        "save-weights: w.safetensors\n");
  EXPECT_EQ(run("launch rest.yaml").code, 0) << bytes("log");
  EXPECT_TRUE(fs::exists(folder_ / "w.safetensors"));
}

/// The last update may be the one that diverges: no step comes after it to see that.
TEST_F(Stops, AnEvaluationThatIsNotFiniteEndsTheRun) {
  const Ran ran =
      run("train --model mlp --width 32 --depth 4 --stages 2 --lr 1000000 --weight-decay 1 --steps 2");
  EXPECT_EQ(ran.code, 6) << ran.output;
  EXPECT_NE(ran.output.find("the evaluation after step 2: the loss is"), std::string::npos) << ran.output;
  EXPECT_NE(ran.output.find("Hint: lower --lr"), std::string::npos) << ran.output;
  EXPECT_EQ(ran.output.find("top1 1.0000"), std::string::npos) << ran.output;
}

TEST_F(Stops, ThreadsReportTheFirstErrorNotWhatItCaused) {
  std::string message;
  for (int i = 0; i < 15; ++i) {
    const Ran ran =
        run("train --model mlp --width 32 --depth 4 --stages 4 --lr 1000000 --steps 50 --no-evaluation");
    ASSERT_EQ(ran.code, 6) << ran.output;
    const std::size_t at = ran.output.find("error: ");
    ASSERT_NE(at, std::string::npos) << ran.output;
    if (message.empty()) message = ran.output.substr(at);
    ASSERT_EQ(ran.output.substr(at), message) << "run " << i;
  }
  EXPECT_NE(message.find("error: step "), std::string::npos) << message;
  EXPECT_NE(message.find("Hint: lower --lr"), std::string::npos) << message;
}

TEST_F(Stops, AFileSizeLimitDoesNotEndTheJob) {
  write("job.yaml", "model: mlp\nwidth: 64\nstages: 2\nsteps: 20\nno-evaluation: true\noutput-dir: out\n");
  for (const char* limit : {"4000", "1000000", "200"}) {  // KiB
    const Ran ran = run("launch job.yaml", "ulimit -f " + std::string(limit) + "; ");
    EXPECT_EQ(ran.code, 0) << limit << ran.output;
    EXPECT_NE(ran.output.find("ulimit -f"), std::string::npos) << "names the limit: " << ran.output;
    fs::remove_all(folder_ / "out");
  }
  EXPECT_EQ(run("launch job.yaml", "ulimit -f 0; ").code, 2) << "it cannot write, and no signal ends it";
}

TEST_F(Stops, ARefusedCheckpointIsNotToBeTriedAgain) {
  write("job.yaml",
        "model: mlp\nwidth: 32\nstages: 2\nsteps: 4\ncheckpoint-every: 2\nno-evaluation: true\n"
        "output-dir: out\n");
  ASSERT_EQ(run("launch job.yaml").code, 0);
  const Ran ran = run("launch job.yaml --set resume=auto --set steps=8 --set lr=0.5");
  EXPECT_EQ(ran.code, 4) << ran.output;
  EXPECT_NE(ran.output.find("exit code 4; nothing was trained"), std::string::npos) << ran.output;
  EXPECT_EQ(ran.output.find("resume: millrace"), std::string::npos)
      << "it would be refused again: " << ran.output;
}

TEST_F(Stops, NothingStaysWhenTheLauncherIsKilled) {
  write("job.yaml", kEndless);
  start("launch job.yaml");
  ASSERT_TRUE(eventually([&] { return has_step(1); })) << bytes("log");
  signal_launcher(SIGKILL);
  EXPECT_EQ(end(), 137);
  EXPECT_TRUE(eventually([&] {
    for (int rank = 0; rank < 3; ++rank) {
      if (!processes_of(rank).empty()) return false;
    }
    return true;
  }));
  EXPECT_TRUE(fs::is_empty(folder_ / "tmp")) << "no folder of the meeting";
}

TEST_F(Stops, AnAsynchronousRunStopsWithinTheGrace) {
  write("job.yaml", std::string(kEndless) + "schedule: pipedream\n");
  start("launch job.yaml --set steps=30000");
  ASSERT_TRUE(eventually([&] { return has_step(3); })) << bytes("log");
  signal_rank(2, SIGTERM);
  EXPECT_EQ(end(), 75) << bytes("log");
  EXPECT_TRUE(is_saved());
}

TEST_F(Stops, TheMeetingHasTheDeadlineOfTimeout) {
  const std::string train = "train --model mlp --width 16 --stages 2 --steps 1 --no-evaluation --timeout 1";
  const std::string port = std::to_string(20000 + static_cast<int>(::getpid()) % 20000);
  for (const std::string& place :
       {"MASTER_ADDR=127.0.0.1 MASTER_PORT=" + port, "MILLRACE_STORE=" + (folder_ / "tmp").string()}) {
    for (const char* rank : {"0", "1"}) {
      const Ran ran = run(train, "RANK=" + std::string(rank) + " WORLD_SIZE=2 " + place);
      EXPECT_EQ(ran.code, 5) << ran.output;
      EXPECT_NE(ran.output.find("1000 ms"), std::string::npos) << ran.output;
    }
  }
}

TEST_F(Stops, JobsWithOtherTokensDoNotMeet) {
  const std::string train = "train --model mlp --width 16 --stages 2 --steps 3 --no-evaluation --timeout 10";
  const std::string port = std::to_string(20000 + static_cast<int>(::getpid() + 7777) % 20000);
  const std::string place = "WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=" + port + " ";
  write("token", "of this job\n");
  fs::permissions(folder_ / "token", fs::perms::owner_read);
  Ran first;
  std::jthread server([&] {
    std::system(("cd " + folder_.string() + " && RANK=0 MILLRACE_TOKEN_FILE=token " + place +
                 "timeout 60 " MILLRACE_BIN_DIR "/millrace " + train +
                 " >rank0.log 2>&1; echo $? >rank0.code")
                    .c_str());
  });
  const Ran stranger = run(train, "RANK=1 MILLRACE_TOKEN=another " + place);
  EXPECT_EQ(stranger.code, 2) << stranger.output;
  EXPECT_NE(stranger.output.find("token"), std::string::npos) << stranger.output;
  const Ran ours = run(train, "RANK=1 MILLRACE_TOKEN='of this job' " + place);
  EXPECT_EQ(ours.code, 0) << ours.output << bytes("rank0.log");
  server.join();
  EXPECT_EQ(bytes("rank0.code"), "0\n") << bytes("rank0.log");
  EXPECT_EQ(bytes("rank0.log").find("of this job"), std::string::npos);
  fs::permissions(folder_ / "token", fs::perms::owner_read | fs::perms::others_read);
  const Ran open = run(train, "RANK=1 MILLRACE_TOKEN_FILE=token " + place);
  EXPECT_EQ(open.code, 2) << open.output;
  EXPECT_NE(open.output.find("chmod 600"), std::string::npos) << open.output;
}

}  // namespace
}  // namespace millrace
