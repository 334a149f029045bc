#include <algorithm>
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

std::string joined_lines(const std::vector<std::string>& texts) {
  std::string lines;
  for (const std::string& text : texts) lines += (&text == &texts.front() ? "" : "\n") + text;
  return lines;
}

std::string agree(Store& store, const std::string& key, const std::vector<int>& ranks, int rank,
                  const std::string& says, std::chrono::milliseconds deadline, Clock& clock,
                  const std::function<std::string(const std::vector<std::string>&)>& decide) {
  using std::chrono::milliseconds;
  // The first rank reports the missing ones before the others give up on it.
  constexpr milliseconds kAnswer{5000};
  constexpr char kAgreed = 'a', kMissing = 'm';
  const std::string agreed = key + "/of/" + std::to_string(ranks.front());
  const auto of_rank = [&](int r) { return key + "/" + std::to_string(r); };
  std::string value;
  if (rank != ranks.front()) {
    if (std::ranges::binary_search(ranks, rank)) store.set(of_rank(rank), says);
    value = store.get(agreed, deadline + kAnswer);
  } else {
    const TimePoint end = clock.now() + deadline;
    std::vector<std::string> all{says};
    std::string missing;
    for (std::size_t i = 1; i < ranks.size(); ++i) {
      try {
        all.push_back(store.get(
            of_rank(ranks[i]),
            std::max(milliseconds(1), std::chrono::duration_cast<milliseconds>(end - clock.now()))));
      } catch (const PeerError&) {
        missing += (missing.empty() ? "" : ", ") + std::to_string(ranks[i]);
      }
    }
    value = missing.empty() ? kAgreed + decide(all) : kMissing + missing;
    store.set(agreed, value);
  }
  if (value.front() == kMissing)
    throw PeerError("rank " + std::to_string(rank) + ": no sign of rank(s) " + value.substr(1) + " within " +
                        std::to_string(deadline.count()) + " ms (key '" + key + "')",
                    "did all ranks start?");
  return value.substr(1);
}

std::shared_ptr<Store> make_memory_store(Clock& clock) {
  return std::make_shared<MemoryStore>(clock);
}
std::shared_ptr<Store> make_prefix_store(const std::string& prefix, std::shared_ptr<Store> inner) {
  return std::make_shared<PrefixStore>(prefix, std::move(inner));
}

}  // namespace millrace
