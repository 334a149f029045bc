// One file a key: write beside, rename, so that a reader sees nothing or all of it.
#include "runtime/base/error.h"
#include "runtime/base/files.h"
#include "runtime/comm/store.h"

namespace millrace {
namespace {

class FileStore final : public Store {
 public:
  FileStore(std::string folder, Clock& clock) : folder_(std::move(folder)), clock_(clock) {}

  void set(const std::string& key, const std::string& value) override {
    if (Status written = write_file_atomically(path(key), value); !written)
      throw PeerError("rendezvous: " + to_string(written.problems()), "all ranks need to write there");
  }

  std::string get(const std::string& key, std::chrono::milliseconds deadline) override {
    const TimePoint start = clock_.now();
    auto pause = std::chrono::microseconds(50);
    for (;;) {
      if (std::filesystem::exists(path(key))) {
        if (Result<std::string> value = read_file(path(key))) return *value;
      }
      if (clock_.now() - start > deadline) {
        throw PeerError("rendezvous: key '" + key + "' did not arrive in " + folder_ + " within " +
                            std::to_string(deadline.count()) + " ms",
                        "did all ranks start?");
      }
      clock_.sleep_until(clock_.now() + pause);
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
  Clock& clock_;
};

}  // namespace

std::shared_ptr<Store> make_file_store(const std::string& folder, Clock& clock) {
  return std::make_shared<FileStore>(folder, clock);
}

}  // namespace millrace
