#include "experiments/sweep/tune_report.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "experiments/drawing/figures.h"
#include "experiments/drawing/html_page.h"
#include "experiments/drawing/svg_chart.h"
#include "runtime/drawing/svg.h"

namespace millrace {
namespace {

constexpr std::size_t kMostRows = 100;

std::string cell(const std::string& text) {
  return "<td>" + escape_xml(text) + "</td>";
}

std::string curves_card(const TuneSpec& spec, const TuneResults& results) {
  std::map<int, Series> by_trial;
  for (const TrialResult& one : results.steps) {
    Series& series = by_trial[one.step.trial];
    series.points.emplace_back(one.step.to, one.metric);
    series.colour = "#3b76c4";
    series.style = Series::Style::Faint;
  }
  std::vector<Series> lines;
  Series ends{.colour = "#3b76c4", .style = Series::Style::Dots};
  Series winner{.name = "best trial", .colour = "#d1742f"};
  for (auto& [trial, series] : by_trial) {
    std::ranges::sort(series.points);
    if (results.best >= 0 && trial == results.steps[results.best].step.trial) winner.points = series.points;
    ends.points.insert(ends.points.end(), series.points.begin(), series.points.end());
    lines.push_back(std::move(series));
  }
  lines.push_back(std::move(ends));
  lines.push_back(std::move(winner));
  return html_card(
      "Trials", "A line for each trial that was continued, a dot for each evaluation.",
      line_chart_svg({.title = spec.metric, .x_label = "iterations", .width = 1096, .height = 340}, lines));
}

std::string trajectory_card(const TuneSpec& spec, const TuneResults& results) {
  Series line{.name = "best so far", .colour = "#3f9a63"};
  const std::vector<BestUntil> points = trajectory_of(spec, results.steps);
  for (const BestUntil& point : points)
    line.points.emplace_back(point.ended - points.front().ended, point.metric);
  if (line.points.size() < 2) return "";
  return html_card("Trajectory", "Wall time from the first result on.",
                   line_chart_svg({.title = spec.metric, .x_label = "seconds", .width = 1096}, {line}));
}

std::string table_card(const TuneSpec& spec, const TuneResults& results) {
  std::vector<const TrialResult*> ordered;
  for (const TrialResult& one : results.steps) ordered.push_back(&one);
  const auto score = [&](const TrialResult* r) {
    if (!std::isfinite(r->metric)) return -INFINITY;
    return static_cast<float>(spec.goal == Goal::Max ? r->metric : -r->metric);
  };
  std::ranges::stable_sort(ordered, [&](auto* a, auto* b) { return score(a) > score(b); });
  std::string html = "<div class=\"scroll\"><table><tr><th>Trial</th>";
  for (const std::string& flag : spec.space.flags()) html += "<th>" + escape_xml(flag) + "</th>";
  html += "<th>Iterations</th><th>" + escape_xml(spec.metric) + "</th><th>Time</th></tr>";
  for (std::size_t i = 0; i < std::min(kMostRows, ordered.size()); ++i) {
    const TrialResult& one = *ordered[i];
    html += "<tr>" + cell(std::to_string(one.step.trial));
    for (const Setting& setting : spec.settings(one.step.trial)) html += cell(setting.text);
    html += cell(std::to_string(one.step.from) + " – " + std::to_string(one.step.to)) +
            (one.exit_code != 0 ? "<td class=\"bad\">" + escape_xml(one.error) + "</td>"
                                : cell(printed("%.6g", one.metric))) +
            cell(one.trained_as == one.step.trial ? duration_figure(one.runtime)
                                                  : "as trial " + std::to_string(one.trained_as)) +
            "</tr>";
  }
  const std::string lead = ordered.size() > kMostRows ? "The first " + std::to_string(kMostRows) + " of " +
                                                            std::to_string(ordered.size()) + ", best first."
                                                      : "Best first.";
  return html_card("Results", lead, html + "</table></div>");
}

}  // namespace

std::string tune_report_html(const TuneSpec& spec, const TuneResults& results) {
  const TuneCost cost = cost_of(results);
  std::string tiles =
      "<div class=\"tiles\">" + html_tile("Algorithm", to_string(spec.search.kind), to_string(spec.mode)) +
      html_tile("Trials", std::to_string(spec.num_trials()), std::to_string(results.steps.size()) + " steps");
  if (results.best >= 0) {
    const TrialResult& best = results.steps[results.best];
    tiles += html_tile(
        "Best " + escape_xml(spec.metric), printed("%.6g", best.metric),
        "trial " + std::to_string(best.step.trial) + ": " + settings_text(spec.settings(best.step.trial)));
  }
  tiles += html_tile("Iterations", std::to_string(cost.iterations),
                     std::to_string(cost.restarts_iterations) + " with restarts");
  tiles += html_tile("Time", duration_figure(cost.seconds),
                     "about " + duration_figure(cost.restarts_seconds) + " with restarts");
  if (spec.mode == SweepMode::Fused)
    tiles += html_tile("Arrays", std::to_string(cost.runs),
                       std::to_string(cost.run_iterations) + " iterations in all");
  if (results.num_failed() > 0) tiles += html_tile("Failed", std::to_string(results.num_failed()), "steps");
  return html_page(
      {.title = spec.name,
       .body = "<header><h1>" + escape_xml(spec.name) + "</h1><p>" + escape_xml(spec.output_dir) +
               "</p></header>" + tiles + "</div>" + curves_card(spec, results) +
               trajectory_card(spec, results) + table_card(spec, results),
       .footer = "Written by millrace tune. Restarts: every step from nothing, at each trial's own "
                 "pace.",
       .data = {}});
}

}  // namespace millrace
