// An asynchronous schedule of any length: its beginning, and one period that repeats.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/schedule/schedule.h"

namespace millrace {

/// The lists of make_schedule without an end, in memory that does not depend on the length of the run. The
/// run is cut after every `period()` minibatches: cut c of a rank stands right after its Update of all
/// minibatches below c. A rank that has come to a cut has given the others all that they need to come to
/// theirs, so that all may rest there (save, evaluate) with the pipeline full. A run that ends after
/// minibatch e - 1 (e: a cut) leaves out all actions of minibatches from e on. Immutable; thread-safe.
class ScheduleStream {
 public:
  /// Makes a stream and proves it: `check` covers the beginning, two periods and the end, and the periods and
  /// the messages under way between them must be equal. `shape.microbatches` is not read. Problems as
  /// make_schedule and check.
  static Result<ScheduleStream> make(ScheduleKind kind, PipelineShape shape, Transport transport);

  /// Minibatches: a multiple of the replicas of every stage, and of what 2BW applies at once.
  std::int64_t period() const { return period_; }
  /// Returns the actions of `rank` between two cuts; `from` 0 begins with the fill.
  std::vector<Action> actions(RankId rank, std::int64_t from, std::int64_t to) const;
  /// Returns the receives of `rank` after `cut` whose messages were sent before `cut`, in the order of its
  /// list.
  std::vector<Action> under_way(RankId rank, std::int64_t cut) const;

 private:
  /// The actions from one cut to the next. Index: RankId.
  struct Block {
    std::vector<std::vector<Action>> actions, under_way;
    bool operator==(const Block&) const = default;
  };
  static Block shifted(Block block, std::int64_t by);
  const Block& block_at(std::int64_t index, std::int64_t& shift) const;

  std::int64_t period_ = 1;
  std::vector<Block> blocks_;  ///< the last one repeats
};

/// The version that the forward of microbatch m uses, counted from the start of the run:
/// max(oldest, m / per_version - lag), where `oldest` is 0 unless the run goes on with older versions. The
/// same as forward_versions, without a list. Asynchronous kinds only.
struct VersionRule {
  std::int64_t per_version = 1;  ///< microbatches of all replicas
  std::int64_t lag = 0;
  bool operator==(const VersionRule&) const = default;
};
VersionRule version_rule(ScheduleKind kind, const PipelineShape& shape, StageId stage);

}  // namespace millrace
