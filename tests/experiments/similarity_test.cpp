// tracesim/1 has the properties of its definition, and the pictures hold what they should.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "experiments/io/trace/similarity.h"
#include "experiments/io/trace/timeline_plot.h"
#include "runtime/base/files.h"
#include "runtime/base/random.h"
#include "tests/experiments/trace_run.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

class ProcessedRuns : public testing::Test {
 protected:
  Timeline processed(const std::string& name, GenerateRunOptions options) {
    PreprocessOptions how = preprocess_options(folder_, make_run(folder_, name, options));
    how.workload = options.workload;
    const Result<PreprocessReport> report = preprocess(how);
    EXPECT_TRUE(report) << problems_of(report);
    Result<Timeline> timeline = read_timeline(how.out + "/" + name);
    EXPECT_TRUE(timeline) << to_string(timeline.problems());
    return *timeline;
  }
  RunProfile profile(const std::string& name, GenerateRunOptions options) {
    const Result<RunProfile> result = profile_run(processed(name, options));
    EXPECT_TRUE(result) << to_string(result.problems());
    return *result;
  }
  TemporaryFolder folder_;
};

TEST_F(ProcessedRuns, SimilarityFallsWithDistance) {
  const RunProfile run = profile("run", {.seed = 1}), again = profile("again", {.seed = 1});
  const RunProfile seed = profile("seed", {.seed = 2}),
                   emulated = profile("emulated", {.variant = RawRunVariant::Emulated});
  const RunProfile other = profile("other", {.workload = TracedWorkload::Dlrm});
  const double same = similarity(run, again).total, other_seed = similarity(run, seed).total;
  const double twin = similarity(run, emulated).total, other_workload = similarity(run, other).total;
  EXPECT_EQ(same, 1.0);
  EXPECT_LT(other_seed, 1.0);
  EXPECT_GT(other_seed, twin);
  EXPECT_GT(twin, other_workload);
  EXPECT_GE(other_workload, 0.0);
  for (const RunProfile* a : {&run, &seed, &emulated, &other}) {
    EXPECT_EQ(similarity(*a, *a).total, 1.0);
    for (const RunProfile* b : {&run, &seed, &emulated, &other}) {
      EXPECT_DOUBLE_EQ(similarity(*a, *b).total, similarity(*b, *a).total);
      EXPECT_LE(similarity(*a, *b).total, 1.0);
    }
  }
}

TEST(Similarity, OfAClassByHand) {
  RunProfile a, b;
  PhaseProfile& pa = a.phases[1];
  PhaseProfile& pb = b.phases[1];
  pa.seconds = a.seconds = 10;
  pb.seconds = b.seconds = 10;
  ClassProfile& ca = pa.classes[3];
  ca.count = 2, ca.starts[0] = 1, ca.starts[99] = 1, ca.durations = {1, 2}, ca.busy = 0.3;
  ClassProfile& cb = pb.classes[3];
  cb.count = 4, cb.starts[0] = 4, cb.durations = {2, 2, 3, 3}, cb.busy = 0.8;
  // count 1/2, shape 1/2, latency 1 - 1/2, busy 1/2.
  EXPECT_DOUBLE_EQ(similarity(a, b).total, 0.5);
  // A class that only one has is 0, weighted by its events: (6 * 0.5 + 6 * 0) / 12.
  pb.classes[4].count = 6;
  EXPECT_DOUBLE_EQ(similarity(a, b).total, 0.25);
  // A phase that only one has: 0, with half its share as weight.
  b.phases[2].seconds = 10, b.seconds = 20;
  EXPECT_DOUBLE_EQ(similarity(a, b).total, 0.25 * 0.75);
}

TEST(Similarity, KolmogorovSmirnovAgainstItsDefinition) {
  RandomStream random(3);
  for (int round = 0; round < 200; ++round) {
    std::vector<double> a(1 + random.below(20)), b(1 + random.below(20));
    for (double& v : a) v = static_cast<double>(random.below(8));
    for (double& v : b) v = static_cast<double>(random.below(8));
    double most = 0;
    const auto share = [](const std::vector<double>& values, double at) {
      return static_cast<double>(
                 std::count_if(values.begin(), values.end(), [&](double v) { return v <= at; })) /
             static_cast<double>(values.size());
    };
    for (double at = 0; at < 8; ++at) most = std::max(most, std::abs(share(a, at) - share(b, at)));
    std::sort(a.begin(), a.end());
    std::sort(b.begin(), b.end());
    ASSERT_NEAR(ks_similarity(a, b), 1 - most, 1e-12);
  }
}

TEST(Similarity, BootstrapHoldsTheMeanAndShrinksWithRuns) {
  RandomStream random(5);
  const auto matrix = [&](std::size_t n) {
    std::vector<std::vector<double>> scores(n, std::vector<double>(n));
    for (auto& row : scores)
      for (double& v : row) v = 0.9 + 0.05 * random.uniform();
    return scores;
  };
  const auto few = bootstrap_interval(matrix(3), false, 1), many = bootstrap_interval(matrix(30), false, 1);
  ASSERT_TRUE(few && many);
  EXPECT_LE(few->low, few->mean);
  EXPECT_GE(few->high, few->mean);
  EXPECT_LT(many->high - many->low, few->high - few->low);
  EXPECT_FALSE(bootstrap_interval(matrix(2), true, 1)) << "one pair tells nothing of the spread";
  EXPECT_FALSE(bootstrap_interval(matrix(1), false, 1));
}

// ---- pictures

TEST_F(ProcessedRuns, PicturesOfEveryKindHoldTheRun) {
  const Timeline timeline = processed("run", {});
  const std::vector<TimelineGroup>& groups = *timeline.layout("each_parent_and_their_loaders");
  ASSERT_EQ(groups.size(), 4u);
  const Result<TimeExtent> extent = extent_of(timeline, groups);
  ASSERT_TRUE(extent);
  const TimeWindow window{"", extent->first, extent->last};
  const PlotOptions options{.title = "a <run> & more"};
  const Result<std::vector<GroupColumns>> columns = group_columns(groups, window, plot_columns(options));
  ASSERT_TRUE(columns);
  const TimelinePicture picture{&timeline, *extent, window, *columns};
  for (const char* format : {"svg", "png", "pdf"}) {
    const std::string path = folder_.path(std::string("picture.") + format);
    const Status drawn = draw_timeline(picture, options, path);
    ASSERT_TRUE(drawn) << to_string(drawn.problems());
  }
  const std::string svg = file_text(folder_.path("picture.svg"));
  for (const char* text :
       {"Worker 0", "Loader 1", "CPU %", "GPU %", "TRAINING", "a &lt;run&gt; &amp; more", "OPEN"})
    EXPECT_NE(svg.find(text), std::string::npos) << text;
  EXPECT_EQ(file_text(folder_.path("picture.png")).substr(1, 3), "PNG");
  EXPECT_EQ(file_text(folder_.path("picture.pdf")).substr(0, 5), "%PDF-");
  EXPECT_FALSE(draw_timeline(picture, options, folder_.path("picture.bmp")));
  EXPECT_FALSE(draw_timeline(picture, options, folder_.path("absent/picture.png")));
}

TEST_F(ProcessedRuns, APicturesSizeDoesNotGrowWithTheEvents) {
  std::size_t sizes[2];
  for (int i = 0; i < 2; ++i) {
    const Timeline timeline =
        processed("r" + std::to_string(i), {.rows = i == 0 ? 30'000 : 300'000, .seconds = 60});
    const std::vector<TimelineGroup>& groups = *timeline.layout("all_combined");
    const TimeExtent extent = *extent_of(timeline, groups);
    const PlotOptions options;
    const TimeWindow window{"", extent.first, extent.last};
    const TimelinePicture picture{&timeline, extent, window,
                                  *group_columns(groups, window, plot_columns(options))};
    ASSERT_TRUE(draw_timeline(picture, options, folder_.path("p.svg")));
    sizes[i] = file_text(folder_.path("p.svg")).size();
  }
  EXPECT_LT(sizes[1], sizes[0] * 2);
}

TEST_F(ProcessedRuns, ColumnsCoverWhatTheEventsCover) {
  const Timeline timeline = processed("run", {});
  const std::vector<TimelineGroup>& groups = *timeline.layout("all_combined");
  const TimeExtent extent = *extent_of(timeline, groups);
  double expected = 0;
  ASSERT_TRUE(for_each_event(groups[0].file,
                             [&](const TraceEvent& e) { expected += static_cast<double>(e.end - e.start); }));
  for (std::size_t columns : {7u, 100u, 5000u}) {
    const auto found = group_columns(groups, {"", extent.first, extent.last}, columns);
    double covered = 0;
    for (const auto& type : (*found)[0].busy)
      for (float share : type) covered += share;
    const double column_ns = static_cast<double>(extent.last - extent.first) / static_cast<double>(columns);
    EXPECT_NEAR(covered * column_ns, expected, expected * 0.01) << columns;
  }
}

TEST_F(ProcessedRuns, ZoomsAreNamedOrWrittenOut) {
  const Timeline timeline = processed("run", {});
  const TimeExtent extent = *extent_of(timeline, *timeline.layout("all_combined"));
  for (const std::string& name : zoom_names()) {
    const Result<TimeWindow> window = parse_zoom(name, timeline, extent);
    ASSERT_TRUE(window) << name;
    EXPECT_LT(window->from, window->to);
    EXPECT_GE(window->from, extent.first);
    EXPECT_LE(window->to, extent.last);
  }
  EXPECT_EQ(parse_zoom("1.5..2", timeline, extent)->from, extent.first + 1'500'000'000);
  for (const char* wrong : {"", "2..1", "x..y", "1..", "frist-epoch", "900000..900001", "1..nan"})
    EXPECT_FALSE(parse_zoom(wrong, timeline, extent)) << wrong;
}

TEST_F(ProcessedRuns, ThePageHoldsTheEventsAndNothingFromTheNet) {
  const Timeline timeline = processed("run", {});
  const std::vector<TimelineGroup>& groups = *timeline.layout("all_combined");
  const TimeExtent extent = *extent_of(timeline, groups);
  const Result<std::string> exact = timeline_page(timeline, groups, extent, "</script><b>");
  const Result<std::string> coarse = timeline_page(timeline, groups, extent, "x", 10);
  ASSERT_TRUE(exact && coarse);
  EXPECT_NE(exact->find("\"exact\":true"), std::string::npos);
  EXPECT_NE(coarse->find("\"exact\":false"), std::string::npos);
  EXPECT_EQ(exact->find("</script><b>"), std::string::npos);
  EXPECT_EQ(exact->find("http://"), std::string::npos);
  EXPECT_EQ(exact->find("https://"), std::string::npos);
}

TEST_F(ProcessedRuns, ThePageExplainsItself) {
  const Timeline timeline = processed("run", {});
  const std::vector<TimelineGroup>& groups = *timeline.layout("all_combined");
  const Result<std::string> page = timeline_page(timeline, groups, *extent_of(timeline, groups), "t");
  ASSERT_TRUE(page);
  for (const char* part : {"prefers-color-scheme:dark", "id=\"legend\"", "share of the time that they cover",
                           "id=\"tip\"", "'seconds since '+D.start+' UTC'", "name=\"viewport\""})
    EXPECT_NE(page->find(part), std::string::npos) << part;
}

/// Heights of the rectangles of a colour in an SVG of ours, in points.
std::vector<double> heights_of(const std::string& svg, const std::string& colour) {
  std::vector<double> heights;
  for (std::size_t at = svg.find("<rect"); at != std::string::npos; at = svg.find("<rect", at + 1)) {
    const std::string tag = svg.substr(at, svg.find('>', at) - at);
    const std::size_t height = tag.find("height=\"");
    if (tag.find(colour) != std::string::npos && height != std::string::npos)
      heights.push_back(std::stod(tag.substr(height + 8)));
  }
  return heights;
}

TEST_F(ProcessedRuns, HeightIsTheShareOfTimeThatCallsCover) {
  Timeline timeline;
  const TimeExtent extent{0, 1'000'000'000'000};
  // Training and evaluation in turn, 2000 of each: starts alone would paint the strip.
  for (std::int64_t k = 0; k < 2000; ++k) {
    timeline.phases.push_back({k * 500'000'000, k * 500'000'000 + 375'000'000, Phase::Training});
    timeline.phases.push_back({k * 500'000'000 + 375'000'000, (k + 1) * 500'000'000, Phase::Eval});
  }
  const std::size_t columns = plot_columns({});
  GroupColumns group{"g", std::vector<std::vector<float>>(kEventNames.size(), std::vector<float>(columns)),
                     std::vector<std::int64_t>(kEventNames.size())};
  group.busy[3].assign(columns, 0.01F);  // read: one per cent of everything
  group.busy[4].assign(columns, 1.0F);   // write: all the time
  const std::string path = folder_.path("t.svg");
  const TimelinePicture picture{&timeline, extent, {"", extent.first, extent.last}, {group}};
  ASSERT_TRUE(draw_timeline(picture, {}, path));
  const std::string svg = *read_file(path);
  const std::vector<double> reads = heights_of(svg, "#2c9c3f"), writes = heights_of(svg, "#e07b00");
  ASSERT_FALSE(reads.empty());
  ASSERT_FALSE(writes.empty());
  EXPECT_LT(*std::ranges::max_element(reads), 0.35 * *std::ranges::max_element(writes));
  double training = 0, evaluation = 0;
  for (double height : heights_of(svg, "#e6b800")) training = std::max(training, height);
  for (double height : heights_of(svg, "#8a4fd0")) evaluation += height;
  EXPECT_GT(training, 15) << "the strip is 26 high";
  EXPECT_GT(evaluation, 0);
  std::size_t lines = 0;
  for (std::size_t at = svg.find("<line"); at != std::string::npos; at = svg.find("<line", at + 1)) ++lines;
  EXPECT_LT(lines, 300u) << "ticks of phases stand apart";
}

/// A core's time is in one of the panel's lines, whichever of mpstat's columns has it.
TEST_F(ProcessedRuns, TheCpuPanelLeavesNoTimeOut) {
  const Timeline timeline = processed("run", {});
  write_text(timeline.folder + "/cpu_all.csv",
             "timestamp,%usr,%nice,%sys,%iowait,%irq,%soft,%steal,%guest,%gnice,%idle\n"
             "2023-02-11T13:12:00.000000000,1,45,2,3,4,5,6,7,8,19\n");
  const Result<Timeline> read = read_timeline(timeline.folder);
  ASSERT_TRUE(read) << to_string(read.problems());
  ASSERT_TRUE(read->cpu);
  const std::map<std::string, double> truth{
      {"user", 61}, {"system", 11}, {"I/O wait", 3}, {"stolen", 6}, {"idle", 19}};
  double sum = 0;
  for (const auto& [name, percent] : truth) {
    ASSERT_TRUE(read->cpu->column(name)) << name;
    EXPECT_EQ(read->cpu->column(name)->front(), percent) << name;
    sum += percent;
  }
  EXPECT_EQ(sum, 100);
}

TEST_F(ProcessedRuns, DamagedFoldersAreRefusedOrNoted) {
  const Timeline timeline = processed("run", {});
  EXPECT_FALSE(read_timeline(folder_.path("absent")));
  const std::string combined = timeline.layout("all_combined")->front().file;
  fs::remove(timeline.folder + "/gpu_avg.csv");
  const Result<Timeline> without = read_timeline(timeline.folder);
  ASSERT_TRUE(without);
  ASSERT_EQ(without->notes.size(), 1u);
  EXPECT_NE(without->notes[0].find("gpu_avg.csv"), std::string::npos);
  write_text(combined, "garbage\nmore\n");
  EXPECT_FALSE(profile_run(*without));
  write_text(combined, "");
  EXPECT_FALSE(profile_run(*without));
}

}  // namespace
}  // namespace millrace
