// What an agent and a launcher send each other: frames, the job in them, and the answer of a machine.
#include "driver/hosts/agent_job.h"
#include "driver/hosts/frames.h"
#include "driver/hosts/machine.h"
#include "runtime/base/error.h"
#include "tests/fuzz/fuzz_harness.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace millrace;
  const std::string_view bytes = text_of(data, size);
  for (const char* greeting : {"", kAgentGreeting}) {
    FrameReader reader(greeting);
    try {
      reader.add(bytes.substr(0, size / 2));  // in two pieces
      for (int piece = 0; piece < 2; ++piece) {
        while (const std::optional<Frame> frame = reader.next()) {
          require(to_bytes(frame->type, frame->payload).size() == 5 + frame->payload.size());
          std::string_view payload = frame->payload;
          const Result<Json> json = parse_json(payload, "frame");
          if (json) {
            const Result<AgentJob> job = agent_job_from(*json);
            if (!job) require_explained(job);
            if (job) require(agent_job_from(to_json(*job)).has_value());
            if (json->is_object()) require(machine_from(*json).cores >= 0);
          }
          if (frame->type == FrameType::Output) take_rank(payload);
          if (frame->type == FrameType::Shard) take_path(payload);
        }
        reader.add(bytes.substr(size / 2));
      }
    } catch (const PeerError& error) {
      require(error.what()[0] != '\0');
    }
  }
  return 0;
}
