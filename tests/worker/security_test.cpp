// Who may disturb a run or read from it: strangers at its ports, names in its files, other users of the
// machine.
#include <signal.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <thread>

#include "runtime/base/json.h"
#include "tests/comm/stranger.h"
#include "tests/worker/job_fixture.h"

namespace millrace {
namespace {

constexpr const char* kTrain =
    "train --model mlp --width 16 --stages 2 --microbatch 4 --microbatches 4 --steps 6 --seed 3 ";

struct Listener {
  std::string address;  ///< as /proc/net shows it, in hexadecimal
  int port = 0;
  bool operator<(const Listener& other) const { return port < other.port; }
};

/// The TCP ports on which a process listens.
std::set<Listener> listeners_of(const std::string& pid) {
  std::set<std::string> inodes;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc/" + pid + "/fd", error)) {
    const std::string target = fs::read_symlink(entry.path(), error).string();
    if (target.starts_with("socket:[")) inodes.insert(target.substr(8, target.size() - 9));
  }
  std::set<Listener> found;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream lines(table);
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      std::string number, local, remote, state, queues, timer, retransmit, uid, timeout, inode;
      words >> number >> local >> remote >> state >> queues >> timer >> retransmit >> uid >> timeout >> inode;
      if (state != "0A" || !inodes.contains(inode)) continue;
      const std::size_t colon = local.find(':');
      found.insert({local.substr(0, colon), std::stoi(local.substr(colon + 1), nullptr, 16)});
    }
  }
  return found;
}

class Security : public Jobs {
 protected:
  std::string losses(const std::string& folder) {
    const Result<Json> summary = read_json((folder_ / folder / "summary.json").string());
    const Json* found = summary ? summary->find("losses") : nullptr;
    return found ? found->dump() : "no summary";
  }

  /// Every file below the folder that holds `text`, but for `except`.
  std::string files_with(const std::string& text, const std::set<std::string>& except = {}) {
    std::string found;
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder_)) {
      if (!entry.is_regular_file() || except.contains(entry.path().filename().string())) continue;
      const Result<std::string> content = read_file(entry.path(), kGiB);
      if (content && content->find(text) != std::string::npos) found += entry.path().string() + "\n";
    }
    return found;
  }
};

/// Strangers come to the port of the meeting while rank 0 waits for rank 1, and to that of messages while
/// both train.
TEST_F(Security, StrangersAtEveryPortDoNotChangeTheRun) {
  ASSERT_EQ(run(std::string(kTrain) + "--output-dir one").code, 0);
  const int port = free_port();
  const auto rank = [&](int number, const std::string& token, const std::string& output,
                        const std::string& more = "") {
    const std::string name = std::to_string(number),
                      log = (folder_ / ("rank" + name + token + ".log")).string();
    return std::system(("cd " + folder_.string() + " && sh -c 'echo $$ >pid" + name + token +
                        "; exec env WORLD_SIZE=2 LOCAL_WORLD_SIZE=1 LOCAL_RANK=0 MASTER_ADDR=127.0.0.1 "
                        "MASTER_PORT=" +
                        std::to_string(port) + " RANK=" + name + " MILLRACE_TOKEN=" + token + " " + more +
                        " timeout 100 " MILLRACE_BIN_DIR "/millrace " + kTrain +
                        " --backend tcp --timeout 60 --output-dir " + output + "' >" + log + " 2>&1")
                           .c_str());
  };
  const auto listeners = [&] {  // timeout(1) runs millrace as its child
    std::set<Listener> found;
    for (const fs::directory_entry& entry : fs::directory_iterator("/proc")) {
      std::error_code error;
      if (fs::read_symlink(entry.path() / "cwd", error) == folder_)
        found.merge(listeners_of(entry.path().filename().string()));
    }
    return found;
  };
  const auto come_to = [&](const Listener& one) {
    EXPECT_EQ(one.address, "0100007F") << "127.0.0.1 and no other address";
    std::vector<Stranger> kept;
    const std::string longest = "\xff\xff\xff\x7f", greeting = "millrace-store-2\n";
    // A rank describes itself so; the proof is of another meeting.
    const std::string hello = "1:11:20:16:" + std::string(16, 'n') + "32:" + std::string(32, 'p');
    std::string length(4, '\0');
    length[0] = static_cast<char>(hello.size());
    for (const std::string& words :
         {std::string(1000, 'x'), longest + std::string(100, 'y'), greeting, greeting + longest,
          greeting + length + hello, std::string("GET / HTTP/1.1\r\n\r\n"), std::string()}) {
      kept.emplace_back(one.port);
      EXPECT_TRUE(kept.back().is_connected());
      kept.back().say(words);
    }
    for (int i = 0; i < 100; ++i) kept.emplace_back(one.port);
    return kept;
  };
  const auto await_listeners = [&](std::size_t number) {
    std::set<Listener> found;
    for (int i = 0; i < 1200 && found.size() != number; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      found = listeners();
    }
    EXPECT_EQ(found.size(), number) << bytes("rank0right.log");
    return found;
  };
  int code = -1, other_code = -1;
  {
    std::jthread first([&] { code = rank(0, "right", "out"); });
    std::vector<Stranger> kept;
    for (const Listener& one : await_listeners(1)) {
      EXPECT_EQ(one.port, port);
      kept = come_to(one);
    }
    for (const Stranger& stranger : kept) EXPECT_TRUE(stranger.is_sent_away(std::chrono::seconds(60)));
    EXPECT_NE(rank(1, "wrong", "other"), 0);
    std::jthread second(
        [&] { other_code = rank(1, "right", "out", "MILLRACE_FAILPOINTS=update:rank=1:step=2:delay=6"); });
    for (const Listener& one : await_listeners(2)) {
      const std::string line = "listens on 127.0.0.1:" + std::to_string(one.port) + " for messages";
      EXPECT_NE((bytes("rank0right.log") + bytes("rank1right.log")).find(line), std::string::npos) << line;
      std::vector<Stranger> more = come_to(one);
      std::ranges::move(more, std::back_inserter(kept));
    }
    for (const Stranger& stranger : kept) EXPECT_TRUE(stranger.is_sent_away(std::chrono::seconds(60)));
  }
  EXPECT_EQ(other_code, 0) << bytes("rank1right.log");
  EXPECT_EQ(code, 0) << bytes("rank0right.log");
  EXPECT_EQ(losses("out"), losses("one"));
  EXPECT_NE(bytes("rank1wrong.log").find("token"), std::string::npos) << bytes("rank1wrong.log");
  std::istringstream log(bytes("rank0right.log"));
  int warnings = 0;
  for (std::string line; std::getline(log, line);)
    warnings += line.find("WARNING") != std::string::npos ? 1 : 0;
  EXPECT_GE(warnings, 1) << bytes("rank0right.log");
  EXPECT_LE(warnings, 12) << "strangers are told of now and then: " << bytes("rank0right.log");
}

/// The ranks' program writes down what any user of the machine can see, and the token that it was given.
TEST_F(Security, SecretsAreInNoArgumentLogOrReport) {
  write("worker", "#!/bin/sh\ncat /proc/[0-9]*/cmdline >>" + (folder_ / "seen").string() +
                      " 2>/dev/null\necho $MILLRACE_TOKEN >" + (folder_ / "told").string() +
                      "\nexec " MILLRACE_BIN_DIR "/millrace-worker \"$@\"\n");
  write("ssh", "#!/bin/sh\nwhile [ \"$1\" != -- ]; do shift; done\nshift 2\nexec \"$@\"\n");
  for (const char* script : {"worker", "ssh"}) fs::permissions(folder_ / script, fs::perms::owner_all);
  write("job.yaml",
        "model: mlp\nwidth: 16\nstages: 2\nmicrobatch: 4\nsteps: 4\nenv: {MY_API_KEY: marker-of-the-job}\n"
        "checkpoint_at_end: true\n");
  const std::string flags = " --worker " + (folder_ / "worker").string() + " --client " +
                            (folder_ / "ssh").string() + " --hosts 127.0.0.2,127.0.0.3";
  const Ran ran = run("launch job.yaml --output-dir out" + flags);
  ASSERT_EQ(ran.code, 0) << ran.output;
  EXPECT_EQ(run("report --run out --out report.html").code, 0);
  std::string token = bytes("told");
  while (!token.empty() && token.back() == '\n') token.pop_back();
  ASSERT_EQ(token.size(), 32u) << token;
  EXPECT_EQ(files_with(token, {"told"}), "");
  // The job's own file is its user's alone: it can be launched again.
  EXPECT_EQ(files_with("marker-of-the-job", {"job.yaml"}), "");
  struct stat info {};
  ASSERT_EQ(::stat((folder_ / "out/job.yaml").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  const Ran dry = run("launch job.yaml --output-dir dry --dry-run" + flags);
  EXPECT_EQ(dry.code, 0) << dry.output;
  EXPECT_EQ(dry.output.find("marker-of-the-job"), std::string::npos) << dry.output;
  EXPECT_NE(dry.output.find("MY_API_KEY"), std::string::npos) << dry.output;
}

TEST_F(Security, NobodyElseReadsOrWritesARunWhateverTheUmask) {
  write("job.yaml", "model: mlp\nwidth: 16\nstages: 2\nmicrobatch: 4\nsteps: 2\ncheckpoint_at_end: true\n");
  for (const char* mask : {"000", "022", "077"}) {
    const std::string out = std::string("out") + mask;
    const Ran ran = run("launch job.yaml --output-dir " + out, "umask " + std::string(mask) + ";");
    ASSERT_EQ(ran.code, 0) << ran.output;
    const auto mode = [](const fs::path& path) {
      struct stat info {};
      return ::lstat(path.c_str(), &info) == 0 ? info.st_mode & 0777 : 0u;
    };
    EXPECT_EQ(mode(folder_ / out), 0700u) << "who cannot enter the folder reads nothing in it";
    EXPECT_EQ(mode(folder_ / out / "checkpoints"), 0700u);
    EXPECT_EQ(mode(folder_ / out / "logs"), 0700u);
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder_ / out)) {
      EXPECT_EQ(mode(entry.path()) & 022 & (entry.is_directory() ? 0 : ~0u), 0u) << entry.path();
    }
  }
}

TEST_F(Security, ADetachedRunIsAsPrivate) {
  write("job.yaml", "model: mlp\nwidth: 16\nsteps: 1000000\nno_evaluation: true\n");
  ASSERT_EQ(run("launch job.yaml --output-dir out --detach", "umask 000;").code, 0);
  struct stat info {};
  ASSERT_EQ(::stat((folder_ / "out").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  EXPECT_EQ(run("kill out").code, 0);
}

/// A link under a name that a run will write must not lead it to another file.
TEST_F(Security, NothingIsWrittenThroughALink) {
  write("victim", "mine");
  fs::create_directories(folder_ / "out/logs");
  fs::create_directories(folder_ / "out/checkpoints");
  const fs::path victim = folder_ / "victim";
  for (const char* name : {"job.yaml", "plan.json", "summary.json", "launch-manifest.json",
                           "checkpoints/latest", "status.rank0.json"})
    fs::create_symlink(victim, folder_ / "out" / name);
  write("job.yaml", "model: mlp\nwidth: 16\nmicrobatch: 4\nsteps: 2\ncheckpoint_at_end: true\n");
  const Ran ran = run("launch job.yaml --output-dir out --overwrite");
  EXPECT_EQ(ran.code, 0) << ran.output;
  EXPECT_EQ(bytes("victim"), "mine");
  fs::create_symlink(victim, folder_ / "logs0");
  fs::create_directories(folder_ / "more/logs");
  fs::create_symlink(victim, folder_ / "more/logs/rank_0.out");
  const Ran log = run("launch job.yaml --output-dir more");
  EXPECT_EQ(log.code, 2) << log.output;
  EXPECT_NE(log.output.find("rank_0.out"), std::string::npos) << log.output;
  EXPECT_EQ(bytes("victim"), "mine");
}

/// A training reads no pickles: such files are refused by their first bytes.
TEST_F(Security, PickleFilesAreRefused) {
  std::string pickle("\x80\x02}q\x00(X\x01\x00\x00\x00wq\x01K\x01u.", 20);
  pickle.resize(1600, '\0');
  write("raw.pt", pickle);
  std::string zip("PK\3\4", 4);
  zip.resize(1600, '\0');
  write("zip.pt", zip);
  for (const char* name : {"raw.pt", "zip.pt"}) {
    const Ran ran = run(std::string(kTrain) + "--init-from " + name);
    EXPECT_EQ(ran.code, 4) << ran.output;
    EXPECT_NE(ran.output.find("could run code"), std::string::npos) << ran.output;
    EXPECT_NE(ran.output.find("safetensors.torch.save_file"), std::string::npos) << ran.output;
    EXPECT_NE(run(std::string(kTrain) + "--resume " + name).code, 0);
  }
}

}  // namespace
}  // namespace millrace
