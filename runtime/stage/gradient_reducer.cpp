#include "runtime/stage/gradient_reducer.h"

#include <map>
#include <string>
#include <utility>

#include <ATen/ops/cat.h>

namespace millrace {

GradientReducer::GradientReducer(ParameterStore& store, Communicator* replicas, const StageProgram& program,
                                 std::int64_t bucket_bytes)
    : store_(store), replicas_(replicas), stage_(program.stage) {
  if (!replicas) return;
  const auto element = static_cast<std::int64_t>(store.flat_gradient().element_size());
  bool behind_table = false;
  for (int i = static_cast<int>(program.steps.size()) - 1; i >= 0; --i) {
    if (program.steps[i].frozen) continue;
    if (const auto table = store.table(i)) {
      tables_.push_back(*table);
      behind_table = true;
      continue;
    }
    const auto [begin, end] = store.gradient_ranges(i).front();
    const bool open = !buckets_.empty() && !std::exchange(behind_table, false) &&
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

/// Replicas read different rows of a table. They exchange which rows, then sum those that any replica has
/// touched. An element is summed in rank order here too, so its bits are those of a sum of whole tables.
void GradientReducer::reduce_tables() {
  std::map<std::size_t, at::Tensor> rows;
  if (!tables_.empty()) {
    const std::string of_stage = ", stage " + std::to_string(stage_.value);
    std::vector<at::Tensor> masks, parts;
    std::vector<std::int64_t> sizes, lengths;
    for (const std::size_t slot : tables_) {
      masks.push_back(store_.touched_mask(slot));
      sizes.push_back(masks.back().numel());
    }
    const at::Tensor mask = at::cat(masks);
    replicas_->all_reduce(mask, "REDUCE of the rows of tables" + of_stage)->wait();
    const std::vector<at::Tensor> counts = mask.split_with_sizes(sizes);
    for (std::size_t t = 0; t < tables_.size(); ++t) {
      const at::Tensor touched = counts[t].nonzero().flatten();
      rows[tables_[t]] = touched;
      parts.push_back(store_.view(store_.flat_gradient(), tables_[t]).index_select(0, touched).flatten());
      lengths.push_back(parts.back().numel());
    }
    const at::Tensor sums = at::cat(parts);
    replicas_->all_reduce(sums, "REDUCE of tables" + of_stage)->wait();
    const std::vector<at::Tensor> summed = sums.split_with_sizes(lengths);
    for (std::size_t t = 0; t < tables_.size(); ++t) {
      const at::Tensor table = store_.view(store_.flat_gradient(), tables_[t]);
      table.index_copy_(0, rows[tables_[t]], summed[t].view({-1, table.size(1)}));
    }
  }
  store_.touch_all(rows);  // marks every other parameter as a whole
}

void GradientReducer::finish() {
  if (!replicas_) return;
  ready(0);
  for (const TiedUse& use : store_.tied())
    pending_.push_back(replicas_->all_reduce(use.gradient, "REDUCE of the tied gradient of " + use.owner));
  for (auto& pending : pending_) pending->wait();
  reduce_tables();
  pending_.clear();
  next_ = 0;
}

}  // namespace millrace
