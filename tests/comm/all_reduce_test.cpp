// The ways of an all-reduce: bitwise the ordered sum, and few bytes between hosts.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <tuple>

#include <ATen/ATen.h>

#include "runtime/base/all_reduce_route.h"
#include "runtime/comm/channel.h"

namespace millrace {
namespace {

using Hosts = std::vector<int>;

constexpr std::uint64_t kTaken = std::uint64_t{1} << 47;

/// A send that is done only when its receiver has waited for the message: it says so in another one.
class UntilTaken final : public Pending {
 public:
  UntilTaken(std::shared_ptr<Channel> channel, Transfer transfer, std::unique_ptr<Pending> message)
      : channel_(std::move(channel)), transfer_(std::move(transfer)), message_(std::move(message)) {}
  void wait() override {
    if (!message_) return;
    message_->wait();
    message_.reset();
    const Direction back = transfer_.direction == Direction::Send ? Direction::Receive : Direction::Send;
    channel_->post({back, transfer_.peer, transfer_.tag | kTaken, at::zeros({1}), "taken"})->wait();
  }

 private:
  std::shared_ptr<Channel> channel_;
  Transfer transfer_;
  std::unique_ptr<Pending> message_;
};

/// A channel whose ranks are on several hosts; counts what leaves each.
class CountingChannel final : public ForwardingChannel {
 public:
  struct Counts {
    std::mutex mutex;
    std::map<int, std::int64_t> bytes_out;  // key: host
    std::int64_t messages = 0, between_hosts = 0;
    std::set<std::tuple<int, int, std::uint64_t>> tags;
    bool repeated = false;
  };
  CountingChannel(std::shared_ptr<Channel> channel, Hosts hosts, std::shared_ptr<Counts> counts)
      : ForwardingChannel(channel),
        channel_(std::move(channel)),
        hosts_(std::move(hosts)),
        counts_(std::move(counts)) {}
  bool buffers_sends() const override { return false; }
  std::vector<int> hosts() const override { return hosts_; }
  std::unique_ptr<Pending> post(const Transfer& t) override {
    if (t.direction == Direction::Send) {
      std::lock_guard lock(counts_->mutex);
      counts_->repeated = !counts_->tags.emplace(rank(), t.peer.value, t.tag).second || counts_->repeated;
      ++counts_->messages;
      const int own = hosts_.at(rank());
      if (own != hosts_.at(t.peer.value)) {
        ++counts_->between_hosts;
        counts_->bytes_out[own] += static_cast<std::int64_t>(t.tensor.nbytes());
      }
    }
    return std::make_unique<UntilTaken>(channel_, t, channel_->post(t));
  }

 private:
  std::shared_ptr<Channel> channel_;
  Hosts hosts_;
  std::shared_ptr<Counts> counts_;
};

/// Sums two tensors one after the other on a thread for each rank.
std::shared_ptr<CountingChannel::Counts> expect_ordered_sums(const Hosts& hosts, std::int64_t elements) {
  const int size = static_cast<int>(hosts.size());
  auto counts = std::make_shared<CountingChannel::Counts>();
  std::vector<std::vector<at::Tensor>> tensors(2);
  for (auto& of_ranks : tensors) {
    for (int r = 0; r < size; ++r)
      of_ranks.push_back(at::randn({elements}, at::kFloat) * (r % 3 == 1 ? 1e6 : 1));
  }
  std::vector<at::Tensor> sums;
  for (const auto& of_ranks : tensors) {
    at::Tensor sum = of_ranks[0] + of_ranks[1];
    for (int r = 2; r < size; ++r) sum.add_(of_ranks[r]);
    sums.push_back(sum);
  }
  auto channels = make_local_channels(size, std::chrono::seconds(20));
  std::vector<std::string> failures(hosts.size());
  {
    std::vector<std::jthread> threads;
    for (int r = 0; r < size; ++r) {
      threads.emplace_back([&, r] {
        const auto at = static_cast<std::size_t>(r);
        try {
          auto comm =
              make_channel_communicator(std::make_shared<CountingChannel>(channels[at], hosts, counts));
          auto first = comm->all_reduce(tensors[0][at], "first");
          auto second = comm->all_reduce(tensors[1][at], "second");
          first->wait();
          second->wait();
        } catch (const std::exception& error) {
          failures[at] = error.what();
        }
      });
    }
  }
  for (int r = 0; r < size; ++r) {
    const auto at = static_cast<std::size_t>(r);
    EXPECT_EQ(failures[at], "") << "rank " << r;
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      EXPECT_EQ(std::memcmp(tensors[t][at].data_ptr(), sums[t].data_ptr(), sums[t].nbytes()), 0)
          << "rank " << r << " of " << size << ", " << elements << " elements";
    }
  }
  EXPECT_FALSE(counts->repeated) << "two messages with one tag";
  return counts;
}

TEST(AllReduce, IsTheOrderedSumOnEveryGroupingOfRanks) {
  at::manual_seed(7);
  for (int size = 2; size <= 8; ++size) {
    std::set<Hosts> groupings{Hosts(static_cast<std::size_t>(size), 0)};
    for (int per_host = 1; per_host < size; ++per_host) {
      Hosts blocks, turns, uneven;
      for (int r = 0; r < size; ++r) {
        blocks.push_back(r / per_host);
        turns.push_back(r % per_host);
        uneven.push_back(r == size - 1 ? 2 : r / per_host == 1 ? 1 : 0);  // a host may come twice
      }
      groupings.insert({blocks, turns, uneven});
    }
    for (const Hosts& hosts : groupings) {
      for (std::int64_t elements : {std::int64_t{3}, std::int64_t{8193}, std::int64_t{100'003}})
        expect_ordered_sums(hosts, elements);
    }
  }
}

TEST(AllReduce, LeavesEachHostAtMostTwice) {
  const std::int64_t elements = 300'000, bytes = 2 * 4 * elements;  // two tensors
  const auto two = expect_ordered_sums({0, 0, 0, 0, 1, 1, 1, 1}, elements);
  for (const auto& [host, out] : two->bytes_out) EXPECT_EQ(out, bytes) << "host " << host;  // there, and back
  const auto three = expect_ordered_sums({0, 0, 1, 1, 1, 2, 2, 2}, elements);
  for (const auto& [host, out] : three->bytes_out)
    EXPECT_EQ(out, host == 1 ? 2 * bytes : bytes) << "host " << host;
}

TEST(AllReduce, SmallSumsOfManyRanksTakeTwoMessagesForEach) {
  for (const int size : {9, 20, 90}) {
    for (const int hosts : {1, 3, size}) {
      Hosts blocks, turns;
      for (int r = 0; r < size; ++r) {
        blocks.push_back(r * hosts / size);
        turns.push_back(r % hosts);
      }
      for (const Hosts& grouping : {blocks, turns}) {
        const auto counts = expect_ordered_sums(grouping, 3);  // two sums
        EXPECT_EQ(counts->messages, 2 * 2 * (size - 1)) << size << " ranks on " << hosts;
        EXPECT_EQ(counts->between_hosts, 2 * 2 * (hosts - 1)) << size << " ranks on " << hosts;
      }
    }
  }
}

TEST(AllReduce, ABroadcastReachesManyRanksFromAnyOne) {
  const Hosts hosts{0, 0, 0, 1, 1, 1, 2, 2, 2, 0, 1, 2};
  const auto counts = std::make_shared<CountingChannel::Counts>();
  auto channels = make_local_channels(static_cast<int>(hosts.size()), std::chrono::seconds(20));
  std::vector<std::int64_t> got(hosts.size(), -1);
  {
    std::vector<std::jthread> threads;
    for (std::size_t r = 0; r < hosts.size(); ++r) {
      threads.emplace_back([&, r] {
        auto comm = make_channel_communicator(std::make_shared<CountingChannel>(channels[r], hosts, counts));
        got[r] = 0;
        for (int root = 0; root < comm->size(); ++root) {
          at::Tensor tensor = at::full({2}, comm->rank().value == root ? root + 1 : -1, at::kLong);
          comm->broadcast(tensor, RankId(root));
          got[r] += tensor[1].item<std::int64_t>() == root + 1;
        }
      });
    }
  }
  EXPECT_EQ(got, std::vector<std::int64_t>(hosts.size(), 12));
  EXPECT_LE(counts->messages, 12 * 12) << "no rank sends to all";
}

TEST(AllReduce, RouteFollowsBytesAndHosts) {
  EXPECT_EQ(all_reduce_route({0}, 1 << 20).way, AllReduceWay::Nothing);
  EXPECT_EQ(all_reduce_route({0, 1}, 1 << 20).way, AllReduceWay::Direct);
  EXPECT_EQ(all_reduce_route({0, 0, 1, 1}, 1 << 10).way, AllReduceWay::Direct);
  EXPECT_EQ(all_reduce_route({0, 0, 0, 0}, 1 << 20).way, AllReduceWay::Scatter);
  EXPECT_EQ(all_reduce_route({0, 1, 2, 3}, 1 << 20).way, AllReduceWay::Scatter);
  const AllReduceRoute route = all_reduce_route({4, 4, 4, 9, 9}, 3 << 20);
  EXPECT_EQ(route.way, AllReduceWay::Chain);
  EXPECT_EQ(route.segments, (std::vector<int>{0, 3, 5}));
  EXPECT_EQ(route.chunks, 3);
  EXPECT_EQ(route.pieces, 8);
}

}  // namespace
}  // namespace millrace
