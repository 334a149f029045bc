// Jobs on devices that are not there: steps take the time that the simulator predicts, and what such a run
// cannot have is refused or left out.
#include <algorithm>
#include <cmath>
#include <sstream>
#include <thread>

#include "runtime/base/json.h"
#include "runtime/base/text.h"
#include "tests/data/jpeg_maker.h"
#include "tests/worker/job_fixture.h"

namespace millrace {
namespace {

class Emulation : public Jobs {
 protected:
  static constexpr const char* kModel = "--model mlp --width 64 --depth 6 --microbatch 8 ";

  void SetUp() override {
    Jobs::SetUp();
    write("cluster.yaml", "levels: [{count: 3, bandwidth: 1e6, latency: 1e-3}]\n");
    const Ran profiled = run("profile " + std::string(kModel) + "--out here.json");
    ASSERT_EQ(profiled.code, 0) << profiled.output;
    set_times("here.json");
    write("devices.tsv", "slow\t\tmlp\t8\t\t\t0\t0.03\n");
    const Ran there =
        run("device-profile --profile here.json --table devices.tsv --device SLOW --out profile.json");
    ASSERT_EQ(there.code, 0) << there.output;
    EXPECT_NE(there.output.find("30.000 ms on SLOW"), std::string::npos) << there.output;
  }

  /// Gives the layers of a profile the same times on every machine: a busy one measures shares that nobody
  /// expects.
  void set_times(const std::string& name) {
    Json profile = json(name), layers = Json::array();
    for (Json layer : profile.find("layers")->items()) {
      const double weight = layer.find("parameter_bytes")->as_double() > 0 ? 1 : 0;
      layer["forward_s"] = 1e-4 + 9e-4 * weight;
      layer["backward_input_s"] = 1.2e-4 + 1e-3 * weight;
      layer["backward_weight_s"] = 8e-4 * weight;
      layers.push_back(std::move(layer));
    }
    profile["layers"] = std::move(layers);
    write(name, profile.dump(1));
  }
  /// Returns the lines of a job file as flags.
  static std::string flags_of(const std::string& lines) {
    std::string flags;
    for (const std::string& line : words_of(lines, '\n'))
      flags += "--" + line.substr(0, line.find(':')) + line.substr(line.find(':') + 1) + " ";
    return flags;
  }
  Json json(const std::string& name) {
    const Result<Json> read = parse_json(bytes(name), name);
    EXPECT_TRUE(read) << bytes(name);
    return read ? *read : Json();
  }

  /// Returns the peak bytes of a rank that the last step of a run has.
  double peak_memory(const std::string& folder, const std::string& rank) {
    std::vector<std::string> lines = split(bytes(folder + "/steps.rank" + rank + ".jsonl"), '\n');
    while (lines.size() > 1 && lines.back().empty()) lines.pop_back();
    const Result<Json> last = parse_json(lines.back(), folder);
    const Json* peak = last && last->is_object() ? last->find("peak_memory_bytes") : nullptr;
    EXPECT_TRUE(peak) << folder << ": " << lines.back();
    return peak ? peak->as_double() : 0;
  }

  /// The seconds that a plan's file predicts for a step in the middle of a run.
  double predicted_by(const std::string& name) {
    const Json plan = json(name);
    const Json* in_a_run = plan.find("predicted_run_step_s");
    return in_a_run && in_a_run->as_double() > 0 ? in_a_run->as_double()
                                                 : plan.find("predicted_step_s")->as_double();
  }

  static constexpr const char* kWide = "--model mlp --width 512 --depth 6 --microbatch 8 ";
  /// Writes wide.json, a profile of kWide with the same times on every machine.
  void profile_wide() {
    const Ran profiled =
        run("profile " + std::string(kWide) + "--repetitions 1 --blocks 1 --warmup 0 --out wide.json");
    ASSERT_EQ(profiled.code, 0) << profiled.output;
    set_times("wide.json");
  }
  static double parameter_bytes_of(const Json& profile) {
    double sum = 0;
    for (const Json& layer : profile.find("layers")->items())
      sum += layer.find("parameter_bytes")->as_double();
    return sum;
  }

  /// Plans, and trains the plan on emulated devices in virtual time. Returns the emulated step as a multiple
  /// of the planned one.
  double emulated_over_planned(const std::string& model, const std::string& profile,
                               const std::string& cluster, const std::string& plan_flags,
                               const std::string& train_flags) {
    const std::string plan = profile + ".plan";
    const Ran planned =
        run("plan --profile " + profile + " --cluster " + cluster + " " + plan_flags + " --out " + plan);
    EXPECT_EQ(planned.code, 0) << planned.output;
    const Ran ran =
        run("train " + model + "--plan " + plan + " " + train_flags + " --device emulated --device-profile " +
            profile + " --clock virtual --emulate-links " + cluster + " --overwrite --output-dir emulated");
    EXPECT_EQ(ran.code, 0) << ran.output;
    if (planned.code != 0 || ran.code != 0) return 0;
    return json("emulated/summary.json").find("median_step_s")->as_double() / predicted_by(plan);
  }
};

TEST_F(Emulation, AStepInVirtualTimeIsTheSimulators) {
  for (const std::string schedule : {"gpipe", "1f1b", "zb-h1", "interleaved", "zb-v"}) {
    EXPECT_NEAR(emulated_over_planned(kModel, "profile.json", "cluster.yaml",
                                      "--straight --microbatches 6 --schedule " + schedule,
                                      "--steps 5 --data synthetic:64"),
                1, 3e-3)
        << schedule;
  }
}

TEST_F(Emulation, MessagesOfAHostShareItsPort) {
  write("hosts.yaml",
        "hosts: [{name: a, devices: 2, bandwidth: 1e9}, {name: b, devices: 2, bandwidth: 1e9}]\n"
        "network: {bandwidth: 3e5, latency: 1e-4}\n");
  for (const std::string schedule : {"gpipe", "1f1b"}) {
    EXPECT_NEAR(emulated_over_planned(kModel, "profile.json", "hosts.yaml",
                                      "--stages 2 --microbatches 8 --schedule " + schedule,
                                      "--steps 5 --data synthetic:128"),
                1, 0.03)
        << schedule;
  }
}

/// A replica is on the host of the stage before, the other behind a slow network. And messages follow each
/// other on a wire of long latency.
TEST_F(Emulation, MessagesThatBoundAStepTakeTheSimulatorsTimeToo) {
  write("near.yaml",
        "hosts: [{name: a, devices: 2, bandwidth: 1e9}, {name: b, devices: 1, bandwidth: 1e9}]\n"
        "network: {bandwidth: 1.5e5, latency: 1e-2}\n");
  Json plan = Json::object({{"format", "millrace-plan-1"}, {"model", "mlp"}, {"schedule", "gpipe"}});
  plan["microbatches"] = 8;
  // The replicated stage has few parameters: its all-reduce holds up no messages.
  std::vector<Json> front, back{"layers.5.gelu", "head"};
  for (int layer = 0; layer < 5; ++layer)
    for (const char* part : {".linear", ".gelu"})
      front.emplace_back("layers." + std::to_string(layer) + part);
  front.emplace_back("layers.5.linear");
  const auto list = [](const std::vector<Json>& items) {
    Json all = Json::array();
    for (const Json& item : items) all.push_back(item);
    return all;
  };
  plan["stages"] = list({Json::object({{"ranks", list({0})}, {"layers", list(front)}}),
                         Json::object({{"ranks", list({1, 2})}, {"layers", list(back)}})});
  write("near.json", plan.dump(1));
  const Ran simulated =
      run("simulate --plan near.json --profile profile.json --cluster near.yaml --format json");
  ASSERT_EQ(simulated.code, 0) << simulated.output;
  const Ran ran = run("train " + std::string(kModel) +
                      "--plan near.json --steps 5 --data synthetic:128 --device emulated --device-profile "
                      "profile.json --clock virtual --emulate-links near.yaml --overwrite --output-dir near");
  ASSERT_EQ(ran.code, 0) << ran.output;
  const double step = json("near/summary.json").find("median_step_s")->as_double();
  const Result<Json> said = parse_json(simulated.output, "simulate");
  ASSERT_TRUE(said) << simulated.output;
  EXPECT_NEAR(step / said->find("steady_step_s")->as_double(), 1, 0.01);
}

TEST_F(Emulation, JitterMakesStepsWithWaitingRanksLonger) {
  Json profile = json("profile.json");
  profile["measured"]["jitter"] = 0.2;
  write("noisy.json", profile.dump(1));
  const auto mean_step = [&](const std::string& file, const std::string& more) {
    const Ran ran =
        run("train " + std::string(kModel) +
            "--stages 1 --replicas 2 --microbatches 2 --steps 300 --data synthetic:64 --device emulated "
            "--clock virtual --overwrite --output-dir jitter --device-profile " +
            file + more);
    EXPECT_EQ(ran.code, 0) << ran.output;
    double sum = 0;
    int steps = 0;
    for (const std::string& line : split(bytes("jitter/steps.rank0.jsonl"), '\n')) {
      if (const Result<Json> step = parse_json(line, "steps");
          step && step->is_object() && step->find("step_s"))
        sum += step->find("step_s")->as_double(), ++steps;
    }
    return sum / steps;
  };
  const double alike = mean_step("noisy.json", ""), drawn = mean_step("noisy.json", " --jitter profile");
  double forward = profile.find("loss_s")->as_double(), backward = 0;
  for (const Json& layer : profile.find("layers")->items()) {
    forward += layer.find("forward_s")->as_double();
    backward += layer.find("backward_input_s")->as_double() + layer.find("backward_weight_s")->as_double();
  }
  // The larger of two normal sums exceeds their mean by the deviation / sqrt(pi).
  const double longer = 0.2 * std::sqrt((forward * forward + backward * backward) / 3.14159265);
  EXPECT_NEAR((drawn - alike) / longer, 1, 0.25) << alike << " " << drawn << " " << longer;
  EXPECT_EQ(drawn, mean_step("noisy.json", " --jitter profile")) << "the same seed draws the same";
  EXPECT_GT(mean_step("profile.json", " --jitter 0.2"), alike + longer / 2);
}

TEST_F(Emulation, AJobRunsOnBothClocksWithoutWhatAsksForValues) {
  write("job.yaml",
        "name: two\nmodel: mlp\nwidth: 64\ndepth: 6\nmicrobatch: 8\nstages: 2\nmicrobatches: 4\nsteps: 4\n"
        "data: synthetic:64\ncheckpoint_every: 2\non_nonfinite: skip\nhosts: "
        "[nowhere.invalid:2]\noutput-dir: real\n");
  double longest[2] = {};
  for (const bool wall : {false, true}) {
    const Ran ran = run("emulate job.yaml --device-profile profile.json --cluster cluster.yaml --overwrite" +
                        std::string(wall ? " --clock wall" : ""));
    ASSERT_EQ(ran.code, 0) << ran.output;
    EXPECT_NE(ran.output.find("checkpoint-every is left out"), std::string::npos) << ran.output;
    EXPECT_NE(ran.output.find("on-nonfinite is left out"), std::string::npos) << ran.output;
    EXPECT_NE(ran.output.find("its hosts are left out"), std::string::npos) << ran.output;
    EXPECT_NE(ran.output.find("no losses (emulated)"), std::string::npos) << ran.output;
    EXPECT_EQ(ran.output.find("loss="), std::string::npos) << ran.output;
    const Json summary = json("real-emulated/summary.json");
    EXPECT_TRUE(summary.find("final_loss")->is_null());
    EXPECT_EQ(summary.find("emulated")->find("clock")->as_string(), wall ? "wall" : "virtual");
    EXPECT_EQ(summary.find("emulated")->find("device")->as_string(), "SLOW (devices.tsv)");
    EXPECT_FALSE(fs::exists(folder_ / "real-emulated" / "checkpoints"));
    std::istringstream log(bytes("real-emulated/steps.rank0.jsonl"));
    for (std::string line; std::getline(log, line);)
      if (const Result<Json> one = parse_json(line, "steps"); one && one->find("step_s"))
        longest[wall ? 1 : 0] = std::max(longest[wall ? 1 : 0], one->find("step_s")->as_double());
  }
  EXPECT_FALSE(fs::exists(folder_ / "real"));
  EXPECT_GT(longest[0], 0.06) << "two stages of 15 ms, four microbatches";
  // A step is short where a busy host noticed the end of the one before it late.
  EXPECT_GE(longest[1], longest[0] * 0.999) << "the host only adds to it";
  const Ran report = run("report --run real-emulated");
  EXPECT_EQ(report.code, 0) << report.output;
  EXPECT_NE(bytes("real-emulated/report.html").find("Emulated"), std::string::npos);
}

/// The first of two buckets is added up beside the rest of the backward.
TEST_F(Emulation, AnAllReduceOverlapsTheBackwardAsPlanned) {
  ASSERT_NO_FATAL_FAILURE(profile_wide());
  write("fast.yaml", "levels: [{count: 3, bandwidth: 1e9, latency: 1e-5}]\n");
  for (const std::string microbatches : {"3", "5"}) {
    EXPECT_NEAR(emulated_over_planned(kWide, "wide.json", "fast.yaml",
                                      "--stages 1 --schedule 1f1b --microbatches " + microbatches,
                                      "--steps 3 --data synthetic:128"),
                1, 0.015)
        << microbatches;
  }
}

/// Three ranks add up two thirds of the gradients each.
TEST_F(Emulation, AddingUpGradientsTakesItsTimeAsPlanned) {
  ASSERT_NO_FATAL_FAILURE(profile_wide());
  Json profile = json("wide.json");
  const double bytes_of_all = parameter_bytes_of(profile);
  write("fast.yaml", "levels: [{count: 3, bandwidth: 1e11, latency: 0}]\n");
  double step[2] = {};
  for (const bool adds : {false, true}) {
    if (adds) profile["sum_s_per_byte"] = 1e-9;
    write("wide.json", profile.dump(1));
    EXPECT_NEAR(emulated_over_planned(kWide, "wide.json", "fast.yaml", "--stages 1 --microbatches 3",
                                      "--steps 3 --data synthetic:128"),
                1, 5e-3);
    step[adds ? 1 : 0] = json("emulated/summary.json").find("median_step_s")->as_double();
  }
  EXPECT_NEAR(step[1] - step[0], bytes_of_all * 2 / 3 * 1e-9, bytes_of_all * 1e-11);
}

/// A norm that clips takes a pass over the gradients, and has no value.
TEST_F(Emulation, ClippingTakesItsTime) {
  Json profile = json("profile.json");
  profile["norm_s_per_byte"] = 1e-8;
  const double bytes_of_all = parameter_bytes_of(profile);
  write("clipped.json", profile.dump(1));
  const std::string train = "train " + std::string(kModel) +
                            "--steps 3 --data synthetic:64 --device emulated --clock virtual "
                            "--device-profile clipped.json --overwrite --output-dir clip ";
  const auto step_of = [&](const std::string& flags) {
    const Ran ran = run(train + flags);
    EXPECT_EQ(ran.code, 0) << ran.output;
    EXPECT_EQ(bytes("clip/steps.rank0.jsonl").find("gradient_norm"), std::string::npos);
    return json("clip/summary.json").find("median_step_s")->as_double();
  };
  EXPECT_NEAR(step_of("--clip-norm 1") - step_of(""), bytes_of_all * 1e-8, bytes_of_all * 1e-10);
}

/// In virtual time nothing varies. The report simulates the run's own times again, and they give the run's
/// step.
TEST_F(Emulation, ItsReportFindsNoErrorInVirtualTime) {
  write("job.yaml",
        "name: r\nmodel: mlp\nwidth: 64\ndepth: 6\nmicrobatch: 8\nstages: 2\nmicrobatches: 3\nsteps: 8\n"
        "data: synthetic:64\noutput-dir: r\n");
  const Ran ran = run("emulate job.yaml --device-profile profile.json");
  ASSERT_EQ(ran.code, 0) << ran.output;
  const Ran report = run("report --run r-emulated");
  ASSERT_EQ(report.code, 0) << report.output;
  for (const std::string error : {"jitter ", "model "}) {
    const bool none = report.output.find(error + "+0.0 %") != std::string::npos ||
                      report.output.find(error + "-0.0 %") != std::string::npos;
    EXPECT_TRUE(none) << report.output;
  }
  const Ran again = run("emulate job.yaml --device-profile profile.json");
  EXPECT_EQ(again.code, 2) << again.output;
  EXPECT_EQ(again.output.find("--resume"), std::string::npos) << "it has no checkpoint\n" << again.output;
}

TEST_F(Emulation, APipelinesStallsAreThoseOfItsFirstAndLastStage) {
  for (int image = 0; image < 24; ++image) {
    const std::string name = "images/train/class" + std::to_string(image % 3) + "/" + std::to_string(image);
    fs::create_directories((folder_ / name).parent_path());
    write(name + ".jpg", jpeg_of(320, 240, TJPF_RGB, image));
  }
  const std::string model = "--model squeezenet1_1 --image-size 64 --classes 3 --microbatch 4 ";
  const Ran profiled = run("profile " + model + "--repetitions 1 --blocks 1 --warmup 1 --out conv.json");
  ASSERT_EQ(profiled.code, 0) << profiled.output;
  const Ran other =
      run("train --model squeezenet1_1 --image-size 96 --classes 3 --microbatch 4 --steps 1 --data "
          "synthetic:16 --device emulated --device-profile conv.json");
  EXPECT_EQ(other.code, 2) << other.output;
  EXPECT_NE(other.output.find(" bytes of output there, and "), std::string::npos) << other.output;
  write("job.yaml",
        "name: images\nmodel: squeezenet1_1\nimage-size: 64\nclasses: 3\ndata: images\nmicrobatch: "
        "4\nstages: 3\n"
        "microbatches: 2\nsteps: 3\nno-evaluation: true\n");
  const Ran ran = run("stalls job job.yaml --device-profile conv.json --repeats 1 -o stalls");
  ASSERT_EQ(ran.code, 0) << ran.output;
  EXPECT_NE(ran.output.find("an epoch of 3 steps"), std::string::npos) << ran.output;
  const Json stalls = json("stalls/job-stalls.json");
  const auto mean = [&](const char* name) { return stalls.find(name)->find("mean")->as_double(); };
  EXPECT_NEAR(mean("compute_s") + mean("preparation_stall_s") + mean("fetch_stall_s"), mean("step_s"),
              0.005 * mean("step_s"));
  for (const char* part : {"compute_s", "preparation_stall_s", "fetch_stall_s"})
    EXPECT_GE(mean(part), 0) << part;
  EXPECT_GT(stalls.find("file_bytes")->as_double(), 24 * 1000);
  const Ran what_if = run("stalls what-if stalls/job-stalls.json");
  EXPECT_EQ(what_if.code, 3) << what_if.output;
  EXPECT_NE(what_if.output.find("millrace stalls job --storage NAME"), std::string::npos) << what_if.output;
  const std::vector<Json>& ranks = stalls.find("ranks")->items();
  ASSERT_EQ(ranks.size(), 3U);
  EXPECT_EQ(ranks[1].find("data_wait_cold_s")->as_double(), 0) << "the middle stage reads no data";
  // A storage that serves 10 ms a sample, whose cache has half of them: 12 misses in an epoch of 24 samples.
  const Ran stored =
      run("stalls job job.yaml --device-profile conv.json --repeats 1 -o stored --storage 10ms,1GB,1 --cache "
          "0.5");
  ASSERT_EQ(stored.code, 0) << stored.output;
  EXPECT_NE(stored.output.find("hit ratio "), std::string::npos) << stored.output;
  const Json slow = json("stored/job-stalls.json");
  const Json& epoch = *slow.find("epoch");
  const auto part = [&](const char* name) { return epoch.find(name)->as_double(); };
  EXPECT_NEAR(part("compute_s") + part("preparation_stall_s") + part("fetch_stall_s"), part("epoch_s"),
              0.005 * part("epoch_s"));
  EXPECT_NEAR(slow.find("hit_ratio")->as_double(), 0.5, 1e-9) << "whatever was read of the next epoch";
  EXPECT_EQ(run("emulate job.yaml --device-profile conv.json --set storage=hdd").code, 2) << "virtual time";
  const Ran made_up = run("stalls job job.yaml --device-profile conv.json --set data=synthetic");
  EXPECT_EQ(made_up.code, 2);
  EXPECT_NE(made_up.output.find("its data is made up"), std::string::npos) << made_up.output;
  const Ran failed = run("stalls job job.yaml --device-profile profile.json -o failed");
  EXPECT_EQ(failed.code, 3) << failed.output;
  EXPECT_NE(failed.output.find("it is of microbatches of 8"), std::string::npos) << failed.output;
}

TEST_F(Emulation, ItsMemoryIsTheRealRuns) {
  write("job.yaml",
        "name: m\nmodel: mlp\nwidth: 256\ndepth: 6\nmicrobatch: 8\nstages: 2\nmicrobatches: 4\nsteps: 3\n"
        "data: synthetic:64\noutput-dir: real\nno-evaluation: true\n");
  // Small enough weights are less than what drawing them takes for a moment.
  const Ran profiled =
      run("profile --model mlp --width 256 --depth 6 --microbatch 8 --blocks 1 --out wide.json");
  ASSERT_EQ(profiled.code, 0) << profiled.output;
  const Ran real = run("launch job.yaml"), ran = run("emulate job.yaml --device-profile wide.json");
  ASSERT_EQ(real.code, 0) << real.output;
  ASSERT_EQ(ran.code, 0) << ran.output;
  for (const char* rank : {"0", "1"})
    EXPECT_NEAR(peak_memory("real-emulated", rank) / peak_memory("real", rank), 1, 0.02) << "rank " << rank;
}

/// Each with a plan's step in virtual time beside the plan's prediction, and its memory beside a real run's.
TEST_F(Emulation, TurnsCarriedStatesAndJobArraysAreAsSimulatedToo) {
  write("two.yaml", "levels: [{count: 2, bandwidth: 1e8, latency: 1e-5}]\n");
  std::string words;
  for (int i = 0; i < 4000; ++i) words += "w" + std::to_string(i * i % 37) + (i % 12 == 11 ? "\n" : " ");
  write("words.txt", words);
  fs::create_directory(folder_ / "text");
  for (const char* command :
       {"data text vocab words.txt -o words", "data text encode words.txt -v words -o text/train.tokens"})
    ASSERT_EQ(run(command).code, 0) << command << bytes("log");
  struct Kind {
    std::string model, profiled, job;
    double memory;  ///< by which it may be off
  };
  // Kernels that are chosen by trying take memory for that, which an emulated run does not. The loader may be
  // less far ahead than an emulated one, so batches are small beside the weights.
  const Kind kinds[] = {
      {"model: dcgan\nimage-size: 16\nlatent: 16\ngenerator-features: 64\ndiscriminator-features: 64\n", "",
       "data: synthetic:64\n", 0.05},
      {"model: awd_lstm\nembedding-features: 128\nhidden: 128\nvocabulary: 64\nlength: 32\n", "",
       "data: text\n", 0.03},
      {"model: mlp\nwidth: 256\ndepth: 6\n", "--jobs 3 ",
       "data: synthetic:64\nfused: true\nkernels: loop\nlr: [0.1, 0.2, 0.3]\n", 0.03}};
  for (const Kind& kind : kinds) {
    const std::string flags = flags_of(kind.model + "microbatch: 4");
    const Ran profiled =
        run("profile " + flags + kind.profiled + "--blocks 1 --repetitions 2 --out own.json");
    ASSERT_EQ(profiled.code, 0) << profiled.output;
    const Json own = json("own.json");
    write("planned.json", kind.profiled.empty() ? own.dump(1) : own.find("arrays")->items().at(0).dump(1));
    const Ran planned = run(
        "plan --profile planned.json --cluster two.yaml --stages 2 --microbatches 4 --schedule 1f1b --out "
        "plan.json");
    ASSERT_EQ(planned.code, 0) << planned.output;
    const std::string job = "name: j\n" + kind.model + kind.job +
                            "microbatch: 4\nsteps: 4\nno-evaluation: true\noutput-dir: real\n";
    write("planned.yaml", job + "plan: plan.json\n");
    const Ran timed =
        run("emulate planned.yaml --device-profile own.json --cluster two.yaml --overwrite -o timed");
    ASSERT_EQ(timed.code, 0) << timed.output;
    EXPECT_EQ(timed.output.find("loss "), std::string::npos) << timed.output;
    EXPECT_NEAR(json("timed/summary.json").find("median_step_s")->as_double() / predicted_by("plan.json"), 1,
                0.01)
        << kind.model;
    write("job.yaml", job + "stages: 2\nmicrobatches: 4\nschedule: 1f1b\noverwrite: true\n" +
                          (kind.profiled.empty() ? "" : "arrays: 1\n"));
    const Ran real = run("launch job.yaml"), ran = run("emulate job.yaml --device-profile own.json");
    ASSERT_EQ(real.code, 0) << real.output;
    ASSERT_EQ(ran.code, 0) << ran.output;
    for (const char* rank : {"0", "1"})
      EXPECT_NEAR(peak_memory("real-emulated", rank) / peak_memory("real", rank), 1, kind.memory)
          << kind.model << "rank " << rank;
  }
  write("four.yaml",
        "name: f\nmodel: mlp\nwidth: 256\ndepth: 6\nmicrobatch: 4\nsteps: 2\nfused: true\n"
        "lr: [1, 2, 3, 4]\n");
  const Ran none = run("emulate four.yaml --device-profile own.json");
  EXPECT_EQ(none.code, 2) << none.output;
  EXPECT_NE(none.output.find("has arrays of 1,3 jobs, not of 4"), std::string::npos) << none.output;
  EXPECT_NE(none.output.find("--jobs 1,3,4"), std::string::npos) << none.output;
}

/// The profile's microbatches are those of the run, or others: four a step are sorted by length together.
TEST_F(Emulation, MicrobatchesOfEachLengthTakeTheirOwnTimes) {
  const std::string model =
      "model: gnmt\nlayers: 2\nhidden: 16\nvocabulary: 200\nlength: 16\nmicrobatch: 4\n"
      "data: synthetic:32\n";
  write("job.yaml", model + "microbatches: 1\nstages: 1\nsteps: 8\nno-evaluation: true\noutput-dir: out\n");
  // Times are made to follow from lengths: encoders read the source, attention compares both, the others and
  // the loss read the target.
  const auto length_of = [](const std::string& layer, double source, double target) {
    if (layer.find("attn") != std::string::npos) return source * target;
    return layer.starts_with("encoder") ? source : target;
  };
  std::vector<double> expected;
  for (const char* microbatches : {"1", "4"}) {
    const Ran profiled = run("profile " + flags_of(model) + "--microbatches " + microbatches +
                             " --measured-microbatches 8 --repetitions 2 --out own.json");
    ASSERT_EQ(profiled.code, 0) << profiled.output;
    Json profile = json("own.json");
    std::vector<double> measured, emulated;
    double loss = 0;
    std::map<std::string, double> forward;
    for (Json& one : profile["lengths"]["microbatches"].items()) {
      const double source = one["lengths"].items()[0].as_double();
      const double target = one["lengths"].items()[1].as_double();
      double seconds = 1e-5 * target;
      one["loss_s"] = seconds;
      loss += seconds / 8;
      for (Json& layer : profile["layers"].items()) {
        const double length = length_of(layer["name"].as_string(), source, target);
        layer["microbatches"].items()[measured.size()].items() = {Json(1e-4 * length), Json(2e-4 * length),
                                                                  Json(1e-5 * length)};
        seconds += 3.1e-4 * length;
        forward[layer["name"].as_string()] += 1e-4 * length / 8;
      }
      one["seconds"] = seconds;
      measured.push_back(seconds);
    }
    profile["loss_s"] = loss;
    for (Json& layer : profile["layers"].items()) {
      const double seconds = forward[layer["name"].as_string()];
      layer["forward_s"] = seconds;
      layer["backward_input_s"] = 2 * seconds;
      layer["backward_weight_s"] = 0.1 * seconds;
    }
    write("own.json", profile.dump(1));
    const Ran ran = run("emulate job.yaml --overwrite --device-profile own.json");
    ASSERT_EQ(ran.code, 0) << ran.output;
    for (const std::string& line : split(bytes("out-emulated/steps.rank0.jsonl"), '\n')) {
      if (line.find("\"step\"") == std::string::npos) continue;
      const Json step = *parse_json(line, "steps");
      emulated.push_back(step.find("forward_s")->as_double() + step.find("backward_s")->as_double());
    }
    std::ranges::sort(measured);
    std::ranges::sort(emulated);
    // An epoch has the microbatches that were measured one by one, in an order of its own.
    if (expected.empty())
      expected = measured;
    else
      EXPECT_NE(measured, expected) << "the test would not see times of microbatches that were not measured";
    ASSERT_EQ(expected.size(), 8u);
    ASSERT_EQ(emulated.size(), 8u);
    EXPECT_GT(expected.back(), 1.2 * expected.front()) << "the test could not see whose time a step takes";
    for (std::size_t i = 0; i < 8; ++i)
      EXPECT_NEAR(emulated[i] / expected[i], 1, 1e-3) << i << ", microbatches a step: " << microbatches;
  }
}

/// Two jobs are an array, and the third is one by itself. Each array has its own layers and its own update.
TEST_F(Emulation, ArraysOfUnequalSizesTakeTheirOwnTimes) {
  const std::string model = "--model mlp --width 64 --depth 6 --microbatch 8 ";
  const Ran profiled = run("profile " + model + "--jobs 2 --blocks 1 --repetitions 1 --out jobs.json");
  ASSERT_EQ(profiled.code, 0) << profiled.output;
  const auto with = [](Json graph, double layer_s, double update_s_per_byte) {
    Json layers = Json::array();
    for (Json layer : graph.find("layers")->items()) {
      layer["forward_s"] = layer["backward_input_s"] = layer_s;
      layer["backward_weight_s"] = layer.find("parameter_bytes")->as_double() > 0 ? layer_s : 0;
      layers.push_back(std::move(layer));
    }
    graph["layers"] = std::move(layers);
    graph["loss_s"] = 0.0;
    graph["update_s_per_byte"] = update_s_per_byte;
    return graph;
  };
  const Json alone = with(json("jobs.json"), 1e-3, 4e-8),
             pair = with(alone.find("arrays")->items()[0], 1.2e-3, 1e-8);
  Json both = alone, arrays = Json::array();
  arrays.push_back(pair);
  both["arrays"] = std::move(arrays);
  write("jobs.json", both.dump(1));
  write(
      "job.yaml",
      "name: unequal\nmodel: mlp\nwidth: 64\ndepth: 6\nmicrobatch: 8\nstages: 2\nmicrobatches: 1\narrays: 2\n"
      "schedule: 1f1b\nfused: true\nlr: [0.1, 0.2, 0.3]\nsteps: 6\ndata: synthetic:64\noutput-dir: run\n");
  const Ran ran = run("emulate job.yaml --device-profile jobs.json");
  ASSERT_EQ(ran.code, 0) << ran.output;
  struct Stage {
    double forward = 0, backward = 0, update = 0;
  };
  const Json plan = json("run-emulated/plan.json");
  const auto stage = [&](const Json& graph, std::size_t s) {
    Stage sum;
    for (const Json& name : plan.find("stages")->items()[s].find("layers")->items()) {
      for (const Json& layer : graph.find("layers")->items()) {
        if (layer.find("name")->as_string() != name.as_string()) continue;
        sum.forward += layer.find("forward_s")->as_double();
        sum.backward +=
            layer.find("backward_input_s")->as_double() + layer.find("backward_weight_s")->as_double();
        sum.update +=
            layer.find("parameter_bytes")->as_double() * graph.find("update_s_per_byte")->as_double();
      }
    }
    return sum;
  };
  // 1F1B with a microbatch of each array: the first stage does F0 F1 B0 U0 B1 U1, the second F0 B0 U0 F1 B1
  // U1. Before its U0 the first stage waits for the gradient that B1 needs.
  const Stage first[] = {stage(pair, 0), stage(alone, 0)}, second[] = {stage(pair, 1), stage(alone, 1)};
  const double forwards = first[0].forward + first[1].forward;
  const double pair_back = first[0].forward + second[0].forward + second[0].backward;
  const double alone_back =
      std::max(pair_back + second[0].update, forwards) + second[1].forward + second[1].backward;
  const double pair_done =
      std::max(std::max(forwards, pair_back) + first[0].backward, alone_back) + first[0].update;
  const double step = pair_done + first[1].backward + first[1].update;
  EXPECT_GT(first[1].update, 1e-3) << "else the test could not see whose time an update takes";
  EXPECT_NEAR(json("run-emulated/summary.json").find("median_step_s")->as_double() / step, 1, 1e-4);
  // A plan of such arrays foretells the same.
  write("two.yaml", "levels: [{count: 2, bandwidth: 1e8, latency: 1e-5}]\n");
  const Ran planned =
      run("plan --profile jobs.json --cluster two.yaml --stages 2 --jobs 3 --microbatches 2 --schedule gpipe "
          "--out plan.json");
  ASSERT_EQ(planned.code, 0) << planned.output;
  EXPECT_NE(planned.output.find("3 jobs in 1 round: 3 in 2 arrays"), std::string::npos) << planned.output;
  write("planned.yaml",
        "name: planned\nmodel: mlp\nwidth: 64\ndepth: 6\nmicrobatch: 8\nplan: plan.json\nfused: true\n"
        "lr: [0.1, 0.2, 0.3]\nsteps: 6\ndata: synthetic:64\noutput-dir: planned\n");
  const Ran timed = run("emulate planned.yaml --device-profile jobs.json --cluster two.yaml");
  ASSERT_EQ(timed.code, 0) << timed.output;
  EXPECT_NEAR(
      json("planned-emulated/summary.json").find("median_step_s")->as_double() / predicted_by("plan.json"), 1,
      1e-3);
}

TEST_F(Emulation, JobsThatShareADeviceTakeTurns) {
  write("job.yaml",
        "name: s\nmodel: mlp\nwidth: 64\ndepth: 6\nmicrobatch: 8\nmicrobatches: 1\nsteps: 60\n"
        "data: synthetic:64\nno-evaluation: true\n");
  const std::string command =
      "emulate job.yaml --device-profile profile.json --clock wall --share-devices shared --output-dir ";
  const Ran refused = run("emulate job.yaml --device-profile profile.json --share-devices shared");
  EXPECT_EQ(refused.code, 2);
  EXPECT_NE(refused.output.find("give --clock wall"), std::string::npos) << refused.output;
  EXPECT_EQ(run("emulate job.yaml job.yaml --device-profile profile.json --clock wall").code, 2);
  // In virtual time a step of one of three takes exactly three times as long.
  const Ran three =
      run("emulate job.yaml job.yaml job.yaml --device-profile profile.json --output-dir three");
  ASSERT_EQ(three.code, 0) << three.output;
  for (const char* line : {" INFO s: step=60/60 ", " INFO s-2: step=60/60 ", " INFO s-3: step=60/60 ",
                           "\ns: steps 60, no losses", "\ns-2: steps 60, ", "\ns-3: steps 60, ",
                           " ms a step on shared devices, in three/job1\n"})
    EXPECT_NE(("\n" + three.output).find(line), std::string::npos) << line << "\n" << three.output;
  for (const std::string job : {"job0", "job1", "job2"})
    EXPECT_NEAR(json("three/" + job + "/summary.json").find("median_step_s")->as_double() / 0.09, 1, 0.02)
        << job;
  Ran other;
  std::jthread beside([&] {
    const std::string line = "cd " + folder_.string() + " && timeout 100 " MILLRACE_BIN_DIR "/millrace " +
                             command + "two >two.log 2>&1";
    other.code = std::system(line.c_str());
  });
  const Ran one = run(command + "one");
  beside.join();
  ASSERT_EQ(one.code, 0) << one.output;
  ASSERT_EQ(other.code, 0) << bytes("two.log");
  // Alone a step takes 30 ms. The two begin at about the same time.
  const double step = json("one/summary.json").find("median_step_s")->as_double();
  EXPECT_GT(step, 0.055) << "half of the device for each";
}

TEST_F(Emulation, RanksThatShareADeviceTakeTurns) {
  const std::string job =
      "name: s\nmodel: mlp\nwidth: 64\ndepth: 6\nmicrobatch: 8\nmicrobatches: 4\nsteps: 6\nstages: 4\n"
      "data: synthetic:64\nno-evaluation: true\noverwrite: true\noutput-dir: out\n";
  write("job.yaml", job);
  const auto step = [&](const std::string& flags) {
    const Ran ran = run("emulate job.yaml --device-profile profile.json " + flags);
    EXPECT_EQ(ran.code, 0) << ran.output;
    return json("out-emulated/summary.json").find("median_step_s")->as_double();
  };
  // One device does everything, one after the other: four microbatches of 30 ms, and the update.
  EXPECT_NEAR(step("--emulated-devices 1") / 0.12, 1, 0.03);
  const double two = step("--emulated-devices 2"), four = step("");
  EXPECT_GT(two, 0.06);
  EXPECT_LT(two, 0.1);
  EXPECT_LT(four, 0.95 * two);
  EXPECT_EQ(step("--emulated-devices 4"), four);
  const double wall = step("--emulated-devices 1 --clock wall --share-devices shared");
  EXPECT_GT(wall, 0.115);
  const Ran refused = run("emulate job.yaml --device-profile profile.json --clock wall --emulated-devices 2");
  EXPECT_EQ(refused.code, 2);
  EXPECT_NE(refused.output.find("give --share-devices DIR too"), std::string::npos) << refused.output;
}

/// The single job's layers copy their weights for their kernels. While the array of two works, there are
/// none.
TEST_F(Emulation, CopiesOfAnArrayLiveFromItsForwardToItsUpdate) {
  const std::string model = "mlp\nwidth: 256\ndepth: 6\n";
  const Ran profiled =
      run("profile --model mlp --width 256 --depth 6 --microbatch 4 --jobs 2 --blocks 1 "
          "--repetitions 2 --out jobs.json");
  ASSERT_EQ(profiled.code, 0) << profiled.output;
  write("job.yaml",
        "name: c\nmodel: " + model +
            "microbatch: 4\nmicrobatches: 4\narrays: 2\nfused: true\nkernels: loop\n"
            "lr: [0.1, 0.2, 0.3]\nsteps: 3\ndata: synthetic:64\nno-evaluation: true\noutput-dir: real\n");
  for (const char* command : {"launch job.yaml", "emulate job.yaml --device-profile jobs.json"}) {
    const Ran ran = run(command);
    ASSERT_EQ(ran.code, 0) << ran.output;
  }
  EXPECT_NEAR(peak_memory("real-emulated", "0") / peak_memory("real", "0"), 1, 0.02);
}

/// Devices of a slower kind take the time that the planner thinks, and so do stragglers.
TEST_F(Emulation, DevicesHaveTheSpeedOfTheirKind) {
  const std::string hosts =
      "hosts: [{name: a, devices: 1}, {name: b, devices: 1, kind: slow}]\n"
      "network: {bandwidth: 1e9, latency: 1e-4}\n";
  write("kinds.yaml", hosts + "kinds: [{name: slow, speed: 0.5}]\n");
  write("measured.yaml", hosts + "kinds: [{name: slow, profile: twice.json}]\n");
  write("other.yaml", hosts + "kinds: [{name: slow, profile: other.json}]\n");
  Json twice = json("profile.json");
  for (const char* key : {"loss_s", "update_s_per_byte", "update_copy_s_per_byte"})
    if (twice.find(key)) twice[key] = 2 * twice.find(key)->as_double();
  for (Json& layer : twice["layers"].items())
    for (const char* key : {"forward_s", "backward_input_s", "backward_weight_s"})
      layer[key] = 2 * layer.find(key)->as_double();
  write("twice.json", twice.dump(1));
  twice["microbatch"] = 4;
  write("other.json", twice.dump(1));
  ASSERT_EQ(run("plan --profile profile.json --cluster kinds.yaml --straight --stages 2 --microbatches 4 "
                "--schedule 1f1b --out plan.json")
                .code,
            0);
  ASSERT_EQ(
      run("plan --profile profile.json --cluster kinds.yaml --stages 1 --microbatches 4 --schedule 1f1b "
          "--out replicas.json")
          .code,
      0);
  write("job.yaml",
        "name: k\nmodel: mlp\nwidth: 64\ndepth: 6\nmicrobatch: 8\nsteps: 6\nplan: plan.json\n"
        "data: synthetic:64\nno-evaluation: true\noverwrite: true\noutput-dir: out\n");
  const auto step = [&](const std::string& flags) {
    const Ran ran = run("emulate job.yaml --device-profile profile.json " + flags);
    EXPECT_EQ(ran.code, 0) << ran.output;
    return json("out-emulated/summary.json").find("median_step_s")->as_double();
  };
  const double equal = step(""), slow = step("--cluster kinds.yaml");
  EXPECT_NEAR(slow / predicted_by("plan.json"), 1, 0.01);
  EXPECT_GT(slow, 1.05 * equal);
  EXPECT_NEAR(step("--straggler 1:2") / slow, 1, 0.02) << "but for the network";
  EXPECT_NEAR(step("--straggler 0:2,1:2") / equal, 2, 1e-6);
  for (const auto& [flags, part] :
       {std::pair("--straggler 2:2", "there is no rank 2"),
        {"--straggler 1", "'1' is not RANK:FACTOR"},
        {"--straggler 1:0", "'1:0' is not RANK:FACTOR"},
        {"--straggler profile", "has times of 0 single ranks, the plan has 2"},
        {"--cluster other.yaml", "other.json: it is of microbatches of 4"},
        {"--cluster measured.yaml --set plan=replicas.json",
         "stage 0: its replicas are on kinds of devices with different profiles"}}) {
    const Ran ran = run("emulate job.yaml --device-profile profile.json " + std::string(flags));
    EXPECT_EQ(ran.code, 2) << ran.output;
    EXPECT_NE(ran.output.find(part), std::string::npos) << ran.output;
  }

  // A kind with a profile of its own, in an emulated run, in a simulation and in a plan.
  EXPECT_NEAR(step("--cluster measured.yaml") / slow, 1, 1e-6);
  const auto simulated = [&](const std::string& cluster) {
    const Ran ran =
        run("simulate --plan plan.json --profile profile.json --format json --cluster " + cluster);
    EXPECT_EQ(ran.code, 0) << ran.output;
    return parse_json(ran.output, "simulate")->find("makespan_s")->as_double();
  };
  EXPECT_NEAR(simulated("measured.yaml") / simulated("kinds.yaml"), 1, 1e-9);
  EXPECT_EQ(run("simulate --plan plan.json --profile profile.json --cluster other.yaml").code, 2);
}

TEST_F(Emulation, RanksDifferAsThoseOfTheProfileDid) {
  const Ran profiled =
      run("profile --model mlp --width 64 --depth 6 --microbatch 8 --ranks 2 --out two.json");
  ASSERT_EQ(profiled.code, 0) << profiled.output;
  EXPECT_NE(profiled.output.find("was the slowest and took "), std::string::npos) << profiled.output;
  Json profile = json("two.json");
  const Json* of_ranks = profile.find("measured")->find("rank_seconds");
  ASSERT_TRUE(of_ranks && of_ranks->size() == 2) << bytes("two.json");
  double mean = profile.find("loss_s")->as_double();
  for (const Json& layer : profile.find("layers")->items())
    for (const char* key : {"forward_s", "backward_input_s", "backward_weight_s"})
      mean += layer.find(key)->as_double();
  EXPECT_NEAR((of_ranks->items()[0].as_double() + of_ranks->items()[1].as_double()) / 2 / mean, 1, 1e-6);

  profile["measured"]["rank_seconds"].items() = {Json(1e-3), Json(3e-3)};
  write("uneven.json", profile.dump(1));
  const auto step = [&](const std::string& straggler) {
    const Ran ran = run("train " + std::string(kModel) +
                        "--stages 2 --microbatches 4 --steps 4 --data synthetic:64 --device emulated --clock "
                        "virtual --device-profile uneven.json --overwrite --output-dir uneven --straggler " +
                        straggler);
    EXPECT_EQ(ran.code, 0) << ran.output;
    return json("uneven/summary.json").find("median_step_s")->as_double();
  };
  EXPECT_NEAR(step("profile") / step("0:0.5,1:1.5"), 1, 1e-9);
  EXPECT_GT(step("profile") / step("0:1"), 1.2);

  profile["measured"]["rank_seconds"].items() = {Json(1e-3)};
  write("uneven.json", profile.dump(1));
  const Ran ran =
      run("train " + std::string(kModel) +
          "--stages 2 --microbatches 4 --steps 4 --data synthetic:64 --device emulated --clock virtual "
          "--device-profile uneven.json");
  EXPECT_EQ(ran.code, 2) << ran.output;
  EXPECT_NE(ran.output.find("has times of 1 ranks, 'ranks' says 2"), std::string::npos) << ran.output;
}

TEST_F(Emulation, WhatCannotBeIsRefused) {
  write("small.yaml",
        "hosts: [{name: a, devices: 1}, {name: b, devices: 1}]\nnetwork: {bandwidth: 1e9}\nmemory: 64KiB\n");
  write("other.tsv", "slow\t\tmlp\t16\t\t\t0\t0.06\n");
  write("faster.tsv", "slow\t\tmlp\t8\t\t\t0\t0.01\n");
  const std::string emulated = std::string(kModel) + "--steps 2 --data synthetic:64 --device emulated ";
  for (const auto& [arguments, code, part] :
       {std::tuple("train " + emulated, 2, std::string("--device-profile")),
        {"train " + emulated + "--device-profile absent.json", 2, "absent.json"},
        {"train --model mlp --width 32 --depth 6 --microbatch 8 --steps 1 --device emulated --device-profile "
         "profile.json",
         2, "layer layers.0.linear has "},
        {"train --model mlp --width 64 --depth 5 --microbatch 8 --steps 1 --device emulated --device-profile "
         "profile.json",
         2, "it has a layer layers.5.linear, the run has none"},
        {"train " + emulated + "--device-profile profile.json --check-finite activations", 2,
         "--check-finite: an emulated device computes no values"},
        {"train --model mlp --depth 7 --microbatch 8 --steps 2 --device emulated --device-profile "
         "profile.json",
         2, "it has no layer layers.6.linear"},
        {"train --model mlp --depth 6 --microbatch 4 --steps 2 --device emulated --device-profile "
         "profile.json",
         2, "give --microbatch 8"},
        {"train " + emulated + "--precision bfloat16 --device-profile profile.json", 2,
         "--precision float32"},
        {"train " + emulated + "--device-profile profile.json --save-weights w.safetensors", 2, "no values"},
        {"train " + emulated + "--device-profile profile.json --stages 2 --emulate-links small.yaml", 1,
         "out of memory on the emulated device of rank "},
        {"train " + std::string(kModel) + "--device-profile profile.json", 2, "give --device emulated"},
        {"train " + std::string(kModel) + "--clock virtual", 2,
         "--clock: says nothing without emulated devices"},
        {"train " + std::string(kModel) + "--jitter 0.1 --emulated-devices 2", 2,
         "--emulated-devices: says nothing without emulated devices"},
        {"evaluate --model mlp --weights x --device emulated", 2, "--device"},
        {"device-profile --profile here.json --table devices.tsv --device fast --out x.json", 3,
         "it has no device fast"},
        {"device-profile --profile here.json --table other.tsv --device slow --out x.json", 3,
         "--extrapolate"},
        {"device-profile --profile here.json --table other.tsv --device slow --extrapolate --out x.json", 0,
         "the time is extrapolated"},
        {"device-table --table devices.tsv", 0, "nothing suspect"},
        {"device-table --table devices.tsv --table other.tsv --format json", 0, "\"suspects\": []"},
        {"device-table --table devices.tsv --table faster.tsv", 3, "they are of other software"},
        {"device-table --table absent.tsv", 3, "absent.tsv"}}) {
    const Ran ran = run(arguments);
    EXPECT_EQ(ran.code, code) << arguments << "\n" << ran.output;
    EXPECT_NE(ran.output.find(part), std::string::npos) << arguments << "\n" << ran.output;
  }
  // A file that may not grow so far is told of, and ends no program by a signal.
  const Ran large = run("device-profile --profile here.json --table devices.tsv --device slow --out y.json",
                        "ulimit -f 1; ");
  EXPECT_LT(large.code, 128) << large.output;
  EXPECT_NE(large.output.find("y.json"), std::string::npos) << large.output;
}

}  // namespace
}  // namespace millrace
