// The NCCL communicator without a GPU: groups, order, deadlines, errors and aborts through the seam. That it
// is a communicator at all is the conformance suite's business ("fake_nccl").
#include <gtest/gtest.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <functional>
#include <thread>
#include <utility>

#include "tests/comm/fake_nccl.h"

namespace millrace {
namespace {

using std::chrono::milliseconds;

at::Tensor number(double value) {
  return at::full({3}, value);
}

std::string what_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const PeerError& error) {
    return error.what();
  }
  return "no PeerError";
}

struct Pair {
  explicit Pair(milliseconds deadline = milliseconds(20'000))
      : ranks(make_fake_nccl_communicators(2, deadline, world)) {
    connect_all(ranks);
  }
  Communicator& operator[](std::size_t r) { return *ranks[r]; }
  std::shared_ptr<FakeNcclWorld> world = std::make_shared<FakeNcclWorld>();
  std::vector<std::unique_ptr<Communicator>> ranks;
};

Transfer send(double value, std::uint64_t tag, int peer) {
  return {Direction::Send, RankId(peer), tag, number(value), "SEND_F" + std::to_string(tag)};
}
Transfer receive(at::Tensor into, std::uint64_t tag, int peer) {
  return {Direction::Receive, RankId(peer), tag, std::move(into), "RECV_F" + std::to_string(tag)};
}

TEST(NcclLogic, OneExchangeIsOneGroup) {
  Pair pair;
  const int before = pair.world->counts().groups;
  at::Tensor a = number(0), b = number(0), c = number(0);
  const Transfer left[] = {send(1, 1, 1), send(2, 2, 1), receive(a, 3, 1)};
  const Transfer right[] = {receive(b, 1, 0), receive(c, 2, 0), send(3, 3, 0)};
  auto one = pair[0].exchange(left), other = pair[1].exchange(right);
  one->wait();
  other->wait();
  EXPECT_EQ(pair.world->counts().groups - before, 2);  // one on each rank
  EXPECT_EQ(a[0].item<float>(), 3);
  EXPECT_EQ(b[0].item<float>(), 1);
  EXPECT_EQ(c[0].item<float>(), 2);
}

// 1F1B posts the receive of a gradient before it sends the activations that lead to it. On one stream this
// would never end.
TEST(NcclLogic, AReceivePostedEarlyHoldsUpNoSend) {
  Pair pair(milliseconds(2'000));
  at::Tensor gradient = number(0), activation = number(0);
  const Transfer early[] = {receive(gradient, 9, 1)}, activations[] = {send(5, 1, 1)};
  const Transfer there[] = {receive(activation, 1, 0)}, back[] = {send(6, 9, 0)};
  auto waits = pair[0].exchange(early);
  auto sent = pair[0].exchange(activations);
  pair[1].exchange(there)->wait();
  EXPECT_EQ(activation[0].item<float>(), 5);
  pair[1].exchange(back)->wait();
  waits->wait();
  sent->wait();
  EXPECT_EQ(gradient[0].item<float>(), 6);
}

TEST(NcclLogic, MessagesInAnotherOrderAreCaughtByTheFake) {
  Pair pair;
  at::Tensor a = number(0), b = number(0);
  const Transfer one[] = {send(1, 1, 1)}, two[] = {send(2, 2, 1)};
  const Transfer second[] = {receive(b, 2, 0)}, first[] = {receive(a, 1, 0)};
  auto s1 = pair[0].exchange(one), s2 = pair[0].exchange(two);
  auto r2 = pair[1].exchange(second), r1 = pair[1].exchange(first);
  const std::string text = what_of([&] { r2->wait(); });
  EXPECT_NE(text.find("rank 1: RECV_F2 from rank 0: NCCL: order: sent tag 1"), std::string::npos) << text;
  for (std::size_t r : {0, 1}) pair[r].abort("done");
}

TEST(NcclLogic, TensorsOfTheHostTakeTheHostsWay) {
  Pair pair;
  const auto before = pair.world->counts();
  at::Tensor out = at::full({2}, 7, at::kDouble), in = at::empty({2}, at::kDouble);
  const Transfer there[] = {{Direction::Send, RankId(1), 1, out, "out"}};
  const Transfer here[] = {{Direction::Receive, RankId(0), 1, in, "in"}};
  auto sent = pair[0].exchange(there);
  pair[1].exchange(here)->wait();
  sent->wait();
  EXPECT_EQ(in[1].item<double>(), 7);
  EXPECT_EQ(pair.world->counts().groups, before.groups);
}

TEST(NcclLogic, TheFirstMessagesOfEachDirectionGoThroughTheHost) {
  Pair pair;
  for (std::size_t r : {0, 1}) through_host(pair[r], 1);
  int groups = pair.world->counts().groups;
  for (const int of_nccl : {0, 2}) {
    at::Tensor in = number(0);
    const Transfer there[] = {send(5, 1, 1)}, here[] = {receive(in, 1, 0)};
    auto sent = pair[0].exchange(there);
    pair[1].exchange(here)->wait();
    sent->wait();
    EXPECT_EQ(in[0].item<float>(), 5);
    EXPECT_EQ(pair.world->counts().groups - std::exchange(groups, pair.world->counts().groups), of_nccl);
    at::Tensor one = number(1), other = number(2);
    auto sum = pair[0].all_reduce(one, "a sum");
    pair[1].all_reduce(other, "a sum")->wait();
    sum->wait();
    EXPECT_EQ(one[0].item<float>(), 3);
    EXPECT_EQ(pair.world->counts().groups - std::exchange(groups, pair.world->counts().groups), of_nccl);
  }
}

TEST(NcclLogic, NoReceiveIsPostedWhereMessagesGoThroughTheHost) {
  Pair pair;
  at::Tensor in = number(0);
  const Transfer there[] = {send(5, 1, 1)}, here[] = {receive(in, 1, 0)};
  auto sent = pair[0].exchange(there), received = pair[1].exchange(here);
  for (std::size_t r : {1, 0}) through_host(pair[r], kAllMessages);
  EXPECT_EQ(in[0].item<float>(), 5);
  received->wait();
}

TEST(NcclLogic, ARankThatIsHeldUpLosesItsMessagesAtTheDeadline) {
  Pair pair(milliseconds(150));
  at::Tensor in = number(0);
  const Transfer here[] = {receive(in, 4, 1)};
  auto pending = pair[0].exchange(here);
  while (pair.world->counts().aborts == 0) std::this_thread::yield();  // as in a call of CUDA
  const std::string text = what_of([&] { pending->wait(); });
  EXPECT_NE(text.find("aborted: the rank has done nothing for "), std::string::npos) << text;
  EXPECT_NE(text.find("while it was to have RECV_F4 from rank 1"), std::string::npos) << text;
  EXPECT_NE(text.find("CUDA_MODULE_LOADING=EAGER"), std::string::npos) << text;
}

TEST(NcclLogic, AnErrorOfNcclNamesTheActionAndThePeer) {
  Pair pair;
  at::Tensor in = number(0);
  const Transfer here[] = {receive(in, 4, 0)};
  auto pending = pair[1].exchange(here);
  pair.world->fail_all("remote process exited");
  const std::string text = what_of([&] { pending->wait(); });
  EXPECT_NE(text.find("rank 1: RECV_F4 from rank 0: NCCL: remote process exited"), std::string::npos) << text;
  const std::string later = what_of([&] { pair[1].exchange(here); });
  EXPECT_NE(later.find("RECV_F4: NCCL: remote process exited"), std::string::npos) << later;
}

TEST(NcclLogic, ASumThatNobodyJoinsEndsAtTheDeadline) {
  Pair pair(milliseconds(150));
  auto pending = pair[0].all_reduce(number(1), "REDUCE of bucket 2");
  const std::string text = what_of([&] { pending->wait(); });
  EXPECT_NE(text.find("rank 0: REDUCE of bucket 2 with the other replicas: no message"), std::string::npos)
      << text;
}

TEST(NcclLogic, AbortFreesEveryCommunicatorOnce) {
  const auto world = std::make_shared<FakeNcclWorld>();
  {
    auto ranks = make_fake_nccl_communicators(3, milliseconds(20'000), world);
    connect_all(ranks);
    at::Tensor in = number(0);
    const Transfer here[] = {receive(in, 1, 1)};
    auto pending = ranks[0]->exchange(here);
    ranks[0]->abort("stop");
    ranks[0]->abort("again");
    const std::string text = what_of([&] { pending->wait(); });
    EXPECT_NE(text.find("aborted: stop"), std::string::npos) << text;
    EXPECT_EQ(world->counts().aborts, 5);  // two peers, two directions, and the group of all
  }
  EXPECT_EQ(world->counts().aborts, 5);
  EXPECT_EQ(world->counts().destroys, 10);  // communicators of the two ranks that lived
}

TEST(NcclLogic, APeersAbortIsReadFromTheStore) {
  Pair pair;
  at::Tensor in = number(0);
  const Transfer here[] = {receive(in, 1, 1)};
  auto pending = pair[0].exchange(here);
  pair[1].abort("no memory left");
  const std::string text = what_of([&] { pending->wait(); });
  EXPECT_NE(text.find("aborted: rank 1: no memory left"), std::string::npos) << text;
}

TEST(NcclLogic, ARankThatDoesNotJoinIsADeadline) {
  CommunicatorOptions options{.backend = Backend::Nccl, .rank = RankId(0), .size = 2};
  options.rendezvous_deadline = milliseconds(100);
  options.nccl = std::make_shared<FakeNccl>(std::make_shared<FakeNcclWorld>());
  auto hosts = make_local_communicators(2, milliseconds(100));
  const auto rank = make_nccl_communicator(options, std::move(hosts[0]), make_memory_store());
  const std::string text = what_of([&] { rank->connect(all_traffic(2)); });
  EXPECT_NE(text.find("joining ranks 0-1 (2 ranks): NCCL is not done after"), std::string::npos) << text;
}

TEST(NcclLogic, OnlyRanksThatTalkAreConnectedAndOnlyOnce) {
  const auto world = std::make_shared<FakeNcclWorld>();
  auto ranks = make_fake_nccl_communicators(4, milliseconds(20'000), world);
  const Traffic chain{.messages = {{RankId(0), RankId(1)}, {RankId(1), RankId(2)}, {RankId(2), RankId(1)}}};
  for (int again = 0; again < 2; ++again) {
    std::vector<std::jthread> threads;
    for (const auto& rank : ranks) threads.emplace_back([&] { rank->connect(chain); });
  }
  EXPECT_EQ(world->counts().communicators, 6);  // both ends of three directions
  EXPECT_EQ(world->counts().idle, 3);
  at::Tensor in = number(0);
  const Transfer there[] = {send(1, 1, 1)}, here[] = {receive(in, 1, 0)}, back[] = {send(1, 1, 0)};
  auto sent = ranks[0]->exchange(there);
  ranks[1]->exchange(here)->wait();
  sent->wait();
  EXPECT_EQ(world->counts().idle, 2);
  EXPECT_THROW(ranks[1]->exchange(back), InternalError);
  EXPECT_THROW(ranks[3]->all_reduce(in, "a sum"), InternalError);
}

TEST(NcclLogic, IsRefusedWhereItCannotWork) {
  const auto store = make_memory_store();
  CommunicatorOptions options{.backend = Backend::Nccl, .rank = RankId(0), .size = 1};
  EXPECT_THROW(make_communicator(options, store), ConfigError);  // the device is the CPU
  options.device = "0000:01:00.0";
  EXPECT_THROW(make_communicator(options, store), ConfigError);  // built without
  options.nccl = std::make_shared<FakeNccl>(std::make_shared<FakeNcclWorld>());
  options.size = 2;
  std::jthread other([&] {
    CommunicatorOptions its = options;
    its.rank = RankId(1);
    EXPECT_THROW(make_communicator(its, store), ConfigError);  // both on one GPU
  });
  EXPECT_THROW(make_communicator(options, store), ConfigError);
}

}  // namespace
}  // namespace millrace
