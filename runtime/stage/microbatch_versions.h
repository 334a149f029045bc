// Selects the version of the weights that a microbatch uses.
#pragma once

#include <algorithm>
#include <optional>

#include "runtime/schedule/schedule_stream.h"
#include "runtime/stage/parameter_store.h"

namespace millrace {

/// Pins a version in the store from a microbatch's forward to its last backward. Not thread-safe.
class MicrobatchVersions {
 public:
  /// `store` must outlive the object. Microbatches use the newest version at their forward, until follow().
  explicit MicrobatchVersions(ParameterStore& store) : store_(store) {}

  /// Starts an asynchronous run: microbatch m uses version max(oldest, current + m / per_version - lag),
  /// where `current` is the version now. This rank has the microbatches that are `replica` modulo `replicas`.
  void follow(const VersionRule& rule, VersionId oldest, int replica, int replicas) {
    run_ = {rule, store_.current(), oldest, replicas};
    store_.keep_from(version_for(replica));
  }
  bool asynchronous() const { return run_.has_value(); }
  int replicas() const { return run_ ? run_->replicas : 1; }

  VersionId pin(MicrobatchId microbatch) {
    if (!run_) return store_.pin(microbatch);
    const VersionId version = version_for(microbatch.value);
    store_.pin(microbatch, version);
    return version;
  }
  void release(MicrobatchId microbatch) {
    store_.release(microbatch);
    if (run_) store_.keep_from(version_for(microbatch.value + run_->replicas));
  }

 private:
  VersionId version_for(std::int64_t microbatch) const {
    return std::max(run_->oldest,
                    VersionId(run_->first.value + microbatch / run_->rule.per_version - run_->rule.lag));
  }

  ParameterStore& store_;
  struct Run {
    VersionRule rule;
    VersionId first, oldest;
    int replicas;
  };
  std::optional<Run> run_;
};

}  // namespace millrace
