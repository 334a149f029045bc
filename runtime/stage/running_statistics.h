// The running statistics of a stage's batch normalisations: joined over replicas, kept at cuts, and frozen
// for jobs that have ended. Weights that forwards write are frozen with them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "runtime/base/ids.h"
#include "runtime/stage/stage_parts.h"

namespace millrace {

/// Reads and changes the store's buffers. Not thread-safe. Exceptions: PeerError.
class RunningStatistics {
 public:
  /// `parts` must outlive the object.
  explicit RunningStatistics(const ExecutorParts& parts) : parts_(parts) {}

  /// Makes them the mean over the replicas, which have seen other microbatches. Collective over the replicas;
  /// does nothing without.
  void join();

  /// Names the cuts of an asynchronous run: statistics are kept as they are before microbatches `cut` and
  /// later.
  void set_cuts(std::function<bool(std::int64_t microbatch)> is_cut) { is_cut_ = std::move(is_cut); }
  /// An asynchronous forward of `microbatch` comes next. `replicas`: ranks of the stage.
  void before_forward(MicrobatchId microbatch, int replicas);
  /// The statistics become those of the microbatches below `cut`. resume() takes that back. Collective in an
  /// asynchronous run.
  void pause(std::int64_t cut, bool asynchronous);
  void resume();

  /// Freezes the statistics of the jobs that have ended, and the parameters that their forwards write to,
  /// from now on. `ended`: by job.
  void set_ended(const std::vector<char>& ended);
  /// Puts back what forwards have changed of jobs that have ended. Nothing has read it since.
  void restore_ended();

  /// Keeps the weights that forwards write, and with `statistics` those too, as they are before a step.
  /// put_back() makes them so again for the jobs that skip the step, by job of `skipped`.
  void keep(bool statistics);
  void put_back(const std::vector<char>& skipped);

 private:
  /// What forwards change: buffers, and parameters that they write to.
  struct Kept {
    ParameterStore::Buffers buffers;  ///< of all jobs
    struct Written {
      std::size_t slot;
      at::Tensor value;
    };
    std::vector<Written> written;
  };
  Kept copies(bool statistics) const;
  void restore(const Kept& kept, const std::vector<char>& jobs) const;

  const ExecutorParts& parts_;
  std::function<bool(std::int64_t)> is_cut_;                ///< null: no cuts
  std::map<std::int64_t, ParameterStore::Buffers> at_cut_;  ///< before these microbatches
  std::optional<ParameterStore::Buffers> of_newest_{};  ///< while paused: those of microbatches after the cut
  std::vector<char> ended_;                             ///< by job; empty: none
  Kept at_end_;                                         ///< when the newest of those ended
  Kept at_begin_;                                       ///< of the step: keep()
};

}  // namespace millrace
