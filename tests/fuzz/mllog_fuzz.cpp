// The programs' logs: phases have a start before their end; the array that is written is JSON.
#include "experiments/io/trace/app_log.h"
#include "experiments/io/trace/timeline_data.h"
#include "runtime/base/json.h"
#include "tests/fuzz/fuzz_harness.h"

namespace {

void check_log(const millrace::Result<millrace::AppLog>& log) {
  using namespace millrace;
  if (!log) {
    for (const Problem& problem : log.problems()) require(!to_string(problem).empty());
    return;
  }
  for (const PhaseSpan& span : log->phases) require(span.start <= span.end);
  require(log->init_start().has_value() && log->lines > 0);
  require(parse_json(log->json, "again").has_value());
  Dropped dropped;
  require(read_phases(timeline_csv(*log), dropped).size() == log->phases.size() && dropped.empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace millrace;
  const std::string_view text = text_of(data, size);
  for (TracedWorkload workload : {TracedWorkload::Unet3d, TracedWorkload::Bert, TracedWorkload::Dlrm})
    check_log(read_mllog(text, workload, "fuzz"));
  check_log(read_dlio_log(text, "fuzz"));
  return 0;
}
