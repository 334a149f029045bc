#include "runtime/schedule/measured_costs.h"

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <tuple>

#include "runtime/schedule/simulate.h"

namespace millrace {
namespace {

constexpr double kNanosecond = 1e-9;

/// A sum and how often it was added to.
struct Mean {
  double sum = 0;
  std::int64_t count = 0;
  void add(double seconds) { sum += seconds, ++count; }
  double value() const { return count > 0 ? sum / static_cast<double>(count) : 0; }
};

bool is_action(SpanKind kind) {
  return is_computation(kind) || kind == SpanKind::Send || kind == SpanKind::Wait ||
         kind == SpanKind::Reduce || kind == SpanKind::Update || kind == SpanKind::Data;
}

/// A device may work on while its host goes on, and the host's spans then overlap what the device computes.
/// This lets each of them begin when the device has done what was handed over before. `spans` are in order.
void begin_after_the_device(std::vector<Span>& spans) {
  const auto of_host = [](const Span& span) {
    return span.kind == SpanKind::Send || span.kind == SpanKind::Wait || span.kind == SpanKind::Data;
  };
  std::int64_t done = INT64_MIN;
  auto next = spans.cbegin();
  std::vector<Span> moved = spans;
  for (Span& span : moved) {
    if (!of_host(span)) continue;
    // What began while the host was in this span had been handed over before it.
    for (; next != spans.cend() && next->start < span.end; ++next)
      if (is_computation(next->kind)) done = std::max(done, next->end);
    span.start = std::max(span.start, done);
    span.end = std::max(span.end, done);
  }
  spans = std::move(moved);
  std::ranges::stable_sort(spans, {}, &Span::start);
}

/// A message that was sent. A receiver may have it before its sender goes on.
struct Sent {
  int stage;
  std::int64_t end;  ///< handed over: the end of the send, or when a receiver that waited had it
  bool taken = false;
};
/// Sent messages by (rank that sends, rank that receives, microbatch).
using Messages = std::map<std::tuple<int, int, std::int64_t>, std::vector<Sent*>>;

class Averages {
 public:
  Averages(const Plan& plan, const PipelineShape& shape, const std::vector<std::vector<Span>>& spans)
      : shape_(shape), links_(shape.all_links()), transfers_(links_.size()) {
    const auto stages = static_cast<std::size_t>(plan.num_stages());
    for (auto* kinds : {&whole_, &alone_}) kinds->resize(stages);
    updates_.resize(stages);
    for (std::size_t r = 0; r < spans.size(); ++r) {
      auto& mine = spans_.emplace_back();
      for (const Span& span : spans[r])
        if (span.kind == SpanKind::Eval || span.kind == SpanKind::Checkpoint)
          pauses_.insert(span.step);
        else if (is_action(span.kind) && span.stage >= 0 && span.stage < plan.num_stages())
          mine.push_back(span);
      std::ranges::stable_sort(mine, {}, &Span::start);
      begin_after_the_device(mine);
      auto& of_mine = message_of_.emplace_back(mine.size());
      for (std::size_t i = 0; i < mine.size(); ++i) {
        if (mine[i].kind != SpanKind::Send) continue;
        of_mine[i] = &sent_.emplace_back(Sent{mine[i].stage, mine[i].end});
        messages_[{static_cast<int>(r), mine[i].peer, mine[i].microbatch}].push_back(of_mine[i]);
      }
    }
    for (std::size_t r = 0; r < spans.size(); ++r)
      for (std::size_t i = 0; i < spans_[r].size(); ++i)
        if (spans_[r][i].kind == SpanKind::Wait) message_of_[r][i] = take(static_cast<int>(r), spans_[r][i]);
  }

  Result<MeasuredCosts> run() {
    if (Problems problems = find_steps(); !problems.empty()) return problems;
    for (std::size_t r = 0; r < spans_.size(); ++r) walk(static_cast<int>(r));
    MeasuredCosts result;
    for (const Stretch& one : stretches_) result.steps += static_cast<int>(one.last - one.first);
    add_reduces();
    for (std::size_t s = 0; s < whole_.size(); ++s) {
      if (whole_[s].forward.count == 0 || whole_[s].backward.count + whole_[s].input.count == 0)
        return Problem{"stage " + std::to_string(s), "has no computation in the traced steps",
                       "trace whole steps of every rank"};
      result.split_backwards |= whole_[s].input.count > 0;
      fill(whole_[s], result.costs);
      fill(alone_[s], result.alone);
      result.costs.update.push_back(updates_[s].value());
      result.costs.reduce.push_back(reduces_[s].value());
    }
    if (!agreeing_.empty()) {
      result.costs.norm.assign(whole_.size(), 0);
      result.costs.agreement = agreement();
    }
    for (const Mean& waited : transfers_) result.costs.transfer.push_back(waited.value());
    for (const Early& early : early_)
      each_[early.stretch].seconds[early.which] = std::min(result.costs.transfer[early.link], early.at_most);
    for (std::size_t r = 0; r < spans_.size(); ++r) {
      double seconds = 0;
      for (std::size_t s = 0; s < stretches_.size(); ++s) {
        const std::int64_t begin = ends_[r].at(stretches_[s].first), end = ends_[r].at(stretches_[s].last);
        seconds += static_cast<double>(end - begin) * kNanosecond;
        each_[s].start.push_back(static_cast<double>(begin) * kNanosecond);
      }
      result.step_s = std::max(result.step_s, seconds / result.steps);
    }
    for (ActionTimes& each : each_) {
      const double earliest = *std::ranges::min_element(each.start);
      for (double& start : each.start) start -= earliest;
    }
    result.each = std::move(each_);
    return result;
  }

 private:
  struct OfStage {
    Mean forward, backward, input, weight;
    Mean& of(SpanKind kind) {
      return kind == SpanKind::Forward         ? forward
             : kind == SpanKind::Backward      ? backward
             : kind == SpanKind::BackwardInput ? input
                                               : weight;
    }
  };
  /// Traced steps without a gap: those after `first` are averaged, up to `last`.
  struct Stretch {
    std::int64_t first, last;
  };
  /// A message that nobody waited for: how long it took is not known.
  struct Early {
    std::size_t stretch;
    ActionTimes::Which which;
    std::size_t link;
    double at_most;
  };

  static void fill(const OfStage& stage, ScheduleCosts& costs) {
    costs.forward.push_back(stage.forward.value());
    const bool split = stage.input.count > 0;
    costs.backward_input.push_back(split ? stage.input.value() : stage.backward.value() / 2);
    costs.backward_weight.push_back(split ? stage.weight.value() : stage.backward.value() / 2);
  }

  /// Stretches of steps that every rank has whole; ends_ of each.
  Problems find_steps() {
    std::set<std::int64_t> common;
    for (std::size_t r = 0; r < spans_.size(); ++r) {
      std::map<std::int64_t, std::int64_t> ends;  // a step is whole where its update is
      for (const Span& span : spans_[r]) {
        if (span.kind != SpanKind::Update) continue;
        std::int64_t& end = ends[span.step];
        end = std::max(end, span.end);
      }
      std::set<std::int64_t> mine;
      for (const auto& [step, end] : ends)
        if (r == 0 || common.contains(step)) mine.insert(step);
      common = std::move(mine);
      ends_.push_back(std::move(ends));
    }
    for (auto step = common.begin(); step != common.end(); ++step) {
      const bool goes_on = !stretches_.empty() && stretches_.back().last + 1 == *step &&
                           !pauses_.contains(stretches_.back().last);
      if (goes_on)
        stretches_.back().last = *step;
      else
        stretches_.push_back({*step, *step});
    }
    std::erase_if(stretches_, [](const Stretch& one) { return one.first == one.last; });
    std::int64_t averaged = 0;
    for (const Stretch& one : stretches_) averaged += one.last - one.first;
    if (averaged < 2)
      return {
          {"", "fewer than three steps in a row were traced on every rank", "train with --trace-steps 10"}};
    for (const Stretch& one : stretches_)
      each_.push_back({.steps = static_cast<int>(one.last - one.first), .first = INT64_MAX});
    for (const auto& spans : spans_)
      for (const Span& span : spans)
        if (const auto at = stretch_of(span); at && span.kind == SpanKind::Forward)
          each_[*at].first = std::min(each_[*at].first, span.microbatch);
    return {};
  }

  /// In which stretch it is averaged.
  std::optional<std::size_t> stretch_of(const Span& span) const {
    for (std::size_t s = 0; s < stretches_.size(); ++s)
      if (span.step > stretches_[s].first && span.step <= stretches_[s].last) return s;
    return std::nullopt;
  }
  bool counts(const Span& span) const { return stretch_of(span).has_value(); }

  /// Of a span that counts, or of the sender's action that it took.
  double& own(const Span& span, int rank, SpanKind kind, int stage, int receiver) {
    ActionTimes& each = each_[*stretch_of(span)];
    return each.seconds[{rank, kind, stage, receiver, span.microbatch - each.first}];
  }

  std::optional<std::size_t> link_between(int stage, int other) const {
    for (std::size_t l = 0; l < links_.size(); ++l) {
      const int from = links_[l].from.value, to = links_[l].to.value;
      if ((from == stage && to == other) || (from == other && to == stage)) return l;
    }
    return std::nullopt;
  }

  /// The message that `wait` takes; null if its send is not traced.
  Sent* take(int rank, const Span& wait) {
    const auto found = messages_.find({wait.peer, rank, wait.microbatch});
    if (found == messages_.end()) return nullptr;
    for (Sent* sent : found->second) {
      if (sent->taken || !link_between(sent->stage, wait.stage)) continue;
      sent->taken = true;
      sent->end = std::min(sent->end, wait.end);
      return sent;
    }
    return nullptr;
  }

  void walk(int rank) {
    const auto& spans = spans_[rank];
    std::int64_t before = spans.front().start;
    double pending = 0;    // seconds that the next computation gets
    Mean* last = nullptr;  // the computation before, if it counts; and its own time
    double* last_own = nullptr;
    std::map<std::int32_t, std::int64_t> arrivals;  // of the newest message that was waited for, by sender
    for (std::size_t i = 0; i < spans.size(); ++i) {
      const Span& span = spans[i];
      if (std::ranges::find(stretches_, span.step, &Stretch::first) != stretches_.end() &&
          (i == 0 || spans[i - 1].step != span.step)) {
        before = span.start;  // what lies before it was not traced
        pending = 0;
        last = nullptr;
        arrivals.clear();
      }
      const Sent* const message = message_of_[rank][i];
      const double seconds = static_cast<double>(span.end - before) * kNanosecond;
      const auto stage = static_cast<std::size_t>(span.stage);
      if (is_computation(span.kind)) {
        last = nullptr;
        if (counts(span)) {
          last = &whole_[stage].of(span.kind);
          last->add(seconds + pending);
          last_own = &own(span, rank, span.kind, span.stage, -1);
          *last_own = seconds + pending;
          alone_[stage].of(span.kind).add(static_cast<double>(span.end - span.start) * kNanosecond);
        }
        pending = 0;
      } else if (span.kind == SpanKind::Wait && span.peer < 0) {
        if (counts(span))
          agreeing_[span.step][rank] += static_cast<double>(span.end - span.start) * kNanosecond;
      } else if (span.kind == SpanKind::Wait) {
        const std::size_t link = message != nullptr ? *link_between(message->stage, span.stage) : 0;
        if (message != nullptr && message->end > before) {
          // A wire carries one message after the other.
          std::int64_t& busy = arrivals[span.peer];
          const double transfer =
              static_cast<double>(std::max<std::int64_t>(0, span.end - std::max(busy, message->end))) *
              kNanosecond;
          busy = span.end;
          if (counts(span)) {
            transfers_[link].add(transfer);
            own(span, span.peer, SpanKind::Send, message->stage, span.stage) = transfer;
          }
        } else if (message != nullptr) {
          pending += seconds;
          if (const auto at = stretch_of(span))
            early_.push_back(
                {*at,
                 {span.peer, SpanKind::Send, message->stage, span.stage, span.microbatch - each_[*at].first},
                 link,
                 static_cast<double>(before - message->end) * kNanosecond});
        }
      } else if (span.kind == SpanKind::Send) {
        const double handed = static_cast<double>(std::max(before, message->end) - before) * kNanosecond;
        if (last != nullptr) last->sum += handed, *last_own += handed;
        pending += seconds - handed;
      } else if (span.kind == SpanKind::Update) {
        if (counts(span)) {
          updates_[stage].add(seconds);
          own(span, rank, span.kind, span.stage, -1) = seconds;
        }
      } else if (span.kind == SpanKind::Reduce) {
        if (counts(span)) reducing_[{span.stage, span.step}].push_back({rank, span});
      } else {
        pending += seconds;
      }
      before = span.end;
    }
  }

  /// Returns the agreement's seconds on the rank that came last, because it waited for nobody.
  double agreement() const {
    Mean last;
    for (const auto& [step, by_rank] : agreeing_) {
      double least = by_rank.begin()->second;
      for (const auto& [rank, seconds] : by_rank) least = std::min(least, seconds);
      last.add(least);
    }
    return last.value();
  }

  /// From where the last replica begins to reduce until the first has the sum.
  void add_reduces() {
    reduces_.resize(whole_.size());
    for (const auto& [which, replicas] : reducing_) {
      if (shape_.replicas(StageId(which.first)) < 2) continue;
      std::int64_t start = INT64_MIN, end = INT64_MAX;
      for (const auto& [rank, span] : replicas) {
        start = std::max(start, span.start);
        end = std::min(end, span.end);
      }
      const double seconds = static_cast<double>(std::max<std::int64_t>(0, end - start)) * kNanosecond;
      reduces_[which.first].add(seconds);
      for (const auto& [rank, span] : replicas) own(span, rank, span.kind, span.stage, -1) = seconds;
    }
  }

  const PipelineShape& shape_;
  const std::vector<StageLink> links_;
  std::vector<Mean> transfers_;  // by link: of messages that were waited for
  std::vector<OfStage> whole_, alone_;
  std::vector<Mean> updates_, reduces_;
  std::map<std::pair<int, std::int64_t>, std::vector<std::pair<int, Span>>> reducing_;  // by stage and step
  std::map<std::int64_t, std::map<int, double>> agreeing_;  // seconds by step and rank: with all others
  std::vector<Early> early_;
  std::vector<ActionTimes> each_;  // by stretch
  std::set<std::int64_t> pauses_;  // steps after which the ranks did something else
  std::vector<Stretch> stretches_;
  std::vector<std::vector<Span>> spans_;
  std::vector<std::map<std::int64_t, std::int64_t>> ends_;  // by rank: of each step
  std::deque<Sent> sent_;
  Messages messages_;
  std::vector<std::vector<Sent*>> message_of_;  // by rank and span: that it sends or waits for, or null
};

/// Whether a step ends in several updates of a stage, as those of models do that are trained in turns.
bool updates_again(const std::vector<Span>& spans) {
  std::set<std::tuple<std::int64_t, int, std::int64_t>> seen;
  return std::ranges::any_of(spans, [&](const Span& span) {
    return span.kind == SpanKind::Update && !seen.emplace(span.step, span.stage, span.microbatch).second;
  });
}

/// Steps without a gap once more: seconds of one of them.
Result<double> replayed_stretch(const Plan& plan, const PipelineShape& shape, const ScheduleCosts& costs,
                                const ActionTimes& each, const std::optional<ScheduleFile>& file) {
  PipelineShape run = shape;
  SimulationOptions options{.peaks = false};
  // The averaged steps are microbatches [from, from + count) of the run that is simulated, where `of_step`
  // are of a step; `traced` of them were, as a step is rounded up to whole turns.
  std::int64_t from = 0, of_step = updates_after_each(plan.schedule) ? 1 : plan.microbatches * plan.arrays;
  const std::int64_t traced = of_step;
  if (is_asynchronous(plan.schedule)) {
    // The messages of microbatches before and after cross the borders: they take the mean times.
    const std::int64_t period = period_of(shape), fill = filling_of(shape);
    from = fill + each.first % period;
    run.microbatches = static_cast<int>((from + each.steps * of_step + period - 1) / period * period + fill);
  }
  Result<Schedule> schedule = schedule_of(plan, run, Transport::Buffered, file);
  if (!schedule) return schedule.problems();
  if (!is_asynchronous(plan.schedule)) {
    *schedule = repeat_steps(*schedule, run, each.steps);
    of_step = run.microbatches / each.steps;
    options.start = each.start;
  }
  const auto in_steps = [&](const Action& a) {
    return a.microbatch.value >= from && a.microbatch.value < from + each.steps * of_step;
  };
  for (std::size_t r = 0; r < schedule->ranks.size(); ++r) {
    auto& own = options.own_seconds.emplace_back();
    for (const Action& a : schedule->ranks[r]) {
      const std::int64_t after = a.microbatch.value - from;
      const auto found = in_steps(a) ? each.seconds.find({static_cast<int>(r), span_kind(a.op), a.stage.value,
                                                          is_send(a.op) ? a.peer_stage.value : -1,
                                                          after / of_step * traced + after % of_step})
                                     : each.seconds.end();
      own.push_back(found == each.seconds.end() ? -1 : found->second);
    }
  }
  const Simulation simulation = simulate(*schedule, run, costs, options);
  double step_s = 0;
  for (std::size_t r = 0; r < simulation.ranks.size(); ++r) {
    double begin = r < options.start.size() ? options.start[r] : 0, end = 0;
    for (const TimedAction& timed : simulation.ranks[r]) {
      if (timed.action.op != Op::Update) continue;
      if (timed.action.microbatch.value < from) begin = std::max(begin, timed.end);
      if (in_steps(timed.action)) end = std::max(end, timed.end);
    }
    step_s = std::max(step_s, (end - begin) / each.steps);
  }
  return step_s;
}

}  // namespace

Result<MeasuredCosts> measured_costs(const Plan& plan, const PipelineShape& shape,
                                     const std::vector<std::vector<Span>>& spans_by_rank) {
  if (static_cast<int>(spans_by_rank.size()) != plan.num_ranks() ||
      std::ranges::any_of(spans_by_rank, [](const auto& spans) { return spans.empty(); }))
    return Problem{"", "not every rank of the plan has a trace", "train with --trace-steps 10"};
  if (updates_after_each(plan.schedule) &&
      std::ranges::any_of(plan.stages, [](const PlanStage& stage) { return stage.ranks.size() > 1; }))
    return Problem{"", "a step of a replicated stage is a minibatch of each replica",
                   "one rank for each stage"};
  if (updates_again(spans_by_rank.front()))
    return Problem{"", "the model is trained in turns, and a trace does not say whose an action was",
                   "compare the predicted step with the measured one"};
  return Averages(plan, shape, spans_by_rank).run();
}

Result<double> simulated_step(const Plan& plan, const PipelineShape& shape, const ScheduleCosts& costs,
                              const std::optional<ScheduleFile>& file) {
  if (!is_asynchronous(plan.schedule)) {
    const Result<Schedule> schedule = schedule_of(plan, shape, Transport::Buffered, file);
    if (!schedule) return schedule.problems();
    return steady_step(*schedule, shape, costs);
  }
  const int fill = filling_of(shape);
  double makespan[2] = {};
  for (int longer = 0; longer < 2; ++longer) {
    PipelineShape run = shape;
    run.microbatches = fill * (longer + 1);
    const Result<Schedule> schedule = schedule_of(plan, run, Transport::Buffered);
    if (!schedule) return schedule.problems();
    makespan[longer] = simulate(*schedule, run, costs).makespan;
  }
  const double of_one = (makespan[1] - makespan[0]) / fill;
  return updates_after_each(plan.schedule) ? of_one : of_one * plan.microbatches;
}

Result<double> replayed_step(const Plan& plan, const PipelineShape& shape, const MeasuredCosts& measured,
                             const std::optional<ScheduleFile>& file) {
  double seconds = 0;
  for (const ActionTimes& each : measured.each) {
    const Result<double> step_s = replayed_stretch(plan, shape, measured.costs, each, file);
    if (!step_s) return step_s;
    seconds += *step_s * each.steps;
  }
  return seconds / measured.steps;
}

}  // namespace millrace
