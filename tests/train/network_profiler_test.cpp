// The network profiler over links whose times are known: threads on one virtual clock, which only messages
// move.
#include "runtime/profile/network_profiler.h"

#include <gtest/gtest.h>

#include <functional>
#include <mutex>
#include <thread>

#include <ATen/core/Tensor.h>

#include "runtime/base/error.h"
#include "runtime/comm/rank_threads.h"

namespace millrace {
namespace {

using std::chrono::milliseconds;
using LinkFrom = std::function<ClusterLink(int from, int to)>;

/// When a message has arrived, the clock has moved by latency + bytes / bandwidth of its link.
class EmulatedPending final : public Pending {
 public:
  EmulatedPending(std::unique_ptr<Pending> inner, VirtualClock& clock, double seconds)
      : inner_(std::move(inner)), clock_(clock), seconds_(seconds) {}
  void wait() override {
    inner_->wait();
    clock_.advance(std::chrono::duration_cast<std::chrono::nanoseconds>(Seconds(seconds_)));
    seconds_ = 0;
  }

 private:
  std::unique_ptr<Pending> inner_;
  VirtualClock& clock_;
  double seconds_;
};

class EmulatedCommunicator final : public Communicator {
 public:
  EmulatedCommunicator(Communicator& inner, VirtualClock& clock, LinkFrom link)
      : inner_(inner), clock_(clock), link_(std::move(link)) {}
  RankId rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  bool buffers_sends() const override { return inner_.buffers_sends(); }
  std::unique_ptr<Pending> exchange(std::span<const Transfer> transfers) override {
    double seconds = 0;
    for (const Transfer& t : transfers) {
      // The orders in between are 64-bit numbers and take no time here.
      if (t.direction != Direction::Receive || t.tensor.scalar_type() != at::kByte) continue;
      const ClusterLink link = link_(t.peer.value, rank().value);
      seconds += link.latency_s + static_cast<double>(t.tensor.nbytes()) / link.bandwidth;
      ++messages;
    }
    return std::make_unique<EmulatedPending>(inner_.exchange(transfers), clock_, seconds);
  }
  std::unique_ptr<Pending> all_reduce(at::Tensor tensor, std::string what) override {
    return inner_.all_reduce(tensor, what);
  }
  void broadcast(at::Tensor tensor, RankId root) override { inner_.broadcast(tensor, root); }
  void barrier() override { inner_.barrier(); }
  std::unique_ptr<Communicator> subgroup(const std::vector<RankId>& ranks, const std::string& name) override {
    return inner_.subgroup(ranks, name);
  }
  void abort(const std::string& reason) noexcept override { inner_.abort(reason); }

  int messages = 0;  ///< received

 private:
  Communicator& inner_;
  VirtualClock& clock_;
  LinkFrom link_;
};

TEST(NetworkProfiler, FindsTheLatencyAndBandwidthOfEveryPairAndDirection) {
  const LinkFrom link = [](int from, int to) {
    return ClusterLink{1e8 * (1 + from) * (1 + 2 * to), 1e-5 * (1 + from + to)};
  };
  VirtualClock clock;
  std::mutex mutex;
  std::vector<NetworkMeasurement> answers;
  run_as_threads(make_local_communicators(4, milliseconds(20'000)), [&](Communicator& inner) {
    EmulatedCommunicator communicator(inner, clock, link);
    const auto device = make_cpu_device();
    const NetworkMeasurement answer = profile_network(
        communicator, *device, clock, {.round_trips = 5, .largest = kMiB, .seconds_a_size = 0});
    std::lock_guard lock(mutex);
    answers.push_back(answer);
  });
  ASSERT_EQ(answers.size(), 4u);
  for (const NetworkMeasurement& answer : answers) {
    ASSERT_EQ(answer.links.size(), 6u);
    int pair = 0;
    for (int from = 0; from < 4; ++from) {
      for (int to = from + 1; to < 4; ++to, ++pair) {
        const LinkMeasurement& m = answer.links[pair];
        EXPECT_EQ(m.from, RankId(from));
        EXPECT_EQ(m.to, RankId(to));
        // 8 bytes are not quite no bytes, and the clock counts whole nanoseconds.
        EXPECT_NEAR(m.latency_s, link(from, to).latency_s, 1e-7);
        EXPECT_EQ(m.latency_min_s, m.latency_s);
        EXPECT_EQ(m.latency_max_s, m.latency_s);
        EXPECT_NEAR(m.bandwidth_there() / link(from, to).bandwidth, 1, 1e-4);
        EXPECT_NEAR(m.bandwidth_back() / link(to, from).bandwidth, 1, 1e-4);
        ASSERT_EQ(m.there.size(), 5u);
        EXPECT_EQ(m.there.front().bytes, 64 * kKiB);
        EXPECT_EQ(m.there.back().bytes, kMiB);
      }
    }
    EXPECT_EQ(answer.reduces.size(), 2u);
  }
}

TEST(NetworkProfiler, ASlowLinkEndsTheSweepEarly) {
  VirtualClock clock;
  run_as_threads(make_local_communicators(2, milliseconds(20'000)), [&](Communicator& inner) {
    EmulatedCommunicator communicator(inner, clock, [](int, int) { return ClusterLink{1e5, 0.1}; });
    const auto device = make_cpu_device();
    const NetworkMeasurement answer = profile_network(
        communicator, *device, clock, {.round_trips = 3, .largest = 8 * kMiB, .seconds_a_size = 0});
    EXPECT_EQ(answer.links.at(0).there.size(), 3u);  // 2.6 s for 256 KiB
    EXPECT_NEAR(answer.links.at(0).link().bandwidth / 1e5, 1, 1e-4);
    EXPECT_LT(communicator.messages, 100);
  });
}

TEST(NetworkProfiler, ARankThatIsGoneEndsTheOthersByTheDeadline) {
  try {
    run_as_threads(make_local_communicators(3, milliseconds(300)), [&](Communicator& communicator) {
      if (communicator.rank() == RankId(2)) return;  // never comes
      SteadyClock clock;
      const auto device = make_cpu_device();
      profile_network(communicator, *device, clock, {});
    });
    FAIL() << "no error";
  } catch (const PeerError& error) {
    EXPECT_NE(std::string(error.what()).find("rank"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace millrace
