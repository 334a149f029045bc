#include "runtime/trace/trace.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>

#include "runtime/base/json.h"
#include "runtime/trace/trace_windows.h"

namespace millrace {
namespace {

TEST(SpanRing, KeepsTheNewest) {
  SpanRing ring(4);
  for (int i = 0; i < 10; ++i) ring.record({.step = i});
  const auto spans = ring.spans();
  ASSERT_EQ(spans.size(), 4u);
  EXPECT_EQ(spans.front().step, 6);
  EXPECT_EQ(spans.back().step, 9);
}

TEST(SpanRing, GivesTheNewestStepsAlone) {
  SpanRing ring(8);
  for (int step : {1, 1, 2, 2, 2, 3, 3, 3, 3, 4}) ring.record({.step = step});
  EXPECT_EQ(ring.spans_from(3).size(), 5u);
  EXPECT_EQ(ring.spans_from(3).front().step, 3);
  EXPECT_EQ(ring.spans_from(1).size(), 8u) << "what it has";
  EXPECT_TRUE(ring.spans_from(5).empty());
}

TEST(TraceWindows, LieEarlyInTheMiddleAndLate) {
  const auto text = [](std::int64_t first, std::int64_t count, std::int64_t end) {
    std::string all;
    for (const TraceWindow& one : trace_windows(first, count, end))
      all += std::to_string(one.first) + "-" + std::to_string(one.end) + " ";
    return all;
  };
  EXPECT_EQ(text(1, 15, 18'000), "1-6 8998-9003 17995-18000 ");
  EXPECT_EQ(text(100, 7, 200), "100-104 197-200 ");
  EXPECT_EQ(text(1, 5, 1000), "1-6 ") << "too few to divide";
  EXPECT_EQ(text(1, 15, 25), "1-16 ") << "most of the run";
  EXPECT_EQ(text(1, 15, 8), "1-8 ");
  EXPECT_EQ(text(1, 0, 100), "");
  EXPECT_EQ(text(7, 5, 7), "");
  EXPECT_EQ(text(0, 1 << 20, std::int64_t{1} << 60).substr(0, 9), "0-349526 ");
  for (std::int64_t end = 30; end < 60; ++end) {  // apart, and as many as were asked for
    std::int64_t before = 0, steps = 0;
    for (const TraceWindow& one : trace_windows(1, 15, end)) {
      EXPECT_GE(one.first, before) << end;
      EXPECT_LE(one.end, end);
      before = one.end;
      steps += one.end - one.first;
    }
    EXPECT_EQ(steps, 15) << end;
    EXPECT_EQ(before, end == 30 ? 16 : end) << end;
  }
}

TEST(Trace, RoundTripsAndWritesChromeEvents) {
  const std::vector<Span> spans{
      {.kind = SpanKind::Forward, .stage = 1, .microbatch = 3, .step = 2, .start = 1000, .end = 4000},
      {.kind = SpanKind::Wait,
       .stage = 1,
       .peer = 0,
       .microbatch = 4,
       .step = 2,
       .start = 4000,
       .end = 9000}};
  const auto read = spans_from_json(spans_to_json(spans), "t");
  ASSERT_TRUE(read) << to_string(read.problems());
  EXPECT_EQ(spans_to_json(*read), spans_to_json(spans));
  const auto chrome = parse_json(to_chrome_trace({spans}), "c");
  ASSERT_TRUE(chrome);
  const Json& first = chrome->find("traceEvents")->items()[3];
  EXPECT_EQ(first.find("name")->as_string(), "forward 3");
  EXPECT_EQ(first.find("dur")->as_double(), 3.0);
  EXPECT_EQ(first.find("tid")->as_int(), 0);
  EXPECT_EQ(chrome->find("traceEvents")->items()[4].find("tid")->as_int(), 1);
}

TEST(Trace, AFileThatGrowsIsTheFileOfTheWholeList) {
  char name[] = "/tmp/millrace-spans-XXXXXX";
  const std::filesystem::path folder = ::mkdtemp(name), path = folder / "trace.rank0.json";
  std::vector<Span> all;
  for (int i = 0; i < 5; ++i)
    all.push_back({.kind = SpanKind::Update, .step = i, .start = 10 * i, .end = 10 * i + 3});
  {
    SpanFile file(path);
    EXPECT_TRUE(file.add({}));
    EXPECT_TRUE(file.add({all[0], all[1]}));
    EXPECT_TRUE(file.add({all[2], all[3], all[4]}));
    EXPECT_FALSE(std::filesystem::exists(path)) << "it has its name when it is whole";
    EXPECT_TRUE(file.finish());
  }
  EXPECT_EQ(*read_file(path), spans_to_json(all));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace millrace
