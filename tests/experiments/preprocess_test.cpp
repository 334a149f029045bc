// Raw runs to CSVs: the kit's answers on its clean runs, and what is right where it is wrong.
#include <gtest/gtest.h>

#include "experiments/io/trace/civil_time.h"
#include "tests/experiments/trace_run.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

TEST(KitTraces, GoldenRunsAreEqualByteForByte) {
  const char* const data = std::getenv("MILLRACE_DATA");
  if (!data) GTEST_SKIP() << "MILLRACE_DATA is not set";
  const TemporaryFolder folder;
  int compared = 0;
  for (const auto& [run, workload] :
       {std::pair("unet3d_2g4b", TracedWorkload::Unet3d), std::pair("dlrm_2g", TracedWorkload::Dlrm)}) {
    const fs::path kit = fs::path(data) / "kit-traces";
    PreprocessOptions options = preprocess_options(folder, (kit / run).string());
    options.workload = workload;
    const Result<PreprocessReport> report = preprocess(options);
    ASSERT_TRUE(report) << to_string(report.problems());
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(kit / "expected" / run)) {
      if (!entry.is_regular_file()) continue;
      const fs::path relative = fs::relative(entry.path(), kit / "expected" / run);
      EXPECT_TRUE(file_text(entry.path()) == file_text(fs::path(report->folder) / relative))
          << run << " " << relative;
      ++compared;
    }
  }
  EXPECT_GE(compared, 30);
}

class Preprocess : public testing::Test {
 protected:
  Result<PreprocessReport> run(const std::string& raw) {
    return preprocess(preprocess_options(folder_, raw));
  }
  std::string run_text(const std::string& raw) {
    const Result<PreprocessReport> report = run(raw);
    EXPECT_TRUE(report) << problems_of(report);
    return report ? combined_of(*report) : "";
  }
  static std::string trace(const std::string& raw, const char* name) {
    return raw + "/trace_" + name + ".out";
  }
  TemporaryFolder folder_;
};

TEST_F(Preprocess, OtherClocksGiveTheSameUtc) {
  const std::string montreal = run_text(make_run(folder_, "a"));
  ASSERT_GT(montreal.size(), 100'000u);
  for (int hours : {-11, 0, 1, 9}) {
    // The run does not tell its time zone. It follows from the program's log, which is in UTC.
    const std::string raw = make_run(folder_, "z" + std::to_string(hours), {.zone_offset_s = hours * 3600});
    EXPECT_TRUE(run_text(raw) == montreal) << hours;
  }
}

TEST_F(Preprocess, AWrongClockThatWasSaidIsRefused) {
  PreprocessOptions options = preprocess_options(folder_, make_run(folder_, "a"));
  options.zone = TimeZone::fixed(3600);
  const std::string text = problems_of(preprocess(options));
  EXPECT_NE(text.find("with --kit-timezone -05:00 they agree"), std::string::npos) << text;
}

TEST_F(Preprocess, MidnightChangesNothingButTheStamps) {
  const std::string noon = run_text(make_run(folder_, "noon"));
  // The tracers start 10 s before local midnight, so that the reference second is before it and most events
  // after.
  for (std::int64_t before : {3, 10, 30}) {
    const std::int64_t start = *parse_iso("2023-02-12T05:00:00") / kSecond - before;
    const Result<PreprocessReport> report =
        run(make_run(folder_, "m" + std::to_string(before), {.start_utc_s = start}));
    ASSERT_TRUE(report) << problems_of(report);
    EXPECT_EQ(std::count(noon.begin(), noon.end(), '\n'), report->events);
    const std::string cpu = file_text(report->folder + "/timeline/cpu_all.csv");
    EXPECT_NE(cpu.find("2023-02-12T05:00:30"), std::string::npos) << before;
    EXPECT_EQ(cpu.find("2023-02-13"), std::string::npos);
  }
}

TEST_F(Preprocess, AForeignProcessIsNoLoader) {
  const std::string plain = run_text(make_run(folder_, "plain"));
  const Result<PreprocessReport> report =
      run(make_run(folder_, "foreign", {.variant = RawRunVariant::Foreign}));
  ASSERT_TRUE(report) << problems_of(report);
  ASSERT_EQ(report->processes.foreign.size(), 1u);
  EXPECT_EQ(report->processes.foreign[0].first, 991234u);
  EXPECT_EQ(report->processes.loaders.size(), 6u);
  EXPECT_TRUE(combined_of(*report) == plain);
  EXPECT_GT(report->events_dropped.at("READ of processes that are not the run's"), 0);
}

TEST_F(Preprocess, DliosRanksNeedNoGpuAndTheirLogIsFound) {
  const std::string raw = make_run(folder_, "a", {.variant = RawRunVariant::Foreign});
  for (const char* name : {"read", "openat", "bio"}) {
    std::string text = replaced(file_text(trace(raw, name)), ".npy", "_1_of_9.npz");
    write_text(trace(raw, name), replaced(text, " python  ", " python3 "));
  }
  write_text(raw + "/unet3d.log", "");
  write_text(
      raw + "/dlio.log",
      "[INFO] 2023-02-11T13:11:22.000000 Running DLIO\n[INFO] 2023-02-11T13:11:27.000000 Starting epoch 1\n"
      "[INFO] 2023-02-11T13:12:27.000000 Ending epoch 1\n");
  PreprocessOptions options = preprocess_options(folder_, raw);
  options.workload = TracedWorkload::Dlio;
  const Result<PreprocessReport> report = preprocess(options);
  ASSERT_TRUE(report) << problems_of(report);
  EXPECT_EQ(report->processes.parents.size(), 2u + 6u) << "ranks and what they started";
  ASSERT_EQ(report->processes.foreign.size(), 1u);
  EXPECT_EQ(report->processes.foreign[0].first, 991234u);
  EXPECT_NE(combined_of(*report).find("WRITE"), std::string::npos) << "the ranks' checkpoints";
  EXPECT_FALSE(fs::exists(report->folder + "/timeline/pid/each_parent"));
}

TEST_F(Preprocess, AForeignReaderOfTheSameDataIsTheOneTooMany) {
  const std::string raw = make_run(folder_, "a");
  std::istringstream lines(file_text(trace(raw, "read")));
  std::string reads;
  for (std::string line; std::getline(lines, line);) {
    reads += line + "\n";
    if (line.find("  2720700") != std::string::npos) reads += replaced(line, "2720700", "3999999") + "\n";
  }
  ASSERT_NE(reads.find("3999999"), std::string::npos);
  write_text(trace(raw, "read"), reads);
  const Result<PreprocessReport> report = run(raw);
  ASSERT_TRUE(report) << problems_of(report);
  ASSERT_EQ(report->processes.foreign.size(), 1u);
  EXPECT_EQ(report->processes.foreign[0].first, 3999999u);
  EXPECT_EQ(report->processes.loaders.size(), 6u);
}

TEST_F(Preprocess, RepeatedRowsCountOnce) {
  const std::string raw = make_run(folder_, "a");
  const std::string before = run_text(raw);
  for (const char* name : {"read", "bio", "openat", "write"}) {
    std::istringstream lines(file_text(trace(raw, name)));
    std::string twice;
    for (std::string line; std::getline(lines, line);) twice += line + "\n" + line + "\n";
    write_text(trace(raw, name), twice);
  }
  const Result<PreprocessReport> report = run(raw);
  ASSERT_TRUE(report) << problems_of(report);
  EXPECT_TRUE(combined_of(*report) == before);
  const TraceCounts& reads = report->traces[static_cast<std::size_t>(TraceKind::Read)];
  EXPECT_EQ(reads.dropped.at("repeated rows"), reads.kept);
}

TEST_F(Preprocess, SmallMemoryAndManyThreadsGiveTheSameBytes) {
  const std::string raw = make_run(folder_, "a", {.rows = 60'000});
  const std::string expected = run_text(raw);
  for (const auto& [events, threads] : {std::pair(997, 1), std::pair(64, 3), std::pair(10'000, 8)}) {
    PreprocessOptions options = preprocess_options(folder_, raw);
    options.run_events = static_cast<std::size_t>(events);
    options.threads = threads;
    const Result<PreprocessReport> report = preprocess(options);
    ASSERT_TRUE(report) << problems_of(report);
    EXPECT_TRUE(combined_of(*report) == expected) << events;
  }
}

TEST_F(Preprocess, EveryRowIsAccountedFor) {
  const std::string raw = make_run(folder_, "a");
  write_text(trace(raw, "read"), file_text(trace(raw, "read")) + "1380399999999999  2720661  0  40");
  const Result<PreprocessReport> report = run(raw);
  ASSERT_TRUE(report) << problems_of(report);
  for (const TraceCounts& counts : report->traces) {
    std::int64_t dropped = 0;
    for (const auto& [why, count] : counts.dropped) dropped += count;
    EXPECT_EQ(counts.rows, counts.kept + dropped);
  }
  EXPECT_EQ(
      report->traces[static_cast<std::size_t>(TraceKind::Read)].dropped.at("a last row that is cut off"), 1);
}

TEST_F(Preprocess, LayoutsSplitTheCombinedOne) {
  const Result<PreprocessReport> report = run(make_run(folder_, "a", {.gpus = 3}));
  ASSERT_TRUE(report) << problems_of(report);
  for (const char* layout :
       {"each_parent", "parents_combined_loaders_combined", "each_parent_and_their_loaders"}) {
    std::vector<std::string> rows;
    for (const fs::directory_entry& entry :
         fs::directory_iterator(report->folder + "/timeline/pid/" + layout)) {
      if (entry.path().extension() != ".log") continue;
      std::istringstream lines(file_text(entry.path()));
      std::vector<std::string> own;
      for (std::string line; std::getline(lines, line);) own.push_back(line);
      EXPECT_TRUE(std::is_sorted(own.begin(), own.end())) << entry.path();
      rows.insert(rows.end(), own.begin(), own.end());
    }
    std::sort(rows.begin(), rows.end());
    std::string joined;
    for (const std::string& row : rows) joined += row + "\n";
    EXPECT_TRUE(joined == combined_of(*report)) << layout;
  }
}

TEST_F(Preprocess, ASecondRunReplacesTheFirst) {
  const std::string raw = make_run(folder_, "a");
  PreprocessOptions options{.folder =
                                raw};  // into raw/processed, whose log must not be taken for the program's
  const Result<PreprocessReport> first = preprocess(options);
  ASSERT_TRUE(first) << problems_of(first);
  const std::string before = combined_of(*first);
  fs::create_directories(raw + "/processed.partial/timeline");  // an interrupted run leaves such a folder
  const Result<PreprocessReport> second = preprocess(options);
  ASSERT_TRUE(second) << problems_of(second);
  EXPECT_TRUE(combined_of(*second) == before);
  EXPECT_FALSE(fs::exists(raw + "/processed.partial"));
}

TEST_F(Preprocess, TheRawFilesAreNeverOverwritten) {
  const std::string raw = make_run(folder_, "a");
  const std::string gpu = file_text(raw + "/gpu.out");
  const std::string text = problems_of(preprocess({.folder = raw + "/", .out = folder_.path()}));
  EXPECT_NE(text.find("would write over the raw files"), std::string::npos) << text;
  EXPECT_EQ(file_text(raw + "/gpu.out"), gpu);
}

// ---- input that cannot be used: a refusal that says why, and nothing left behind

struct Damage {
  const char* name;
  void (*make)(const std::string& raw);
  const char* says;
};

const Damage kDamages[] = {
    {"missing",
     [](const std::string& raw) { fs::remove(raw + "/trace_bio.out"), fs::remove(raw + "/cpu.out"); },
     "cpu.out: is missing"},
    {"empty_reads", [](const std::string& raw) { write_text(raw + "/trace_read.out", ""); }, "has no row"},
    {"other_layout",
     [](const std::string& raw) {
       fs::copy_file(raw + "/trace_bio.out", raw + "/trace_read.out", fs::copy_options::overwrite_existing);
     },
     "has the columns TIMESTAMP PID COMM DISK"},
    {"other_columns",
     [](const std::string& raw) {
       write_text(raw + "/trace_write.out",
                  replaced(file_text(raw + "/trace_write.out"), "ckpt", "a b c d "));
     },
     "rows are damaged"},
    {"binary", [](const std::string& raw) { write_text(raw + "/trace_read.out", std::string(300'000, 'x')); },
     "is no text of rows"},
    {"no_alignment",
     [](const std::string& raw) { write_text(raw + "/trace_time_align.out", "TIMESTAMP TIME\n"); },
     "shows no change of second"},
    {"two_runs",
     [](const std::string& raw) {
       std::string text = file_text(raw + "/trace_read.out");
       std::string later;
       std::istringstream lines(text);
       for (std::string line; std::getline(lines, line);)
         if (line.starts_with("13803")) later += "13805" + line.substr(5) + "\n";
       write_text(raw + "/trace_read.out", later + text);
     },
     "has a clock that goes back"},
    {"no_gpu",
     [](const std::string& raw) {
       write_text(raw + "/gpu.out", replaced(file_text(raw + "/gpu.out"), "2720661", "77"));
     },
     ""},
    {"other_log",
     [](const std::string& raw) {
       write_text(raw + "/unet3d.log", replaced(file_text(raw + "/unet3d.log"), "1676121", "1576121"));
     },
     "are the log and the traces of one run?"},
    {"no_log", [](const std::string& raw) { fs::remove(raw + "/unet3d.log"); }, "has no log of the program"},
};

class DamagedRun : public testing::TestWithParam<Damage> {};

TEST_P(DamagedRun, IsRefusedWithAReason) {
  const TemporaryFolder folder;
  const std::string raw = make_run(folder, "a");
  GetParam().make(raw);
  if (std::string(GetParam().name) == "no_gpu")
    write_text(raw + "/gpu.out", replaced(file_text(raw + "/gpu.out"), "2720662", "78"));
  const Result<PreprocessReport> report = preprocess(preprocess_options(folder, raw));
  ASSERT_FALSE(report);
  EXPECT_NE(to_string(report.problems()).find(GetParam().says), std::string::npos)
      << to_string(report.problems());
  EXPECT_FALSE(fs::exists(folder.path("out") + "/a")) << "half results";
  EXPECT_FALSE(fs::exists(folder.path("out") + "/a.partial"));
}

INSTANTIATE_TEST_SUITE_P(All, DamagedRun, testing::ValuesIn(kDamages),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace millrace
