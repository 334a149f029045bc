// Checkpoints as files: what is found damaged, which one is taken, what a crash or a full disk leaves.
#include "runtime/checkpoint/checkpoint.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/inotify.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>

#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <thread>

#include "runtime/base/error.h"
#include "runtime/base/files.h"
#include "runtime/comm/rank_threads.h"
#include "runtime/saved/checkpoint_folder.h"

namespace millrace {
namespace {
namespace fs = std::filesystem;
using std::chrono::milliseconds;

class Checkpoints : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/millrace-test-XXXXXX";
    folder_ = ::mkdtemp(name);
  }
  void TearDown() override { fs::remove_all(folder_); }

  static at::Tensor values(double first) { return at::arange(1000, at::kFloat).add_(first); }

  CheckpointInfo info(const std::string& run, std::int64_t step) const {
    return {.run = run, .model = "m", .step = step, .position = step * 4, .settings = {{"lr", "0.1"}}};
  }

  /// Stage s of step n holds n + s, n + s + 1, ...; the same problem on both ranks.
  std::optional<RankProblem> save(const std::string& run, std::int64_t step, const Retention& keep = {}) {
    std::optional<RankProblem> problems[2];
    run_as_threads(make_local_communicators(2, milliseconds(10'000)), [&](Communicator& world) {
      const int stage = world.rank().value;
      problems[stage] = save_checkpoint(
          world, folder_.string(), info(run, step), 2,
          {{stage, {{"w" + std::to_string(stage), values(double(step + stage))}}}}, {.keep = keep});
    });
    EXPECT_EQ(problems[0].has_value(), problems[1].has_value());
    if (problems[0] && problems[1]) {
      EXPECT_EQ(to_string(*problems[0]), to_string(*problems[1]));
    }
    return problems[0];
  }

  fs::path step_folder(std::int64_t step) const {
    char name[32];
    std::snprintf(name, sizeof name, "step-%08lld", static_cast<long long>(step));
    return folder_ / name;
  }
  fs::path shard(std::int64_t step, int stage = 0) const {
    return step_folder(step) / ("stage" + std::to_string(stage) + ".safetensors");
  }
  std::string bytes(const fs::path& path) const { return *read_file(path); }
  static void write(const fs::path& path, const std::string& text) {
    ASSERT_TRUE(write_file_atomically(path, text));
  }
  std::vector<std::string> entries() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_)) names.push_back(entry.path().filename());
    std::ranges::sort(names);
    return names;
  }
  /// The step that a reader of the folder takes; -1: none.
  std::int64_t found() const {
    const Result<Checkpoint> checkpoint = open_checkpoint(folder_.string());
    if (!checkpoint) return -1;
    const SafetensorsFile* file = checkpoint->find("w1");
    EXPECT_TRUE(file);
    EXPECT_TRUE(file->tensor("w1").equal(values(double(checkpoint->info.step + 1))));
    return checkpoint->info.step;
  }

  fs::path folder_;
};

class SizeLimit {
 public:
  explicit SizeLimit(rlim_t bytes) : handler_(::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{.rlim_cur = bytes, .rlim_max = before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~SizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    ::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  sighandler_t handler_;
};

TEST(Hashes, AreThoseOfXxh128sumAndSha256sum) {
  EXPECT_EQ(sha256("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(xxh3("", 0).hex(), "99aa06d3014798d86001c324468d497f");
  const std::string text(100'000, 'x');
  Xxh3 pieces;
  for (std::size_t at = 0; at < text.size(); at += 777) pieces.add(text.substr(at, 777));
  EXPECT_EQ(pieces.value(), xxh3(text.data(), text.size()));
}

/// A header of 640 bytes makes a file begin as a pickle of protocol 2 does.
TEST_F(Checkpoints, FilesWithHeadersOfAnyLengthAreRead) {
  fs::create_directories(folder_);
  const std::string path = (folder_ / "one.safetensors").string();
  for (std::size_t letters = 1; letters < 1500; letters += 8) {
    const std::string name(letters, 'w');
    write_safetensors(path, {{name, values(1)}});
    const Result<SafetensorsFile> file = SafetensorsFile::open(path);
    ASSERT_TRUE(file) << letters << ": " << to_string(file.problems());
    EXPECT_EQ(file->names(), std::vector<std::string>{name});
  }
}

TEST_F(Checkpoints, AFileWithAHoleBetweenItsTensorsIsRefused) {
  fs::create_directories(folder_);
  const fs::path path = folder_ / "one.safetensors";
  for (const int begin : {1, 2, 3}) {  // of the second tensor, behind two bytes of the first
    const std::string end = std::to_string(begin + 2);
    std::string header = R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                         R"("b":{"dtype":"U8","shape":[2],"data_offsets":[)" +
                         std::to_string(begin) + "," + end + "]}}";
    header.resize((header.size() + 7) / 8 * 8, ' ');
    std::string length(8, '\0');
    length[0] = static_cast<char>(header.size());
    write(path, length + header + std::string(static_cast<std::size_t>(begin) + 2, 'x'));
    EXPECT_EQ(SafetensorsFile::open(path.string()).has_value(), begin == 2) << begin;
  }
}

TEST_F(Checkpoints, AnyFlippedBitIsFound) {
  ASSERT_FALSE(save("aa", 5));
  ASSERT_EQ(found(), 5);
  std::mt19937 random(7);
  for (const fs::path& file : {shard(5), step_folder(5) / "manifest.json"}) {
    const std::string whole = bytes(file);
    for (int i = 0; i < 500; ++i) {
      std::string damaged = whole;
      const std::size_t bit = random() % (8 * whole.size());
      damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << (bit % 8)));
      write(file, damaged);
      EXPECT_EQ(found(), -1) << file << " bit " << bit;
    }
    for (int i = 0; i < 64; ++i) {
      write(file, whole.substr(0, random() % whole.size()));
      EXPECT_EQ(found(), -1) << file;
    }
    write(file, whole + "x");
    EXPECT_EQ(found(), -1);
    write(file, whole);
  }
  EXPECT_EQ(found(), 5);
}

TEST_F(Checkpoints, TwoFlippedSignsAreFound) {
  ASSERT_FALSE(save("aa", 5));
  const std::string whole = bytes(shard(5));
  const std::size_t floats = whole.size() - 4000;
  for (const auto& [one, other] : {std::pair{1, 3}, {11, 501}, {2, 4}, {0, 999}}) {
    std::string damaged = whole;
    for (int at : {one, other}) damaged[floats + static_cast<std::size_t>(4 * at) + 3] ^= '\x80';
    write(shard(5), damaged);
    EXPECT_EQ(found(), -1) << one << " " << other;
  }
}

TEST_F(Checkpoints, ADamagedNewestGivesWayToTheOneBefore) {
  for (int step : {1, 2, 3}) ASSERT_FALSE(save("aa", step));
  std::string damaged = bytes(shard(3, 1));
  damaged.back() ^= 1;
  write(shard(3, 1), damaged);
  EXPECT_EQ(found(), 2);
  fs::remove(shard(2));
  EXPECT_EQ(found(), 1);
  const auto named = open_checkpoint(step_folder(3).string());
  ASSERT_FALSE(named) << "who names one gets that one or none";
  EXPECT_NE(to_string(named.problems()).find("XXH3-128"), std::string::npos);
}

/// A manifest that somebody has forged, with its hash, leads no reader out of the folder.
TEST_F(Checkpoints, AShardOutsideOfTheFolderIsRefused) {
  ASSERT_FALSE(save("aa", 5));
  const fs::path manifest = step_folder(5) / "manifest.json";
  fs::copy(shard(5), folder_ / "canary");
  const std::string before = bytes(folder_ / "canary");
  for (const std::string& name :
       {std::string("../canary"), (folder_ / "canary").string(), std::string("a/../../canary"),
        std::string("\x1b[2Jx"), std::string("a\0b", 3), std::string(4096, 'a'), std::string("..")}) {
    Result<Json> json = parse_json(bytes(manifest), "manifest");
    ASSERT_TRUE(json);
    Json forged = Json::object();
    for (const auto& [key, value] : json->members())
      if (key != "sha256") forged[key] = value;
    forged["shards"].items().front()["file"] = name;
    const Result<ManifestHead> head = parse_manifest(sealed_manifest(forged), "manifest");
    ASSERT_FALSE(head) << name;
    const std::string text = to_string(head.problems());
    EXPECT_NE(text.find("leaves the folder"), std::string::npos) << text;
    EXPECT_EQ(text.find('\x1b'), std::string::npos);
    write(folder_ / "forged.json", sealed_manifest(forged));
    fs::copy_file(folder_ / "forged.json", manifest, fs::copy_options::overwrite_existing);
    EXPECT_FALSE(open_checkpoint(folder_.string())) << name;
    ASSERT_FALSE(save("aa", 5));
  }
  EXPECT_EQ(bytes(folder_ / "canary"), before);
}

TEST_F(Checkpoints, AnEarlierFormatIsNamed) {
  ASSERT_FALSE(save("aa", 5));
  write(step_folder(5) / "manifest.json", "{\"format\": \"millrace-checkpoint-1\", \"model\": \"m\"}\n");
  write(folder_ / "latest", "step-00000005\n");
  const auto opened = open_checkpoint(folder_.string());
  ASSERT_FALSE(opened);
  const std::string text = to_string(opened.problems());
  for (const char* part : {"millrace-checkpoint-1", "millrace-checkpoint-2", "another version"})
    EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST_F(Checkpoints, ReadersAndPruningFollowTheRun) {
  for (int step : {10, 20, 30}) ASSERT_FALSE(save("old", step));
  // Another run in the same folder, as nothing but a copy by hand can make it now.
  ASSERT_FALSE(save("new", 5));
  EXPECT_EQ(found(), 5);
  EXPECT_EQ(entries(), (std::vector<std::string>{"latest", "step-00000005", "step-00000010", "step-00000020",
                                                 "step-00000030"}));
  for (int step : {6, 7, 8}) ASSERT_FALSE(save("new", step));
  EXPECT_EQ(entries(), (std::vector<std::string>{"latest", "step-00000006", "step-00000007", "step-00000008",
                                                 "step-00000010", "step-00000020", "step-00000030"}));
  fs::remove_all(step_folder(8));
  EXPECT_EQ(found(), 7);
  for (int step : {6, 7}) fs::remove_all(step_folder(step));
  EXPECT_EQ(found(), -1) << "another run's is not taken";
  fs::remove(folder_ / "latest");
  EXPECT_EQ(found(), 30) << "one run is left";
}

TEST_F(Checkpoints, EveryNthStaysBesideTheNewest) {
  const auto expect = [&](const Retention& keep, const std::vector<int>& kept) {
    fs::remove_all(folder_);
    for (int step : {10, 15, 20, 25, 30, 35}) ASSERT_FALSE(save("aa", step, keep));
    std::vector<std::string> names{"latest"};
    for (int step : kept) names.push_back(step_folder(step).filename());
    EXPECT_EQ(entries(), names) << keep.newest << " " << keep.every;
  };
  expect({.newest = 2}, {30, 35});
  expect({.newest = 2, .every = 10}, {10, 20, 30, 35});
  expect({.newest = 1, .every = 20}, {20, 35});
  expect({.newest = 1, .every = 1}, {10, 15, 20, 25, 30, 35});
  expect({.newest = 0, .every = 20}, {10, 15, 20, 25, 30, 35});
}

/// Else who lists checkpoints meanwhile finds a damaged one, and a process that is killed leaves one.
TEST_F(Checkpoints, AnOldOneIsGoneBeforeItsFilesAre) {
  ASSERT_FALSE(save("aa", 4));
  const int events = ::inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
  ASSERT_GE(::inotify_add_watch(events, step_folder(4).c_str(), IN_DELETE | IN_MOVE_SELF), 0);
  ASSERT_FALSE(save("aa", 5, {.newest = 1}));
  alignas(inotify_event) char buffer[4096] = {};
  EXPECT_GE(::read(events, buffer, sizeof buffer), static_cast<ssize_t>(sizeof(inotify_event)));
  EXPECT_TRUE(reinterpret_cast<const inotify_event*>(buffer)->mask & IN_MOVE_SELF) << "the first event";
  ::close(events);
  EXPECT_EQ(entries(), (std::vector<std::string>{"latest", "step-00000005"}));
}

TEST_F(Checkpoints, AReturnToAnOlderStepMovesTheLaterOnesAside) {
  for (int step : {10, 20, 30}) ASSERT_FALSE(save("aa", step));
  ASSERT_TRUE(go_on_from(folder_, "aa", 10));
  EXPECT_EQ(found(), 10) << "from that moment on, whatever happens";
  EXPECT_EQ(entries(), (std::vector<std::string>{"abandoned-1", "latest", "step-00000010"}));
  // Steps of the branch that was left lie before the new ones: they must not come back.
  ASSERT_FALSE(save("aa", 25));
  write(shard(25), "damaged");
  EXPECT_EQ(found(), 10);
  const Result<Checkpoint> left = open_checkpoint((folder_ / "abandoned-1").string());
  ASSERT_TRUE(left) << "nothing is deleted";
  EXPECT_EQ(left->info.step, 30);
  // A branch for each return; what nobody can read is not in the way either.
  write(step_folder(25) / "manifest.json", "damaged");
  ASSERT_TRUE(go_on_from(folder_, "aa", 10));
  ASSERT_FALSE(save("aa", 20));
  EXPECT_EQ(entries(), (std::vector<std::string>{"abandoned-1", "abandoned-2", "latest", "step-00000010",
                                                 "step-00000020"}));
  ASSERT_TRUE(go_on_from(folder_, "aa", 20)) << "the newest: nothing is left behind";
  EXPECT_FALSE(fs::exists(folder_ / "abandoned-3"));
}

TEST_F(Checkpoints, OldBranchesOfTheRunAreDeleted) {
  ASSERT_FALSE(save("aa", 10));
  const auto leave = [&](int step) {  // the newest branch
    ASSERT_FALSE(save("aa", step));
    ASSERT_TRUE(go_on_from(folder_, "aa", 10));
  };
  for (int step : {20, 30, 40, 50}) leave(step);
  write(folder_ / "abandoned-2" / "notes.txt", "mine");
  fs::create_directories(folder_ / "abandoned-7" / "step-00000020");  // no checkpoint
  prune_branches(folder_, "bb", 0);
  prune_branches(folder_, "aa", 2);
  EXPECT_EQ(entries(), (std::vector<std::string>{"abandoned-2", "abandoned-3", "abandoned-4", "abandoned-7",
                                                 "latest", "step-00000010"}));
  leave(60);
  EXPECT_TRUE(open_checkpoint((folder_ / "abandoned-8").string())) << "numbers tell which is the oldest";
  prune_branches(folder_, "aa", 1);
  EXPECT_FALSE(fs::exists(folder_ / "abandoned-4"));
  EXPECT_EQ(found(), 10);
}

TEST_F(Checkpoints, FilesOfTheUserOutliveTheirCheckpoint) {
  ASSERT_FALSE(save("aa", 10));
  ASSERT_FALSE(save("aa", 20));
  for (const fs::path& step : {step_folder(10), step_folder(20)}) {
    fs::create_directories(step / "plots");
    write(step / "notes.txt", "mine");
  }
  ASSERT_TRUE(go_on_from(folder_, "aa", 10));
  prune_branches(folder_, "aa", 0);
  EXPECT_TRUE(fs::exists(folder_ / "abandoned-1/step-00000020.kept/notes.txt"));
  ASSERT_FALSE(save("aa", 30, {.newest = 1}));
  EXPECT_EQ(entries(),
            (std::vector<std::string>{"abandoned-1", "latest", "step-00000010.kept", "step-00000030"}));
  for (const char* kept : {"abandoned-1/step-00000020.kept", "step-00000010.kept"}) {
    std::vector<std::string> left;
    for (const auto& entry : fs::directory_iterator(folder_ / kept)) left.push_back(entry.path().filename());
    std::ranges::sort(left);
    EXPECT_EQ(left, (std::vector<std::string>{"notes.txt", "plots"})) << kept;
  }
  ASSERT_FALSE(save("aa", 10));
  EXPECT_EQ(found(), 10) << "what was kept is in nobody's way";
}

TEST_F(Checkpoints, NamesThatAreTakenAreNoPlaceToMoveTo) {
  for (int step : {10, 20}) ASSERT_FALSE(save("aa", step));
  write(folder_ / "abandoned-1", "");
  fs::create_directories(folder_ / "abandoned-2" / "step-00000020" / "mine");
  ASSERT_TRUE(go_on_from(folder_, "aa", 10));
  EXPECT_TRUE(fs::exists(folder_ / "abandoned-3" / "step-00000020" / "manifest.json"));
}

TEST_F(Checkpoints, ADamagedLatestDoesNotHideWholeOnes) {
  for (int step : {10, 20, 30}) ASSERT_FALSE(save("aa", step));
  for (const char* damaged :
       {"", "garbage", "step-", "step-0000003", "step-00000010", "step-00000010\n", "step-00000010\naa",
        "step-00000005\naa\n", "step-00000010\nab\n", "step-0000001x\naa\n"}) {
    write(folder_ / "latest", damaged);
    EXPECT_EQ(found(), 30) << damaged;
  }
  fs::remove(folder_ / "latest");
  fs::create_directory(folder_ / "latest");
  EXPECT_EQ(found(), 30) << "a folder of that name";
  fs::remove(folder_ / "latest");
  ASSERT_EQ(::mkfifo((folder_ / "latest").c_str(), 0600), 0);
  EXPECT_EQ(found(), 30) << "a FIFO, for whose writer nobody waits";
}

TEST_F(Checkpoints, AFolderOfAnotherFormatIsNamed) {
  write(folder_ / ".metadata", "");
  const Result<CheckpointChoice> choice = checkpoints_at(folder_.string());
  ASSERT_FALSE(choice);
  EXPECT_NE(to_string(choice.problems()).find("is a checkpoint of torch.distributed.checkpoint"),
            std::string::npos)
      << to_string(choice.problems());
}

TEST_F(Checkpoints, TheBestIsNamedWhereItIsTheOnlyOne) {
  save("aaa", 10);
  fs::create_directories(folder_ / "run/checkpoints");
  fs::create_directories(folder_ / "run/best");
  fs::rename(folder_ / step_name(10), folder_ / "run/best" / step_name(10));
  const Result<CheckpointChoice> none = checkpoints_at((folder_ / "run").string());
  ASSERT_FALSE(none);
  EXPECT_EQ(none.problems()[0].hint, "name that one: " + (folder_ / "run/best").string());
}

TEST_F(Checkpoints, SavingAStepAgainReplacesIt) {
  ASSERT_FALSE(save("aa", 5));
  const std::string first = bytes(step_folder(5) / "manifest.json");
  ASSERT_FALSE(save("bb", 5));
  EXPECT_NE(bytes(step_folder(5) / "manifest.json"), first);
  EXPECT_EQ(found(), 5);
  EXPECT_EQ(entries(), (std::vector<std::string>{"latest", "step-00000005"}));
}

TEST_F(Checkpoints, WhateverACrashLeavesAReaderFindsOne) {
  for (int step : {4, 5}) ASSERT_FALSE(save("aa", step));
  // Between the two renames of a step that is saved again, where names cannot be exchanged.
  fs::rename(step_folder(5), step_folder(5).string() + ".replaced");
  EXPECT_EQ(found(), 5);
  ASSERT_TRUE(go_on_from(folder_, "aa", 5));
  EXPECT_TRUE(fs::exists(step_folder(5)));
  // A half written folder of this run, and one of another.
  for (const char* run : {"aa", "zz"}) {
    fs::create_directories(step_folder(6).string() + ".tmp." + run);
    fs::copy(shard(5), step_folder(6).string() + ".tmp." + run + "/stage0.safetensors");
  }
  EXPECT_EQ(found(), 5);
  ASSERT_TRUE(go_on_from(folder_, "aa", 5));
  EXPECT_EQ(entries(),
            (std::vector<std::string>{"latest", "step-00000004", "step-00000005", "step-00000006.tmp.zz"}));
  // The checkpoint is in place, but `latest` is missing or torn.
  ASSERT_FALSE(save("aa", 6));
  write(folder_ / "latest", "step-00000005\naa\n");
  EXPECT_EQ(found(), 5);
  for (const char* torn : {"", "step", "../x\naa\n"}) {
    write(folder_ / "latest", torn);
    EXPECT_EQ(found(), 6) << torn;
  }
}

TEST_F(Checkpoints, AFullDiskLosesNothingThatWasSaved) {
  ASSERT_FALSE(save("aa", 1));
  for (const rlim_t room : {0, 100, 2000, 4000}) {
    const SizeLimit full(room);
    const auto problem = save("aa", 2);
    ASSERT_TRUE(problem) << room;
    EXPECT_NE(problem->what.find("File too large"), std::string::npos) << problem->what;
  }
  {
    const SizeLimit full(300);  // `latest` has room, a shard not
    const auto problem = save("aa", 2);
    ASSERT_TRUE(problem);
    EXPECT_NE(problem->what.find("needs 4"), std::string::npos) << problem->what;
    EXPECT_NE(problem->what.find("are free"), std::string::npos) << problem->what;
  }
  EXPECT_EQ(entries(), (std::vector<std::string>{"latest", "step-00000001"}));
  EXPECT_EQ(found(), 1);
  ASSERT_FALSE(save("aa", 2));
  EXPECT_EQ(found(), 2);
}

TEST_F(Checkpoints, ASaveWithoutRoomWritesNothing) {
  const char* allowed = std::getenv("MILLRACE_MOUNTS");
  if (!allowed || !*allowed) GTEST_SKIP() << "MILLRACE_MOUNTS is not set (needs root, to mount a small disk)";
  // Six pages. A checkpoint has four: two shards, a manifest and `latest`.
  ASSERT_EQ(::mount("tmpfs", folder_.c_str(), "tmpfs", 0, "size=24k"), 0) << std::strerror(errno);
  const auto first = save("aa", 1);
  const auto second = save("aa", 2);
  const std::vector<std::string> there = entries();
  const std::int64_t newest = found();
  EXPECT_EQ(::umount(folder_.c_str()), 0);
  EXPECT_FALSE(first);
  ASSERT_TRUE(second);
  EXPECT_NE(second->what.find("it needs 9600 bytes (1.2 times its tensors), 8192 are free"),
            std::string::npos)
      << second->what;
  EXPECT_EQ(there, (std::vector<std::string>{"latest", "step-00000001"}));
  EXPECT_EQ(newest, 1);
}

TEST_F(Checkpoints, AllRanksTakeTheSameOneWhoeverCannotReadIt) {
  for (int step : {1, 2}) ASSERT_FALSE(save("aa", step));
  std::string damaged = bytes(shard(2, 1));
  damaged.back() ^= 1;
  write(shard(2, 1), damaged);
  std::int64_t steps[2] = {};
  run_as_threads(make_local_communicators(2, milliseconds(10'000)), [&](Communicator& world) {
    // Rank 0 needs only the whole shard, rank 1 only the damaged one.
    const int me = world.rank().value;
    steps[me] =
        open_checkpoint_together(world, folder_.string(), {"w" + std::to_string(me)}, milliseconds(10'000))
            .info.step;
  });
  EXPECT_EQ(steps[0], 1);
  EXPECT_EQ(steps[1], 1);
  int refused = 0;
  run_as_threads(make_local_communicators(2, milliseconds(10'000)), [&](Communicator& world) {
    try {
      open_checkpoint_together(world, step_folder(2).string(), {"w" + std::to_string(world.rank().value)},
                               milliseconds(10'000));
    } catch (const CheckpointError& error) {
      EXPECT_NE(std::string(error.what()).find("rank 1"), std::string::npos) << error.what();
      __atomic_add_fetch(&refused, 1, __ATOMIC_SEQ_CST);
    }
  });
  EXPECT_EQ(refused, 2);
}

/// Every number of a manifest: the value that is read is the one that was written, or the save is refused and
/// says which member is wrong.
TEST_F(Checkpoints, EveryNumberIsReadAsItWasWrittenOrTheSaveIsRefused) {
  ASSERT_FALSE(save("aa", 5));
  CheckpointInfo whole = info("aa", 9);
  whole.settings.emplace_back("jobs", "1");
  whole.best = {{.metric = "perplexity", .value = 2.5, .step = 4, .since = 1}};
  const LossScaleState scale{.scale = 1024, .since_growth = 1, .skipped = 2, .skipped_in_a_row = 3};
  const AveragingState averaging{.losses = {0.5, 0.25}, .from = 3, .evaluated = 8};
  whole.loss_scale = scale;
  whole.averaging = averaging;
  whole.jobs = {{.step = 9, .position = 36, .updates = 9, .averaging = averaging, .loss_scale = scale}};
  using Info = CheckpointInfo;
  struct Real {
    const char* member;
    double& (*of)(Info&);
  };
  struct Count {
    const char* member;
    std::int64_t& (*of)(Info&);
  };
  const Real reals[] = {
      {"value", [](Info& i) -> double& { return i.best[0].value; }},
      {"losses", [](Info& i) -> double& { return i.averaging->losses[0]; }},
      {"scale", [](Info& i) -> double& { return i.loss_scale->scale; }},
      {"losses", [](Info& i) -> double& { return i.jobs[0].averaging->losses[1]; }},
      {"scale", [](Info& i) -> double& { return i.jobs[0].loss_scale->scale; }},
  };
  const Count counts[] = {
      {"step", [](Info& i) -> std::int64_t& { return i.step; }},
      {"position", [](Info& i) -> std::int64_t& { return i.position; }},
      {"updates", [](Info& i) -> std::int64_t& { return i.updates; }},
      {"step", [](Info& i) -> std::int64_t& { return i.best[0].step; }},
      {"since", [](Info& i) -> std::int64_t& { return i.best[0].since; }},
      {"from", [](Info& i) -> std::int64_t& { return i.averaging->from; }},
      {"evaluated", [](Info& i) -> std::int64_t& { return i.averaging->evaluated; }},
      {"since_growth", [](Info& i) -> std::int64_t& { return i.loss_scale->since_growth; }},
      {"skipped", [](Info& i) -> std::int64_t& { return i.loss_scale->skipped; }},
      {"skipped_in_a_row", [](Info& i) -> std::int64_t& { return i.loss_scale->skipped_in_a_row; }},
      {"job", [](Info& i) -> std::int64_t& { return i.jobs[0].step; }},
      {"job", [](Info& i) -> std::int64_t& { return i.jobs[0].position; }},
      {"updates", [](Info& i) -> std::int64_t& { return i.jobs[0].updates; }},
  };
  int refused = 0;
  /// Saves the changed manifest. Returns it as resume reads it; nothing: it was refused.
  const auto through = [&](const Info& changed, const std::string& member) -> std::optional<Info> {
    std::optional<RankProblem> problem;
    const std::int64_t before = open_checkpoint(folder_.string())->info.step;
    run_as_threads(make_local_communicators(1, milliseconds(10'000)), [&](Communicator& world) {
      problem = save_checkpoint(world, folder_.string(), changed, 1, {{0, {{"w1", values(1)}}}}, {});
    });
    const Result<Checkpoint> opened = open_checkpoint(folder_.string());
    EXPECT_TRUE(opened) << member << ": " << to_string(opened.problems());
    if (!problem) return opened ? std::optional(opened->info) : std::nullopt;
    ++refused;
    // A step below 0 is refused before the shards are looked at: it names the folder.
    EXPECT_NE(problem->what.find(changed.step < 0 ? "is negative" : "cannot be read back"), std::string::npos)
        << problem->what;
    EXPECT_NE(problem->what.find("manifest.json:"), std::string::npos) << problem->what;
    if (opened) {
      EXPECT_EQ(opened->info.step, before) << member << ": `latest` stays";
    }
    return std::nullopt;
  };
  const auto bits = [](double value) {
    return std::isnan(value) ? ~0ULL : std::bit_cast<std::uint64_t>(value);
  };
  using Double = std::numeric_limits<double>;
  for (const Real& real : reals) {
    for (const double value : {Double::quiet_NaN(), Double::infinity(), -Double::infinity(), -0.0, 0.0,
                               Double::max(), Double::lowest(), Double::denorm_min(), 0.1, 1e22}) {
      Info changed = whole;
      real.of(changed) = value;
      std::optional<Info> read = through(changed, real.member);
      if (!read) {
        EXPECT_FALSE(value > 0) << real.member << " " << value;
        EXPECT_STREQ(real.member, "scale") << value << ": any other number is one";
      } else {
        EXPECT_EQ(bits(real.of(*read)), bits(value)) << real.member << " " << value;
      }
    }
  }
  using Int = std::numeric_limits<std::int64_t>;
  for (const Count& count : counts) {
    for (const std::int64_t value : {Int::min(), std::int64_t{-2}, std::int64_t{-1}, std::int64_t{0},
                                     (std::int64_t{1} << 53) + 1, Int::max()}) {
      Info changed = whole;
      count.of(changed) = value;
      std::optional<Info> read = through(changed, count.member);
      if (read) {
        EXPECT_EQ(count.of(*read), value) << count.member;
      }
    }
  }
  EXPECT_GT(refused, 20) << "counts below 0";
  Info of_step_0 = whole, ahead = whole;
  of_step_0.best[0] = {.metric = "perplexity", .value = 2.5, .step = 0, .since = 0};
  EXPECT_EQ(through(of_step_0, "best")->best.size(), 1u);
  ahead.jobs[0].position = ahead.position + 1;
  EXPECT_FALSE(through(ahead, "position")) << "a job is at most as far as its array";
  // A manifest of before this rule.
  const ManifestHead old{
      .json = *parse_json(
          R"({"format": "f", "run": "aa", "parent": "", "model": "m", "step": 3, "position": 3, "updates": 3,
          "plan": "", "settings": {}, "averaging": {"losses": ["none", 1.5], "from": -1, "evaluated": 2},
          "best": [{"metric": "perplexity", "value": "Infinity", "step": 2, "since": 0}],
          "shards": [], "sha256": ""})",
          "old")};
  const Result<CheckpointInfo> read = read_info(old);
  ASSERT_TRUE(read) << to_string(read.problems());
  EXPECT_EQ(read->best[0].value, Double::infinity());
  EXPECT_TRUE(std::isnan(read->averaging->losses[0]));
}

TEST_F(Checkpoints, NonFiniteTensorsAreNamed) {
  const NamedTensors good{{"w", values(0)}, {"count", at::full({}, 3, at::kLong)}};
  EXPECT_EQ(non_finite_in(good), "");
  for (const auto& [bad, text] :
       {std::pair{std::nan(""), "NaN"}, {double(INFINITY), "Infinity"}, {-double(INFINITY), "-Infinity"}}) {
    NamedTensors tensors = good;
    tensors.emplace_back("b", values(0));
    tensors.back().second[500].fill_(bad);
    EXPECT_EQ(non_finite_in(tensors), std::string("b holds ") + text);
  }
}

TEST_F(Checkpoints, WorkMayTakeLongerThanAMessage) {
  const auto start = std::chrono::steady_clock::now();
  int through = 0;
  run_as_threads(make_local_communicators(3, milliseconds(400)), [&](Communicator& world) {
    const auto problem = run_together(world, milliseconds(60'000), "work", [&] {
      if (world.rank().value == 1) std::this_thread::sleep_for(milliseconds(1500));
    });
    EXPECT_FALSE(problem);
    __atomic_add_fetch(&through, 1, __ATOMIC_SEQ_CST);
  });
  EXPECT_EQ(through, 3);
  EXPECT_GE(std::chrono::steady_clock::now() - start, milliseconds(1500));
}

TEST_F(Checkpoints, WorkHasADeadlineOfItsOwn) {
  int late = 0;
  run_as_threads(make_local_communicators(3, milliseconds(10'000)), [&](Communicator& world) {
    try {
      run_together(world, milliseconds(300), "work", [&] {
        if (world.rank().value == 2) std::this_thread::sleep_for(milliseconds(1200));
      });
    } catch (const CheckpointError& error) {
      EXPECT_NE(std::string(error.what()).find("takes rank(s) 2 longer"), std::string::npos) << error.what();
      __atomic_add_fetch(&late, 1, __ATOMIC_SEQ_CST);
    }
  });
  EXPECT_EQ(late, 3);
}

TEST_F(Checkpoints, TheFirstRankThatFailsIsNamedOnAll) {
  run_as_threads(make_local_communicators(3, milliseconds(10'000)), [&](Communicator& world) {
    const auto problem = run_together(world, milliseconds(10'000), "work", [&] {
      if (world.rank().value > 0)
        throw ConfigError("trouble of " + std::to_string(world.rank().value), "do this");
    });
    ASSERT_TRUE(problem);
    EXPECT_EQ(to_string(*problem), "rank 1: trouble of 1. Hint: do this");
  });
}

}  // namespace
}  // namespace millrace
