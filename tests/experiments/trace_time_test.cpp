// Civil time, zones, sampled logs and the program's log.
#include <gtest/gtest.h>

#include "experiments/io/trace/app_log.h"
#include "experiments/io/trace/civil_time.h"
#include "experiments/io/trace/raw_trace.h"
#include "experiments/io/trace/sampled_logs.h"
#include "experiments/io/trace/time_zone.h"

namespace millrace {
namespace {

std::int64_t utc(const char* iso) {
  return *parse_iso(iso) / kSecond;
}

TEST(CivilTime, DaysAndDatesAreInverse) {
  for (std::int64_t days = -1'000'000; days < 1'000'000; days += 97) {
    const CivilDate date = civil_from_days(days);
    ASSERT_EQ(days_from_civil(date), days);
  }
  EXPECT_EQ(days_from_civil({2023, 2, 11}), 19399);
}

TEST(CivilTime, TextIsReadWholeOrNotAtAll) {
  EXPECT_EQ(iso_text(*parse_iso("2023-02-11T13:11:22.123456789"), 9), "2023-02-11T13:11:22.123456789");
  EXPECT_EQ(iso_text(*parse_iso("2023-02-11 13:11:22.5Z"), 3), "2023-02-11T13:11:22.500");
  for (const char* wrong : {"2023-02-30T00:00:00", "2023-02-11T24:00:00", "2023-02-11T10:60:00", "2023-02-11",
                            "", "2023-02-11T13:11:22.", "2023-02-11T13:11:22.1234567891"})
    EXPECT_FALSE(parse_iso(wrong)) << wrong;
  EXPECT_EQ(*parse_time_of_day("12:00:01", "AM"), 1);
  EXPECT_EQ(*parse_time_of_day("12:00:01", "PM"), 43201);
  EXPECT_FALSE(parse_time_of_day("13:00:01", "PM"));
}

TEST(TimeZones, MontrealFollowsTheDateNotThisMachine) {
  const TimeZone zone = TimeZone::montreal();
  EXPECT_EQ(zone.offset_at(utc("2023-02-11T13:00:00")), -5 * 3600);
  EXPECT_EQ(zone.offset_at(utc("2023-07-11T13:00:00")), -4 * 3600);
  // 12 March 2023, 7:00 UTC: 2:00 EST becomes 3:00 EDT.
  EXPECT_EQ(zone.offset_at(utc("2023-03-12T06:59:59")), -5 * 3600);
  EXPECT_EQ(zone.offset_at(utc("2023-03-12T07:00:00")), -4 * 3600);
  // 5 November 2023: 1:30 comes twice; the second time is told by the row before.
  const std::int64_t half_past_one = utc("2023-11-05T01:30:00");
  EXPECT_EQ(zone.utc_of(half_past_one), utc("2023-11-05T05:30:00"));
  EXPECT_EQ(zone.utc_of(half_past_one, utc("2023-11-05T05:59:00")), utc("2023-11-05T06:30:00"));
}

TEST(TimeZones, OffsetsRulesAndWrongNames) {
  EXPECT_EQ(TimeZone::parse("-05:30")->offset_at(0), -19800);
  EXPECT_EQ(TimeZone::parse("+0100")->offset_at(0), 3600);
  EXPECT_EQ(TimeZone::parse("UTC")->offset_at(0), 0);
  EXPECT_EQ(TimeZone::parse("CET-1CEST,M3.5.0,M10.5.0/3")->offset_at(utc("2023-07-01T00:00:00")), 7200);
  for (const char* wrong :
       {"Mars/Olympus", "../etc/passwd", "", "/etc/passwd", "+99:00", "EST5EDT,M13.1.0,M1.1.0"})
    EXPECT_FALSE(TimeZone::parse(wrong)) << wrong;
}

constexpr const char* kPmonHead =
    "#Date Time gpu pid type sm mem enc dec fb command\n#YYYYMMDD HH:MM:SS Idx # C/G % % % % MB name\n";

TEST(SampledLogs, GpusThatStartLateAreAveragedBySecond) {
  const std::string text = std::string(kPmonHead) +
                           " 20230211 08:00:00 0 10 C 50 10 - - 100 python\n"
                           " 20230211 08:00:01 0 10 C 60 10 - - 100 python\n"
                           " 20230211 08:00:01 1 11 C 80 20 - - 200 python\n"
                           " 20230211 08:00:01 1 11 C 80 20 - - 200 python\n"
                           " 20230211 08:00:02 0 10 C 70 11 - - 100 python\n"
                           " 20230211 08:00:02 1 11 C 71 20 - - 200 python\n";
  const Result<GpuLog> log = read_pmon(text, "gpu.out");
  ASSERT_TRUE(log) << to_string(log.problems());
  EXPECT_EQ(log->dropped.at("repeated rows"), 1);
  const GpuProcesses processes = gpu_processes(*log, {10, 11});
  EXPECT_EQ(gpu_csv(*log, processes, TimeZone::fixed(0), 0),
            "timestamp,sm,mem,fb\n2023-02-11T08:00:00,50,10,100\n2023-02-11T08:00:01,70,15,150\n"
            "2023-02-11T08:00:02,70.5,15.5,150\n");
}

TEST(SampledLogs, ColumnsOfPmonAreFoundByName) {
  const Result<GpuLog> log = read_pmon(
      "#Date Time gpu pid type sm mem enc dec jpg ofa fb ccpm command\n"
      " 20230211 08:00:00 3 10 C 50 10 - - - - 123 0 python\n",
      "gpu.out");
  ASSERT_TRUE(log) << to_string(log.problems());
  EXPECT_EQ(log->samples[0].framebuffer_mb, 123);
  EXPECT_EQ(log->samples[0].command, "python");
  EXPECT_FALSE(read_pmon("#Date Time gpu pid sm\n 20230211 08:00:00 3 10 50\n", "gpu.out"));
  EXPECT_FALSE(read_pmon("", "gpu.out"));
  EXPECT_FALSE(read_pmon(std::string(kPmonHead) + "garbage\nmore\n", "gpu.out"));
}

TEST(SampledLogs, AReaderOnASharedGpuIsTheOneThatCounts) {
  const std::string text = std::string(kPmonHead) +
                           " 20230211 08:00:00 0 99 C 5 1 - - 10 other\n"
                           " 20230211 08:00:00 0 10 C 50 10 - - 100 python\n";
  const GpuProcesses processes = gpu_processes(*read_pmon(text, "gpu.out"), {10});
  EXPECT_EQ(processes.kept, (std::set<std::uint32_t>{10}));
  EXPECT_EQ(processes.ignored, (std::set<std::uint32_t>{99}));
}

TEST(SampledLogs, MidnightIsPassedAlsoWithoutARowAtMidnight) {
  const std::string head =
      "Linux 5.4 (x) 02/11/2023 _x86_64_ (8 CPU)\n\n11:59:57 PM  CPU %usr %nice %sys %iowait %irq "
      "%soft %steal %guest %gnice %idle\n";
  const std::string values = " all 1.00 0.00 2.00 0.00 0.00 0.00 0.00 0.00 0.00 97.00\n";
  const Result<CpuLog> log = read_mpstat(head + "11:59:59 PM" + values + "12:00:01 AM" + values,
                                         utc("2023-02-11T23:59:50"), "cpu.out");
  ASSERT_TRUE(log) << to_string(log.problems());
  EXPECT_EQ(log->samples[0].local, utc("2023-02-11T23:59:59"));
  EXPECT_EQ(log->samples[1].local, utc("2023-02-12T00:00:01"));
}

TEST(SampledLogs, IostatThatWasCutOffGivesItsWholeSamples) {
  const std::string whole =
      R"({"sysstat": {"hosts": [{"statistics": [
        {"timestamp": "02/11/2023 08:11:19", "disk": [{"disk_device": "sda", "rMB/s": 2.00, "util": 1e-5}]},
        {"timestamp": "2023-02-11T08:11:20+0000", "disk": [{"disk_device": "sda", "rMB/s": 770.50, "util": 3}]})";
  const Result<DiskLog> log = read_iostat(whole + ", {\"timestamp\": \"2023-", "iostat.json");
  ASSERT_TRUE(log) << to_string(log.problems());
  EXPECT_EQ(log->dropped.at("a last sample that is cut off"), 1);
  EXPECT_EQ(iostat_csv(*log, TimeZone::fixed(0)),
            "timestamp,disk_device,rMB/"
            "s,util\n2023-02-11T08:11:19,sda,2.0,1e-05\n2023-02-11T08:11:20,sda,770.5,3\n");
  EXPECT_FALSE(read_iostat("{}", "iostat.json"));
}

std::string event(const char* key, std::int64_t ms) {
  return ":::MLLOG {\"namespace\": \"\", \"time_ms\": " + std::to_string(ms) + ", \"key\": \"" + key +
         "\"}\n";
}

TEST(AppLogs, PhasesPairAndOtherRanksAreLeftOut) {
  const std::string text = "noise\n" + event("init_start", 1000) + event("init_stop", 2000) + "[1] " +
                           event("epoch_start", 1500) + "[0] " + event("epoch_start", 2500) +
                           event("eval_stop", 2600) + event("epoch_stop", 3000) + event("eval_start", 3100) +
                           ":::MLLOG {\"time_ms\": 35";
  const Result<AppLog> log = read_mllog(text, TracedWorkload::Unet3d, "unet3d.log");
  ASSERT_TRUE(log) << to_string(log.problems());
  EXPECT_EQ(timeline_csv(*log),
            "1970-01-01T00:00:01.000,1970-01-01T00:00:02.000,INIT\n"
            "1970-01-01T00:00:02.500,1970-01-01T00:00:03.000,TRAINING\n");
  EXPECT_EQ(log->dropped.at("events of other ranks"), 1);
  EXPECT_EQ(log->dropped.at("a last event that is cut off"), 1);
  EXPECT_EQ(log->dropped.at("phases without a start or an end"), 2);
  EXPECT_EQ(log->notes.size(), 2u);
}

TEST(AppLogs, OnlyTheEventsOwnTimeIsRewritten) {
  const std::string line =
      R"(:::MLLOG {"metadata": {"time_ms": 5, "x": "\\"}, "value": "time_ms", "key": "init_start", "time_ms": 1000})"
      "\n";
  const Result<AppLog> log = read_mllog(line + event("init_stop", 2000), TracedWorkload::Unet3d, "x");
  ASSERT_TRUE(log) << to_string(log.problems());
  EXPECT_NE(
      log->json.find(R"({"metadata": {"time_ms": 5, "x": "\\"}, "value": "time_ms", "key": "init_start", )"
                     R"("time_ms": "1970-01-01T00:00:01.000"})"),
      std::string::npos)
      << log->json;
}

TEST(AppLogs, WithoutEventsOrInitialisationIsRefused) {
  EXPECT_FALSE(read_mllog("", TracedWorkload::Unet3d, "x"));
  EXPECT_FALSE(read_mllog("hello\n", TracedWorkload::Unet3d, "x"));
  EXPECT_FALSE(read_mllog(event("epoch_start", 1) + event("epoch_stop", 2), TracedWorkload::Unet3d, "x"));
  const std::string init = event("init_start", 1) + event("init_stop", 2);
  const Result<AppLog> other =
      read_mllog(init + event("epoch_start", 3) + event("epoch_stop", 4), TracedWorkload::Dlrm, "unet3d.log");
  ASSERT_FALSE(other);
  const std::string says = to_string(other.problems());
  EXPECT_NE(says.find("unet3d.log: is no log of dlrm: its training is told by epoch_start"),
            std::string::npos)
      << says;
  EXPECT_NE(says.find("--workload unet3d"), std::string::npos) << says;
  EXPECT_TRUE(read_mllog(init, TracedWorkload::Dlrm, "x")) << "a run that ended before its training";
  EXPECT_FALSE(read_dlio_log("[INFO] 2023-02-11T13:00:00.000000 hello\n", "x"));
  EXPECT_FALSE(
      read_dlio_log("[INFO] 2023-06-11T13:00:00.000000 hello\n"
                    "[INFO] 2023-02-11T13:00:05.000000 Starting epoch 1\n",
                    "x"))
      << "the clock went back";
}

TEST(AppLogs, DliosEpochAndBlockAreOneTraining) {
  const Result<AppLog> log = read_dlio_log(
      "[INFO] 2023-02-11T13:00:00.000000 Running DLIO with 2 processes\n"
      "[INFO] 2023-02-11T13:00:05.000007 Starting epoch 1: 10 steps expected\n"
      "[INFO] 2023-02-11T13:00:05.500000 Starting block 1\n"
      "[INFO] 2023-02-11T13:00:09.000000 Ending block 1\n"
      "[INFO] 2023-02-11T13:00:09.100000 Starting checkpoint 1\n"
      "[INFO] 2023-02-11T13:00:09.300999 Ending checkpoint 1\n"
      "[INFO] 2023-02-11T13:00:09.400000 Ending epoch 1\n",
      "dlio.log");
  ASSERT_TRUE(log) << to_string(log.problems());
  EXPECT_EQ(timeline_csv(*log),
            "2023-02-11T13:00:00.000000,2023-02-11T13:00:05.000007,INIT\n"
            "2023-02-11T13:00:05.000007,2023-02-11T13:00:09.000000,TRAINING\n"
            "2023-02-11T13:00:09.100000,2023-02-11T13:00:09.300999,CHECKPOINT\n");
  EXPECT_NE(log->json.find("\"2023-02-11T13:00:09.300999\""), std::string::npos) << log->json;
}

TEST(RawRows, LayoutsOfTheTracer) {
  RawRow row;
  ASSERT_TRUE(parse_row("100  7  a b  sdb W 4096 99 50", TraceKind::Bio, row));
  EXPECT_EQ(row.process, "a b");
  EXPECT_EQ(row.latency_ns, 50);
  EXPECT_EQ(row.type, EventType::BioWrite);
  ASSERT_TRUE(parse_row("100 7 0 18446744073709551605 5", TraceKind::Read, row));
  EXPECT_STREQ(why_filtered(row, TraceKind::Read, TracedWorkload::Unet3d), "reads that failed");
  ASSERT_TRUE(parse_row("100 7 0 12 5 0_first.ckpt", TraceKind::Write, row));
  EXPECT_EQ(why_filtered(row, TraceKind::Write, TracedWorkload::Unet3d), nullptr)
      << "a file, not the terminal";
  ASSERT_TRUE(parse_row("100 7 0 12 5 0", TraceKind::Write, row));
  EXPECT_NE(why_filtered(row, TraceKind::Write, TracedWorkload::Unet3d), nullptr);
  for (const char* wrong : {"", "100", "100 7 0 12", "x 7 0 12 5", "100 7 0 12 5 a b", "100 -7 0 12 5",
                            "100 7 0 12 -5", "99999999999999999999 7 0 12 5"})
    EXPECT_FALSE(parse_row(wrong, TraceKind::Read, row)) << wrong;
}

TEST(TimeAlignment, TheClosestChangeOfSecondIsTheReference) {
  const Result<TimeReference> r = read_time_align(
      "Attaching 3 probes\nTIMESTAMP TIME\n1000 08:00:00\n2001 08:00:01\n5000 08:00:01\n5101 08:00:02\n9000 "
      "08:00:02\n",
      "align");
  ASSERT_TRUE(r) << to_string(r.problems());
  EXPECT_EQ(r->second_of_day, 8 * 3600 + 2);
  EXPECT_EQ(r->ns, 5101 - 101 / 2);
  EXPECT_FALSE(read_time_align("1000 08:00:00\n2001 08:00:00\n", "align"));
  EXPECT_FALSE(read_time_align("", "align"));
}

}  // namespace
}  // namespace millrace
