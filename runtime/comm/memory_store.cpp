#include <condition_variable>
#include <map>
#include <mutex>

#include "runtime/base/error.h"
#include "runtime/comm/store.h"

namespace millrace {
namespace {

class MemoryStore final : public Store {
 public:
  explicit MemoryStore(Clock& clock) : clock_(clock) {}
  void set(const std::string& key, const std::string& value) override {
    std::lock_guard lock(mutex_);
    values_[key] = value;
    clock_.notify_all(changed_);
  }
  std::string get(const std::string& key, std::chrono::milliseconds deadline) override {
    std::unique_lock lock(mutex_);
    if (!clock_.wait_until(lock, changed_, clock_.now() + deadline, [&] { return values_.contains(key); })) {
      throw PeerError("key '" + key + "' did not arrive within " + std::to_string(deadline.count()) + " ms",
                      "did all ranks start?");
    }
    return values_.at(key);
  }

 private:
  Clock& clock_;
  std::mutex mutex_;  // guards values_
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
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
