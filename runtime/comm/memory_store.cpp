#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>

#include "runtime/base/error.h"
#include "runtime/comm/store.h"

namespace millrace {
namespace {

class MemoryStore final : public Store {
 public:
  explicit MemoryStore(Clock& clock) : clock_(clock) {}
  void set(const std::string& key, const std::string& value) override {
    std::lock_guard lock(mutex_);
    Entry& entry = entries_[key];
    entry.value = value;
    clock_.notify_all(entry.arrived);
  }
  std::string get(const std::string& key, std::chrono::milliseconds deadline) override {
    std::unique_lock lock(mutex_);
    Entry& entry = entries_[key];
    if (!clock_.wait_until(lock, entry.arrived, clock_.now() + deadline,
                           [&] { return entry.value.has_value(); })) {
      throw PeerError("key '" + key + "' did not arrive within " + std::to_string(deadline.count()) + " ms",
                      "did all ranks start?");
    }
    return *entry.value;
  }

 private:
  /// Each key wakes its own waiters: thousands of ranks wait for one while others' keys come in.
  struct Entry {
    std::optional<std::string> value;
    std::condition_variable arrived;
  };

  Clock& clock_;
  std::mutex mutex_;                      // guards entries_
  std::map<std::string, Entry> entries_;  ///< of keys that were set or waited for
};

class PrefixStore final : public Store {
 public:
  PrefixStore(std::string prefix, std::shared_ptr<Store> inner)
      : prefix_(std::move(prefix)), inner_(std::move(inner)) {}
  void set(const std::string& key, const std::string& value) override {
    inner_->set(prefix_ + "/" + key, value);
  }
  std::string get(const std::string& key, std::chrono::milliseconds deadline) override {
    return inner_->get(prefix_ + "/" + key, deadline);
  }

 private:
  std::string prefix_;
  std::shared_ptr<Store> inner_;
};

}  // namespace

std::shared_ptr<Store> make_memory_store(Clock& clock) {
  return std::make_shared<MemoryStore>(clock);
}
std::shared_ptr<Store> make_prefix_store(const std::string& prefix, std::shared_ptr<Store> inner) {
  return std::make_shared<PrefixStore>(prefix, std::move(inner));
}

}  // namespace millrace
