// `millrace plan` and `millrace simulate` as a user types them.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "driver/plan/plan_command.h"
#include "driver/simulate/simulate_command.h"
#include "runtime/base/files.h"
#include "runtime/base/json.h"
#include "runtime/plan/layer_graph.h"
#include "runtime/plan/pipedream_formats.h"
#include "runtime/plan/plan.h"
#include "runtime/plan/smaller_plans.h"
#include "runtime/schedule/schedule.h"
#include "runtime/trace/trace.h"

namespace millrace {
namespace {

constexpr const char* kGraph =
    "node1 -- Input0 -- forward_compute_time=0.500, backward_compute_time=0.000, activation_size=4096.0, "
    "parameter_size=0.000\n"
    "node2 -- Linear(a, b) -- forward_compute_time=1.000, backward_compute_time=2.000, "
    "activation_size=1000.0, "
    "parameter_size=4000.000\n"
    "node3 -- ReLU() -- forward_compute_time=1.000, backward_compute_time=2.000, activation_size=1000.0, "
    "parameter_size=0.000\n"
    "\tnode1 -- node2\n"
    "\tnode2 -- node3";

struct Outcome {
  int code = 0;
  std::string output;
  std::string errors;
};

Outcome run(int (*command)(const std::vector<std::string>&), const std::vector<std::string>& args) {
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  Outcome outcome;
  outcome.code = command(args);
  std::fflush(stdout);
  outcome.output = testing::internal::GetCapturedStdout();
  outcome.errors = testing::internal::GetCapturedStderr();
  return outcome;
}

Json json_of(const Outcome& outcome) {
  const Result<Json> json = parse_json(outcome.output, "stdout");
  EXPECT_TRUE(json) << outcome.output << outcome.errors;
  return json ? *json : Json();
}

class PlanningCommands : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / "millrace_planning_XXXXXX";
    std::string name = folder_.string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string file(const std::string& name, const std::string& content) const {
    std::ofstream(folder_ / name, std::ios::binary) << content;
    return (folder_ / name).string();
  }

  std::string profile() const {
    LayerGraph graph;
    graph.model = "toy";
    graph.microbatch = 2;
    for (int i = 0; i < 6; ++i) {
      graph.nodes.push_back({.name = "layer" + std::to_string(i),
                             .kind = "linear",
                             .forward_s = 0.01,
                             .backward_input_s = 0.01,
                             .backward_weight_s = 0.01,
                             .parameter_bytes = 100'000'000,
                             .activation_bytes = 1000,
                             .saved_bytes = 1000});
      if (i > 0) graph.edges.push_back({i - 1, i, "t" + std::to_string(i), 1000});
    }
    return file("profile.json", graph.to_json());
  }

  std::filesystem::path folder_;
};

TEST_F(PlanningCommands, PipeDreamAnswersWithTheKeysOfARecord) {
  const Outcome outcome =
      run(plan_command, {"--pipedream", "--profile", file("graph.txt", kGraph), "--machines", "2",
                         "--bandwidth", "1e9", "--straight", "--format", "json"});
  ASSERT_EQ(outcome.code, 0) << outcome.errors;
  const Json json = json_of(outcome);
  EXPECT_DOUBLE_EQ(json.find("single_machine_time_s")->as_double(), 0.006);
  EXPECT_DOUBLE_EQ(json.find("pipeline_time_s")->as_double(), 0.003);
  EXPECT_DOUBLE_EQ(json.find("data_parallel_time_s")->as_double(), (0.006 + 4 * 4000 / (1e9 * 2)) / 2);
  ASSERT_EQ(json.find("stages")->size(), 2u);
  const Json& first = json.find("stages")->items()[0];
  EXPECT_DOUBLE_EQ(first.find("compute_time_s")->as_double(), 0.003);
  EXPECT_EQ(first.find("replication")->as_int(), 1);
  ASSERT_EQ(first.find("nodes")->size(), 2u);
  EXPECT_EQ(first.find("nodes")->items()[0].as_string(), "node1");
}

// PipeDream's shipped configurations have the stages of an inner level inside each server.
TEST_F(PlanningCommands, PipeDreamReplicatesInnerStagesInEachServer) {
  for (const std::vector<std::string>& more : {std::vector<std::string>{}, {"--as-original"}}) {
    std::vector<std::string> args{"--pipedream", "--profile", file("graph.txt", kGraph),
                                  "--machines",  "2,4",       "--bandwidth",
                                  "1,1e12",      "--format",  "json"};
    args.insert(args.end(), more.begin(), more.end());
    const Outcome outcome = run(plan_command, args);
    ASSERT_EQ(outcome.code, 0) << outcome.errors;
    std::vector<std::vector<int>> workers;
    const Json json = json_of(outcome);
    for (const Json& stage : json.find("stages")->items()) {
      workers.emplace_back();
      for (const Json& worker : stage.find("workers")->items())
        workers.back().push_back(static_cast<int>(worker.as_int()));
    }
    EXPECT_EQ(workers, (std::vector<std::vector<int>>{{0, 2, 4, 6}, {1, 3, 5, 7}}));
  }
}

TEST_F(PlanningCommands, PipeDreamTableNamesEveryStage) {
  const Outcome outcome = run(plan_command, {"--pipedream", "--profile", file("graph.txt", kGraph),
                                             "--machines", "2", "--bandwidth", "1e9", "--straight"});
  EXPECT_EQ(outcome.code, 0) << outcome.errors;
  EXPECT_NE(outcome.output.find("node1 .. node2"), std::string::npos) << outcome.output;
}

TEST_F(PlanningCommands, WrongUseIsCodeTwoAndUnreadableDataIsThree) {
  const std::string graph = file("graph.txt", kGraph);
  const std::vector<std::vector<std::string>> wrong_use{
      {},
      {"--profile", graph, "--pipedream"},
      {"--profile", graph, "--pipedream", "--machines", "2", "--bandwidth", "1e9,1e9"},
      {"--profile", graph, "--pipedream", "--machines", "1.5", "--bandwidth", "1e9"},
      {"--profile", graph, "--pipedream", "--machines", "2", "--bandwidth", "1e9", "--stages", "2"},
      {"--profile", graph, "--pipedream", "--machines", "2", "--bandwidth", "1e9", "--zero-1"},
      {"--profile", graph, "--pipedream", "--machines", "2", "--bandwidth", "1e9", "--format", "xml"},
      {"--profile", profile(), "--machines", "2"},
      {"--profile", profile(), "--stages", "7"},
      {"--profile", profile(), "--schedule", "zigzag"},
      {"--profile", profile(), "--memory", "1000B"},
      {"--profile", profile(), "--cluster", "/nonexistent/cluster.yaml"},
      {"--profile", profile(), "--out", "/dev/null/plan.json"}};
  for (const auto& args : wrong_use) {
    const Outcome outcome = run(plan_command, args);
    EXPECT_EQ(outcome.code, 2) << testing::PrintToString(args);
    EXPECT_FALSE(outcome.errors.empty());
    EXPECT_TRUE(outcome.output.empty()) << outcome.output;
  }
  const std::string damaged = file("damaged.txt", std::string(kGraph).substr(0, 150));
  EXPECT_EQ(run(plan_command, {"--profile", "/nonexistent/profile.json"}).code, 3);
  EXPECT_EQ(run(plan_command, {"--profile", damaged}).code, 3);
  EXPECT_EQ(
      run(plan_command, {"--profile", damaged, "--pipedream", "--machines", "2", "--bandwidth", "1e9"}).code,
      3);
}

TEST_F(PlanningCommands, ThePlanIsWrittenAndSimulated) {
  const std::string plan_file = (folder_ / "plan.json").string();
  const Outcome planned = run(plan_command, {"--profile", profile(), "--ranks", "2", "--microbatches", "4",
                                             "--schedule", "1f1b", "--out", plan_file, "--format", "json"});
  ASSERT_EQ(planned.code, 0) << planned.errors;
  const Result<Plan> plan = Plan::load(plan_file);
  ASSERT_TRUE(plan) << to_string(plan.problems());
  EXPECT_EQ(plan->num_stages(), 2);  // the weights are too heavy to replicate
  EXPECT_EQ(plan->stages[0].layers.size(), 3u);
  EXPECT_EQ(parse_json(planned.output, "stdout")->dump(), parse_json(plan->to_json(), "plan")->dump());

  const Outcome simulated =
      run(simulate_command, {"--plan", plan_file, "--profile", profile(), "--format", "json"});
  ASSERT_EQ(simulated.code, 0) << simulated.errors;
  EXPECT_DOUBLE_EQ(json_of(simulated).find("makespan_s")->as_double(), plan->predicted_step_s);
  const Outcome from_predictions = run(simulate_command, {"--plan", plan_file, "--format", "json"});
  ASSERT_EQ(from_predictions.code, 0) << from_predictions.errors;
  EXPECT_NEAR(json_of(from_predictions).find("makespan_s")->as_double(), plan->predicted_step_s, 1e-9);

  EXPECT_EQ(run(simulate_command, {"--plan", plan_file, "--stages", "3"}).code, 2);
  EXPECT_EQ(run(simulate_command, {"--plan", "/nonexistent/plan.json"}).code, 2);
  EXPECT_EQ(run(simulate_command, {"--plan", plan_file, "--profile", "/nonexistent/profile.json"}).code, 3);
}

TEST_F(PlanningCommands, ExplainsDrawsAndWritesPipeDreamsConf) {
  const std::string svg = (folder_ / "plan.svg").string();
  const std::string conf = (folder_ / "conf.json").string();
  const Outcome outcome = run(plan_command, {"--profile", profile(), "--ranks", "2", "--chunks", "1",
                                             "--explain", "--draw", svg, "--emit-conf", conf});
  ASSERT_EQ(outcome.code, 0) << outcome.errors;
  for (const char* part : {"searched: every cut", "proved", "= compute",
                           "runner-up: ", "with links half as fast", "link   0 -> 1", "bubble"}) {
    EXPECT_NE(outcome.output.find(part), std::string::npos) << part << "\n" << outcome.output;
  }
  const Result<std::string> drawn = read_file(svg);
  ASSERT_TRUE(drawn);
  EXPECT_EQ(drawn->rfind("<svg", 0), 0u);
  EXPECT_NE(drawn->find("Stage 1"), std::string::npos);
  const Result<std::string> text = read_file(conf);
  ASSERT_TRUE(text);
  const Result<PipeDreamConf> read = parse_pipedream_conf(*text, conf);
  ASSERT_TRUE(read) << to_string(read.problems());
  EXPECT_EQ(read->module_to_stage_map, (std::vector<int>{0, 1, 1}));
  EXPECT_EQ(read->stage_to_rank_map.at(1), std::vector<int>{1});
  const Json json =
      json_of(run(plan_command, {"--profile", profile(), "--ranks", "2", "--explain", "--format", "json"}));
  ASSERT_NE(json.find("plan"), nullptr);
  const Json* parts = json.find("explanation")->find("parts");
  double sum = 0;
  for (const char* part : {"compute_s", "imbalance_s", "bubble_s", "update_s", "reduce_s", "transfer_s"}) {
    sum += parts->find(part)->as_double();
  }
  EXPECT_NEAR(sum, parts->find("step_s")->as_double(), 1e-12);
}

TEST_F(PlanningCommands, EveryScheduleIsPlannedAndSimulated) {
  const std::string plan_file = (folder_ / "plan.json").string();
  for (const char* schedule : {"gpipe", "1f1b", "zb-h1", "zb-h2", "interleaved", "zb-v", "v-half", "v-min",
                               "dualpipev", "auto-order", "pipedream", "pipedream-vsync", "pipedream-2bw"}) {
    const Outcome planned = run(plan_command, {"--profile", profile(), "--ranks", "2", "--microbatches", "4",
                                               "--schedule", schedule, "--out", plan_file});
    ASSERT_EQ(planned.code, 0) << schedule << ": " << planned.errors;
    EXPECT_NE(planned.output.find(", " + std::string(schedule) + ", "), std::string::npos) << planned.output;
    const Result<Plan> plan = Plan::load(plan_file);
    ASSERT_TRUE(plan) << to_string(plan.problems());
    EXPECT_TRUE(validate(*plan).empty());
    const Outcome simulated =
        run(simulate_command, {"--plan", plan_file, "--profile", profile(), "--format", "json"});
    ASSERT_EQ(simulated.code, 0) << schedule << ": " << simulated.errors;
    if (!is_asynchronous(plan->schedule)) {
      EXPECT_NEAR(json_of(simulated).find("makespan_s")->as_double(), plan->predicted_step_s, 1e-12)
          << schedule;
    }
  }
  EXPECT_EQ(run(plan_command, {"--profile", profile(), "--ranks", "2", "--schedule", "custom"}).code, 2);
  const Outcome chunks = run(plan_command, {"--profile", profile(), "--ranks", "2", "--schedule",
                                            "interleaved", "--chunks", "3", "--emit-conf", plan_file});
  EXPECT_EQ(chunks.code, 2);
  EXPECT_NE(chunks.errors.find("--chunks 1"), std::string::npos) << chunks.errors;
}

TEST_F(PlanningCommands, NamesTheRunnerUpWithoutBeingAsked) {
  const Outcome outcome = run(plan_command, {"--profile", profile(), "--ranks", "2", "--microbatches", "8"});
  ASSERT_EQ(outcome.code, 0) << outcome.errors;
  EXPECT_NE(outcome.output.find("runner-up: "), std::string::npos) << outcome.output;
}

// Blocks of docs/planning.md that begin with "    $ millrace plan": what is shown is what is printed.
TEST_F(PlanningCommands, TheExamplesOfThePlanningPageAreRight) {
  const std::filesystem::path root = MILLRACE_SOURCE_DIR;
  std::ifstream page(root / "docs/planning.md");
  std::string line;
  int examples = 0;
  std::set<std::string> read;
  std::getline(page, line);
  while (page) {
    if (line.rfind("    $ millrace plan ", 0) != 0) {
      std::getline(page, line);
      continue;
    }
    std::istringstream words(line.substr(std::string("    $ millrace plan ").size()));
    std::vector<std::string> args;
    for (std::string word; words >> word;) {
      const bool path = word.rfind("docs/examples/", 0) == 0;
      if (path) read.insert(word);
      args.push_back(path ? (root / word).string() : word);
    }
    std::string shown;
    while (std::getline(page, line) && line.rfind("    ", 0) == 0) shown += line.substr(4) + "\n";
    const Outcome outcome = run(plan_command, args);
    EXPECT_EQ(outcome.output + outcome.errors, shown);
    ++examples;
  }
  EXPECT_EQ(examples, 4);
  for (const auto& entry : std::filesystem::directory_iterator(root / "docs/examples")) {
    if (!entry.is_regular_file()) continue;
    EXPECT_TRUE(read.contains("docs/examples/" + entry.path().filename().string())) << entry.path();
  }
}

TEST_F(PlanningCommands, APlanTakesThePlaceOfAPlanAlone) {
  const std::string path = (folder_ / "notes.txt").string();
  ASSERT_TRUE(write_file_atomically(path, "weeks of work\n"));
  const Outcome refused = run(plan_command, {"--profile", profile(), "--ranks", "2", "--out", path});
  EXPECT_EQ(refused.code, 2) << refused.errors;
  EXPECT_NE(refused.errors.find("is there, and is no file of millrace-plan"), std::string::npos)
      << refused.errors;
  EXPECT_EQ(*read_file(path), "weeks of work\n");
  const std::string plan = (folder_ / "again.json").string();
  for (int i = 0; i < 2; ++i)
    EXPECT_EQ(run(plan_command, {"--profile", profile(), "--ranks", "2", "--out", plan}).code, 0);
}

TEST_F(PlanningCommands, ComparesTwoPlansUnderOneProfile) {
  const std::string a = (folder_ / "a.json").string();
  const std::string b = (folder_ / "b.json").string();
  ASSERT_EQ(run(plan_command, {"--profile", profile(), "--ranks", "2", "--out", a}).code, 0);
  ASSERT_EQ(run(plan_command, {"--profile", profile(), "--ranks", "2", "--stages", "1", "--out", b}).code, 0);
  const Outcome text = run(plan_command, {"--profile", profile(), "--ranks", "2", "--compare", a, b});
  ASSERT_EQ(text.code, 0) << text.errors;
  EXPECT_NE(text.output.find("the second takes"), std::string::npos) << text.output;
  const Json json =
      json_of(run(plan_command, {"--profile", profile(), "--compare=" + a, b, "--format", "json"}));
  const Json::Array& plans = json.find("plans")->items();
  ASSERT_EQ(plans.size(), 2u);
  EXPECT_LT(plans[0].find("predicted_step_s")->as_double(), plans[1].find("predicted_step_s")->as_double());
  EXPECT_EQ(run(plan_command, {"--profile", profile(), "--compare", a}).code, 2);
  EXPECT_EQ(run(plan_command, {"--profile", profile(), "--ranks", "1", "--compare", a, b}).code, 2);
  EXPECT_EQ(run(plan_command, {"--profile", profile(), "--compare", a, "/nonexistent/plan.json"}).code, 2);
}

TEST_F(PlanningCommands, PlansPipeDreamGraphsAndMixedClustersInOurMode) {
  const std::string graph = file("graph.txt", kGraph);
  EXPECT_EQ(run(plan_command, {"--profile", graph, "--ranks", "2"}).code, 0);
  const std::string cluster = file("cluster.yaml",
                                   "kinds: [{name: big, speed: 2}, {name: small, profile: small.txt}]\n"
                                   "hosts:\n  - {name: a, kind: big}\n  - {name: b, kind: small}\n"
                                   "network: {bandwidth: 1e9, latency: 1e-5}\n");
  EXPECT_EQ(run(plan_command, {"--profile", graph, "--cluster", cluster}).code, 3);  // small.txt is not there
  file("small.txt", kGraph);
  const Outcome mixed = run(plan_command, {"--profile", graph, "--cluster", cluster});
  EXPECT_EQ(mixed.code, 0) << mixed.errors;
  EXPECT_EQ(run(plan_command, {"--profile", profile(), "--cluster", cluster}).code,
            2);  // a profile of another model
}

TEST_F(PlanningCommands, TheBatchIsFixedAndComparedAsOne) {
  const std::string path = profile();  // microbatches of 2
  const auto microbatches = [&](const std::vector<std::string>& more) {
    std::vector<std::string> args{"--profile", path, "--ranks", "8", "--format", "json"};
    args.insert(args.end(), more.begin(), more.end());
    const Outcome outcome = run(plan_command, args);
    EXPECT_EQ(outcome.code, 0) << outcome.errors;
    return json_of(outcome).find("microbatches")->as_int();
  };
  EXPECT_EQ(microbatches({}), 8);  // one for each rank
  EXPECT_EQ(microbatches({"--batch", "32"}), 16);
  EXPECT_EQ(microbatches({"--microbatches", "4"}), 4);
  const Outcome odd = run(plan_command, {"--profile", path, "--ranks", "2", "--batch", "33"});
  EXPECT_EQ(odd.code, 2);
  EXPECT_NE(odd.errors.find("--batch 32 or 34"), std::string::npos) << odd.errors;
  EXPECT_EQ(run(plan_command, {"--profile", path, "--batch", "32", "-m", "4"}).code, 2);
  const Outcome chosen = run(plan_command, {"--profile", path, "--ranks", "4", "-m", "0", "--explain"});
  EXPECT_NE(chosen.errors.find("--batch SAMPLES"), std::string::npos) << chosen.errors;
  EXPECT_EQ(chosen.output.find("a microbatch;"), std::string::npos) << "others have another batch\n"
                                                                    << chosen.output;
}

TEST_F(PlanningCommands, SaysWhatBoundedNothingAndWhatKeepsRanksIdle) {
  const std::string path = profile();
  const Outcome free = run(plan_command, {"--profile", path, "--ranks", "2"});
  EXPECT_NE(free.errors.find("nothing bounded this plan"), std::string::npos) << free.errors;
  for (const std::vector<std::string>& bound :
       {std::vector<std::string>{"--memory", "8GiB"}, {"--device", "t4-16g"}}) {
    std::vector<std::string> args{"--profile", path, "--ranks", "2"};
    args.insert(args.end(), bound.begin(), bound.end());
    const Outcome outcome = run(plan_command, args);
    EXPECT_EQ(outcome.code, 0) << outcome.errors;
    EXPECT_EQ(outcome.errors, "");
  }
  const Outcome few = run(plan_command, {"--profile", path, "--ranks", "8", "-m", "2", "--device", "t4-16g"});
  EXPECT_NE(few.errors.find("2 microbatches for 8 ranks keep them idle"), std::string::npos) << few.errors;
  const Outcome unknown = run(plan_command, {"--profile", path, "--device", "h100-80gb"});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_NE(unknown.errors.find("did you mean 'h100-80g'?"), std::string::npos) << unknown.errors;
  EXPECT_EQ(run(plan_command, {"--profile", path, "--memory", "0B"}).code, 2);
}

TEST_F(PlanningCommands, PlansAheadForLostHosts) {
  const std::string path = profile(), out = (folder_ / "plan.json").string();
  const std::string cluster = file("cluster.yaml",
                                   "memory: 2GB\nhosts: [{name: a, devices: 2, bandwidth: 1e9}, {name: b}, "
                                   "{name: c}]\nnetwork: {bandwidth: 1e9}\n");
  const std::vector<std::string> args{"--profile", path, "--cluster", cluster, "--out", out, "--smaller"};
  const auto planned = [&](std::vector<std::string> more) {
    more.insert(more.begin(), args.begin(), args.end());
    return run(plan_command, more);
  };
  const Outcome two = planned({"2", "-m", "6", "--schedule", "1f1b"});
  ASSERT_EQ(two.code, 0) << two.errors;
  EXPECT_NE(two.output.find("without 2 of the hosts: 1 stage on 1 ranks"), std::string::npos) << two.output;
  const Result<Plan> whole = Plan::load(out);
  ASSERT_TRUE(whole);
  for (const auto& [lost, ranks] : {std::pair(1, 2), {2, 1}}) {
    const Result<Plan> plan = Plan::load(smaller_plan_file(out, lost));
    ASSERT_TRUE(plan) << to_string(plan.problems());
    EXPECT_EQ(plan->num_ranks(), ranks) << "the host with two devices goes first";
    EXPECT_EQ(plan->microbatches, 6);
    EXPECT_EQ(plan->graph_fingerprint, whole->graph_fingerprint);
  }
  EXPECT_NE(planned({"3"}).errors.find("--smaller 3: cluster: of 3 hosts none is left"), std::string::npos)
      << planned({"3"}).errors;

  // 600 MB of weights, with gradients and momentum 1.8 GB: they fit one rank of 2 GB, but not one of 1 GB.
  std::filesystem::remove(out);
  const Outcome full = planned({"2", "--memory", "1GB"});
  EXPECT_EQ(full.code, 2);
  EXPECT_NE(full.errors.find("--smaller 2: "), std::string::npos) << full.errors;
  EXPECT_FALSE(std::filesystem::exists(out)) << "all or nothing";
  const Outcome nowhere = run(plan_command, {"--profile", path, "--ranks", "3", "--smaller", "1"});
  EXPECT_EQ(nowhere.code, 2);
  EXPECT_NE(nowhere.errors.find("give --out plan.json"), std::string::npos) << nowhere.errors;
  EXPECT_EQ(planned({"1", "--jobs", "2"}).code, 2);
}

// The device's memory is what forbids: 600 MB of weights, gradients and momentum take 1.8 GB on a rank.
TEST_F(PlanningCommands, ADeviceBoundsLikeItsMemory) {
  LayerGraph graph;
  graph.model = "large";
  graph.nodes.push_back({.name = "l",
                         .kind = "x",
                         .forward_s = 1,
                         .backward_input_s = 1,
                         .backward_weight_s = 1,
                         .parameter_bytes = 6'000'000'000});
  const std::string path = file("large.json", graph.to_json());
  EXPECT_EQ(run(plan_command, {"--profile", path, "--ranks", "1", "--device", "h100-80g"}).code, 0);
  EXPECT_EQ(run(plan_command, {"--profile", path, "--ranks", "1", "--device", "t4-16g"}).code, 2);
}

// Four equal layers on two ranks: the first stage keeps two microbatches of each of its layers, so that only
// one layer and three fit, or two and two of which the first ones are computed again.
TEST_F(PlanningCommands, ALimitThatCostsTimeNamesTheFlagThatHelps) {
  LayerGraph graph;
  graph.model = "wide";
  for (int i = 0; i < 4; ++i) {
    graph.nodes.push_back({.name = "l" + std::to_string(i),
                           .kind = "x",
                           .forward_s = 0.01,
                           .backward_input_s = 0.01,
                           .backward_weight_s = 0.01,
                           .parameter_bytes = 1000,
                           .activation_bytes = 1000,
                           .saved_bytes = 1'000'000'000});
    if (i > 0) graph.edges.push_back({.producer = i - 1, .consumer = i, .tensor = "t", .bytes = 1000});
  }
  const std::string path = file("wide.json", graph.to_json());
  std::vector<std::string> args{"--profile", path, "--ranks", "2", "-m", "8", "--memory", "3500MB"};
  const Outcome slow = run(plan_command, args);
  EXPECT_EQ(slow.code, 0) << slow.errors;
  EXPECT_NE(slow.errors.find("note: the limit of memory costs time: with --recompute auto "),
            std::string::npos)
      << slow.errors;
  args.insert(args.end(), {"--recompute", "auto"});
  EXPECT_EQ(run(plan_command, args).errors, "");
}

TEST_F(PlanningCommands, AWorkLimitThatWasMetIsNamed) {
  LayerGraph graph;
  graph.model = "long";
  for (int i = 0; i < 120; ++i) {
    const double seconds = 0.001 * (1 + i * 7 % 11);
    graph.nodes.push_back({.name = "l" + std::to_string(i),
                           .kind = "x",
                           .forward_s = seconds,
                           .backward_input_s = seconds,
                           .backward_weight_s = seconds,
                           .parameter_bytes = 50'000'000,
                           .activation_bytes = 1000});
    if (i > 0) graph.edges.push_back({.producer = i - 1, .consumer = i, .tensor = "t", .bytes = 1000});
  }
  const std::string path = file("long.json", graph.to_json());
  const Outcome few = run(plan_command, {"--profile", path, "--ranks", "6", "-m", "12", "--effort", "0.01"});
  EXPECT_NE(few.output.find("a work limit was met: --effort 0.04 looks further"), std::string::npos)
      << few.output;
  const Outcome all = run(plan_command, {"--profile", profile(), "--ranks", "2"});
  EXPECT_EQ(all.output.find("a work limit was met"), std::string::npos) << all.output;
}

TEST_F(PlanningCommands, AJobOfManyStepsTakesTheStepOfARun) {
  const std::string path = profile();
  const auto step = [&](const char* steps) {
    const Json plan = json_of(run(plan_command, {"--profile", path, "--ranks", "4", "-m", "8", "--straight",
                                                 "--steps", steps, "--format", "json"}));
    return std::pair(plan.find("predicted_step_s")->as_double(),
                     plan.find("predicted_run_step_s")->as_double());
  };
  const auto [one, one_in_run] = step("1");
  const auto [many, many_in_run] = step("1000");
  EXPECT_LE(many_in_run, one_in_run * (1 + 1e-9));
  EXPECT_GE(many, one * (1 - 1e-9));
  EXPECT_EQ(run(plan_command, {"--profile", path, "--steps", "0"}).code, 2);
}

TEST_F(PlanningCommands, ALeadWithinTheProfilesSpreadIsNamed) {
  Result<LayerGraph> graph = LayerGraph::load(profile());
  ASSERT_TRUE(graph);
  graph->measured = {.ranks = 2, .blocks = 5, .spread = 0.5};
  const std::string path = file("measured.json", graph->to_json());
  const Outcome outcome =
      run(plan_command, {"--profile", path, "--ranks", "2", "--out", (folder_ / "p.json").string()});
  EXPECT_NE(outcome.output.find("within the profile's spread of 50.0 %"), std::string::npos)
      << outcome.output;
  EXPECT_NE(outcome.output.find("the profile's 5 blocks differ by +-50.0 %: "), std::string::npos)
      << outcome.output;
  EXPECT_NE(run(simulate_command, {"--plan", (folder_ / "p.json").string()})
                .output.find("blocks differ by +-50.0 %: "),
            std::string::npos)
      << "what follows from the plan has the interval too";
  EXPECT_DOUBLE_EQ(Plan::load((folder_ / "p.json").string())->predicted_spread, 0.5);
  EXPECT_EQ(run(plan_command, {"--profile", profile(), "--ranks", "2"}).output.find("spread"),
            std::string::npos);
}

// Two stages of which the second takes twice what the profile says: planned again, it gets fewer layers.
TEST_F(PlanningCommands, PlansAgainFromARun) {
  const std::string path = profile();
  const std::string run_folder = (folder_ / "run").string();
  std::filesystem::create_directory(run_folder);
  ASSERT_EQ(run(plan_command, {"--profile", path, "--ranks", "2", "--straight", "--schedule", "1f1b", "-m",
                               "4", "--out", run_folder + "/plan.json"})
                .code,
            0);
  for (int rank = 0; rank < 2; ++rank) {
    std::vector<Span> spans;
    std::int64_t now = 0;
    const std::int64_t unit = rank == 0 ? 30'000'000 : 60'000'000;  // nanoseconds of three layers
    for (int step = 0; step < 4; ++step) {
      for (int m = 0; m < 4; ++m) {
        spans.push_back(
            {SpanKind::Forward, static_cast<std::int16_t>(rank), -1, 4 * step + m, step, now, now + unit});
        spans.push_back({SpanKind::Backward, static_cast<std::int16_t>(rank), -1, 4 * step + m, step,
                         now + unit, now + 3 * unit});
        now += 3 * unit;
      }
      spans.push_back({SpanKind::Update, static_cast<std::int16_t>(rank), -1, 4 * step, step, now, now + 1});
      now += 1;
    }
    file("run/trace.rank" + std::to_string(rank) + ".json", spans_to_json(spans));
  }
  const Outcome again =
      run(plan_command, {"--from-run", run_folder, "--profile", path, "--ranks", "2", "--straight",
                         "--schedule", "1f1b", "-m", "4", "--format", "json"});
  ASSERT_EQ(again.code, 0) << again.errors;
  const Json plan = json_of(again);
  EXPECT_EQ(plan.find("stages")->items()[0].find("layers")->size(), 4u) << again.output;
  EXPECT_NEAR(plan.find("stages")->items()[1].find("forward_s")->as_double(), 0.04, 1e-6);
  EXPECT_EQ(run(plan_command, {"--from-run", run_folder, "--ranks", "2"}).code,
            3);  // the run's folder has no profile.json
  std::filesystem::remove(run_folder + "/trace.rank1.json");
  const Outcome missing = run(plan_command, {"--from-run", run_folder, "--profile", path, "--ranks", "2"});
  EXPECT_EQ(missing.code, 3);
  EXPECT_NE(missing.errors.find("trace.rank1.json"), std::string::npos) << missing.errors;
}

TEST_F(PlanningCommands, SimulatesPlansOfPipeDreamsGraphs) {
  const std::string graph = file("graph.txt", kGraph);
  const std::string plan = (folder_ / "plan.json").string();
  const Outcome planned =
      run(plan_command, {"--profile", graph, "--ranks", "2", "--straight", "--out", plan});
  ASSERT_EQ(planned.code, 0) << planned.errors;
  EXPECT_NE(planned.output.find("loading: 0.500 ms a microbatch"), std::string::npos) << planned.output;
  EXPECT_EQ(planned.output.find("node1"), std::string::npos) << "the input is no layer";
  EXPECT_EQ(run(simulate_command, {"--plan", plan, "--profile", graph}).code, 0);
}

TEST_F(PlanningCommands, WrongPlansAndNamesAreShownSafely) {
  const std::string path = profile();
  std::string text = *read_file([&] {
    const std::string plan = (folder_ / "plan.json").string();
    EXPECT_EQ(run(plan_command, {"--profile", path, "--ranks", "2", "--out", plan}).code, 0);
    return plan;
  }());
  text.replace(text.find("layer0"), 6, "layerX");
  const std::string wrong = file("wrong.json", text);
  const Outcome refused = run(simulate_command, {"--plan", wrong, "--profile", path});
  EXPECT_EQ(refused.code, 2);
  std::istringstream lines(refused.errors);
  for (std::string line; std::getline(lines, line);)
    EXPECT_NE(line.find("wrong.json"), std::string::npos) << line;
  std::string graph = kGraph;
  graph.replace(graph.find("2.000"), 5, "-2.00");
  const Outcome below = run(plan_command, {"--profile", file("negative.txt", graph), "--ranks", "2"});
  EXPECT_EQ(below.code, 3);
  EXPECT_NE(below.errors.find("negative.txt:2:"), std::string::npos) << below.errors;
  const Outcome control = run(plan_command, {"--profile", file("e.txt", "a\x1b[31m -- b"), "--ranks", "2"});
  EXPECT_EQ(control.code, 3);
  EXPECT_EQ(control.errors.find('\x1b'), std::string::npos);
  graph = kGraph;
  graph.insert(graph.find("node3 --"), "\x1b]0;title\x07");
  graph.replace(graph.rfind("node3"), 5, "\x1b]0;title\x07node3");
  const Outcome named =
      run(plan_command, {"--profile", file("named.txt", graph), "--ranks", "2", "--straight"});
  EXPECT_EQ(named.code, 0) << named.errors;
  EXPECT_EQ((named.output + named.errors).find('\x1b'), std::string::npos);
  EXPECT_NE(named.output.find("\\x1b"), std::string::npos) << named.output;
}

TEST_F(PlanningCommands, HelpSaysEachThingOnce) {
  const std::string help = run(simulate_command, {"--help", "all"}).output;
  const std::size_t first = help.find("May be repeated.");
  EXPECT_NE(first, std::string::npos);
  EXPECT_EQ(help.find("May be repeated.", first + 1), std::string::npos);
}

TEST_F(PlanningCommands, RefusalsNameChangesThatWork) {
  const Outcome refused = run(plan_command, {"--profile", profile(), "--ranks", "2", "--memory", "1000B"});
  EXPECT_EQ(refused.code, 2);
  const std::size_t at = refused.errors.find("--memory ", refused.errors.find("Hint"));
  ASSERT_NE(at, std::string::npos) << refused.errors;
  const std::string least = refused.errors.substr(at + 9, refused.errors.find(' ', at + 9) - at - 9);
  EXPECT_EQ(run(plan_command, {"--profile", profile(), "--ranks", "2", "--memory", least}).code, 0) << least;
}

TEST_F(PlanningCommands, SimulateGivesTheKnownFigures) {
  const std::pair<const char*, std::vector<int>> cases[] = {{"gpipe", {8, 8, 8, 8}}, {"1f1b", {4, 3, 2, 1}}};
  for (const auto& [schedule, stash] : cases) {
    const Json json =
        json_of(run(simulate_command, {"--schedule", schedule, "--stages", "4", "--microbatches", "8",
                                       "--forward", "1", "--backward", "2", "--format", "json"}));
    EXPECT_DOUBLE_EQ(json.find("makespan_s")->as_double(), 33);
    const Json::Array& ranks = json.find("ranks")->items();
    ASSERT_EQ(ranks.size(), 4u);
    for (std::size_t r = 0; r < 4; ++r) {
      EXPECT_NEAR(ranks[r].find("bubble_fraction")->as_double(), 9.0 / 33, 1e-12);
      EXPECT_EQ(ranks[r].find("peak_stash")->as_double(), stash[r]);
      EXPECT_EQ(ranks[r].find("stage")->as_int(), static_cast<int>(r));
    }
  }
}

TEST_F(PlanningCommands, SimulateDrawsAndPrintsTheSchedule) {
  const std::string picture = (folder_ / "schedule.svg").string();
  const std::vector<std::string> shape{"--stages", "2", "--microbatches", "4", "--replicas", "2,1"};
  std::vector<std::string> args = shape;
  args.insert(args.end(), {"--print-schedule", "--draw", picture, "--format", "json"});
  const Json json = json_of(run(simulate_command, args));
  const Result<Schedule> schedule = parse_schedule(json.find("schedule_text")->as_string(), "stdout");
  ASSERT_TRUE(schedule) << to_string(schedule.problems());
  EXPECT_EQ(schedule->ranks.size(), 3u);
  std::stringstream svg;
  svg << std::ifstream(picture).rdbuf();
  EXPECT_NE(svg.str().find("<svg"), std::string::npos);

  const Outcome text = run(simulate_command, shape);
  EXPECT_EQ(text.code, 0);
  EXPECT_NE(text.output.find("makespan"), std::string::npos) << text.output;
}

TEST_F(PlanningCommands, SimulateRefusesWrongShapes) {
  const std::vector<std::vector<std::string>> wrong{
      {"--stages", "0"},
      {"--stages", "2,3"},  // without --sweep
      {"--schedule", "gpipe,1f1b"},
      {"--stages", "2", "--replicas", "1,2,3"},
      {"--stages", "2", "--replicas", "1,0"},
      {"--stages", "2", "--microbatches", "2", "--replicas", "4,1"},
      {"--forward", "-1"},
      {"--schedule", "zigzag"},
      {"--profile", "p.json"},
      {"--draw", "/dev/null/picture.svg"}};
  for (const auto& args : wrong) {
    const Outcome outcome = run(simulate_command, args);
    EXPECT_EQ(outcome.code, 2) << testing::PrintToString(args);
    EXPECT_FALSE(outcome.errors.empty()) << testing::PrintToString(args);
  }
}

TEST_F(PlanningCommands, HelpHasAnExample) {
  for (auto* command : {plan_command, simulate_command}) {
    const Outcome outcome = run(command, {"--help"});
    EXPECT_EQ(outcome.code, 0);
    EXPECT_NE(outcome.output.find("millrace "), std::string::npos);
  }
}

}  // namespace
}  // namespace millrace
