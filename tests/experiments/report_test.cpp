#include "experiments/report/report.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include "experiments/drawing/figures.h"
#include "experiments/drawing/svg_chart.h"
#include "experiments/report/error_split.h"
#include "experiments/report/phase_comparison.h"
#include "experiments/report/plan_drawing.h"
#include "experiments/report/rank_timeline.h"
#include "experiments/report/run_diagnosis.h"
#include "experiments/report/run_messages.h"
#include "experiments/report/time_bars.h"
#include "runtime/base/files.h"
#include "runtime/base/median.h"
#include "runtime/base/quantities.h"
#include "runtime/base/run_folder.h"
#include "runtime/drawing/svg.h"
#include "tests/driver/temporary_folder.h"
#include "tests/experiments/example_run.h"

namespace millrace {
namespace {

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++n;
  return n;
}

/// Elements close in the order they open; attribute values hold no raw quote or angle bracket. What scripts
/// say is no markup.
std::string first_bad_tag(std::string html) {
  for (std::size_t at = 0; (at = html.find("<script", at)) != std::string::npos; ++at) {
    const std::size_t from = html.find('>', at) + 1;
    html.erase(from, html.find("</script>", from) - from);
  }
  std::vector<std::string> open;
  const std::vector<std::string> empty{"meta", "!doctype"};
  std::size_t at = 0;
  while ((at = html.find('<', at)) != std::string::npos) {
    const std::size_t end = html.find('>', at);
    if (end == std::string::npos) return html.substr(at, 40);
    std::string tag = html.substr(at + 1, end - at - 1);
    if (tag.find('<') != std::string::npos) return tag;
    at = end + 1;
    const bool closing = tag.rfind("/", 0) == 0, self = !tag.empty() && tag.back() == '/';
    const std::string name = tag.substr(closing, tag.find_first_of(" /", closing) - closing);
    if (closing) {
      if (open.empty() || open.back() != name) return tag;
      open.pop_back();
    } else if (!self && std::find(empty.begin(), empty.end(), name) == empty.end()) {
      open.push_back(name);
    }
  }
  return open.empty() ? "" : "unclosed " + open.back();
}

class Report : public testing::Test {
 protected:
  RunData read() {
    Result<RunData> run = read_run(folder_.path());
    EXPECT_TRUE(run) << to_string(run.problems());
    return std::move(*run);
  }
  TemporaryFolder folder_;
};

TEST_F(Report, ShowsEveryPart) {
  example::write_run(folder_.path(), example::plan());
  const RunData run = read();
  EXPECT_TRUE(run.notes.empty());
  ASSERT_EQ(run.ranks.size(), 4u);
  EXPECT_EQ(run.ranks[0].steps.size(), 240u);
  const std::string html = report_html(run);
  for (const char* part :
       {"<title>vgg16", ">Plan</h2>", ">Predicted and measured</h2>", ">Schedule</h2>", ">Simulated<",
        ">Measured, step ", ">Progress</h2>", ">Loss<", ">Throughput<", ">Where the time went</h2>",
        ">Ranks</h2>", "Stage 2", "ranks 0–1", "1.56 MiB", "features.13", "evaluation", "83.0 %"}) {
    EXPECT_NE(html.find(part), std::string::npos) << part;
  }
  EXPECT_EQ(html.find(">Notes</h2>"), std::string::npos);
  EXPECT_EQ(count(html, "class=\"gantt"), 5u) << "simulated and measured, wide and narrow; the timeline";
  EXPECT_EQ(first_bad_tag(html), "");
}

TEST_F(Report, IsSelfContained) {
  example::write_run(folder_.path(), example::plan());
  const std::string html = report_html(read());
  EXPECT_NE(html.find("Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
                      "script-src 'unsafe-inline'\""),
            std::string::npos);
  std::string without_namespaces = html;
  for (std::size_t at;
       (at = without_namespaces.find("xmlns=\"http://www.w3.org/2000/svg\"")) != std::string::npos;)
    without_namespaces.erase(at, 34);
  for (const char* outside : {"http:", "https:", "src=", "href=", "@import", "url(http", "onload"})
    EXPECT_EQ(without_namespaces.find(outside), std::string::npos) << outside;
  EXPECT_EQ(count(html, "<script"), 3u) << "the timeline's data, the data, the script that zooms";
  for (const char* loads : {"fetch(", "XMLHttpRequest", "import(", "WebSocket"})
    EXPECT_EQ(html.find(loads), std::string::npos) << loads;
  for (int rank = 0; rank < 4; ++rank)
    std::filesystem::remove(folder_.path("trace.rank" + std::to_string(rank) + ".json"));
  const std::string still = report_html(read());
  EXPECT_EQ(count(still, "<script"), 1u) << "nothing to zoom: no script may run";
  EXPECT_EQ(still.find("script-src"), std::string::npos);
}

/// What the script reads.
Json timeline_of(const std::string& html) {
  const std::string open = "id=\"timeline-data\">";
  const std::size_t start = html.find(open);
  if (start == std::string::npos) return {};
  const Result<Json> data = parse_json(
      html.substr(start + open.size(), html.find("</script>", start) - start - open.size()), "data");
  EXPECT_TRUE(data) << to_string(data.problems());
  return data ? *data : Json();
}

std::size_t events_of(const Json& timeline) {
  std::size_t events = 0;
  for (const Json& lane : timeline.find("lanes")->items()) events += lane.find("e")->items().size() / 6;
  return events;
}

TEST_F(Report, TheTimelineHasEverySpanAndStaysSmall) {
  example::write_run(folder_.path(), example::plan());
  const RunData run = read();
  std::size_t spans = 0;
  for (const RankRun& rank : run.ranks) spans += rank.spans.size();
  const std::string html = rank_timeline_html(run);
  EXPECT_EQ(first_bad_tag(html), "");
  EXPECT_EQ(html.find("Left out"), std::string::npos) << html.substr(0, 900);
  const Json all = timeline_of(html);
  EXPECT_EQ(events_of(all), spans);
  EXPECT_EQ(all.find("steps")->items().size(), 3u);
  EXPECT_NE(html.find("<svg"), std::string::npos) << "the picture for readers without scripts";
  // The sum of the shown lengths is that of the spans.
  std::int64_t shown = 0, lasted = 0;
  for (const Json& lane : all.find("lanes")->items())
    for (std::size_t i = 1; i < lane.find("e")->items().size(); i += 6)
      shown += 100 * lane.find("e")->items()[i].as_int();
  for (const RankRun& rank : run.ranks)
    for (const Span& span : rank.spans) lasted += span.end - span.start;
  EXPECT_NEAR(double(shown), double(lasted), 200.0 * double(spans));
  const std::string few = rank_timeline_html(run, {.spans = spans / 2, .ranks = 2});
  EXPECT_LT(events_of(timeline_of(few)), spans / 2 + 1);
  EXPECT_NE(few.find("Left out: 2 of 3 traced steps"), std::string::npos) << few.substr(0, 900);
  EXPECT_NE(few.find("Left out: 2 of 4 ranks"), std::string::npos) << few.substr(0, 900);
  EXPECT_LT(few.size(), html.size());
}

TEST_F(Report, GapsBetweenTracedStepsAreCutOut) {
  example::write_run(folder_.path(), example::plan());
  RunData run = read();
  for (RankRun& rank : run.ranks)
    for (Span& span : rank.spans)
      if (span.step > 10) span.start += 3'600'000'000'000, span.end += 3'600'000'000'000;
  const Json data = timeline_of(rank_timeline_html(run));
  EXPECT_EQ(data.find("stretches")->items().size(), 2u);
  EXPECT_LT(data.find("length")->as_int(), 10'000'000) << "an hour is not shown, in units of 100 ns";
}

TEST_F(Report, LateRanksAndStepsAndWaitsForDataAreNamed) {
  RunData run;
  for (int r = 0; r < 4; ++r) {
    RankRun rank{.rank = r, .stage = 0, .steps = {}, .commands = {}, .joints = {}, .spans = {}};
    for (int step = 0; step < 20; ++step)
      rank.steps.push_back({.step = step,
                            .step_s = step == 0    ? 9
                                      : step == 7  ? 3.2
                                      : step == 12 ? 2.8
                                                   : 1.6,
                            .forward_s = r == 2 ? 0.8 : 0.4,
                            .backward_s = 0.1,
                            .data_s = r == 1 && step == 7 ? 1.7 : 0.1});
    run.ranks.push_back(std::move(rank));
  }
  const std::vector<SlowRank> ranks = slow_ranks(run);
  ASSERT_EQ(ranks.size(), 1u);
  EXPECT_EQ(ranks[0].rank, 2);
  EXPECT_NEAR(ranks[0].ratio, 1.8, 1e-9);
  const std::vector<SlowStep> steps = slow_steps(run);
  ASSERT_EQ(steps.size(), 2u) << "the first step, which warms up, is not counted";
  EXPECT_EQ(steps[0].step, 7);
  EXPECT_NEAR(steps[0].ratio, 2, 1e-9);
  EXPECT_EQ(steps[0].rank, 1);
  EXPECT_EQ(steps[0].phase, "batch wait");
  EXPECT_NEAR(steps[0].more_s, 1.6, 1e-9);
  EXPECT_EQ(steps[1].step, 12);
  EXPECT_EQ(steps[1].phase, "") << "no phase of any rank explains it";
  const std::vector<DataStall> stalls = data_stalls(run);
  ASSERT_EQ(stalls.size(), 4u);
  EXPECT_EQ(stalls[1].steps, 1);
  EXPECT_EQ(stalls[1].longest_step, 7);
  const std::string html = diagnosis_html(run);
  for (const char* part : {"<td>rank 2</td>", "<td>1.80 times</td>", "<td>step 8</td>", "rank 1, batch wait"})
    EXPECT_NE(html.find(part), std::string::npos) << part;
  EXPECT_EQ(first_bad_tag(html), "");
  EXPECT_EQ(diagnosis_lines(run).size(), 3u) << "rank 1 waits in 11 % of the time";
}

TEST_F(Report, TheBubbleStandsBesideTheSchedulesBound) {
  // Two equal stages, four microbatches, nothing but computation: the bound of 1F1B is 1/5.
  const int microbatches = 4;
  RunData run;
  run.plan = Plan{.model = "m", .schedule = ScheduleKind::OneFOneB, .microbatches = microbatches};
  run.plan->stages = {{.layers = {"a"}, .ranks = {RankId(0)}}, {.layers = {"b"}, .ranks = {RankId(1)}}};
  run.plan->crossings = {{StageId(0), StageId(1), 8}};
  const PipelineShape shape = shape_of(*run.plan);
  const Schedule schedule = *make_schedule(run.plan->schedule, shape);
  const ScheduleCosts costs{.forward = {1e-3, 1e-3},
                            .backward_input = {1e-3, 1e-3},
                            .backward_weight = {1e-3, 1e-3},
                            .reduce = {},
                            .update = {},
                            .transfer = {}};
  const Simulation simulation = simulate(schedule, shape, costs);
  for (int r = 0; r < 2; ++r) {
    RankRun rank{.rank = r, .stage = r, .steps = {}, .commands = {}, .joints = {}, .spans = {}};
    for (int step = 0; step < 6; ++step) {
      rank.steps.push_back({.step = step, .step_s = 0.016, .bubble_share = 0.25});
      for (Span span : example::spans_of(simulation, static_cast<std::size_t>(r), r, microbatches, step, 1))
        rank.spans.push_back(span);
      const std::int64_t end = rank.spans.back().end;  // no update takes time, but a step ends with one
      rank.spans.push_back({.kind = SpanKind::Update,
                            .stage = static_cast<std::int16_t>(r),
                            .microbatch = step * microbatches + microbatches - 1,
                            .step = step,
                            .start = end,
                            .end = end});
    }
    run.ranks.push_back(std::move(rank));
  }
  const Bubbles bubbles = bubbles_of(run);
  EXPECT_EQ(bubbles.no_bound, "");
  ASSERT_EQ(bubbles.ranks.size(), 2u);
  EXPECT_NEAR(bubbles.equal_stages, 0.2, 1e-9);
  for (const RankBubble& one : bubbles.ranks) {
    EXPECT_NEAR(one.bound, 0.2, 0.01);
    EXPECT_NEAR(one.from_trace, 0.25, 0.02) << "steps of 15 ms are a millisecond apart";
    EXPECT_NEAR(one.measured, 0.25, 1e-9);
  }
}

TEST(Overlap, IsTheShareOfMessagesUnderWhichTheReceiverComputes) {
  const auto span = [](SpanKind kind, int peer, std::int64_t start, std::int64_t end) {
    return Span{
        .kind = kind, .stage = 0, .peer = peer, .microbatch = 0, .step = 0, .start = start, .end = end};
  };
  RunData run;
  run.ranks = {{.rank = 0, .stage = 0, .steps = {}, .commands = {}, .joints = {}, .spans = {}},
               {.rank = 1, .stage = 1, .steps = {}, .commands = {}, .joints = {}, .spans = {}}};
  run.ranks[0].spans = {span(SpanKind::Send, 1, 1'000, 1'100)};
  run.ranks[1].spans = {span(SpanKind::Forward, -1, 0, 4'000), span(SpanKind::Wait, 0, 4'000, 5'000)};
  const std::vector<RankOverlap> overlaps = overlaps_of(run);
  ASSERT_EQ(overlaps.size(), 1u) << "nothing was sent to rank 0";
  EXPECT_EQ(overlaps[0].rank, 1);
  EXPECT_NEAR(overlaps[0].under_way_s, 4e-6, 1e-12);
  EXPECT_NEAR(overlaps[0].hidden, 0.75, 1e-9);
  EXPECT_NEAR(overlaps[0].waited_s, 1e-6, 1e-12);
}

/// Spans of an evaluation have the number of the step behind it: they are none of its messages.
TEST(Overlap, LeavesEvaluationsOut) {
  const auto span = [](SpanKind kind, int peer, std::int64_t start, std::int64_t end) {
    return Span{
        .kind = kind, .stage = 0, .peer = peer, .microbatch = 0, .step = 1, .start = start, .end = end};
  };
  RunData run;
  run.ranks = {{.rank = 0, .stage = 0, .steps = {}, .commands = {}, .joints = {}, .spans = {}},
               {.rank = 1, .stage = 1, .steps = {}, .commands = {}, .joints = {}, .spans = {}}};
  run.ranks[0].spans = {span(SpanKind::Send, 1, 100, 200), span(SpanKind::Eval, -1, 50, 5'000),
                        span(SpanKind::Send, 1, 6'000, 6'100)};
  run.ranks[1].spans = {span(SpanKind::Wait, 0, 80, 4'500), span(SpanKind::Forward, -1, 4'500, 4'900),
                        span(SpanKind::Eval, -1, 60, 5'000), span(SpanKind::Wait, 0, 6'000, 7'000),
                        span(SpanKind::Forward, -1, 7'000, 7'500)};
  EXPECT_EQ(step_spans(run.ranks[1]).size(), 3u);
  const std::vector<RankOverlap> overlaps = overlaps_of(run);
  ASSERT_EQ(overlaps.size(), 1u);
  EXPECT_EQ(overlaps[0].messages, 1);
  EXPECT_NEAR(overlaps[0].under_way_s, 1e-6, 1e-12);
  EXPECT_NEAR(overlaps[0].waited_s, 1e-6, 1e-12);
  EXPECT_EQ(messages_of(run).size(), 2u) << "the time line draws all";
}

TEST_F(Report, PhasesOfTwoRunsHaveIntervals) {
  example::write_run(folder_.path(), example::plan());
  const RunData run = read();
  RunData slower = run;
  for (RankRun& rank : slower.ranks)
    for (StepLine& step : rank.steps) step.forward_s *= 1.5;
  std::map<std::string, PhaseDifference> differences;
  for (const PhaseDifference& one : phase_differences(run, slower)) differences[one.phase] = one;
  const PhaseDifference &forward = differences.at("forward"), &step = differences.at("step");
  EXPECT_NEAR(forward.more_s, 0.5 * forward.first_s, 1e-9);
  EXPECT_GT(forward.low_s, 0);
  EXPECT_EQ(step.more_s, 0);
  EXPECT_LE(step.low_s, 0);
  EXPECT_GE(step.high_s, 0);
  EXPECT_LT(step.low_s, step.high_s);
  const std::string html = report_html(run, {.against = {slower}});
  EXPECT_NE(html.find("Side by side: phases"), std::string::npos);
  EXPECT_NE(html.find("<td>+50.0 %</td><td>yes</td>"), std::string::npos);
  EXPECT_EQ(first_bad_tag(html), "");
  const std::string many = report_html(run, {.against = std::vector<RunData>(7, slower)});
  EXPECT_NE(many.find("<th><i class=\"job\" style=\"background:repeating-linear-gradient(90deg,var(--line)"),
            std::string::npos)
      << "the eighth run has the first one's colour";
}

Result<Json> embedded_data(const std::string& html) {
  const std::string open = "id=\"millrace-data\">";
  const std::size_t start = html.find(open) + open.size(), end = html.find("</script>", start);
  return parse_json(html.substr(start, end - start), "data");
}

TEST_F(Report, EmbedsItsData) {
  example::write_run(folder_.path(), example::plan());
  RunData run = read();
  const Result<Json> data = embedded_data(report_html(run));
  ASSERT_TRUE(data) << to_string(data.problems());
  EXPECT_EQ(data->find("model")->as_string(), "vgg16");
  EXPECT_EQ(data->find("losses")->items().size(), 240u);
  EXPECT_EQ(data->find("stages")->items().size(), 3u);
  // The page of a long run has every third step, and the last one.
  while (run.ranks[3].steps.size() < 25'001) {
    run.ranks[3].steps.push_back(run.ranks[3].steps.back());
    ++run.ranks[3].steps.back().step;
  }
  const Result<Json> thinned = embedded_data(report_html(run));
  ASSERT_TRUE(thinned) << to_string(thinned.problems());
  const std::vector<Json>& losses = thinned->find("losses")->items();
  EXPECT_EQ(losses.size(), 8335u);
  EXPECT_EQ(losses.back().find("step")->as_int() - losses.front().find("step")->as_int(), 25'000);
}

TEST_F(Report, DrawsScoresAndPerplexityBetweenSteps) {
  example::write_run(folder_.path(), example::plan());
  const std::string log = folder_.path("steps.rank3.jsonl");
  example::write(log, *read_file(log) +
                          "{\"after_step\":60,\"of\":\"evaluation\",\"loss\":1.5,\"perplexity\":12.5}\n"
                          "{\"after_step\":60,\"of\":\"score\",\"bleu\":12.5,\"seconds\":3.5}\n"
                          "{\"after_step\":120,\"of\":\"score\",\"bleu\":21.25,\"seconds\":3.5}\n");
  Result<Json> summary = read_json(folder_.path("summary.json"));
  ASSERT_TRUE(summary);
  Json evaluations = Json::array();
  evaluations.push_back(Json::object({{"step", 60}, {"loss", 1.5}, {"perplexity", 12.5}}));
  (*summary)["evaluations"] = evaluations;
  (*summary)["steps_per_epoch"] = 60;
  example::write(folder_.path("summary.json"), summary->dump());
  const RunData run = read();
  EXPECT_EQ(run.ranks[3].steps.size(), 240u);
  ASSERT_EQ(run.scores.size(), 2u);
  EXPECT_EQ(run.scores[1].after_step, 120);
  EXPECT_EQ(run.scores[1].bleu, 21.25);
  const std::string html = report_html(run);
  for (const char* part : {"while it trained", "hours of training", "Perplexity per token"})
    EXPECT_NE(html.find(part), std::string::npos) << part;
  EXPECT_EQ(first_bad_tag(html), "");
}

TEST_F(Report, EscapesWhatFilesSay) {
  const std::string evil = "</script><img src=x onerror=\"alert('1')\">&";
  Plan plan = example::plan();
  plan.model = evil;
  plan.planner = evil;
  plan.stages[0].layers[0] = evil;
  example::write_run(folder_.path(), plan);
  example::write(folder_.path("summary.json"),
                 Json::object({{"model", evil}, {"data", evil}, {"evaluations", evil}}).dump());
  const std::string html = report_html(read());
  EXPECT_EQ(html.find("<img"), std::string::npos);
  EXPECT_EQ(count(html, "</script>"), 3u) << "those of the page";
  EXPECT_EQ(first_bad_tag(html), "");
}

TEST_F(Report, ComparesOneMicrobatchWithOneMicrobatch) {
  example::write_run(folder_.path(), example::plan());
  const PlanComparison comparison = compare(read());
  ASSERT_EQ(comparison.stages.size(), 3u);
  for (const StageComparison& stage : comparison.stages) {
    // The fixture runs 8 % slower than its plan; stage 0 has two replicas with half of the microbatches each.
    EXPECT_NEAR(stage.measured_forward_s / stage.predicted_forward_s, 1.08, 1e-9) << stage.stage;
    EXPECT_NEAR(stage.measured_backward_s / stage.predicted_backward_s, 1.08, 1e-9) << stage.stage;
    EXPECT_EQ(stage.predicted_versions, 1);
  }
  EXPECT_GT(comparison.measured_step_s, comparison.predicted_step_s);
}

TEST_F(Report, AsynchronousTimesAreThoseOfAMinibatch) {
  Plan plan = example::plan(ScheduleKind::PipeDream);
  plan.predicted_step_s = 8 * 0.02;
  example::write_run(folder_.path(), plan);
  const RunData run = read();
  const PlanComparison comparison = compare(run);
  EXPECT_NEAR(comparison.predicted_step_s, 0.02, 1e-12);
  EXPECT_NEAR(comparison.stages[1].measured_forward_s / comparison.stages[1].predicted_forward_s, 1.08, 1e-9);
  EXPECT_GT(comparison.stages[0].predicted_versions, 1) << "stashed weights";
  const std::string html = report_html(run);
  EXPECT_NE(html.find("Measured, minibatches 11 to 13"), std::string::npos);
  EXPECT_EQ(first_bad_tag(html), "");
}

TEST_F(Report, MeasuredRowsAreOneStepFromZero) {
  example::write_run(folder_.path(), example::plan());
  const RunData run = read();
  const std::vector<GanttRow> measured = measured_rows(run), simulated = simulated_rows(run);
  ASSERT_EQ(measured.size(), 4u);
  ASSERT_EQ(simulated.size(), 4u);
  double start = 1e9;
  for (std::size_t r = 0; r < measured.size(); ++r) {
    const auto labels = [](const GanttRow& row, const char* kind) {
      std::vector<std::string> result;
      for (const GanttBar& bar : row.bars) {
        if (bar.kind == kind) result.push_back(bar.label);
      }
      return result;
    };
    // The run has the same actions as the simulation, microbatch by microbatch.
    EXPECT_EQ(labels(measured[r], "forward"), labels(simulated[r], "forward")) << r;
    EXPECT_EQ(labels(measured[r], "backward"), labels(simulated[r], "backward")) << r;
    for (const GanttBar& bar : measured[r].bars) start = std::min(start, bar.start);
  }
  EXPECT_EQ(start, 0);
}

TEST_F(Report, MeasuredTimeBeginsWithWorkAndEndsWithIt) {
  example::write_run(folder_.path(), example::plan());
  RunData run = read();
  const std::int64_t second = 1'000'000'000;
  for (RankRun& rank : run.ranks) {
    // Waiting since long before the step, and a message that is under way long after it.
    for (std::int64_t step : {10, 11, 12}) {
      const auto found = std::ranges::find(rank.spans, step, &Span::step);
      ASSERT_NE(found, rank.spans.end());
      Span wait = *found, send = *found;
      wait.kind = SpanKind::Wait, wait.start -= 5 * second, wait.end = found->start;
      send.kind = SpanKind::Send, send.end = send.start + 9 * second;
      rank.spans.push_back(wait);
      rank.spans.push_back(send);
    }
  }
  double work_start = 1e9, work_end = 0, end = 0;
  const std::vector<GanttRow> rows = measured_rows(run);
  for (const GanttRow& row : rows) {
    for (const GanttBar& bar : row.bars) {
      EXPECT_GE(bar.start, 0) << bar.kind;
      end = std::max(end, bar.end);
      if (bar.kind == "wait" || bar.kind == "send") continue;
      work_start = std::min(work_start, bar.start);
      work_end = std::max(work_end, bar.end);
    }
  }
  EXPECT_EQ(work_start, 0);
  EXPECT_EQ(end, work_end);
  for (const GanttRow& row : rows) EXPECT_EQ(row.to, work_end);
}

TEST_F(Report, TheStepShownIsTheOneNearestToTheMedian) {
  example::write_run(folder_.path(), example::plan());
  RunData run = read();
  const double typical = compare(run).measured_step_s;
  // Two of the three traced steps become far longer: the median of the traced is no typical step.
  for (RankRun& rank : run.ranks) {
    for (Span& span : rank.spans) {
      if (span.step != 11 && span.kind == SpanKind::Update) span.end += 3'000'000'000;
    }
  }
  EXPECT_NE(report_html(run).find(">Measured, step 12<"), std::string::npos) << "steps are counted from 1";
  for (const GanttRow& row : measured_rows(run)) EXPECT_LT(row.to, 2 * typical);
}

TEST_F(Report, StepsAreCountedAlikeEverywhere) {
  for (ScheduleKind kind : {ScheduleKind::OneFOneB, ScheduleKind::PipeDream}) {
    Plan plan = example::plan(kind);
    // The last stage is replicated: asynchronously each line of its log is a minibatch of each replica.
    plan.stages[2].ranks = {RankId(3), RankId(4)};
    example::write_run(folder_.path(), plan, 40);
    RunData run = read();
    const bool each = kind == ScheduleKind::PipeDream;
    for (RankRun& rank : run.ranks) {
      if (!each || rank.stage == 1) continue;
      for (std::size_t i = 0; i < rank.steps.size(); ++i)
        rank.steps[i].step = static_cast<std::int64_t>(2 * i);
    }
    const std::int64_t done = each ? 80 : 40;
    EXPECT_EQ(done_after(run, run.ranks[4], run.ranks[4].steps.back()), done);
    const std::string html = report_html(run);
    EXPECT_NE(html.find(each ? "<span>Minibatches</span><b>80</b>" : "<span>Steps</span><b>40</b>"),
              std::string::npos);
    EXPECT_NE(html.find("<tr><td>rank 4</td><td>2</td><td>" + std::to_string(done) + "</td>"),
              std::string::npos);
    EXPECT_NE(html.find("{\"step\":" + std::to_string(done) + ",\"loss\":"), std::string::npos)
        << "the last loss";
  }
}

TEST_F(Report, WhatARankDidNotLeaveIsNamed) {
  example::write_run(folder_.path(), example::plan(), 20);
  std::filesystem::remove(folder_.path("trace.rank1.json"));
  std::filesystem::remove(folder_.path("steps.rank2.jsonl"));
  const RunData run = read();
  const std::string html = report_html(run);
  EXPECT_NE(html.find("trace.rank1.json is missing or empty: this rank is empty in the measured schedule"),
            std::string::npos);
  EXPECT_NE(html.find("steps.rank2.jsonl is missing or empty: this rank is not in the figures"),
            std::string::npos);
  const std::vector<GanttRow> rows = measured_rows(run);
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(rows[1].note, "no trace");
  EXPECT_TRUE(rows[1].bars.empty());
  EXPECT_NE(html.find(">no trace<"), std::string::npos);
}

TEST_F(Report, AScheduleThatCannotBeShownSaysWhy) {
  Plan plan = example::plan(ScheduleKind::PipeDream);
  for (PlanStage& stage : plan.stages) stage.forward_s = stage.backward_s = 0;
  example::write_run(folder_.path(), plan, 20);
  for (int rank = 0; rank < 4; ++rank)
    std::filesystem::remove(folder_.path("trace.rank" + std::to_string(rank) + ".json"));
  const std::string html = report_html(read());
  for (const char* part :
       {">Schedule</h2>", "No trace.rank", "Nothing is simulated: the plan predicts no times"})
    EXPECT_NE(html.find(part), std::string::npos) << part;
}

TEST_F(Report, TheMedianIsTheSummarys) {
  example::write_run(folder_.path(), example::plan(), 5);  // the first warms up: four count
  const RunData run = read();
  std::vector<double> seconds;
  for (const StepLine& line : loss_rank(run)->steps) seconds.push_back(line.step_s);
  seconds.erase(seconds.begin());
  std::ranges::sort(seconds);
  EXPECT_NE(seconds[1], seconds[2]);
  EXPECT_EQ(compare(run).measured_step_s, (seconds[1] + seconds[2]) / 2);
  EXPECT_EQ(compare(run).measured_step_s, median(seconds)) << "what the trainer writes into the summary";
}

TEST_F(Report, OneThingHasOneColourInAllCharts) {
  example::write_run(folder_.path(), example::plan());
  const std::string html = report_html(read());
  for (const char* kind : {"forward", "backward", "reduce", "update"}) {
    const std::string colour = colour_of(kind);
    EXPECT_NE(html.find("fill=\"" + colour + "\""), std::string::npos) << kind << ": plan and schedules";
    EXPECT_NE(html.find("background:" + colour), std::string::npos) << kind << ": where the time went";
  }
  // Every colour of a bar is one of the kinds' (the page's own is idle time's).
  for (std::size_t at = html.find("background:#"); at != std::string::npos;
       at = html.find("background:#", at + 1)) {
    const std::string colour = html.substr(at + 11, 7);
    bool known = false;
    for (const char* kind :
         {"forward", "backward", "input", "weight", "reduce", "update", "send", "receive", "data", "other"})
      known |= colour == colour_of(kind);
    EXPECT_TRUE(known) << colour;
  }
}

TEST_F(Report, OddFilesOfTheDataAreShown) {
  example::write_run(folder_.path(), example::plan(), 5);
  Json summary = *read_json(folder_.path("summary.json"));
  summary["data_files"] = Json::object({{"train", Json::object({{"samples", 24},
                                                                {"classes", 3},
                                                                {"grey", 1},
                                                                {"cmyk", 0},
                                                                {"damaged", 2},
                                                                {"left_out", 4},
                                                                {"damaged_files", "no list"}})},
                                        {"test", 7}});
  example::write(folder_.path("summary.json"), summary.dump());
  EXPECT_NE(report_html(read()).find(
                "<tr><td>train</td><td>24</td><td>3</td><td>1</td><td>0</td><td>2</td><td>4</td></tr>"),
            std::string::npos);
  summary["data_files"]["train"]["grey"] = 0;
  example::write(folder_.path("summary.json"), summary.dump());
  const std::string volumes = report_html(read());
  EXPECT_NE(volumes.find("<tr><td>train</td><td>24</td><td>3</td><td>2</td><td>4</td></tr>"),
            std::string::npos);
  EXPECT_EQ(volumes.find("CMYK"), std::string::npos) << "volumes have no such thing";
}

TEST(Gantt, TheLegendHasWhatThePictureShows) {
  const auto legend = [](const std::vector<GanttBar>& bars) {
    const std::string svg = gantt_svg({{.label = "rank 0", .bars = bars}}, {.title = "t", .span = 2});
    std::string names;
    for (const char* name : {"forward", "backward", "wait", "data", "idle"}) {
      if (svg.find(">" + std::string(name) + "</text>") != std::string::npos)
        names += std::string(name) + " ";
    }
    return names;
  };
  EXPECT_EQ(legend({{0, 1, "forward", "0"}, {1, 2, "backward", "0"}}), "forward backward ");
  EXPECT_EQ(legend({{0, 1, "forward", "0"}}), "forward idle ");
  EXPECT_EQ(legend({{0, 1, "forward", "0"}, {1, 2, "wait", ""}}), "forward idle ") << "waiting is idle time";
  EXPECT_EQ(legend({{0, 2, "forward", "0"}, {1, 1.00001, "data", ""}}), "forward ") << "thinner than a line";
}

TEST(Gantt, ANarrowPictureBreaksItsLegend) {
  std::vector<GanttBar> bars;
  for (const char* kind : {"forward", "backward", "input", "weight", "reduce", "update", "send", "data"})
    bars.push_back({double(bars.size()), double(bars.size() + 1), kind, ""});
  const std::string svg =
      gantt_svg({{.label = "rank 0", .bars = bars}}, {.title = "t", .width = 380, .span = 10});
  for (std::size_t at = svg.find("<text x=\""); at != std::string::npos;
       at = svg.find("<text x=\"", at + 1)) {
    const std::size_t open = svg.find('>', at), close = svg.find('<', open);
    const bool middle = svg.substr(at, open - at).find("middle") != std::string::npos;
    const double wide = 6.7 * static_cast<double>(close - open - 1);
    EXPECT_LE(std::stod(svg.substr(at + 9)) + (middle ? wide / 2 : wide), 381)
        << svg.substr(open, close - open);
  }
}

TEST_F(Report, WorksWithAnyPartMissing) {
  const char* const files[] = {"plan.json", "summary.json", "steps.rank0.jsonl", "steps.rank3.jsonl",
                               "trace.rank1.json"};
  for (const char* file : files) {
    example::write_run(folder_.path(), example::plan(), 20);
    std::filesystem::remove(folder_.path(file));
    EXPECT_EQ(first_bad_tag(report_html(read())), "") << file;
    example::write(folder_.path(file), "{\"step\": ");
    const RunData damaged = read();
    EXPECT_FALSE(damaged.notes.empty()) << file;
    EXPECT_EQ(first_bad_tag(report_html(damaged)), "") << file;
  }
  // A plan alone: a run that has not started.
  const TemporaryFolder alone;
  example::write(alone.path("plan.json"), example::plan().to_json());
  const Result<RunData> run = read_run(alone.path());
  ASSERT_TRUE(run);
  const std::string html = report_html(*run);
  EXPECT_NE(html.find(">Simulated<"), std::string::npos);
  EXPECT_NE(html.find("summary.json is missing"), std::string::npos);
}

TEST_F(Report, NothingOfARunIsAProblem) {
  EXPECT_FALSE(read_run(folder_.path()));
  EXPECT_FALSE(read_run(folder_.path("absent")));
}

TEST_F(Report, TheFolderOfASearchKeepsItsOwnPage) {
  example::write(folder_.path("summary.json"), R"({"format":"millrace-tune-1","trials":3})");
  const Result<RunData> run = read_run(folder_.path());
  ASSERT_FALSE(run);
  EXPECT_NE(to_string(run.problems()).find("a search"), std::string::npos);
}

TEST_F(Report, OfAStepDoneTwiceTheLaterCounts) {
  example::write(folder_.path("steps.rank0.jsonl"),
                 "{\"format\":\"millrace-steps-1\",\"rank\":0,\"stage\":0,\"ranks\":1}\n{\"step\":0,\"loss\":"
                 "3.0}\n{\"step\":1,\"loss\":2.0}\n"
                 "{\"format\":\"millrace-steps-1\",\"rank\":0,\"stage\":0,\"ranks\":1}\n{\"step\":1,\"loss\":"
                 "1.5}\n{\"step\":2,\"loss\":\"NaN\"}\n{\"step\":3,\"lo");
  const RunData run = read();
  ASSERT_EQ(run.ranks.at(0).steps.size(), 3u);
  EXPECT_EQ(run.ranks[0].steps[1].loss, 1.5);
  EXPECT_TRUE(std::isnan(run.ranks[0].steps[2].loss.value_or(0))) << "as it was logged; curves leave it out";
}

TEST_F(Report, AFailedRunSaysSoFirst) {
  example::write_run(folder_.path(), example::plan(), 20);
  EXPECT_EQ(report_html(read()).find("class=\"card end"), std::string::npos) << "nothing to say";
  std::filesystem::remove(folder_.path("summary.json"));
  write_failure(folder_.path(), {.rank = 0, .step = 20, .exit_code = 5, .error = "connection lost"});
  write_failure(
      folder_.path(),
      {.rank = 3, .step = 19, .exit_code = 6, .error = "step 19: the loss is <nan>", .hint = "lower --lr"});
  const RunData failed = read();
  EXPECT_EQ(failed.end.state, RunEnd::State::Failed);
  EXPECT_EQ(end_text(failed), "The run failed after 19 steps: rank 3: step 19: the loss is <nan>");
  const std::string html = report_html(failed);
  EXPECT_NE(html.find("<title>failed: vgg16"), std::string::npos);
  EXPECT_LT(
      html.find("<h2>The run failed after 19 steps</h2><p>rank 3: step 19: the loss is &lt;nan&gt;</p>"),
      html.find("class=\"tiles\""));
  EXPECT_NE(html.find("Hint: lower --lr"), std::string::npos);
  EXPECT_EQ(first_bad_tag(html), "");
  // Alone it is a run, too: ranks that fail before the first step leave no more.
  const TemporaryFolder alone;
  write_failure(alone.path(), {.rank = 0, .exit_code = 3, .error = "no data"});
  ASSERT_TRUE(read_run(alone.path()));
  EXPECT_EQ(end_text(*read_run(alone.path())), "The run failed: rank 0: no data");
}

TEST_F(Report, ARunWithoutAnEndIsUnderWayOrBrokeOff) {
  example::write_run(folder_.path(), example::plan(), 20);
  std::filesystem::remove(folder_.path("summary.json"));
  example::write(folder_.path("status.rank2.json"), R"({"rank":2,"stage":1,"step":19,"action":"1F3"})");
  const RunData broken = read();
  EXPECT_EQ(broken.end.state, RunEnd::State::Unknown);
  EXPECT_NE(report_html(broken).find("The run broke off after 20 steps"), std::string::npos);
  EXPECT_NE(end_text(broken).find("rank 2: step 19, 1F3"), std::string::npos);
  const Result<RunLock> lock = RunLock::acquire(folder_.path(), "r");
  ASSERT_TRUE(lock);
  EXPECT_NE(report_html(read()).find("The run is still under way after 20 steps"), std::string::npos);
}

TEST_F(Report, AStoppedRunAndLostResultsAreSaid) {
  example::write_run(folder_.path(), example::plan(), 20);
  Json summary = *read_json(folder_.path("summary.json"));
  summary["stopped_early"] = true;
  example::write(folder_.path("summary.json"), summary.dump());
  EXPECT_NE(report_html(read()).find("The run was stopped after 20 steps"), std::string::npos);
  summary["stopped_early"] = false;
  Json lost = Json::array();
  lost.push_back("the weights (disk full)");
  summary["lost"] = lost;
  example::write(folder_.path("summary.json"), summary.dump());
  EXPECT_EQ(end_text(read()), "The run is through, but not all of it was saved: the weights (disk full)");
}

TEST_F(Report, AnArrayShowsItsJobs) {
  example::write_run(folder_.path(), example::plan(), 3);
  Json summary = *read_json(folder_.path("summary.json"));
  Json jobs = Json::array();
  for (int job : {0, 1}) {
    jobs.push_back(Json::object({{"job", job},
                                 {"settings", Json::object({{"lr", job == 0 ? "0.1" : "9<0"}})},
                                 {"step", 3},
                                 {"loss", job == 0 ? Json(0.5) : Json()},
                                 {"nonfinite_step", job == 0 ? Json() : Json(2)},
                                 {"losses", Json::array()},
                                 {"evaluation", Json::object({{"top1", job == 0 ? 0.75 : 0.0}})}}));
  }
  summary["jobs"] = jobs;
  example::write(folder_.path("summary.json"), summary.dump());
  example::write(folder_.path("jobs.csv"),
                 "step,job,loss,lr,status\n0,0,2.5,0.1,ok\n0,1,2.5,9,ok\n1,0,1.5,0.1,ok\n1,1,90000,9,ok\n"
                 "2,0,0.5,0.1,ok\n2,1,nan,9,nonfinite\n");
  const RunData run = read();
  ASSERT_EQ(run.jobs.size(), 2u);
  EXPECT_EQ(run.jobs[0].losses, (std::vector<std::pair<double, double>>{{1, 2.5}, {2, 1.5}, {3, 0.5}}));
  EXPECT_EQ(run.jobs[1].losses.size(), 2u) << "NaN is not drawn";
  EXPECT_EQ(run.jobs[1].nonfinite_step, 2);
  const std::string html = report_html(run);
  for (const char* part : {">Jobs</h2>", "Loss of each job", "1 not finite", "Lowest loss", "9&lt;0",
                           "not finite from step 3 on", "<td>0.75</td>", "Losses above 5 are drawn at 5."})
    EXPECT_NE(html.find(part), std::string::npos) << part;
  EXPECT_EQ(html.find("9e+04"), std::string::npos) << "a diverged job does not set the scale";
  EXPECT_EQ(first_bad_tag(html), "");
  // For a run that failed, the report has only the table.
  std::filesystem::remove(folder_.path("summary.json"));
  const RunData failed = read();
  ASSERT_EQ(failed.jobs.size(), 2u);
  EXPECT_EQ(failed.jobs[0].loss, 0.5);
  EXPECT_EQ(failed.jobs[1].nonfinite_step, 2);
  EXPECT_NE(report_html(failed).find(">Jobs</h2>"), std::string::npos);
}

TEST_F(Report, AResumedRunShowsItsJointsAndAllEvaluations) {
  example::write_run(folder_.path(), example::plan(), 40);
  const std::string log = folder_.path("steps.rank3.jsonl"), text = *read_file(log);
  const std::string header = text.substr(0, text.find('\n') + 1);
  const std::size_t middle = text.find("{\"step\":25,");
  ASSERT_NE(middle, std::string::npos);
  example::write(log, text.substr(0, middle) +
                          "{\"after_step\":20,\"of\":\"evaluation\",\"loss\":1.5,\"top1\":0.25}\n" + header +
                          text.substr(middle) +
                          "{\"after_step\":40,\"of\":\"evaluation\",\"loss\":1.25,\"top1\":0.5}\n");
  const RunData run = read();
  EXPECT_EQ(run.ranks[3].joints, std::vector<std::int64_t>{25});
  EXPECT_TRUE(run.ranks[0].joints.empty());
  ASSERT_EQ(run.evaluations.items().size(), 2u) << "the summary has those of its own part only";
  const std::string html = report_html(run);
  for (const char* part :
       {"resumed after step 25", "Dashed upright lines", "<b>50.0 %</b>", "evaluation: 1.5 at 20"})
    EXPECT_NE(html.find(part), std::string::npos) << part;
  EXPECT_EQ(count(html, "class=\"mark\""), 8u) << "loss, top-1, rate and throughput, wide and narrow";
  EXPECT_EQ(html.find(">after_step<"), std::string::npos) << "that is no metric";
}

TEST_F(Report, TheMeasuredStepIsOneNumber) {
  example::write_run(folder_.path(), example::plan(), 60);
  // The traced steps took half as long as the others.
  RunData run = read();
  for (RankRun& rank : run.ranks)
    for (StepLine& line : rank.steps) line.step_s *= 2;
  const Result<ErrorSplit> split = split_error(run);
  ASSERT_TRUE(split) << to_string(split.problems());
  EXPECT_EQ(split->measured_s, compare(run).measured_step_s);
  EXPECT_LT(split->traced_s, 0.6 * split->measured_s);
  EXPECT_NEAR(
      (1 + split->of_times()) * (1 + split->of_jitter()) * (1 + split->of_model()) * (1 + split->of_steps()),
      split->measured_s / split->predicted_s, 1e-9)
      << "each error is between two neighbours";
  EXPECT_NE(
      report_html(run).find("measured, the median of all steps</td><td>" + duration_text(split->measured_s)),
      std::string::npos);
}

TEST(SvgChart, OnePointIsSeenAndCountsHaveWholeTicks) {
  const std::string svg =
      line_chart_svg({.title = "t", .whole_x = true, .marks = {1, 7}, .mark_name = "resumed"},
                     {{.name = "loss", .colour = "red", .points = {{1, 2.5}}}});
  EXPECT_NE(svg.find("<circle"), std::string::npos);
  EXPECT_NE(svg.find(">0</text>"), std::string::npos);
  EXPECT_EQ(svg.find(">0.9"), std::string::npos);
  EXPECT_EQ(count(svg, "class=\"mark\""), 1u) << "7 is outside";
  EXPECT_EQ(first_bad_tag(svg), "");
}

TEST(SvgChart, ManyDotsStayApart) {
  const auto widest = [](int dots) {
    Series series{.name = "evaluation", .colour = "red", .style = Series::Style::Dots};
    for (int i = 0; i < dots; ++i) series.points.emplace_back(i, 1.0);
    const std::string svg = line_chart_svg({.title = "t"}, {series});
    return std::stod(svg.substr(svg.rfind(" r=\"") + 4));
  };
  EXPECT_GT(widest(10), widest(60));
  EXPECT_LE(2 * widest(60) * 60, 468 + 60) << "no wider than the picture";
}

TEST(SvgChart, LongSeriesAreThinnedAndKeepTheirSpikes) {
  Series series{.name = "loss", .colour = "red"};
  for (int i = 0; i < 100'000; ++i) series.points.emplace_back(i, i == 77'777 ? 50.0 : 1.0);
  const std::string spiky = line_chart_svg({.title = "t"}, {series});
  EXPECT_LT(spiky.size(), 20'000u);
  series.points[77'777].second = 1;
  EXPECT_NE(line_chart_svg({.title = "t"}, {series}), spiky);
}

TEST(SvgChart, OddInputDrawsSomething) {
  const std::vector<std::vector<std::pair<double, double>>> odd{
      {}, {{0, 0}}, {{0, NAN}, {1, INFINITY}}, {{5, 1e-300}, {6, 1e300}}, {{0, -1}, {1, -1}}};
  for (const auto& points : odd) {
    const std::string svg =
        line_chart_svg({.title = "<t>"}, {{.name = "a&b", .colour = "blue", .points = points}});
    EXPECT_EQ(svg.find("nan"), std::string::npos);
    EXPECT_EQ(svg.find("inf"), std::string::npos);
    EXPECT_EQ(first_bad_tag(svg), "");
    EXPECT_LT(svg.size(), 20'000u);
  }
}

TEST(SvgChart, TicksAreRoundAndCoverTheRange) {
  for (const auto& [low, high] :
       std::vector<std::pair<double, double>>{{0, 1}, {0.13, 0.97}, {-5, 1234}, {1e-9, 2e-9}}) {
    const auto [first, step] = round_ticks(low, high, 5);
    EXPECT_GE(first, low - step * 1e-6);
    EXPECT_GE((high - low) / step, 1.9);
    EXPECT_LE((high - low) / step, 5.1);
  }
}

TEST(SvgChart, SmoothingKeepsAConstantAndIsUnbiasedAtTheStart) {
  for (const auto& [x, y] : smoothed({{0, 3}, {1, 3}, {2, 3}}, 10)) EXPECT_NEAR(y, 3, 1e-12);
  EXPECT_EQ(smoothed({{0, 1}, {1, 5}}, 1)[1].second, 5);
}

TEST(PlanDrawing, Texts) {
  EXPECT_EQ(bytes_text(12), "12 B");
  EXPECT_EQ(bytes_text(1536), "1.50 KiB");
  EXPECT_EQ(bytes_text(98 * kMiB), "98.0 MiB");
  EXPECT_EQ(ranks_text({RankId(3)}), "rank 3");
  EXPECT_EQ(ranks_text({RankId(0), RankId(1), RankId(2)}), "ranks 0–2");
  EXPECT_EQ(ranks_text({RankId(0), RankId(4)}), "ranks 0, 4");
  EXPECT_EQ(duration_figure(0.0123), "12.3 ms");
  EXPECT_EQ(duration_figure(2), "2.00 s");
  EXPECT_EQ(duration_figure(0.00014345), "143 µs");
}

TEST(PlanDrawing, EveryBoxIsWithinTheWidth) {
  Plan plan = example::plan();
  for (int stages : {1, 2, 4, 5, 8, 17}) {
    plan.stages.resize(stages, plan.stages[1]);
    plan.crossings.clear();
    for (int s = 1; s < stages; ++s) plan.crossings.push_back({StageId(s - 1), StageId(s), 4096});
    if (stages > 5) {
      plan.crossings.push_back({StageId(0), StageId(stages - 1), 4096});
      plan.crossings.push_back({StageId(1), StageId(3), 4096});
      plan.crossings.push_back({StageId(1), StageId(6), 4096});
    }
    for (int width : {1096, 380}) {
      const std::string svg = plan_svg(plan, width);
      EXPECT_EQ(first_bad_tag(svg), "");
      EXPECT_EQ(count(svg, "class=\"box\""), static_cast<std::size_t>(stages));
      EXPECT_EQ(count(svg, "class=\"arrow\""), plan.crossings.size());
      double picture_width = 0, picture_height = 0;
      ASSERT_EQ(std::sscanf(svg.c_str() + svg.find("viewBox"), "viewBox=\"0 0 %lf %lf", &picture_width,
                            &picture_height),
                2);
      EXPECT_LE(picture_width, width);
      for (std::size_t at = svg.find("class=\"box\""); at != std::string::npos;
           at = svg.find("class=\"box\"", at + 1)) {
        double x, y, w, h;
        ASSERT_EQ(
            std::sscanf(svg.c_str() + at, "class=\"box\" x=\"%lf\" y=\"%lf\" width=\"%lf\" height=\"%lf\"",
                        &x, &y, &w, &h),
            4);
        EXPECT_LE(x + w, picture_width);
        EXPECT_LE(y + h, picture_height);
      }
      for (std::size_t at = svg.find(" d=\"M"); at != std::string::npos; at = svg.find(" d=\"M", at + 1)) {
        if (svg.compare(at, 7, " d=\"M0 ") == 0) continue;  // the arrow head
        const char* point = svg.c_str() + at + 4;
        int x = 0, y = 0, used = 0;
        while (std::sscanf(point, "%*[ML]%d %d%n", &x, &y, &used) == 2) {
          EXPECT_TRUE(x >= 0 && x <= picture_width && y >= 0 && y <= picture_height)
              << stages << ": " << x << " " << y;
          point += used;
        }
      }
    }
  }
}

TEST(TimeBars, ShowWhatThereIs) {
  EXPECT_EQ(time_bars_html({}, {}), "");
  const std::string html =
      time_bars_html({{"a<b", "#111111"}, {"none", "#222222"}}, {{"r&1", {2, 0}}, {"r2", {1, 1e-9}}});
  EXPECT_EQ(first_bad_tag(html), "");
  EXPECT_NE(html.find("a&lt;b"), std::string::npos);
  EXPECT_EQ(html.find("none"), std::string::npos) << "not in the legend either";
}

TEST(Figures, HaveThreeDigits) {
  EXPECT_EQ(figure(0), "0.000");
  EXPECT_EQ(figure(0.2104), "0.210");
  EXPECT_EQ(figure(4.236), "4.24");
  EXPECT_EQ(figure(9.996), "10.0");
  EXPECT_EQ(figure(31.77), "31.8");
  EXPECT_EQ(figure(99.97), "100");
  EXPECT_EQ(figure(305.04), "305");
  EXPECT_EQ(figure(10'441), "10,441");
  EXPECT_EQ(figure(-1'234'567), "-1,234,567");
  EXPECT_EQ(figure(NAN), "–");
}

TEST(PlanDrawing, DrawsEveryCrossingOnce) {
  Plan plan = example::plan();
  plan.crossings.push_back({StageId(0), StageId(2), 4096});
  const std::string svg = plan_svg(plan);
  EXPECT_EQ(count(svg, "class=\"arrow\""), 3u);
  EXPECT_EQ(count(svg, "class=\"box\""), 3u);
  EXPECT_NE(svg.find("4.00 KiB"), std::string::npos);
  plan.crossings.clear();
  EXPECT_EQ(count(plan_svg(plan), "class=\"arrow\""), 2u) << "the chain";
  EXPECT_EQ(first_bad_tag(svg), "");
}

TEST(LineChart, LongNumbersOfTheAxisAreWhole) {
  for (const double last : {1e6, 999'999.0, 12e6}) {
    const std::string svg =
        line_chart_svg({.title = "Loss", .x_label = "step", .width = 380, .whole_x = true},
                       {{.points = {{0, 1}, {last, 2}}}});
    int found = 0;
    for (std::size_t at = 0; (at = svg.find("text-anchor=\"middle\">", at + 1)) != std::string::npos;
         ++found) {
      const std::size_t begin = at + 21, x = svg.rfind("x=\"", at) + 3;
      const std::string label = svg.substr(begin, svg.find('<', begin) - begin);
      EXPECT_LE(std::stod(svg.substr(x)) + 3.3 * double(label.size()), 380.01) << label;
      EXPECT_EQ(std::fmod(std::stod(label), 1000), 0) << label;
    }
    EXPECT_GE(found, 4);
  }
}

}  // namespace
}  // namespace millrace
