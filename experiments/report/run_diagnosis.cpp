#include "experiments/report/run_diagnosis.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "experiments/drawing/figures.h"
#include "experiments/drawing/html_page.h"
#include "experiments/drawing/svg_chart.h"
#include "experiments/report/report.h"
#include "experiments/report/run_messages.h"
#include "runtime/base/median.h"
#include "runtime/base/text.h"
#include "runtime/drawing/svg.h"
#include "runtime/schedule/measured_costs.h"

namespace millrace {
namespace {

constexpr std::size_t kMostNamed = 12;  // rows of a table of steps
constexpr double kExplains = 0.3;       // of what a step took too long
constexpr std::size_t kMostCurves = 64, kFewCurves = 12;
constexpr int kNarrow = 380;  // pixels

struct Phase {
  const char* name;
  double StepLine::*seconds;
};
/// Those that a rank does itself.
constexpr Phase kOwn[] = {{"batch wait", &StepLine::data_s},
                          {"forward", &StepLine::forward_s},
                          {"backward", &StepLine::backward_s},
                          {"send", &StepLine::send_s},
                          {"update", &StepLine::update_s}};

/// The first step warms up; a run of one has no other.
std::vector<StepLine>::const_iterator first_of(const RankRun& rank) {
  return rank.steps.begin() + (rank.steps.size() > 1 ? 1 : 0);
}

template <class Value>
std::vector<double> values_of(const RankRun& rank, Value value) {
  std::vector<double> values;
  for (auto step = first_of(rank); step != rank.steps.end(); ++step) values.push_back(value(*step));
  return values;
}

double compute_of(const StepLine& step) {
  return step.forward_s + step.backward_s + step.update_s;
}

/// Returns the median, of an even number the lower of the two: else a pair could have no straggler.
double lower_median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  return values[(values.size() - 1) / 2];
}

using Interval = std::pair<std::int64_t, std::int64_t>;

/// Sorted, and apart.
std::vector<Interval> united(std::vector<Interval> intervals) {
  std::ranges::sort(intervals);
  std::vector<Interval> result;
  for (const Interval& one : intervals) {
    if (result.empty() || one.first > result.back().second)
      result.push_back(one);
    else
      result.back().second = std::max(result.back().second, one.second);
  }
  return result;
}

double length_of(const std::vector<Interval>& intervals) {
  std::int64_t sum = 0;
  for (const auto& [start, end] : intervals) sum += end - start;
  return static_cast<double>(sum) * 1e-9;
}

/// Both as united() makes them.
std::vector<Interval> common(const std::vector<Interval>& a, const std::vector<Interval>& b) {
  std::vector<Interval> result;
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const std::int64_t start = std::max(a[i].first, b[j].first), end = std::min(a[i].second, b[j].second);
    if (start < end) result.emplace_back(start, end);
    a[i].second < b[j].second ? ++i : ++j;
  }
  return result;
}

/// Computations alone: nothing else takes time.
ScheduleCosts bare(const MeasuredCosts& measured) {
  ScheduleCosts costs = measured.alone;
  costs.update = measured.costs.update;
  costs.reduce.clear();
  costs.transfer.clear();
  return costs;
}

/// Seconds in which each rank computes in a step (asynchronous: for a minibatch).
std::vector<double> busy_of(const Plan& plan, const PipelineShape& shape, const ScheduleCosts& costs) {
  std::vector<double> busy(static_cast<std::size_t>(plan.num_ranks()), 0);
  const bool each = updates_after_each(plan.schedule);
  for (int s = 0; s < plan.num_stages(); ++s) {
    const auto stage = static_cast<std::size_t>(s);
    const double replicas = static_cast<double>(plan.stages[stage].ranks.size());
    const double microbatches = each ? 1 / replicas : static_cast<double>(shape.microbatches) / replicas;
    const double updates = each ? 1 / replicas : shape.arrays;
    const double of_rank =
        microbatches * (costs.forward[stage] + costs.backward_input[stage] + costs.backward_weight[stage]) +
        updates * (stage < costs.update.size() ? costs.update[stage] : 0);
    for (const RankId rank : plan.stages[stage].ranks) busy[static_cast<std::size_t>(rank.value)] += of_rank;
  }
  return busy;
}

/// Returns what a schedule leaves idle of each rank with these costs. Empty: it cannot be simulated.
std::vector<double> idle_of(const RunData& run, const PipelineShape& shape, const ScheduleCosts& costs) {
  const Result<double> step = simulated_step(*run.plan, shape, costs, run.schedule);
  std::vector<double> idle;
  if (!step || !(*step > 0)) return idle;
  for (const double busy : busy_of(*run.plan, shape, costs)) idle.push_back(std::max(0.0, 1 - busy / *step));
  return idle;
}

std::string row_of(const std::vector<std::string>& cells) {
  std::string html = "<tr>";
  for (const std::string& cell : cells) html += "<td>" + escape_xml(cell) + "</td>";
  return html + "</tr>";
}

std::string table_of(const std::vector<std::string>& heads, const std::string& rows) {
  std::string html = "<div class=\"scroll\"><table><thead><tr>";
  for (const std::string& head : heads) html += "<th>" + escape_xml(head) + "</th>";
  return html + "</tr></thead><tbody>" + rows + "</tbody></table></div>";
}

std::string per_cent(double share) {
  return printed("%.1f %%", 100 * share);
}

std::string rank_name(int rank) {
  return "rank " + std::to_string(rank);
}

std::string cause_of(const SlowStep& step) {
  return step.phase.empty() ? "no phase explains it: waits, or the host"
                            : rank_name(step.rank) + ", " + step.phase + ": +" + duration_figure(step.more_s);
}

std::string stragglers_card(const RunData& run) {
  const bool any = std::ranges::any_of(run.ranks, [](const RankRun& rank) { return rank.steps.size() > 2; });
  if (!any) return "";
  const std::vector<SlowRank> ranks = slow_ranks(run);
  const std::vector<SlowStep> steps = slow_steps(run);
  const std::string beyond = printed("%.1f times the median", kStraggles);
  std::string html;
  if (!ranks.empty()) {
    std::string rows;
    for (const SlowRank& one : ranks)
      rows += row_of({rank_name(one.rank), one.stage < 0 ? "–" : std::to_string(one.stage),
                      duration_figure(one.compute_s), printed("%.2f times", one.ratio)});
    html += table_of({"Rank", "stage", "computes in a step", "of the median rank"}, rows);
  }
  if (!steps.empty()) {
    std::string rows;
    for (std::size_t i = 0; i < std::min(kMostNamed, steps.size()); ++i)
      rows += row_of({"step " + std::to_string(steps[i].step + 1), duration_figure(steps[i].step_s),
                      printed("%.2f times", steps[i].ratio), cause_of(steps[i])});
    html += table_of({"Step", "took", "of the median step", "what grew most"}, rows);
  }
  std::string lead = ranks.empty() ? "No rank computes for more than " + beyond + " rank."
                                   : "Ranks that compute for more than " + beyond + " rank.";
  lead += steps.empty() ? " No step took more than " + beyond + "."
                        : " " + std::to_string(steps.size()) + (steps.size() == 1 ? " step" : " steps") +
                              " took more than " + beyond + ".";
  if (steps.size() > kMostNamed) lead += " The " + std::to_string(kMostNamed) + " slowest are named.";
  return html_card("Stragglers", lead, html);
}

std::string stalls_card(const RunData& run) {
  std::string rows;
  for (const DataStall& one : data_stalls(run))
    rows += row_of({rank_name(one.rank), duration_figure(one.mean_s), per_cent(one.share),
                    std::to_string(one.steps), duration_figure(one.longest_s),
                    "step " + std::to_string(one.longest_step + 1)});
  if (rows.empty()) return "";
  return html_card(
      "Data stalls",
      printed("Waits for a batch, and its copy to the device. A step stalls if they are more than "
              "%.0f %% of it.",
              100 * kStalls),
      table_of({"Rank", "in a step", "of the steps", "steps that stalled", "longest", "in"}, rows));
}

std::string bubble_card(const RunData& run) {
  const Bubbles bubbles = bubbles_of(run);
  if (bubbles.ranks.empty()) return "";
  const bool bound = bubbles.no_bound.empty();
  std::string rows;
  for (const RankBubble& one : bubbles.ranks) {
    std::vector<std::string> cells{rank_name(one.rank), per_cent(one.measured)};
    if (bound) {
      cells.push_back(per_cent(one.from_trace));
      cells.push_back(per_cent(one.bound));
      cells.push_back(per_cent(one.from_trace - one.bound));
    }
    rows += row_of(cells);
  }
  std::string lead = "Share of a step in which a rank does not compute.";
  if (bound)
    lead +=
        " Bound: what the schedule itself leaves idle with this run's mean times, if messages, data and sums "
        "of replicas took none.";
  else
    lead += " There is no bound to set beside it: " + escape_xml(bubbles.no_bound) + ".";
  if (bubbles.equal_stages >= 0)
    lead += " With equal stages it would be " + per_cent(bubbles.equal_stages) + ".";
  std::vector<std::string> heads{"Rank", "measured, median of all steps"};
  if (bound) heads.insert(heads.end(), {"mean of the traced steps", "schedule's bound", "beyond it"});
  return html_card("Bubble beside its bound", lead, table_of(heads, rows));
}

std::string overlap_card(const RunData& run) {
  std::string rows;
  for (const RankOverlap& one : overlaps_of(run))
    rows += row_of({rank_name(one.rank), figure(one.messages), duration_figure(one.under_way_s),
                    per_cent(one.hidden), duration_figure(one.waited_s)});
  if (rows.empty()) return "";
  return html_card("Messages and computation",
                   "Means of the traced steps. Under way: at least one message to the rank was, from the "
                   "begin of its send "
                   "until the rank knew of it. Hidden: the share of that in which the rank computed.",
                   table_of({"Rank", "messages to it", "under way", "hidden", "waited for them"}, rows));
}

std::string memory_card(const RunData& run) {
  std::vector<Series> tensors, resident;
  for (const RankRun& rank : run.ranks) {
    if (tensors.size() + resident.size() >= 2 * kMostCurves) break;
    Series curve = series_number(static_cast<std::size_t>(rank.rank), rank_name(rank.rank));
    if (run.ranks.size() > kFewCurves) curve.style = Series::Style::Faint;
    Series whole = curve;
    for (const StepLine& step : rank.steps) {
      const auto x = static_cast<double>(done_after(run, rank, step));
      if (step.peak_memory_bytes > 0)
        curve.points.emplace_back(x, static_cast<double>(step.peak_memory_bytes) / (1 << 20));
      if (step.resident_memory_bytes > 0)
        whole.points.emplace_back(x, static_cast<double>(step.resident_memory_bytes) / (1 << 20));
    }
    if (!curve.points.empty()) tensors.push_back(std::move(curve));
    if (!whole.points.empty()) resident.push_back(std::move(whole));
  }
  const auto chart = [&](const char* title, const std::vector<Series>& series) {
    if (series.empty()) return std::string();
    LineChart options{
        .title = title, .x_label = "step", .y_label = "MiB", .y_from_zero = true, .whole_x = true};
    options.legend = series.size() <= kFewCurves;
    const std::string wide = line_chart_svg(options, series);
    options.width = kNarrow;
    return "<div><div class=\"wide\">" + wide + "</div><div class=\"narrow\">" +
           line_chart_svg(options, series) + "</div></div>";
  };
  const std::string charts = chart("Tensors", tensors) + chart("Process", resident);
  if (charts.empty()) return "";
  std::string lead =
      "The most that a rank had held at once until then: of tensors, and of all memory of its process.";
  if (run.ranks.size() > kMostCurves) lead += printed(" Of the first %zu ranks.", kMostCurves);
  return html_card("Memory over time", lead, "<div class=\"pair\">" + charts + "</div>");
}

}  // namespace

std::vector<SlowRank> slow_ranks(const RunData& run) {
  std::vector<SlowRank> all;
  std::vector<double> seconds;
  for (const RankRun& rank : run.ranks) {
    if (rank.steps.empty()) continue;
    all.push_back({.rank = rank.rank, .stage = rank.stage, .compute_s = median(values_of(rank, compute_of))});
    seconds.push_back(all.back().compute_s);
  }
  const double usual = lower_median(seconds);
  for (SlowRank& one : all) one.ratio = usual > 0 ? one.compute_s / usual : 0;
  std::erase_if(all, [](const SlowRank& one) { return one.ratio <= kStraggles; });
  return all;
}

std::vector<SlowStep> slow_steps(const RunData& run) {
  std::map<std::int64_t, SlowStep> slow;
  for (const RankRun& rank : run.ranks) {
    const double usual = median(values_of(rank, [](const StepLine& s) { return s.step_s; }));
    for (auto step = first_of(rank); usual > 0 && rank.steps.size() > 2 && step != rank.steps.end(); ++step) {
      const double ratio = step->step_s / usual;
      if (ratio <= kStraggles) continue;
      SlowStep& one = slow[step->step];
      if (ratio <= one.ratio) continue;
      one = {.step = step->step, .ratio = ratio, .step_s = step->step_s, .over_s = step->step_s - usual};
    }
  }
  for (const RankRun& rank : run.ranks) {
    if (slow.empty()) break;
    for (const Phase& phase : kOwn) {
      const double usual = median(values_of(rank, [&](const StepLine& s) { return s.*phase.seconds; }));
      for (const StepLine& step : rank.steps) {
        const auto found = slow.find(step.step);
        if (found == slow.end() || step.*phase.seconds - usual <= found->second.more_s) continue;
        found->second.rank = rank.rank;
        found->second.phase = phase.name;
        found->second.more_s = step.*phase.seconds - usual;
      }
    }
  }
  std::vector<SlowStep> sorted;
  for (auto& [step, one] : slow) {
    if (one.more_s < kExplains * one.over_s) one.phase.clear();
    sorted.push_back(one);
  }
  std::ranges::stable_sort(sorted, std::greater<>(), &SlowStep::ratio);
  return sorted;
}

std::vector<DataStall> data_stalls(const RunData& run) {
  std::vector<DataStall> stalls;
  for (const RankRun& rank : run.ranks) {
    DataStall one{.rank = rank.rank};
    double waited = 0, all = 0;
    for (auto step = first_of(rank); step != rank.steps.end(); ++step) {
      waited += step->data_s;
      all += step->step_s;
      one.steps += step->step_s > 0 && step->data_s > kStalls * step->step_s;
      if (step->data_s > one.longest_s) one.longest_s = step->data_s, one.longest_step = step->step;
    }
    if (!(waited > 0) || !(all > 0)) continue;
    one.mean_s = waited / static_cast<double>(rank.steps.end() - first_of(rank));
    one.share = waited / all;
    stalls.push_back(one);
  }
  return stalls;
}

Bubbles bubbles_of(const RunData& run) {
  Bubbles bubbles;
  for (const RankRun& rank : run.ranks)
    if (!rank.steps.empty())
      bubbles.ranks.push_back({.rank = rank.rank, .measured = median(values_of(rank, [](const StepLine& s) {
                                                    return s.bubble_share;
                                                  }))});
  if (!run.plan || !validate(*run.plan).empty()) {
    bubbles.no_bound = "there is no valid plan";
    return bubbles;
  }
  const Plan& plan = *run.plan;
  const PipelineShape shape = shape_of(plan);
  const auto stages = static_cast<std::size_t>(plan.num_stages());
  if (plan.schedule == ScheduleKind::Custom && !run.schedule) {
    bubbles.no_bound = "the order of its schedule is in no file";
    return bubbles;
  }
  ScheduleCosts alike;
  for (std::vector<double>* costs : {&alike.forward, &alike.backward_input, &alike.backward_weight})
    costs->assign(stages, 1);
  const std::vector<double> equal = idle_of(run, shape, alike);
  if (!equal.empty()) bubbles.equal_stages = *std::ranges::max_element(equal);
  std::vector<std::vector<Span>> spans;
  for (const RankRun& rank : run.ranks) spans.push_back(rank.spans);
  const Result<MeasuredCosts> measured = measured_costs(plan, shape, spans);
  if (!measured) {
    bubbles.no_bound = measured.problems().front().what;
    return bubbles;
  }
  const ScheduleCosts costs = bare(*measured);
  const std::vector<double> idle = idle_of(run, shape, costs), busy = busy_of(plan, shape, costs);
  if (idle.empty()) bubbles.no_bound = "its schedule cannot be simulated";
  for (RankBubble& one : bubbles.ranks) {
    const auto rank = static_cast<std::size_t>(one.rank);
    if (rank >= idle.size()) continue;
    one.bound = idle[rank];
    one.from_trace = std::max(0.0, 1 - busy[rank] / measured->step_s);
  }
  return bubbles;
}

std::vector<RankOverlap> overlaps_of(const RunData& run) {
  const std::vector<std::int64_t> offsets = clock_offsets(run);
  std::map<int, std::vector<Interval>> under_way;
  std::map<int, std::int64_t> count;
  for (const RunMessage& one : messages_of(run, MessagesOf::Steps)) {
    under_way[one.to].emplace_back(one.sent, one.arrived);
    ++count[one.to];
  }
  std::vector<RankOverlap> overlaps;
  for (std::size_t i = 0; i < run.ranks.size(); ++i) {
    const RankRun& rank = run.ranks[i];
    if (count[rank.rank] == 0) continue;
    std::vector<Interval> computing;
    std::set<std::int64_t> steps;
    double waited = 0;
    for (const Span& span : step_spans(rank)) {
      if (is_computation(span.kind)) {
        computing.emplace_back(span.start + offsets[i], span.end + offsets[i]);
        steps.insert(span.step);
      }
      if ((span.kind == SpanKind::Wait || span.kind == SpanKind::Recv) && span.peer >= 0)
        waited += static_cast<double>(span.end - span.start) * 1e-9;
    }
    const auto number = static_cast<double>(std::max<std::size_t>(1, steps.size()));
    const std::vector<Interval> moving = united(std::move(under_way[rank.rank]));
    const double all = length_of(moving);
    overlaps.push_back({.rank = rank.rank,
                        .messages = static_cast<double>(count[rank.rank]) / number,
                        .under_way_s = all / number,
                        .hidden = length_of(common(moving, united(std::move(computing)))) / all,
                        .waited_s = waited / number});
  }
  return overlaps;
}

std::string diagnosis_html(const RunData& run) {
  return stragglers_card(run) + stalls_card(run) + bubble_card(run) + overlap_card(run) + memory_card(run);
}

std::vector<std::string> diagnosis_lines(const RunData& run) {
  std::vector<std::string> lines;
  for (const SlowRank& one : slow_ranks(run))
    lines.push_back("straggler: " + rank_name(one.rank) +
                    printed(" computes %.2f times as long as the median rank", one.ratio));
  const std::vector<SlowStep> steps = slow_steps(run);
  if (!steps.empty())
    lines.push_back("slow steps: " + std::to_string(steps.size()) +
                    printed(" took more than %.1f times the median; the slowest is step ", kStraggles) +
                    std::to_string(steps.front().step + 1) + printed(" (%.2f times; ", steps.front().ratio) +
                    cause_of(steps.front()) + ")");
  for (const DataStall& one : data_stalls(run))
    if (one.share > kStalls)
      lines.push_back("data stalls: " + rank_name(one.rank) + " waits for data in " + per_cent(one.share) +
                      " of its steps' time");
  return lines;
}

}  // namespace millrace
