// Rows of the raw traces: what is read is a row of that kind, and is written back as the same columns.
#include "experiments/io/trace/raw_trace.h"
#include "experiments/io/trace/timeline_data.h"
#include "tests/fuzz/fuzz_harness.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace millrace;
  std::string_view rest = text_of(data, size);
  if (const Result<TimeReference> aligned = read_time_align(rest, "fuzz"); !aligned)
    require_explained(aligned);
  while (!rest.empty()) {
    bool whole = true;
    const std::string_view line = next_line(rest, whole);
    is_data(line);
    TraceEvent event;
    if (parse_event(line, event)) require(event.end >= event.start);
    for (TraceKind kind : {TraceKind::Bio, TraceKind::Openat, TraceKind::Read, TraceKind::Write}) {
      wrong_header(line, kind, "fuzz");
      RawRow row;
      if (!parse_row(line, kind, row)) continue;
      require(row.ns >= 0 && row.latency_ns >= 0);
      name_pattern(row.file);
      for (TracedWorkload workload :
           {TracedWorkload::Unet3d, TracedWorkload::Bert, TracedWorkload::Dlrm, TracedWorkload::Dlio})
        why_filtered(row, kind, workload);
      std::string columns;
      append_columns(columns, row.columns);
      RawRow again;
      const std::string text = std::to_string(row.ns) + " " + columns;
      require(parse_row(text, kind, again) && again.pid == row.pid && again.latency_ns == row.latency_ns &&
              again.type == row.type && again.bytes == row.bytes);
    }
  }
  return 0;
}
