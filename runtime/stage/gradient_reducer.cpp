#include "runtime/stage/gradient_reducer.h"

#include <string>

namespace millrace {

GradientReducer::GradientReducer(ParameterStore& store, Communicator* replicas, const StageProgram& program,
                                 std::int64_t bucket_bytes)
    : store_(store), replicas_(replicas), stage_(program.stage) {
  if (!replicas) return;
  const auto element = static_cast<std::int64_t>(store.flat_gradient().element_size());
  for (int i = static_cast<int>(program.steps.size()) - 1; i >= 0; --i) {
    if (program.steps[i].frozen) continue;
    const auto [begin, end] = store.gradient_ranges(i).front();
    const bool open = !buckets_.empty() &&
                      (buckets_.back().end - buckets_.back().begin) * element * store.jobs() < bucket_bytes;
    if (open) {
      buckets_.back().begin = begin;
      buckets_.back().first_layer = i;
    } else {
      buckets_.push_back({i, begin, end});
    }
  }
}

void GradientReducer::ready(int layer) {
  if (!replicas_) return;
  for (; next_ < buckets_.size() && buckets_[next_].first_layer >= layer; ++next_) {
    const Bucket& bucket = buckets_[next_];
    if (bucket.begin == bucket.end) continue;
    for (int job = 0; job < store_.jobs(); ++job) {
      pending_.push_back(replicas_->all_reduce(
          store_.of_job(store_.flat_gradient(), job).narrow(0, bucket.begin, bucket.end - bucket.begin),
          "REDUCE of bucket " + std::to_string(next_) + ", stage " + std::to_string(stage_.value)));
    }
  }
}

void GradientReducer::finish() {
  if (!replicas_) return;
  ready(0);
  for (const TiedUse& use : store_.tied())
    pending_.push_back(replicas_->all_reduce(use.gradient, "REDUCE of the tied gradient of " + use.owner));
  for (auto& pending : pending_) pending->wait();
  store_.touch_all();  // the other replicas have read other rows
  pending_.clear();
  next_ = 0;
}

}  // namespace millrace
