// `runs`, `status`, `logs`, `stop` and `kill` on runs that `launch --detach` has started.
#include <chrono>
#include <thread>

#include "runtime/base/json.h"
#include "tests/worker/job_fixture.h"

namespace millrace {
namespace {

class RunCommands : public Jobs {
 protected:
  void SetUp() override {
    Jobs::SetUp();
    write("job.yaml",
          "model: mlp\nwidth: 16\nstages: 2\nmicrobatch: 4\nmicrobatches: 4\nsteps: 100000000\nseed: 3\n"
          "print_every: 100\ntimeout: 30\n");
  }
  void TearDown() override {
    run("kill out");
    Jobs::TearDown();
  }

  /// Waits until the answer of a command holds a text.
  void until(const std::string& arguments, const std::string& text) {
    for (int i = 0; i < 600; ++i) {
      if (run(arguments).output.find(text) != std::string::npos) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    FAIL() << "millrace " << arguments << " never said: " << text << "\n" << run(arguments).output;
  }
  std::string state() {
    const Result<Json> json = parse_json(run("status out --format json").output, "status");
    const Json* found = json ? json->find("state") : nullptr;
    return found ? found->as_string() : "no answer";
  }
};

TEST_F(RunCommands, FollowADetachedRunToItsStop) {
  EXPECT_EQ(run("status out").code, 2);
  EXPECT_EQ(run("stop .").code, 2);
  const Ran launched = run("launch job.yaml --output-dir out --detach");
  ASSERT_EQ(launched.code, 0) << launched.output << bytes("out/launch.err");
  EXPECT_EQ(state(), "running");
  until("status out", "F");  // an action of a rank
  const Ran second = run("launch job.yaml --output-dir out --detach --overwrite");
  EXPECT_EQ(second.code, 2);
  EXPECT_NE(second.output.find("is in use by run"), std::string::npos) << second.output;
  until("logs out", "step=100/");
  EXPECT_EQ(run("logs out --rank 7").code, 2);
  EXPECT_EQ(run("logs out --rank 0").output.find("step=100/"), std::string::npos) << "rank 1 has the loss";
  const Ran stopped = run("stop out");
  EXPECT_EQ(stopped.code, 0) << stopped.output;
  EXPECT_NE(stopped.output.find("out: stopped at step "), std::string::npos) << stopped.output;
  EXPECT_NE(stopped.output.find("newest checkpoint step-"), std::string::npos) << stopped.output;
  EXPECT_EQ(state(), "stopped");
  const std::string sign = run("status out").output;
  EXPECT_EQ(sign.find("last sign of life unknown"), std::string::npos) << sign;
  EXPECT_NE(sign.find(" ago"), std::string::npos) << sign;
  EXPECT_NE(run("logs out -f").output.find("checkpoint step="), std::string::npos) << "it ends with the run";
  EXPECT_NE(run("stop out").output.find("no run goes on here"), std::string::npos);
  const std::string runs = run("runs .").output;
  EXPECT_NE(runs.find("stopped"), std::string::npos) << runs;
  EXPECT_NE(runs.find("/100000000"), std::string::npos) << runs;
  const Result<Json> manifest = read_json((folder_ / "out/launch-manifest.json").string());
  ASSERT_TRUE(manifest);
  EXPECT_EQ(manifest->find("seed")->as_string(), "3");
  const std::string command = manifest->find("command")->as_string();
  EXPECT_TRUE(command.starts_with("millrace launch job.yaml ")) << command;
  EXPECT_EQ(command.find("resume="), std::string::npos) << "it is what was typed";
}

/// Rank 1 is killed before it trains: nothing runs for two seconds, and the folder is still the job's.
TEST_F(RunCommands, StopAJobThatWaitsForItsRestart) {
  ASSERT_EQ(run("launch job.yaml --output-dir out --detach --max-restarts 5 --set "
                "env.MILLRACE_FAILPOINTS=model:rank=1:action=kill")
                .code,
            0);
  for (int i = 0; i < 600 && bytes("out/launch.err").find("restart 1 of 5 in 2 s") == std::string::npos; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const Ran stopped = run("stop out");
  EXPECT_EQ(stopped.code, 0) << stopped.output << bytes("out/launch.err");
  EXPECT_EQ(stopped.output.find("no run goes on here"), std::string::npos) << stopped.output;
  EXPECT_NE(state(), "running");
}

TEST_F(RunCommands, KillEndsAtOnce) {
  ASSERT_EQ(run("launch job.yaml --output-dir out --detach").code, 0);
  until("logs out", "step=100/");
  const Ran killed = run("kill out");
  EXPECT_EQ(killed.code, 0) << killed.output;
  EXPECT_NE(killed.output.find("no checkpoint"), std::string::npos) << killed.output;
  EXPECT_NE(state(), "running");
}

TEST_F(RunCommands, ADetachedLaunchThatIsRefusedSaysSo) {
  write("bad.yaml", "model: mlp\nstages: 2\nresume: auto\nhosts: ['127.0.0.2:2']\nclient: /nowhere/ssh\n");
  fs::create_directories(folder_ / "out");
  const Ran ran = run("launch bad.yaml --output-dir out --detach");
  EXPECT_EQ(ran.code, 2) << ran.output;
  EXPECT_NE(ran.output.find("/nowhere/ssh"), std::string::npos) << ran.output;
}

}  // namespace
}  // namespace millrace
