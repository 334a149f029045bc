// iostat's JSON, whole or cut off.
#include "experiments/io/trace/sampled_logs.h"
#include "tests/fuzz/fuzz_harness.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace millrace;
  const Result<DiskLog> log = read_iostat(text_of(data, size), "fuzz");
  if (!log) {
    require_explained(log);
    return 0;
  }
  for (const DiskLog::Row& row : log->rows) require(row.values.size() == log->columns.size());
  require(iostat_csv(*log, TimeZone::montreal()).starts_with("timestamp"));
  return 0;
}
