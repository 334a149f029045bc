#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "runtime/base/files.h"
#include "runtime/plan/pipedream_formats.h"

namespace millrace {
namespace {

constexpr const char* kNode =
    "node1 -- Input0 -- forward_compute_time=0.500, backward_compute_time=0.000, activation_size=4096.0, "
    "parameter_size=0.000";

TEST(PipeDreamGraph, EveryShippedProfileRoundTripsByteForByte) {
  const char* data = std::getenv("MILLRACE_DATA");
  if (!data) GTEST_SKIP() << "MILLRACE_DATA is not set";
  int files = 0;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(std::filesystem::path(data) / "pipedream-profiles")) {
    if (entry.path().filename() != "graph.txt") continue;
    const std::string text = *read_file(entry.path());
    const auto graph = parse_pipedream_graph(text, entry.path());
    ASSERT_TRUE(graph) << to_string(graph.problems());
    // A trailing newline is the one thing that is not kept.
    const std::string kept = text.ends_with('\n') ? text.substr(0, text.size() - 1) : text;
    EXPECT_EQ(to_text(*graph), kept) << entry.path();
    ++files;
  }
  EXPECT_GE(files, 7);
}

TEST(PipeDreamGraph, AcceptsTheQuirks) {
  const std::string text =
      std::string(kNode) +
      "\nx -- LSTM(1, a=2; [b]) -- forward_compute_time=1.000, backward_compute_time=2.000, "
      "activation_size=[10.0; 1.5e+03], parameter_size=4.000 -- stage_id=3"
      "\n\tnode1 -- x\n\tnode1 -- x";
  const auto graph = parse_pipedream_graph(text, "g");
  ASSERT_TRUE(graph) << to_string(graph.problems());
  EXPECT_EQ(graph->nodes[1].activation_bytes(), 1510);
  EXPECT_EQ(graph->nodes[1].stage, 3);
  EXPECT_EQ(graph->edges.size(), 2u);
  EXPECT_EQ(to_text(*graph), text);
}

TEST(PipeDreamGraph, NamesThePlaceOfEachMistake) {
  const std::pair<std::string, std::string> cases[] = {
      {"a -- b", "g:1:1: a node has 2 parts"},
      {std::string(kNode) + "\n" + kNode, "g:2:1: node 'node1' appears twice"},
      {std::string(kNode) + "\n\tnode1 -- y", "g:2:11: edge names the unknown node 'y'"},
      {"n -- d -- forward_compute_time=x, backward_compute_time=0, activation_size=0, parameter_size=0",
       "g:1:32: 'x' is not a number"},
      {"n -- d -- forward_compute_time=1, activation_size=0, parameter_size=0", "3 fields, expected 4"},
      {"", "has no nodes"},
  };
  for (const auto& [text, message] : cases) {
    const auto graph = parse_pipedream_graph(text, "g");
    ASSERT_FALSE(graph) << text;
    EXPECT_NE(to_string(graph.problems()).find(message), std::string::npos) << to_string(graph.problems());
  }
}

TEST(PipeDreamConf, ReadsChecksAndWrites) {
  const auto conf = parse_pipedream_conf(
      R"({"module_to_stage_map": [0, 1, 1], "stage_to_rank_map": {"0": [0, 1, 2], "1": [3]}})", "c");
  ASSERT_TRUE(conf);
  EXPECT_EQ(conf->stage_to_rank_map.at(0).size(), 3u);
  EXPECT_TRUE(parse_pipedream_conf(to_json(*conf), "c"));
  EXPECT_FALSE(
      parse_pipedream_conf(R"({"module_to_stage_map": [0], "stage_to_rank_map": {"0": [0, 2]}})", "c"));
  EXPECT_FALSE(
      parse_pipedream_conf(R"({"module_to_stage_map": [0, 2], "stage_to_rank_map": {"0": [0]}})", "c"));
  EXPECT_FALSE(parse_pipedream_conf("{module_to_stage_map: []}", "c"));
}

}  // namespace
}  // namespace millrace
