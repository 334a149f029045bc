#include "runtime/trace/trace.h"

#include <gtest/gtest.h>

#include "runtime/base/json.h"

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

}  // namespace
}  // namespace millrace
