// Emulated links in virtual time: exact to the nanosecond, with as many ranks as there may be threads.
#include <gtest/gtest.h>

#include <barrier>
#include <thread>

#include <ATen/ATen.h>

#include "optimizer/cost/cost_model.h"
#include "runtime/base/error.h"
#include "runtime/base/units.h"
#include "runtime/comm/emulated_links.h"
#include "runtime/plan/cluster_spec.h"
#include "tests/driver/temporary_folder.h"

namespace millrace {
namespace {

using std::chrono::seconds;

/// Runs `body` on a thread for each rank, all of them users of `clock`, over links that `wire` describes.
void in_virtual_time(int size, VirtualClock& clock, const EmulatedNetwork& network,
                     const std::function<void(Communicator&)>& body) {
  std::barrier all_here(size);
  std::mutex mutex;
  std::exception_ptr first;
  auto ranks = make_local_communicators(size, seconds(1'000), {[&](std::shared_ptr<Channel> inner) {
                                          return make_emulated_links(std::move(inner), network);
                                        }},
                                        clock);
  std::vector<std::jthread> threads;
  for (auto& rank : ranks) {
    threads.emplace_back([&, own = std::move(rank)]() mutable {
      const ClockUser user(clock);
      all_here.arrive_and_wait();
      try {
        body(*own);
      } catch (const std::exception& error) {
        const std::lock_guard lock(mutex);
        if (!first) first = std::current_exception();
        own->abort(error.what());
      }
      own.reset();  // takes part in the clock's time, so that messages under way arrive
    });
  }
  threads.clear();
  if (first) std::rethrow_exception(first);
}

double seconds_between(TimePoint start, TimePoint end) {
  return Seconds(end - start).count();
}

TEST(EmulatedLinks, AMessageOccupiesItsWireAndArrivesALatencyLater) {
  VirtualClock clock;
  const EmulatedNetwork network{.wire =
                                    [](int from, int to) {
                                      return from < to
                                                 ? EmulatedWire{.latency_s = 2, .seconds_per_byte = 0.25}
                                                 : EmulatedWire{.latency_s = 0.5};
                                    },
                                .hosts = {0, 1}};
  in_virtual_time(2, clock, network, [&](Communicator& c) {
    const TimePoint start = clock.now();
    at::Tensor tensor = at::arange(4, at::kFloat);  // 16 bytes: 4 seconds of the wire
    if (c.rank() == RankId(0)) {
      std::vector<Transfer> both{{Direction::Send, RankId(1), 1, tensor, "first"},
                                 {Direction::Send, RankId(1), 2, tensor, "second"}};
      auto sent = c.exchange(both);
      tensor.fill_(9);  // copied
      sent->wait();
      EXPECT_EQ(seconds_between(start, clock.now()), 0);
      const Transfer answer{Direction::Receive, RankId(1), 3, tensor, "answer"};
      c.exchange({&answer, 1})->wait();
      EXPECT_EQ(seconds_between(start, clock.now()), 10.5);
      EXPECT_EQ(tensor[3].item<float>(), 3);
      return;
    }
    for (const auto& [tag, arrival] : {std::pair{1, 6.0}, {2, 10.0}}) {
      at::Tensor got = at::zeros({4});
      const Transfer transfer{Direction::Receive, RankId(0), static_cast<std::uint64_t>(tag), got, "message"};
      c.exchange({&transfer, 1})->wait();
      EXPECT_EQ(seconds_between(start, clock.now()), arrival);
      EXPECT_TRUE(at::equal(got, at::arange(4, at::kFloat)));
    }
    const Transfer answer{Direction::Send, RankId(0), 3, tensor, "answer"};
    c.exchange({&answer, 1})->wait();
  });
}

/// The host of a device may notice only later that the device is done. The message left when it was.
TEST(EmulatedLinks, AMessageLeavesAtItsOwnMoment) {
  VirtualClock clock;
  clock.advance(seconds(10));
  const EmulatedNetwork network{
      .wire = [](int, int) { return EmulatedWire{.latency_s = 2, .seconds_per_byte = 0.25}; },
      .hosts = {0, 1}};
  in_virtual_time(2, clock, network, [&](Communicator& c) {
    const TimePoint start = clock.now();
    const at::Tensor tensor = at::zeros({4});  // 4 seconds of the wire
    if (c.rank() == RankId(0)) {
      std::vector<Transfer> both{{Direction::Send, RankId(1), 1, tensor, "first"},
                                 {Direction::Send, RankId(1), 2, tensor, "second"}};
      both[0].moment = both[1].moment = std::make_shared<TimePoint>(start - seconds(1));
      c.exchange(both)->wait();
      return;
    }
    for (const auto& [tag, arrival] : {std::pair{1, 5.0}, {2, 9.0}}) {
      const Transfer transfer{Direction::Receive, RankId(0), static_cast<std::uint64_t>(tag), tensor, "r"};
      c.exchange({&transfer, 1})->wait();
      EXPECT_EQ(seconds_between(start, clock.now()), arrival);
    }
  });
}

TEST(EmulatedLinks, ThreeHundredRanksPassAMessageRoundInTheirOwnTime) {
  constexpr int kRanks = 300;
  VirtualClock clock;
  const EmulatedNetwork network{.wire = [](int from, int) {
    return EmulatedWire{.latency_s = 1e-3 * (1 + from % 3), .seconds_per_byte = 1e-6};
  }};
  const TimePoint start = clock.now();
  in_virtual_time(kRanks, clock, network, [&](Communicator& c) {
    at::Tensor token = at::zeros({250});
    const int me = c.rank().value;
    const Transfer in{Direction::Receive, RankId((me + kRanks - 1) % kRanks), 1, token, "token"},
        out{Direction::Send, RankId((me + 1) % kRanks), 1, token, "token"};
    if (me > 0) c.exchange({&in, 1})->wait();
    token.add_(1);
    c.exchange({&out, 1})->wait();
    if (me > 0) return;
    c.exchange({&in, 1})->wait();
    EXPECT_EQ(token[0].item<float>(), kRanks);
  });
  // 100 rounds of 1 + 2 + 3 ms, and 300 times 1000 bytes of a microsecond.
  EXPECT_NEAR(seconds_between(start, clock.now()), 100 * 6e-3 + 300 * 1e-3, 1e-9);
}

TEST(EmulatedLinks, SumsAreTheSameBitsAndTakeTheTimeThatThePlannerCharges) {
  constexpr int kRanks = 4;
  constexpr double kLatency = 0.5, kPerByte = 1e-6;
  std::vector<at::Tensor> parts;
  for (int r = 0; r < kRanks; ++r) parts.push_back(at::randn({40'000}));
  const at::Tensor expected = parts[0].add(parts[1]).add_(parts[2]).add_(parts[3]);
  VirtualClock clock;
  const TimePoint start = clock.now();
  in_virtual_time(kRanks, clock,
                  {.wire =
                       [](int, int) {
                         return EmulatedWire{kLatency, kPerByte};
                       },
                   .hosts = {0, 1, 2, 3}},
                  [&](Communicator& c) {
                    at::Tensor own = parts[c.rank().value].clone();
                    c.all_reduce(own, "sum")->wait();
                    EXPECT_TRUE(at::equal(own, expected));
                  });
  // Chunks to their owners, then back: a quarter of 160,000 bytes on each wire, twice.
  EXPECT_NEAR(seconds_between(start, clock.now()), 2 * (kLatency + 40'000 * kPerByte), 1e-9);
}

TEST(EmulatedLinks, MessagesBetweenHostsShareTheirPorts) {
  VirtualClock clock;
  const EmulatedNetwork network{
      .wire = [](int, int) { return EmulatedWire{.latency_s = 0.5, .seconds_per_byte = 1}; },
      .hosts = {0, 0, 1, 1},
      .ports = std::make_shared<EmulatedPorts>(std::vector<int>{0, 0, 1, 1})};
  in_virtual_time(4, clock, network, [&](Communicator& c) {
    const int me = c.rank().value;
    const TimePoint start = clock.now();
    at::Tensor tensor = at::zeros({2}, at::kByte);
    const auto message = [&](Direction direction, int peer, int tag) {
      const Transfer transfer{direction, RankId(peer), static_cast<std::uint64_t>(tag), tensor, "message"};
      c.exchange({&transfer, 1})->wait();
    };
    if (me < 2) {
      message(Direction::Send, me + 2, 1);  // both hosts' ports: one after the other
      message(Direction::Send, 1 - me, 2);  // inside the host: a wire of its own
      message(Direction::Receive, 1 - me, 2);
      EXPECT_EQ(seconds_between(start, clock.now()), 2.5);
    } else {
      message(Direction::Receive, me - 2, 1);
      EXPECT_EQ(seconds_between(start, clock.now()), me == 2 ? 2.5 : 4.5);
    }
  });
}

TEST(EmulatedLinks, ACollectiveTakesTheTimeThatThePlannerCharges) {
  constexpr double kLatency = 1e-3, kPerByte = 1e-9, kInside = 1e-10;
  constexpr std::int64_t kBytes = 16'000'000;
  // Rank r begins r x `apart` seconds later than rank 0.
  const auto seconds_of = [&](const std::vector<int>& hosts, double apart) {
    const int ranks = static_cast<int>(hosts.size());
    VirtualClock clock;
    const TimePoint start = clock.now();
    in_virtual_time(ranks, clock,
                    {.wire =
                         [&](int from, int to) {
                           const bool inside =
                               hosts[static_cast<std::size_t>(from)] == hosts[static_cast<std::size_t>(to)];
                           return EmulatedWire{kLatency, inside ? kInside : kPerByte};
                         },
                     .hosts = hosts,
                     .ports = std::make_shared<EmulatedPorts>(hosts)},
                    [&](Communicator& c) {
                      const auto late = Seconds(apart * static_cast<double>(c.rank().value));
                      clock.sleep_until(start + std::chrono::duration_cast<TimePoint::duration>(late));
                      at::Tensor own = at::ones({kBytes / 4});
                      c.all_reduce(own, "sum")->wait();
                      EXPECT_EQ(own[0].item<float>(), ranks);
                    });
    return seconds_between(start, clock.now());
  };
  for (const std::vector<int>& hosts :
       {std::vector{0, 0}, std::vector{0, 0, 0, 0}, std::vector{0, 1, 2, 3}, std::vector{0, 0, 1, 1}}) {
    ClusterSpec cluster{.hosts = {}, .network = {.bandwidth = 1 / kPerByte, .latency_s = kLatency}};
    std::vector<RankId> ranks;
    for (int r = 0; r < static_cast<int>(hosts.size()); ++r) {
      ranks.emplace_back(r);
      if (hosts[static_cast<std::size_t>(r)] == static_cast<int>(cluster.hosts.size()))
        cluster.hosts.push_back({.name = std::to_string(r),
                                 .devices = 0,
                                 .link = {.bandwidth = 1 / kInside, .latency_s = kLatency}});
      ++cluster.hosts.back().devices;
    }
    const double charged = all_reduce_seconds(cluster, ranks, kBytes);
    // Between hosts of several ranks it goes in pieces. The planner takes no overlap of the part inside the
    // hosts with the part between them.
    const bool in_pieces = hosts.front() == hosts[1] && hosts.back() != hosts.front();
    const double in_time = seconds_of(hosts, 0);
    EXPECT_NEAR(in_time / charged, in_pieces ? 0.9 : 1, in_pieces ? 0.03 : 0.001)
        << hosts.size() << " ranks, the last on host " << hosts.back();
    EXPECT_NEAR(seconds_of(hosts, 1e-6) / in_time, 1, 0.01)
        << hosts.size() << " ranks that begin a microsecond apart, the last on host " << hosts.back();
  }
}

TEST(EmulatedLinks, MessagesOfTwoHostsShareThePortAtWhichTheyArrive) {
  EmulatedPorts ports({0, 1, 2});
  std::vector<std::shared_ptr<EmulatedPorts::Request>> requests;
  for (const int from : {0, 1}) {
    auto request = std::make_shared<EmulatedPorts::Request>();
    request->from = from;
    request->to = 2;
    request->length = std::chrono::nanoseconds(10);
    ports.ask(requests.emplace_back(std::move(request)));
  }
  ports.settle(TimePoint(std::chrono::nanoseconds(1)));
  EXPECT_EQ(requests[0]->left, TimePoint(std::chrono::nanoseconds(10)));
  EXPECT_EQ(requests[1]->left, TimePoint(std::chrono::nanoseconds(20)));
}

TEST(EmulatedLinks, ProcessesShareTheirPortsInAFile) {
  const TemporaryFolder folder;
  const std::string file = folder.path("ports");
  EmulatedPorts one({0, 1, 1}, file), other({0, 1, 1}, file);
  const auto asked = [](EmulatedPorts& ports, int to, std::int64_t posted) {
    auto request = std::make_shared<EmulatedPorts::Request>();
    request->from = 0, request->to = to;
    request->posted = TimePoint(std::chrono::nanoseconds(posted));
    request->length = std::chrono::nanoseconds(100);
    ports.ask(request);
    ports.settle(request->posted + std::chrono::nanoseconds(1));
    return request->left.time_since_epoch().count();
  };
  EXPECT_EQ(asked(one, 1, 10), 110);
  EXPECT_EQ(asked(other, 2, 20), 210);
  EXPECT_EQ(asked(one, 2, 1000), 1100);
}

TEST(EmulatedLinks, AMessageThatAsksLatePassesItsPortsWhenItWouldHave) {
  EmulatedPort port;
  const auto passes = [&](std::int64_t posted) {
    const std::int64_t left = std::max(posted, port.free_at(posted)) + 100;
    port.passed(posted, 100, left);
    return left;
  };
  EXPECT_EQ(passes(1000), 1100);
  EXPECT_EQ(passes(1010), 1200);
  EXPECT_EQ(passes(500), 600);  // it was free then
  EXPECT_EQ(passes(1020), 1300);
  EXPECT_EQ(passes(950), 1050);  // half of it in the time of the one after it: the next ones wait for that
  EXPECT_EQ(passes(1030), 1450);
  EXPECT_EQ(passes(2000), 2100);
  for (int i = 1; i <= 100; ++i) EXPECT_EQ(passes(3000), 3000 + 100 * i);
  EXPECT_EQ(port.free_at(0), 3000 + 100 * 68) << "it knows the newest 32, and is not free before them";
}

TEST(EmulatedLinks, ASlowerLinkThanTheDeadlineIsALateMessage) {
  VirtualClock clock;
  const auto run = [&] {
    in_virtual_time(2, clock, {.wire = [](int, int) { return EmulatedWire{.latency_s = 5'000}; }},
                    [](Communicator& c) { c.barrier(); });
  };
  EXPECT_THROW(run(), PeerError);
}

}  // namespace
}  // namespace millrace
