// The first bytes that a stranger sends to a port of a job: what a rank says of itself.
#include "runtime/comm/handshake.h"
#include "tests/fuzz/fuzz_harness.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace millrace;
  const std::optional<Hello> hello = parse_hello(std::string(text_of(data, size)));
  if (!hello) return 0;
  const std::optional<Hello> again = parse_hello(to_bytes(*hello));
  require(again && again->rank == hello->rank && again->size == hello->size && again->job == hello->job &&
          again->proof == hello->proof);
  require(!is_proof(hello->proof, client_proof("token", "challenge", *hello)));
  for (const char c : printable(hello->job)) require(static_cast<unsigned char>(c) >= ' ' && c != 127);
  return 0;
}
