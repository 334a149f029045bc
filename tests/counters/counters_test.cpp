#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "runtime/base/files.h"
#include "runtime/base/text.h"
#include "runtime/counters/counter_sampler.h"
#include "runtime/counters/page_cache.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

class Counters : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/millrace-counters-XXXXXX";
    folder_ = ::mkdtemp(name);
  }
  void TearDown() override { fs::remove_all(folder_); }
  void write(const std::string& name, const std::string& text) {
    fs::create_directories((folder_ / name).parent_path());
    ASSERT_TRUE(write_file_atomically(folder_ / name, text));
  }
  /// A host of two cores, a disk with a part, and no file of its networks.
  void write_kernel() {
    write("proc/stat",
          "cpu  30 2 10 100 7 1 2 3 5 1\ncpu0 20 1 5 50 3 1 1 3 5 1\ncpu1 10 1 5 50 4 0 1 0 0 0\nintr 9 9\n");
    write("proc/diskstats",
          "   8       0 sda 11 1 24 33 44 2 66 77 1 88 99\n   8       1 sda1 1 1 1 1 1 1 1 1 1 1 1\n"
          "   7       0 loop0 1 1 1 1 1 1 1 1 1 1 1\n");
    fs::create_directories(folder_ / "sys/block/sda");
    write("proc/meminfo",
          "MemTotal:       1000 kB\nMemFree: 1 kB\nMemAvailable:    600 kB\nCached: 50 kB\nDirty: 4 kB\n");
    std::string fields = "7 (a ) name) S";
    for (int field = 4; field <= 52; ++field) fields += " " + std::to_string(field == 8 ? -1 : field);
    write("proc/self/stat", fields + "\n");
    write("proc/self/io",
          "rchar: 9000\nwchar: 2\nsyscr: 3\nsyscw: 4\nread_bytes: 5\nwrite_bytes: 6\ncancelled_write_bytes: "
          "0\n");
  }
  KernelCounts kernel() const { return KernelCounts(folder_ / "proc", folder_ / "sys"); }
  std::vector<Json> lines(const std::string& name) {
    std::vector<Json> all;
    const Result<std::string> text = read_file(folder_ / name);
    EXPECT_TRUE(text);
    for (const std::string& line : text ? words_of(*text, '\n') : std::vector<std::string>()) {
      const Result<Json> json = parse_json(line, name);
      EXPECT_TRUE(json) << line;
      if (json) all.push_back(*json);
    }
    return all;
  }
  static std::int64_t at(const Json& json, const char* first, const char* second) {
    const Json* outer = json.find(first);
    const Json* inner = outer ? outer->find(second) : nullptr;
    return inner && inner->kind() == Json::Kind::Int ? inner->as_int() : -1;
  }
  fs::path folder_;
};

TEST_F(Counters, OfTheKernelAreReadAsLinuxWritesThem) {
  write_kernel();
  write("proc/net/dev",
        "Inter-|   Receive  |  Transmit\n face |bytes    packets errs\n"
        "    lo: 10 2 0 0 0 0 0 0 10 2 0 0 0 0 0 0\neth0:100 20 1 2 0 0 0 0 300 40 3 4 0 0 0 0\n");
  KernelCounts counts = kernel();
  const auto cpu = counts.cpu();
  ASSERT_TRUE(cpu);
  ASSERT_EQ(cpu->size(), 3u);
  EXPECT_EQ(cpu->front().of[CpuTicks::User], 25u) << "guests' time is not in it";
  EXPECT_EQ((*cpu)[2].of[CpuTicks::IoWait], 4u);
  const auto disks = counts.disks();
  ASSERT_TRUE(disks);
  ASSERT_EQ(disks->size(), 1u) << "no parts, no loops";
  const DiskCounts& sda = disks->at("sda");
  EXPECT_EQ(sda.reads, 11u);
  EXPECT_EQ(sda.read_sectors, 24u);
  EXPECT_EQ(sda.read_ms, 33u);
  EXPECT_EQ(sda.writes, 44u);
  EXPECT_EQ(sda.written_sectors, 66u);
  EXPECT_EQ(sda.write_ms, 77u);
  EXPECT_EQ(sda.busy_ms, 88u);
  EXPECT_EQ(sda.in_flight_ms, 99u);
  const auto networks = counts.networks();
  ASSERT_TRUE(networks) << to_string(networks.problems());
  EXPECT_EQ(networks->at("eth0").received_bytes, 100u);
  EXPECT_EQ(networks->at("eth0").sent_bytes, 300u);
  EXPECT_EQ(networks->at("eth0").errors, 10u);
  const auto memory = counts.memory();
  ASSERT_TRUE(memory);
  EXPECT_EQ(memory->available, 600u * 1024);
  const auto process = counts.process("self");
  ASSERT_TRUE(process) << to_string(process.problems());
  EXPECT_EQ(process->name, "a ) name");
  EXPECT_EQ(process->minor_faults, 10u);
  EXPECT_EQ(process->major_faults, 12u);
  EXPECT_EQ(process->threads, 20u);
  EXPECT_EQ(process->resident, 24u * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)));
  const auto io = counts.process_io("self");
  ASSERT_TRUE(io);
  EXPECT_EQ(io->read_from_disk, 5u);
  EXPECT_GT(counts.bytes_read(), 0u);
}

TEST_F(Counters, WhatCannotBeReadIsAProblemAndNoZero) {
  KernelCounts counts = kernel();
  EXPECT_FALSE(counts.cpu());
  EXPECT_FALSE(counts.process_io("self"));
  write("proc/stat", "something else\n");
  write("proc/self/stat", "1 (x) S 1 2\n");
  EXPECT_FALSE(counts.cpu());
  const auto process = counts.process("self");
  ASSERT_FALSE(process);
  EXPECT_NE(to_string(process.problems()).find("self/stat"), std::string::npos);
}

TEST_F(Counters, AreSampledFromStartToEndAndGapsAreCounted) {
  write_kernel();
  write("data/one", std::string(100'000, 'x'));
  {
    CounterSampler sampler(
        folder_ / "counters.rank3.jsonl",
        {.run = "r", .rank = 3, .ranks = 2, .clock_ns = 5, .unix_ns = 7, .clock_offset_ns = 9},
        {.interval = std::chrono::hours(1),
         .host = true,
         .data = {(folder_ / "data").string()},
         .kernel = kernel()},
        false);
  }
  const std::vector<Json> all = lines("counters.rank3.jsonl");
  ASSERT_EQ(all.size(), 6u) << "a header, samples at the start and the end, two looks at the cache, an end";
  EXPECT_EQ(all[0].find("format")->as_string(), "millrace-counters-1");
  EXPECT_EQ(all[0].find("clock_offset_ns")->as_int(), 9);
  EXPECT_EQ(all[0].find("ranks")->as_int(), 2);
  EXPECT_EQ(at(all[1], "process", "read_from_disk_bytes"), 5);
  EXPECT_EQ(at(all[1], "process", "threads"), 20);
  EXPECT_LT(at(all[1], "process", "read_by_calls_bytes"), 9000)
      << "the sampler's own reads are not the run's";
  EXPECT_EQ(at(all[1], "memory", "total_bytes"), 1000 * 1024);
  EXPECT_EQ(all[1].find("disks")->find("sda")->find("read_bytes")->as_int(), 24 * 512);
  EXPECT_EQ(all[1].find("cores")->find("busy_s")->size(), 2u);
  EXPECT_FALSE(all[1].find("networks")) << "no zeros for what is not known";
  EXPECT_EQ(all[1].find("missing")->dump(), "[\"networks\"]");
  EXPECT_EQ(all[2].find("cache")->as_string(), "start");
  EXPECT_EQ(all[2].find("files")->as_int(), 1);
  EXPECT_EQ(all[2].find("bytes")->as_int(), 100'000);
  EXPECT_EQ(all[4].find("cache")->as_string(), "end");
  const Json& end = all[5];
  EXPECT_EQ(end.find("samples")->as_int(), 2);
  const Json* lacks = end.find("missing")->find("networks");
  ASSERT_TRUE(lacks);
  EXPECT_EQ(lacks->find("samples")->as_int(), 2);
  EXPECT_NE(lacks->find("because")->as_string().find("net/dev"), std::string::npos);
}

TEST_F(Counters, OfThisMachineAreThere) {
  {
    CounterSampler sampler(folder_ / "c", {}, {.interval = std::chrono::milliseconds(5), .host = true},
                           false);
    sampler.finish();
  }
  { CounterSampler again(folder_ / "c", {}, {.interval = std::chrono::hours(1)}, true); }
  const std::vector<Json> all = lines("c");
  ASSERT_GE(all.size(), 8u) << "it goes on in the same file";
  EXPECT_GT(at(all[1], "process", "threads"), 0);
  EXPECT_GT(at(all[1], "process", "resident_bytes"), 0);
}

TEST_F(Counters, AFileThatCannotBeMadeIsAnError) {
  EXPECT_THROW(CounterSampler(folder_ / "absent/c", {}, {}, false), std::exception);
}

TEST_F(Counters, TheCacheIsLookedAtWithinATime) {
  write("data/one", std::string(10'000, 'x'));
  write("data/below/two", std::string(20'000, 'x'));
  const std::vector<std::string> paths{(folder_ / "data").string(), (folder_ / "absent").string()};
  const CacheResidency all = cache_residency(paths, std::chrono::minutes(1));
  EXPECT_EQ(all.files, 2);
  EXPECT_EQ(all.bytes, 30'000);
  EXPECT_LE(all.resident_bytes, all.bytes);
  EXPECT_TRUE(all.is_whole);
  const CacheResidency none = cache_residency(paths, std::chrono::milliseconds(0));
  EXPECT_EQ(none.files, 0);
  EXPECT_FALSE(none.is_whole) << "what was not looked at is said";
  EXPECT_EQ(files_below(paths).size(), 2u);
}

}  // namespace
}  // namespace millrace
