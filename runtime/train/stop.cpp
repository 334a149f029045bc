#include "runtime/train/stop.h"

#include <algorithm>
#include <vector>

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

namespace millrace {
namespace {
// Rounds beyond the lag that rank 0 may be ahead of the slowest rank before it waits: a step or two is what a
// pipeline allows.
constexpr std::size_t kRoundsInFlight = 8;
}  // namespace

StopVote::StopVote(Communicator& world, const StopFlag* flag, const StopReach& reach)
    : flag_(flag), reach_(reach) {
  if (!flag_ || world.size() == 1) return;
  std::vector<RankId> all;
  for (int r = 0; r < world.size(); ++r) all.emplace_back(r);
  group_ = world.subgroup(all, "stop");
  for (int i = 0; i < reach_.lag; ++i) start_round();
}

StopVote::~StopVote() = default;

/// Rank 0 sends its limit to everybody, the others post the receive.
void StopVote::start_round() {
  const std::uint64_t round = next_round_++;
  std::vector<Transfer> transfers;
  Round made;
  if (group_->rank().value == 0) {
    made.said = at::full({1}, limit_ == kNever ? 0.0 : static_cast<double>(limit_), at::kDouble);
    for (int r = 1; r < group_->size(); ++r)
      transfers.push_back({Direction::Send, RankId(r), round, made.said, "stop or go on"});
  } else {
    made.said = at::zeros({1}, at::kDouble);
    transfers.push_back({Direction::Receive, RankId(0), round, made.said, "stop or go on"});
  }
  made.pending = group_->exchange(transfers);
  rounds_.push_back(std::move(made));
}

void StopVote::completed(std::int64_t done) {
  if (!flag_) return;
  const bool decides = !group_ || group_->rank().value == 0;
  if (decides && limit_ == kNever && flag_->load()) {
    const std::int64_t last = done + (group_ ? reach_.lag : 0) + reach_.ahead;
    limit_ = (last + reach_.multiple - 1) / reach_.multiple * reach_.multiple;
  }
  if (!group_) return;
  if (decides) {
    while (rounds_.size() >= kRoundsInFlight + static_cast<std::size_t>(reach_.lag)) {
      rounds_.front().pending->wait();
      rounds_.pop_front();
    }
  } else {
    rounds_.front().pending->wait();
    if (const double said = *rounds_.front().said.const_data_ptr<double>(); said > 0)
      limit_ = static_cast<std::int64_t>(said);
    rounds_.pop_front();
  }
  start_round();
}

void StopVote::finish() {
  for (Round& round : rounds_) round.pending->wait();
  rounds_.clear();
}

}  // namespace millrace
