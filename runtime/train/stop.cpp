#include "runtime/train/stop.h"

#include <vector>

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

namespace millrace {
namespace {
// Rounds that rank 0 may be ahead of the slowest rank before it waits: a step or two is what a pipeline
// allows.
constexpr std::size_t kRoundsInFlight = 8;
}  // namespace

StopVote::StopVote(Communicator& world, const StopFlag* flag) : flag_(flag) {
  if (!flag_ || world.size() == 1) return;
  std::vector<RankId> all;
  for (int r = 0; r < world.size(); ++r) all.emplace_back(r);
  group_ = world.subgroup(all, "stop");
  start_round();
}

StopVote::~StopVote() = default;

/// Rank 0 sends its flag to everybody, the others post the receive.
void StopVote::start_round() {
  const std::uint64_t round = next_round_++;
  std::vector<Transfer> transfers;
  Round made;
  if (group_->rank().value == 0) {
    made.said = at::full({1}, flag_->load() ? 1.0 : 0.0);
    for (int r = 1; r < group_->size(); ++r)
      transfers.push_back({Direction::Send, RankId(r), round, made.said, "stop or go on"});
  } else {
    made.said = at::zeros({1});
    transfers.push_back({Direction::Receive, RankId(0), round, made.said, "stop or go on"});
  }
  made.pending = group_->exchange(transfers);
  rounds_.push_back(std::move(made));
}

bool StopVote::stop_here() {
  if (!flag_) return false;
  if (!group_) return flag_->load();
  bool stop = false;
  if (group_->rank().value == 0) {
    stop = *rounds_.back().said.const_data_ptr<float>() != 0;
    while (rounds_.size() >= kRoundsInFlight) {
      rounds_.front().pending->wait();
      rounds_.pop_front();
    }
  } else {
    rounds_.front().pending->wait();
    stop = *rounds_.front().said.const_data_ptr<float>() != 0;
    rounds_.pop_front();
  }
  start_round();
  return stop;
}

void StopVote::finish() {
  for (Round& round : rounds_) round.pending->wait();
  rounds_.clear();
}

}  // namespace millrace
