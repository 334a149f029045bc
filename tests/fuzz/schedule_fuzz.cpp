// The text form of a schedule; check() must survive whatever was read.
#include "runtime/schedule/schedule.h"
#include "tests/fuzz/fuzz_harness.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace millrace;
  const Result<Schedule> schedule = parse_schedule(text_of(data, size), "fuzz");
  if (!schedule) return require_explained(schedule), 0;
  const Result<Schedule> again = parse_schedule(to_string(*schedule), "again");
  require(again.has_value() && again->ranks == schedule->ranks && again->kind == schedule->kind);
  PipelineShape shape{.microbatches = 2, .ranks_of_stage = {{RankId(0)}, {RankId(1)}}};
  for (Transport transport : {Transport::Buffered, Transport::Rendezvous}) check(*schedule, shape, transport);
  return 0;
}
