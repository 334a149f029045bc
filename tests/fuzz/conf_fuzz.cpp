// PipeDream's conf (JSON).
#include "runtime/plan/pipedream_formats.h"
#include "tests/fuzz/fuzz_harness.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace millrace;
  const Result<PipeDreamConf> conf = parse_pipedream_conf(text_of(data, size), "fuzz");
  if (!conf) return require_explained(conf), 0;
  const std::string written = to_json(*conf);
  const Result<PipeDreamConf> again = parse_pipedream_conf(written, "again");
  require(again.has_value() && to_json(*again) == written);
  return 0;
}
