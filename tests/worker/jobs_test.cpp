// Whole commands, as a user types them: processes over Gloo, resume, a killed rank, bad input.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/files.h"
#include "runtime/base/json.h"

namespace millrace {
namespace {
namespace fs = std::filesystem;
using std::chrono::milliseconds;

struct Ran {
  int code = -1;
  std::string output;  ///< stdout and stderr
};

class Jobs : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/millrace-jobs-XXXXXX";
    folder_ = ::mkdtemp(name);
  }
  void TearDown() override { fs::remove_all(folder_); }

  Ran run(const std::string& arguments, const std::string& environment = "") {
    const std::string log = (folder_ / "log").string();
    const std::string line = "cd " + folder_.string() + " && " + environment +
                             " timeout 300 " MILLRACE_BIN_DIR "/millrace " + arguments + " >" + log + " 2>&1";
    const int status = std::system(line.c_str());
    Ran ran{.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status)};
    if (auto text = read_file(log)) ran.output = *text;
    return ran;
  }

  void write(const std::string& name, const std::string& text) {
    ASSERT_TRUE(write_file_atomically(folder_ / name, text));
  }
  std::string bytes(const std::string& name) {
    auto text = read_file(folder_ / name, kGiB);
    return text ? *text : "absent: " + name;
  }

  fs::path folder_;
};

TEST_F(Jobs, ProcessesGiveTheBytesOfOneProcess) {
  const std::string models[] = {"model: mlp\nwidth: 32\ndepth: 4\ndropout: 0.1\n",
                                "model: vgg16\nimage-size: 32\nclasses: 10\n",
                                "model: resnet18\nimage-size: 32\nclasses: 10\n"};
  for (const std::string& model : models) {
    const std::string common = model +
                               "data: synthetic:64\nmicrobatch: 2\nmicrobatches: 4\nsteps: 5\nseed: "
                               "3\ndeterministic: true\nno-evaluation: true\n";
    write("one.yaml", common + "stages: 1\nsave-weights: one.safetensors\noutput-dir: one\n");
    const Ran one = run("launch one.yaml");
    ASSERT_EQ(one.code, 0) << one.output;
    for (const auto& [stages, schedule] : {std::pair{2, "1f1b"}, {3, "gpipe"}, {4, "1f1b"}}) {
      write("many.yaml", common + "stages: " + std::to_string(stages) + "\nschedule: " + schedule +
                             "\nsave-weights: many.safetensors\noutput-dir: many\n");
      const Ran many = run("launch many.yaml");
      ASSERT_EQ(many.code, 0) << many.output;
      EXPECT_TRUE(bytes("one.safetensors") == bytes("many.safetensors"))
          << model << stages << " " << schedule;
      EXPECT_EQ(parse_json(bytes("one/summary.json"), "a")->find("losses")->dump(),
                parse_json(bytes("many/summary.json"), "b")->find("losses")->dump());
    }
  }
}

TEST_F(Jobs, ProfilePlanTrainReport) {
  ASSERT_EQ(run("profile --model mlp --width 64 --microbatch 4 --out profile.json").code, 0);
  const Ran plan = run(
      "plan --profile profile.json --straight --stages 2 --microbatches 4 --schedule 1f1b --out plan.json");
  ASSERT_EQ(plan.code, 0) << plan.output;
  write("job.yaml", "model: mlp\nwidth: 64\nplan: plan.json\nmicrobatch: 4\nsteps: 8\noutput-dir: out\n");
  EXPECT_EQ(run("launch job.yaml --dry-run").code, 0);
  EXPECT_FALSE(fs::exists(folder_ / "out/summary.json"));
  const Ran launched = run("launch job.yaml");
  ASSERT_EQ(launched.code, 0) << launched.output;
  const Ran report = run("report --run out --chrome-trace trace.json");
  ASSERT_EQ(report.code, 0) << report.output;
  const auto trace = parse_json(bytes("trace.json"), "trace");
  ASSERT_TRUE(trace);
  EXPECT_GT(trace->find("traceEvents")->size(), 50u);
  const std::string html = bytes("out/report.html");
  for (const char* part : {"<svg", "Simulated", "Measured", "Content-Security-Policy", "rank 1"})
    EXPECT_NE(html.find(part), std::string::npos) << part;
  EXPECT_EQ(html.find("http://cdn"), std::string::npos);
}

TEST_F(Jobs, AKilledRankEndsTheJobAndResumeGivesTheSameLosses) {
  const std::string common =
      "model: mlp\nwidth: 64\nstages: 3\nmicrobatches: 6\nseed: 1\nno-evaluation: true\ndeterministic: "
      "true\n";
  write("whole.yaml", common + "steps: 1200\noutput-dir: whole\n");
  ASSERT_EQ(run("launch whole.yaml").code, 0);
  for (int victim = 0; victim < 3; ++victim) {
    fs::remove_all(folder_ / "broken");
    write("broken.yaml", common + "steps: 1200\ncheckpoint-every: 25\noutput-dir: broken\n");
    Ran broken;
    std::jthread job([&] { broken = run("launch broken.yaml"); });
    const auto start = std::chrono::steady_clock::now();
    while (!fs::exists(folder_ / "broken/checkpoints/latest") &&
           std::chrono::steady_clock::now() - start < std::chrono::seconds(60))
      std::this_thread::sleep_for(milliseconds(2));
    const std::string find = "pgrep -f 'millrace-worker train.*" + folder_.filename().string() +
                             "|millrace-worker train' | while read p; do tr '\\0' '\\n' < /proc/$p/environ "
                             "2>/dev/null | grep -qx RANK=" +
                             std::to_string(victim) + " && readlink /proc/$p/cwd | grep -q " +
                             folder_.filename().string() + " && kill -9 $p; done; true";
    ASSERT_EQ(std::system(find.c_str()), 0);
    const auto killed = std::chrono::steady_clock::now();
    job.join();
    EXPECT_LT(std::chrono::steady_clock::now() - killed, std::chrono::seconds(5));
    EXPECT_EQ(broken.code, 137) << broken.output;
    EXPECT_NE(broken.output.find("rank " + std::to_string(victim)), std::string::npos) << broken.output;
    EXPECT_NE(broken.output.find("step"), std::string::npos) << broken.output;
    const Ran resumed = run("launch broken.yaml --set resume=broken --set output-dir=rest");
    ASSERT_EQ(resumed.code, 0) << resumed.output;
    const auto whole_losses = parse_json(bytes("whole/summary.json"), "a")->find("losses")->items();
    const auto rest = parse_json(bytes("rest/summary.json"), "b");
    const auto& losses = rest->find("losses")->items();
    ASSERT_LT(losses.size(), whole_losses.size());
    for (std::size_t i = 0; i < losses.size(); ++i)
      ASSERT_EQ(losses[losses.size() - 1 - i].as_double(),
                whole_losses[whole_losses.size() - 1 - i].as_double());
  }
}

TEST_F(Jobs, AnInterruptSavesTheStepAndResumeGivesTheSameLosses) {
  const std::string common =
      "model: mlp\nwidth: 64\nstages: 2\nreplicas: 2\nmicrobatches: 6\nseed: 1\nno-evaluation: "
      "true\nsteps: 1500\n";
  write("whole.yaml", common + "output-dir: whole\n");
  ASSERT_EQ(run("launch whole.yaml").code, 0);
  write("part.yaml", common + "output-dir: part\n");
  write("stop.sh",
        "cd " + folder_.string() +
            "\n" MILLRACE_BIN_DIR
            "/millrace launch part.yaml >log 2>&1 &\nlauncher=$!\n"
            "for i in $(seq 3000); do grep -q '\"step\":5,' part/steps.rank0.jsonl 2>/dev/null && break; "
            "sleep 0.01; done\nkill -TERM $launcher\nwait $launcher\n");
  const int status = std::system(("bash " + (folder_ / "stop.sh").string()).c_str());
  ASSERT_TRUE(WIFEXITED(status));
  ASSERT_EQ(WEXITSTATUS(status), 75) << bytes("log");
  EXPECT_NE(bytes("log").find("asked to stop: saving step"), std::string::npos) << bytes("log");
  const Ran resumed = run("launch part.yaml --set resume=part --set output-dir=rest");
  ASSERT_EQ(resumed.code, 0) << resumed.output;
  const auto all = parse_json(bytes("whole/summary.json"), "a"),
             begun = parse_json(bytes("part/summary.json"), "b"),
             rest = parse_json(bytes("rest/summary.json"), "c");
  EXPECT_TRUE(begun->find("stopped_early")->as_bool());
  EXPECT_FALSE(rest->find("stopped_early")->as_bool());
  std::vector<double> losses;
  for (const auto* part : {&*begun, &*rest})
    for (const Json& loss : part->find("losses")->items()) losses.push_back(loss.as_double());
  const auto& whole_losses = all->find("losses")->items();
  ASSERT_EQ(losses.size(), whole_losses.size());
  for (std::size_t i = 0; i < losses.size(); ++i) ASSERT_EQ(losses[i], whole_losses[i].as_double()) << i;
}

TEST_F(Jobs, TorchrunsVariablesAreEnough) {
  const int port = 20000 + static_cast<int>(::getpid()) % 20000;
  const std::string arguments = "train --model mlp --width 16 --stages 2 --steps 3 --no-evaluation";
  Ran first;
  const std::string variables = "WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=" + std::to_string(port);
  std::jthread other([&] {
    std::system(("cd " + folder_.string() + " && RANK=0 " + variables +
                 " timeout 60 " MILLRACE_BIN_DIR "/millrace " + arguments + " >rank0.log 2>&1")
                    .c_str());
  });
  first = run(arguments, "RANK=1 " + variables);
  other.join();
  EXPECT_EQ(first.code, 0) << first.output << bytes("rank0.log");
}

struct Bad {
  std::string arguments;
  int code;
  std::string message;
};

TEST_F(Jobs, BadInputMeetsAClearErrorAndItsExitCode) {
  ASSERT_EQ(run("profile --model mlp --width 16 --depth 2 --out profile.json").code, 0);
  write("broken.yaml", "model: mlp\n  steps: [\n");
  write("broken.json", "{\"format\": 1,\n oops}");
  write("unknown.yaml", "model: mlp\nmicrobatchs: 3\n");
  write("plan.json",
        R"({"model":"vgg16","schedule":"1f1b","microbatches":2,"stages":[{"layers":["x"],"ranks":[0]}]})");
  write("file", "not a folder");
  write("graph.txt", "node1 -- x\n");
  fs::create_directories(folder_ / "images/train/empty");
  const Bad cases[] = {
      {"launch absent.yaml", 2, "absent.yaml"},
      {"launch broken.yaml", 2, "broken.yaml:2"},
      {"launch unknown.yaml", 2, "did you mean"},
      {"plan --profile broken.json --ranks 2", 3, "broken.json:2:2"},
      {"plan --pipedream --profile graph.txt --machines 2 --bandwidth 1e9", 3, "graph.txt:1:1"},
      {"plan --profile profile.json --straight --stages 50", 2, "layers"},
      {"train --model vgg61", 2, "did you mean 'vgg16'"},
      {"train --model mlp --width 16 --depth 2 --plan plan.json", 2, "made for model 'vgg16'"},
      {"train --model mlp --stages 99", 2, "stages"},
      {"train --model vgg16 --image-size 32 --data /nonexistent", 3, "not a readable folder"},
      {"train --model vgg16 --image-size 32 --data images", 3, "without .jpg"},
      {"train --model mlp --output-dir file/out", 2, "file"},
      {"train --model mlp --resume images", 4, "no checkpoint"},
      {"train --model mlp --lr 0.5x", 2, "'0.5x' is not a number"},
      {"train --model mlp --stepz 3", 2, "did you mean --steps"},
      {"trian", 2, "train"},
  };
  for (const Bad& bad : cases) {
    const Ran ran = run(bad.arguments);
    EXPECT_EQ(ran.code, bad.code) << bad.arguments << "\n" << ran.output;
    EXPECT_NE(ran.output.find(bad.message), std::string::npos) << bad.arguments << "\n" << ran.output;
  }
  EXPECT_EQ(run("train --model mlp --stages 2", "RANK=0 WORLD_SIZE=3").code, 2);
}

}  // namespace
}  // namespace millrace
