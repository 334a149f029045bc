// Files of tensors: safetensors, and state_dicts of PyTorch. A pickle by itself is put into an archive,
// because the archive's check sums would hide it.
#include <sys/mman.h>
#include <unistd.h>

#include "data/files/zip.h"
#include "driver/checkpoint/pt_file.h"
#include "driver/checkpoint/saved_tensors.h"
#include "tests/fuzz/fuzz_harness.h"

namespace {

/// A file in memory that has a path.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view bytes) : fd_(::memfd_create("fuzz", MFD_CLOEXEC)) {
    millrace::require(::write(fd_, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  }
  ~MemoryFile() { ::close(fd_); }
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

void little(std::string& to, std::uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) to += static_cast<char>(value >> (8 * i));
}

/// An archive of stored members (APPNOTE 4.3).
std::string archive_of(const std::vector<std::pair<std::string, std::string>>& members) {
  std::string text, directory;
  for (const auto& [name, content] : members) {
    std::string common;
    for (const int field : {20, 0, 0, 0, 0}) little(common, static_cast<std::uint64_t>(field), 2);
    little(common, millrace::crc32_of(content), 4);
    for (int i = 0; i < 2; ++i) little(common, content.size(), 4);
    little(common, name.size(), 2);
    little(common, 0, 2);
    directory += std::string("PK\1\2\24\0", 6) + common + std::string(10, '\0');
    little(directory, text.size(), 4);
    directory += name;
    text += "PK\3\4" + common + name + content;
  }
  const std::size_t begin = text.size();
  text += directory + std::string("PK\5\6\0\0\0\0", 8);
  for (int i = 0; i < 2; ++i) little(text, members.size(), 2);
  little(text, directory.size(), 4);
  little(text, begin, 4);
  little(text, 0, 2);
  return text;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace millrace;
  std::string bytes(text_of(data, size));
  if (bytes.starts_with('\x80'))
    bytes = archive_of({{"a/data.pkl", bytes}, {"a/data/0", std::string(64, 'x')}});
  const MemoryFile file(bytes);
  // A file of PyTorch in this process, not in the one that a fault would end.
  const Result<SavedTensors> found =
      is_pt_file(file.path()) ? tensors_in(bytes, file.path(), "") : open_saved_tensors(file.path());
  if (!found) return require_explained(found), 0;
  for (const auto& [name, tensor] : found->tensors) {
    require(tensor.elements.size() == tensor.shape.bytes());
    require(tensor.elements.size() <= bytes.size());
    const TensorDifference same = difference_of(tensor, tensor);
    require(same.different == 0);
  }
  return 0;
}
