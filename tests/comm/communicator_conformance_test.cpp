// A transport is correct when this suite passes. Ranks are threads, each with its own communicator.
#include <gtest/gtest.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <functional>
#include <latch>
#include <mutex>
#include <thread>

#include "runtime/base/error.h"
#include "runtime/comm/channel.h"
#include "runtime/comm/communicator.h"
#include "runtime/comm/gloo_channel.h"
#include "runtime/comm/staged_channel.h"
#include "runtime/comm/store.h"
#include "tests/comm/fake_nccl.h"

namespace millrace {
namespace {

using std::chrono::milliseconds;

class EveryBackend : public ::testing::TestWithParam<std::string> {
 protected:
  /// Runs `body` once a rank; the first exception of any rank is thrown here.
  void ranks(int size, milliseconds deadline, const std::function<void(Communicator&)>& body) {
    std::vector<std::unique_ptr<Communicator>> local;
    if (GetParam() == "local") local = make_local_communicators(size, deadline);
    if (GetParam() == "fake_nccl") local = make_fake_nccl_communicators(size, deadline);
    auto store = make_memory_store();
    std::mutex mutex;
    std::exception_ptr first;
    std::vector<std::jthread> threads;
    for (int r = 0; r < size; ++r) {
      threads.emplace_back([&, r] {
        std::unique_ptr<Communicator> own;
        Communicator* c = nullptr;
        try {
          const CommunicatorOptions options{
              .backend = value_named<Backend>(GetParam()).value_or(Backend::Tcp),
              .rank = RankId(r),
              .size = size,
              .deadline = deadline,
              .rendezvous_deadline = milliseconds(20'000),
              .encrypt = GetParam() == "tls"};
          if (GetParam() == "staged")
            own = make_channel_communicator(
                make_staged_channel(make_gloo_channel(options, store), Staging::Everything));
          else if (local.empty())
            own = make_communicator(options, store);
          c = own ? own.get() : local[r].get();
          c->connect(all_traffic(size));
          body(*c);
        } catch (const std::exception& error) {
          {
            std::lock_guard lock(mutex);
            if (!first) first = std::current_exception();
          }
          if (c) c->abort(error.what());
        }
      });
    }
    threads.clear();
    if (first) std::rethrow_exception(first);
  }
};

/// The backends that find a message by its tag.
class TaggedBackend : public EveryBackend {};

at::Tensor random_tensor(std::int64_t n, std::uint64_t seed) {
  return at::empty({n}, at::kFloat).normal_(0, 1, at::detail::createCPUGenerator(seed));
}

TEST_P(EveryBackend, ExchangeBothWaysDoesNotHang) {
  for (std::int64_t n : {1, 1000, 4 << 20}) {
    ranks(2, milliseconds(30'000), [&](Communicator& c) {
      const int me = c.rank().value, peer = 1 - me;
      at::Tensor out = random_tensor(n, static_cast<std::uint64_t>(me)), in = at::empty({n}, at::kFloat);
      const Transfer both[] = {{Direction::Send, RankId(peer), 5, out, "out"},
                               {Direction::Receive, RankId(peer), 5, in, "in"}};
      c.exchange(both)->wait();
      if (!at::equal(in, random_tensor(n, static_cast<std::uint64_t>(peer))))
        throw std::runtime_error("wrong data");
    });
  }
}

TEST_P(TaggedBackend, TagsSeparateMessagesInAnyOrder) {
  ranks(2, milliseconds(30'000), [](Communicator& c) {
    constexpr int kCount = 50;
    std::vector<std::unique_ptr<Pending>> pending;
    std::vector<at::Tensor> tensors;
    for (int i = 0; i < kCount; ++i) {
      const bool sends = c.rank().value == 0;
      const int value = sends ? i : kCount - 1 - i;
      tensors.push_back(sends ? at::full({3}, double(value)) : at::zeros({3}));
      const Transfer one[] = {{sends ? Direction::Send : Direction::Receive, RankId(sends ? 1 : 0),
                               static_cast<std::uint64_t>(value), tensors.back(), "message"}};
      pending.push_back(c.exchange(one));
    }
    for (auto& p : pending) p->wait();
    for (int i = 0; i < kCount; ++i) {
      const int value = c.rank().value == 0 ? i : kCount - 1 - i;
      if (!at::equal(tensors[i], at::full({3}, double(value)))) throw std::runtime_error("wrong message");
    }
  });
}

TEST_P(EveryBackend, AllReduceAddsInTheOrderOfRanks) {
  for (int size : {1, 2, 3, 4}) {
    for (std::int64_t n : {1, 2, 100, 100'003}) {
      at::Tensor expected = random_tensor(n, 0);
      for (int r = 1; r < size; ++r)
        expected = at::add(expected, random_tensor(n, static_cast<std::uint64_t>(r)));
      ranks(size, milliseconds(30'000), [&](Communicator& c) {
        at::Tensor a = random_tensor(n, static_cast<std::uint64_t>(c.rank().value)), b = a.clone();
        auto first = c.all_reduce(a, "a"), second = c.all_reduce(b, "b");
        first->wait();
        second->wait();
        if (!at::equal(a, expected) || !at::equal(b, expected)) throw std::runtime_error("wrong sum");
      });
    }
  }
}

TEST_P(EveryBackend, SubgroupsBroadcastAndBarrier) {
  ranks(4, milliseconds(30'000), [](Communicator& c) {
    const int me = c.rank().value;
    const std::vector<RankId> members =
        me % 2 ? std::vector{RankId(1), RankId(3)} : std::vector{RankId(0), RankId(2)};
    auto group = c.subgroup(members, me % 2 ? "odd" : "even");
    group->connect(all_traffic(2));
    at::Tensor sum = at::full({1}, double(me));
    group->all_reduce(sum, "sum")->wait();
    if (sum.item<float>() != (me % 2 ? 4 : 2)) throw std::runtime_error("wrong group sum");
    at::Tensor value = at::full({2}, double(me));
    c.broadcast(value, RankId(2));
    if (value[0].item<float>() != 2) throw std::runtime_error("wrong broadcast");
    c.barrier();
  });
}

// Both names have one number of 15 bits, and the groups would take each other's messages.
TEST_P(EveryBackend, GroupsOfOneNumberAreRefusedWhileBothAreThere) {
  ranks(2, milliseconds(30'000), [](Communicator& c) {
    const std::vector<RankId> both{RankId(0), RankId(1)};
    auto first = c.subgroup(both, "stage38");
    try {
      c.subgroup(both, "stage153");
      throw std::runtime_error("two groups of one number");
    } catch (const ConfigError& error) {
      if (std::string(error.what()).find("stage38 and stage153") == std::string::npos) throw;
    }
    first.reset();
    c.subgroup(both, "stage153")->barrier();
  });
}

TEST_P(EveryBackend, ADeadlineNamesPeerActionAndTime) {
  double waited = 0;
  std::latch ended(1);
  try {
    ranks(2, milliseconds(200), [&](Communicator& c) {
      if (c.rank().value == 1) {
        ended.wait();  // alive, but silent
        return;
      }
      at::Tensor in = at::empty({4}, at::kFloat);
      const Transfer one[] = {{Direction::Receive, RankId(1), 1, in, "RECV_F microbatch 3"}};
      const auto start = std::chrono::steady_clock::now();
      try {
        c.exchange(one)->wait();
      } catch (const PeerError&) {
        waited = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        ended.count_down();
        throw;
      }
    });
    FAIL() << "no time-out";
  } catch (const PeerError& error) {
    const std::string text = error.what();
    for (const char* part : {"rank 0", "RECV_F microbatch 3", "rank 1"})
      EXPECT_NE(text.find(part), std::string::npos) << text;
    // The text tells the time that this rank waited, to a tenth: 0.2 s, or more on a busy machine.
    double seconds = 0;
    char unit = 0;
    const std::size_t time = text.find(" after ");
    ASSERT_NE(time, std::string::npos) << text;
    ASSERT_EQ(std::sscanf(&text[time], " after %lf %c", &seconds, &unit), 2) << text;
    EXPECT_EQ(unit, 's') << text;
    EXPECT_GE(seconds, 0.2) << text;
    EXPECT_LE(seconds, waited + 0.05) << text;
  }
}

/// The wait ends with PeerError, and not by its deadline.
void expect_aborted(Pending& pending, const std::string& what) {
  try {
    pending.wait();
    ADD_FAILURE() << what << ": the wait succeeded";
  } catch (const PeerError& error) {
    EXPECT_EQ(std::string(error.what()).find("no message"), std::string::npos)
        << what << ": " << error.what();
  }
}

/// Until the thread sleeps in the kernel, 30 s at most.
void await_sleep(pid_t thread) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  for (std::string stat; std::chrono::steady_clock::now() < end; std::this_thread::yield()) {
    std::getline(std::ifstream("/proc/self/task/" + std::to_string(thread) + "/stat"), stat);
    if (stat.find(") S ") != std::string::npos) return;
  }
}

TEST_P(EveryBackend, AbortWakesAWaiter) {
  ranks(2, milliseconds(30'000), [](Communicator& c) {
    at::Tensor in = at::empty({4}, at::kFloat);
    const Transfer one[] = {{Direction::Receive, RankId(1 - c.rank().value), 1, in, "RECV"}};
    auto pending = c.exchange(one);
    std::jthread killer([&, waiter = ::gettid()] {
      await_sleep(waiter);
      c.abort("stop here");
    });
    expect_aborted(*pending, "rank " + std::to_string(c.rank().value));
  });
}

TEST_P(EveryBackend, AfterAnAbortEveryWaitFails) {
  try {
    ranks(2, milliseconds(30'000), [](Communicator& c) {
      const RankId peer(1 - c.rank().value);
      at::Tensor in = at::empty({4}, at::kFloat);
      const Transfer early[] = {{Direction::Receive, peer, 1, in, "RECV"}};
      auto pending = c.exchange(early);
      c.barrier();
      c.abort("stop here");
      for (int attempt = 0; attempt < 2; ++attempt) {
        expect_aborted(*pending, "posted before, attempt " + std::to_string(attempt));
        const Transfer late{Direction::Receive, peer, static_cast<std::uint64_t>(2 + attempt), in, "RECV"};
        EXPECT_THROW(c.exchange({&late, 1})->wait(), PeerError) << "posted after, attempt " << attempt;
      }
      throw PeerError("as expected");  // the harness ends the ranks
    });
    FAIL();
  } catch (const PeerError&) {
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, EveryBackend,
                         ::testing::Values("local", "tcp", "tls", "gloo", "shm", "auto", "staged",
                                           "fake_nccl"),
                         [](const auto& info) { return info.param; });
INSTANTIATE_TEST_SUITE_P(Backends, TaggedBackend,
                         ::testing::Values("local", "tcp", "tls", "gloo", "shm", "auto", "staged"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace millrace
