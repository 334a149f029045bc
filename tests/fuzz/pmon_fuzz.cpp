// nvidia-smi pmon.
#include "experiments/io/trace/sampled_logs.h"
#include "tests/fuzz/fuzz_harness.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace millrace;
  const Result<GpuLog> log = read_pmon(text_of(data, size), "fuzz");
  if (!log) {
    require_explained(log);
    return 0;
  }
  require(log->rows > 0 && log->first <= log->last);
  const GpuProcesses processes = gpu_processes(*log, {1, 2, 3});
  for (std::uint32_t pid : processes.kept) require(processes.ignored.count(pid) == 0);
  Dropped dropped;
  gpu_out(*log, processes, TimeZone::montreal(), 0, dropped);
  require(gpu_csv(*log, processes, TimeZone::montreal(), 0).starts_with("timestamp,"));
  return 0;
}
