#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/plan/plan.h"
#include "runtime/plan/smaller_plans.h"

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

TEST(Plan, SaysWhatItWasMadeForAndWhatIsNot) {
  Plan plan = good_plan();
  EXPECT_EQ(plan.to_json().find("planned_for"), std::string::npos);
  plan.planned_for = {"bfloat16", 32, {{"source", 8, 12, 10}}, {"a:2", "b:1"}};
  const Result<Plan> read = Plan::parse(plan.to_json(), "p");
  ASSERT_TRUE(read) << to_string(read.problems());
  EXPECT_EQ(read->planned_for, plan.planned_for);
  for (const auto& [from, to] :
       {std::pair("\"microbatch\": 32", "\"microbatch\": 0"), std::pair("\"least\": 8", "\"least\": -8"),
        std::pair("\"dimension\"", "\"dimensoin\"")}) {
    std::string text = plan.to_json();
    const std::size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << text;
    EXPECT_FALSE(Plan::parse(text.replace(at, std::string(from).size(), to), "p")) << to;
  }

  const auto said = [&](const PlannedFor& run) {
    const OtherThanPlanned other = compare(plan.planned_for, run);
    std::string text = to_string(other.problems);
    for (const std::string& note : other.notes) text += "note: " + note;
    return text;
  };
  EXPECT_EQ(said({"bfloat16", 32, {}}), "");
  EXPECT_EQ(said({"bfloat16", 32, {{"source", 1, 40, 10.9}}}), "");
  EXPECT_EQ(said({"bfloat16", 32, {{"target", 1, 40, 30}}}), "");
  EXPECT_NE(said({"float32", 32, {}})
                .find("the plan was made for precision bfloat16, the run computes in "
                      "float32. Hint: give --precision bfloat16"),
            std::string::npos)
      << said({"float32", 32, {}});
  EXPECT_TRUE(said({"bfloat16", 16, {}}).starts_with("note: its predictions do not hold"));
  EXPECT_NE(said({"bfloat16", 16, {}}).find("microbatches of 32 samples, the run has 16"), std::string::npos);
  EXPECT_NE(said({"bfloat16", 32, {{"source", 2, 9, 5}}})
                .find("source 8..12 (mean 10.0), this data has source 2..9 (mean 5.0)"),
            std::string::npos);
  EXPECT_TRUE(compare(plan.planned_for, {"bfloat16", 32, {{"source", 2, 9, 5}}}, 7)
                  .notes.at(0)
                  .ends_with("profile with this --data and --microbatches 7, and plan again"));
  EXPECT_TRUE(compare({}, {"float32", 16, {}}).notes.empty());  // an older plan says nothing
  EXPECT_TRUE(compare({}, {"float32", 16, {}}).problems.empty());
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
  const auto versions = [](const std::string& schedule, const std::string& policy) {
    const auto plan = Plan::parse(R"({"model":"m","schedule":")" + schedule + R"(","versions":")" + policy +
                                      R"(","microbatches":2,"stages":[{"layers":["a"],"ranks":[0]}]})",
                                  "p");
    return plan ? "" : to_string(plan.problems());
  };
  EXPECT_EQ(versions("1f1b", "flush") + versions("pipedream", "stash"), "");
  EXPECT_NE(versions("1f1b", "stash").find("schedule 1f1b does not go with versions stash. Hint: use flush"),
            std::string::npos);
  EXPECT_NE(versions("pipedream", "flush").find("Hint: use stash"), std::string::npos);
  EXPECT_NE(versions("1f1b", "both").find("expected flush or stash"), std::string::npos);
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

TEST(LayerGraph, KeepsTheLengthsItHoldsFor) {
  LayerGraph graph{.model = "m", .dimensions = {"source", "target"}};
  graph.nodes = {{.name = "a", .forward_s = 1}};
  EXPECT_EQ(graph.lengths_text(), "");
  EXPECT_EQ(graph.length_factors(), std::vector<double>{1.0});
  graph.microbatches = {{{8, 9}, 1.0}, {{12, 9}, 3.0}};
  EXPECT_EQ(graph.lengths_text(), "source 8..12 (mean 10.0), target 9");
  EXPECT_EQ(graph.length_factors(), (std::vector<double>{0.5, 1.5}));
  const Result<LayerGraph> again = LayerGraph::parse(graph.to_json(), "p");
  ASSERT_TRUE(again) << to_string(again.problems());
  EXPECT_EQ(again->to_json(), graph.to_json());
  for (const auto& [from, to, said] :
       {std::tuple("[\n     8,\n     9\n    ]", "[8]", "has 1 lengths, there are 2 dimensions"),
        std::tuple("[\n     8,\n     9\n    ]", "[8, -1]", "is not a length"),
        std::tuple("\"seconds\": 1", "\"seconds\": -1", "seconds")}) {
    std::string text = graph.to_json();
    const std::size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << text;
    text.replace(at, std::string(from).size(), to);
    const Result<LayerGraph> bad = LayerGraph::parse(text, "p");
    ASSERT_FALSE(bad) << to;
    EXPECT_NE(to_string(bad.problems()).find(said), std::string::npos) << to_string(bad.problems());
  }
}

TEST(LayerGraph, KeepsWhatEachLayerTookWithEachMicrobatch) {
  LayerGraph graph{.model = "m", .loss_s = 0.5, .dimensions = {"source"}};
  graph.nodes = {{.name = "a", .forward_s = 1, .backward_input_s = 2, .backward_weight_s = 4},
                 {.name = "b", .forward_s = 3}};
  graph.edges = {{0, 1, "t", 100}};
  EXPECT_TRUE(graph.by_microbatch().empty());
  graph.microbatches = {{{8}, 1.0}, {{12}, 3.0}};
  // A profile that has one number for each microbatch: all times follow it.
  std::vector<LayerGraph> each = graph.by_microbatch();
  ASSERT_EQ(each.size(), 2u);
  EXPECT_DOUBLE_EQ(each[0].nodes[0].forward_s, 0.5);
  EXPECT_DOUBLE_EQ(each[1].nodes[1].forward_s, 4.5);
  EXPECT_DOUBLE_EQ(each[1].loss_s, 0.75);
  EXPECT_EQ(each[1].edges[0].bytes, 100);

  graph.microbatches[0].loss_s = 0.2, graph.microbatches[1].loss_s = 0.8;
  graph.nodes[0].of_microbatches = {{0.5, 1, 8}, {1.5, 3, 0}};
  graph.nodes[1].of_microbatches = {{4, 0, 0}, {2, 0, 0}};
  graph.edges[0].of_microbatches = {60, 140};
  graph.nodes[1].forward_s = 6;  // a run has scaled the layer
  const Result<LayerGraph> again = LayerGraph::parse(graph.to_json(), "p");
  ASSERT_TRUE(again) << to_string(again.problems());
  EXPECT_EQ(again->to_json(), graph.to_json());
  each = again->by_microbatch();
  ASSERT_EQ(each.size(), 2u);
  EXPECT_DOUBLE_EQ(each[0].nodes[0].backward_weight_s, 8);
  EXPECT_DOUBLE_EQ(each[1].nodes[0].backward_weight_s, 0);
  EXPECT_DOUBLE_EQ(each[0].nodes[1].forward_s, 8);
  EXPECT_DOUBLE_EQ(each[1].nodes[1].forward_s, 4);
  EXPECT_DOUBLE_EQ(each[0].loss_s, 0.2);
  EXPECT_EQ(each[0].edges[0].bytes, 60);
  EXPECT_TRUE(each[0].microbatches.empty() && each[0].nodes[0].of_microbatches.empty());

  LayerGraph bad = graph;
  bad.nodes[0].of_microbatches.pop_back();
  bad.edges[0].of_microbatches.push_back(1);
  const Result<LayerGraph> counts = LayerGraph::parse(bad.to_json(), "p");
  ASSERT_FALSE(counts);
  const std::string text = to_string(counts.problems());
  EXPECT_NE(text.find("has numbers of 1 microbatches, 2 were measured"), std::string::npos) << text;
  EXPECT_NE(text.find("has numbers of 3 microbatches, 2 were measured"), std::string::npos) << text;
  bad = graph;
  bad.nodes[0].of_microbatches[0].forward = -1;
  EXPECT_FALSE(LayerGraph::parse(bad.to_json(), "p"));
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

constexpr const char* kMixedCluster = R"(device: cuda
memory: 8GiB
kinds:
  - {name: a100, speed: 2.5, memory: 40GiB, copy_bandwidth: 1e10}
  - {name: v100, profile: v100.json}
hosts:
  - {name: left, devices: 2, kind: a100, bandwidth: 2e11, latency: 3e-6}
  - {name: right, devices: 3, kind: v100, bandwidth: 2e10}
  - {name: far, kind: v100}
network: {bandwidth: 1e9, latency: 5e-5}
links:
  - {between: [right, left], bandwidth: 1e10, latency: 1e-5}
)";

TEST(ClusterSpec, LosesHosts) {
  const auto left = [](const std::string& yaml, int lost) {
    const Result<ClusterSpec> spec = ClusterSpec::parse(yaml, "c");
    const Result<ClusterSpec> less = spec ? without_hosts(*spec, lost) : spec;
    if (!less) return to_string(less.problems());
    EXPECT_TRUE(ClusterSpec::parse(less->to_yaml(), "less")) << less->to_yaml();
    std::string text = std::to_string(less->num_ranks());
    for (const ClusterHost& host : less->hosts) text += " " + host.name;
    for (const RankLink& link : less->rank_links)
      text += " " + std::to_string(link.from.value) + "-" + std::to_string(link.to.value);
    return text;
  };
  EXPECT_EQ(without_hosts(ClusterSpec::local(4), 3)->num_ranks(), 1);
  EXPECT_FALSE(without_hosts(ClusterSpec::local(4), 4));
  const std::string mixed = std::string(kMixedCluster) +
                            "rank_links:\n  - {between: [0, 5], bandwidth: 5e8}\n"
                            "  - {between: [1, 2], bandwidth: 5e8}\n";
  EXPECT_EQ(left(mixed, 1), "3 left far 0-2") << "right has the most devices; ranks are numbered anew";
  EXPECT_EQ(left(mixed, 2), "1 far");
  EXPECT_NE(left(mixed, 3).find("of 3 hosts none is left"), std::string::npos) << left(mixed, 3);
  const std::string levels = "levels: [{count: 2, bandwidth: 1e10}, {count: 3, bandwidth: 1e9}]\n";
  EXPECT_EQ(left(levels, 1), "4");
  EXPECT_EQ(
      left(levels + "hosts: [{name: a, devices: 2}, {name: b, devices: 2}, {name: c, devices: 2}]\n", 2),
      "2 a");
  EXPECT_EQ(
      left("levels: [{count: 5, bandwidth: 1e9}]\nhosts: [{name: a, devices: 3}, {name: b, devices: 2}]\n",
           1),
      "2 b");
  const std::string across = left(levels + "hosts: [{name: a, devices: 3}, {name: b, devices: 3}]\n", 1);
  EXPECT_NE(across.find("no components of the outermost level"), std::string::npos) << across;
}

TEST(ClusterSpec, HostsOfDifferentDevicesAndLinks) {
  const auto spec = ClusterSpec::parse(kMixedCluster, "c");
  ASSERT_TRUE(spec) << to_string(spec.problems());
  EXPECT_EQ(spec->num_ranks(), 6);
  EXPECT_EQ(spec->speed_of(RankId(1)), 2.5);
  EXPECT_EQ(spec->speed_of(RankId(2)), 1);
  EXPECT_EQ(spec->memory_of(RankId(0)), 40 * kGiB);
  EXPECT_EQ(spec->memory_of(RankId(5)), 8 * kGiB);  // the cluster's
  EXPECT_EQ(spec->link(RankId(0), RankId(1)), (ClusterLink{2e11, 3e-6}));
  EXPECT_EQ(spec->link(RankId(1), RankId(2)), (ClusterLink{1e10, 1e-5}));
  EXPECT_EQ(spec->link(RankId(2), RankId(5)), (ClusterLink{1e9, 5e-5}));
  EXPECT_DOUBLE_EQ(spec->copy_seconds_per_byte(RankId(0), RankId(2)), 1e-10);
  EXPECT_EQ(spec->copy_seconds_per_byte(RankId(0), RankId(1)), 0);  // within a host
  EXPECT_FALSE(spec->same_devices());
  const auto again = ClusterSpec::parse(spec->to_yaml(), "again");
  ASSERT_TRUE(again) << spec->to_yaml() << to_string(again.problems());
  EXPECT_EQ(again->to_yaml(), spec->to_yaml());
}

TEST(ClusterSpec, WrongFilesAreNamedByPlaceAndReason) {
  const std::pair<const char*, const char*> cases[] = {
      {"device: cpu\n", "key 'levels' is missing"},
      {"hosts: [{name: a, devices: 2}]\nnetwork: {bandwidth: 1e9}\n", "bandwidth"},
      {"hosts: [{name: a}, {name: b}]\n", "key 'network' is missing"},
      {"hosts: [{name: a}, {name: a}]\nnetwork: {bandwidth: 1e9}\n", "twice"},
      {"kinds: [{name: v100}]\nhosts: [{name: a, kind: v10}]\n", "did you mean 'v100'"},
      {"kinds: [{name: v, speed: 0}]\nhosts: [{name: a}]\n", "'speed' is 0.0"},
      {"hosts: [{name: a}, {name: b}]\nlinks: [{between: [a, c], bandwidth: 1e9}]\n", "'c'"},
      {"hosts: [{name: a}, {name: b}]\nlinks: [{between: [a], bandwidth: 1e9}]\n", "two hosts"},
      {"hosts: [{name: a, devices: 0}]\n", "expected 1 to"},
      {"levels: [{count: 2, bandwidth: 1e9}]\nnetwork: {bandwidth: 1e9}\n", "does not go with levels"},
      {"levels: [{count: 2, bandwidth: 1e9, latancy: 1}]\n", "did you mean 'latency'"},
      {"kinds: [{name: v, memory: much}]\nhosts: [{name: a}]\n", "not a size"}};
  for (const auto& [yaml, reason] : cases) {
    const auto spec = ClusterSpec::parse(yaml, "c.yaml");
    ASSERT_FALSE(spec) << yaml;
    EXPECT_NE(to_string(spec.problems()).find(reason), std::string::npos) << to_string(spec.problems());
    EXPECT_NE(to_string(spec.problems()).find("c.yaml"), std::string::npos) << to_string(spec.problems());
  }
}

}  // namespace
}  // namespace millrace
