// What a rank holds at most, by the order of its list.
#include <algorithm>
#include <map>
#include <utility>

#include "runtime/schedule/schedule.h"

namespace millrace {
namespace {

/// Live versions of one stage on one rank: the current one and those that a microbatch still needs.
class LiveVersions {
 public:
  void forward(std::int64_t version) { ++users_[version]; }
  void release(std::int64_t version) {
    const auto found = users_.find(version);
    if (found != users_.end() && --found->second == 0) users_.erase(found);
  }
  void update() { ++current_; }
  std::int64_t current() const { return current_; }
  int count() const { return static_cast<int>(users_.size()) + !users_.contains(current_); }

 private:
  std::int64_t current_ = 0;
  std::map<std::int64_t, int> users_;
};

}  // namespace

Peaks peaks_of(const Schedule& schedule, const PipelineShape& shape) {
  Peaks peaks;
  std::vector<std::int64_t> pinned(static_cast<std::size_t>(shape.num_stages()) *
                                   static_cast<std::size_t>(shape.microbatches));
  for (const auto& actions : schedule.ranks) {
    std::vector<LiveVersions> live(static_cast<std::size_t>(shape.num_stages()));
    int stash = 0, most = 0, versions = 1;
    for (const Action& a : actions) {
      if (is_transfer(a.op) || a.op == Op::Reduce || a.op == Op::BackwardInput) continue;
      LiveVersions& stage = live[static_cast<std::size_t>(a.stage.value)];
      std::int64_t& version =
          pinned[static_cast<std::size_t>(a.stage.value) * static_cast<std::size_t>(shape.microbatches) +
                 static_cast<std::size_t>(a.microbatch.value)];
      if (a.op == Op::Forward) {
        version = stage.current();
        stage.forward(version);
        most = std::max(most, ++stash);
      } else if (a.op == Op::Update) {
        stage.update();
      } else {
        stage.release(version);
        --stash;
      }
      versions = std::max(versions, stage.count());
    }
    peaks.stash.push_back(most);
    peaks.versions.push_back(versions);
  }
  return peaks;
}

}  // namespace millrace
