// Token files. The sums are put right first, so that what they guard is reached too.
#include <sys/mman.h>
#include <unistd.h>

#include "data/files/little_endian.h"
#include "data/text/token_file.h"
#include "tests/fuzz/fuzz_harness.h"

namespace {

/// `bytes` as a token file whose sums fit, whatever else it says.
std::string with_sums(std::string bytes) {
  using namespace millrace;
  if (bytes.size() < 128) return bytes;
  std::string sums;
  const std::string_view rest = std::string_view(bytes).substr(128);
  const std::size_t summed = rest.size() < 16 ? 0 : rest.size() - 16;  // one block's sum, and the sum of sums
  if (summed > 0) put_little(sums, xxh3_64(rest.substr(0, summed)));
  put_little(sums, xxh3_64(sums));
  bytes.resize(128 + summed);
  const std::uint64_t header = xxh3_64(std::string_view(bytes).substr(0, 120));
  std::memcpy(bytes.data() + 120, &header, 8);
  return bytes + sums;
}

void open_and_read(const std::string& bytes) {
  using namespace millrace;
  static const int fd = ::memfd_create("fuzz", 0);
  require(::ftruncate(fd, 0) == 0 &&
          ::pwrite(fd, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  const Result<TokenFile> file = TokenFile::open("/proc/self/fd/" + std::to_string(fd));
  if (!file) return require_explained(file);
  std::uint64_t tokens = 0;
  for (std::int64_t i = 0; i < file->size(); ++i) {
    require(static_cast<std::int64_t>(file->tokens(i).size()) == file->length(i));
    tokens += static_cast<std::uint64_t>(file->length(i));
  }
  require(tokens == file->info().tokens);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string bytes(millrace::text_of(data, size));
  open_and_read(bytes);
  open_and_read(with_sums(bytes));
  return 0;
}
