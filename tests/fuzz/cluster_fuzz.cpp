// Our cluster file (YAML).
#include "runtime/plan/cluster_spec.h"
#include "tests/fuzz/fuzz_harness.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace millrace;
  const Result<ClusterSpec> cluster = ClusterSpec::parse(text_of(data, size), "fuzz");
  if (!cluster) return require_explained(cluster), 0;
  require(cluster->num_ranks() >= 1);
  const Result<ClusterSpec> again = ClusterSpec::parse(cluster->to_yaml(), "again");
  require(again.has_value() && again->fingerprint() == cluster->fingerprint());
  return 0;
}
