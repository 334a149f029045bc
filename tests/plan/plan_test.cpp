#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/plan/plan.h"

namespace millrace {
namespace {

const std::vector<std::string> kLayers{"a", "b", "c", "d"};

Plan good_plan() {
  return uniform_plan("m", kLayers, 2, 1, 4, ScheduleKind::OneFOneB);
}

struct Case {
  const char* name;
  void (*damage)(Plan&);
  const char* message;
};

TEST(Plan, EveryProblemHasItsMessage) {
  const Case cases[] = {
      {"no stages", [](Plan& p) { p.stages.clear(); }, "has no stages"},
      {"no layers", [](Plan& p) { p.stages[0].layers.clear(); }, "stage 0: has no layers"},
      {"no ranks", [](Plan& p) { p.stages[1].ranks.clear(); }, "stage 1: has no ranks"},
      {"rank twice", [](Plan& p) { p.stages[1].ranks = p.stages[0].ranks; }, "rank 0 is used twice"},
      {"rank gap", [](Plan& p) { p.stages[1].ranks = {RankId(5)}; }, "ranks are not 0..1"},
      {"layer twice", [](Plan& p) { p.stages[1].layers.push_back("a"); }, "layer 'a' is in two places"},
      {"layer missing", [](Plan& p) { p.stages[1].layers.pop_back(); }, "no stage has layer 'd'"},
      {"layer unknown", [](Plan& p) { p.stages[1].layers.push_back("zz"); }, "has no layer 'zz'"},
      {"microbatches", [](Plan& p) { p.microbatches = 0; }, "must be at least 1"},
      {"replicas",
       [](Plan& p) {
         p.stages[1].ranks = {RankId(1), RankId(2)}, p.microbatches = 1;
       },
       "2 replicas for 1 microbatches"},
      {"policy", [](Plan& p) { p.versions = VersionPolicy::Stash; }, "does not go with versions stash"},
      {"model", [](Plan& p) { p.model = "other"; }, "made for model 'other'"},
  };
  EXPECT_TRUE(validate(good_plan(), "m", kLayers).empty());
  for (const Case& c : cases) {
    Plan plan = good_plan();
    c.damage(plan);
    EXPECT_NE(to_string(validate(plan, "m", kLayers)).find(c.message), std::string::npos)
        << c.name << ": " << to_string(validate(plan, "m", kLayers));
  }
}

TEST(Plan, RoundTripsThroughJson) {
  Plan plan = good_plan();
  plan.crossings = {{StageId(0), StageId(1), 4096}};
  plan.predicted_step_s = 0.125;
  const Result<Plan> read = Plan::parse(plan.to_json(), "p");
  ASSERT_TRUE(read) << to_string(read.problems());
  EXPECT_EQ(read->to_json(), plan.to_json());
}

TEST(Plan, ReadsAHandWrittenPlanAndNamesMistakes) {
  EXPECT_TRUE(Plan::parse(
      R"({"model":"m","schedule":"gpipe","microbatches":2,"stages":[{"layers":["a"],"ranks":[0]}]})", "p"));
  const auto bad =
      Plan::parse("{\"model\":\"m\",\n\"schedule\":\"1f2b\",\"microbatches\":2,\"stage\":[]}", "p");
  ASSERT_FALSE(bad);
  const std::string text = to_string(bad.problems());
  EXPECT_NE(text.find("p:2:12: unknown schedule '1f2b'. Hint: did you mean '1f1b'?"), std::string::npos)
      << text;
  EXPECT_NE(text.find("unknown key 'stage'. Hint: did you mean 'stages'?"), std::string::npos) << text;
}

TEST(LayerGraph, RejectsCyclesDuplicatesAndDanglingEdges) {
  const auto layer = [](const char* name) {
    return std::string(R"({"name":")") + name +
           R"(","forward_s":1,"backward_input_s":1,"backward_weight_s":1})";
  };
  const auto graph = [&](const std::string& layers, const std::string& edges) {
    return LayerGraph::parse(
        R"({"format":"millrace-profile-1","model":"m","layers":[)" + layers + R"(],"edges":[)" + edges + "]}",
        "g");
  };
  EXPECT_TRUE(graph(layer("a") + "," + layer("b"), R"({"from":"a","to":"b","bytes":4})"));
  const auto cycle = graph(layer("a") + "," + layer("b"), R"({"from":"a","to":"b"},{"from":"b","to":"a"})");
  ASSERT_FALSE(cycle);
  EXPECT_NE(to_string(cycle.problems()).find("cycle"), std::string::npos);
  EXPECT_FALSE(graph(layer("a") + "," + layer("a"), ""));
  EXPECT_FALSE(graph(layer("a"), R"({"from":"a","to":"x"})"));
}

TEST(ClusterSpec, RoundTripsAndChecks) {
  const ClusterSpec local = ClusterSpec::local(4);
  const auto read = ClusterSpec::parse(local.to_yaml(), "c");
  ASSERT_TRUE(read) << to_string(read.problems());
  EXPECT_EQ(read->num_ranks(), 4);
  EXPECT_EQ(read->to_yaml(), local.to_yaml());
  EXPECT_EQ(ClusterSpec::parse("levels: [{count: 2, bandwidth: 1e9}]\nmemory: 8GiB\n", "c")->memory_per_rank,
            8 * kGiB);
  EXPECT_FALSE(ClusterSpec::parse("levels: [{count: 0, bandwidth: 1e9}]\n", "c"));
  EXPECT_FALSE(
      ClusterSpec::parse("levels: [{count: 2, bandwidth: 1e9}]\nhosts: [{name: a, devices: 3}]\n", "c"));
}

}  // namespace
}  // namespace millrace
