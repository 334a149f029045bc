// NPZ archives: every member that the directory names is unpacked.
#include "data/files/npy.h"
#include "data/files/zip.h"
#include "tests/fuzz/fuzz_harness.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace millrace;
  const std::string_view bytes = text_of(data, size);
  const Result<std::vector<ZipMember>> members = parse_zip(bytes, "fuzz");
  if (!members) return require_explained(members), 0;
  for (const ZipMember& member : *members) {
    std::string unpacked;
    const Result<std::string_view> content = zip_member(bytes, member, unpacked, "fuzz", 16 * kMiB);
    if (!content) {
      require_explained(content);
      continue;
    }
    require(content->size() == member.bytes && crc32_of(*content) == member.crc);
    if (const Result<NpyHeader> array = parse_npy(*content, member.name); !array) require_explained(array);
  }
  return 0;
}
