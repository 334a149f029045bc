// Says by plain means whether a schedule is valid: the judge of check(). Quadratic; small schedules only.
#pragma once

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "runtime/schedule/schedule.h"

namespace millrace {

class Oracle {
 public:
  Oracle(const Schedule& schedule, const PipelineShape& shape) : schedule_(schedule), shape_(shape) {}

  /// Empty if valid, else a reason.
  std::string objection(Transport transport) {
    if (static_cast<int>(schedule_.ranks.size()) != shape_.num_ranks()) return "ranks";
    if (std::string what = contents(); !what.empty()) return what;
    for (std::size_t r = 0; r < schedule_.ranks.size(); ++r) {
      if (std::string what = order(r); !what.empty()) return what + " on rank " + std::to_string(r);
    }
    if (!ends(transport)) return "deadlock";
    return "";
  }

 private:
  using Key = std::tuple<int, int, std::int64_t, int, int>;
  static Key key(const Action& a) {
    const bool transfer = is_transfer(a.op);
    return {static_cast<int>(a.op), a.stage.value, a.microbatch.value, transfer ? a.peer_stage.value : 0,
            transfer ? a.peer.value : 0};
  }
  static Action make(Op op, int stage, std::int64_t m) {
    return {.op = op, .stage = StageId(stage), .microbatch = MicrobatchId(m)};
  }
  Action make(Op op, StageId stage, std::int64_t m, StageId peer) const {
    return {op, stage, MicrobatchId(m), peer, shape_.rank_of(peer, MicrobatchId(m))};
  }
  bool asynchronous() const { return is_asynchronous(schedule_.kind); }
  int per_update() const {
    return shape_.update_every > 0 ? shape_.update_every : least_update_every(shape_);
  }
  int per_update(int stage) const {
    return schedule_.kind == ScheduleKind::PipeDream2BW ? per_update() : shape_.replicas(StageId(stage));
  }

  /// Returns the number of the update, among those of the stage, that takes the gradients of a microbatch.
  std::int64_t batch_of(int stage, std::int64_t m) const {
    return asynchronous() ? m / per_update(stage) : shape_.array_of(MicrobatchId(m));
  }

  /// Each rank has exactly the actions of its stages and microbatches.
  std::string contents() {
    std::vector<std::multiset<Key>> have(schedule_.ranks.size()), want(schedule_.ranks.size());
    for (std::size_t r = 0; r < schedule_.ranks.size(); ++r)
      for (const Action& a : schedule_.ranks[r]) have[r].insert(key(a));
    const auto on = [&](StageId stage, std::int64_t m) {
      return static_cast<std::size_t>(shape_.rank_of(stage, MicrobatchId(m)).value);
    };
    for (int s = 0; s < shape_.num_stages(); ++s) {
      for (std::int64_t m = 0; m < shape_.microbatches; ++m) {
        auto& rank = want[on(StageId(s), m)];
        rank.insert(key(make(Op::Forward, s, m)));
        if (have[on(StageId(s), m)].contains(key(make(Op::Backward, s, m)))) {
          rank.insert(key(make(Op::Backward, s, m)));
        } else {
          rank.insert(key(make(Op::BackwardInput, s, m)));
          rank.insert(key(make(Op::BackwardWeight, s, m)));
        }
      }
      for (RankId rank : shape_.ranks_of_stage[s]) {
        for (std::int64_t last : updates_of(s, rank)) {
          auto& actions = want[rank.value];
          if (shape_.replicas(StageId(s)) > 1) actions.insert(key(make(Op::Reduce, s, last)));
          actions.insert(key(make(Op::Update, s, last)));
        }
      }
    }
    for (const StageLink& link : shape_.all_links()) {
      for (std::int64_t m = 0; m < shape_.microbatches; ++m) {
        if (on(link.from, m) == on(link.to, m)) continue;
        want[on(link.from, m)].insert(key(make(Op::SendActivation, link.from, m, link.to)));
        want[on(link.to, m)].insert(key(make(Op::RecvActivation, link.to, m, link.from)));
        want[on(link.to, m)].insert(key(make(Op::SendGradient, link.to, m, link.from)));
        want[on(link.from, m)].insert(key(make(Op::RecvGradient, link.from, m, link.to)));
      }
    }
    return have == want ? "" : "contents";
  }

  /// The last microbatch of each update of a stage on a rank.
  std::vector<std::int64_t> updates_of(int stage, RankId rank) const {
    std::vector<std::int64_t> last;
    for (std::int64_t m = 0; m < shape_.microbatches; ++m) {
      if (shape_.rank_of(StageId(stage), MicrobatchId(m)) != rank) continue;
      const std::int64_t batch = batch_of(stage, m);
      if (static_cast<std::int64_t>(last.size()) <= batch) last.resize(static_cast<std::size_t>(batch) + 1);
      last[batch] = m;
    }
    return last;
  }

  /// Position of an action in the list of rank r.
  std::size_t at(std::size_t r, const Action& a) const {
    const auto& list = schedule_.ranks[r];
    return static_cast<std::size_t>(
        std::ranges::find_if(list, [&](const Action& b) { return key(a) == key(b); }) - list.begin());
  }
  bool has(std::size_t r, const Action& a) const { return at(r, a) < schedule_.ranks[r].size(); }
  /// Returns the place in r's list at which the input gradient of (stage, m) is made.
  std::size_t input_at(std::size_t r, int stage, std::int64_t m) const {
    const Action whole = make(Op::Backward, stage, m);
    return has(r, whole) ? at(r, whole) : at(r, make(Op::BackwardInput, stage, m));
  }
  std::size_t weight_at(std::size_t r, int stage, std::int64_t m) const {
    const Action whole = make(Op::Backward, stage, m);
    return has(r, whole) ? at(r, whole) : at(r, make(Op::BackwardWeight, stage, m));
  }

  std::string order(std::size_t r) {
    for (int s = 0; s < shape_.num_stages(); ++s) {
      const auto& ranks = shape_.ranks_of_stage[s];
      if (std::ranges::find(ranks, RankId(static_cast<int>(r))) == ranks.end()) continue;
      std::vector<std::size_t> weights;
      for (std::int64_t m = 0; m < shape_.microbatches; ++m) {
        if (shape_.rank_of(StageId(s), MicrobatchId(m)).value != static_cast<int>(r)) continue;
        if (std::string what = microbatch(r, s, m); !what.empty()) return what;
        weights.push_back(weight_at(r, s, m));
      }
      if (schedule_.kind != ScheduleKind::Custom && !std::ranges::is_sorted(weights)) return "weight order";
      if (std::string what = updates(r, s); !what.empty()) return what;
    }
    return memory(r);
  }

  /// Everything of one microbatch in one stage in its order.
  std::string microbatch(std::size_t r, int s, std::int64_t m) {
    const std::size_t forward = at(r, make(Op::Forward, s, m)), input = input_at(r, s, m);
    if (input <= forward || weight_at(r, s, m) < input) return "computations";
    for (const StageLink& link : shape_.all_links()) {
      if (link.from.value != s && link.to.value != s) continue;
      const bool local = shape_.is_local(link, MicrobatchId(m));
      if (link.to.value == s) {  // activation in, gradient out
        if (local ? at(r, make(Op::Forward, link.from.value, m)) > forward
                  : at(r, make(Op::RecvActivation, link.to, m, link.from)) > forward)
          return "activation";
        if (!local && at(r, make(Op::SendGradient, link.to, m, link.from)) < input) return "gradient sent";
      } else {
        if (local ? input_at(r, link.to.value, m) > input
                  : at(r, make(Op::RecvGradient, link.from, m, link.to)) > input)
          return "gradient";
        if (!local && at(r, make(Op::SendActivation, link.from, m, link.to)) < forward)
          return "activation sent";
      }
    }
    return "";
  }

  /// Updates where they belong, with the gradients that belong to them; versions there when they are used.
  std::string updates(std::size_t r, int s) {
    const auto versions = forward_versions(schedule_, shape_);
    const std::vector<std::int64_t> last = updates_of(s, RankId(static_cast<int>(r)));
    std::vector<std::size_t> places, reduces;
    for (std::int64_t m : last) {
      places.push_back(at(r, make(Op::Update, s, m)));
      if (shape_.replicas(StageId(s)) == 1) continue;
      const std::size_t reduce = at(r, make(Op::Reduce, s, m));
      if (reduce > places.back() || reduce < weight_at(r, s, m)) return "reduce";
      reduces.push_back(reduce);
    }
    if (!std::ranges::is_sorted(places)) return "updates";
    if (!std::ranges::is_sorted(reduces)) return "reduces";
    for (std::int64_t m = 0; m < shape_.microbatches; ++m) {
      if (shape_.rank_of(StageId(s), MicrobatchId(m)).value != static_cast<int>(r)) continue;
      const auto batch = static_cast<std::size_t>(batch_of(s, m));
      const std::size_t forward = at(r, make(Op::Forward, s, m));
      for (std::size_t work : {input_at(r, s, m), weight_at(r, s, m)}) {
        if (work > places[batch] || (asynchronous() && batch > 0 && work < places[batch - 1])) return "batch";
        if (shape_.replicas(StageId(s)) > 1 && work == weight_at(r, s, m) &&
            work > at(r, make(Op::Reduce, s, last[batch])))
          return "after reduce";
      }
      if (!asynchronous() && forward > places[batch]) return "forward after update";
      const std::int64_t version =
          versions[static_cast<std::size_t>(s) * static_cast<std::size_t>(shape_.microbatches) +
                   static_cast<std::size_t>(m)];
      if (version > 0 && places[static_cast<std::size_t>(version) - 1] > forward) return "version";
    }
    return "";
  }

  std::string memory(std::size_t r) {
    const auto versions = forward_versions(schedule_, shape_);
    const auto& list = schedule_.ranks[r];
    int stash = 0, version_bound = 1;
    const auto held = shape_.stages_of_ranks()[r];
    for (StageId s : held) version_bound = std::max(version_bound, version_limit(schedule_.kind, shape_, s));
    for (std::size_t i = 0; i < list.size(); ++i) {
      stash += list[i].op == Op::Forward;
      stash -= list[i].op == Op::Backward || list[i].op == Op::BackwardWeight;
      if (stash > stash_limit(schedule_.kind, shape_, RankId(static_cast<int>(r)))) return "stash";
      if (!asynchronous()) continue;
      for (StageId s : held) {
        const auto current =
            std::count_if(list.begin(), list.begin() + static_cast<std::ptrdiff_t>(i) + 1,
                          [&](const Action& a) { return a.op == Op::Update && a.stage == s; });
        std::set<std::int64_t> alive{current};
        for (std::size_t later = i + 1; later < list.size(); ++later) {
          const Action& a = list[later];
          if (a.stage != s || (a.op != Op::Backward && a.op != Op::BackwardWeight)) continue;
          const std::int64_t used =
              versions[static_cast<std::size_t>(s.value) * static_cast<std::size_t>(shape_.microbatches) +
                       static_cast<std::size_t>(a.microbatch.value)];
          if (used < current) alive.insert(used);
        }
        if (static_cast<int>(alive.size()) > version_bound) return "versions";
      }
    }
    return "";
  }

  /// Whether all lists run to their ends, one round over the ranks after the other.
  bool ends(Transport transport) {
    std::vector<std::size_t> place(schedule_.ranks.size(), 0);
    const auto end_of = [&](std::size_t r) {  // the end of the posted transfers
      const auto& list = schedule_.ranks[r];
      std::size_t end = place[r];
      if (end == list.size() || !is_transfer(list[end].op) || transport == Transport::Buffered)
        return std::min(end + 1, list.size());
      while (end < list.size() && sends(list[end])) ++end;
      while (end < list.size() && is_transfer(list[end].op) && !sends(list[end])) ++end;
      return end;
    };
    const auto is_posted = [&](const Action& a, std::size_t self) {  // the other end of a
      static const std::map<Op, Op> other{{Op::SendActivation, Op::RecvActivation},
                                          {Op::RecvActivation, Op::SendActivation},
                                          {Op::SendGradient, Op::RecvGradient},
                                          {Op::RecvGradient, Op::SendGradient}};
      const auto peer = static_cast<std::size_t>(a.peer.value);
      const Action match{other.at(a.op), a.peer_stage, a.microbatch, a.stage, RankId(static_cast<int>(self))};
      return at(peer, match) < end_of(peer);
    };
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t r = 0; r < place.size(); ++r) {
        const auto& list = schedule_.ranks[r];
        if (place[r] == list.size()) continue;
        const Action& a = list[place[r]];
        bool can = true;
        const std::size_t end = end_of(r);
        for (std::size_t i = place[r]; i < end && is_transfer(a.op); ++i) {
          if (sends(list[i]) && transport == Transport::Buffered) continue;
          can = can && is_posted(list[i], r);
        }
        if (a.op == Op::Reduce) {
          // Every replica must have reached the same reduce, counted from the first.
          const auto count = count_reduces(r, place[r], a.stage);
          for (RankId replica : shape_.ranks_of_stage[a.stage.value]) {
            const auto q = static_cast<std::size_t>(replica.value);
            const bool there = place[q] < schedule_.ranks[q].size() &&
                               schedule_.ranks[q][place[q]].op == Op::Reduce &&
                               schedule_.ranks[q][place[q]].stage == a.stage;
            can = can && count_reduces(q, place[q], a.stage) + (there ? 1 : 0) > count;
          }
        }
        if (!can) continue;
        place[r] = end;
        moved = true;
      }
    }
    for (std::size_t r = 0; r < place.size(); ++r)
      if (place[r] < schedule_.ranks[r].size()) return false;
    return true;
  }
  static bool sends(const Action& a) { return a.op == Op::SendActivation || a.op == Op::SendGradient; }
  std::ptrdiff_t count_reduces(std::size_t r, std::size_t before, StageId stage) const {
    const auto& list = schedule_.ranks[r];
    return std::count_if(list.begin(), list.begin() + static_cast<std::ptrdiff_t>(before),
                         [&](const Action& a) { return a.op == Op::Reduce && a.stage == stage; });
  }

  const Schedule& schedule_;
  const PipelineShape& shape_;
};

}  // namespace millrace
