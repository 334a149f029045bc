// Ranks that meet over TCP, and who is kept out.
#include "runtime/comm/tcp_channel.h"

#include <gtest/gtest.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <functional>
#include <future>
#include <latch>
#include <numeric>
#include <thread>

#include "runtime/base/error.h"
#include "tests/comm/stranger.h"

namespace millrace {
namespace {

using std::chrono::milliseconds;

CommunicatorOptions options_of(int rank, const std::string& token, bool encrypt = false) {
  return {.backend = Backend::Tcp,
          .rank = RankId(rank),
          .size = 2,
          .deadline = milliseconds(10'000),
          .rendezvous_deadline = milliseconds(10'000),
          .token = token,
          .encrypt = encrypt};
}

/// The port at which rank 1 listens, which it sets in the store.
int port_in(Store& store) {
  const std::string at = store.get("tcp/hosts/1", milliseconds(5000));
  return std::stoi(at.substr(at.rfind(':') + 1));
}

/// The ranks are alone on their hosts.
std::shared_ptr<Channel> channel_of(const CommunicatorOptions& options, Store& store) {
  std::vector<int> hosts(static_cast<std::size_t>(options.size));
  std::iota(hosts.begin(), hosts.end(), 0);
  return make_tcp_channel(options, hosts, store);
}

void sends_and_receives(Channel& channel, RankId peer) {
  at::Tensor out = at::full({1000}, double(channel.rank())), in = at::zeros({1000});
  const auto receive = channel.post({Direction::Receive, peer, 7, in, "RECV"});
  channel.post({Direction::Send, peer, 7, out, "SEND"})->wait();
  receive->wait();
  EXPECT_TRUE(at::equal(in, at::full({1000}, double(peer.value))));
}

/// Makes the connection with `peer`.
void calls(Channel& channel, RankId peer) {
  at::Tensor in = at::zeros({1});
  channel.post({Direction::Receive, peer, 8, in, "RECV"});
}

/// One of two ranks, which posts its first message when the other one has called it.
class CalledRank {
 public:
  CalledRank(int rank, std::shared_ptr<Store> store, bool encrypt)
      : thread_([this, rank, store = std::move(store), encrypt] {
          const auto channel = channel_of(options_of(rank, "secret", encrypt), *store);
          called_.get_future().wait();
          sends_and_receives(*channel, RankId(1 - rank));
        }) {}
  void answer() { called_.set_value(); }

 private:
  std::promise<void> called_;
  std::jthread thread_;
};

class TcpChannel : public ::testing::TestWithParam<bool> {};

TEST_P(TcpChannel, SilentAndGarblingConnectionsHoldUpNoRank) {
  const auto store = make_memory_store();
  CalledRank other(1, store, GetParam());
  std::vector<Stranger> strangers;
  const int port = port_in(*store);
  for (int i = 0; i < 300; ++i) {
    strangers.emplace_back(port);
    if (i % 3 == 1) strangers.back().say("GET / HTTP/1.1\r\n\r\n");
    if (i % 3 == 2) strangers.back().say(std::string(64, '\xff'));
  }
  // If one after the other had to go first, 300 of them would outlast its deadline.
  const auto channel = channel_of(options_of(0, "secret", GetParam()), *store);
  calls(*channel, RankId(1));
  other.answer();
  sends_and_receives(*channel, RankId(1));
}

TEST_P(TcpChannel, WithoutTheTokenNobodyJoins) {
  const auto store = make_memory_store();
  CalledRank other(0, store, GetParam());
  CommunicatorOptions wrong = options_of(1, "guess", GetParam());
  wrong.deadline = milliseconds(500);
  const auto stranger = channel_of(wrong, *store);
  EXPECT_THROW(calls(*stranger, RankId(0)), Error);
  EXPECT_EQ(stranger->connections(), 0);
  const auto channel = channel_of(options_of(1, "secret", GetParam()), *store);
  calls(*channel, RankId(0));
  other.answer();
  sends_and_receives(*channel, RankId(0));
}

INSTANTIATE_TEST_SUITE_P(Encrypted, TcpChannel, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "tls" : "clear"; });

/// Messages that nobody expects yet are kept; a peer that is far ahead waits, and nothing is lost or mixed.
TEST(TcpMessages, ComeInAnyOrderAndAheadOfTheirReceives) {
  constexpr std::int64_t kCount = 20, kFloats = 4 << 20;  // 320 MiB: more than is kept
  const auto patient = [](int rank) {
    CommunicatorOptions options = options_of(rank, "");
    options.deadline = milliseconds(90'000);  // the first receive waits for all of it, under sanitizers too
    return options;
  };
  const auto store = make_memory_store();
  std::jthread sender([&] {
    const auto channel = channel_of(patient(0), *store);
    std::vector<std::unique_ptr<Pending>> sends;
    for (std::int64_t i = 0; i < kCount; ++i)
      sends.push_back(channel->post({Direction::Send, RankId(1), static_cast<std::uint64_t>(i),
                                     at::full({kFloats}, double(i)), "SEND"}));
    for (const auto& send : sends) send->wait();
  });
  const auto channel = channel_of(patient(1), *store);
  for (std::int64_t i = kCount - 1; i >= 0; --i) {
    at::Tensor in = at::empty({kFloats});
    channel->post({Direction::Receive, RankId(0), static_cast<std::uint64_t>(i), in, "RECV"})->wait();
    EXPECT_EQ(in[0].item<float>(), float(i));
    EXPECT_EQ(in[kFloats - 1].item<float>(), float(i));
  }
}

/// A peer that ends after its last send has not lost it for the receiver.
TEST(TcpMessages, WhatCameBeforeTheEndIsThere) {
  const auto store = make_memory_store();
  std::shared_ptr<Channel> receiver;
  std::jthread other([&] { receiver = channel_of(options_of(1, ""), *store); });
  auto sender = channel_of(options_of(0, ""), *store);
  other.join();
  sender->post({Direction::Send, RankId(1), 1, at::ones({1000}), "SEND"})->wait();
  sender.reset();
  at::Tensor in = at::zeros({1000});
  EXPECT_THROW(receiver->post({Direction::Receive, RankId(0), 2, in, "RECV"})->wait(), PeerError);
  receiver->post({Direction::Receive, RankId(0), 1, in, "RECV"})->wait();
  EXPECT_TRUE(at::equal(in, at::ones({1000})));
}

/// Runs `body` on a thread for each of `size` ranks, each on a host of its own. Channels end when all are
/// done.
std::vector<std::shared_ptr<Channel>> on_ranks(int size,
                                               const std::function<void(std::shared_ptr<Channel>)>& body) {
  const auto store = make_memory_store();
  std::vector<std::shared_ptr<Channel>> channels(static_cast<std::size_t>(size));
  std::vector<std::jthread> ranks;
  for (int r = 0; r < size; ++r) {
    ranks.emplace_back([&, r] {
      CommunicatorOptions options = options_of(r, "secret");
      options.size = size;
      options.deadline = options.rendezvous_deadline = milliseconds(60'000);
      channels[static_cast<std::size_t>(r)] = channel_of(options, *store);
      body(channels[static_cast<std::size_t>(r)]);
    });
  }
  ranks.clear();
  return channels;
}

TEST(TcpConnections, OnlyRanksThatTalkAreConnected) {
  constexpr int kRanks = 12;
  const auto channels = on_ranks(kRanks, [](const std::shared_ptr<Channel>& channel) {
    const int me = channel->rank();
    if (me > 0) sends_and_receives(*channel, RankId(me - 1));
    if (me + 1 < kRanks) sends_and_receives(*channel, RankId(me + 1));
  });
  for (int r = 0; r < kRanks; ++r)
    EXPECT_EQ(channels[static_cast<std::size_t>(r)]->connections(), r == 0 || r == kRanks - 1 ? 1 : 2) << r;
}

TEST(TcpConnections, VotesAndBarriersOfManyRanksGrowWithTheRanks) {
  const int ranks = 24;
  const auto channels = on_ranks(ranks, [&](const std::shared_ptr<Channel>& channel) {
    const auto world = make_channel_communicator(channel);
    world->barrier();
    at::Tensor votes = at::ones({1}, at::kDouble);
    world->all_reduce(votes, "votes")->wait();
    EXPECT_EQ(votes.item<double>(), ranks);
  });
  int ends = 0;
  for (const auto& channel : channels) ends += channel->connections();
  EXPECT_EQ(ends, 2 * (ranks - 1)) << "a tree";
}

/// Both ranks call each other at once, again and again: one connection is made of it.
TEST(TcpConnections, CallsThatCrossBecomeOne) {
  for (int i = 0; i < 30; ++i) {
    std::latch both(2);
    const auto channels = on_ranks(2, [&](const std::shared_ptr<Channel>& channel) {
      both.arrive_and_wait();
      sends_and_receives(*channel, RankId(1 - channel->rank()));
    });
    for (const auto& channel : channels) EXPECT_EQ(channel->connections(), 1);
  }
}

std::string failure_of_call(Channel& channel, RankId peer) {
  try {
    calls(channel, peer);
  } catch (const PeerError& error) {
    return error.what();
  }
  return "";
}

TEST(TcpConnections, AnEndedOrAbortedPeerIsNamedToARankThatNeverMetIt) {
  auto channels = on_ranks(3, [](const std::shared_ptr<Channel>&) {});
  channels[2]->abort("the disk is full");
  channels[1].reset();
  EXPECT_NE(failure_of_call(*channels[0], RankId(2)).find("aborted: the disk is full"), std::string::npos);
  EXPECT_NE(failure_of_call(*channels[0], RankId(1)).find("rank 0: RECV from rank 1: connection lost"),
            std::string::npos);
}

}  // namespace
}  // namespace millrace
