// Time zones by rule or offset: every moment has an offset of less than two days, and local times lead back.
#include "experiments/io/trace/time_zone.h"
#include "tests/fuzz/fuzz_harness.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace millrace;
  const Result<TimeZone> zone = TimeZone::parse(std::string(text_of(data, size)), "/nowhere");
  if (!zone) {
    require_explained(zone);
    return 0;
  }
  for (std::int64_t utc : {std::int64_t{0}, std::int64_t{1676121078}, std::int64_t{1689121078}}) {
    const int offset = zone->offset_at(utc);
    require(offset > -172800 && offset < 172800);
    zone->utc_of(utc + offset, utc);
  }
  return 0;
}
