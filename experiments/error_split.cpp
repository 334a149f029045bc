#include "experiments/error_split.h"

#include <algorithm>

#include "runtime/base/text.h"
#include "runtime/drawing/svg.h"
#include "runtime/plan/quantities.h"
#include "runtime/schedule/measured_costs.h"

namespace millrace {

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
                   .measured_s = measured->step_s,
                   .steps = measured->steps,
                   .spread = plan.predicted_spread};
  split.predicted_s = plan.predicted_run_step_s > 0 ? plan.predicted_run_step_s : plan.predicted_step_s;
  if (updates_after_each(plan.schedule)) split.predicted_s /= std::max(1, plan.microbatches);
  return split;
}

std::string error_split_text(const ErrorSplit& split) {
  std::string text = "prediction: ";
  if (split.predicted_s > 0) text += "predicted " + duration_text(split.predicted_s) + " | ";
  text += "simulated again from this run's times " + duration_text(split.simulated_s) +
          ", from each action's own " + duration_text(split.replayed_s) + " | measured " +
          duration_text(split.measured_s) + " (" + std::to_string(split.steps) + " traced steps): ";
  if (split.predicted_s > 0) text += printed("times %+.1f %%, ", split.of_times() * 100);
  return text + printed("jitter %+.1f %%, model %+.1f %%", split.of_jitter() * 100, split.of_model() * 100);
}

std::string error_split_html(const RunData& run) {
  const Result<ErrorSplit> split = split_error(run);
  std::string html = "<section class=\"card\" id=\"error-split\"><h2>Where the prediction was off</h2>";
  if (!split) {
    return html + "<p class=\"lead\">Not known: " + escape_xml(to_string(split.problems().front())) +
           ".</p></section>\n";
  }
  html +=
      "<p class=\"lead\">The plan's schedule was simulated again with the mean times that this run measured, "
      "and "
      "with every action's own. From predicted to the means the times were wrong; from the means to each "
      "one's own "
      "is what jitter costs where ranks wait for each other; from there to measured the model is wrong.</p>"
      "<table><tr><th>predicted</th><th>with this run's means</th><th>with each action's own time</th>"
      "<th>measured</th><th>error of the times</th><th>jitter</th><th>error of the model</th></tr><tr>";
  const auto cell = [&](const std::string& text) { html += "<td>" + escape_xml(text) + "</td>"; };
  cell(split->predicted_s > 0 ? duration_text(split->predicted_s) : "–");
  cell(duration_text(split->simulated_s));
  cell(duration_text(split->replayed_s));
  cell(duration_text(split->measured_s));
  cell(split->predicted_s > 0 ? printed("%+.1f %%", split->of_times() * 100) : "–");
  cell(printed("%+.1f %%", split->of_jitter() * 100));
  cell(printed("%+.1f %%", split->of_model() * 100));
  html += "</tr></table><p>Means over " + std::to_string(split->steps) + " traced steps of a run";
  if (split->spread > 0)
    html += printed("; the profile's own blocks differed by ±%.1f %%", split->spread * 100);
  return html + ".</p></section>\n";
}

}  // namespace millrace
