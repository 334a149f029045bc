// DLIO's configuration files.
#include "experiments/io/dlio/dlio_config.h"
#include "tests/fuzz/fuzz_harness.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace millrace;
  const Result<DlioConfig> config = parse_dlio_config(text_of(data, size), "fuzz", {});
  if (!config) return require_explained(config), 0;
  require(config->reader.batch_size >= 1 && config->samples(true) >= 0);
  // An accepted configuration must be accepted again from its own text.
  const Result<DlioConfig> again = parse_dlio_config(config->tree.dump(), "again", {});
  require(again.has_value());
  return 0;
}
