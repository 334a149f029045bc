#include "experiments/runs/run_counters.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "experiments/export/event_log.h"
#include "experiments/report/counters_card.h"
#include "experiments/report/report.h"
#include "runtime/base/json.h"
#include "tests/driver/temporary_folder.h"

namespace millrace {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000, kDay = 1'700'000'000 * kSecond;

class RunCounters : public testing::Test {
 protected:
  /// Two steps of half a second an epoch, on a rank whose clock shows `clock_ns` at kDay.
  void write_steps(int rank, std::int64_t clock_ns, std::int64_t unix_error_ns = 0) {
    std::string lines = Json::object({{"format", "millrace-steps-1"},
                                      {"rank", rank},
                                      {"stage", rank},
                                      {"ranks", 2},
                                      {"clock_ns", clock_ns},
                                      {"unix_ns", kDay + unix_error_ns},
                                      {"clock_offset_ns", -unix_error_ns},
                                      {"clock_round_trip_ns", rank}})
                            .dump() +
                        "\n";
    for (int step = 0; step < 4; ++step) {
      const double ended_s = static_cast<double>(clock_ns) * 1e-9 + 0.5 * (step + 1);
      lines +=
          Json::object({{"step", step}, {"loss", 1.0}, {"step_s", 0.5}, {"ended_s", ended_s}}).dump() + "\n";
    }
    const std::string number = std::to_string(rank);
    folder_.write("steps.rank" + number + ".jsonl", lines);
    folder_.write("trace.rank" + number + ".json", spans_to_json({{.kind = SpanKind::Forward,
                                                                   .stage = static_cast<std::int16_t>(rank),
                                                                   .microbatch = 0,
                                                                   .step = 1,
                                                                   .start = clock_ns + kSecond / 2 + rank,
                                                                   .end = clock_ns + kSecond + rank}}));
  }
  static std::string sample(double at_s, double cpu_s, double by_calls, double from_disk,
                            bool has_io = true) {
    Json process = Json::object({{"cpu_s", cpu_s}, {"threads", 3}, {"resident_bytes", 1 << 20}});
    if (has_io) {
      process["read_by_calls_bytes"] = by_calls;
      process["read_from_disk_bytes"] = from_disk;
    }
    Json line = Json::object({{"clock_ns", static_cast<std::int64_t>(at_s * 1e9)}, {"process", process}});
    Json busy = Json::array();
    busy.push_back(cpu_s), busy.push_back(2 * cpu_s);
    line["cores"] = Json::object({{"busy_s", busy}});
    line["disks"] = Json::object(
        {{"sda", Json::object({{"reads", 10 * at_s}, {"read_ms", 50 * at_s}, {"read_bytes", 1e6 * at_s}})}});
    Json missing = Json::array();
    missing.push_back("process_io");
    if (!has_io) line["missing"] = missing;
    return line.dump() + "\n";
  }
  static std::string header(int rank) {
    return Json::object({{"format", "millrace-counters-1"},
                         {"rank", rank},
                         {"ranks", 1},
                         {"host", "one<two"},
                         {"of_host", true},
                         {"clock_ns", 0},
                         {"unix_ns", kDay + 5},
                         {"clock_offset_ns", -5}})
               .dump() +
           "\n";
  }
  TemporaryFolder folder_;
};

TEST_F(RunCounters, AreReadWithGapsAndGrowBetweenSamples) {
  folder_.write(
      "counters.rank0.jsonl",
      header(0) + sample(0, 0, 0, 0) +
          "{\"cache\":\"start\",\"files\":2,\"bytes\":4000000,\"resident_bytes\":1000000,\"whole\":false}\n" +
          sample(1, 0.5, 0, 0, false) + sample(2, 1, 8e6, 2e6) + "{\"clock_ns\":2");
  const std::vector<ProcessCounters> all = read_counters(folder_.path());
  ASSERT_EQ(all.size(), 1u);
  const ProcessCounters& one = all.front();
  EXPECT_FALSE(one.is_ended);
  EXPECT_EQ(one.damaged, 1);
  EXPECT_EQ(one.unix_ns, (std::vector<std::int64_t>{kDay, kDay + kSecond, kDay + 2 * kSecond}));
  ASSERT_TRUE(one.find("process.read_by_calls_bytes"));
  EXPECT_TRUE(std::isnan((*one.find("process.read_by_calls_bytes"))[1])) << "a gap is no zero";
  EXPECT_EQ(one.missing.at("process_io").first, 1);
  EXPECT_EQ((*one.find("cores.busy_s.1"))[2], 2);
  EXPECT_EQ(one.between("disks.", ".reads"), std::vector<std::string>{"sda"});
  EXPECT_DOUBLE_EQ(one.growth("process.read_by_calls_bytes", kDay, kDay + kSecond / 2), 2e6);
  EXPECT_DOUBLE_EQ(one.growth("process.read_by_calls_bytes", kDay - kSecond, kDay + kSecond * 9), 8e6);
  EXPECT_TRUE(std::isnan(one.growth("absent", kDay, kDay + 1)));
  ASSERT_EQ(one.cache.size(), 1u);
  EXPECT_FALSE(one.cache.front().is_whole);
}

TEST_F(RunCounters, OfALongRunAreThinnedAndEndAsTheyEnd) {
  std::string lines = header(0);
  constexpr int kSamples = 4'500;
  for (int i = 0; i < kSamples; ++i) lines += sample(i, i, i, i);
  folder_.write("counters.rank0.jsonl",
                lines + "{\"end\":true,\"samples\":4500,\"skipped\":1,\"missing\":{},\"own_cpu_s\":0.25}\n");
  const std::vector<ProcessCounters> all = read_counters(folder_.path());
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all.front().samples, kSamples);
  EXPECT_LE(all.front().unix_ns.size(), 2'001u);
  EXPECT_EQ(all.front().find("process.cpu_s")->back(), kSamples - 1);
  EXPECT_EQ(all.front().skipped, 1);
  EXPECT_EQ(all.front().own_cpu_s, 0.25);
  EXPECT_TRUE(all.front().is_ended);
}

TEST_F(RunCounters, AreDrawnWithTheBytesOfEachEpoch) {
  write_steps(0, 0);
  folder_.write("summary.json",
                R"({"format":"millrace-summary-1","model":"mlp","steps":4,"steps_per_epoch":2})");
  folder_.write("counters.rank0.jsonl", header(0) + sample(0, 0, 0, 0) + sample(1, 0.5, 6e6, 6e6) +
                                            sample(2, 1, 14e6, 6e6) + sample(2.5, 1, 14e6, 6e6, false));
  const Result<RunData> run = read_run(folder_.path());
  ASSERT_TRUE(run) << to_string(run.problems());
  const std::string html = counters_html(*run);
  EXPECT_NE(html.find("<td>1</td><td>1.00</td><td>6.00</td><td>6.00</td><td>0</td>"), std::string::npos)
      << html;
  EXPECT_NE(html.find("<td>2</td><td>1.00</td><td>8.00</td><td>0</td><td>8.00</td>"), std::string::npos)
      << html;
  EXPECT_NE(html.find("process_io is missing in 1 of 4 samples"), std::string::npos) << html;
  EXPECT_NE(html.find("the counters have no end"), std::string::npos);
  for (const char* part : {"Processors", "Memory", "Disks", "Time of a disk"})
    EXPECT_NE(html.find(part), std::string::npos) << part;
  EXPECT_EQ(html.find("Networks"), std::string::npos) << "nothing is known of them";
  EXPECT_EQ(html.find("one<two"), std::string::npos) << "names are escaped";
  EXPECT_NE(report_html(*run).find("Bytes from disk and from the cache"), std::string::npos);
  const Result<EventLog> log = read_event_log(folder_.path());
  ASSERT_TRUE(log);
  EXPECT_TRUE(std::ranges::any_of(log->values, [](const LoggedValue& value) {
    return value.name == "process.read_by_calls_bytes per s" && value.value == 8e6 &&
           value.time == kDay + 2 * kSecond;
  }));
}

TEST_F(RunCounters, ARunWithoutThemHasNoCard) {
  write_steps(0, 0);
  const Result<RunData> run = read_run(folder_.path());
  ASSERT_TRUE(run);
  EXPECT_EQ(counters_html(*run), "");
}

TEST_F(RunCounters, OffsetsOfClocksAreRemovedWhereRanksAreMerged) {
  write_steps(0, 7 * kSecond);
  write_steps(1, 7 * kSecond);
  const Result<RunData> plain = read_run(folder_.path());
  ASSERT_TRUE(plain);
  const Result<EventLog> plain_log = read_event_log(folder_.path());
  // The other host was started an hour later, and its time of day is 3 s ahead.
  write_steps(1, 7 * kSecond - 3600 * kSecond, 3 * kSecond);
  const Result<RunData> merged = read_run(folder_.path());
  ASSERT_TRUE(merged);
  for (const std::size_t rank : {0, 1}) {
    EXPECT_EQ(merged->ranks[rank].spans.front().start,
              7 * kSecond + kSecond / 2 + static_cast<std::int64_t>(rank));
    EXPECT_EQ(merged->ranks[rank].unix_offset_ns, plain->ranks[rank].unix_offset_ns);
    for (std::size_t s = 0; s < 4; ++s)
      EXPECT_NEAR(
          static_cast<double>(*merged->ranks[rank].steps[s].unix_ns - *plain->ranks[rank].steps[s].unix_ns),
          0, 1000)
          << "ended_s has digits for less than a microsecond";
  }
  const Result<EventLog> merged_log = read_event_log(folder_.path());
  ASSERT_TRUE(plain_log && merged_log);
  ASSERT_EQ(merged_log->spans.size(), plain_log->spans.size());
  for (std::size_t i = 0; i < merged_log->spans.size(); ++i)
    EXPECT_EQ(merged_log->spans[i].start, plain_log->spans[i].start);
}

}  // namespace
}  // namespace millrace
