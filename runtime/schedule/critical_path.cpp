// Walks a timeline backwards from its end: each action was bound by the one before it on its rank, or, if it
// waited, by the message or the replica that it waited for.
#include <algorithm>

#include "runtime/base/check.h"
#include "runtime/schedule/message.h"
#include "runtime/schedule/simulate.h"

namespace millrace {
namespace {

struct Spot {
  std::size_t rank = 0;
  std::size_t at = 0;
};

class Walk {
 public:
  Walk(const Simulation& simulation, const PipelineShape& shape, Transport transport)
      : simulation_(simulation),
        shape_(shape),
        transport_(transport),
        messages_(shape),
        sends_(messages_.size()),
        receives_(transport == Transport::Rendezvous ? messages_.size() : 0),
        reduces_(static_cast<std::size_t>(shape.num_stages())) {
    for (std::size_t r = 0; r < simulation.ranks.size(); ++r) {
      for (std::size_t i = 0; i < simulation.ranks[r].size(); ++i) note(r, i);
    }
  }

  std::vector<CriticalStep> run() {
    Spot place = last();
    double time = simulation_.makespan;
    // The next step ends at `time`, at or before `place`; place.at is one past it.
    while (time > 0 && place.at > 0) {
      const TimedAction& t = simulation_.ranks[place.rank][place.at - 1];
      if (is_transfer(t.action.op)) {
        transfer(place, time);
      } else if (t.action.op == Op::Reduce) {
        reduce(place, time);
      } else {
        if (t.end > t.start) steps_.push_back({t.action, rank_id(place), -1, t.start, t.end});
        time = t.start;
        --place.at;
        if (end_before(place) < time && t.end > t.start) meeting(place, t);
      }
    }
    std::ranges::reverse(steps_);
    return std::move(steps_);
  }

 private:
  static RankId rank_id(const Spot& place) { return RankId(static_cast<int>(place.rank)); }
  const TimedAction& timed(const Spot& place) const { return simulation_.ranks[place.rank][place.at]; }
  std::size_t message_of(const Action& a) const {
    const std::int64_t message = messages_.of(a);
    MILLRACE_CHECK(message >= 0, to_string(a) << " belongs to no link of the shape");
    return static_cast<std::size_t>(message);
  }

  void note(std::size_t r, std::size_t i) {
    const Action& a = simulation_.ranks[r][i].action;
    if (a.op == Op::Reduce) {
      auto& group = reduces_[a.stage.value];
      group.push_back({r, i});
    } else if (is_send(a.op)) {
      sends_[message_of(a)] = {r, i};
    } else if (is_transfer(a.op) && !receives_.empty()) {
      receives_[message_of(a)] = {r, i};
    }
  }

  Spot last() const {
    Spot place;
    double latest = -1;
    for (std::size_t r = 0; r < simulation_.ranks.size(); ++r) {
      double end = 0;
      std::size_t size = simulation_.ranks[r].size();
      for (std::size_t i = size; i-- > 0;) {  // the last exchange ends with its latest transfer
        end = std::max(end, simulation_.ranks[r][i].end);
        if (!is_transfer(simulation_.ranks[r][i].action.op)) break;
      }
      if (end > latest) latest = end, place = {r, size};
    }
    return place;
  }

  /// When the rank of `place` came to what it did there.
  double end_before(const Spot& place) const {
    double end = 0;
    for (std::size_t i = place.at; i-- > 0;) {
      end = std::max(end, simulation_.ranks[place.rank][i].end);
      if (!is_transfer(simulation_.ranks[place.rank][i].action.op)) break;
    }
    return end;
  }

  /// To the replica that came last to a computation within which all of them meet.
  void meeting(Spot& place, const TimedAction& t) const {
    for (const RankId rank : shape_.ranks_of_stage[t.action.stage.value]) {
      const auto& list = simulation_.ranks[rank.value];
      for (std::size_t i = 0; i < list.size(); ++i) {
        if (list[i].action.op != t.action.op || list[i].action.stage != t.action.stage ||
            list[i].start != t.start)
          continue;
        if (const Spot there{static_cast<std::size_t>(rank.value), i}; end_before(there) == t.start)
          place = there;
      }
    }
  }

  void transfer(Spot& place, double& time) {
    if (transport_ == Transport::Rendezvous) return exchange(place, time);
    const TimedAction& t = simulation_.ranks[place.rank][place.at - 1];
    --place.at;
    if (t.end == t.start) return;
    if (is_send(t.action.op)) {  // a blocking send
      steps_.push_back({t.action, rank_id(place), link_of(t.action), t.start, t.end});
      time = t.start;
      return;
    }
    place = sends_[message_of(t.action)];
    time = timed(place).start;
    steps_.push_back({t.action, RankId(t.action.peer.value), link_of(t.action), time, t.end});
    steps_.back().rank = RankId(static_cast<int>(place.rank));
  }

  /// The transfer of the exchange that ended it; from there to whoever posted it last.
  void exchange(Spot& place, double& time) {
    const auto& actions = simulation_.ranks[place.rank];
    std::size_t begin = place.at;
    while (begin > 0 && is_transfer(actions[begin - 1].action.op)) --begin;
    std::size_t latest = begin;
    for (std::size_t i = begin; i < place.at; ++i) {
      if (actions[i].end > actions[latest].end) latest = i;
    }
    const TimedAction& t = actions[latest];
    if (!(t.end > t.start)) {
      place.at = begin;
      return;
    }
    const std::size_t message = message_of(t.action);
    Spot other = is_send(t.action.op) ? receives_[message] : sends_[message];
    const bool mine = t.start >= timed(other).start;
    const double posted = std::max(t.start, timed(other).start);
    if (time > posted) steps_.push_back({t.action, rank_id(place), link_of(t.action), posted, time});
    if (!mine) {
      const auto& peer = simulation_.ranks[other.rank];
      while (other.at > 0 && is_transfer(peer[other.at - 1].action.op)) --other.at;
      place = other;
    } else {
      place.at = begin;
    }
    time = posted;
  }

  /// The reduce, then the replica that came to it last.
  void reduce(Spot& place, double& time) {
    const TimedAction& t = simulation_.ranks[place.rank][place.at - 1];
    Spot latest = {place.rank, place.at - 1};
    for (const Spot& other : reduces_[t.action.stage.value]) {
      if (timed(other).end == t.end && timed(other).start > timed(latest).start) latest = other;
    }
    const TimedAction& bound = timed(latest);
    if (bound.end > bound.start) {
      steps_.push_back({bound.action, rank_id(latest), -1, bound.start, bound.end});
    }
    time = bound.start;
    place = latest;
  }

  int link_of(const Action& a) const { return static_cast<int>(messages_.link_of(message_of(a))); }

  const Simulation& simulation_;
  const PipelineShape& shape_;
  Transport transport_;
  MessageIndex messages_;
  std::vector<Spot> sends_, receives_;      // by message
  std::vector<std::vector<Spot>> reduces_;  // by stage
  std::vector<CriticalStep> steps_;
};

}  // namespace

std::vector<CriticalStep> critical_path(const Simulation& simulation, const PipelineShape& shape,
                                        Transport transport) {
  return Walk(simulation, shape, transport).run();
}

}  // namespace millrace
