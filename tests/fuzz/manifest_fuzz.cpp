// The manifest of a checkpoint: read, and what a host makes of one that a launcher sends.
#include "runtime/saved/manifest.h"
#include "tests/fuzz/fuzz_harness.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace millrace;
  const std::string text(text_of(data, size));
  // A damaged seal ends the reading, so most inputs get a right one.
  const Result<Json> json = parse_json(text, "fuzz");
  for (const bool sealed : {false, true}) {
    if (sealed && (!json || !json->is_object())) continue;
    const Result<ManifestHead> head = parse_manifest(sealed ? sealed_manifest(*json) : text, "fuzz");
    if (!head) {
      require_explained(head);
      continue;
    }
    for (const ShardEntry& shard : head->shards) {
      require(shard.digest.bytes >= 0 && shard.file.find('/') == std::string::npos && shard.file[0] != '.');
      require(hash_from(shard.digest.hash.hex()) == shard.digest.hash);
    }
    require(head->sha256.size() == 64);
    const Result<CheckpointInfo> info = read_info(*head);
    if (!info) require_explained(info);
  }
  return 0;
}
