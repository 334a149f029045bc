#include "runtime/train/stop.h"

#include <algorithm>
#include <vector>

#include <ATen/ops/full.h>

namespace millrace {

AnyRank::AnyRank(Communicator& world, const std::string& name, int lag)
    : lag_(static_cast<std::size_t>(lag)) {
  if (world.size() == 1) return;
  std::vector<RankId> all;
  for (int r = 0; r < world.size(); ++r) all.emplace_back(r);
  group_ = world.subgroup(all, name);
}

AnyRank::~AnyRank() = default;

bool AnyRank::next(bool mine) {
  if (!group_) return mine;
  Vote vote{.votes = at::full({1}, mine ? 1.0 : 0.0, at::kDouble)};
  vote.pending = group_->all_reduce(vote.votes, "stop or go on");
  pending_votes_.push_back(std::move(vote));
  if (pending_votes_.size() <= lag_) return false;
  pending_votes_.front().pending->wait();
  const bool any = *pending_votes_.front().votes.const_data_ptr<double>() > 0;
  pending_votes_.pop_front();
  return any;
}

void AnyRank::finish() {
  for (Vote& vote : pending_votes_) vote.pending->wait();
  pending_votes_.clear();
}

StopVote::StopVote(Communicator& world, const StopFlag* flag, const StopReach& reach)
    : flag_(flag), reach_(reach) {
  if (flag_) asked_ = std::make_unique<AnyRank>(world, "stop", reach_.lag);
}

void StopVote::completed(std::int64_t done) {
  if (!flag_ || !asked_->next(flag_->load()) || limit_ != kNever) return;
  const std::int64_t last = done + reach_.ahead;
  limit_ = (last + reach_.multiple - 1) / reach_.multiple * reach_.multiple;
}

void StopVote::finish() {
  if (asked_) asked_->finish();
}

}  // namespace millrace
