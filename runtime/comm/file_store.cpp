// One file a key: write beside, rename, so that a reader sees nothing or all of it.
#include <thread>

#include "runtime/base/error.h"
#include "runtime/base/files.h"
#include "runtime/comm/store.h"

namespace millrace {
namespace {

class FileStore final : public Store {
 public:
  explicit FileStore(std::string folder) : folder_(std::move(folder)) {}

  void set(const std::string& key, const std::string& value) override {
    if (Status written = write_file_atomically(path(key), value); !written)
      throw PeerError("rendezvous: " + to_string(written.problems()), "all ranks need to write there");
  }

  std::string get(const std::string& key, std::chrono::milliseconds deadline) override {
    const auto start = std::chrono::steady_clock::now();
    auto pause = std::chrono::microseconds(50);
    for (;;) {
      if (std::filesystem::exists(path(key))) {
        if (Result<std::string> value = read_file(path(key))) return *value;
      }
      if (std::chrono::steady_clock::now() - start > deadline) {
        throw PeerError("rendezvous: key '" + key + "' did not arrive in " + folder_ + " within " +
                            std::to_string(deadline.count()) + " ms",
                        "did all ranks start?");
      }
      std::this_thread::sleep_for(pause);
      pause = std::min<std::chrono::microseconds>(pause * 2, std::chrono::milliseconds(2));
    }
  }

 private:
  std::filesystem::path path(const std::string& key) const {
    static const char* digits = "0123456789abcdef";
    std::string name;
    for (unsigned char c : key) {
      if (std::isalnum(c))
        name += static_cast<char>(c);
      else
        ((name += '%') += digits[c >> 4]) += digits[c & 15];
    }
    return std::filesystem::path(folder_) / name;
  }
  std::string folder_;
};

}  // namespace

std::shared_ptr<Store> make_file_store(const std::string& folder) {
  return std::make_shared<FileStore>(folder);
}

}  // namespace millrace
