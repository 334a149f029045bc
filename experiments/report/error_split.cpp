#include "experiments/report/error_split.h"

#include <algorithm>
#include <cmath>

#include "experiments/report/report.h"
#include "runtime/base/quantities.h"
#include "runtime/base/text.h"
#include "runtime/drawing/svg.h"
#include "runtime/schedule/measured_costs.h"

namespace millrace {
namespace {

/// "+1.5 %", never "-0.0 %".
std::string share(double of_one) {
  return printed("%+.1f %%", std::round(of_one * 1000) / 10 + 0.0);
}

}  // namespace

Result<ErrorSplit> split_error(const RunData& run) {
  if (!run.plan) return Problem{run.folder, "has no plan", ""};
  const Plan& plan = *run.plan;
  if (Problems problems = validate(plan); !problems.empty()) return problems;
  if (plan.schedule == ScheduleKind::Custom && !run.schedule)
    return Problem{run.folder, "has no schedule.csv, so its order is not known", ""};
  std::vector<std::vector<Span>> spans;
  for (const RankRun& rank : run.ranks) spans.push_back(rank.spans);
  const PipelineShape shape = shape_of(plan);
  const Result<MeasuredCosts> measured = measured_costs(plan, shape, spans);
  if (!measured) return measured.problems();
  const Result<double> simulated = simulated_step(plan, shape, measured->costs, run.schedule);
  if (!simulated) return simulated.problems();
  const Result<double> replayed = replayed_step(plan, shape, *measured, run.schedule);
  if (!replayed) return replayed.problems();
  ErrorSplit split{.simulated_s = *simulated,
                   .replayed_s = *replayed,
                   .traced_s = measured->step_s,
                   .steps = measured->steps,
                   .measured_s = measured_step(run),
                   .spread = plan.predicted_spread};
  if (!(split.measured_s > 0)) split.measured_s = split.traced_s;
  split.predicted_s = plan.predicted_run_step_s > 0 ? plan.predicted_run_step_s : plan.predicted_step_s;
  if (updates_after_each(plan.schedule)) split.predicted_s /= std::max(1, plan.microbatches);
  return split;
}

std::string error_split_text(const ErrorSplit& split) {
  std::string text = "prediction: ";
  if (split.predicted_s > 0) text += "predicted " + duration_text(split.predicted_s) + " | ";
  text += "simulated again from this run's times " + duration_text(split.simulated_s) +
          ", from each action's own " + duration_text(split.replayed_s) + " | " +
          std::to_string(split.steps) + " traced steps " + duration_text(split.traced_s) + " | measured " +
          duration_text(split.measured_s) + " (median of all): ";
  if (split.predicted_s > 0) text += "times " + share(split.of_times()) + ", ";
  return text + "jitter " + share(split.of_jitter()) + ", model " + share(split.of_model()) +
         ", other steps " + share(split.of_steps());
}

std::string error_split_html(const RunData& run) {
  const Result<ErrorSplit> split = split_error(run);
  std::string html = "<section class=\"card\" id=\"error-split\"><h2>Where the prediction was off</h2>";
  if (!split) {
    return html + "<p class=\"lead\">Not known: " + escape_xml(to_string(split.problems().front())) +
           ".</p></section>\n";
  }
  html +=
      "<p class=\"lead\">The plan's schedule was simulated again with the mean times that this run's trace "
      "has, "
      "and with every action's own. Each row differs from the row above for one reason.</p>"
      "<div class=\"scroll why\"><table><thead><tr><th>A step</th><th>takes</th><th>off by</th><th>because "
      "of</th>"
      "</tr></thead><tbody>";
  const auto row = [&](const std::string& what, double seconds, const std::string& off,
                       const std::string& why) {
    html += "<tr><td>" + what + "</td><td>" + escape_xml(duration_text(seconds)) + "</td><td>" + off +
            "</td><td>" + why + "</td></tr>";
  };
  const bool predicts = split->predicted_s > 0;
  if (predicts) row("predicted", split->predicted_s, "", "");
  row("simulated with the trace's mean times", split->simulated_s, predicts ? share(split->of_times()) : "",
      predicts ? "the profile's times" : "");
  row("simulated with each action's own time", split->replayed_s, share(split->of_jitter()),
      "jitter, where ranks wait for each other");
  row("mean of " + std::to_string(split->steps) + " traced steps", split->traced_s, share(split->of_model()),
      "the model: order, waits, overlap");
  row("measured, the median of all steps", split->measured_s, share(split->of_steps()),
      "other steps; a median beside a mean");
  html += "</tbody></table></div>";
  if (split->spread > 0)
    html +=
        printed("<p class=\"lead\">The profile's own blocks differed by ±%.1f %%.</p>", split->spread * 100);
  return html + "</section>\n";
}

}  // namespace millrace
