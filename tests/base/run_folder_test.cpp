// The folder of a run: who holds it, what an earlier run left; files on a disk that is full.
#include "runtime/base/run_folder.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/files.h"

namespace millrace {
namespace {
namespace fs = std::filesystem;

class RunFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/millrace-test-XXXXXX";
    folder_ = ::mkdtemp(name);
  }
  void TearDown() override { fs::remove_all(folder_); }
  void write(const std::string& name, const std::string& text = "x") {
    fs::create_directories((folder_ / name).parent_path());
    ASSERT_TRUE(write_file_atomically(folder_ / name, text));
  }
  fs::path folder_;
};

TEST_F(RunFolder, TheFailureThatExplainsTheOthersIsFound) {
  EXPECT_FALSE(failure_of(folder_));
  EXPECT_FALSE(failure_of(folder_ / "absent"));
  write_failure(folder_, {.rank = 0, .step = 7, .exit_code = 5, .error = "connection lost"});
  write("failure.rank3.json", "{\"rank\": ");  // damaged
  EXPECT_EQ(failure_of(folder_)->rank, 0);
  write_failure(folder_, {.rank = 2, .step = 6, .exit_code = 137, .error = "killed", .hint = "look"});
  const std::optional<RunFailure> root = failure_of(folder_);
  ASSERT_TRUE(root);
  EXPECT_EQ(root->rank, 2);
  EXPECT_EQ(root->step, 6);
  EXPECT_EQ(root->exit_code, 137);
  EXPECT_EQ(root->error, "killed");
  EXPECT_EQ(root->hint, "look");
  EXPECT_EQ(earlier_run(folder_), "") << "nothing that would be missed";
  remove_failures(folder_);
  EXPECT_FALSE(failure_of(folder_));
  write_failure(folder_, *root);
  ASSERT_TRUE(remove_earlier_run(folder_));
  EXPECT_FALSE(failure_of(folder_));
}

/// Nobody writes to them: whoever opened one would wait for ever.
TEST_F(RunFolder, FifosInItAreNotWaitedFor) {
  for (const char* name : {"failure.rank0.json", "run.lock"})
    ASSERT_EQ(::mkfifo((folder_ / name).c_str(), 0600), 0);
  EXPECT_FALSE(failure_of(folder_));
  EXPECT_FALSE(is_locked(folder_));
}

TEST_F(RunFolder, TellsWhetherItIsHeld) {
  EXPECT_FALSE(is_locked(folder_));
  {
    const Result<RunLock> lock = RunLock::acquire(folder_, "r");
    ASSERT_TRUE(lock);
    EXPECT_TRUE(is_locked(folder_));
  }
  EXPECT_FALSE(is_locked(folder_));
  EXPECT_TRUE(RunLock::acquire(folder_, "r")) << "asking takes nothing";
}

/// Files end at `bytes`, as on a full disk.
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

TEST_F(RunFolder, IdsDiffer) {
  const std::string id = new_run_id();
  EXPECT_EQ(id.size(), 16u);
  EXPECT_NE(id, new_run_id());
}

TEST_F(RunFolder, ASecondHolderIsRefusedAndTheFirstIsNamed) {
  Result<RunLock> first = RunLock::acquire(folder_, "aaaa");
  ASSERT_TRUE(first);
  const Result<RunLock> second = RunLock::acquire(folder_, "bbbb");
  ASSERT_FALSE(second);
  const std::string text = to_string(second.problems());
  for (const std::string& part : {std::string("run aaaa"), "process " + std::to_string(::getpid())})
    EXPECT_NE(text.find(part), std::string::npos) << text;
  // Our launcher holds it for us, another process does not.
  EXPECT_TRUE(RunLock::acquire(folder_, "cccc", "aaaa"));
  EXPECT_FALSE(RunLock::acquire(folder_, "cccc", "bbbb"));
  *first = RunLock();
  EXPECT_TRUE(RunLock::acquire(folder_, "dddd"));
}

TEST_F(RunFolder, TheLockOfAKilledProcessIsNoObstacle) {
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto lock = RunLock::acquire(folder_, "dead");
    const char byte = lock ? '1' : '0';
    if (::write(ready[1], &byte, 1) != 1) ::_exit(1);
    for (;;) ::pause();
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  EXPECT_EQ(byte, '1');
  EXPECT_FALSE(RunLock::acquire(folder_, "mine"));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_TRUE(fs::exists(folder_ / "run.lock"));
  EXPECT_TRUE(RunLock::acquire(folder_, "mine"));
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST_F(RunFolder, WhatARunLeftIsNamedAndOnlyThatIsDeleted) {
  EXPECT_TRUE(check_unused(folder_ / "absent"));
  write("job.yaml");
  write("logs/rank_0.err");
  write("steps.rank0.jsonl", "{\"format\":\"millrace-steps-1\"}\n");
  write("checkpoints/step-00000005.tmp.aaaa/stage0.safetensors");
  EXPECT_TRUE(check_unused(folder_)) << "a run that never came to its first step left nothing to lose";
  write("steps.rank0.jsonl", "{\"format\":\"millrace-steps-1\"}\n{\"step\":0}\n");
  EXPECT_EQ(earlier_run(folder_), "logs of steps");
  write("checkpoints/step-00000010/manifest.json");
  write("checkpoints/step-00000020/manifest.json");
  write("checkpoints/latest");
  write("summary.json");
  write("notes.txt");
  const Status used = check_unused(folder_);
  ASSERT_FALSE(used);
  const std::string text = to_string(used.problems());
  for (const char* part : {"step-00000020", "a summary", "--resume", "--overwrite", "--output-dir"})
    EXPECT_NE(text.find(part), std::string::npos) << text;
  ASSERT_TRUE(remove_earlier_run(folder_));
  EXPECT_TRUE(check_unused(folder_));
  EXPECT_FALSE(fs::exists(folder_ / "checkpoints/latest"));
  for (const char* kept : {"notes.txt", "job.yaml", "logs/rank_0.err"})
    EXPECT_TRUE(fs::exists(folder_ / kept)) << kept;
}

TEST_F(RunFolder, ALineIsWrittenWholeOrNotAtAll) {
  LineFile file(folder_ / "lines");
  ASSERT_TRUE(file.write_line("one"));
  {
    const SizeLimit full(8);
    const Status written = file.write_line("a line that does not fit");
    ASSERT_FALSE(written);
    EXPECT_NE(to_string(written.problems()).find("File too large"), std::string::npos);
  }
  ASSERT_TRUE(file.write_line("two"));
  EXPECT_EQ(*read_file(folder_ / "lines"), "one\ntwo\n");
}

TEST_F(RunFolder, AFullDiskLeavesTheOldFile) {
  write("f", "old");
  const SizeLimit full(8);
  EXPECT_FALSE(write_file_atomically(folder_ / "f", "something longer than eight"));
  EXPECT_EQ(*read_file(folder_ / "f"), "old");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1);
}

TEST_F(RunFolder, PrivateFilesArePrivateWhateverTheUmask) {
  const mode_t before = ::umask(0);
  ASSERT_TRUE(write_file_atomically(folder_ / "secret", "x", Readers::Private));
  ::umask(before);
  struct stat info {};
  ASSERT_EQ(::stat((folder_ / "secret").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_F(RunFolder, APlaceForAFileIsMadeOrRefused) {
  EXPECT_TRUE(make_place_for_file(folder_ / "new/folder/w.safetensors"));
  EXPECT_TRUE(fs::is_directory(folder_ / "new/folder"));
  EXPECT_FALSE(make_place_for_file(folder_ / "new/folder"));
  write("file");
  EXPECT_FALSE(make_place_for_file(folder_ / "file/w.safetensors"));
}

TEST_F(RunFolder, AFolderIsReplacedByAFullOne) {
  for (const auto replace : {replace_folder, replace_folder_by_renames}) {
    fs::remove_all(folder_);
    write("to/old");
    write("from/new");
    ASSERT_TRUE(replace(folder_ / "from", folder_ / "to"));
    EXPECT_TRUE(fs::exists(folder_ / "to/new"));
    EXPECT_FALSE(fs::exists(folder_ / "to/old"));
    EXPECT_FALSE(fs::exists(folder_ / "to.replaced"));
    fs::remove_all(folder_ / "from");
    write("from/newer");
    fs::remove_all(folder_ / "to");
    ASSERT_TRUE(replace(folder_ / "from", folder_ / "to")) << "nothing is there";
    EXPECT_TRUE(fs::exists(folder_ / "to/newer"));
    EXPECT_FALSE(fs::exists(folder_ / "from"));
  }
}

}  // namespace
}  // namespace millrace
