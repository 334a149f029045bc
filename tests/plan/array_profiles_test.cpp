// Profiles and plans of several jobs, in their files and between sizes that were measured.
#include "runtime/plan/array_profiles.h"

#include <gtest/gtest.h>

#include "runtime/plan/plan.h"
#include "runtime/plan/plan_rounds.h"

namespace millrace {
namespace {

LayerGraph profile_of(int jobs) {
  LayerGraph graph{.model = "mlp", .microbatch = 8};
  graph.loss_s = 1e-4 * jobs;
  graph.update_s_per_byte = 1e-9;
  graph.jobs = jobs;
  graph.rule_state_bytes = 400 * jobs;
  graph.measured = {.ranks = 1, .blocks = 3, .spread = 0.01 * jobs};
  for (const char* name : {"fc0", "fc1"})
    graph.nodes.push_back({.name = name,
                           .kind = "linear",
                           .forward_s = 1e-3 + 1e-4 * jobs,
                           .backward_input_s = 1e-3 * jobs,
                           .backward_weight_s = 2e-3,
                           .parameter_bytes = 400 * jobs,
                           .activation_bytes = 101 * jobs,
                           .saved_bytes = 201 * jobs,
                           .workspace_bytes = 17 * jobs});
  graph.edges.push_back({0, 1, "fc0", 101 * jobs});
  return graph;
}

LayerGraph profile_with(std::initializer_list<int> sizes) {
  LayerGraph graph = profile_of(1);
  for (const int size : sizes) graph.arrays.push_back(profile_of(size));
  return graph;
}

std::string problems_of(const std::string& text) {
  const Result<LayerGraph> read = LayerGraph::parse(text, "profile.json");
  return read ? "" : to_string(read.problems());
}

std::string replaced(std::string text, const std::string& from, const std::string& to, int which) {
  std::size_t at = text.find(from);
  for (int i = 0; i < which; ++i) at = text.find(from, at + 1);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(ArrayProfiles, AreKeptInTheFile) {
  const LayerGraph profile = profile_with({2, 4});
  const LayerGraph read = LayerGraph::parse(profile.to_json(), "profile.json").value();
  EXPECT_EQ(read.to_json(), profile.to_json());
  EXPECT_EQ(measured_sizes(read), (std::vector{1, 2, 4}));
  EXPECT_EQ(read.arrays[1].nodes[1].parameter_bytes, 1600);
  EXPECT_EQ(read.arrays[1].rule_state_bytes, 1600);
  EXPECT_NE(profile.to_json().find("\"millrace-profile-2\""), std::string::npos);
  LayerGraph plain = profile;
  plain.arrays.clear();
  plain.rule_state_bytes = 0;
  EXPECT_NE(plain.to_json().find("\"millrace-profile-1\""), std::string::npos);
  EXPECT_EQ(LayerGraph::parse(plain.to_json(), "profile.json")->to_json(), plain.to_json());
}

TEST(ArrayProfiles, WrongFilesAreNamedByPlaceAndReason) {
  const std::string text = profile_with({2, 4}).to_json();
  EXPECT_EQ(problems_of(text), "");
  // An older file has nothing of arrays.
  EXPECT_NE(problems_of(replaced(text, "millrace-profile-2", "millrace-profile-1", 0)).find("arrays"),
            std::string::npos);
  EXPECT_NE(
      problems_of(replaced(text, "millrace-profile-2", "millrace-profile-9", 0)).find("millrace-profile-9"),
      std::string::npos);
  const std::string order = problems_of(replaced(text, "\"jobs\": 4", "\"jobs\": 2", 0));
  EXPECT_NE(order.find("arrays[1]"), std::string::npos) << order;
  EXPECT_NE(order.find("order of their jobs"), std::string::npos) << order;
  // An error within an array is reported with its line in the whole file.
  const auto named_by_line = [](const std::string& wrong, const std::string& what, int which) {
    std::size_t at = wrong.find(what);
    for (; which > 0; --which) at = wrong.find(what, at + 1);
    const auto line = 1 + std::count(wrong.begin(), wrong.begin() + static_cast<std::ptrdiff_t>(at), '\n');
    return problems_of(wrong).find("profile.json:" + std::to_string(line) + ":") != std::string::npos;
  };
  EXPECT_TRUE(named_by_line(replaced(text, "\"fc1\"", "\"fc2\"", 3), "\"fc2\"", 0))
      << problems_of(replaced(text, "\"fc1\"", "\"fc2\"", 3));
  EXPECT_NE(problems_of(replaced(text, "\"microbatch\": 8", "\"microbatch\": 4", 1)).find("microbatch is 4"),
            std::string::npos);
  EXPECT_TRUE(named_by_line(replaced(text, "\"forward_s\"", "\"fourward_s\"", 2), "\"fourward_s\"", 0));
}

TEST(ArrayProfiles, BetweenSizesCostsLieOnALine) {
  const LayerGraph profile = profile_with({2, 4});
  EXPECT_TRUE(is_measured(profile, 4));
  EXPECT_FALSE(is_measured(profile, 3));
  const LayerGraph three = profile_of_array(profile, 3).value();
  EXPECT_EQ(three.jobs, 3);
  EXPECT_TRUE(three.arrays.empty());
  EXPECT_NEAR(three.nodes[0].forward_s, 1.3e-3, 1e-12);
  EXPECT_NEAR(three.nodes[0].backward_input_s, 3e-3, 1e-12);
  EXPECT_EQ(three.nodes[0].parameter_bytes, 1200);
  EXPECT_EQ(three.edges[0].bytes, 303);
  EXPECT_EQ(three.rule_state_bytes, 1200);
  EXPECT_EQ(profile_of_array(profile, 4)->to_json(), profile.arrays[1].to_json());
  EXPECT_EQ(profile_of_array(profile, 1)->nodes[0].parameter_bytes, 400);
  const Result<LayerGraph> five = profile_of_array(profile, 5);
  ASSERT_FALSE(five);
  EXPECT_NE(to_string(five.problems()).find("--jobs 1,2,4,5"), std::string::npos)
      << to_string(five.problems());
}

/// A generator and a discriminator, as arrays of one and two jobs.
LayerGraph profile_in_turns() {
  const auto with_turns = [](int jobs) {
    LayerGraph graph = profile_of(jobs);
    for (const int trained : {1, 0}) {
      LayerGraph turn = profile_of(jobs);
      turn.turn = trained == 1 ? "discriminator" : "generator";
      turn.nodes[1 - trained].parameter_bytes = 0;
      turn.nodes[0].field_bytes = 7 * jobs;
      turn.nodes[0].fields = {{"noise", 5 * jobs}, {"number", 2 * jobs}};
      turn.edges[0].gradient_bytes = trained == 1 ? 0 : 55 * jobs;
      graph.turns.push_back(std::move(turn));
    }
    return graph;
  };
  LayerGraph graph = with_turns(1);
  graph.arrays = {with_turns(3)};
  return graph;
}

TEST(ArrayProfiles, TurnsAreKeptInTheFileAndLieOnALineToo) {
  const LayerGraph profile = profile_in_turns();
  const std::string text = profile.to_json();
  EXPECT_NE(text.find("\"millrace-profile-3\""), std::string::npos);
  const LayerGraph read = LayerGraph::parse(text, "profile.json").value();
  EXPECT_EQ(read.to_json(), text);
  ASSERT_EQ(read.turns.size(), 2u);
  EXPECT_EQ(read.turns[1].turn, "generator");
  EXPECT_EQ(read.turns[0].edges[0].gradient_bytes, 0);
  EXPECT_EQ(read.turns[0].nodes[0].field_bytes, 7);
  EXPECT_EQ(read.turns[0].nodes[0].fields.at("number"), 2);
  std::string other = text;
  other.replace(other.find("\"number\": 2"), 11, "\"number\": 3");
  EXPECT_FALSE(LayerGraph::parse(other, "profile.json")) << "the fields do not add up to field_bytes";
  EXPECT_FALSE(read.edges[0].gradient_bytes);
  const LayerGraph two = profile_of_array(profile, 2).value();
  ASSERT_EQ(two.turns.size(), 2u);
  EXPECT_NEAR(two.turns[0].nodes[0].forward_s, 1.2e-3, 1e-12);
  EXPECT_EQ(two.turns[0].nodes[0].parameter_bytes, 0);
  EXPECT_EQ(two.turns[0].nodes[0].fields.at("noise"), 10);
  EXPECT_EQ(two.turns[0].nodes[0].field_bytes, 14);
  EXPECT_EQ(two.turns[0].nodes[1].parameter_bytes, 800);
  EXPECT_EQ(two.turns[1].edges[0].gradient_bytes, 110);
}

TEST(ArrayProfiles, WrongTurnsAreNamed) {
  const auto problems_with = [](auto change) {
    LayerGraph profile = profile_in_turns();
    change(profile);
    return problems_of(profile.to_json());
  };
  EXPECT_NE(problems_with([](LayerGraph& p) {
              p.turns[0].nodes[0].parameter_bytes = 400;
            }).find("train 800 bytes of parameters of layer fc0, which has 400"),
            std::string::npos);
  EXPECT_NE(problems_with([](LayerGraph& p) { p.arrays[0].turns.pop_back(); }).find("arrays[0]"),
            std::string::npos);
  EXPECT_NE(problems_with([](LayerGraph& p) { p.turns[1].model = "vgg"; }).find("turns[1]"),
            std::string::npos);
  EXPECT_NE(problems_with([](LayerGraph& p) { p.turns[0].turns = {p.turns[0]}; }).find("has turns itself"),
            std::string::npos);
}

Plan plan_with(std::vector<PlanRound> rounds, int arrays) {
  Plan plan = uniform_plan("mlp", {"fc0", "fc1"}, 2, 1, 4, ScheduleKind::OneFOneB);
  plan.arrays = arrays;
  plan.rounds = std::move(rounds);
  return plan;
}

TEST(PlanRounds, AreKeptInTheFile) {
  Plan plan = plan_with({{.jobs = 4, .arrays = 2, .predicted_step_s = 0.25}, {.jobs = 3, .arrays = 2}}, 2);
  plan.predicted_step_s = 0.25;
  const Plan read = Plan::parse(plan.to_json(), "plan.json").value();
  EXPECT_EQ(read.rounds, plan.rounds);
  EXPECT_EQ(read.num_jobs(), 7);
  EXPECT_EQ(read.rounds[1].sizes(), (std::vector{2, 1}));
  EXPECT_EQ(read.of_round(1).predicted_step_s, 0);
  EXPECT_EQ(read.of_round(0).predicted_step_s, 0.25);
  EXPECT_TRUE(read.of_round(1).rounds.empty());
  EXPECT_EQ(rounds_text(read.rounds), "7 jobs in 2 rounds: 4 in 2 arrays, then 3 in 2 arrays");
  EXPECT_EQ(rounds_text({{.jobs = 4, .arrays = 1}, {.jobs = 4, .arrays = 1}, {.jobs = 1, .arrays = 1}}),
            "9 jobs in 3 rounds: 2 times 4 in 1 array, then 1 in 1 array");
}

TEST(PlanRounds, ThatDoNotGoWithThePlanAreNamed) {
  EXPECT_TRUE(validate(plan_with({{.jobs = 3, .arrays = 2}}, 2)).empty());
  const struct {
    std::vector<PlanRound> rounds;
    int arrays;
    std::string says;
  } cases[] = {
      {{{.jobs = 1, .arrays = 2}}, 2, "divides 1 job into 2 arrays"},
      {{{.jobs = 3, .arrays = 1}}, 2, "the plan 2"},
      {{{.jobs = 2, .arrays = 1}, {.jobs = 2, .arrays = 2}}, 1, "round 1"},
  };
  for (const auto& c : cases) {
    const std::string text = to_string(validate(plan_with(c.rounds, c.arrays)));
    EXPECT_NE(text.find(c.says), std::string::npos) << text;
  }
  const std::string none = to_string(Plan::parse(replaced(plan_with({{.jobs = 3, .arrays = 1}}, 1).to_json(),
                                                          "\"jobs\": 3", "\"jobs\": 0", 0),
                                                 "plan.json")
                                         .problems());
  EXPECT_NE(none.find("jobs"), std::string::npos) << none;
}

}  // namespace
}  // namespace millrace
