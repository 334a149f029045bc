// Rendezvous stores: what they carry, and whom they let in.
#include "runtime/comm/store.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <thread>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/base/open_files.h"
#include "runtime/comm/addresses.h"
#include "runtime/comm/handshake.h"
#include "tests/comm/stranger.h"

namespace millrace {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

class Tcp : public ::testing::Test {
 protected:
  std::shared_ptr<Store> join(int rank, TcpStoreOptions options = {}) {
    options.address = "127.0.0.1";
    options.port = port_;
    options.rank = rank;
    if (options.size == 1) options.size = 2;
    if (options.deadline == milliseconds(60'000)) options.deadline = milliseconds(20'000);
    return make_tcp_store(options);
  }
  const int port_ = free_port();
};

TEST_F(Tcp, ServesSeveralClientsAndNamesAPortInUse) {
  auto server = join(0);
  EXPECT_THROW(join(0), ConfigError) << "the port is in use";
  auto client = join(1);
  std::jthread later([&] { server->set("k", std::string("a\0b", 3)); });
  EXPECT_EQ(client->get("k", milliseconds(20'000)), std::string("a\0b", 3));
}

TEST_F(Tcp, ListensWhereItIsToldAndNowhereElse) {
  const auto reaches = [&](const char* address) {
    sockaddr_in other = loopback(port_);
    ::inet_pton(AF_INET, address, &other.sin_addr);
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool connected = ::connect(fd, reinterpret_cast<const sockaddr*>(&other), sizeof other) == 0;
    ::close(fd);
    return connected;
  };
  {
    const auto narrow = join(0);
    EXPECT_FALSE(reaches("127.0.0.2"));
  }
  const auto wide = join(0, {.all_addresses = true});
  EXPECT_TRUE(reaches("127.0.0.2"));
}

TEST(Addresses, NamesAndLiteralsOfBothFamilies) {
  EXPECT_EQ(resolve("[::1]", 1).text(), "::1");
  EXPECT_EQ(resolve("::1", 1).family(), AF_INET6);
  EXPECT_EQ(resolve("10.1.2.3", 1).text(), "10.1.2.3");
  EXPECT_EQ(resolve("localhost", 1).text(), "127.0.0.1") << "IPv4 where there is one";
  for (const char* own : {"127.0.1.1", "::1", "::ffff:127.0.0.1", "localhost"})
    EXPECT_TRUE(resolve(own, 1).is_loopback()) << own;
  for (const char* other : {"10.1.2.3", "2001:db8::1", "::ffff:10.0.0.1"})
    EXPECT_FALSE(resolve(other, 1).is_loopback()) << other;
  EXPECT_EQ(host_and_port("::1", 7), "[::1]:7");
  EXPECT_EQ(host_and_port("[::1]", 7), "[::1]:7");
  EXPECT_EQ(host_and_port("host", 7), "host:7");
  EXPECT_EQ(any_address(resolve("::1", 7)).text(), "::");
  EXPECT_EQ(any_address(resolve("127.0.1.1", 7)).text(), "0.0.0.0");
  EXPECT_EQ(address_towards(resolve("127.0.0.1", 7))->text(), "127.0.0.1");
  EXPECT_THROW(resolve("no-such-host.invalid", 1), UnknownName);
  EXPECT_THROW(resolve("[::1]:29500", 1), ConfigError);
}

/// A pod that starts before pod 0 does not know its name yet.
TEST(Addresses, ANameThatAppearsLaterIsWaitedFor) {
  VirtualClock clock;
  const TimePoint end = clock.now() + milliseconds(20'000);
  int lookups = 0;
  const auto later = [&](const std::string&, int port) {
    if (++lookups < 8) throw UnknownName("not yet");
    return resolve("10.1.2.3", port);
  };
  EXPECT_EQ(await_address("pod-0.job", 7, end, clock, later).text_with_port(), "10.1.2.3:7");
  EXPECT_LT(clock.now(), end);
  lookups = -1'000'000;
  EXPECT_THROW(await_address("pod-0.job", 7, end, clock, later), PeerError);
  EXPECT_EQ(clock.now(), end);
  VirtualClock other;
  EXPECT_THROW(await_address("[::1]:29500", 1, other.now() + milliseconds(20'000), other), ConfigError);
  EXPECT_EQ(other.now(), VirtualClock().now()) << "no name: nothing to wait for";
}

/// Over IPv6 where this machine has it.
TEST(Addresses, RanksMeetAtIpv6) {
  if (!address_towards(resolve("::1", 9))) return;  // no IPv6 here: nothing to meet at
  TcpStoreOptions options{
      .address = "[::1]", .port = free_port(), .size = 2, .deadline = milliseconds(20'000)};
  const auto server = make_tcp_store(options);
  EXPECT_THROW(make_tcp_store(options), ConfigError) << "the port is in use";
  options.rank = 1;
  const auto client = make_tcp_store(options);
  server->set("k", "v");
  EXPECT_EQ(client->get("k", milliseconds(20'000)), "v");
}

TEST_F(Tcp, AnAnswerThatComesTooLateIsNotTakenForTheNext) {
  auto server = join(0);
  auto client = join(1);
  for (int round = 0; round < 20; ++round) {
    const std::string late = "late" + std::to_string(round), next = "next" + std::to_string(round);
    EXPECT_THROW(client->get(late, milliseconds(10)), PeerError);
    server->set(late, "the late answer");  // now the given-up request can be answered
    client->set(next, "x" + next);         // and a waiting GET does not keep a SET from the server
    ASSERT_EQ(client->get(next, milliseconds(20'000)), "x" + next);
    ASSERT_EQ(server->get(next, milliseconds(20'000)), "x" + next);
  }
}

TEST_F(Tcp, ConnectingEndsAtItsDeadline) {
  // Nobody listens, and: somebody listens whose queue is full, so that no connection is made or refused.
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = loopback(port_);
  for (const bool full : {false, true}) {
    std::vector<Stranger> queue;
    std::vector<int> pending;
    if (full) {
      ASSERT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
      ASSERT_EQ(::listen(listener, 0), 0);
      for (int i = 0; i < 4; ++i) {
        const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        ::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address);
        pending.push_back(fd);
      }
    }
    EXPECT_THROW(join(1, {.deadline = milliseconds(300)}), PeerError) << full;
    for (int fd : pending) ::close(fd);
  }
  ::close(listener);
}

TEST_F(Tcp, OnlyTheJobItselfMayJoin) {
  auto server = join(0, {.size = 3, .job = "a", .token = "secret"});
  const TcpStoreOptions wrong[] = {{.size = 3, .job = "a", .token = "guess"},
                                   {.size = 3, .job = "a"},
                                   {.size = 3, .job = "b", .token = "secret"},
                                   {.size = 4, .job = "a", .token = "secret"}};
  for (const TcpStoreOptions& options : wrong) {
    try {
      join(1, options);
      FAIL() << options.job << " " << options.token << " " << options.size;
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find("127.0.0.1:" + std::to_string(port_)), std::string::npos)
          << error.what();
      EXPECT_EQ(std::string(error.what()).find("secret"), std::string::npos) << error.what();
    }
  }
  auto first = join(1, {.size = 3, .job = "a", .token = "secret"});
  EXPECT_THROW(join(1, {.size = 3, .job = "a", .token = "secret"}), ConfigError) << "joined already";
  auto second = join(2, {.size = 3, .job = "a", .token = "secret"});
  server->set("k", "v");
  EXPECT_EQ(second->get("k", milliseconds(20'000)), "v");
}

TEST_F(Tcp, TheTokenIsNotWhatAProofSays) {
  const Hello hello{.rank = 1, .size = 2, .job = "j", .nonce = random_bytes(kNonceBytes)};
  const std::string challenge = random_bytes(kNonceBytes), other = random_bytes(kNonceBytes);
  const std::string proof = client_proof("secret", challenge, hello);
  EXPECT_TRUE(is_proof(proof, client_proof("secret", challenge, hello)));
  EXPECT_FALSE(is_proof(proof, client_proof("secret", other, hello))) << "no replay";
  EXPECT_FALSE(is_proof(proof, server_proof("secret", challenge, hello))) << "no reflection";
  Hello rank2 = hello;
  rank2.rank = 0;
  EXPECT_FALSE(is_proof(proof, client_proof("secret", challenge, rank2)));
  EXPECT_FALSE(is_proof("", ""));
  EXPECT_NE(random_token(), random_token());
  EXPECT_EQ(random_token().size(), 32u);
  for (const char* text : {"", "1:0", "1:0,", "9999:x", "1:01:21:j", "1:21:11:j16:0123456789abcdef0:"})
    EXPECT_FALSE(parse_hello(text)) << text;
}

TEST_F(Tcp, WhenAllAreHereNobodyListensAnyMore) {
  auto server = join(0);
  auto client = join(1);
  const auto deadline = Clock::now() + std::chrono::seconds(60);
  while (Stranger(port_).is_connected() && Clock::now() < deadline)
    std::this_thread::sleep_for(milliseconds(10));
  EXPECT_FALSE(Stranger(port_).is_connected());
  server->set("k", "v");
  EXPECT_EQ(client->get("k", milliseconds(20'000)), "v") << "those inside go on";
}

TEST_F(Tcp, StrangersAreSentAwayAndDisturbNobody) {
  auto server = join(0);
  std::vector<Stranger> strangers;
  for (int i = 0; i < 60; ++i) strangers.emplace_back(port_);
  strangers[0].say("GET / HTTP/1.1\r\n\r\n");
  strangers[1].say(std::string(4, '\xff') + "much too long");
  strangers[2].say("");  // says nothing at all
  strangers[3].say(std::string("s\0\0\0\1\0\0\0\1k\0\0\0\1v", 15));
  server->set("k", "ours");
  EXPECT_EQ(server->get("k", milliseconds(20'000)), "ours");
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(strangers[i].is_sent_away(milliseconds(60'000))) << i;
  strangers.clear();
  auto client = join(1, {.deadline = milliseconds(20'000)});
  EXPECT_EQ(client->get("k", milliseconds(20'000)), "ours");
}

TEST_F(Tcp, HundredsOfSilentConnectionsHoldUpNoRank) {
  auto server = join(0);
  std::vector<Stranger> strangers;
  for (int i = 0; i < 300; ++i) strangers.emplace_back(port_);
  // If one after the other had to go first, it would take 5 s for each.
  auto client = join(1, {.deadline = milliseconds(120'000)});
  server->set("k", "v");
  EXPECT_EQ(client->get("k", milliseconds(20'000)), "v");
}

TEST_F(Tcp, UnderTlsOnlyWhoKnowsTheTokenGetsAWord) {
  auto server = join(0, {.token = "secret", .encrypt = true});
  EXPECT_THROW(join(1, {.token = "guess", .encrypt = true, .deadline = milliseconds(500)}), PeerError);
  EXPECT_THROW(join(1, {.token = "secret", .deadline = milliseconds(500)}), PeerError) << "in clear";
  auto client = join(1, {.token = "secret", .encrypt = true});
  const std::string big(1 << 20, 'v');
  server->set("k", big);
  EXPECT_EQ(client->get("k", milliseconds(20'000)), big);
}

TEST_F(Tcp, TheStoreIsBounded) {
  auto server = join(0);
  auto client = join(1);
  EXPECT_THROW(client->set(std::string(5000, 'k'), "v"), Error);
  EXPECT_THROW(client->set("k", std::string(2 << 20, 'v')), Error);
  const std::string big(1 << 20, 'v');
  EXPECT_THROW(
      {
        for (int i = 0; i < 100; ++i) client->set("big" + std::to_string(i), big);
      },
      PeerError);
  EXPECT_THROW(
      {
        for (int i = 0; i < 100'000; ++i) client->set("key" + std::to_string(i), "");
      },
      PeerError);
  client->set("big0", "smaller");
  EXPECT_EQ(server->get("big0", milliseconds(20'000)), "smaller") << "and goes on";
}

/// Processor time of this process, seconds.
double processor_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) { return double(t.tv_sec) + double(t.tv_usec) * 1e-6; };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

TEST_F(Tcp, WithoutDescriptorsTheServerWaitsInsteadOfSpinning) {
  auto server = join(0);
  Stranger waits(port_);  // this connection is accepted below or stays in the queue; another one comes
  std::vector<int> hoard;
  rlimit old{};
  ::getrlimit(RLIMIT_NOFILE, &old);
  const int outside = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  for (int fd; (fd = ::dup(0)) >= 0 && hoard.size() < 200'000;) hoard.push_back(fd);
  ASSERT_FALSE(hoard.empty());
  sockaddr_in address = loopback(port_);
  ASSERT_EQ(::connect(outside, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  const double before = processor_seconds();
  std::this_thread::sleep_for(milliseconds(600));
  const double used = processor_seconds() - before;
  for (int fd : hoard) ::close(fd);
  ::close(outside);
  EXPECT_LT(used, 0.2);
  auto client = join(1, {.deadline = milliseconds(20'000)});
  server->set("k", "v");
  EXPECT_EQ(client->get("k", milliseconds(20'000)), "v");
}

/// Counts what ranks read.
class CountingStore final : public Store {
 public:
  void set(const std::string& key, const std::string& value) override { store_->set(key, value); }
  std::string get(const std::string& key, milliseconds deadline) override {
    ++reads;
    return store_->get(key, deadline);
  }
  std::atomic<int> reads = 0;

 private:
  std::shared_ptr<Store> store_ = make_memory_store();
};

std::string agreed(Store& store, const std::vector<int>& ranks, int rank, milliseconds deadline) {
  return agree(store, "who", ranks, rank, "rank " + std::to_string(rank), deadline, steady_clock(),
               joined_lines);
}

TEST(Agreement, ReadsTwoValuesForEachRank) {
  constexpr int kRanks = 32;
  CountingStore store;
  std::vector<std::string> got(kRanks);
  {
    std::vector<std::jthread> threads;
    for (int r = 0; r < kRanks; ++r)
      threads.emplace_back([&, r] {
        got[static_cast<std::size_t>(r)] = agreed(store, {3, 7, 8}, r, milliseconds(60'000));
      });
  }
  EXPECT_EQ(got, std::vector<std::string>(kRanks, "rank 3\nrank 7\nrank 8"));
  EXPECT_EQ(store.reads, 2 + kRanks - 1) << "the first rank reads two, the others what it made of them";
}

TEST(Agreement, OfOneRankReachesTheOthers) {
  CountingStore store;
  EXPECT_EQ(agreed(store, {0}, 0, milliseconds(1000)), "rank 0");
  EXPECT_EQ(agreed(store, {0}, 1, milliseconds(1000)), "rank 0");
}

TEST(Agreement, NamesToAllWhoIsMissing) {
  CountingStore store;
  std::vector<std::string> errors(2);
  {
    std::vector<std::jthread> threads;
    for (const int r : {0, 2})
      threads.emplace_back([&, r] {
        try {
          agreed(store, {0, 1, 2, 3}, r, milliseconds(200));
        } catch (const PeerError& error) {
          errors[static_cast<std::size_t>(r / 2)] = error.what();
        }
      });
  }
  EXPECT_EQ(errors[0], "rank 0: no sign of rank(s) 1, 3 within 200 ms (key 'who')");
  EXPECT_EQ(errors[1], "rank 2: no sign of rank(s) 1, 3 within 200 ms (key 'who')");
}

TEST(OpenFiles, ALimitThatIsTooLowIsNamed) {
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const std::string hard = std::to_string(limit.rlim_max);
  try {
    require_open_files(limit.rlim_max + 1, "rank 0, where many ranks meet,");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("may open " + hard), std::string::npos) << error.what();
    EXPECT_NE(error.hint().find("ulimit -Hn"), std::string::npos) << error.hint();
  }
}

/// A child may raise its limit, and this process's stays.
TEST(OpenFiles, TheSoftLimitIsRaisedToTheHardOne) {
  const pid_t child = ::fork();
  if (child == 0) {
    rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = 64;
    ::setrlimit(RLIMIT_NOFILE, &limit);
    raise_open_files();
    ::getrlimit(RLIMIT_NOFILE, &limit);
    ::_exit(limit.rlim_cur == limit.rlim_max && limit.rlim_max > 64 ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST(PrefixStore, KeepsTheKeysOfEachApart) {
  const auto all = make_memory_store();
  const auto one = make_prefix_store("one", all), other = make_prefix_store("other", all);
  one->set("k", "1");
  other->set("k", "2");
  EXPECT_EQ(one->get("k", milliseconds(20'000)), "1");
  EXPECT_EQ(all->get("other/k", milliseconds(20'000)), "2");
}

TEST(FileStore, SharesValues) {
  char name[] = "/tmp/millrace-stores-XXXXXX";
  const std::string folder = ::mkdtemp(name);
  make_file_store(folder)->set("a/b", "x");
  EXPECT_EQ(make_file_store(folder)->get("a/b", milliseconds(1000)), "x");
  EXPECT_THROW(make_file_store(folder)->get("none", milliseconds(20)), PeerError);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace millrace
