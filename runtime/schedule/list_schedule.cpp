#include "runtime/schedule/list_schedule.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <queue>
#include <string>
#include <tuple>

#include "runtime/schedule/generators.h"
#include "runtime/schedule/message.h"

namespace millrace {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::infinity();
constexpr double kSlack = 1e-9;  ///< relative: idle time that a W just fills counts as filled

double at(const std::vector<double>& values, int index) {
  return static_cast<std::size_t>(index) < values.size() ? values[index] : 0;
}

enum class Ties { InputFirst, ForwardFirst, LateForwardFirst };

/// Builds orders by running the pipeline: at each moment the earliest action that can start anywhere starts.
/// F and I of a rank follow given lists, or are chosen as they become ready.
class Builder {
 public:
  Builder(const PipelineShape& shape, const ScheduleCosts& costs, std::vector<int> cap)
      : shape_(shape),
        costs_(costs),
        cap_(std::move(cap)),
        messages_(shape),
        forward_(cells(), kUnknown),
        input_(cells(), kUnknown),
        ranks_(static_cast<std::size_t>(shape.num_ranks())) {
    const auto links = shape.all_links();
    for (std::size_t i = 0; i < links.size(); ++i)
      transfer_[{links[i].from.value, links[i].to.value}] = at(costs.transfer, static_cast<int>(i));
    const auto stages = shape.stages_of_ranks();
    for (std::size_t r = 0; r < ranks_.size(); ++r) add_streams(r, stages[r]);
  }

  /// F and I in this order; only W are placed.
  std::vector<Order> follow(const std::vector<Order>& given) {
    given_ = &given;
    return run();
  }
  std::vector<Order> choose(Ties ties) {
    ties_ = ties;
    return run();
  }

 private:
  /// The microbatches of one stage on one rank, forwarded and backwarded each in order.
  struct Stream {
    int stage = 0;
    int first = 0, step = 1, count = 0;  ///< microbatches first, first + step, ...
    int forwards = 0, inputs = 0;
    int later = 0;  ///< stages of the rank after this one
    std::int64_t microbatch(int i) const { return first + std::int64_t{step} * i; }
  };
  struct Rank {
    std::vector<Stream> streams;
    double time = 0;
    int stash = 0;
    std::size_t at = 0;        ///< in the given list
    std::vector<Action> owed;  ///< W in the order of their I
    std::size_t paid = 0;
    Order order;
    int stamp = 0;
  };
  struct Candidate {
    double start;
    int weight;  ///< 0: F or I, 1: W
    std::size_t rank;
    int stamp;
    Action action;
    bool operator>(const Candidate& o) const {
      return std::tie(start, weight, rank) > std::tie(o.start, o.weight, o.rank);
    }
  };

  std::size_t cells() const {
    return static_cast<std::size_t>(shape_.num_stages()) * static_cast<std::size_t>(shape_.microbatches);
  }
  std::size_t cell(int stage, std::int64_t microbatch) const {
    return static_cast<std::size_t>(stage) * static_cast<std::size_t>(shape_.microbatches) +
           static_cast<std::size_t>(microbatch);
  }

  void add_streams(std::size_t r, const std::vector<StageId>& stages) {
    for (std::size_t i = 0; i < stages.size(); ++i) {
      const auto& group = shape_.ranks_of_stage[stages[i].value];
      const int replica =
          static_cast<int>(std::ranges::find(group, RankId(static_cast<int>(r))) - group.begin());
      const int replicas = static_cast<int>(group.size());
      ranks_[r].streams.push_back({.stage = stages[i].value,
                                   .first = replica,
                                   .step = replicas,
                                   .count = (shape_.microbatches - replica + replicas - 1) / replicas,
                                   .later = static_cast<int>(stages.size() - 1 - i)});
    }
  }

  std::vector<Order> run() {
    for (std::size_t r = 0; r < ranks_.size(); ++r) offer(r);
    while (!queue_.empty()) {
      const Candidate next = queue_.top();
      queue_.pop();
      if (next.stamp == ranks_[next.rank].stamp) perform(next);
    }
    std::vector<Order> orders;
    std::size_t made = 0;
    for (Rank& rank : ranks_) {
      made += rank.order.size();
      orders.push_back(std::move(rank.order));
    }
    return made == 3 * cells() ? orders : std::vector<Order>{};
  }

  /// When all tensors for the computation are on the rank; kUnknown if one is not made yet.
  double ready(const Action& a) const {
    const bool forward = a.op == Op::Forward;
    double time = forward ? 0 : forward_[cell(a.stage.value, a.microbatch.value)];
    for (const StageLink& link : forward ? messages_.into(a.stage) : messages_.out_of(a.stage)) {
      const double made = forward ? forward_[cell(link.from.value, a.microbatch.value)]
                                  : input_[cell(link.to.value, a.microbatch.value)];
      const double wire =
          shape_.is_local(link, a.microbatch) ? 0 : transfer_.at({link.from.value, link.to.value});
      time = std::max(time, made + wire);
    }
    return time;
  }
  double duration(const Action& a) const {
    return a.op == Op::Forward         ? at(costs_.forward, a.stage.value)
           : a.op == Op::BackwardInput ? at(costs_.backward_input, a.stage.value)
                                       : at(costs_.backward_weight, a.stage.value);
  }
  bool may_forward(std::size_t r, int reserve) const {
    return cap_.empty() || ranks_[r].stash + 1 + reserve <= cap_[r];
  }

  struct Choice {
    double start;
    int tie;
    Action action;
  };
  /// The F or I that starts first on rank r. A forward leaves room for the later chunks of its microbatch, so
  /// the oldest microbatch can always go on.
  std::optional<Choice> next_computation(std::size_t r) const {
    const Rank& rank = ranks_[r];
    std::optional<Choice> best;
    const auto consider = [&](const Action& a, int tie) {
      const double start = std::max(rank.time, ready(a));
      if (start == kUnknown) return;
      if (!best || start < best->start || (start == best->start && tie < best->tie))
        best = Choice{start, tie, a};
    };
    if (given_) {
      const Order& list = (*given_)[r];
      if (rank.at < list.size() && (list[rank.at].op != Op::Forward || may_forward(r, 0)))
        consider(list[rank.at], 0);
      return best;
    }
    for (const Stream& s : rank.streams) {
      const int last = shape_.num_stages() - s.stage;
      if (s.forwards < s.count && may_forward(r, s.later))
        consider(computation(Op::Forward, s.stage, s.microbatch(s.forwards)),
                 ties_ == Ties::InputFirst     ? 10000 + last
                 : ties_ == Ties::ForwardFirst ? -10000 - last
                                               : last);
      if (s.inputs < s.forwards)
        consider(computation(Op::BackwardInput, s.stage, s.microbatch(s.inputs)),
                 ties_ == Ties::LateForwardFirst ? last + (s.later > 0 ? 1 : 0) : s.stage);
    }
    return best;
  }

  /// Offers what rank r does next: a W if W ends before the next F or I can start, or if nothing else can be
  /// done.
  void offer(std::size_t r) {
    Rank& rank = ranks_[r];
    ++rank.stamp;
    const std::optional<Choice> next = next_computation(r);
    if (rank.paid < rank.owed.size()) {
      const Action& weight = rank.owed[rank.paid];
      const double end = rank.time + duration(weight);
      if (!next || next->start >= end - kSlack * std::max(1.0, end)) {
        queue_.push({rank.time, 1, r, rank.stamp, weight});
        return;
      }
    }
    if (next) queue_.push({next->start, 0, r, rank.stamp, next->action});
  }

  void perform(const Candidate& c) {
    Rank& rank = ranks_[c.rank];
    const Action& a = c.action;
    rank.time = c.start + duration(a);
    rank.order.push_back(a);
    const std::size_t made = cell(a.stage.value, a.microbatch.value);
    if (a.op == Op::BackwardWeight) {
      ++rank.paid;
      --rank.stash;
    } else {
      (a.op == Op::Forward ? forward_ : input_)[made] = rank.time;
      if (given_) ++rank.at;
      auto stream = std::ranges::find(rank.streams, a.stage.value, &Stream::stage);
      ++(a.op == Op::Forward ? stream->forwards : stream->inputs);
      if (a.op == Op::Forward)
        ++rank.stash;
      else
        rank.owed.push_back(computation(Op::BackwardWeight, a.stage.value, a.microbatch.value));
    }
    offer(c.rank);
    if (a.op == Op::BackwardWeight) return;
    for (const StageLink& link : a.op == Op::Forward ? messages_.out_of(a.stage) : messages_.into(a.stage)) {
      const RankId peer = shape_.rank_of(a.op == Op::Forward ? link.to : link.from, a.microbatch);
      if (static_cast<std::size_t>(peer.value) != c.rank) offer(static_cast<std::size_t>(peer.value));
    }
  }

  const PipelineShape& shape_;
  const ScheduleCosts& costs_;
  const std::vector<int> cap_;
  MessageIndex messages_;
  std::map<std::pair<int, int>, double> transfer_;
  std::vector<double> forward_, input_;  ///< end times
  std::vector<Rank> ranks_;
  const std::vector<Order>* given_ = nullptr;
  Ties ties_ = Ties::InputFirst;
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue_;
};

/// The best schedule so far: the fastest, of equally fast ones the one that holds least, of those the first.
class Best {
 public:
  Best(const PipelineShape& shape, const ScheduleCosts& costs, const std::vector<int>& cap)
      : shape_(shape), costs_(costs), cap_(cap) {}
  void offer(Schedule schedule) {
    const Peaks peaks = peaks_of(schedule, shape_);
    for (std::size_t r = 0; r < cap_.size(); ++r)
      if (peaks.stash[r] > cap_[r]) return;
    const double time = simulate(schedule, shape_, costs_).makespan;
    const int stash = std::ranges::max(peaks.stash);
    if (best_) {
      const double slack = time_ * 1e-12;
      if (time > time_ + slack || (time >= time_ - slack && stash >= stash_)) return;
    }
    time_ = time;
    stash_ = stash;
    schedule.kind = ScheduleKind::AutoOrder;
    best_ = std::move(schedule);
  }
  void offer(std::vector<Order> orders) {
    if (!orders.empty()) offer(lower(ScheduleKind::AutoOrder, shape_, std::move(orders)));
  }
  const std::optional<Schedule>& get() const { return best_; }

 private:
  const PipelineShape& shape_;
  const ScheduleCosts& costs_;
  const std::vector<int>& cap_;
  double time_ = 0;
  int stash_ = 0;
  std::optional<Schedule> best_;
};

/// F and I of each rank; a full backward counts as I.
std::vector<Order> without_weights(const Schedule& schedule) {
  std::vector<Order> orders;
  for (const auto& actions : schedule.ranks) {
    Order& order = orders.emplace_back();
    for (Action a : actions) {
      if (a.op == Op::Backward) a.op = Op::BackwardInput;
      if (a.op == Op::Forward || a.op == Op::BackwardInput) order.push_back(a);
    }
  }
  return orders;
}

/// The cap, and smaller ones: with less in flight the microbatches in flight end sooner.
std::vector<std::vector<int>> caps(const PipelineShape& shape, const std::vector<int>& cap) {
  const auto stages = shape.stages_of_ranks();
  const int depth = shape.num_stages();
  std::vector<std::vector<int>> all{cap};
  for (const int part : {1, 2, 3, 4, 6, 8}) {
    std::vector<int> smaller;
    for (std::size_t r = 0; r < stages.size(); ++r) {
      const int own = static_cast<int>(stages[r].size());
      const int wanted = std::max(own, depth * part / 4 + 1);
      smaller.push_back(cap.empty() ? wanted : std::min(wanted, cap[r]));
    }
    if (std::ranges::find(all, smaller) == all.end()) all.push_back(smaller);
  }
  return all;
}

}  // namespace

std::vector<Order> place_weights(const std::vector<Order>& orders, const PipelineShape& shape,
                                 const ScheduleCosts& costs, const std::vector<int>& cap) {
  return Builder(shape, costs, cap).follow(orders);
}

Result<Schedule> list_schedule(const PipelineShape& shape, const ScheduleCosts& costs,
                               const std::vector<int>& cap) {
  const auto stages = shape.stages_of_ranks();
  Problems problems;
  for (std::size_t r = 0; r < cap.size() && r < stages.size(); ++r) {
    if (cap[r] < static_cast<int>(stages[r].size()))
      problems.push_back({"rank " + std::to_string(r),
                          "a memory cap of " + std::to_string(cap[r]) +
                              " stashed microbatches is below its " + std::to_string(stages[r].size()) +
                              " stages",
                          "a microbatch needs one place in each stage"});
  }
  if (!cap.empty() && cap.size() != stages.size())
    problems.push_back(
        {"",
         "there are caps for " + std::to_string(cap.size()) + " ranks of " + std::to_string(stages.size()),
         {}});
  if (!problems.empty()) return problems;
  Best best(shape, costs, cap);
  const std::vector<ScheduleKind> by_rule = schedule_kinds(
      [](const ScheduleTraits& row) { return row.order == OrderSource::Rule && !is_asynchronous(row.kind); });
  for (ScheduleKind kind : by_rule) {
    Result<Schedule> fixed = make_schedule(kind, shape);
    if (!fixed) continue;
    best.offer(*fixed);
    best.offer(place_weights(without_weights(*fixed), shape, costs, cap));
  }
  for (const std::vector<int>& limit : caps(shape, cap)) {
    for (Ties ties : {Ties::InputFirst, Ties::LateForwardFirst, Ties::ForwardFirst})
      best.offer(Builder(shape, costs, limit).choose(ties));
  }
  if (!best.get()) return Problem{"", "no order of the shape fits the memory cap", "raise the cap"};
  return *best.get();
}

}  // namespace millrace
