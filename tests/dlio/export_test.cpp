// Runs written for other tools, and read back.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>

#include "data/files/tfrecord.h"
#include "experiments/export/exporters.h"
#include "runtime/base/files.h"
#include "runtime/trace/trace.h"
#include "tests/driver/temporary_folder.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

TEST(EventLog, TimesOfTimelinesAreUnixTime) {
  std::int64_t ns = 0;
  ASSERT_TRUE(parse_time("2023-02-11T13:11:22.5", ns));
  EXPECT_EQ(ns, 1676121082'500'000'000);
  ASSERT_TRUE(parse_time("2023-02-11T13:11:22.123456789", ns));
  EXPECT_EQ(ns, 1676121082'123'456'789);
  for (const char* text : {"", "2023-02-11", "2023-02-30T00:00:00", "2023-02-11T25:00:00",
                           "2023-02-11T13:11:22.", "2023-02-11T13:11:22.1234567890", "2023-02-11T13:11:22x"})
    EXPECT_FALSE(parse_time(text, ns)) << text;
}

/// A pipeline run of two ranks with a message each way, whose communication overlaps on a lane.
void write_run(const TemporaryFolder& folder) {
  folder.write(
      "trace.rank0.json",
      spans_to_json(
          {{.kind = SpanKind::Forward, .stage = 0, .microbatch = 0, .step = 1, .start = 0, .end = 1000},
           {.kind = SpanKind::Send,
            .stage = 0,
            .peer = 1,
            .microbatch = 0,
            .step = 1,
            .start = 1000,
            .end = 1800},
           {.kind = SpanKind::Recv,
            .stage = 0,
            .peer = 1,
            .microbatch = 0,
            .step = 1,
            .start = 1500,
            .end = 3000},
           {.kind = SpanKind::Update, .stage = 0, .microbatch = -1, .step = 1, .start = 3000, .end = 3000}}));
  folder.write("trace.rank1.json", spans_to_json({{.kind = SpanKind::Recv,
                                                   .stage = 1,
                                                   .peer = 0,
                                                   .microbatch = 0,
                                                   .step = 1,
                                                   .start = 1000,
                                                   .end = 1900},
                                                  {.kind = SpanKind::Send,
                                                   .stage = 1,
                                                   .peer = 0,
                                                   .microbatch = 0,
                                                   .step = 1,
                                                   .start = 2000,
                                                   .end = 2500}}));
  for (const char* rank : {"0", "1"})
    folder.write(std::string("steps.rank") + rank + ".jsonl",
                 std::string("{\"format\": \"millrace-steps-1\", \"rank\": ") + rank +
                     ", \"stage\": 0, \"ranks\": 2}\n"
                     "{\"step\": 1, \"loss\": 2.5, \"samples_per_s\": 10, \"step_s\": 0.5}\n{\"step\": 2, "
                     "\"loss\": 2.25, \"samples_per_s\": 12, \"step_s\": 0.25}\n");
}

TEST(EventLog, MessagesBecomeArrows) {
  const TemporaryFolder folder;
  write_run(folder);
  const Result<EventLog> log = read_event_log(folder.path());
  ASSERT_TRUE(log) << to_string(log.problems());
  EXPECT_EQ(log->world_size, 2);
  int out = 0, in = 0;
  for (const LoggedSpan& span : log->spans) out += span.flow_out != 0, in += span.flow_in != 0;
  EXPECT_EQ(out, 2);
  EXPECT_EQ(in, 2);
}

TEST(EventLog, NothingToConvertIsAProblem) {
  const TemporaryFolder folder;
  EXPECT_FALSE(read_event_log(folder.path()));
  EXPECT_FALSE(read_event_log(folder.path("absent")));
  folder.write("trace_read.out", "");
  const Result<EventLog> raw = read_event_log(folder.path());
  ASSERT_FALSE(raw);
  EXPECT_NE(to_string(raw.problems()).find("preprocess"), std::string::npos);
  fs::create_directory(folder.path("timeline"));
  folder.write("timeline/timeline.csv", "not,a,time\n");
  EXPECT_FALSE(read_event_log(folder.path()));
}

std::vector<ExportFormat> all_formats() {
  return *parse_export_formats("all");
}

TEST(Exports, FormatsAreNamed) {
  EXPECT_EQ(parse_export_formats("all")->size(), 7u);
  EXPECT_EQ(parse_export_formats("csv,csv,chrome")->size(), 2u);
  EXPECT_FALSE(parse_export_formats("csv,excel"));
  EXPECT_FALSE(parse_export_formats(""));
}

TEST(Exports, EveryFormatIsWrittenAndReplaced) {
  const TemporaryFolder folder;
  write_run(folder);
  const Result<EventLog> log = read_event_log(folder.path());
  ASSERT_TRUE(log);
  for (int round = 0; round < 2; ++round) {
    for (const ExportFormat format : all_formats()) {
      const Exported done = export_log(*log, format, folder.path("export"));
      EXPECT_FALSE(done.files.empty()) << to_string(format);
      EXPECT_GT(done.spans + done.values, 0) << to_string(format);
    }
  }
  const Result<Json> chrome = read_json(folder.path("export/trace.chrome.json"));
  ASSERT_TRUE(chrome) << to_string(chrome.problems());
  EXPECT_EQ(chrome->find("distributedInfo")->find("world_size")->as_int(), 2);
  EXPECT_TRUE(read_json(folder.path("export/trace.rank1.chrome.json")));
  const std::string prom = folder.read("export/metrics.prom");
  EXPECT_NE(prom.find("# TYPE millrace_step_seconds gauge\nmillrace_step_seconds{rank=\"0\"} 0.25\n"),
            std::string::npos)
      << prom;
  EXPECT_NE(prom.find("millrace_steps_total{rank=\"1\"} 2\n"), std::string::npos);
  const std::string mllog = folder.read("export/run.mllog");
  EXPECT_NE(mllog.find("\"key\":\"step_end\",\"value\":{\"duration\":500000000}"), std::string::npos)
      << mllog;
  // One file a rank: TensorBoard adds up all that it finds.
  int events = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder.path("export/tensorboard")))
    events += entry.is_regular_file();
  EXPECT_EQ(events, 2);
}

/// Reads the exports with Perfetto's, TensorBoard's and Python's readers (tests/reference/install).
TEST(Reference, ReadersInPythonReadEveryExport) {
  const char* python = std::getenv("MILLRACE_REFERENCE_PYTHON");
  if (!python) GTEST_SKIP() << "tests/reference/install makes it";
  const TemporaryFolder folder;
  write_run(folder);
  const Result<EventLog> log = read_event_log(folder.path());
  ASSERT_TRUE(log);
  for (const ExportFormat format : all_formats()) export_log(*log, format, folder.path("export"));
  const std::string command = std::string(python) + " " + MILLRACE_SOURCE_DIR +
                              "/tests/reference/read_exports.py " + folder.path("export") + " " +
                              std::to_string(log->spans.size()) + " " + std::to_string(log->values.size()) +
                              " 2";
  EXPECT_EQ(std::system(command.c_str()), 0);
}

}  // namespace
}  // namespace millrace
