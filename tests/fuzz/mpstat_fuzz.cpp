// mpstat.
#include "experiments/io/trace/sampled_logs.h"
#include "tests/fuzz/fuzz_harness.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace millrace;
  const Result<CpuLog> log = read_mpstat(text_of(data, size), 1676121078, "fuzz");
  if (!log) {
    require_explained(log);
    return 0;
  }
  require(!log->samples.empty());
  for (const CpuSample& sample : log->samples) require(sample.values.size() == std::size(kCpuColumns));
  require(cpu_csv(*log, TimeZone::montreal(), 0).starts_with("timestamp,%usr"));
  return 0;
}
