#include "runtime/stage/running_statistics.h"

#include <algorithm>
#include <span>

#include <ATen/ops/cat.h>

namespace millrace {

/// If all replicas had the same number of microbatches, the mean is that of one replica with the means of
/// their batches. It is computed in double, so that averaging equal values changes nothing. Counters use the
/// maximum, which is replica 0's.
void RunningStatistics::join() {
  if (!parts_.replicas) return;
  std::vector<at::Tensor> flat;
  const auto buffers = parts_.store.named_buffers();
  for (const auto& [name, buffer] : buffers) flat.push_back(buffer.reshape({-1}).to(at::kDouble));
  if (flat.empty()) return;
  at::Tensor sums = at::cat(flat);
  parts_.replicas->all_reduce(sums, "mean of running statistics, stage " + std::to_string(parts_.stage.value))
      ->wait();
  sums.div_(static_cast<double>(parts_.replicas->size()));
  std::int64_t at = 0;
  for (const auto& [name, buffer] : buffers) {
    at::Tensor mean = sums.narrow(0, at, buffer.numel()).view(buffer.sizes());
    buffer.copy_(buffer.is_floating_point() ? mean : mean.ceil());
    at += buffer.numel();
  }
}

/// Averages before each forward but the first, so that a run that resumes from a cut does the same.
void RunningStatistics::before_forward(MicrobatchId microbatch, int replicas) {
  if (!parts_.store.has_buffers()) return;
  if (microbatch.value >= replicas) join();
  const std::int64_t round = microbatch.value / replicas * replicas;
  if (is_cut_ && round > 0 && is_cut_(round)) at_cut_.emplace(round, parts_.store.copy_of_buffers());
}

void RunningStatistics::pause(std::int64_t cut, bool asynchronous) {
  const auto kept = at_cut_.find(cut);
  if (kept != at_cut_.end()) {
    of_newest_ = std::move(kept->second);
    parts_.store.exchange_buffers(*of_newest_);
  } else if (asynchronous) {
    join();
  }
  at_cut_.erase(at_cut_.begin(), at_cut_.upper_bound(cut));
}

void RunningStatistics::resume() {
  if (of_newest_) parts_.store.exchange_buffers(*of_newest_);
  of_newest_.reset();
}

RunningStatistics::Kept RunningStatistics::copies(bool statistics) const {
  Kept kept;
  const ParameterStore& store = parts_.store;
  if (statistics && store.has_buffers()) kept.buffers = store.copy_of_buffers();
  for (std::size_t s = 0; s < store.slots().size(); ++s)
    if (store.slots()[s].written) kept.written.push_back({s, store.view(store.flat_weights(), s).clone()});
  return kept;
}

void RunningStatistics::restore(const Kept& kept, const std::vector<char>& jobs) const {
  for (std::size_t layer = 0; layer < kept.buffers.size(); ++layer) {
    const std::span<at::Tensor> buffers = parts_.store.buffers(static_cast<int>(layer));
    const std::size_t per_job = buffers.size() / jobs.size();
    for (std::size_t i = 0; i < buffers.size(); ++i)
      if (jobs[i / per_job]) buffers[i].copy_(kept.buffers[layer][i]);
  }
  for (const Kept::Written& one : kept.written)
    if (jobs[std::max(parts_.store.slots()[one.slot].job, 0)])
      parts_.store.view(parts_.store.flat_weights(), one.slot).copy_(one.value);
}

void RunningStatistics::set_ended(const std::vector<char>& ended) {
  if (ended == ended_) return;
  ended_ = ended;
  at_end_ = copies(true);
}

void RunningStatistics::restore_ended() {
  if (!ended_.empty()) restore(at_end_, ended_);
}

void RunningStatistics::keep(bool statistics) {
  at_begin_ = copies(statistics);
}

void RunningStatistics::put_back(const std::vector<char>& skipped) {
  if (std::ranges::find(skipped, 1) != skipped.end()) restore(at_begin_, skipped);
}

}  // namespace millrace
