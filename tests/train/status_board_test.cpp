// The status file: whole JSON of a fixed size after every update, also when the rank is gone.
#include "runtime/train/status_board.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "runtime/base/files.h"
#include "runtime/base/json.h"

namespace millrace {
namespace {

class StatusBoardFile : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/millrace-status-XXXXXX";
    folder_ = ::mkdtemp(name);
    path_ = folder_ + "/status.rank3.json";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void expect_shows(std::int64_t step, const std::string& action, double slow = 0) const {
    const Result<std::string> text = read_file(path_);
    ASSERT_TRUE(text);
    EXPECT_EQ(text->size(), 256u);
    EXPECT_EQ(text->back(), '\n');
    const Result<Json> json = parse_json(*text, path_);
    ASSERT_TRUE(json) << *text;
    const Json* beat = json->find("beat");
    ASSERT_TRUE(beat && beat->kind() == Json::Kind::Int) << *text;
    Json expected = Json::object(
        {{"beat", beat->as_int()}, {"rank", 3}, {"stage", 1}, {"step", step}, {"action", action}});
    if (slow > 0) expected["slow"] = slow;
    EXPECT_EQ(json->dump(), expected.dump());
  }

  std::string folder_, path_;
};

TEST_F(StatusBoardFile, ShowsTheNewestAction) {
  StatusBoard board(path_, 3, 1);
  expect_shows(-1, "start");
  board.update(0, "1RECV_F0<0@0");
  expect_shows(0, "1RECV_F0<0@0");
  board.update(123456789, "a much longer action than the one before");
  expect_shows(123456789, "a much longer action than the one before");
  board.update(7, "b");  // nothing of the longer one is left behind it
  expect_shows(7, "b");
}

TEST_F(StatusBoardFile, IsReadAfterItsWriterHasGone) {
  { StatusBoard(path_, 3, 1).update(4, "1B2"); }
  expect_shows(4, "1B2");
}

TEST_F(StatusBoardFile, CutsALongActionOff) {
  StatusBoard board(path_, 3, 1);
  board.update(1, std::string(1000, 'x'));
  expect_shows(1, std::string(120, 'x'));
}

TEST_F(StatusBoardFile, MovesWithItsFile) {
  StatusBoard first(path_, 3, 1);
  first.update(1, "a longer text");
  StatusBoard second(std::move(first));
  second.update(2, "short");
  expect_shows(2, "short");
  StatusBoard third;
  third = std::move(second);
  third.update(3, "F");
  expect_shows(3, "F");
}

TEST_F(StatusBoardFile, SaysThatTheRankIsSlow) {
  StatusBoard board(path_, 3, 1);
  board.set_slow(2.46);
  board.update(1, std::string(120, 'x'));
  expect_shows(1, std::string(120, 'x'), 2.5);
}

/// Whatever the rank waits for, its process lives.
TEST_F(StatusBoardFile, BeatsWithoutAnUpdate) {
  const auto beat = [this] {
    const Result<Json> json = read_json(path_);
    return json ? json->find("beat")->as_int() : 0;
  };
  StatusBoard board(path_, 3, 1);
  const std::int64_t first = beat();
  EXPECT_GT(first, 0);
  for (const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
       beat() == first && std::chrono::steady_clock::now() < end;)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_NE(beat(), first);  // the host's clock may be set meanwhile: no more is known of the number
}

TEST_F(StatusBoardFile, ABoardWithoutAFileMakesNoText) {
  int made = 0;
  const auto action = [&made] {
    ++made;
    return std::string("F");
  };
  StatusBoard nowhere;
  nowhere.update_with(1, action);
  StatusBoard cannot_open(folder_ + "/absent/status.json", 3, 1);
  cannot_open.update_with(1, action);
  EXPECT_EQ(made, 0);
  StatusBoard board(path_, 3, 1);
  board.update_with(1, action);
  EXPECT_EQ(made, 1);
  expect_shows(1, "F");
}

}  // namespace
}  // namespace millrace
