#include "experiments/report/report.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>

#include "experiments/drawing/figures.h"
#include "experiments/drawing/html_page.h"
#include "experiments/drawing/svg_chart.h"
#include "experiments/report/counters_card.h"
#include "experiments/report/error_split.h"
#include "experiments/report/phase_comparison.h"
#include "experiments/report/plan_drawing.h"
#include "experiments/report/rank_timeline.h"
#include "experiments/report/run_bleu.h"
#include "experiments/report/run_diagnosis.h"
#include "experiments/report/run_evidence.h"
#include "experiments/report/run_messages.h"
#include "experiments/report/time_bars.h"
#include "optimizer/cost/cost_model.h"
#include "optimizer/cost/predicted_costs.h"
#include "runtime/base/median.h"
#include "runtime/base/run_files.h"
#include "runtime/base/run_folder.h"
#include "runtime/base/text.h"
#include "runtime/rules/best_so_far.h"
#include "runtime/schedule/schedule.h"
#include "runtime/trace/trace_windows.h"

namespace millrace {
namespace {

constexpr int kMostAsyncMicrobatches = 24;     // in a picture
constexpr std::size_t kMostNarrowBars = 2000;  // beyond it the wide picture has to do for narrow screens too
constexpr int kWide = 1120, kNarrow = 380;     // pixels of a picture
constexpr int kWidePlan = 1096;                // what a card has room for
constexpr double kGood = 15;                   // per cent off a prediction
constexpr std::size_t kMostLosses = 10'000;    // in the data for scripts; of more, every Nth step is there
constexpr std::size_t kFewJobs = 12;           // more are drawn thinner
constexpr double kHighLosses = 2;              // times the highest first loss: what is above has diverged

/// Over the steps but the first, which warms up; a run of one step has no other.
double median_of(const RankRun& rank, const std::function<double(const StepLine&)>& value) {
  std::vector<double> values;
  for (std::size_t i = rank.steps.size() > 1 ? 1 : 0; i < rank.steps.size(); ++i)
    values.push_back(value(rank.steps[i]));
  return median(std::move(values));
}

bool is_asynchronous(const RunData& run) {
  return run.plan && is_asynchronous(run.plan->schedule);
}

/// A line of the log is a minibatch of each replica, not a step.
bool counts_minibatches(const RunData& run) {
  return run.plan && updates_after_each(run.plan->schedule);
}

int replicas_of(const RunData& run, int stage) {
  const bool known = run.plan && stage >= 0 && stage < run.plan->num_stages();
  return known ? std::max<int>(1, static_cast<int>(run.plan->stages[stage].ranks.size())) : 1;
}

/// Microbatches that a rank of `stage` runs between two lines of its log.
double microbatches_per_line(const RunData& run, int stage) {
  if (!run.plan || counts_minibatches(run)) return 1;
  return std::max(1.0,
                  static_cast<double>(run.plan->microbatches) * run.plan->arrays / replicas_of(run, stage));
}

// ---- simulated schedule
// -------------------------------------------------------------------------------------

Problem no_simulation(const std::string& why) {
  return {run_files::kPlan, why, {}};
}

/// Says that the plan's times are for other microbatches than the run's; empty: nothing is known against
/// them.
std::string other_microbatches(const RunData& run) {
  const Json* samples = run.summary.is_object() ? run.summary.find("microbatch") : nullptr;
  const int planned = run.plan ? run.plan->planned_for.microbatch : 0;
  if (!samples || !samples->is_number() || planned == 0) return "";
  const int had = static_cast<int>(samples->as_double());
  if (had == planned) return "";
  return "the plan was made for microbatches of " + std::to_string(planned) + " samples, the run had " +
         std::to_string(had);
}

/// Simulates the plan with the planner's own costs if there is a profile, else with those that the plan
/// carries. The Problem says why neither can be had.
Result<Simulation> simulation_of(const RunData& run, int microbatches) {
  if (!run.plan) return no_simulation("there is no plan");
  if (const std::string other = other_microbatches(run); !other.empty()) return no_simulation(other);
  if (!validate(*run.plan).empty()) return no_simulation("the plan is not valid");
  const Plan& plan = *run.plan;
  const ClusterSpec cluster = run.cluster && run.cluster->num_ranks() >= plan.num_ranks()
                                  ? *run.cluster
                                  : ClusterSpec::local(plan.num_ranks());
  const int of_step = counts_minibatches(run) ? 1 : std::max(1, plan.microbatches);
  if (microbatches == 0)
    microbatches = is_asynchronous(run) ? std::max({8, 3 * plan.num_ranks(), 3 * of_step}) : of_step;
  if (is_asynchronous(run)) microbatches = (microbatches + of_step - 1) / of_step * of_step;
  PipelineShape shape = shape_of(plan, microbatches);
  ScheduleCosts costs;
  std::vector<ScheduleCosts> turns;
  // Profiles of kinds of devices are not in the run's folder, and the plan's own times are of them.
  const bool of_kinds =
      std::ranges::any_of(cluster.kinds, [](const DeviceKind& kind) { return !kind.profile.empty(); });
  if (run.profile && !of_kinds && validate(plan, *run.profile).empty()) {
    CostModel model(*run.profile, cluster);
    const std::vector<CutStage> stages = model.stages_of(plan);
    shape = model.shape_of(stages, microbatches);
    costs = model.costs_of(stages, shape, plan.schedule);
    turns = model.turn_costs(stages, shape, plan.schedule);
  } else {
    if (!has_predicted_times(plan))
      return no_simulation("the plan predicts no times (one that millrace plan makes of a profile does)");
    costs = predicted_costs(plan, shape, cluster);
  }
  shape.update_every = shape_of(plan).update_every;
  shape.arrays = plan.arrays;
  shape.microbatches *= plan.arrays;
  Result<Schedule> schedule = schedule_of(plan, shape, Transport::Buffered, run.schedule);
  if (!schedule) return schedule.problems();
  if (Problems problems = check(*schedule, shape, Transport::Buffered); !problems.empty()) return problems;
  SimulationOptions options{.host = ports_of(cluster)};
  if (!turns.empty()) *schedule = in_turns(*schedule, shape, options, std::move(turns));
  return simulate(*schedule, shape, costs, options);
}

const char* bar_kind(SpanKind kind) {
  switch (kind) {
    case SpanKind::Forward:
      return "forward";
    case SpanKind::Backward:
      return "backward";
    case SpanKind::BackwardInput:
      return "input";
    case SpanKind::BackwardWeight:
      return "weight";
    case SpanKind::Send:
      return "send";
    case SpanKind::Recv:
    case SpanKind::Wait:
      return "wait";
    case SpanKind::Reduce:
      return "reduce";
    case SpanKind::Update:
      return "update";
    case SpanKind::Data:
      return "data";
    default:
      return "";
  }
}

/// Ascending; of the log where there is no plan.
std::vector<int> stages_of(const RunData& run, int rank) {
  std::vector<int> stages;
  for (int s = 0; run.plan && s < run.plan->num_stages(); ++s) {
    const auto& ranks = run.plan->stages[s].ranks;
    if (std::ranges::find(ranks, RankId(rank)) != ranks.end()) stages.push_back(s);
  }
  for (const RankRun& r : run.ranks) {
    if (stages.empty() && r.rank == rank && r.stage >= 0) stages.push_back(r.stage);
  }
  return stages;
}

/// Returns the tint of a stage among its rank's stages: the first has the full colour.
int tint_of(const std::vector<int>& stages, int stage) {
  const auto found = std::ranges::find(stages, stage);
  return found == stages.end() ? 0 : static_cast<int>(found - stages.begin());
}

/// "0", "0, 3", "–".
std::string stage_list(const RunData& run, int rank) {
  std::string list;
  for (int s : stages_of(run, rank)) list += (list.empty() ? "" : ", ") + std::to_string(s);
  return list.empty() ? "–" : list;
}

std::string rank_label(const RunData& run, int rank) {
  const std::string list = stage_list(run, rank);
  return "rank " + std::to_string(rank) + (list == "–" ? "" : " · s" + list);
}

// ---- measured schedule
// --------------------------------------------------------------------------------------

/// Waiting is not work: it may have begun in the step before.
bool is_work(SpanKind kind) {
  return is_computation(kind) || kind == SpanKind::Data || kind == SpanKind::Reduce ||
         kind == SpanKind::Update;
}

struct Extent {
  std::int64_t start = INT64_MAX;
  std::int64_t end = INT64_MIN;
  std::size_t ranks = 0;

  void take(std::int64_t from, std::int64_t to) {
    start = std::min(start, from);
    end = std::max(end, to);
  }
  bool empty() const { return start > end; }
};

/// Returns a step that every traced rank has. Its length is the nearest to `typical_s`, or to the steps' own
/// median if that is 0.
std::optional<std::int64_t> typical_step(const RunData& run, double typical_s) {
  std::map<std::int64_t, Extent> extents;
  std::size_t traced = 0;
  for (const RankRun& rank : run.ranks) {
    std::map<std::int64_t, Extent> mine;
    for (const Span& span : step_spans(rank)) {
      if (is_work(span.kind)) mine[span.step].take(span.start, span.end);
    }
    traced += !mine.empty();
    for (const auto& [step, extent] : mine) {
      Extent& all = extents[step];
      all.take(extent.start, extent.end);
      ++all.ranks;
    }
  }
  std::vector<double> lengths;
  std::erase_if(extents, [&](const auto& e) { return e.second.ranks != traced; });
  const auto length = [](const Extent& extent) {
    return static_cast<double>(extent.end - extent.start) * 1e-9;
  };
  for (const auto& [step, extent] : extents) lengths.push_back(length(extent));
  if (lengths.empty()) return std::nullopt;
  if (!(typical_s > 0)) typical_s = median(lengths);
  const auto off = [&](const auto& e) { return std::abs(length(e.second) - typical_s); };
  return std::ranges::min_element(extents, {}, off)->first;
}

/// Asynchronous: of the stretches of traced steps the one whose time between two updates is nearest to
/// `typical_s`.
std::optional<TraceWindow> typical_window(const RunData& run, double typical_s) {
  std::int64_t apart = 1;  // steps between two lines of a rank, at most
  for (int s = 0; run.plan && s < run.plan->num_stages(); ++s)
    apart = std::max<std::int64_t>(apart, replicas_of(run, s));
  std::map<std::int64_t, Extent> updates;
  for (const RankRun& rank : run.ranks)
    for (const Span& span : step_spans(rank))
      if (is_work(span.kind)) updates[span.step].take(span.end, span.end);
  std::optional<TraceWindow> best;
  double least = INFINITY;
  for (auto first = updates.begin(); first != updates.end();) {
    auto last = first, next = std::next(first);
    while (next != updates.end() && next->first - last->first <= apart) last = next++;
    const auto steps = static_cast<double>(last->first - first->first);
    const double step_s =
        static_cast<double>(last->second.end - first->second.end) * 1e-9 / std::max(1.0, steps);
    const double off = typical_s > 0 ? std::abs(step_s - typical_s) : 0;
    if (!best || off < least) {
      best = {first->first, last->first + 1};
      least = off;
    }
    first = next;
  }
  return best;
}

/// Returns the window that the measured schedule shows.
std::optional<TraceWindow> typical_steps(const RunData& run, double typical_s) {
  if (is_asynchronous(run)) return typical_window(run, typical_s);
  const std::optional<std::int64_t> step = typical_step(run, typical_s);
  return step ? std::optional(TraceWindow{*step, *step + 1}) : std::nullopt;
}

// ---- page
// ---------------------------------------------------------------------------------------------------

class Page {
 public:
  Page(const RunData& run, const PageOptions& options)
      : run_(run), options_(options), comparison_(compare(run)), loss_(loss_rank(run)) {}

  std::string html() {
    std::string body = header() + tiles() + side_by_side_html(run_, options_.against) +
                       phases_side_by_side_html(run_, options_.against) + jobs_card() + plan_card() +
                       comparison_card() + error_split_html(run_) + gantt_card();
    const std::string timeline = rank_timeline_html(run_);
    body += timeline + curves_card() + bleu_card() + time_card() + diagnosis_html(run_) + ranks_card() +
            counters_html(run_) + what_was_run_html(run_) + data_card() + notes_card();
    return html_page(
        {.title = title(),
         .body = body,
         .footer = "Written by millrace report. Times are medians over the steps after the first unless said "
                   "otherwise; MiB are 2^20 bytes.",
         .data = embedded_data(),
         .script = timeline.empty() ? "" : rank_timeline_script(),
         .reload_s = options_.reload_s});
  }

 private:
  std::string summary_string(std::string_view key) const {
    const Json* value = run_.summary.find(key);
    return value && value->is_string() ? value->as_string() : "";
  }
  double summary_number(std::string_view key) const {
    const Json* value = run_.summary.find(key);
    return value && value->is_number() ? value->as_double() : NAN;
  }
  std::string model() const {
    const std::string name = summary_string("model");
    return !name.empty() ? name : run_.plan && !run_.plan->model.empty() ? run_.plan->model : "unknown model";
  }
  std::string title() const { return (run_.end.state == RunEnd::State::Failed ? "failed: " : "") + name(); }
  std::string name() const {
    const std::string name = std::filesystem::weakly_canonical(run_.folder).filename().string();
    return model() + (name.empty() ? "" : " · " + name);
  }

  /// One picture for wide screens and one for narrow ones.
  static std::string both(const std::string& wide, const std::string& narrow) {
    return "<div class=\"wide\">" + wide + "</div><div class=\"narrow\">" + narrow + "</div>";
  }
  std::string header() const {
    const std::string data = summary_string("data");
    std::string parts;
    if (const std::vector<std::int64_t> joints = this->joints(); !joints.empty()) {
      for (std::int64_t joint : joints) parts += (parts.empty() ? "" : ", ") + std::to_string(joint);
      parts = " · resumed after " + std::string(counts_minibatches(run_) ? "minibatch " : "step ") + parts;
    }
    return "<header><h1>" + escape_xml(name()) + "</h1><p>" + escape_xml(run_.folder) +
           (data.empty() ? "" : " · data: " + escape_xml(data)) + parts + "</p></header>\n" + end_card() +
           emulated_card();
  }
  /// Returns the card that tells of devices that were not there; empty in a real run.
  std::string emulated_card() const {
    const Json* emulated = run_.summary.find("emulated");
    if (!emulated || !emulated->is_object()) return "";
    const auto said = [&](const char* key) {
      const Json* value = emulated->find(key);
      return value && value->is_string() ? value->as_string() : std::string("?");
    };
    const Json* spread = emulated->find("profile_spread");
    const std::string differ = spread && spread->is_number() && spread->as_double() > 0
                                   ? printed(
                                         " The profile's blocks differ by ±%.1f %%: no prediction from it is "
                                         "closer.",
                                         spread->as_double() * 100)
                                   : "";
    return "<section class=\"card end\"><h2>Emulated</h2><p>" +
           escape_xml("Nothing was computed: layers took the times of profile " + said("profile") +
                      ", which is of " + said("device") + ", on the " + said("clock") +
                      " clock. There are no losses. Waits, messages and their order are those of the run." +
                      differ) +
           "</p></section>\n";
  }
  /// Returns the card at the very top that tells of an unexpected end; empty if the run ended as everybody
  /// expects.
  std::string end_card() const {
    const std::string text = end_text(run_);
    if (text.empty()) return "";
    const bool bad = run_.end.state == RunEnd::State::Failed || run_.end.state == RunEnd::State::Unknown ||
                     run_.end.state == RunEnd::State::Done;
    const std::size_t colon = std::min(text.find(": "), text.size());
    std::string html = std::string("<section class=\"card end") + (bad ? " wrong" : "") + "\"><h2>" +
                       escape_xml(text.substr(0, colon)) + "</h2>";
    if (colon < text.size()) html += "<p>" + escape_xml(text.substr(colon + 2)) + "</p>";
    if (!run_.end.hint.empty()) html += "<p class=\"lead\">Hint: " + escape_xml(run_.end.hint) + "</p>";
    return html + "</section>\n";
  }
  /// Steps that were done when it was resumed.
  std::vector<std::int64_t> joints() const { return loss_ ? loss_->joints : std::vector<std::int64_t>(); }

  std::string tiles() const {
    std::string html = "<div class=\"tiles\">";
    const std::size_t ranks =
        run_.plan ? static_cast<std::size_t>(run_.plan->num_ranks()) : run_.ranks.size();
    html += html_tile("Ranks", std::to_string(ranks),
                      run_.plan ? std::to_string(run_.plan->num_stages()) +
                                      (run_.plan->num_stages() == 1 ? " stage" : " stages")
                                : "");
    if (run_.plan) {
      html +=
          html_tile("Schedule", to_string(run_.plan->schedule),
                    is_asynchronous(run_)
                        ? "asynchronous, weights stashed"
                        : std::to_string(run_.plan->microbatches) +
                              (run_.plan->microbatches == 1 ? " microbatch" : " microbatches") + " a step");
    }
    if (loss_)
      html += html_tile(counts_minibatches(run_) ? "Minibatches" : "Steps",
                        std::to_string(done_after(run_, *loss_, loss_->steps.back())), epochs_text());
    html += loss_tile() + metric_tiles();
    if (comparison_.measured_step_s > 0) {
      html += html_tile(
          counts_minibatches(run_) ? "Minibatch" : "Step", duration_figure(comparison_.measured_step_s),
          comparison_.predicted_step_s > 0 ? "predicted " + duration_figure(comparison_.predicted_step_s)
                                           : "median");
    }
    if (loss_)
      html += html_tile("Throughput",
                        figure(median_of(*loss_, [](const StepLine& s) { return s.samples_per_s; })),
                        "samples/s, median");
    html += precision_tile();
    return html + "</div>\n";
  }
  std::string precision_tile() const {
    const std::string precision = summary_string("precision");
    const double skipped = summary_number("skipped_steps");
    if (std::isnan(skipped) && (precision.empty() || precision == "float32")) return "";
    return html_tile(
        "Precision", precision,
        std::isnan(skipped) ? ""
        : std::isnan(summary_number("loss_scale"))
            ? printed("%.0f steps skipped", skipped)
            : printed("%.0f steps skipped, loss scale %.6g", skipped, summary_number("loss_scale")));
  }
  std::string epochs_text() const {
    const double of_epoch = summary_number("steps_per_epoch");
    if (!(of_epoch > 0)) return "the last in the log";
    const double epochs = static_cast<double>(done_after(run_, *loss_, loss_->steps.back())) / of_epoch;
    return printed("%.3g ", epochs) + (epochs == 1 ? "epoch" : "epochs");
  }
  std::string loss_tile() const {
    if (!run_.jobs.empty()) {
      const JobRun* best = nullptr;
      std::size_t not_finite = 0;
      for (const JobRun& job : run_.jobs) {
        not_finite += job.nonfinite_step.has_value();
        if (job.nonfinite_step || !job.loss || !std::isfinite(*job.loss)) continue;
        if (!best || *job.loss < *best->loss) best = &job;
      }
      return html_tile("Jobs", std::to_string(run_.jobs.size()),
                       not_finite == 0 ? "in an array" : std::to_string(not_finite) + " not finite") +
             (best
                  ? html_tile("Lowest loss", printed("%.4g", *best->loss), "job " + std::to_string(best->job))
                  : "");
    }
    const auto points = loss_points();
    if (points.empty()) return "";
    return html_tile("Loss", printed("%.4g", points.back().second),
                     printed("from %.4g", points.front().second));
  }
  /// The last and the best of each metric of the evaluations.
  std::string metric_tiles() const {
    std::string html;
    for (const MetricCurve& curve : metric_curves(run_)) {
      const Result<bool> higher = higher_is_better(curve.name);
      const bool falls = higher ? !*higher : curve.name.ends_with("_error");
      const auto by_value = [&](const auto& point) {
        return !std::isnan(point.second) ? point.second : falls ? INFINITY : -INFINITY;
      };
      const auto& best = falls ? *std::ranges::min_element(curve.evaluations, {}, by_value)
                               : *std::ranges::max_element(curve.evaluations, {}, by_value);
      html += html_tile(
          escape_xml(metric_title(curve.name)), metric_text(curve.name, curve.evaluations.back().second),
          curve.evaluations.size() == 1 ? "evaluation"
                                        : "last evaluation, best " + metric_text(curve.name, best.second));
    }
    return html;
  }

  std::string plan_card() const {
    if (!run_.plan || run_.plan->stages.empty()) return "";
    std::string lead =
        "Stages, their ranks and layers; arrows are the tensors of one microbatch. Bars: time of a stage "
        "divided by its replicas, against the slowest.";
    if (!run_.plan->planner.empty()) lead += " Made by " + escape_xml(run_.plan->planner) + ".";
    return html_card("Plan", lead,
                     both(plan_svg(*run_.plan, kWidePlan, "wide"), plan_svg(*run_.plan, kNarrow, "narrow")));
  }

  // -- jobs of an array --
  std::string jobs_card() const {
    if (run_.jobs.empty()) return "";
    std::vector<Series> series;
    double highest = 0;  // first loss
    for (const JobRun& job : run_.jobs)
      if (!job.losses.empty()) highest = std::max(highest, job.losses.front().second);
    const double top = kHighLosses * highest;
    bool cut = false;
    for (const JobRun& job : run_.jobs) {
      Series line{.name = "job " + std::to_string(job.job),
                  .colour = colour_of_job(job.job),
                  .points = job.losses,
                  .style = run_.jobs.size() > kFewJobs ? Series::Style::Faint : Series::Style::Line};
      for (auto& [step, loss] : line.points) {
        cut |= top > 0 && loss > top;
        if (top > 0) loss = std::min(loss, top);
      }
      if (!line.points.empty()) series.push_back(std::move(line));
    }
    std::vector<std::string> settings, metrics;
    const auto add = [](std::vector<std::string>& names, const std::string& name) {
      if (std::ranges::find(names, name) == names.end()) names.push_back(name);
    };
    for (const JobRun& job : run_.jobs) {
      for (const auto& [name, value] : job.settings) add(settings, name);
      for (const auto& [name, value] : job.metrics) add(metrics, name);
    }
    std::string table = "<div class=\"scroll\"><table><thead><tr><th>Job</th><th>status</th>";
    for (const std::string& name : settings) table += "<th>" + escape_xml(name) + "</th>";
    table += "<th>steps</th><th>training loss</th>";
    for (const std::string& name : metrics) table += "<th>" + escape_xml(name) + ", evaluation</th>";
    table += "</tr></thead><tbody>";
    const auto number = [](const std::optional<double>& value) {
      return value && std::isfinite(*value) ? printed("<td>%.4g</td>", *value) : "<td class=\"none\">–</td>";
    };
    for (const JobRun& job : run_.jobs) {
      table += "<tr><td><i class=\"job\" style=\"background:" + colour_of_job(job.job) + "\"></i>" +
               std::to_string(job.job) + "</td>";
      table += job.nonfinite_step ? "<td class=\"bad\">not finite from step " +
                                        std::to_string(*job.nonfinite_step + 1) + " on</td>"
                                  : "<td>ok</td>";
      for (const std::string& name : settings) {
        const auto found = std::ranges::find(job.settings, name, &std::pair<std::string, std::string>::first);
        table += "<td>" + (found == job.settings.end() ? "" : escape_xml(found->second)) + "</td>";
      }
      table += "<td>" + std::to_string(job.steps) + "</td>" + number(job.loss);
      for (const std::string& name : metrics) {
        const auto found = std::ranges::find(job.metrics, name, &std::pair<std::string, double>::first);
        table += number(found == job.metrics.end() ? std::nullopt : std::optional(found->second));
      }
      table += "</tr>";
    }
    std::string curves;
    if (!series.empty()) {
      LineChart options{.title = "Loss of each job", .width = kWidePlan, .height = 300};
      options.legend = false;
      curves = chart(options, series);
    }
    return html_card(
        "Jobs",
        "The jobs of this array, which differ in what the table says; the table's colours are the "
        "picture's." +
            (cut ? printed(" Losses above %.3g are drawn at %.3g.", top, top) : std::string()),
        curves + table + "</tbody></table></div>");
  }
  static std::string colour_of_job(int job) {
    // The golden angle: neighbours differ, and no two of some dozens are alike.
    return printed("hsl(%.0f 55%% 52%%)", std::fmod(215 + 137.508 * job, 360));
  }

  // -- predicted and measured --
  static std::string time_cell(double seconds, const char* css = "") {
    return std::string("<td") + (*css ? std::string(" class=\"") + css + "\"" : "") + ">" +
           (seconds > 0 ? figure(seconds * 1e3) : "<span class=\"none\">–</span>") + "</td>";
  }
  static std::string per_cent(double off) { return printed("%+.0f %%", std::round(off) + 0.0); }
  static bool is_good(double off) { return std::abs(off) <= kGood; }
  /// Green near the prediction.
  static std::string ratio_cell(double predicted, double measured) {
    if (!(predicted > 0) || !(measured > 0)) return "<td><span class=\"none\">–</span></td>";
    const double off = (measured / predicted - 1) * 100;
    return std::string("<td class=\"") + (is_good(off) ? "good" : "bad") + "\">" + per_cent(off) + "</td>";
  }
  static std::string bytes_cell(Bytes bytes, const char* css = "") {
    return std::string("<td") + (*css ? std::string(" class=\"") + css + "\"" : "") + ">" +
           (bytes > 0 ? bytes_text(bytes) : "<span class=\"none\">–</span>") + "</td>";
  }
  std::string comparison_card() const {
    if (!run_.plan || run_.plan->stages.empty()) return "";
    std::string table =
        "<div class=\"scroll\"><table><thead><tr><th></th><th class=\"group\" colspan=\"3\">forward, "
        "ms</th><th class=\"group\" colspan=\"3\">backward, ms</th>"
        "<th class=\"group\" colspan=\"2\">peak memory of a rank</th><th class=\"group\" "
        "colspan=\"2\">weight versions</th></tr><tr><th></th>";
    for (int i = 0; i < 2; ++i) table += "<th class=\"first\">predicted</th><th>measured</th><th>off by</th>";
    table +=
        "<th class=\"first\">predicted</th><th>measured*</th><th "
        "class=\"first\">predicted</th><th>measured</th></tr></thead><tbody>";
    for (const StageComparison& s : comparison_.stages) {
      table += "<tr><td>Stage " + std::to_string(s.stage) + "</td>";
      table += time_cell(s.predicted_forward_s, "first") + time_cell(s.measured_forward_s) +
               ratio_cell(s.predicted_forward_s, s.measured_forward_s);
      table += time_cell(s.predicted_backward_s, "first") + time_cell(s.measured_backward_s) +
               ratio_cell(s.predicted_backward_s, s.measured_backward_s);
      table += bytes_cell(s.predicted_peak_bytes, "first") + bytes_cell(s.measured_peak_bytes);
      table += count_cell(s.predicted_versions, "first") + count_cell(s.measured_versions) + "</tr>";
    }
    table += "</tbody></table></div>";
    return html_card(
        "Predicted and measured",
        step_sentence() +
            " Stage times are for one microbatch on one rank; * the most bytes of tensors that lived at "
            "once (ranks that are threads of one process are counted together). " +
            printed("<span class=\"good\">Green</span>: within %.0f %% of the prediction; <span "
                    "class=\"bad\">orange</span>: further off.",
                    kGood),
        table);
  }
  static std::string count_cell(int count, const char* css = "") {
    return std::string("<td") + (*css ? std::string(" class=\"") + css + "\"" : "") + ">" +
           (count > 0 ? std::to_string(count) : "<span class=\"none\">–</span>") + "</td>";
  }
  /// The origin of the prediction's profile; empty: not known.
  std::string origin_sentence() const {
    std::string text = profile_text(run_);
    if (text.empty()) return "";
    text.front() = static_cast<char>(std::toupper(static_cast<unsigned char>(text.front())));
    return " " + escape_xml(text) + ".";
  }
  std::string step_sentence() const {
    const std::string what = counts_minibatches(run_) ? "A minibatch" : "A step";
    const double predicted = comparison_.predicted_step_s, measured = comparison_.measured_step_s;
    if (predicted > 0 && measured > 0) {
      const double off = (measured / predicted - 1) * 100;
      return what + " was predicted to take <b>" + duration_figure(predicted) + "</b> and took <b>" +
             duration_figure(measured) + "</b> (<span class=\"" + (is_good(off) ? "good" : "bad") + "\">" +
             per_cent(off) + "</span>). That is " + escape_xml(steadiness_text(run_)) + "." +
             origin_sentence();
    }
    const std::string other = other_microbatches(run_);
    if (measured > 0)
      return what + " took <b>" + duration_figure(measured) + "</b>; " +
             (other.empty() ? "the plan predicts nothing." : other + ", so nothing is compared.");
    return predicted > 0 ? what + " was predicted to take <b>" + duration_figure(predicted) +
                               "</b>; nothing was measured."
                         : "Neither predictions nor measurements.";
  }

  // -- schedules --
  std::string gantt_card() const {
    if (!run_.plan && run_.ranks.empty()) return "";
    const std::vector<GanttRow> measured = measured_rows(run_);
    const int microbatches = is_asynchronous(run_) ? async_microbatches(measured) : 0;
    const std::vector<GanttRow> simulated = simulated_rows(run_, microbatches);
    const double span = std::max(end_of(measured), end_of(simulated));
    std::size_t bars = 0;
    for (const auto* rows : {&measured, &simulated}) {
      for (const GanttRow& row : *rows) bars = std::max(bars, row.bars.size() * rows->size());
    }
    const auto picture = [&](const std::vector<GanttRow>& rows, const std::string& heading, int width) {
      return "<div class=\"gantt scroll\">" +
             gantt_svg(rows, {.title = heading, .width = width, .span = span}) + "</div>";
    };
    std::string charts;
    const auto add = [&](const std::vector<GanttRow>& rows, const std::string& heading) {
      if (rows.empty()) return;
      const std::string wide = picture(rows, heading, kWide);
      charts += bars > kMostNarrowBars ? wide : both(wide, picture(rows, heading, kNarrow));
    };
    add(simulated, "Simulated");
    const std::optional<TraceWindow> steps = typical_steps(run_, comparison_.measured_step_s);
    add(measured, !steps                  ? "Measured"
                  : is_asynchronous(run_) ? "Measured, minibatches " + std::to_string(steps->first + 1) +
                                                " to " + std::to_string(steps->end)
                                          : "Measured, step " + std::to_string(steps->first + 1));
    std::string lead = "One row for each rank, one time scale for both; numbers are microbatches.";
    if (run_.plan && run_.plan->num_stages() > 0 && shape_of(*run_.plan).has_chunks())
      lead += " The further stages of a rank are lighter.";
    if (!measured.empty() && is_asynchronous(run_))
      lead +=
          " The simulation begins with an empty pipeline; the trace where its first minibatch does, and a "
          "rank's "
          "row has its traced minibatches only.";
    else if (!measured.empty())
      lead +=
          " Of the traced steps the one nearest to the median time: " + duration_figure(end_of(measured)) +
          " from the first forward to the last update" +
          (comparison_.measured_step_s > 0
               ? ", the median step took " + duration_figure(comparison_.measured_step_s)
               : std::string()) +
          ".";
    if (measured.empty()) lead += " No trace.rank&lt;k&gt;.json has a span of a step: what ran is not drawn.";
    if (simulated.empty()) {
      const Result<Simulation> none = simulation_of(run_, microbatches);
      lead +=
          " Nothing is simulated: " + escape_xml(none ? "it has no actions" : none.problems().front().what) +
          ".";
    }
    return html_card("Schedule", lead, charts);
  }
  static double end_of(const std::vector<GanttRow>& rows) {
    double end = 0;
    for (const GanttRow& row : rows) {
      for (const GanttBar& bar : row.bars) end = std::max(end, bar.end);
    }
    return end;
  }
  static int async_microbatches(const std::vector<GanttRow>& measured) {
    std::size_t forwards = 0;
    for (const GanttRow& row : measured) {
      forwards = std::max<std::size_t>(forwards, static_cast<std::size_t>(std::count_if(
                                                     row.bars.begin(), row.bars.end(),
                                                     [](const GanttBar& b) { return b.kind == "forward"; })));
    }
    return forwards > 1 && forwards <= kMostAsyncMicrobatches ? static_cast<int>(forwards) : 0;
  }

  // -- curves --
  /// The mean over the replicas of the last stage, by step.
  std::vector<std::pair<double, double>> loss_points() const {
    std::map<std::int64_t, std::pair<double, int>> sums;
    for (const RankRun& rank : run_.ranks) {
      for (const StepLine& step : rank.steps) {
        if (!step.loss || !std::isfinite(*step.loss)) continue;
        auto& [sum, count] = sums[done_after(run_, rank, step)];
        sum += *step.loss;
        ++count;
      }
    }
    std::vector<std::pair<double, double>> points;
    for (const auto& [step, sum] : sums)
      points.emplace_back(static_cast<double>(step), sum.first / sum.second);
    return points;
  }
  std::vector<std::pair<double, double>> evaluation_points(const char* key) const {
    std::vector<std::pair<double, double>> points;
    for (const Json& evaluation : run_.evaluations.items()) {
      const Json *step = evaluation.find("step"), *value = evaluation.find(key);
      if (step && value && step->is_number() && value->is_number())
        points.emplace_back(step->as_double(), value->as_double());
    }
    return points;
  }
  std::string curves_card() const {
    if (!loss_) return "";
    const auto loss = loss_points();
    std::vector<std::pair<double, double>> speed;
    for (std::size_t i = loss_->steps.size() > 1 ? 1 : 0; i < loss_->steps.size(); ++i) {
      speed.emplace_back(static_cast<double>(done_after(run_, *loss_, loss_->steps[i])),
                         loss_->steps[i].samples_per_s);
    }
    std::string charts = "<div class=\"pair\">";
    if (!loss.empty() && run_.jobs.empty()) {
      std::vector<Series> series = curve_of(loss);
      series.push_back({"evaluation", "var(--second)", evaluation_points("loss"), Series::Style::Dots});
      charts += "<div>" + chart({.title = "Loss"}, series) + "</div>";
    }
    for (const MetricCurve& curve : metric_curves(run_)) {
      std::vector<Series> series;
      if (!curve.training.empty()) series = curve_of(curve.training);
      series.push_back({"evaluation", "var(--second)", curve.evaluations,
                        curve.training.empty() ? Series::Style::Line : Series::Style::Dots});
      if (curve.training.empty())
        series.push_back({"an evaluation", "var(--second)", curve.evaluations, Series::Style::Dots});
      charts += "<div>" + chart({.title = metric_title(curve.name)}, series) + "</div>";
    }
    std::vector<std::pair<double, double>> rate;
    for (const StepLine& step : loss_->steps)
      if (step.lr) rate.emplace_back(static_cast<double>(done_after(run_, *loss_, step)), *step.lr);
    if (!rate.empty())
      charts += "<div>" +
                chart({.title = "Learning rate", .y_from_zero = true}, {{"rate", "var(--line)", rate}}) +
                "</div>";
    charts += "<div>" +
              chart({.title = "Throughput", .y_label = "samples/s", .y_from_zero = true}, curve_of(speed)) +
              "</div>";
    return html_card("Progress",
                     std::string(run_.jobs.empty() ? "Loss of the last stage, and samples" : "Samples") +
                         " of the whole job per second, after so many " +
                         (counts_minibatches(run_) ? "minibatches." : "steps.") +
                         (joints().empty() ? "" : " Dashed upright lines: the run was resumed."),
                     charts + "</div>");
  }
  /// Shows what the run itself has logged and what `bleu --run` has found, against epochs and against hours.
  std::string bleu_card() const {
    const std::vector<CheckpointBleu> logged = logged_bleu(run_);
    const Result<std::vector<CheckpointBleu>> read = read_run_bleu(run_.folder);
    const std::vector<CheckpointBleu> later = read ? *read : std::vector<CheckpointBleu>();
    if (logged.empty() && later.empty()) return "";
    const auto against = [&](const std::string& label, std::optional<double> CheckpointBleu::*of) {
      const auto points_of = [&](const std::vector<CheckpointBleu>& scores) {
        std::vector<std::pair<double, double>> points;
        for (const CheckpointBleu& score : scores)
          if (score.*of) points.emplace_back(*(score.*of), score.bleu);
        return points;
      };
      const auto in_training = points_of(logged), of_checkpoints = points_of(later);
      std::vector<Series> series;
      if (!in_training.empty()) series.push_back({"while it trained", "var(--line)", in_training});
      if (in_training.empty()) series.push_back({"BLEU", "var(--line)", of_checkpoints});
      if (!of_checkpoints.empty())
        series.push_back({"a checkpoint", "var(--second)", of_checkpoints, Series::Style::Dots});
      if (in_training.empty() && of_checkpoints.empty()) return std::string();
      LineChart options{.title = "BLEU", .x_label = label, .y_from_zero = true};
      const std::string wide = line_chart_svg(options, series);
      options.width = kNarrow;
      return "<div>" + both(wide, line_chart_svg(options, series)) + "</div>";
    };
    return html_card("BLEU",
                     logged.empty()
                         ? "Of each checkpoint's translation of one text (millrace bleu --run)."
                         : "Of translations of one text while it trained (--bleu-every), and of its "
                           "checkpoints' where bleu --run has scored them.",
                     "<div class=\"pair\">" + against("epochs", &CheckpointBleu::epochs) +
                         against("hours of training", &CheckpointBleu::hours) + "</div>");
  }
  /// Few points as they are, many with a smooth line.
  std::vector<Series> curve_of(const std::vector<std::pair<double, double>>& points) const {
    const std::string each = counts_minibatches(run_) ? "each minibatch" : "each step";
    const double window = static_cast<double>(points.size()) / 25;
    if (window < 2) return {{each, "var(--line)", points}};
    return {{each, "var(--line)", points, Series::Style::Faint},
            {"smoothed", "var(--line)", smoothed(points, window)}};
  }
  std::string chart(LineChart options, const std::vector<Series>& series) const {
    options.x_label = counts_minibatches(run_) ? "minibatch" : "step";
    options.whole_x = true;
    for (std::int64_t joint : joints()) options.marks.push_back(static_cast<double>(joint));
    options.mark_name = "resumed after";
    const std::string wide = line_chart_svg(options, series);
    options.width = kNarrow;
    return both(wide, line_chart_svg(options, series));
  }

  // -- where the time went --
  std::string time_card() const {
    const std::vector<TimePart> parts{{"forward", colour_of("forward")}, {"backward", colour_of("backward")},
                                      {"send", colour_of("send")},       {"receive", colour_of("receive")},
                                      {"idle", "var(--idle)"},           {"reduce", colour_of("reduce")},
                                      {"update", colour_of("update")},   {"data", colour_of("data")},
                                      {"other", colour_of("other")}};
    std::vector<TimeRow> rows;
    for (const RankRun& rank : run_.ranks) {
      if (rank.steps.empty()) continue;
      const auto mean = [&](auto member) {
        double sum = 0;
        const std::size_t first = rank.steps.size() > 1 ? 1 : 0;
        for (std::size_t i = first; i < rank.steps.size(); ++i) sum += rank.steps[i].*member;
        return sum / static_cast<double>(rank.steps.size() - first);
      };
      TimeRow row{rank_label(run_, rank.rank), {}};
      double known = 0;
      for (auto member :
           {&StepLine::forward_s, &StepLine::backward_s, &StepLine::send_s, &StepLine::receive_s,
            &StepLine::wait_s, &StepLine::all_reduce_s, &StepLine::update_s, &StepLine::data_s}) {
        row.seconds.push_back(mean(member));
        known += row.seconds.back();
      }
      row.seconds.push_back(std::max(0.0, mean(&StepLine::step_s) - known));
      rows.push_back(std::move(row));
    }
    if (rows.empty()) return "";
    return html_card(
        "Where the time went",
        std::string("Mean of ") + (counts_minibatches(run_) ? "a minibatch" : "a step") +
            " on each rank. Idle is waiting for messages: the bubble, and peers that are late; other is what "
            "no action accounts for.",
        time_bars_html(parts, rows));
  }

  std::string ranks_card() const {
    if (!loss_) return "";
    const bool each = counts_minibatches(run_);
    std::string table = std::string("<div class=\"scroll\"><table><thead><tr><th>Rank</th><th>stage</th>") +
                        (each ? "<th>minibatches of the job</th><th>one of its own, ms</th>"
                              : "<th>steps</th><th>step, ms</th>") +
                        "<th>bubble</th><th>peak memory</th><th>versions</th><th>stashed "
                        "microbatches</th></tr></thead><tbody>";
    for (const RankRun& rank : run_.ranks) {
      if (rank.steps.empty()) continue;
      const StepLine& last = rank.steps.back();
      table += "<tr><td>rank " + std::to_string(rank.rank) + "</td><td>" + stage_list(run_, rank.rank) +
               "</td><td>" + std::to_string(done_after(run_, rank, last)) + "</td>" +
               time_cell(median_of(rank, [](const StepLine& s) { return s.step_s; })) + "<td>" +
               printed("%.0f %%", 100 * median_of(rank, [](const StepLine& s) { return s.bubble_share; })) +
               "</td>" + bytes_cell(last.peak_memory_bytes) + count_cell(last.weight_versions) + "<td>" +
               std::to_string(last.stashed_microbatches) + "</td></tr>";
    }
    return html_card("Ranks", "Bubble: share of a step without forward, backward or update.",
                     table + "</tbody></table></div>");
  }

  /// Odd files of the data sets, if they have files.
  std::string data_card() const {
    const Json* sets = run_.summary.find("data_files");
    if (!sets || !sets->is_object()) return "";
    const auto has_odd_colours = [&](const char* name) {  // what is no JPEG has none
      const Json* set = sets->find(name);
      return std::ranges::any_of(std::array{"grey", "cmyk"}, [&](const char* key) {
        const Json* count = set && set->is_object() ? set->find(key) : nullptr;
        return count && count->is_number() && count->as_double() > 0;
      });
    };
    std::vector<std::pair<const char*, const char*>> columns{{"samples", "samples"}, {"classes", "classes"}};
    if (has_odd_colours("train") || has_odd_colours("test"))
      columns.insert(columns.end(), {{"grey", "grey"}, {"cmyk", "CMYK"}});
    columns.insert(columns.end(), {{"damaged", "damaged"}, {"left_out", "left out"}});
    std::string heads, table, names;
    for (const auto& [key, head] : columns) heads += "<th>" + std::string(head) + "</th>";
    for (const char* name : {"train", "test"}) {
      const Json* set = sets->find(name);
      if (!set || !set->is_object()) continue;
      table += std::string("<tr><td>") + name + "</td>";
      for (const auto& [key, head] : columns) {
        const Json* count = set->find(key);
        table += "<td>" + (count && count->is_number() ? figure_of(*count) : "–") + "</td>";
      }
      table += "</tr>";
      const Json* damaged = set->find("damaged_files");
      if (!damaged || !damaged->is_array()) continue;
      for (const Json& file : damaged->items()) {
        if (file.is_string()) names += "<li>" + escape_xml(file.as_string()) + "</li>";
      }
    }
    if (table.empty()) return "";
    if (!names.empty()) names = "<p class=\"lead\">Damaged:</p><ul class=\"notes\">" + names + "</ul>";
    return html_card(
        "Data files",
        "Files that were read, over all ranks. Another sample of its class stood in for a damaged one; what "
        "is named like a sample and is no file was left out.",
        "<div class=\"scroll\"><table><thead><tr><th>Set</th>" + heads + "</tr></thead><tbody>" + table +
            "</tbody></table></div>" + names);
  }
  /// A count: no fraction.
  static std::string figure_of(const Json& count) {
    const double value = count.as_double();
    return value < 1000 ? printed("%.0f", value) : figure(value);
  }

  std::string notes_card() const {
    std::string list;
    for (const RankRun& rank : run_.ranks) {
      for (const StepLine& step : rank.steps)
        if (step.slow)
          list += printed(
              "<li>Rank %d was slow: for the 20 steps up to %lld it computed %.1f times as long as "
              "at first.</li>",
              rank.rank, static_cast<long long>(step.step), *step.slow);
    }
    for (const std::string& note : run_.notes) list += "<li>" + escape_xml(note) + "</li>";
    if (list.empty()) return "";
    return html_card("Notes", "Ranks that became slow, and what this report could not show.",
                     "<ul class=\"notes\">" + list + "</ul>");
  }

  /// Without the losses of each step, which `losses` has.
  Json short_summary() const {
    if (!run_.summary.is_object()) return run_.summary;
    Json summary = Json::object({});
    for (const auto& [name, value] : run_.summary.members())
      if (name != "losses") summary[name] = value;
    const Json* jobs = summary.find("jobs");
    for (std::size_t j = 0; jobs && jobs->is_array() && j < jobs->items().size(); ++j) {
      Json& job = summary["jobs"].items()[j];
      if (job.is_object() && job.find("losses")) job["losses"] = Json();
    }
    return summary;
  }

  /// Returns the data for scripts. `<` cannot end the element.
  std::string embedded_data() const {
    Json stages = Json::array(), losses = Json::array();
    for (const StageComparison& s : comparison_.stages) {
      stages.push_back(Json::object({{"stage", s.stage},
                                     {"predicted_forward_s", s.predicted_forward_s},
                                     {"measured_forward_s", s.measured_forward_s},
                                     {"predicted_backward_s", s.predicted_backward_s},
                                     {"measured_backward_s", s.measured_backward_s}}));
    }
    const auto points = loss_points();
    const std::size_t every = points.size() / kMostLosses + 1;
    for (std::size_t i = 0; i < points.size(); ++i) {
      const auto& [step, loss] = points[i];
      if (i % every == 0 || i + 1 == points.size())
        losses.push_back(Json::object({{"step", static_cast<std::int64_t>(step)}, {"loss", loss}}));
    }
    const Json data = Json::object({{"format", "millrace-report-1"},
                                    {"model", model()},
                                    {"predicted_step_s", comparison_.predicted_step_s},
                                    {"measured_step_s", comparison_.measured_step_s},
                                    {"stages", stages},
                                    {"losses", losses},
                                    {"end", to_string(run_.end.state)},
                                    {"cause", run_.end.cause},
                                    {"summary", short_summary()}});
    std::string json = data.dump(), safe;
    for (char c : json)
      safe += c == '<'   ? std::string("\\u003c")
              : c == '>' ? std::string("\\u003e")
              : c == '&' ? std::string("\\u0026")
                         : std::string(1, c);
    return safe;
  }

  const RunData& run_;
  const PageOptions& options_;
  PlanComparison comparison_;
  const RankRun* loss_;
};

/// Forward and backward of one microbatch, seconds.
std::pair<double, double> times_from_log(const RunData& run, const RankRun& rank, int stage) {
  const double count = microbatches_per_line(run, stage);
  return {median_of(rank, [](const StepLine& l) { return l.forward_s; }) / count,
          median_of(rank, [](const StepLine& l) { return l.backward_s; }) / count};
}

/// Returns the same where a rank's log adds up several stages. It comes from the traced window, and is 0
/// without one.
std::pair<double, double> times_from_spans(const RankRun& rank, int stage) {
  std::map<SpanKind, std::vector<double>> seconds;
  for (const Span& span : step_spans(rank)) {
    if (span.stage == stage) seconds[span.kind].push_back(static_cast<double>(span.end - span.start) * 1e-9);
  }
  const double whole = median(seconds[SpanKind::Backward]);
  return {median(seconds[SpanKind::Forward]),
          whole > 0 ? whole
                    : median(seconds[SpanKind::BackwardInput]) + median(seconds[SpanKind::BackwardWeight])};
}

}  // namespace

double measured_step(const RunData& run) {
  const RankRun* loss = loss_rank(run);
  if (!loss) return 0;
  // Asynchronous: the line of a replicated stage covers one minibatch of each replica, the plan
  // `microbatches`.
  const bool each = counts_minibatches(run);
  const double minibatches = each ? replicas_of(run, run.plan->num_stages() - 1) : 1;
  return median_of(*loss, [](const StepLine& s) { return s.step_s; }) / minibatches;
}

PlanComparison compare(const RunData& run) {
  PlanComparison result{.measured_step_s = measured_step(run)};
  if (!run.plan) return result;
  const bool each = counts_minibatches(run);
  const double planned = each ? std::max(1, run.plan->microbatches) : 1;
  const bool holds = other_microbatches(run).empty();
  result.predicted_step_s = holds ? run.plan->predicted_step_s / planned : 0;
  const Result<Simulation> simulation = simulation_of(run, 0);
  for (int s = 0; s < run.plan->num_stages(); ++s) {
    const PlanStage& stage = run.plan->stages[s];
    StageComparison c{.stage = s};
    if (holds) {
      c.predicted_forward_s = stage.forward_s;
      c.predicted_backward_s = stage.backward_s;
      c.predicted_peak_bytes = stage.peak_bytes;
    }
    std::vector<double> forward, backward;
    for (const RankRun& rank : run.ranks) {
      const std::vector<int> held = stages_of(run, rank.rank);
      if (rank.steps.empty() || std::ranges::find(held, s) == held.end()) continue;
      const auto [forward_s, backward_s] =
          held.size() == 1 ? times_from_log(run, rank, s) : times_from_spans(rank, s);
      if (forward_s > 0) forward.push_back(forward_s);
      if (backward_s > 0) backward.push_back(backward_s);
      c.measured_peak_bytes = std::max<Bytes>(c.measured_peak_bytes, rank.steps.back().peak_memory_bytes);
      c.measured_versions = std::max(c.measured_versions, rank.steps.back().weight_versions);
    }
    c.measured_forward_s = median(forward);
    c.measured_backward_s = median(backward);
    for (RankId rank : stage.ranks) {
      const auto r = static_cast<std::size_t>(rank.value);
      if (simulation && r < simulation->peak_versions.size())
        c.predicted_versions = std::max(c.predicted_versions, simulation->peak_versions[r]);
    }
    result.stages.push_back(c);
  }
  return result;
}

std::vector<GanttRow> simulated_rows(const RunData& run, int microbatches) {
  std::vector<GanttRow> rows;
  const Result<Simulation> simulation = simulation_of(run, microbatches);
  if (!simulation) return rows;
  for (std::size_t r = 0; r < simulation->ranks.size(); ++r) {
    GanttRow row{.label = rank_label(run, static_cast<int>(r)), .bars = {}};
    const std::vector<int> stages = stages_of(run, static_cast<int>(r));
    for (const TimedAction& timed : simulation->ranks[r]) {
      if (timed.end <= timed.start || is_transfer(timed.action.op)) continue;
      row.bars.push_back({timed.start, timed.end, bar_kind_of(timed.action.op),
                          std::to_string(timed.action.microbatch.value),
                          tint_of(stages, timed.action.stage.value)});
    }
    row.to = simulation->makespan;
    rows.push_back(std::move(row));
  }
  return rows;
}

std::vector<GanttRow> measured_rows(const RunData& run) {
  const bool window = is_asynchronous(run);
  const std::optional<TraceWindow> steps = typical_steps(run, measured_step(run));
  const auto shown = [&](const Span& span) {
    return *bar_kind(span.kind) && steps && steps->holds(span.step);
  };
  Extent all;
  std::int64_t first_microbatch = INT64_MAX;
  std::vector<int> ranks;
  for (const RankRun& rank : run.ranks) {
    ranks.push_back(rank.rank);
    for (const Span& span : step_spans(rank)) {
      if (!shown(span)) continue;
      if (is_work(span.kind)) all.take(span.start, span.end);
      if (span.kind == SpanKind::Forward) first_microbatch = std::min(first_microbatch, span.microbatch);
    }
  }
  std::vector<GanttRow> rows;
  if (all.empty()) return rows;
  const auto time = [&](std::int64_t at) { return static_cast<double>(at - all.start) * 1e-9; };
  for (int r = 0; run.plan && r < run.plan->num_ranks(); ++r) {
    if (std::ranges::find(ranks, r) == ranks.end()) ranks.push_back(r);
  }
  std::ranges::sort(ranks);
  for (int r : ranks) {
    GanttRow row{.label = rank_label(run, r), .bars = {}, .to = time(all.end)};
    const auto rank = std::ranges::find(run.ranks, r, &RankRun::rank);
    const std::vector<int> stages = stages_of(run, r);
    Extent mine;
    for (const Span& span : rank == run.ranks.end() ? std::vector<Span>() : step_spans(*rank)) {
      const std::int64_t start = std::max(span.start, all.start), end = std::min(span.end, all.end);
      if (!shown(span) || end <= start) continue;
      mine.take(start, end);
      const bool numbered = is_computation(span.kind) && first_microbatch != INT64_MAX;
      row.bars.push_back({time(start), time(end), bar_kind(span.kind),
                          numbered ? std::to_string(span.microbatch - first_microbatch) : "",
                          tint_of(stages, span.stage)});
    }
    if (row.bars.empty()) {
      row.note = "no trace";
      row.to = 1e-12;  // no ground: nothing is known
    } else if (window) {
      // Nothing is known of a rank before and after its own traced minibatches.
      row.from = time(mine.start);
      row.to = time(mine.end);
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

std::int64_t done_after(const RunData& run, const RankRun& rank, const StepLine& line) {
  return line.step + (counts_minibatches(run) ? replicas_of(run, rank.stage) : 1);
}

std::string end_text(const RunData& run) {
  const RunEnd& end = run.end;
  const RankRun* log = loss_rank(run);
  const std::int64_t done = end.step >= 0 ? end.step : log ? done_after(run, *log, log->steps.back()) : -1;
  const std::string what = counts_minibatches(run) ? " minibatch" : " step";
  const std::string after = done < 0 ? ""
                                     : " after " + std::to_string(done) + what +
                                           (done == 1             ? ""
                                            : what.ends_with('h') ? "es"
                                                                  : "s");
  switch (end.state) {
    case RunEnd::State::Failed:
      return "The run failed" + after + ": rank " + std::to_string(end.rank) + ": " + end.cause;
    case RunEnd::State::Stopped:
      return "The run was stopped" + after +
             (can_go_on(run.folder) ? ": --resume " + run.folder + " goes on" : "");
    case RunEnd::State::Running:
      return "The run is still under way" + after + ": the page shows what it has written so far";
    case RunEnd::State::Unknown:
      if (!log) return "";  // it has not begun
      return "The run broke off" + after + ": it left no reason (killed, or its machine stopped)" +
             (end.cause.empty() ? "" : "; last: " + end.cause);
    case RunEnd::State::Done:
      break;
  }
  return end.cause.empty() ? "" : "The run is through, but not all of it was saved: " + end.cause;
}

std::string report_html(const RunData& run, const PageOptions& options) {
  return Page(run, options).html();
}

}  // namespace millrace
