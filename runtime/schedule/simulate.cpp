#include <algorithm>
#include <limits>
#include <map>
#include <string>

#include "runtime/base/check.h"
#include "runtime/schedule/message.h"

namespace millrace {
namespace {

constexpr double kNotSent = std::numeric_limits<double>::infinity();

double cost(const std::vector<double>& costs, std::size_t index) {
  return index < costs.size() ? costs[index] : 0;
}

class Simulator {
 public:
  Simulator(const Schedule& schedule, const PipelineShape& shape, const ScheduleCosts& costs)
      : schedule_(schedule),
        shape_(shape),
        costs_(costs),
        messages_(shape),
        arrival_(messages_.size(), kNotSent),
        ranks_(schedule.ranks.size()) {
    result_.ranks.resize(ranks_.size());
    for (std::size_t r = 0; r < ranks_.size(); ++r) result_.ranks[r].reserve(schedule.ranks[r].size());
  }

  Simulation run() {
    std::vector<std::size_t> ready(ranks_.size());
    for (std::size_t r = 0; r < ready.size(); ++r) ready[r] = ready.size() - 1 - r;
    while (!ready.empty()) {
      const std::size_t r = ready.back();
      ready.pop_back();
      advance(r, ready);
    }
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      MILLRACE_CHECK(
          ranks_[r].at == schedule_.ranks[r].size(),
          "deadlock: rank " << r << " is stuck at " << to_string(schedule_.ranks[r][ranks_[r].at]));
      result_.makespan = std::max(result_.makespan, ranks_[r].time);
    }
    for (const Rank& rank : ranks_) {
      result_.busy.push_back(rank.busy);
      result_.bubble_fraction.push_back(result_.makespan > 0 ? 1 - rank.busy / result_.makespan : 0);
    }
    Peaks peaks = peaks_of(schedule_, shape_);
    result_.peak_stash = std::move(peaks.stash);
    result_.peak_versions = std::move(peaks.versions);
    return std::move(result_);
  }

 private:
  struct Rank {
    std::size_t at = 0;
    double time = 0;
    double busy = 0;
    std::map<int, std::size_t> reduces;       // by stage
    std::map<std::size_t, double> link_free;  // by receiving rank
  };
  struct Barrier {
    std::size_t arrived = 0;
    double time = 0;
    std::vector<std::size_t> waiting;
  };

  void finish(std::size_t r, double start, double end) {
    result_.ranks[r].push_back({schedule_.ranks[r][ranks_[r].at], start, end});
    ranks_[r].time = end;
    ++ranks_[r].at;
  }

  double duration(const Action& a) const {
    const std::size_t s = static_cast<std::size_t>(a.stage.value);
    switch (a.op) {
      case Op::Forward:
        return cost(costs_.forward, s);
      case Op::Backward:
        return cost(costs_.backward_input, s) + cost(costs_.backward_weight, s);
      case Op::BackwardInput:
        return cost(costs_.backward_input, s);
      case Op::BackwardWeight:
        return cost(costs_.backward_weight, s);
      case Op::Reduce:
        return cost(costs_.reduce, s);
      case Op::Update:
        return cost(costs_.update, s);
      default:
        return 0;
    }
  }

  /// Runs rank `r` until it waits. Ranks that it wakes are appended to `ready`.
  void advance(std::size_t r, std::vector<std::size_t>& ready) {
    Rank& rank = ranks_[r];
    while (rank.at < schedule_.ranks[r].size()) {
      const Action& a = schedule_.ranks[r][rank.at];
      if (is_transfer(a.op)) {
        const auto message = static_cast<std::size_t>(messages_.of(a));
        if (is_send(a.op)) {
          double& free = rank.link_free[static_cast<std::size_t>(a.peer.value)];
          free = std::max(free, rank.time) + cost(costs_.transfer, messages_.link_of(message));
          arrival_[message] = free;
          finish(r, rank.time, rank.time);
          if (auto waiter = waiting_.find(message); waiter != waiting_.end()) {
            ready.push_back(waiter->second);
            waiting_.erase(waiter);
          }
        } else if (arrival_[message] == kNotSent) {
          waiting_[message] = r;
          return;
        } else {
          finish(r, rank.time, std::max(rank.time, arrival_[message]));
        }
      } else if (a.op == Op::Reduce && !reduce(r, a, ready)) {
        return;
      } else if (a.op != Op::Reduce) {
        const double seconds = duration(a);
        rank.busy += seconds;
        finish(r, rank.time, rank.time + seconds);
      }
    }
  }

  /// The k-th reduce of a stage starts when all replicas have arrived. True if the rank went past it.
  bool reduce(std::size_t r, const Action& a, std::vector<std::size_t>& ready) {
    Rank& rank = ranks_[r];
    Barrier& barrier = barriers_[{a.stage.value, rank.reduces[a.stage.value]}];
    ++barrier.arrived;
    barrier.time = std::max(barrier.time, rank.time);
    if (barrier.arrived < static_cast<std::size_t>(shape_.replicas(a.stage))) {
      barrier.waiting.push_back(r);
      return false;
    }
    barrier.waiting.push_back(r);
    for (std::size_t member : barrier.waiting) {
      finish(member, ranks_[member].time, barrier.time + duration(a));
      ++ranks_[member].reduces[a.stage.value];
      if (member != r) ready.push_back(member);
    }
    return true;
  }

  const Schedule& schedule_;
  const PipelineShape& shape_;
  const ScheduleCosts& costs_;
  MessageIndex messages_;
  std::vector<double> arrival_;
  std::vector<Rank> ranks_;
  std::map<std::size_t, std::size_t> waiting_;  // message -> rank
  std::map<std::pair<int, std::size_t>, Barrier> barriers_;
  Simulation result_;
};

}  // namespace

Simulation simulate(const Schedule& schedule, const PipelineShape& shape, const ScheduleCosts& costs) {
  return Simulator(schedule, shape, costs).run();
}

}  // namespace millrace
