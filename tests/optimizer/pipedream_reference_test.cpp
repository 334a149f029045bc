// All recorded answers of the original planner (MILLRACE_DATA/pipedream-profiles/expected_plans.json).
#include <gtest/gtest.h>

#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <map>

#include "optimizer/pipedream/antichain.h"
#include "optimizer/pipedream/pipedream_planner.h"
#include "runtime/base/json.h"

namespace millrace {
namespace {

constexpr double kTolerance = 1e-9;  // relative; the reference sums in another order

double cpu_seconds() {
  return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}

PipeDreamOptions options_of(const Json& settings) {
  PipeDreamOptions options;
  for (const Json& m : settings.find("all_num_machines")->items()) {
    options.machines.push_back(static_cast<int>(m.as_int()));
  }
  for (const Json& b : settings.find("network_bandwidths_Bps")->items()) {
    options.bandwidths.push_back(b.as_double());
  }
  options.straight = settings.find("straight_pipeline")->as_bool();
  options.use_fewer_machines = settings.find("use_fewer_machines")->as_bool();
  if (settings.find("use_memory_constraint")->as_bool()) {
    options.memory_bytes = settings.find("memory_size_bytes")->as_double();
  }
  const Json& compression = *settings.find("activation_compression_ratio");
  if (!compression.is_null()) options.activation_compression = compression.as_double();
  return options;
}

// Empty if the record does not say which layers its stages hold.
std::vector<PipeDreamStage> stages_of(const Json& record) {
  std::vector<PipeDreamStage> stages;
  for (const Json& stage : record.find("stages")->items()) {
    const Json* nodes = stage.find("nodes");
    if (nodes == nullptr) return {};
    PipeDreamStage& result = stages.emplace_back();
    result.replication = static_cast<int>(stage.find("replication")->as_int());
    for (const Json& id : nodes->items()) result.nodes.push_back(id.as_string());
  }
  return stages;
}

class RecordedPlans : public testing::Test {
 protected:
  void SetUp() override {
    const char* data = std::getenv("MILLRACE_DATA");
    if (data == nullptr) GTEST_SKIP() << "MILLRACE_DATA is not set: the recorded plans were not compared";
    folder_ = std::filesystem::path(data) / "pipedream-profiles";
  }

  const PipeDreamGraph& graph(const std::string& profile) {
    auto found = graphs_.find(profile);
    if (found == graphs_.end()) {
      Result<PipeDreamGraph> read = read_pipedream_graph((folder_ / profile / "graph.txt").string());
      found = graphs_.emplace(profile, std::move(read).value()).first;
    }
    return found->second;
  }

  std::filesystem::path folder_;
  std::map<std::string, PipeDreamGraph> graphs_;
};

void expect_near(double found, double expected, const char* what) {
  EXPECT_NEAR(found, expected, kTolerance * expected) << what;
}

TEST_F(RecordedPlans, AllTimesAreEqualAndAllPlansReevaluate) {
  const Result<Json> file = read_json((folder_ / "expected_plans.json").string());
  ASSERT_TRUE(file) << to_string(file.problems());
  int records = 0;
  int reevaluated = 0;
  double reference_s = 0;
  double own_s = 0;
  for (const Json& record : file->find("records")->items()) {
    const std::string profile = record.find("profile")->as_string();
    SCOPED_TRACE("record " + std::to_string(records++) + " " + profile + " " +
                 record.find("settings")->dump());
    const PipeDreamOptions options = options_of(*record.find("settings"));
    const PipeDreamGraph& layers = graph(profile);
    const double begin = cpu_seconds();
    const Result<PipeDreamAnswer> answer = plan_pipedream(layers, options);
    own_s += cpu_seconds() - begin;
    reference_s += record.find("optimizer_cpu_s")->as_double();
    ASSERT_TRUE(answer) << to_string(answer.problems());
    expect_near(answer->single_machine_time_s, record.find("single_machine_time_s")->as_double(), "single");
    expect_near(answer->data_parallel_time_s, record.find("data_parallel_time_s")->as_double(),
                "data parallel");
    expect_near(answer->pipeline_time_s, record.find("pipeline_time_s")->as_double(), "pipeline");
    EXPECT_LE(answer->stages.size(), record.find("stages")->size());  // ties: fewer stages

    const Result<double> own = evaluate_pipedream(layers, options, answer->stages);
    ASSERT_TRUE(own) << to_string(own.problems());
    EXPECT_NEAR(*own, answer->pipeline_time_s, 1e-12 * *own);
    const std::vector<PipeDreamStage> recorded = stages_of(record);
    if (recorded.empty()) continue;
    ++reevaluated;
    const Result<double> theirs = evaluate_pipedream(layers, options, recorded);
    ASSERT_TRUE(theirs) << to_string(theirs.problems());
    expect_near(*theirs, record.find("pipeline_time_s")->as_double(), "recorded stages");
  }
  EXPECT_EQ(records, 293);
  EXPECT_EQ(reevaluated, 263);  // the others do not list their layers
  std::printf("planned %d records in %.3f CPU s; the original took %.1f s (%.0fx)\n", records, own_s,
              reference_s, reference_s / own_s);
}

TEST_F(RecordedPlans, StateCountsAreTheOriginals) {
  const std::pair<const char*, int> counts[] = {{"alexnet", 22},   {"vgg16", 40}, {"resnet18", 100},
                                                {"resnet50", 240}, {"gnmt", 99},  {"gnmt_large", 1495}};
  for (const auto& [profile, states] : counts) {
    const Result<AntichainStates> found = enumerate_antichains(graph(profile));
    ASSERT_TRUE(found) << profile;
    EXPECT_EQ(found->size(), states) << profile;
  }
}

// The original never finishes on the unabridged graph; no recorded answer to compare with.
TEST_F(RecordedPlans, InceptionUnabridgedIsPlanned) {
  const Result<AntichainStates> states = enumerate_antichains(graph("inception_v3"));
  ASSERT_TRUE(states) << to_string(states.problems());
  EXPECT_EQ(states->size(), 221'564);
  const PipeDreamOptions options{.machines = {4}, .bandwidths = {1e9}};
  const double begin = cpu_seconds();
  const Result<PipeDreamAnswer> answer = plan_pipedream(graph("inception_v3"), options);
  EXPECT_LT(cpu_seconds() - begin, 60);
  ASSERT_TRUE(answer) << to_string(answer.problems());
  EXPECT_LE(answer->pipeline_time_s, answer->data_parallel_time_s);
  EXPECT_LT(answer->pipeline_time_s, answer->single_machine_time_s);
  const Result<double> again = evaluate_pipedream(graph("inception_v3"), options, answer->stages);
  ASSERT_TRUE(again) << to_string(again.problems());
  EXPECT_NEAR(*again, answer->pipeline_time_s, 1e-12 * *again);
}

}  // namespace
}  // namespace millrace
