// Folders of torch.distributed.checkpoint: the metadata are the input, the pieces are those that PyTorch
// wrote.
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "driver/checkpoint/saved_tensors.h"
#include "tests/fuzz/fuzz_harness.h"

namespace {

/// A folder with the pieces of tests/driver/state_dicts/dcp-sharded.
class Folder {
 public:
  Folder() {
    char name[] = "/tmp/dcp-fuzz-XXXXXX";
    millrace::require(::mkdtemp(name) != nullptr);
    path_ = name;
    for (const char* shard : {"__0_0.distcp", "__1_0.distcp"})
      std::filesystem::copy(
          std::filesystem::path(MILLRACE_SOURCE_DIR "/tests/driver/state_dicts/dcp-sharded") / shard,
          path_ / shard);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace millrace;
  static const Folder folder;
  std::ofstream(folder.path() / ".metadata", std::ios::binary) << text_of(data, size);
  for (const char* key : {"", "model"}) {
    const Result<SavedTensors> found = open_saved_tensors(folder.path().string(), key);
    if (!found) {
      require_explained(found);
      continue;
    }
    for (const auto& [name, tensor] : found->tensors) require(tensor.elements.size() == tensor.shape.bytes());
  }
  return 0;
}
