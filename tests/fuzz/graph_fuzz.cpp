// PipeDream's graph.txt: what was read is written back byte for byte, or read again as the same graph.
#include "runtime/plan/pipedream_formats.h"
#include "tests/fuzz/fuzz_harness.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace millrace;
  const Result<PipeDreamGraph> graph = parse_pipedream_graph(text_of(data, size), "fuzz");
  if (!graph) return require_explained(graph), 0;
  for (const auto& [from, to] : graph->edges) {
    const int nodes = static_cast<int>(graph->nodes.size());
    require(from >= 0 && from < nodes && to >= 0 && to < nodes);
  }
  const std::string written = to_text(*graph);
  const Result<PipeDreamGraph> again = parse_pipedream_graph(written, "again");
  require(again.has_value() && to_text(*again) == written);
  return 0;
}
