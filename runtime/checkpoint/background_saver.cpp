#include "runtime/checkpoint/background_saver.h"

#include <utility>
#include <vector>

#include "runtime/base/check.h"

namespace millrace {
namespace {

std::unique_ptr<Communicator> group_of_all(Communicator& world) {
  if (world.size() == 1) return nullptr;
  std::vector<RankId> all;
  for (int r = 0; r < world.size(); ++r) all.emplace_back(r);
  return world.subgroup(all, "checkpoints");
}

}  // namespace

BackgroundSaver::BackgroundSaver(Communicator& world, Clock& clock)
    : group_(group_of_all(world)), ranks_(group_ ? *group_ : world), thread_(clock) {}

void BackgroundSaver::start(std::function<void()> copy, Save save) {
  MILLRACE_CHECK(!task_, "a save is under way");
  copy_ = thread_.start(std::move(copy));
  task_ = thread_.start([this, save = std::move(save)] {
    copied();  // throws if the copy failed
    problem_ = save(ranks_);
  });
}

void BackgroundSaver::copied() {
  thread_.wait(*copy_);
}

std::optional<RankProblem> BackgroundSaver::finish() {
  MILLRACE_CHECK(task_, "no save is under way");
  thread_.wait(*std::exchange(task_, nullptr));
  return std::exchange(problem_, std::nullopt);
}

}  // namespace millrace
