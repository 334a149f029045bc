// The job file, ours and PipeDream's: YAML to a job, and the resolved job read again.
#include "driver/launch/job_spec.h"
#include "runtime/base/json.h"
#include "tests/fuzz/fuzz_harness.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace millrace;
  const Result<Json> yaml = parse_yaml(text_of(data, size), "fuzz.yaml");
  if (!yaml) return require_explained(yaml), 0;
  const auto ask = [](const std::string&) -> Result<Models> { return Problem{"fuzz", "has no worker", {}}; };
  const Result<JobSpec> job = job_from(*yaml, "fuzz.yaml", {}, ask);
  if (!job) return require_explained(job), 0;
  for (const std::string& word : train_arguments(*job)) require(word.size() <= size + 4096);
  require(parse_yaml(to_yaml(*job), "again").has_value());
  return 0;
}
