#include "runtime/schedule/measured_costs.h"

#include <algorithm>
#include <map>
#include <numeric>
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

bool computes(SpanKind kind) {
  return kind == SpanKind::Forward || kind == SpanKind::Backward || kind == SpanKind::BackwardInput ||
         kind == SpanKind::BackwardWeight;
}

bool is_action(SpanKind kind) {
  return computes(kind) || kind == SpanKind::Send || kind == SpanKind::Wait || kind == SpanKind::Reduce ||
         kind == SpanKind::Update || kind == SpanKind::Data;
}

/// A message by its receiver: (rank that sends, rank that receives, microbatch), ends of the sends with their
/// stages.
struct Sent {
  int stage;
  std::int64_t end;
  bool taken = false;
};
using Messages = std::map<std::tuple<int, int, std::int64_t>, std::vector<Sent>>;

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
        if (is_action(span.kind) && span.stage >= 0 && span.stage < plan.num_stages()) mine.push_back(span);
      std::stable_sort(mine.begin(), mine.end(),
                       [](const Span& a, const Span& b) { return a.start < b.start; });
      for (const Span& span : mine)
        if (span.kind == SpanKind::Send)
          messages_[{static_cast<int>(r), span.peer, span.microbatch}].push_back({span.stage, span.end});
    }
  }

  Result<MeasuredCosts> run() {
    if (Problems problems = find_steps(); !problems.empty()) return problems;
    for (std::size_t r = 0; r < spans_.size(); ++r) walk(static_cast<int>(r));
    MeasuredCosts result{.steps = static_cast<int>(last_ - first_)};
    for (std::size_t s = 0; s < whole_.size(); ++s) {
      if (whole_[s].forward.count == 0 || whole_[s].backward.count + whole_[s].input.count == 0)
        return Problem{"stage " + std::to_string(s), "has no computation in the traced steps",
                       "trace whole steps of every rank"};
      result.split_backwards |= whole_[s].input.count > 0;
      fill(whole_[s], result.costs);
      fill(alone_[s], result.alone);
      result.costs.update.push_back(updates_[s].value());
      result.costs.reduce.push_back(reduce_of(static_cast<int>(s)));
    }
    for (std::size_t l = 0; l < links_.size(); ++l) {
      const Mean& waited = transfers_[l].waited;
      result.costs.transfer.push_back(waited.count > 0 ? waited.value() : 0);
    }
    for (std::size_t r = 0; r < spans_.size(); ++r) {
      const double begin = static_cast<double>(ends_[r].at(first_)),
                   end = static_cast<double>(ends_[r].at(last_));
      result.step_s =
          std::max(result.step_s, (end - begin) * kNanosecond / static_cast<double>(last_ - first_));
    }
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
  struct OfLink {
    Mean waited;
  };

  static void fill(const OfStage& stage, ScheduleCosts& costs) {
    costs.forward.push_back(stage.forward.value());
    const bool split = stage.input.count > 0;
    costs.backward_input.push_back(split ? stage.input.value() : stage.backward.value() / 2);
    costs.backward_weight.push_back(split ? stage.weight.value() : stage.backward.value() / 2);
  }

  /// The first step and the last that every rank has whole; ends_ of each.
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
    if (common.size() < 3)
      return {{"", "fewer than three steps were traced on every rank", "train with --trace-steps 10"}};
    first_ = *common.begin();
    last_ = *common.rbegin();
    return {};
  }

  bool counts(const Span& span) const { return span.step > first_ && span.step <= last_; }

  /// When the message that `wait` takes was handed over; nothing if its send is not traced.
  std::optional<std::int64_t> sent_at(int rank, const Span& wait, std::size_t& link) {
    const auto found = messages_.find({wait.peer, rank, wait.microbatch});
    if (found == messages_.end()) return std::nullopt;
    for (Sent& sent : found->second) {
      if (sent.taken) continue;
      for (std::size_t l = 0; l < links_.size(); ++l) {
        const int a = links_[l].from.value, b = links_[l].to.value;
        if (!((a == sent.stage && b == wait.stage) || (b == sent.stage && a == wait.stage))) continue;
        sent.taken = true;
        link = l;
        return sent.end;
      }
    }
    return std::nullopt;
  }

  void walk(int rank) {
    std::int64_t before = ends_[static_cast<std::size_t>(rank)].at(first_);
    double pending = 0;    // seconds that the next computation gets
    Mean* last = nullptr;  // the computation before
    std::vector<std::pair<Mean*, double>> added;
    for (const Span& span : spans_[static_cast<std::size_t>(rank)]) {
      std::size_t link = 0;
      const std::optional<std::int64_t> sent =
          span.kind == SpanKind::Wait ? sent_at(rank, span, link) : std::nullopt;
      if (!counts(span)) continue;
      const double own = static_cast<double>(span.end - before) * kNanosecond;
      if (computes(span.kind)) {
        OfStage& stage = whole_[static_cast<std::size_t>(span.stage)];
        last = &stage.of(span.kind);
        last->add(own + pending);
        pending = 0;
        alone_[static_cast<std::size_t>(span.stage)].of(span.kind).add(
            static_cast<double>(span.end - span.start) * kNanosecond);
      } else if (span.kind == SpanKind::Wait) {
        const bool waited = sent && *sent > before;
        if (waited) {
          transfers_[link].waited.add(static_cast<double>(std::max<std::int64_t>(0, span.end - *sent)) *
                                      kNanosecond);
        } else if (sent) {
          pending += own;
        }
      } else if (span.kind == SpanKind::Send && last != nullptr) {
        last->sum += own;
      } else if (span.kind == SpanKind::Update) {
        updates_[static_cast<std::size_t>(span.stage)].add(own);
      } else if (span.kind == SpanKind::Reduce) {
        reduces_[{span.stage, span.step}].push_back(span);
      } else {
        pending += own;
      }
      before = span.end;
    }
  }

  /// From where the last replica begins to reduce until it has the sum.
  double reduce_of(int stage) const {
    Mean mean;
    if (shape_.replicas(StageId(stage)) < 2) return 0;
    for (const auto& [which, spans] : reduces_) {
      if (which.first != stage) continue;
      std::int64_t start = INT64_MIN, end = INT64_MAX;
      for (const Span& span : spans) {
        start = std::max(start, span.start);
        end = std::min(end, span.end);
      }
      mean.add(static_cast<double>(std::max<std::int64_t>(0, end - start)) * kNanosecond);
    }
    return mean.value();
  }

  const PipelineShape& shape_;
  const std::vector<StageLink> links_;
  std::vector<OfLink> transfers_;
  std::vector<OfStage> whole_, alone_;
  std::vector<Mean> updates_;
  std::map<std::pair<int, std::int64_t>, std::vector<Span>> reduces_;
  std::vector<std::vector<Span>> spans_;
  std::vector<std::map<std::int64_t, std::int64_t>> ends_;  // by rank: of each step
  Messages messages_;
  std::int64_t first_ = 0, last_ = 0;
};

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
  return Averages(plan, shape, spans_by_rank).run();
}

Result<double> simulated_step(const Plan& plan, const PipelineShape& shape, const ScheduleCosts& costs,
                              const std::optional<ScheduleFile>& file) {
  if (!is_asynchronous(plan.schedule)) {
    const Result<Schedule> schedule = schedule_of(plan, shape, Transport::Buffered, file);
    if (!schedule) return schedule.problems();
    return steady_step(*schedule, shape, costs);
  }
  int round = std::max(1, shape.update_every);
  for (const auto& ranks : shape.ranks_of_stage) round = std::lcm(round, static_cast<int>(ranks.size()));
  const int fill = (4 * shape.num_ranks() + round - 1) / round * round;
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

}  // namespace millrace
