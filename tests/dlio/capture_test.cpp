// `millrace trace capture` on real commands: what it writes is what they did, and the kit's tools read it.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <functional>
#include <map>
#include <sstream>
#include <thread>
#include <vector>

#include "experiments/io/capture/bpftrace_source.h"
#include "experiments/io/capture/ptrace_source.h"
#include "experiments/io/capture/raw_writer.h"
#include "runtime/base/files.h"
#include "runtime/base/json.h"
#include "tests/driver/temporary_folder.h"
#include "tests/harness/shell.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

const std::string kProgram = std::string(MILLRACE_BIN_DIR) + "/millrace";

/// The rows of a raw trace whose last column is `name`, split at blanks.
std::vector<std::vector<std::string>> rows_of(const std::string& text, const std::string& name) {
  std::vector<std::vector<std::string>> rows;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::vector<std::string> row;
    for (std::string word; words >> word;) row.push_back(word);
    if (!row.empty() && row.back() == name) rows.push_back(std::move(row));
  }
  return rows;
}

class Capture : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (GetParam() != std::string("bpftrace")) return;
    const char* allowed = std::getenv("MILLRACE_BPFTRACE");
    if (!allowed || !*allowed)
      GTEST_SKIP() << "MILLRACE_BPFTRACE is not set (needs root, bpftrace and tracepoints)";
    ASSERT_EQ(why_no_bpftrace(), "");
  }
  Answer capture(const std::string& out, const std::string& command) const {
    return shell(kProgram + " trace capture --method " + GetParam() + " --out " + folder_.path(out) + " -- " +
                 command);
  }
  std::int64_t sum(const std::string& out, const std::string& trace, const std::string& name) const {
    std::int64_t bytes = 0;
    for (const auto& row : rows_of(folder_.read(out + "/" + trace), name)) bytes += std::stoll(row.at(3));
    return bytes;
  }
  TemporaryFolder folder_;
};
INSTANTIATE_TEST_SUITE_P(Methods, Capture, testing::Values("ptrace", "bpftrace"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(Capture, HasEachReadAndWriteOfACommandAndItsChildren) {
  folder_.write("data.bin", std::string(1'000'000, 'x'));
  folder_.write("a name with blanks", "text");
  // Two processes and a third below one of them; a pipe and a device, which are no files.
  folder_.write(
      "job.sh",
      "cd " + folder_.path() +
          "\ndd if=data.bin of=copy.bin bs=100000 2>/dev/null &\n"
          "(dd if=data.bin bs=250000 2>/dev/null | cat >/dev/null)\n"
          "cat 'a name with blanks' >/dev/null\nwait\nmkdir made\nrm copy.bin\nrmdir made\nexit 3\n");
  const Answer answer = capture("trace", "sh " + folder_.path("job.sh"));
  EXPECT_EQ(answer.code, 3) << answer.text;
  EXPECT_EQ(sum("trace", "trace_read.out", "data.bin"), 2'000'000) << answer.text;
  EXPECT_EQ(sum("trace", "trace_write.out", "copy.bin"), 1'000'000);
  std::map<std::string, int> offsets;
  for (const auto& row : rows_of(folder_.read("trace/trace_read.out"), "data.bin")) ++offsets[row.at(2)];
  EXPECT_EQ(offsets["500000"], 2);  // of both readers
  EXPECT_EQ(offsets["100000"], 1);
  EXPECT_EQ(rows_of(folder_.read("trace/trace_read.out"), "a\\x20name\\x20with\\x20blanks").size(), 2u);
  EXPECT_EQ(rows_of(folder_.read("trace/trace_openat.out"), "copy.bin").size(), 1u);
  const std::string changes = folder_.read("trace/trace_create_del.out");
  for (const char* call : {"mkdir()", "rmdir()", "unlink()"})
    EXPECT_NE(changes.find(call), std::string::npos) << changes;

  const Result<Json> report = parse_json(folder_.read("trace/capture.json"), "capture.json");
  ASSERT_TRUE(report);
  EXPECT_EQ(report->find("exit_code")->as_int(), 3);
  EXPECT_EQ(report->find("lost")->as_int(), 0);
  EXPECT_GE(report->find("processes")->as_int(), 5);
}

/// The descriptors of one case: its file to read, its file to write, and the two ends of a pipe.
struct Descriptors {
  int in, out, from_pipe, to_pipe;
};
/// The calls of a case, and the rows that they are worth: "in OFFSET BYTES" and "out OFFSET BYTES".
struct CallCase {
  const char* name;
  std::function<bool(const Descriptors& d)> make;
  std::vector<std::string> rows;
};
/// Two buffers of 300 and 700 bytes.
const iovec* two_parts() {
  static char bytes[1000];
  static const iovec parts[]{{bytes, 300}, {bytes + 300, 700}};
  return parts;
}
std::vector<CallCase> call_cases() {
  static char bytes[1000];
  return {
      {"read",
       [](auto& d) { return read(d.in, bytes, 1000) == 1000 && read(d.in, bytes, 5) == 5; },
       {"in 0 1000", "in 1000 5"}},
      {"readv", [](auto& d) { return readv(d.in, two_parts(), 2) == 1000; }, {"in 0 1000"}},
      {"pread", [](auto& d) { return pread(d.in, bytes, 500, 5000) == 500; }, {"in 5000 500"}},
      {"preadv", [](auto& d) { return preadv(d.in, two_parts(), 2, 7) == 1000; }, {"in 7 1000"}},
      {"preadv2",
       [](auto& d) {
         return preadv2(d.in, two_parts(), 2, 9, 0) == 1000 && preadv2(d.in, two_parts(), 1, -1, 0) == 300;
       },
       {"in 9 1000", "in 0 300"}},
      {"write",
       [](auto& d) { return write(d.out, bytes, 1000) == 1000 && write(d.out, bytes, 5) == 5; },
       {"out 0 1000", "out 1000 5"}},
      {"writev", [](auto& d) { return writev(d.out, two_parts(), 2) == 1000; }, {"out 0 1000"}},
      {"pwrite", [](auto& d) { return pwrite(d.out, bytes, 500, 5000) == 500; }, {"out 5000 500"}},
      {"pwritev", [](auto& d) { return pwritev(d.out, two_parts(), 2, 7) == 1000; }, {"out 7 1000"}},
      {"pwritev2",
       [](auto& d) {
         return pwritev2(d.out, two_parts(), 2, 9, 0) == 1000 &&
                pwritev2(d.out, two_parts(), 1, -1, 0) == 300;
       },
       {"out 9 1000", "out 0 300"}},
      {"copy_file_range",
       [](auto& d) {
         return copy_file_range(d.in, nullptr, d.out, nullptr, 600, 0) == 600 &&
                copy_file_range(d.in, nullptr, d.out, nullptr, 300, 0) == 300;
       },
       {"in 0 600", "out 0 600", "in 600 300", "out 600 300"}},
      {"copy_file_range_at",
       [](auto& d) {
         off64_t from = 100, to = 50;
         return copy_file_range(d.in, &from, d.out, &to, 600, 0) == 600;
       },
       {"in 100 600", "out 50 600"}},
      {"copy_file_range_at_the_end",
       [](auto& d) {
         return lseek(d.in, 0, SEEK_END) == 9000 &&
                copy_file_range(d.in, nullptr, d.out, nullptr, 600, 0) == 0;
       },
       {"in 9000 0"}},
      {"sendfile",
       [](auto& d) {
         off_t from = 4000;
         return sendfile(d.out, d.in, nullptr, 800) == 800 && sendfile(d.out, d.in, &from, 200) == 200;
       },
       {"in 0 800", "out 0 800", "in 4000 200", "out 800 200"}},
      {"sendfile_to_a_pipe",
       [](auto& d) { return sendfile(d.to_pipe, d.in, nullptr, 800) == 800; },
       {"in 0 800"}},
      {"splice",
       [](auto& d) {
         off64_t to = 20;
         return splice(d.in, nullptr, d.to_pipe, nullptr, 800, 0) == 800 &&
                splice(d.from_pipe, nullptr, d.out, nullptr, 500, 0) == 500 &&
                splice(d.from_pipe, nullptr, d.out, &to, 300, 0) == 300;
       },
       {"in 0 800", "out 0 500", "out 20 300"}},
      {"dup_and_seek",
       [](auto& d) { return lseek(d.in, 40, SEEK_SET) == 40 && read(dup(d.in), bytes, 10) == 10; },
       {"in 40 10"}},
  };
}
/// Calls that move no byte of a file, or whose bytes are not seen: they are counted.
bool make_counted_calls(const Descriptors& d) {
  char params[120]{};
  const int other[2]{d.from_pipe, d.to_pipe};
  int second[2];
  const bool moved = pipe(second) == 0 && write(other[1], "xy", 2) == 2 &&
                     tee(other[0], second[1], 2, 0) == 2 && vmsplice(second[1], two_parts(), 1, 0) == 300;
  const long ring =
      syscall(SYS_io_uring_setup, 1, params);  // a container may refuse it; it is counted then, too
  if (ring >= 0) close(static_cast<int>(ring));
  return moved && ioctl(d.out, FICLONE, d.to_pipe) < 0 && ioctl(d.to_pipe, FIONREAD, params) == 0;
}

/// The process itself makes the calls, so that their truth is known to the byte.
TEST_P(Capture, HasEveryCallThatMovesBytesOfFiles) {
  const std::vector<CallCase> cases = call_cases();
  for (const CallCase& one : cases) folder_.write(std::string(one.name) + ".in", std::string(9000, 'x'));
  folder_.write("counted.in", "x");
  const auto body = [&] {
    const auto calls = [&](const std::string& name, const std::function<bool(const Descriptors&)>& make) {
      int ends[2];
      const int in = open(folder_.path(name + ".in").c_str(), O_RDONLY),
                out = creat(folder_.path(name + ".out").c_str(), 0600);
      const bool done = pipe(ends) == 0 && in >= 0 && out >= 0 && make({in, out, ends[0], ends[1]});
      for (const int fd : {in, out, ends[0], ends[1]}) close(fd);
      return done;
    };
    for (std::size_t k = 0; k < cases.size(); ++k)
      if (!calls(cases[k].name, cases[k].make)) _exit(static_cast<int>(10 + k));
    prctl(PR_SET_NAME, "pt_data_worker");
    _exit(calls("counted", make_counted_calls) ? 0 : 1);
  };
  RawWriter writer(folder_.path());
  const CaptureSink sink{
      .event = [&](const FileEvent& event) { writer.add(event); },
      .forget = [&](std::uint32_t process) { writer.forget(process); },
      .forked = [&](std::uint32_t parent, std::uint32_t child) { writer.fork(parent, child); },
      .started = [](std::uint32_t) {},
      .ended = [](int) {},
  };
  const TracedCommand command{.body = body, .words = {}};
  const TraceResult result = GetParam() == std::string("ptrace")
                                 ? trace_by_ptrace(command, 0, sink)
                                 : trace_by_bpftrace(command, sink, [](std::string_view) {}).trace;
  writer.flush();
  ASSERT_EQ(result.refused, "");
  ASSERT_EQ(result.status, 0) << "case " << (result.status >> 8) - 10 << " could not be made";
  std::int64_t read_bytes = 0, written_bytes = 0;
  for (const CallCase& one : cases) {
    std::vector<std::string> rows, truth = one.rows;
    for (const std::string side : {"in", "out"}) {
      for (const auto& row : rows_of(folder_.read(side == "in" ? "trace_read.out" : "trace_write.out"),
                                     one.name + ("." + side)))
        rows.push_back(side + " " + row.at(2) + " " + row.at(3));
    }
    // Reads come before writes here; a process makes them in turns.
    std::ranges::stable_sort(truth, {}, [](const std::string& row) { return row.front(); });
    EXPECT_EQ(rows, truth) << one.name;
    for (const std::string& row : truth)
      (row.front() == 'i' ? read_bytes : written_bytes) += std::stoll(row.substr(row.rfind(' ')));
  }
  EXPECT_EQ(writer.bytes_read(), read_bytes);
  EXPECT_EQ(writer.bytes_written(), written_bytes);
  for (const auto& [name, command] : {std::pair("counted.out", true), {"read.out", false}}) {
    const auto opens = rows_of(folder_.read("trace_openat.out"), name);
    ASSERT_EQ(opens.size(), 1u) << name;
    EXPECT_EQ(opens[0].at(2) == "pt_data_worker", command) << "the name that the thread has at the time";
  }
  const std::map<std::string, std::int64_t> left_out = writer.left_out();
  const auto count = [&](const std::string& start) {
    const auto found = left_out.lower_bound(start);
    return found != left_out.end() && found->first.starts_with(start) ? found->second : 0;
  };
  EXPECT_EQ(count("calls of io_uring or aio"), 1);
  EXPECT_EQ(count("calls that failed"), 1) << "FICLONE of a pipe";
  EXPECT_EQ(count("reads and writes of pipes"), 3) << "write, tee, vmsplice";
}

TEST_P(Capture, HasAllBytesOfACopiedFile) {
  folder_.write("big.bin", std::string(3'000'000, 'x'));
  const Answer answer =
      capture("run", "cp --reflink=never " + folder_.path("big.bin") + " " + folder_.path("copy.bin"));
  ASSERT_EQ(answer.code, 0) << answer.text;
  EXPECT_EQ(sum("run", "trace_read.out", "big.bin"), 3'000'000) << answer.text;
  EXPECT_EQ(sum("run", "trace_write.out", "copy.bin"), 3'000'000) << answer.text;
}

TEST_P(Capture, IsReadByTheKitsTools) {
  for (int i = 0; i < 20; ++i) folder_.write("sample_" + std::to_string(i), std::string(50'000, 'x'));
  const Answer answer = capture("run", "sh -c 'cat " + folder_.path() + "/sample_* >/dev/null'");
  ASSERT_EQ(answer.code, 0) << answer.text;
  const Answer processed = shell(kProgram + " trace preprocess " + folder_.path("run") +
                                 " --workload any --out " + folder_.path("processed"));
  ASSERT_EQ(processed.code, 0) << processed.text;
  EXPECT_NE(folder_.read("processed/run/timeline/pid/all_combined/combined.log").find(",READ"),
            std::string::npos);
  EXPECT_NE(folder_.read("processed/run/timeline/timeline.csv").find("TRAINING"), std::string::npos);
  EXPECT_NE(folder_.read("processed/run/timeline/iostat.csv").find("rMB/s"), std::string::npos);
  const Answer alike = shell(kProgram + " trace similarity " + folder_.path("processed/run") + " " +
                             folder_.path("processed/run"));
  EXPECT_NE(alike.text.find("tracesim/1  1"), std::string::npos) << alike.text;
  // The log of a run a minute before is not this one's.
  std::string log = folder_.read("run/capture.log");
  for (std::size_t at = 0; (at = log.find("\"time_ms\": ", at)) != std::string::npos; ++at) {
    const std::size_t from = at + 11, to = log.find(',', from);
    log.replace(from, to - from, std::to_string(std::stoll(log.substr(from, to - from)) - 60'000));
  }
  const Answer other =
      shell(kProgram + " trace preprocess " + folder_.path("run") + " --workload any --app-log " +
            folder_.write("other.log", log) + " --out " + folder_.path("other"));
  EXPECT_EQ(other.code, 3) << other.text;
  EXPECT_NE(other.text.find("of one run?"), std::string::npos) << other.text;
}

/// PyTorch's loaders give themselves a name; three of them belong to one process.
TEST_P(Capture, KnowsPyTorchsLoadersByName) {
  folder_.write("sample_0", std::string(50'000, 'x'));
  fs::create_symlink("/bin/cat", folder_.path("pt_data_worker"));
  const std::string loader = folder_.path("pt_data_worker ") + folder_.path("sample_0");
  const Answer answer =
      capture("run", "sh -c '" + loader + " & " + loader + " & " + loader + " & wait' >/dev/null");
  ASSERT_EQ(answer.code, 0) << answer.text;
  const Answer processed = shell(kProgram + " trace preprocess " + folder_.path("run") +
                                 " --workload any --out " + folder_.path("processed"));
  ASSERT_EQ(processed.code, 0) << processed.text;
  EXPECT_NE(processed.text.find("of 1 workers and 3 loaders"), std::string::npos) << processed.text;
}

TEST_P(Capture, FollowsWhatACommandLeavesBehind) {
  folder_.write("late.bin", std::string(70'000, 'x'));
  const Answer answer = capture("run", "sh -c '(setsid sh -c \"sleep 0.3; cat " + folder_.path("late.bin") +
                                           " >/dev/null\" &) ; exit 0'");
  EXPECT_EQ(answer.code, 0) << answer.text;
  EXPECT_EQ(sum("run", "trace_read.out", "late.bin"), 70'000);
}

using CaptureFaults = Capture;
INSTANTIATE_TEST_SUITE_P(Ptrace, CaptureFaults, testing::Values("ptrace"));

TEST_P(CaptureFaults, AKilledCommandLeavesAReadableTrace) {
  folder_.write("data.bin", std::string(10'000, 'x'));
  const Answer answer = capture("run", "sh -c 'cat " + folder_.path("data.bin") + " >/dev/null; kill -9 $$'");
  EXPECT_EQ(answer.code, 128 + SIGKILL) << answer.text;
  EXPECT_EQ(sum("run", "trace_read.out", "data.bin"), 10'000);
}

TEST_P(CaptureFaults, AKilledTracerTakesTheCommandAlongAndLeavesWholeRows) {
  folder_.write("data.bin", std::string(10'000, 'x'));
  const std::string pid_file = folder_.path("pid");
  std::thread killer([&] {
    // The command says that it runs; rows are written once a second.
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (std::chrono::steady_clock::now() < deadline &&
           rows_of(folder_.read("run/trace_read.out"), "data.bin").size() < 2)
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    shell("pkill -9 -f -- '--out " + folder_.path("run") + " --'");
  });
  capture("run", "sh -c 'echo $$ >" + pid_file + "; while true; do cat " + folder_.path("data.bin") +
                     " >/dev/null; done'");
  killer.join();
  const std::string text = folder_.read("run/trace_read.out");
  EXPECT_GE(rows_of(text, "data.bin").size(), 2u);
  EXPECT_EQ(text.back(), '\n');
  const int pid = std::stoi(folder_.read("pid"));
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (::kill(pid, 0) == 0 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  EXPECT_NE(::kill(pid, 0), 0) << "the command goes on without its tracer";
}

TEST_P(CaptureFaults, BadInputIsToldBeforeAnythingRuns) {
  Answer answer = capture("run", folder_.path("no-such-program"));
  EXPECT_EQ(answer.code, 2);
  EXPECT_NE(answer.text.find("cannot be started: No such file"), std::string::npos) << answer.text;
  EXPECT_FALSE(fs::exists(folder_.path("run"))) << "the same --out is free for the right command";
  answer = shell(kProgram + " trace capture --out " + folder_.path("empty"));
  EXPECT_EQ(answer.code, 2);
  EXPECT_NE(answer.text.find("COMMAND"), std::string::npos) << answer.text;
  answer = shell(kProgram + " trace capture --out " + folder_.path("empty") + " true");
  EXPECT_EQ(answer.code, 2);
  EXPECT_NE(answer.text.find("no `--` stands before the command"), std::string::npos) << answer.text;
  ASSERT_EQ(capture("used", "true").code, 0);
  answer = capture("used", "touch " + folder_.path("touched"));
  EXPECT_EQ(answer.code, 2);
  EXPECT_NE(answer.text.find("holds a trace already"), std::string::npos) << answer.text;
  EXPECT_FALSE(fs::exists(folder_.path("touched")));
}

/// A reader takes the middle of two stamps for the change of second: nothing may come between them.
TEST_P(CaptureFaults, TheClocksAreAlignedToTheNanosecond) {
  ASSERT_EQ(capture("run", "true").code, 0);
  std::istringstream rows(folder_.read("run/trace_time_align.out"));
  std::string line;
  std::getline(rows, line);
  std::getline(rows, line);
  std::int64_t before = 0, behind = 0;
  rows >> before >> line >> behind;
  EXPECT_EQ(behind - before, 1);
  for (const auto& row : rows_of(folder_.read("run/cpu.out"), "0.00"))
    if (row.at(1) == "all") {
      double percent = 0;
      for (std::size_t k = 2; k < row.size(); ++k) percent += std::stod(row[k]);
      EXPECT_GT(percent, 0) << "a row of zeros";
    }
}

/// `ulimit -f` counts blocks of 512 bytes: rows beyond it are lost and counted, and the command goes on.
TEST_P(CaptureFaults, ALimitOfFileSizesIsNoEndOfTheCommand) {
  const std::string job =
      "sh -c \"dd if=/dev/zero of=" + folder_.path("out.bin") + " bs=1 count=300 2>/dev/null; exit 7\"";
  const Answer answer = shell("ulimit -f 16; " + kProgram + " trace capture --method ptrace --out " +
                              folder_.path("run") + " -- " + job);
  EXPECT_EQ(answer.code, 7) << answer.text;
  EXPECT_NE(answer.text.find("rows were lost"), std::string::npos) << answer.text;
  // Results that find no place leave nothing behind.
  const Answer processed = shell("ulimit -f 1; " + kProgram + " trace preprocess " + folder_.path("run") +
                                 " --workload any --out " + folder_.path("processed"));
  EXPECT_EQ(processed.code, 3) << processed.text;
  EXPECT_NE(processed.text.find("cannot be written"), std::string::npos) << processed.text;
  EXPECT_TRUE(fs::is_empty(folder_.path("processed")));
}

/// What cannot begin leaves its folder as it was.
TEST_P(CaptureFaults, TooFewDescriptorsLeaveNoFolder) {
  const Answer answer = shell("ulimit -n 10; " + kProgram + " trace capture --method ptrace --out " +
                              folder_.path("run") + " -- true");
  // Which file is one too many depends on the descriptors that a test inherits: a pipe (2), or a log (3).
  EXPECT_TRUE(answer.code == 2 || answer.code == 3) << answer.code << "\n" << answer.text;
  EXPECT_NE(answer.text.find("Too many open files"), std::string::npos) << answer.text;
  EXPECT_FALSE(fs::exists(folder_.path("run")));
}

TEST_P(CaptureFaults, AFullDiskIsCountedAndTheCommandGoesOn) {
  const char* allowed = std::getenv("MILLRACE_MOUNTS");
  if (!allowed || !*allowed) GTEST_SKIP() << "MILLRACE_MOUNTS is not set (needs root, to mount a small disk)";
  folder_.write("data.bin", std::string(100, 'x'));
  fs::create_directory(folder_.path("small"));
  ASSERT_EQ(shell("mount -t tmpfs -o size=64k none " + folder_.path("small")).code, 0);
  // 3,000 reads of a byte are more rows than the disk has place for.
  const Answer answer =
      capture("small/run", "sh -c 'for i in 1 2 3; do dd if=/dev/zero of=" + folder_.path("out.bin") +
                               " bs=1 count=1000 2>/dev/null; done; exit 7'");
  const std::string text = folder_.read("small/run/trace_write.out");
  const Answer processed = shell(kProgram + " trace preprocess " + folder_.path("small/run") +
                                 " --workload any --out " + folder_.path("processed"));
  EXPECT_NE(processed.text.find("the capture lost "), std::string::npos) << processed.text;
  shell("umount " + folder_.path("small"));
  EXPECT_EQ(answer.code, 7) << answer.text;
  EXPECT_NE(answer.text.find("rows were lost"), std::string::npos) << answer.text;
  EXPECT_TRUE(text.empty() || text.back() == '\n');
}

}  // namespace
}  // namespace millrace
