// Weight versions and what a rank holds at most, by the order of its list.
#include <algorithm>
#include <map>

#include "runtime/schedule/generators.h"
#include "runtime/schedule/memory_walk.h"

namespace millrace {
namespace {

/// Live versions of one stage on one rank.
class LiveVersions {
 public:
  /// `position`: that of a backward that needs the version; the last one noted counts.
  void note_use(std::int64_t version, std::ptrdiff_t position) {
    if (static_cast<std::int64_t>(last_use_.size()) <= version)
      last_use_.resize(static_cast<std::size_t>(version) + 1, -1);
    last_use_[version] = position;
  }
  /// Change of alive().
  int release(std::int64_t version, std::ptrdiff_t position) {
    if (version >= current_ || last_use_[version] != position) return 0;
    --alive_;
    return -1;
  }
  int update(std::ptrdiff_t position) {
    const bool needed =
        current_ < static_cast<std::int64_t>(last_use_.size()) && last_use_[current_] > position;
    ++current_;
    alive_ += needed;
    return needed;
  }
  int alive() const { return alive_; }

 private:
  std::vector<std::ptrdiff_t> last_use_;
  std::int64_t current_ = 0;
  int alive_ = 1;
};

bool releases(const Action& a) {
  return a.op == Op::Backward || a.op == Op::BackwardWeight;
}

std::size_t cell_of(const PipelineShape& shape, const Action& a) {
  return static_cast<std::size_t>(a.stage.value) * static_cast<std::size_t>(shape.microbatches) +
         static_cast<std::size_t>(a.microbatch.value);
}

bool inside(const PipelineShape& shape, const Action& a) {
  return a.stage.value >= 0 && a.stage.value < shape.num_stages() && a.microbatch.value >= 0 &&
         a.microbatch.value < shape.microbatches;
}

/// Updates of the stage on its rank before each forward.
std::vector<std::int64_t> newest_versions(const Schedule& schedule, const PipelineShape& shape) {
  std::vector<std::int64_t> versions(
      static_cast<std::size_t>(shape.num_stages()) * static_cast<std::size_t>(shape.microbatches), 0);
  for (const auto& actions : schedule.ranks) {
    std::vector<std::int64_t> updates(shape.num_stages(), 0);
    for (const Action& a : actions) {
      if (!inside(shape, a)) continue;
      if (a.op == Op::Update) ++updates[a.stage.value];
      if (a.op == Op::Forward) versions[cell_of(shape, a)] = updates[a.stage.value];
    }
  }
  return versions;
}

}  // namespace

std::vector<std::int64_t> forward_versions(const Schedule& schedule, const PipelineShape& shape) {
  const std::size_t microbatches = static_cast<std::size_t>(shape.microbatches);
  if (!is_asynchronous(schedule.kind))
    return std::vector<std::int64_t>(static_cast<std::size_t>(shape.num_stages()) * microbatches, 0);
  std::vector<std::int64_t> versions = newest_versions(schedule, shape);
  const int every = shape.update_every > 0 ? shape.update_every : least_update_every(shape);
  for (std::size_t i = 0; i < versions.size(); ++i) {
    if (schedule.kind == ScheduleKind::PipeDreamVSync) versions[i] = versions[i % microbatches];
    if (updates_after_several(schedule.kind))
      versions[i] = std::max<std::int64_t>(0, static_cast<std::int64_t>(i % microbatches) / every - 1);
  }
  return versions;
}

void walk_memory(const std::vector<Action>& actions, const PipelineShape& shape,
                 const std::vector<std::int64_t>& versions,
                 const std::function<void(const Action&, const MemoryStep&)>& visit) {
  std::map<int, LiveVersions> live;  // by stage and array: few on one rank
  const auto weights_of = [&](const Action& a) {
    return a.stage.value * shape.arrays + shape.array_of(a.microbatch);
  };
  std::ptrdiff_t position = 0;
  for (const Action& a : actions) {
    ++position;
    if (releases(a)) live[weights_of(a)].note_use(versions[cell_of(shape, a)], position);
  }
  position = 0;
  for (const Action& a : actions) {
    ++position;
    MemoryStep step;
    if (is_transfer(a.op) || a.op == Op::Reduce) {
      visit(a, step);
      continue;
    }
    LiveVersions& stage = live[weights_of(a)];
    if (a.op == Op::Forward) step.stash = 1;
    if (a.op == Op::BackwardInput) step.open = 1;
    if (releases(a))
      step = {.stash = -1,
              .open = a.op == Op::BackwardWeight ? -1 : 0,
              .versions = stage.release(versions[cell_of(shape, a)], position)};
    if (a.op == Op::Update) step.versions = stage.update(position);
    step.alive = stage.alive();
    visit(a, step);
  }
}

Peaks peaks_of(const Schedule& schedule, const PipelineShape& shape) {
  Peaks peaks;
  const std::vector<std::int64_t> versions = forward_versions(schedule, shape);
  for (const auto& actions : schedule.ranks) {
    int stash = 0, most = 0, most_versions = 1;
    walk_memory(actions, shape, versions, [&](const Action&, const MemoryStep& step) {
      most = std::max(most, stash += step.stash);
      most_versions = std::max(most_versions, step.alive);
    });
    peaks.stash.push_back(most);
    peaks.versions.push_back(most_versions);
  }
  return peaks;
}

int version_limit(ScheduleKind kind, const PipelineShape& shape, StageId stage) {
  switch (kind) {
    case ScheduleKind::PipeDream:
      return warm_up_of(shape, stage) + 1;
    case ScheduleKind::PipeDreamVSync:
      return warm_up_of(shape, StageId(0)) + 1;
    case ScheduleKind::PipeDream2BW:
      return 2;
    default:
      return 1;
  }
}

}  // namespace millrace
