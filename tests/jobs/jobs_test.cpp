// Whole commands, as a user types them: processes, resume, a killed rank, bad input.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "runtime/base/json.h"
#include "runtime/plan/layer_graph.h"
#include "runtime/plan/plan.h"
#include "tests/worker/job_fixture.h"

namespace millrace {
namespace {
using std::chrono::milliseconds;

TEST_F(Jobs, TheCpusWorkerRefusesAGpu) {
  const std::string as_gpu_worker = "MILLRACE_WORKER_CUDA=" MILLRACE_BIN_DIR "/millrace-worker";
  for (const char* command :
       {"train --model mlp --device cuda --steps 1", "profile --model mlp --device cuda"}) {
    const Ran ran = run(command, as_gpu_worker);
    EXPECT_EQ(ran.code, 2) << ran.output;
    for (const char* part : {"--device cuda", "computes on the CPU only", "scripts/build cuda"})
      EXPECT_NE(ran.output.find(part), std::string::npos) << ran.output;
  }
  const Ran nccl = run("train --model mlp --backend nccl --steps 1", "RANK=0 WORLD_SIZE=1 MILLRACE_STORE=.");
  EXPECT_EQ(nccl.code, 2) << nccl.output;
  EXPECT_NE(nccl.output.find("NCCL joins GPUs"), std::string::npos) << nccl.output;
}

TEST_F(Jobs, ProcessesGiveTheBytesOfOneProcess) {
  struct Case {
    const char* model;
    std::vector<std::tuple<int, const char*, const char*>> plans;  // stages, schedule, backend
  };
  const Case cases[] = {{"model: mlp\nwidth: 32\ndepth: 4\ndropout: 0.1\nsteps: 5\n",
                         {{2, "1f1b", "tcp"},
                          {3, "gpipe", "tcp"},
                          {4, "1f1b", "shm"},
                          {2, "gpipe", "shm"},
                          {2, "zb-v", "tcp"},
                          {3, "zb-h1", "shm"}}},
                        {"model: vgg16\nimage-size: 32\nclasses: 10\nsteps: 2\n", {{4, "1f1b", "shm"}}},
                        {"model: resnet18\nimage-size: 32\nclasses: 10\nsteps: 3\n",
                         {{4, "1f1b", "tcp"}, {2, "zb-v", "tcp"}, {3, "zb-h1", "shm"}}}};
  for (const auto& [model, plans] : cases) {
    const std::string common = model +
                               std::string("data: synthetic:64\nmicrobatch: 2\nmicrobatches: 4\nseed: 3\n") +
                               "deterministic: true\nno-evaluation: true\n";
    write("one.yaml",
          common + "stages: 1\nsave-weights: one.safetensors\noutput-dir: one\noverwrite: true\n");
    const Ran one = run("launch one.yaml");
    ASSERT_EQ(one.code, 0) << one.output;
    for (const auto& [stages, schedule, backend] : plans) {
      write("many.yaml", common + "stages: " + std::to_string(stages) + "\nschedule: " + schedule +
                             "\nbackend: " + backend +
                             "\nsave-weights: many.safetensors\noutput-dir: many\noverwrite: true\n");
      const Ran many = run("launch many.yaml");
      ASSERT_EQ(many.code, 0) << many.output;
      EXPECT_TRUE(bytes("one.safetensors") == bytes("many.safetensors"))
          << model << stages << " " << schedule << " " << backend;
      EXPECT_EQ(parse_json(bytes("one/summary.json"), "a")->find("losses")->dump(),
                parse_json(bytes("many/summary.json"), "b")->find("losses")->dump());
    }
  }
}

/// LAMB needs the norm over all stages and of every parameter, of which replicas have parts.
TEST_F(Jobs, ProcessesShareTheRulesStateAndAgreeOnTheNorm) {
  const std::string common =
      "model: mlp\nwidth: 160\ndepth: 4\ndata: synthetic:64\nmicrobatch: 2\nmicrobatches: 4\nsteps: 5\nseed: "
      "3\n"
      "deterministic: true\nno-evaluation: true\nrule: lamb\nlr: 0.05\nclip-norm: 0.5\nreplicas: 2\n";
  write("one.yaml", common + "stages: 1\nsave-weights: one.safetensors\noutput-dir: one\n");
  const Ran one = run("launch one.yaml");
  ASSERT_EQ(one.code, 0) << one.output;
  EXPECT_NE(bytes("one/steps.rank0.jsonl").find("\"gradient_norm\""), std::string::npos);
  for (const char* backend : {"tcp", "shm"}) {
    write("many.yaml", common + "stages: 2\nzero-1: true\nbackend: " + backend +
                           "\nsave-weights: many.safetensors\noutput-dir: many\noverwrite: true\n");
    const Ran many = run("launch many.yaml");
    ASSERT_EQ(many.code, 0) << many.output;
    EXPECT_TRUE(bytes("one.safetensors") == bytes("many.safetensors")) << backend;
  }
}

TEST_F(Jobs, AScheduleOfPyTorchRunsHere) {
  const std::string common = "model: mlp\nwidth: 32\ndepth: 4\nsteps: 4\nno-evaluation: true\n";
  write("one.yaml", common + "microbatches: 3\nsave-weights: one.safetensors\n");
  ASSERT_EQ(run("launch one.yaml").code, 0);
  // Two stages on each of two ranks, the second rank with a split backward.
  write("order.csv",
        "0F0,0F1,2F0,2B0,0F2,2F1,2B1,0B0,2F2,2B2,0B1,0B2\n"
        "1F0,,3F0,3I0,1F1,3W0,3F1,1B0,3B1,1F2,3F2,1B1,3B2,1B2\n");
  write("job.yaml", common + "schedule-file: order.csv\nsave-weights: ours.safetensors\noutput-dir: out\n");
  const Ran ran = run("launch job.yaml");
  ASSERT_EQ(ran.code, 0) << ran.output;
  EXPECT_TRUE(bytes("one.safetensors") == bytes("ours.safetensors"));
  EXPECT_EQ(bytes("out/schedule.csv"), bytes("order.csv"));
  ASSERT_EQ(run("report --run out").code, 0);
  EXPECT_NE(bytes("out/report.html").find("rank 1 · s1, 3"), std::string::npos);
  write("bad.csv", "0F0,0B0\n1F0,1B1\n");
  const Ran bad = run("launch job.yaml --set schedule-file=bad.csv");
  EXPECT_EQ(bad.code, 2) << bad.output;
  EXPECT_NE(bad.output.find("bad.csv"), std::string::npos) << bad.output;
}

// The profile runs as many ranks at once as the training. It is the mean over them, with the spread of its
// repetitions.
TEST_F(Jobs, ProfilesUnderTheLoadOfTheRunAndSplitsTheError) {
  const Ran profiled =
      run("profile --model mlp --width 64 --depth 4 --microbatch 4 --repetitions 2 --blocks 4 "
          "--ranks 2 --out profile.json");
  ASSERT_EQ(profiled.code, 0) << profiled.output;
  EXPECT_NE(profiled.output.find("measured by 2 ranks at once in 4 blocks"), std::string::npos)
      << profiled.output;
  const Result<LayerGraph> graph = LayerGraph::load((folder_ / "profile.json").string());
  ASSERT_TRUE(graph) << to_string(graph.problems());
  EXPECT_EQ(graph->measured.ranks, 2);
  EXPECT_EQ(graph->measured.core_share, std::min(1., std::thread::hardware_concurrency() / 2.));
  EXPECT_EQ(graph->measured.blocks, 4);
  EXPECT_GT(graph->measured.spread, 0);
  EXPECT_GT(graph->update_copy_s_per_byte, 0);
  EXPECT_GT(graph->sum_s_per_byte, 0);
  for (const LayerNode& node : graph->nodes) {
    EXPECT_GT(node.forward_s, 0) << node.name;
    EXPECT_LE(*node.input_workspace_bytes, node.workspace_bytes) << node.name;
    EXPECT_LE(*node.saved_output_bytes + *node.saved_input_bytes, node.saved_bytes) << node.name;
  }

  ASSERT_EQ(run("plan --profile profile.json --straight --stages 2 --microbatches 4 --schedule 1f1b --out "
                "plan.json")
                .code,
            0);
  const Ran trained =
      run("train --model mlp --width 64 --depth 4 --microbatch 4 --plan plan.json --steps 20 "
          "--trace-first 5 --trace-steps 10 --no-evaluation --output-dir out");
  ASSERT_EQ(trained.code, 0) << trained.output;
  const Ran report = run("report --run out --format json");
  ASSERT_EQ(report.code, 0) << report.output;
  EXPECT_NE(report.output.find("\"of_model\""), std::string::npos) << report.output;
  const Ran again = run(
      "plan --from-run out --profile profile.json --straight --stages 2 --microbatches 4 --out again.json");
  EXPECT_EQ(again.code, 0) << again.output;
  EXPECT_EQ(run("profile --model mlp --ranks 2 --cluster c.yaml").code, 2);
  EXPECT_EQ(run("profile --model mlp --ranks 0").code, 2);
  EXPECT_EQ(run("profile --model mlp --ranks 2 --round-trips 5").code, 2);  // needs --network
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

/// A plan says what it was made for; a run that is something else is refused, or told what does not hold.
TEST_F(Jobs, ARunIsComparedWithWhatItsPlanWasMadeFor) {
  ASSERT_EQ(run("profile --model mlp --width 16 --microbatch 4 --repetitions 1 --out profile.json").code, 0);
  ASSERT_EQ(run("plan --profile profile.json --straight --stages 2 --microbatches 4 --schedule 1f1b --out "
                "plan.json")
                .code,
            0);
  const std::string train =
      "train --model mlp --width 16 --steps 2 --no-evaluation --plan plan.json --overwrite --output-dir out ";
  const Ran same = run(train + "--microbatch 4");
  ASSERT_EQ(same.code, 0) << same.output;
  EXPECT_EQ(same.output.find("do not hold"), std::string::npos) << same.output;
  EXPECT_EQ(bytes("out/plan.json"), bytes("plan.json"));

  const Ran precision = run(train + "--microbatch 4 --precision bfloat16");
  EXPECT_EQ(precision.code, 2) << precision.output;
  EXPECT_NE(precision.output.find("plan.json: the plan was made for precision float32"), std::string::npos)
      << precision.output;

  for (const auto& [flags, said] :
       {std::pair("--microbatch 2", "microbatches of 4 samples, the run has 2"),
        std::pair("--microbatch 4 --microbatches 8", "4 microbatches in a step, the run has 8"),
        std::pair("--microbatch 4 --schedule gpipe", "schedule 1f1b, the run has gpipe")}) {
    const Ran other = run(train + flags);
    EXPECT_EQ(other.code, 0) << other.output;
    EXPECT_NE(other.output.find(said), std::string::npos) << other.output;
    const Result<Plan> plan = Plan::load((folder_ / "out/plan.json").string());
    ASSERT_TRUE(plan) << to_string(plan.problems());
    EXPECT_EQ(plan->predicted_step_s, 0) << flags;
  }

  // Plans of an earlier version do not say it.
  Result<Plan> old = Plan::load((folder_ / "plan.json").string());
  ASSERT_TRUE(old);
  old->planned_for = {};
  ASSERT_TRUE(old->save((folder_ / "plan.json").string()));
  const Ran trained = run(train + "--microbatch 2 --precision bfloat16");
  EXPECT_EQ(trained.code, 0) << trained.output;
  EXPECT_EQ(trained.output.find("do not hold"), std::string::npos) << trained.output;
}

/// Batch normalisation over replicas: measured as they compute it, and its exchanges are the planner's.
TEST_F(Jobs, SharedStatisticsAreProfiledAndPriced) {
  ASSERT_EQ(
      run("profile --model resnet18 --image-size 32 --classes 10 --microbatch 2 --repetitions 1 --blocks 1 "
          "--sync-batch-norm --out profile.json")
          .code,
      0);
  const Result<LayerGraph> graph = LayerGraph::load((folder_ / "profile.json").string());
  ASSERT_TRUE(graph) << to_string(graph.problems());
  EXPECT_TRUE(graph->sync_batch_norm);
  double forward = graph->loss_s;
  for (const LayerNode& node : graph->nodes) forward += node.forward_s;
  const auto forward_of_stage = [&](const char* ranks) {
    const Ran ran = run(std::string("plan --profile profile.json --stages 1 --microbatches 4 --schedule 1f1b "
                                    "--out plan.json --ranks ") +
                        ranks);
    EXPECT_EQ(ran.code, 0) << ran.output;
    const Result<Plan> plan = Plan::load((folder_ / "plan.json").string());
    return plan ? plan->stages[0].forward_s : 0.0;
  };
  EXPECT_NEAR(forward_of_stage("1"), forward, 1e-9);
  EXPECT_GT(forward_of_stage("2"), forward + 20 * 1e-6);  // twenty layers, a message each at least
}

/// A plan's prediction and the log count the same memory of a rank: tensors, not the process. The prediction
/// leaves out only the temporary memory of layers, a third of a small run.
TEST_F(Jobs, TheLogsPeakIsOfThePlansKind) {
  const std::string model = "resnet18 --image-size 32 --classes 10 --microbatch 8";
  ASSERT_EQ(run("profile --repetitions 1 --out profile.json --model " + model).code, 0);
  for (const char* schedule : {"gpipe", "1f1b"}) {
    ASSERT_EQ(
        run("plan --profile profile.json --straight --stages 2 --microbatches 8 --out plan.json --schedule " +
            std::string(schedule))
            .code,
        0);
    write("job.yaml",
          "plan: plan.json\nmodel: resnet18\nimage-size: 32\nclasses: 10\nmicrobatch: 8\nsteps: 2\n"
          "no-evaluation: true\noutput-dir: out\noverwrite: true\n");
    const Ran ran = run("launch job.yaml");
    ASSERT_EQ(ran.code, 0) << ran.output;
    const auto plan = parse_json(bytes("plan.json"), "plan");
    for (int rank = 0; rank < 2; ++rank) {
      const std::string log = bytes("out/steps.rank" + std::to_string(rank) + ".jsonl");
      const auto last = parse_json(log.substr(log.rfind('\n', log.size() - 2) + 1), "steps");
      ASSERT_TRUE(last) << log;
      const double measured = last->find("peak_memory_bytes")->as_double();
      const double predicted = plan->find("stages")->items()[rank].find("peak_bytes")->as_double();
      EXPECT_GT(measured, 0.8 * predicted) << schedule << " rank " << rank;
      EXPECT_LT(measured, 2 * predicted) << schedule << " rank " << rank;
      EXPECT_GT(last->find("resident_memory_bytes")->as_double(), measured);
    }
  }
}

TEST_F(Jobs, AKilledRankEndsTheJobAndResumeGivesTheSameLosses) {
  const std::string common =
      "model: mlp\nwidth: 64\nstages: 3\nmicrobatches: 6\nseed: 1\nno-evaluation: true\ndeterministic: "
      "true\n";
  write("whole.yaml", common + "steps: 1200\noutput-dir: whole\n");
  ASSERT_EQ(run("launch whole.yaml").code, 0);
  for (int victim = 0; victim < 3; ++victim) {
    fs::remove_all(folder_ / "broken");
    write("broken.yaml", common + "steps: 1200\ncheckpoint-every: 25\noutput-dir: broken\nbackend: " +
                             (victim == 1 ? "tcp" : "shm") + "\n");
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
    job.join();
    EXPECT_EQ(broken.output.find("no message"), std::string::npos) << "by a deadline: " << broken.output;
    EXPECT_EQ(broken.code, 137) << broken.output;
    EXPECT_NE(broken.output.find("rank " + std::to_string(victim)), std::string::npos) << broken.output;
    EXPECT_NE(broken.output.find("step"), std::string::npos) << broken.output;
    const Ran resumed = run("launch broken.yaml --overwrite --set resume=broken --set output-dir=rest");
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

TEST_F(Jobs, EvaluationCountsEverySampleUnderEveryPlan) {
  // 175 test samples in microbatches of 4: two whole chunks, a part of one, and three samples left over.
  const std::string common =
      "model: mlp\nwidth: 16\ndepth: 3\ndata: synthetic:1400\nmicrobatch: 4\nsteps: 4\n";
  double top1 = 0, loss = 0;
  for (const char* plan : {"stages: 1\n", "stages: 2\n", "stages: 3\n", "stages: 1\nreplicas: 2\n",
                           "stages: 2\nreplicas: 3\n"}) {
    write("job.yaml", common + plan + "output-dir: out\noverwrite: true\n");
    const Ran ran = run("launch job.yaml");
    ASSERT_EQ(ran.code, 0) << ran.output;
    const auto summary = parse_json(bytes("out/summary.json"), "summary");
    const Json& evaluation = summary->find("evaluations")->items().at(0);
    EXPECT_EQ(evaluation.find("samples")->as_double(), 175) << plan;
    if (top1 == 0) top1 = evaluation.find("top1")->as_double(), loss = evaluation.find("loss")->as_double();
    EXPECT_NEAR(evaluation.find("top1")->as_double(), top1, 0.006) << plan;  // one sample may tip over
    EXPECT_NEAR(evaluation.find("loss")->as_double(), loss, 1e-4) << plan;   // replicas add in another order
  }
}

TEST_F(Jobs, APlanThatRecomputesTakesLessMemoryForTheSameWeights) {
  ASSERT_EQ(run("profile --model mlp --width 256 --depth 8 --microbatch 64 --out profile.json").code, 0);
  std::int64_t peaks[2] = {};
  for (const bool recompute : {false, true}) {
    const std::string name = recompute ? "less" : "more";
    ASSERT_EQ(run("plan --profile profile.json --straight --stages 2 --microbatches 8 --schedule gpipe "
                  "--recompute " +
                  std::string(recompute ? "always" : "never") + " --out plan.json")
                  .code,
              0);
    write("job.yaml",
          "model: mlp\nwidth: 256\ndepth: 8\nplan: plan.json\nmicrobatch: 64\nsteps: 3\nno-evaluation: "
          "true\nsave-weights: " +
              name + ".safetensors\noutput-dir: " + name + "\n");
    const Ran ran = run("launch job.yaml");
    ASSERT_EQ(ran.code, 0) << ran.output;
    peaks[recompute] = parse_json(bytes(name + "/summary.json"), "a")->find("peak_memory_bytes")->as_int();
  }
  EXPECT_TRUE(bytes("more.safetensors") == bytes("less.safetensors"));
  EXPECT_LT(peaks[1], peaks[0] * 3 / 4);
}

TEST_F(Jobs, AutogradsBackwardGivesTheSameWeights) {
  const std::string common =
      "train --model resnet18 --image-size 32 --classes 10 --data synthetic:64 --microbatch 2 --stages 2 "
      "--steps 3 "
      "--no-evaluation --save-weights ";
  ASSERT_EQ(run(common + "own.safetensors").code, 0);
  ASSERT_EQ(run(common + "autograd.safetensors --autograd").code, 0);
  EXPECT_TRUE(bytes("own.safetensors") == bytes("autograd.safetensors"));
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

TEST_F(Jobs, APortInUseIsNamed) {
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ASSERT_EQ(::bind(socket, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(::listen(socket, 1), 0);
  ASSERT_EQ(::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size), 0);
  const std::string port = std::to_string(ntohs(address.sin_port));
  const Ran ran = run("train --model mlp --stages 2 --steps 1",
                      "RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=" + port);
  ::close(socket);
  EXPECT_EQ(ran.code, 2) << ran.output;
  for (const std::string& part : {"127.0.0.1:" + port, std::string("in use"), std::string("MASTER_PORT")})
    EXPECT_NE(ran.output.find(part), std::string::npos) << ran.output;
}

TEST_F(Jobs, OutOfMemorySaysHowMuchForWhatAndWhatToLower) {
  const std::string train =
      " train --model vgg16 --image-size 64 --classes 10 --microbatch 64 --steps 2 --no-evaluation";
  const auto limited = [&](int kibibytes) {
    const std::string log = (folder_ / "limited.log").string();
    const int status =
        std::system(("ulimit -c 0 && ulimit -v " + std::to_string(kibibytes) +
                     " && timeout 300 " MILLRACE_BIN_DIR "/millrace" + train + " >" + log + " 2>&1")
                        .c_str());
    return Ran{.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1, .output = bytes("limited.log")};
  };
  const Ran little = limited(400'000);
  EXPECT_EQ(little.code, 1) << little.output;
  EXPECT_NE(little.output.find("allows 390 MiB of address space (ulimit -v)"), std::string::npos)
      << little.output;
  const Ran some = limited(1'000'000);
  EXPECT_EQ(some.code, 1) << some.output;
  // "no room for a tensor", unless oneDNN was the one that found none.
  for (const char* part : {"out of memory: ", " of tensors are live",
                           "the process may have 976.6 MiB (ulimit -v)", "smaller --microbatch"})
    EXPECT_NE(some.output.find(part), std::string::npos) << part << "\n" << some.output;
}

/// Without a launcher each rank has only its own last words: they name the rank that was killed.
TEST_F(Jobs, EveryRanksLastWordsNameTheKilledOne) {
  const int port = 20000 + static_cast<int>(::getpid() + 31) % 20000;
  const std::string script =
      "cd " + folder_.string() +
      "; export WORLD_SIZE=4 MASTER_ADDR=127.0.0.1 MASTER_PORT=" + std::to_string(port) +
      "; for r in 0 1 2 3; do RANK=$r " MILLRACE_BIN_DIR
      "/millrace-worker train --model mlp --width 16 --depth 2 --stages 2 --replicas 2 --steps 100000000 "
      "--timeout 60 "
      "--print-every 1000000 --output-dir out --no-evaluation >rank$r.log 2>&1 & done; "
      "for i in $(seq 600); do grep -q '\"step\":[1-9]' out/status.rank*.json 2>/dev/null && break; sleep "
      "0.1; done; "
      "kill -9 $!; wait";
  write("job.sh", script);
  ASSERT_EQ(std::system(("bash " + (folder_ / "job.sh").string()).c_str()), 0);
  for (const char* rank : {"0", "1", "2"}) {
    const std::string log = bytes(std::string("rank") + rank + ".log");
    EXPECT_NE(log.find("rank 3"), std::string::npos) << rank << ": " << log;
  }
}

}  // namespace
}  // namespace millrace
