// Records of a rank's actions and messages: what a file holds, and what readers make of damage.
#include "runtime/trace/flight_recorder.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "runtime/base/files.h"

namespace millrace {
namespace {

using Kind = FlightRecord::Kind;
using State = FlightRecord::State;

class FlightRecords : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/millrace-flight-XXXXXX";
    folder_ = ::mkdtemp(name);
    path_ = (folder_ / "flight.rank3.bin").string();
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path folder_;
  std::string path_;
};

TEST_F(FlightRecords, TheFileHasThemBeforeTheRankEnds) {
  FlightRecorder recorder(steady_clock());
  EXPECT_EQ(recorder.action(0, "0F0"), 0u) << "nothing is recorded yet";
  recorder.open(path_, 3, 1, 1'000'000'000'000);
  const std::uint64_t action = recorder.action(7, "1RECV_F0<0@2");
  const std::uint64_t message = recorder.message(Kind::Receive, 2, 4096, 77);
  recorder.wait(message, "RECV_F of microbatch 0");
  Flight flight = *read_flight(path_);
  EXPECT_EQ(flight.rank, 3);
  EXPECT_EQ(flight.stage, 1);
  EXPECT_EQ(flight.pid, ::getpid());
  ASSERT_EQ(flight.records.size(), 2u);
  EXPECT_EQ(flight.records[0].text(), "1RECV_F0<0@2");
  EXPECT_EQ(flight.records[0].state, State::Begun);
  EXPECT_EQ(flight.records[1].text(), "RECV_F of microbatch 0");
  EXPECT_EQ(flight.records[1].state, State::Waiting);
  EXPECT_EQ(flight.records[1].peer, 2);
  EXPECT_EQ(flight.records[1].bytes, 4096);
  EXPECT_EQ(flight.records[1].step, 7) << "of the action in which it was posted";
  recorder.end(message, State::Failed);
  recorder.end(action, State::Done);
  flight = *read_flight(path_);
  EXPECT_EQ(flight.records[0].state, State::Done);
  EXPECT_EQ(flight.records[1].state, State::Failed);
  EXPECT_GE(flight.records[1].ended, flight.records[1].waited);
}

TEST_F(FlightRecords, TheLastOnesStay) {
  FlightRecorder recorder(steady_clock());
  recorder.open(path_, 0, 0, 0);
  const std::uint64_t first = recorder.action(0, "first");
  constexpr std::int64_t kMany = 3 * FlightRecorder::kCapacity + 5;
  for (std::int64_t step = 1; step <= kMany; ++step) recorder.action(step, std::string(200, 'x'));
  recorder.end(first, State::Failed);  // its place is another's
  const Flight flight = *read_flight(path_);
  ASSERT_EQ(flight.records.size(), FlightRecorder::kCapacity);
  EXPECT_EQ(flight.records.back().step, kMany);
  EXPECT_EQ(flight.records.front().step, kMany - static_cast<std::int64_t>(FlightRecorder::kCapacity) + 1);
  EXPECT_EQ(flight.records.back().text().size(), sizeof(FlightRecord::what) - 1);
  for (const FlightRecord& record : flight.records) EXPECT_EQ(record.state, State::Begun);
}

TEST_F(FlightRecords, DamagedFilesAreRefusedOrReadAsFarAsTheyAreWhole) {
  {
    FlightRecorder recorder(steady_clock());
    recorder.open(path_, 0, 0, 0);
    recorder.action(1, "a");
    recorder.action(2, "b");
  }
  const std::string bytes = *read_file(path_, kGiB);
  const auto with = [&](const std::string& changed) {
    EXPECT_TRUE(write_file_atomically(path_, changed));
    return read_flight(path_);
  };
  EXPECT_FALSE(with(bytes.substr(0, bytes.size() - 1)));
  EXPECT_FALSE(with("x" + bytes.substr(1)));
  EXPECT_FALSE(with(""));
  std::string garbage = bytes;
  for (std::size_t at = 256; at < 384; ++at) garbage[at] = '\xff';  // the first record
  const Result<Flight> flight = with(garbage);
  ASSERT_TRUE(flight);
  ASSERT_EQ(flight->records.size(), 1u);
  EXPECT_EQ(flight->records.front().text(), "b");
}

}  // namespace
}  // namespace millrace
