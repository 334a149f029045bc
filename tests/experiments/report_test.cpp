#include "experiments/report.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "experiments/plan_drawing.h"
#include "experiments/svg_chart.h"
#include "runtime/schedule/svg.h"
#include "tests/driver/temporary_folder.h"
#include "tests/experiments/example_run.h"

namespace millrace {
namespace {

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++n;
  return n;
}

/// Elements close in the order they open; attribute values hold no raw quote or angle bracket.
std::string first_bad_tag(const std::string& html) {
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
        ">Measured, step 1", ">Progress</h2>", ">Loss<", ">Throughput<", ">Where the time went</h2>",
        ">Ranks</h2>", "Stage 2", "ranks 0–1", "1.56 MiB", "features.13", "evaluation", "83.0 %"}) {
    EXPECT_NE(html.find(part), std::string::npos) << part;
  }
  EXPECT_EQ(html.find(">Notes</h2>"), std::string::npos);
  EXPECT_EQ(count(html, "class=\"gantt"), 2u);
  EXPECT_EQ(first_bad_tag(html), "");
}

TEST_F(Report, IsSelfContained) {
  example::write_run(folder_.path(), example::plan());
  const std::string html = report_html(read());
  EXPECT_NE(html.find("Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\""),
            std::string::npos);
  std::string without_namespaces = html;
  for (std::size_t at;
       (at = without_namespaces.find("xmlns=\"http://www.w3.org/2000/svg\"")) != std::string::npos;)
    without_namespaces.erase(at, 34);
  for (const char* outside : {"http:", "https:", "src=", "href=", "@import", "url(http", "onload"})
    EXPECT_EQ(without_namespaces.find(outside), std::string::npos) << outside;
  EXPECT_EQ(count(html, "<script"), 1u) << "the data";
}

TEST_F(Report, EmbedsItsData) {
  example::write_run(folder_.path(), example::plan());
  const std::string html = report_html(read());
  const std::string open = "id=\"millrace-data\">";
  const std::size_t start = html.find(open) + open.size(), end = html.find("</script>", start);
  const Result<Json> data = parse_json(html.substr(start, end - start), "data");
  ASSERT_TRUE(data) << to_string(data.problems());
  EXPECT_EQ(data->find("model")->as_string(), "vgg16");
  EXPECT_EQ(data->find("losses")->items().size(), 240u);
  EXPECT_EQ(data->find("stages")->items().size(), 3u);
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
  EXPECT_EQ(count(html, "</script>"), 1u);
  EXPECT_EQ(first_bad_tag(html), "");
}

TEST_F(Report, ComparesOneMicrobatchWithOneMicrobatch) {
  example::write_run(folder_.path(), example::plan());
  const Comparison comparison = compare(read());
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
  const Comparison comparison = compare(run);
  EXPECT_NEAR(comparison.predicted_step_s, 0.02, 1e-12);
  EXPECT_NEAR(comparison.stages[1].measured_forward_s / comparison.stages[1].predicted_forward_s, 1.08, 1e-9);
  EXPECT_GT(comparison.stages[0].predicted_versions, 1) << "stashed weights";
  const std::string html = report_html(run);
  EXPECT_NE(html.find("Measured, traced window"), std::string::npos);
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
    // What ran is what was simulated, microbatch by microbatch.
    EXPECT_EQ(labels(measured[r], "forward"), labels(simulated[r], "forward")) << r;
    EXPECT_EQ(labels(measured[r], "backward"), labels(simulated[r], "backward")) << r;
    for (const GanttBar& bar : measured[r].bars) start = std::min(start, bar.start);
  }
  EXPECT_EQ(start, 0);
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

TEST_F(Report, OfAStepDoneTwiceTheLaterCounts) {
  example::write(folder_.path("steps.rank0.jsonl"),
                 "{\"format\":\"millrace-steps-1\",\"rank\":0,\"stage\":0,\"ranks\":1}\n{\"step\":0,\"loss\":"
                 "3.0}\n{\"step\":1,\"loss\":2.0}\n"
                 "{\"format\":\"millrace-steps-1\",\"rank\":0,\"stage\":0,\"ranks\":1}\n{\"step\":1,\"loss\":"
                 "1.5}\n{\"step\":2,\"loss\":\"NaN\"}\n{\"step\":3,\"lo");
  const RunData run = read();
  ASSERT_EQ(run.ranks.at(0).steps.size(), 3u);
  EXPECT_EQ(run.ranks[0].steps[1].loss, 1.5);
  EXPECT_FALSE(run.ranks[0].steps[2].loss) << "NaN is no number";
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
  EXPECT_EQ(first_bad_tag(stacked_bars_svg({}, {}, "ms", 1)), "");
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
  EXPECT_EQ(duration_text(0.0123), "12.3 ms");
  EXPECT_EQ(duration_text(2), "2 s");
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

}  // namespace
}  // namespace millrace
