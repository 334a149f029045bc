// The running statistics of a stage's batch normalisations: averaged over replicas, kept at cuts, and frozen
// for completed jobs. Weights that forwards write are frozen with them.
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

/// Reads and changes the store's buffers. Not thread-safe. Throws PeerError.
class RunningStatistics {
 public:
  /// `parts` must outlive the object.
  explicit RunningStatistics(const ExecutorParts& parts) : parts_(parts) {}

  /// Replaces them by the mean over the replicas, which have seen different microbatches. Collective over the
  /// replicas; does nothing without replicas.
  void join();

  /// Sets the cuts of an asynchronous run: a copy of the statistics is kept from before microbatches `cut`
  /// and later.
  void set_cuts(std::function<bool(std::int64_t microbatch)> is_cut) { is_cut_ = std::move(is_cut); }
  /// Must be called before an asynchronous forward of `microbatch`. `replicas`: ranks of the stage.
  void before_forward(MicrobatchId microbatch, int replicas);
  /// Restores the statistics from before microbatch `cut`. resume() reverts this. Collective in an
  /// asynchronous run.
  void pause(std::int64_t cut, bool asynchronous);
  void resume();

  /// Freezes the statistics of completed jobs, and the parameters that their forwards write, from now on.
  /// `ended`: by job.
  void set_ended(const std::vector<char>& ended);
  /// Restores the tensors of completed jobs that forwards have changed. Nothing has read them since.
  void restore_ended();

  /// Keeps the weights that forwards write, and with `statistics` the running statistics too, as they are
  /// before a step. put_back() restores them for the jobs that skip the step, by job of `skipped`.
  void keep(bool statistics);
  void put_back(const std::vector<char>& skipped);

 private:
  /// The tensors that forwards change: buffers, and parameters that they write.
  struct Kept {
    ParameterStore::Buffers buffers;  ///< for all jobs
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
  std::optional<ParameterStore::Buffers> of_newest_{};  ///< while paused: the statistics from after the cut
  std::vector<char> ended_;                             ///< by job; empty: none
  Kept at_end_;                                         ///< when the most recent of them completed
  Kept at_begin_;                                       ///< at the start of the step: keep()
};

}  // namespace millrace
