// Ranks that meet over TCP, and who is kept out.
#include "runtime/comm/tcp_channel.h"

#include <gtest/gtest.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <atomic>
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

/// The port at which a rank waits for its peers.
int port_in(Store& store, int rank) {
  const std::string at = store.get("tcp/" + std::to_string(rank), milliseconds(5000));
  return std::stoi(at.substr(at.rfind(':') + 1));
}

void sends_and_receives(Channel& channel) {
  const RankId peer(1 - channel.rank());
  at::Tensor out = at::full({1000}, double(channel.rank())), in = at::zeros({1000});
  const auto receive = channel.post({Direction::Receive, peer, 7, in, "RECV"});
  channel.post({Direction::Send, peer, 7, out, "SEND"})->wait();
  receive->wait();
  EXPECT_TRUE(at::equal(in, at::full({1000}, double(peer.value))));
}

class TcpChannel : public ::testing::TestWithParam<bool> {};

TEST_P(TcpChannel, SilentAndGarblingConnectionsHoldUpNoRank) {
  const auto store = make_memory_store();
  std::jthread first([&] {
    sends_and_receives(*make_tcp_channel(options_of(0, "secret", GetParam()), {0, 1}, *store));
  });
  std::vector<Stranger> strangers;
  const int port = port_in(*store, 0);
  for (int i = 0; i < 300; ++i) {
    strangers.emplace_back(port);
    if (i % 3 == 1) strangers.back().say("GET / HTTP/1.1\r\n\r\n");
    if (i % 3 == 2) strangers.back().say(std::string(64, '\xff'));
  }
  const auto start = std::chrono::steady_clock::now();
  sends_and_receives(*make_tcp_channel(options_of(1, "secret", GetParam()), {0, 1}, *store));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(4));
}

TEST_P(TcpChannel, WithoutTheTokenNobodyJoins) {
  const auto store = make_memory_store();
  std::jthread first([&] {
    sends_and_receives(*make_tcp_channel(options_of(0, "secret", GetParam()), {0, 1}, *store));
  });
  CommunicatorOptions wrong = options_of(1, "guess", GetParam());
  wrong.rendezvous_deadline = milliseconds(500);
  EXPECT_THROW(make_tcp_channel(wrong, {0, 1}, *store), Error);
  sends_and_receives(*make_tcp_channel(options_of(1, "secret", GetParam()), {0, 1}, *store));
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
    const auto channel = make_tcp_channel(patient(0), {0, 1}, *store);
    std::vector<std::unique_ptr<Pending>> sends;
    for (std::int64_t i = 0; i < kCount; ++i)
      sends.push_back(channel->post({Direction::Send, RankId(1), static_cast<std::uint64_t>(i),
                                     at::full({kFloats}, double(i)), "SEND"}));
    for (const auto& send : sends) send->wait();
  });
  const auto channel = make_tcp_channel(patient(1), {0, 1}, *store);
  std::this_thread::sleep_for(milliseconds(300));
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
  std::jthread other([&] { receiver = make_tcp_channel(options_of(1, ""), {0, 1}, *store); });
  auto sender = make_tcp_channel(options_of(0, ""), {0, 1}, *store);
  other.join();
  sender->post({Direction::Send, RankId(1), 1, at::ones({1000}), "SEND"})->wait();
  sender.reset();
  std::this_thread::sleep_for(milliseconds(100));
  at::Tensor in = at::zeros({1000});
  receiver->post({Direction::Receive, RankId(0), 1, in, "RECV"})->wait();
  EXPECT_TRUE(at::equal(in, at::ones({1000})));
  EXPECT_THROW(receiver->post({Direction::Receive, RankId(0), 2, in, "RECV"})->wait(), PeerError);
}

}  // namespace
}  // namespace millrace
