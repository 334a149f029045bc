#include "experiments/report/run_evidence.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <string_view>

#include "driver/launch/run_manifest.h"
#include "experiments/drawing/figures.h"
#include "experiments/drawing/html_page.h"
#include "experiments/drawing/svg_chart.h"
#include "experiments/report/report.h"
#include "runtime/base/json_number.h"
#include "runtime/base/median.h"
#include "runtime/base/text.h"
#include "runtime/drawing/svg.h"

namespace millrace {
namespace {

constexpr int kWideCurve = 1096, kNarrowCurve = 380;  // pixels
constexpr double kLow = 0.1, kHigh = 0.9;             // quantiles of the times of steps

std::string text_of(const Json* value) {
  if (!value) return "";
  if (value->is_string()) return value->as_string();
  return value->is_null() ? "" : value->dump(-1);
}

/// The name by which a page speaks of a run.
std::string label_of(const RunData& run) {
  const std::string name = std::filesystem::weakly_canonical(run.folder).filename().string();
  return name.empty() ? run.folder : name;
}

/// The mark of a run in a table's head, as it is in the legends.
std::string mark_of(std::size_t run) {
  const Series like = series_number(run, "");
  const std::string background =
      like.style == Series::Style::Dashed
          ? "repeating-linear-gradient(90deg," + like.colour + " 0 3px,transparent 3px 5px)"
          : like.colour;
  return "<i class=\"job\" style=\"background:" + background +
         (like.style == Series::Style::Dots ? ";border-radius:50%" : "") + "\"></i>";
}

/// A value of a run that its table has in a row.
struct Row {
  std::string name;
  std::function<std::string(const RunData&)> text;
};

double quantile(std::vector<double> values, double part) {
  if (values.empty()) return NAN;
  std::ranges::sort(values);
  return values[static_cast<std::size_t>(part * static_cast<double>(values.size() - 1) + 0.5)];
}

/// Reads the rank that stands for the job. The first step, which warms up, is left out.
std::vector<double> values_of_steps(const RunData& run, double StepLine::*member) {
  std::vector<double> values;
  const RankRun* rank = loss_rank(run);
  for (std::size_t i = rank && rank->steps.size() > 1 ? 1 : 0; rank && i < rank->steps.size(); ++i)
    values.push_back(rank->steps[i].*member);
  return values;
}

/// "12.3 ms (11.9 ms to 14.0 ms)"; of one value "12.3 ms"
std::string with_interval(const std::vector<double>& values, const std::function<std::string(double)>& text) {
  if (values.empty()) return "";
  if (values.size() == 1) return text(values.front());
  return text(median(values)) + " (" + text(quantile(values, kLow)) + " to " + text(quantile(values, kHigh)) +
         ")";
}

std::vector<std::pair<double, double>> losses_by_step(const RunData& run) {
  std::vector<std::pair<double, double>> points;
  const RankRun* rank = loss_rank(run);
  for (std::size_t i = 0; rank && i < rank->steps.size(); ++i) {
    if (rank->steps[i].loss && std::isfinite(*rank->steps[i].loss))
      points.emplace_back(static_cast<double>(done_after(run, *rank, rank->steps[i])), *rank->steps[i].loss);
  }
  return points;
}

std::string table_of(const std::vector<const RunData*>& runs, const std::vector<Row>& rows) {
  std::string html = "<div class=\"scroll\"><table><thead><tr><th></th>";
  for (std::size_t i = 0; i < runs.size(); ++i)
    html += "<th>" + mark_of(i) + escape_xml(label_of(*runs[i])) + "</th>";
  html += "</tr></thead><tbody>";
  for (const Row& row : rows) {
    html += "<tr><td>" + escape_xml(row.name) + "</td>";
    for (const RunData* run : runs) {
      const std::string text = row.text(*run);
      html += text.empty() ? "<td class=\"none\">–</td>" : "<td>" + escape_xml(text) + "</td>";
    }
    html += "</tr>";
  }
  return html + "</tbody></table></div>";
}

std::string value_in(const Facts& facts, const std::string& name) {
  const auto found = std::ranges::find(facts, name, &Facts::value_type::first);
  return found == facts.end() ? "" : found->second;
}

/// Names of settings and of the machine that are not the same in all runs.
std::vector<Row> differing_rows(const std::vector<const RunData*>& runs) {
  std::vector<Row> rows;
  std::set<std::string> seen;
  for (Facts (*facts_of)(const RunData&) : {settings_of, machine_of}) {
    for (const RunData* run : runs) {
      for (const auto& [name, value] : facts_of(*run)) {
        const bool differs = std::ranges::any_of(runs, [&, &name = name, &value = value](const RunData* r) {
          return value_in(facts_of(*r), name) != value;
        });
        if (!differs || !seen.insert(name).second) continue;
        rows.push_back(
            {name, [facts_of, name = name](const RunData& r) { return value_in(facts_of(r), name); }});
      }
    }
  }
  return rows;
}

std::vector<Row> result_rows(const std::vector<const RunData*>& runs) {
  std::vector<Row> rows{
      {"step, median (10 % to 90 %)",
       [](const RunData& r) {
         return with_interval(values_of_steps(r, &StepLine::step_s), duration_figure);
       }},
      {"samples/s, median (10 % to 90 %)",
       [](const RunData& r) { return with_interval(values_of_steps(r, &StepLine::samples_per_s), figure); }},
      {"steps",
       [](const RunData& r) {
         const RankRun* rank = loss_rank(r);
         return rank && !rank->steps.empty() ? std::to_string(done_after(r, *rank, rank->steps.back())) : "";
       }},
      {"last training loss",
       [](const RunData& r) {
         const auto points = losses_by_step(r);
         return points.empty() ? "" : printed("%.4g", points.back().second);
       }},
  };
  std::vector<std::string> names;
  for (const RunData* run : runs) {
    for (const MetricCurve& curve : metric_curves(*run)) {
      if (std::ranges::find(names, curve.name) == names.end()) names.push_back(curve.name);
    }
  }
  for (const std::string& name : names)
    rows.push_back({metric_title(name) + ", last evaluation", [name](const RunData& r) {
                      for (const MetricCurve& curve : metric_curves(r))
                        if (curve.name == name && !curve.evaluations.empty())
                          return metric_text(name, curve.evaluations.back().second);
                      return std::string();
                    }});
  return rows;
}

std::string overlaid(const std::string& title, const std::vector<Series>& series) {
  if (series.empty()) return "";
  LineChart chart{.title = title, .x_label = "step", .width = kWideCurve, .whole_x = true};
  const std::string wide = line_chart_svg(chart, series);
  chart.width = kNarrowCurve;
  return "<div class=\"wide\">" + wide + "</div><div class=\"narrow\">" + line_chart_svg(chart, series) +
         "</div>";
}

std::string curves_of(const std::vector<const RunData*>& runs) {
  std::vector<Series> losses;
  std::map<std::string, std::vector<Series>> metrics;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    auto points = losses_by_step(*runs[i]);
    const double window = static_cast<double>(points.size()) / 25;
    if (window >= 2) points = smoothed(points, window);
    if (!points.empty()) losses.push_back(series_number(i, label_of(*runs[i]), std::move(points)));
    for (MetricCurve& curve : metric_curves(*runs[i]))
      metrics[curve.name].push_back(series_number(i, label_of(*runs[i]), std::move(curve.evaluations)));
  }
  std::string html = overlaid("Training loss", losses);
  for (const auto& [name, series] : metrics) html += overlaid(metric_title(name) + ", evaluation", series);
  return html;
}

/// The launcher's facts where it started the run, else those of the summary.
Json facts_json(const RunData& run) {
  const std::string file = (std::filesystem::path(run.folder) / kRunManifest).string();
  std::error_code ignored;
  if (std::filesystem::exists(file, ignored)) {
    if (Result<Json> manifest = read_json(file); manifest && manifest->is_object())
      return *std::move(manifest);
  }
  const Json* made = run.summary.is_object() ? run.summary.find("made") : nullptr;
  return made && made->is_object() ? *made : Json::object({});
}

}  // namespace

std::vector<MetricCurve> metric_curves(const RunData& run) {
  std::vector<MetricCurve> curves;
  for (const Json& evaluation : run.evaluations.items()) {
    const Json* step = evaluation.find("step");
    if (!step || !step->is_number()) continue;
    for (const auto& [name, value] : evaluation.members()) {
      const bool other = name == "step" || name == "after_step" || name == "samples" || name == "loss" ||
                         name == "seconds" || name.find(".job") != std::string::npos;
      const std::optional<double> number = number_in(value);
      if (other || !number) continue;
      auto found = std::ranges::find(curves, name, &MetricCurve::name);
      if (found == curves.end()) found = curves.insert(curves.end(), {.name = name});
      found->evaluations.emplace_back(step->as_double(), *number);
    }
  }
  const RankRun* rank = loss_rank(run);
  for (std::size_t i = 0; rank && i < rank->steps.size(); ++i) {
    for (const auto& [name, value] : rank->steps[i].metrics) {
      const auto curve = std::ranges::find(curves, name, &MetricCurve::name);
      if (curve != curves.end())
        curve->training.emplace_back(static_cast<double>(done_after(run, *rank, rank->steps[i])), value);
    }
  }
  return curves;
}

std::string steadiness_text(const RunData& run) {
  const std::vector<double> times = values_of_steps(run, &StepLine::step_s);
  const std::string device = value_in(settings_of(run), "device");
  const std::string where =
      device.empty() || device == "cpu" ? value_in(machine_of(run), "processor") : device;
  const std::string on = where.empty() ? "" : ", on " + where;
  if (times.empty()) return "";
  if (times.size() == 1) return "one step" + on;
  return "the median of " + std::to_string(times.size()) + " steps, of which the middle 80 % took " +
         duration_figure(quantile(times, kLow)) + " to " + duration_figure(quantile(times, kHigh)) + on;
}

std::string profile_text(const RunData& run) {
  if (!run.plan) return "";
  const Facts facts = machine_of(run);
  const ProfileOrigin& origin = run.plan->planned_for.origin;
  std::string date = value_in(facts, "launched");
  if (date.empty()) date = value_in(facts, "date");
  const std::string doubt = doubt_of(origin, value_in(facts, "processor"), date);
  return doubt.empty() ? to_string(origin, date) : doubt;
}

std::string metric_title(const std::string& name) {
  if (name == "top1") return "Top-1";
  if (name == "top5") return "Top-5";
  return name == "perplexity" ? "Perplexity per token" : name;
}

std::string metric_text(const std::string& name, double value) {
  static const std::set<std::string> shares{"top1", "top5", "accuracy", "masked_accuracy", "miou"};
  return shares.contains(name) || name.ends_with(".top1") || name.ends_with(".top5")
             ? printed("%.1f %%", value * 100)
             : printed("%.4g", value);
}

Facts settings_of(const RunData& run) {
  Facts facts;
  const auto add = [&](const std::string& name, const std::string& value) {
    if (!value.empty() && value_in(facts, name).empty()) facts.emplace_back(name, value);
  };
  if (!run.summary.is_object()) return facts;
  add("device", text_of(run.summary.find("device_name")));
  for (const char* key : {"model", "data", "ranks", "stages", "schedule", "microbatches", "microbatch",
                          "seed", "device", "precision"})
    add(key, text_of(run.summary.find(key)));
  if (const Json* variant = run.summary.find("variant"); variant && variant->is_object())
    add("variant", text_of(variant->find("name")));
  const Json* settings = run.summary.find("settings");
  if (settings && settings->is_object())
    for (const auto& [name, value] : settings->members()) add(name, text_of(&value));
  return facts;
}

Facts machine_of(const RunData& run) {
  const Json json = facts_json(run);
  Facts facts;
  const RankRun* rank = loss_rank(run);
  const auto commands = rank ? rank->commands : decltype(rank->commands)();
  if (commands.size() > 1)  // the facts know the newest one only
    for (const auto& [done, command] : commands)
      facts.emplace_back(done == 0 ? "command" : "resumed after step " + std::to_string(done), command);
  for (const char* key : {"command", "launched", "date", "host", "processor", "engine", "millrace"}) {
    std::string text = text_of(json.find(key));
    if (!text.empty() && value_in(facts, key).empty()) facts.emplace_back(key, std::move(text));
  }
  const Json* git = json.find("git");
  if (git && git->is_object()) {
    const Json* changed = git->find("changed");
    const bool is_changed = changed && changed->kind() == Json::Kind::Bool && changed->as_bool();
    facts.emplace_back("git", text_of(git->find("commit")) + (is_changed ? ", with changes" : ""));
  }
  return facts;
}

std::string what_was_run_html(const RunData& run) {
  const Facts settings = settings_of(run), machine = machine_of(run);
  if (settings.empty() && machine.empty()) return "";
  std::string table = "<div class=\"scroll\"><table><tbody>";
  for (const Facts& facts : {machine, settings}) {
    for (const auto& [name, value] : facts)
      table += "<tr><td>" + escape_xml(name) + "</td><td>" + escape_xml(value) + "</td></tr>";
  }
  return html_card("What was run", "The command, the machine, and every setting that decides the result.",
                   table + "</tbody></table></div>");
}

std::string side_by_side_html(const RunData& run, const std::vector<RunData>& others) {
  if (others.empty()) return "";
  std::vector<const RunData*> runs{&run};
  for (const RunData& other : others) runs.push_back(&other);
  const std::vector<Row> differing = differing_rows(runs);
  return html_card("Side by side: what differs",
                   differing.empty() ? "All settings that the runs have recorded are the same." : "",
                   differing.empty() ? "" : table_of(runs, differing)) +
         html_card("Side by side: results",
                   "Times are medians over the steps after the first, with the range of the middle 80 %.",
                   table_of(runs, result_rows(runs)) + curves_of(runs));
}

namespace {

/// Returns the address of a file by its relative path: "a%20b/report.html".
std::string url_of(const std::string& path) {
  std::string url;
  for (const char c : path) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain = std::isalnum(byte) || std::string_view("-._~/=,+@").find(c) != std::string_view::npos;
    url += plain ? std::string(1, c) : printed("%%%02X", static_cast<unsigned>(byte));
  }
  return url;
}

}  // namespace

std::string index_html(const std::string& folder, const std::vector<const RunData*>& runs,
                       const std::vector<std::string>& links, int reload_s) {
  const auto date_of = [&](std::size_t run) {
    const Facts facts = machine_of(*runs[run]);
    const std::string launched = value_in(facts, "launched");
    return launched.empty() ? value_in(facts, "date") : launched;
  };
  std::vector<std::size_t> order;
  for (std::size_t run = 0; run < runs.size(); ++run) order.push_back(run);
  std::ranges::stable_sort(order, std::greater<>(), date_of);
  std::vector<Row> rows{{"end", [](const RunData& r) { return std::string(to_string(r.end.state)); }}};
  for (const char* name : {"model", "data"})
    rows.push_back({name, [name](const RunData& r) { return value_in(settings_of(r), name); }});
  for (Row& row : result_rows(runs)) rows.push_back(std::move(row));
  std::string table = "<div class=\"scroll\"><table><thead><tr><th>run</th><th>date</th>";
  for (const Row& row : rows) table += "<th>" + escape_xml(row.name) + "</th>";
  table += "</tr></thead><tbody>";
  for (const std::size_t run : order) {
    const std::string name =
        escape_xml(std::filesystem::path(runs[run]->folder).lexically_relative(folder).string());
    table += "<tr><td><a href=\"" + url_of(links[run]) + "\">" + name + "</a></td><td>" +
             escape_xml(date_of(run)) + "</td>";
    for (const Row& row : rows) table += "<td>" + escape_xml(row.text(*runs[run])) + "</td>";
    table += "</tr>";
  }
  return html_page({.title = "Runs in " + folder,
                    .body = "<header><h1>Runs</h1><p>" + escape_xml(folder) + "</p></header>" +
                            html_card("Runs", "The newest first.", table + "</tbody></table></div>"),
                    .footer = "Written by millrace report --index.",
                    .reload_s = reload_s});
}

}  // namespace millrace
