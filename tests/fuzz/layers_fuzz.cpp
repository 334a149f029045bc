// Our profile (JSON LayerGraph): what was read can be written and read again with the same fingerprint.
#include "runtime/plan/layer_graph.h"
#include "tests/fuzz/fuzz_harness.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace millrace;
  const Result<LayerGraph> graph = LayerGraph::parse(text_of(data, size), "fuzz");
  if (!graph) return require_explained(graph), 0;
  const Result<LayerGraph> again = LayerGraph::parse(graph->to_json(), "again");
  require(again.has_value() && again->fingerprint() == graph->fingerprint());
  return 0;
}
