// `millrace simulate` with every schedule, PyTorch's files and orders from costs, as a user types it.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "driver/simulate/simulate_command.h"
#include "runtime/base/json.h"
#include "runtime/plan/plan.h"
#include "tests/driver/temporary_folder.h"

namespace millrace {
namespace {

struct Simulated {
  int code = 0;
  std::string output, errors;
  Json json() const {
    const Result<Json> json = parse_json(output, "stdout");
    EXPECT_TRUE(json) << output << errors;
    return json ? *json : Json();
  }
  double makespan() const { return json().find("makespan_s")->as_double(); }
};

Simulated simulated(std::vector<std::string> args) {
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  Simulated result;
  result.code = simulate_command(args);
  std::fflush(stdout);
  result.output = testing::internal::GetCapturedStdout();
  result.errors = testing::internal::GetCapturedStderr();
  return result;
}

std::string docs_page(const std::string& name) {
  std::ostringstream text;
  text << std::ifstream(std::string(MILLRACE_SOURCE_DIR) + "/docs/" + name).rdbuf();
  return text.str();
}

Simulated as_json(std::vector<std::string> args) {
  args.insert(args.end(), {"--format", "json"});
  return simulated(args);
}

TEST(SimulateSchedules, EveryKindGivesItsFigure) {
  const std::pair<const char*, double> makespans[] = {
      {"gpipe", 33},        {"1f1b", 33},       {"interleaved", 28.5}, {"zb-h1", 27},
      {"zb-h2", 27},        {"zb-v", 25.5},     {"v-half", 27.5},      {"v-min", 29.5},
      {"dualpipev", 25.5},  {"auto-order", 27}, {"pipedream", 33},     {"pipedream-vsync", 33},
      {"pipedream-2bw", 33}};
  for (const auto& [kind, makespan] : makespans) {
    const Simulated one = as_json({"--schedule", kind, "--stages", "4", "--microbatches", "8"});
    ASSERT_EQ(one.code, 0) << one.errors;
    EXPECT_DOUBLE_EQ(one.makespan(), makespan) << kind;
    const Simulated replicated = as_json({"--schedule", kind, "--stages", "4", "--microbatches", "16",
                                          "--replicas", "2", "--sends", "rendezvous"});
    EXPECT_EQ(replicated.code, 0) << kind << replicated.errors;
  }
  const Simulated four = as_json({"--schedule", "interleaved", "--chunks", "4", "--microbatches", "8"});
  EXPECT_DOUBLE_EQ(four.makespan(), 26.25);
}

TEST(SimulateSchedules, SweepTablesAllKinds) {
  const Json sweep = *as_json({"--sweep", "--stages", "4", "--microbatches", "8"}).json().find("sweep");
  ASSERT_EQ(sweep.items().size(), 13u);
  for (const Json& row : sweep.items()) {
    ASSERT_EQ(row.find("problem"), nullptr) << row.dump();
    const std::string kind = row.find("schedule")->as_string();
    if (kind == "dualpipev") {
      EXPECT_DOUBLE_EQ(row.find("peak_microbatches")->as_double(), 4.5);
    }
    if (kind == "zb-v") {
      EXPECT_TRUE(row.find("fastest")->as_bool());
      EXPECT_NEAR(row.find("span_bubble_fraction")->as_double(), 0, 1e-12);
    }
  }
  const Simulated text = simulated({"--sweep", "--stages", "2", "--microbatches", "3", "--chunks", "3"});
  EXPECT_EQ(text.code, 0) << text.errors;
  EXPECT_NE(text.output.find("not whole updates"), std::string::npos) << text.output;  // 2BW says why not
}

TEST(SimulateSchedules, WritesAndReadsPyTorchsFiles) {
  const TemporaryFolder folder;
  for (const char* kind : {"zb-v", "dualpipev", "interleaved", "zb-h2"}) {
    for (const bool transfers : {false, true}) {
      std::vector<std::string> write{"--schedule",     kind, "--stages",    "4",
                                     "--microbatches", "10", "--write-csv", folder.path("s.csv")};
      if (transfers) write.push_back("--csv-transfers");
      const Simulated written = as_json(write);
      ASSERT_EQ(written.code, 0) << written.errors;
      EXPECT_EQ(folder.read("s.csv").find("SEND_F") != std::string::npos, transfers);
      const Simulated read = as_json({"--schedule-file", folder.path("s.csv")});
      ASSERT_EQ(read.code, 0) << read.errors;
      EXPECT_EQ(read.json().find("schedule")->as_string(), "custom");
      EXPECT_DOUBLE_EQ(read.makespan(), written.makespan()) << kind;
    }
  }
  const Simulated blocking =
      as_json({"--schedule-file", folder.path("s.csv"), "--sends", "rendezvous", "--replicas", "2"});
  EXPECT_EQ(blocking.code, 0) << blocking.errors;
  EXPECT_EQ(blocking.json().find("microbatches")->as_int(), 20);
  folder.write("fsdp.csv", "0UNSHARD,0F0,0B0,0RESHARD\n");
  const Simulated noted = simulated({"--schedule-file", folder.path("fsdp.csv")});
  EXPECT_EQ(noted.code, 0);
  EXPECT_NE(noted.errors.find("2 UNSHARD and RESHARD are left out"), std::string::npos) << noted.errors;
}

TEST(SimulateSchedules, RunsAFileOnAPlan) {
  const TemporaryFolder folder;
  Plan plan = uniform_plan("m", {"a", "b", "c", "d"}, 4, 1, 2, ScheduleKind::ZeroBubbleV, 2);
  plan.stages.resize(4);
  for (PlanStage& stage : plan.stages) stage.forward_s = 1, stage.backward_s = 2;
  ASSERT_TRUE(plan.save(folder.path("plan.json")));
  ASSERT_EQ(plan.num_ranks(), 2);
  ASSERT_EQ(simulated({"--schedule", "zb-v", "--stages", "2", "--microbatches", "2", "--write-csv",
                       folder.path("v.csv")})
                .code,
            0);
  const Simulated own = as_json({"--plan", folder.path("plan.json")});
  ASSERT_EQ(own.code, 0) << own.errors;
  const Simulated file =
      as_json({"--plan", folder.path("plan.json"), "--schedule-file", folder.path("v.csv")});
  ASSERT_EQ(file.code, 0) << file.errors;
  EXPECT_EQ(file.makespan(), own.makespan());
  const Simulated ordered = as_json({"--plan", folder.path("plan.json"), "--schedule", "auto-order"});
  ASSERT_EQ(ordered.code, 0) << ordered.errors;
  EXPECT_LE(ordered.makespan(), own.makespan());
  const Simulated limited =
      as_json({"--plan", folder.path("plan.json"), "--schedule", "auto-order", "--stash-limit", "1"});
  ASSERT_EQ(limited.code, 0) << limited.errors;
  EXPECT_LE(limited.json().find("ranks")->items()[0].find("peak_stash")->as_double(), 2);
  // A file for another number of microbatches, and one for a loop instead of the V.
  ASSERT_EQ(simulated({"--schedule", "zb-v", "--stages", "2", "--microbatches", "3", "--write-csv",
                       folder.path("three.csv")})
                .code,
            0);
  EXPECT_EQ(simulated({"--plan", folder.path("plan.json"), "--schedule-file", folder.path("three.csv")}).code,
            3);
  ASSERT_EQ(simulated({"--schedule", "interleaved", "--stages", "2", "--microbatches", "2", "--write-csv",
                       folder.path("loop.csv")})
                .code,
            0);
  EXPECT_EQ(simulated({"--plan", folder.path("plan.json"), "--schedule-file", folder.path("loop.csv")}).code,
            3);
}

TEST(SimulateSchedules, OrdersByCosts) {
  const std::vector<std::string> costs{"--stages",          "4",       "--microbatches",   "8",
                                       "--forward",         "1,2,1,3", "--backward-input", "1,2,1,2",
                                       "--backward-weight", "1,1,2,1"};
  const auto makespan = [&](std::vector<std::string> more) {
    more.insert(more.end(), costs.begin(), costs.end());
    const Simulated result = as_json(more);
    EXPECT_EQ(result.code, 0) << result.errors;
    return result.makespan();
  };
  const double free = makespan({"--schedule", "auto-order"});
  for (const char* kind : {"gpipe", "1f1b", "zb-h1", "zb-h2"})
    EXPECT_LE(free, makespan({"--schedule", kind}));
  EXPECT_GE(makespan({"--schedule", "auto-order", "--stash-limit", "2"}), free);
  const auto placed = [](const char* placement) {
    return as_json(
        {"--schedule", "auto-order", "--microbatches", "8", "--chunks", "2", "--placement", placement});
  };
  EXPECT_LE(placed("v").makespan(), 25.5);     // the makespan of ZB-V
  EXPECT_LE(placed("loop").makespan(), 28.5);  // the makespan of interleaved
}

/// docs/schedules.md: "| `kind`, ... (`--chunks V`) | makespan | in a run | bubble | in span | peak stash |
/// versions |".
TEST(SimulateSchedules, ThePageShowsWhatTheCommandSays) {
  std::istringstream page(docs_page("schedules.md"));
  int rows = 0;
  for (std::string line; std::getline(page, line);) {
    if (!line.starts_with("| `") || line.find(" % |") == std::string::npos) continue;
    std::vector<std::string> cells;
    std::istringstream text(line.substr(1));
    for (std::string cell; std::getline(text, cell, '|');) cells.push_back(cell);
    ASSERT_GE(cells.size(), 7u) << line;
    const std::string kind = cells[0].substr(2, cells[0].find('`', 2) - 2);
    std::vector<std::string> args{"--sweep", "--stages", "4", "--microbatches", "8", "--schedule", kind};
    if (cells[0].find("--chunks 4") != std::string::npos) args.insert(args.end(), {"--chunks", "4"});
    const Json row = as_json(args).json().find("sweep")->items()[0];
    const auto number = [&](std::size_t cell) {
      const std::size_t digit = cells[cell].find_first_of("0123456789");
      return digit == std::string::npos ? -1 : std::stod(cells[cell].substr(digit));
    };
    EXPECT_DOUBLE_EQ(number(1), row.find("makespan_s")->as_double()) << line;
    EXPECT_DOUBLE_EQ(number(2), row.find("steady_step_s")->as_double()) << line;
    EXPECT_NEAR(number(3), row.find("bubble_fraction")->as_double() * 100, 0.05) << line;
    EXPECT_NEAR(number(4), row.find("span_bubble_fraction")->as_double() * 100, 0.05) << line;
    EXPECT_DOUBLE_EQ(number(5), row.find("peak_microbatches")->as_double()) << line;
    EXPECT_EQ(number(6), row.find("peak_versions")->as_int()) << line;
    ++rows;
  }
  EXPECT_EQ(rows, 14);
}

TEST(SimulateSchedules, DrawsChunksApart) {
  const TemporaryFolder folder;
  const Simulated v = simulated({"--schedule", "zb-v", "-m", "8", "--draw", folder.path("v.svg")});
  ASSERT_EQ(v.code, 0) << v.errors;
  EXPECT_NE(v.output.find("f0i0w0"), std::string::npos) << v.output;
  EXPECT_NE(v.output.find("Small letters"), std::string::npos);
  const std::string svg = folder.read("v.svg");
  for (const char* part : {"chunk 0", "chunk 1", "stages 0, 7", "input gradient"})
    EXPECT_NE(svg.find(part), std::string::npos) << part;
}

TEST(SimulateSchedules, RefusesWhatDoesNotFit) {
  const TemporaryFolder folder;
  folder.write("bad.csv", "0F0,0B0\n1F0,x\n");
  const std::tuple<std::vector<std::string>, int, const char*> wrong[] = {
      {{"--schedule", "zb-v", "--chunks", "3"}, 2, "zb-v has 2 stages on each rank"},
      {{"--schedule", "1f1b", "--chunks", "2"}, 2, "1f1b has 1 stage on each rank"},
      {{"--schedule", "custom"}, 2, "--schedule-file"},
      {{"--schedule", "pipedream-2bw", "--update-every", "2"}, 2, "more than two versions"},
      {{"--schedule", "1f1b", "--stash-limit", "2"}, 2, "is for auto-order"},
      {{"--schedule", "auto-order", "--stash-limit", "0"}, 2, "memory cap"},
      {{"--schedule", "auto-order", "--placement", "w"}, 2, "unknown placement 'w'"},
      {{"--schedule", "auto-order", "--placement", "v"}, 2, "two stages on each rank"},
      {{"--schedule", "pipedream", "--write-csv", folder.path("x.csv")}, 2, "updates in the middle"},
      {{"--csv-transfers"}, 2, "needs --write-csv"},
      {{"--write-csv", "/nonexistent/x.csv"}, 2, "/nonexistent"},
      {{"--schedule-file", folder.path("bad.csv")}, 3, "bad.csv:2:5: 'x' is not an action"},
      {{"--schedule-file", folder.path("none.csv")}, 3, "none.csv"},
      {{"--schedule-file", folder.path("bad.csv"), "--stages", "2"}, 2, "the schedule file says it"},
      {{"--schedule-file", folder.path("bad.csv"), "--sweep"}, 2, "the schedule file says it"},
  };
  for (const auto& [args, code, message] : wrong) {
    const Simulated result = simulated(args);
    EXPECT_EQ(result.code, code) << ::testing::PrintToString(args) << result.errors;
    EXPECT_NE(result.errors.find(message), std::string::npos)
        << ::testing::PrintToString(args) << result.errors;
  }
}

}  // namespace
}  // namespace millrace
