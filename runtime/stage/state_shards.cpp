#include "runtime/stage/state_shards.h"

#include <algorithm>

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

namespace millrace {
namespace {
// Tags of the messages among the replicas: parts to all, and parts to the first. The group has no other
// messages.
constexpr std::uint64_t kToAll = 1, kToFirst = 2;
}  // namespace

StateShards::StateShards(const ParameterStore& store, Communicator* replicas) : replicas_(replicas) {
  const std::int64_t elements = store.flat_weights().numel();
  const auto blocks = blocks_of(store.slots(), elements);
  const int shards = replicas ? replicas->size() : 1;
  for (int shard = 0; shard < shards; ++shard) ranges_.push_back(shard_of(blocks, elements, shard, shards));
  if (replicas) rank_ = static_cast<std::size_t>(replicas->rank().value);
}

void StateShards::all_gather_(const at::Tensor& flat) {
  if (!replicas_) return;
  std::vector<Transfer> transfers;
  const auto part = [&](std::size_t rank) {
    return flat.narrow(0, ranges_[rank].begin, ranges_[rank].size());
  };
  for (std::size_t peer = 0; peer < ranges_.size(); ++peer) {
    if (peer == rank_) continue;
    const RankId id(static_cast<int>(peer));
    if (mine().size() > 0)
      transfers.push_back({Direction::Send, id, kToAll, part(rank_), "SEND of the updated weights"});
    if (ranges_[peer].size() > 0)
      transfers.push_back({Direction::Receive, id, kToAll, part(peer), "RECEIVE of the updated weights"});
  }
  if (!transfers.empty()) replicas_->exchange(transfers)->wait();
}

at::Tensor StateShards::gather_to_first(const at::Tensor& part) {
  if (!replicas_) return part;
  std::vector<Transfer> transfers;
  at::Tensor whole;
  if (rank_ == 0) {
    whole = at::empty({ranges_.back().end}, part.options());
    whole.narrow(0, mine().begin, mine().size()).copy_(part);
    for (std::size_t peer = 1; peer < ranges_.size(); ++peer) {
      if (ranges_[peer].size() == 0) continue;
      transfers.push_back({Direction::Receive, RankId(static_cast<int>(peer)), kToFirst,
                           whole.narrow(0, ranges_[peer].begin, ranges_[peer].size()),
                           "RECEIVE of the rule's state"});
    }
  } else if (mine().size() > 0) {
    transfers.push_back({Direction::Send, RankId(0), kToFirst, part, "SEND of the rule's state"});
  }
  if (!transfers.empty()) replicas_->exchange(transfers)->wait();
  return whole;
}

void StateShards::sum_(std::vector<double>& values) {
  if (!replicas_ || values.empty()) return;
  at::Tensor sums = at::tensor(values, at::kDouble);
  replicas_->all_reduce(sums, "norms of parameters")->wait();
  std::copy_n(sums.const_data_ptr<double>(), values.size(), values.begin());
}

}  // namespace millrace
