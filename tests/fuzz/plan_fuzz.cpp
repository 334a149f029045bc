// Our plan (JSON): reading, validating, and the round trip.
#include "runtime/plan/plan.h"
#include "tests/fuzz/fuzz_harness.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace millrace;
  const Result<Plan> plan = Plan::parse(text_of(data, size), "fuzz");
  if (!plan) return require_explained(plan), 0;
  for (const Problem& problem : validate(*plan)) require(!problem.what.empty());
  const Result<Plan> again = Plan::parse(plan->to_json(), "again");
  require(again.has_value() && again->fingerprint() == plan->fingerprint());
  return 0;
}
