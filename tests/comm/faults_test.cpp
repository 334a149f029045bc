// A message that is late, lost or wrong: a clear error in the rank that waits, and nobody hangs.
#include <gtest/gtest.h>

#include <map>
#include <thread>

#include <ATen/ATen.h>

#include "runtime/comm/store.h"
#include "runtime/comm/wire_checksum.h"
#include "tests/harness/fault_injector.h"

namespace millrace {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kDeadline{600};

struct Outcome {
  std::map<int, std::string> errors;  ///< key: rank
  double seconds = 0;
  int faults = 0;
};

class Faults : public ::testing::TestWithParam<std::string> {
 protected:
  /// Three ranks, each of which sends ten numbered messages to the next, and then adds up a tensor.
  Outcome run(const FaultOptions& options) {
    const auto hits = std::make_shared<std::atomic<int>>(0);
    std::vector<ChannelDecorator> decorators{inject(options, hits)};
    if (checked_) decorators.emplace_back(make_checked_channel);
    auto store = make_memory_store();
    std::vector<std::unique_ptr<Communicator>> local;
    if (GetParam() == "local") local = make_local_communicators(3, kDeadline, decorators);
    Outcome outcome;
    std::mutex mutex;
    const TimePoint start = steady_clock().now();
    std::vector<std::jthread> threads;
    for (int r = 0; r < 3; ++r) {
      threads.emplace_back([&, r] {
        std::unique_ptr<Communicator> own;
        try {
          own = local.empty()
                    ? make_communicator({.backend = value_named<Backend>(GetParam()).value_or(Backend::Tcp),
                                         .rank = RankId(r),
                                         .size = 3,
                                         .deadline = kDeadline,
                                         .rendezvous_deadline = milliseconds(20'000),
                                         .decorators = decorators},
                                        store)
                    : std::move(local[r]);
          for (std::uint64_t m = 0; m < 10; ++m) {
            at::Tensor out = at::full({8}, double(m)), in = at::zeros({8});
            const std::vector<Transfer> both{
                {Direction::Send, RankId((r + 1) % 3), m, out, "message " + std::to_string(m)},
                {Direction::Receive, RankId((r + 2) % 3), m, in, "message " + std::to_string(m)}};
            own->exchange(both)->wait();
            EXPECT_TRUE(at::equal(in, out));
          }
          at::Tensor sum = at::ones({4});
          own->all_reduce(sum, "the sum")->wait();
          EXPECT_EQ(sum[0].item<float>(), 3);
        } catch (const PeerError& error) {
          {
            const std::lock_guard lock(mutex);
            outcome.errors.emplace(r, error.what());
          }
          if (own) own->abort(error.what());
        }
      });
    }
    threads.clear();
    outcome.seconds = std::chrono::duration<double>(steady_clock().now() - start).count();
    outcome.faults = *hits;
    return outcome;
  }

  static void expect_says(const Outcome& outcome, int rank, const std::vector<std::string>& parts) {
    ASSERT_TRUE(outcome.errors.contains(rank)) << "rank " << rank << " saw nothing";
    for (const std::string& part : parts)
      EXPECT_NE(outcome.errors.at(rank).find(part), std::string::npos) << outcome.errors.at(rank);
  }

  bool checked_ = false;  ///< messages have checksums
};

TEST_P(Faults, AMessageThatIsLateArrives) {
  const Outcome outcome = run({.fault = Fault::Delay, .rank = 1, .message = 3, .delay = milliseconds(200)});
  EXPECT_EQ(outcome.faults, 1);
  EXPECT_TRUE(outcome.errors.empty()) << outcome.errors.begin()->second;
  EXPECT_GE(outcome.seconds, 0.2);
}

TEST_P(Faults, AMessageThatIsLostIsNamedByWhoWaitsForIt) {
  const Outcome outcome = run({.fault = Fault::Drop, .rank = 1, .message = 3});
  EXPECT_EQ(outcome.faults, 1);
  expect_says(outcome, 2, {"rank 2: message 3 from rank 1"});
  EXPECT_EQ(outcome.errors.size(), 3u);  // nobody is left behind
}

TEST_P(Faults, ALostPartOfASumIsNamedToo) {
  const Outcome outcome = run({.fault = Fault::Drop, .rank = 0, .message = 11});
  EXPECT_EQ(outcome.faults, 1);
  expect_says(outcome, 2, {"rank 2: the sum from rank 0"});
}

TEST_P(Faults, ALinkThatIsCutEndsBothSides) {
  const Outcome outcome = run({.fault = Fault::Cut, .rank = 2, .message = 5});
  EXPECT_EQ(outcome.faults, 1);
  EXPECT_EQ(outcome.errors.size(), 3u);
  expect_says(outcome, 0, {"rank 0: message 5 from rank 2"});
}

/// Gloo's is not taken: at the first of the two ranks' deadlines both say how many bytes are their own.
TEST_P(Faults, AMessageOfAnotherLengthIsRefused) {
  const Outcome outcome = run({.fault = Fault::WrongLength, .rank = 0, .message = 2});
  EXPECT_EQ(outcome.faults, 1);
  expect_says(outcome, 1, {"message 2 from rank 0", "expected"});
  if (GetParam() != "gloo") return;
  expect_says(outcome, 1, {"; expected 32 bytes"});
  expect_says(outcome, 0, {"message 2 to rank 1", "; it has 28 bytes"});
}

/// Each rank sends a hash after each message, so its contents are numbers 0, 2, ...: ten messages and those
/// of the sum.
TEST_P(Faults, AChangedBitIsFoundByItsChecksum) {
  checked_ = true;
  const Outcome well = run({.fault = Fault::Flip, .rank = 1, .message = 1000});
  EXPECT_TRUE(well.errors.empty());
  EXPECT_EQ(well.faults, 0);
  for (const std::int64_t message : {0, 6, 7, 18}) {  // 7: the hash itself
    const Outcome outcome = run({.fault = Fault::Flip, .rank = 1, .message = message});
    EXPECT_EQ(outcome.faults, 1);
    expect_says(outcome, 2,
                {"message " + std::to_string(message / 2) + " from rank 1", "are not those that were sent"});
  }
  const Outcome sum = run({.fault = Fault::Flip, .rank = 1, .message = 20});
  EXPECT_EQ(sum.faults, 1);
  EXPECT_FALSE(sum.errors.empty());
}

INSTANTIATE_TEST_SUITE_P(Transports, Faults, ::testing::Values("local", "shm", "tcp", "gloo"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace millrace
