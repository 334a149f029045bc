// Charts with many series: everything is inside of the picture, and no name lies over another, the title or
// the axes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "experiments/drawing/svg_chart.h"
#include "experiments/io/experiment/experiment_report.h"
#include "experiments/io/instrument/instrument_charts.h"
#include "experiments/io/stalls/stall_figures.h"
#include "tests/driver/temporary_folder.h"

namespace millrace {
namespace {

struct Box {
  double left = 0, top = 0, right = 0, bottom = 0;
  std::string what;
  bool is_text = false;
  bool meets(const Box& other) const {
    return left < other.right && other.left < right && top < other.bottom && other.top < bottom;
  }
};

std::string attribute_of(const std::string& tag, const std::string& name, const std::string& fallback = "0") {
  const std::size_t at = tag.find(" " + name + "=\"");
  if (at == std::string::npos) return fallback;
  const std::size_t begin = at + name.size() + 3;
  return tag.substr(begin, tag.find('"', begin) - begin);
}

/// The boxes of all texts and rectangles. A character is taken for 0.55 of its font's size wide (bold: 0.6),
/// which is a little more than digits are.
std::vector<Box> boxes_of(const std::string& svg) {
  std::vector<Box> boxes;
  static const std::regex element("<(rect|text|circle)\\b([^>]*)>");
  for (std::sregex_iterator match(svg.begin(), svg.end(), element), end; match != end; ++match) {
    const std::string kind = (*match)[1], tag = (*match)[2];
    const auto number = [&](const std::string& name) { return std::stod(attribute_of(tag, name)); };
    if (kind == "circle") {
      const double x = number("cx"), y = number("cy"), r = number("r");
      boxes.push_back({x - r, y - r, x + r, y + r, "circle", false});
    } else if (kind == "rect") {
      if (attribute_of(tag, "width").ends_with('%')) continue;  // the ground
      const double x = number("x"), y = number("y");
      boxes.push_back({x, y, x + number("width"), y + number("height"), "rect", false});
    } else {
      const std::size_t begin = static_cast<std::size_t>(match->position() + match->length());
      std::string words = svg.substr(begin, svg.find("</text>", begin) - begin);
      static const std::regex whole_name("<title>[^<]*</title>"), escape("&[a-z]+;");
      words = std::regex_replace(words, whole_name, "");
      const std::size_t small_from = words.find("<tspan");  // the unit after a title
      const std::string small =
          small_from == std::string::npos ? "" : words.substr(words.find('>', small_from) + 1);
      words = words.substr(0, small_from) + small.substr(0, small.find('<'));
      words = std::regex_replace(words, escape, "&");
      const std::string in_class = attribute_of(tag, "class", "");
      const bool bold = in_class == "title" || tag.find("bold") != std::string::npos;
      const double size = std::stod(attribute_of(tag, "font-size",
                                                 in_class == "title"  ? "14"
                                                 : in_class == "tick" ? "11.5"
                                                                      : "12"));
      const auto characters = std::ranges::count_if(words, [](char c) { return (c & 0xc0) != 0x80; });
      const auto small_characters = static_cast<double>(std::min(small.size(), small.find('<')));
      const double wide = (static_cast<double>(characters) - small_characters) * size * (bold ? 0.6 : 0.55) +
                          small_characters * 11.5 * 0.55 + (small.empty() ? 0 : 8);
      const std::string anchor = attribute_of(tag, "text-anchor", "start");
      const double shift = anchor == "end" ? wide : anchor == "middle" ? wide / 2 : 0;
      const double x = number("x"), y = number("y");
      const bool upwards = tag.find("rotate(-90") != std::string::npos;
      boxes.push_back(upwards
                          ? Box{x - 0.75 * size, y - wide + shift, x + 0.2 * size, y + shift, words, true}
                          : Box{x - shift, y - 0.75 * size, x - shift + wide, y + 0.2 * size, words, true});
    }
  }
  return boxes;
}

/// Fails for each box outside of the picture, and for texts over each other.
void expect_tidy(const std::string& svg, const std::string& what) {
  static const std::regex view("viewBox=\"0 0 ([0-9.]+) ([0-9.]+)\"");
  std::smatch size;
  ASSERT_TRUE(std::regex_search(svg, size, view)) << what;
  const double width = std::stod(size[1]), height = std::stod(size[2]);
  const std::vector<Box> boxes = boxes_of(svg);
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    const Box& box = boxes[i];
    EXPECT_TRUE(box.left >= -0.01 && box.top >= -0.01 && box.right <= width + 0.01 &&
                box.bottom <= height + 0.01)
        << what << ": '" << box.what << "' from " << box.left << "," << box.top << " to " << box.right << ","
        << box.bottom << " in " << width << " x " << height;
    for (std::size_t k = 0; box.is_text && k < i; ++k)
      EXPECT_FALSE(boxes[k].is_text && box.meets(boxes[k]))
          << what << ": '" << box.what << "' over '" << boxes[k].what << "'";
  }
}

/// As many series as are asked for, with names as the shipped grids have them.
std::vector<Series> series_of(int count, Series::Style style) {
  std::vector<Series> all;
  for (int i = 0; i < count; ++i) {
    const char* const variants[] = {"original", "instrumented", "sleep", "generated"};
    all.push_back({.name = std::string(variants[i % 4]) + ", " + std::to_string(1 + i / 4) + " ranks",
                   .colour = "#3b76c4",
                   .points = {{1, 20.0 + i}, {2, 30.0 + i}},
                   .style = style});
  }
  return all;
}

TEST(Charts, NoTwoOfTwentySeriesLookAlike) {
  std::set<std::pair<std::string, Series::Style>> looks;
  for (std::size_t i = 0; i < 20; ++i) {
    const Series one = series_number(i, "run");
    looks.emplace(one.colour, one.style);
    EXPECT_EQ(one.style == Series::Style::Line, i < 7);
  }
  EXPECT_EQ(looks.size(), 20u);
}

TEST(Charts, AreTidyWithOneToTwentySeries) {
  for (int count = 1; count <= 20; ++count) {
    for (const int width : {380, 540, 1096}) {
      const Series::Style styles[] = {Series::Style::Line, Series::Style::Dashed, Series::Style::Dots};
      const std::vector<Series> series = series_of(count, styles[count % 3]);
      const std::string svg = line_chart_svg({.title = "unet3d, data kidneys",
                                              .x_label = "samples of a microbatch",
                                              .y_label = "ms a step",
                                              .width = width,
                                              .y_from_zero = true,
                                              .whole_x = true,
                                              .marks = {},
                                              .mark_name = ""},
                                             series);
      expect_tidy(svg, std::to_string(count) + " series, " + std::to_string(width) + " wide");
      for (const Series& one : series)
        EXPECT_NE(svg.find(">" + one.name + "</text>"), std::string::npos) << one.name;
    }
  }
}

TEST(Charts, CutWhatIsWiderThanThePicture) {
  std::vector<Series> series = series_of(3, Series::Style::Line);
  for (Series& one : series) one.name += std::string(150, 'n');
  const std::string svg =
      line_chart_svg({.title = std::string(150, 't'), .x_label = "x", .y_label = "ms"}, series);
  expect_tidy(svg, "long names");
  EXPECT_NE(svg.find("<title>" + series[0].name + "</title>"), std::string::npos) << "the whole name";
}

/// The plot keeps its height: lines of the legend are added to the picture's.
TEST(Charts, GiveTheLegendLinesOfItsOwnWhereItDoesNotFitBesideTheTitle) {
  const auto height = [](int count) {
    const std::string svg = line_chart_svg({.title = "t"}, series_of(count, Series::Style::Line));
    return std::stoi(svg.substr(svg.find("viewBox=\"0 0 540 ") + 17));
  };
  EXPECT_EQ(height(0), 260);
  EXPECT_EQ(height(2), 260);
  EXPECT_GT(height(8), 260);
  EXPECT_GT(height(20), height(8));
}

class EveryGrid : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Shipped, EveryGrid, testing::Values("unet3d", "bert", "dlrm"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(EveryGrid, HasTidyCharts) {
  const Result<ExperimentSpec> spec =
      load_experiment(std::string(MILLRACE_SOURCE_DIR) + "/experiments/grids/" + GetParam() + ".yaml");
  ASSERT_TRUE(spec) << to_string(spec.problems());
  ExperimentResults results;
  for (std::size_t k = 0; k < spec->cells.size(); ++k) {
    const ExperimentCell& cell = spec->cells[k];
    CellResult one{.cell = k};
    for (int step = 0; step < 30; ++step)
      one.step_s.push_back(0.01 * cell.batch * (1 + 0.2 * cell.ranks) + 1e-4 * ((step * 7 + int(k)) % 11));
    one.ranks.assign(std::size_t(cell.ranks), {{"forward", 0.004}, {"backward", 0.006}, {"update", 0.001}});
    results.cells.push_back(std::move(one));
  }
  const std::string page = experiment_report_html(*spec, results);
  int charts = 0;
  for (std::size_t at = 0; (at = page.find("<svg", at)) != std::string::npos; ++charts) {
    const std::size_t end = page.find("</svg>", at);
    expect_tidy(page.substr(at, end - at), GetParam() + (" chart " + std::to_string(charts)));
    at = end;
  }
  EXPECT_GE(charts, 5);
}

TEST(Charts, OfStallsAreTidyWithOneToTwentyModels) {
  const TemporaryFolder folder;
  for (const StallFigure figure :
       {StallFigure::FetchByModel, StallFigure::EpochByCache, StallFigure::EpochAndIdeal,
        StallFigure::SpeedByThreads, StallFigure::PreparationByModel}) {
    // The legend of the speeds alone grows with the models.
    for (int count = figure == StallFigure::SpeedByThreads ? 1 : 20; count <= 20; ++count) {
      FigurePlan plan{.figure = figure, .models = {}, .caches = {}, .threads = {}, .job = {}};
      plan.job.storage.name = "hdd";
      std::vector<FigurePoint> points;
      for (int i = 0; i < count; ++i) {
        FigurePoint point{.model = "shufflenet_v2_x" + std::to_string(i), .cache = 0.05 * (i + 1)};
        point.policy = plan.job.policy;
        point.fetch_share = point.preparation_share = {0.3, 0.01};
        point.compute_s = point.copy_s = point.preparation_s = point.fetch_s = {2, 0};
        point.epoch_s = {8, 0.2};
        for (point.threads = 1; point.threads <= (figure == StallFigure::SpeedByThreads ? 3 : 1);
             ++point.threads) {
          point.speed = {1000.0 * point.threads + 100 * i, 10};
          points.push_back(point);
        }
        if (figure == StallFigure::EpochAndIdeal) {
          points.push_back(point);
          points.back().policy = CachePolicy::Lru;
        }
      }
      const Result<std::vector<std::string>> files = write_figure(folder.path(), plan, points);
      ASSERT_TRUE(files);
      expect_tidy(folder.read("figure" + to_string(figure) + ".svg"),
                  "figure " + to_string(figure) + " of " + std::to_string(count));
    }
  }
}

TEST(Charts, OfStepTimesAreTidyWithOneToTwentyNumbersOfRanks) {
  const TemporaryFolder folder;
  for (int count = 1; count <= 20; ++count) {
    StepData data;
    for (int i = 0; i < count; ++i)
      for (const int batch : {2, 4, 8})
        data.by_configuration[{1 + i, batch}] = {
            {"step_end", {0.1, 0.2}}, {"all_compute", {0.10, 0.11, 0.12, 0.13}}, {"load_batch_mem", {0.01}}};
    const Result<std::vector<std::string>> files = draw_charts(
        data, {.out = folder.path(), .label = "UNET3D", .title = "", .figures = {Figure::Breakdown}});
    ASSERT_TRUE(files);
    expect_tidy(folder.read("UNET3D_step_breakdown.svg"), std::to_string(count) + " numbers of ranks");
  }
}

}  // namespace
}  // namespace millrace
