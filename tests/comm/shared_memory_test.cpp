// Tests which memory a rank accepts as another's, and what it does when there is little of it.
#include "runtime/comm/shared_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>

#include <filesystem>
#include <functional>
#include <thread>

#include "runtime/base/error.h"

namespace millrace {
namespace {

using std::chrono::milliseconds;

CommunicatorOptions options_of(int rank) {
  return {.backend = Backend::SharedMemory,
          .rank = RankId(rank),
          .size = 2,
          .deadline = milliseconds(10'000),
          .rendezvous_deadline = milliseconds(5000)};
}

/// Opens rank 0's channel with a store that says that rank 1's segment is at `address`.
std::shared_ptr<Channel> open_at(const std::string& address) {
  auto store = make_memory_store();
  store->set("shm/1", address);
  store->set("shm-open/1", "yes");
  return make_shared_memory_channel(options_of(0), {0, 1}, *store);
}

class Shared : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/millrace-shared-XXXXXX";
    folder_ = ::mkdtemp(name);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::filesystem::path folder_;
};

std::string proc_path(int fd) {
  return "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(fd);
}

TEST_F(Shared, OnlyASegmentOfThisUserIsMapped) {
  const std::string size = " " + std::to_string(std::size_t{1} << 30);
  const std::string file = (folder_ / "file").string(), fifo = (folder_ / "fifo").string();
  const int plain = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_EQ(::ftruncate(plain, off_t{2} << 30), 0);
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  const int pipe = ::open(fifo.c_str(), O_RDWR | O_CLOEXEC);
  const int unlinked = ::open((folder_ / "gone").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_EQ(::ftruncate(unlinked, off_t{2} << 30), 0);
  ASSERT_EQ(::unlink((folder_ / "gone").c_str()), 0);
  const int unsealed = ::memfd_create("millrace", MFD_CLOEXEC | MFD_ALLOW_SEALING);  // could be cut short
  ASSERT_EQ(::ftruncate(unsealed, off_t{2} << 30), 0);
  const int small = ::memfd_create("millrace", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(::ftruncate(small, 4096), 0);
  ASSERT_EQ(::fcntl(small, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
  const std::string addresses[] = {file + size,
                                   fifo + size,
                                   "/dev/zero" + size,
                                   "/etc/passwd" + size,
                                   "",
                                   "garbage",
                                   proc_path(plain) + size,
                                   proc_path(pipe) + size,
                                   proc_path(unlinked) + size,
                                   proc_path(unsealed) + size,
                                   proc_path(small) + size,
                                   proc_path(small) + " 18446744073709551615",
                                   proc_path(small) + " -1",
                                   proc_path(99999) + size,
                                   "/proc/self/../" + std::to_string(::getpid()) + "/fd/3" + size};
  for (const std::string& address : addresses) EXPECT_EQ(open_at(address), nullptr) << address;
  for (int fd : {plain, pipe, unlinked, unsealed, small}) ::close(fd);
}

/// Runs `body` in a child, which may lower its own limits; its exit status, or minus the signal that ended
/// it.
int in_child(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

/// Both ranks of this process exchange `bytes`; 0: it worked, 5: no shared memory, else the exit code.
int exchange_under(rlim_t limit, std::int64_t bytes) {
  at::set_num_threads(1);  // OpenMP does not survive a fork
  const rlimit file_size{limit, limit};
  if (::setrlimit(RLIMIT_FSIZE, &file_size) != 0) return 99;
  auto store = make_memory_store();
  int codes[2] = {-1, -1};
  {
    std::vector<std::jthread> ranks;
    for (int r : {0, 1}) {
      ranks.emplace_back([&, r] {
        auto channel = make_shared_memory_channel(options_of(r), {0, 1}, *store);
        if (!channel) {
          codes[r] = 5;
          return;
        }
        at::Tensor out = at::full({bytes / 4}, double(r)), in = at::empty({bytes / 4}, at::kFloat);
        try {
          auto receive = channel->post({Direction::Receive, RankId(1 - r), 1, in, "in"});
          channel->post({Direction::Send, RankId(1 - r), 1, out, "out"})->wait();
          receive->wait();
          codes[r] = in[0].item<float>() == 1 - r ? 0 : 98;
        } catch (const Error& error) {
          codes[r] = error.hint().find("ulimit -f") != std::string::npos ? 42 : 97;
          channel->abort(error.what());
        }
      });
    }
  }
  if (codes[0] == 42 || codes[1] == 42) return 42;  // the other one was told
  return std::max(codes[0], codes[1]);
}

TEST_F(Shared, AFileSizeLimitMakesTheMemorySmallerNotTheProcessDead) {
  EXPECT_EQ(in_child([] { return exchange_under(rlim_t{1} << 30, 1 << 20); }), 0);
  EXPECT_EQ(in_child([] { return exchange_under(rlim_t{8} << 20, 1 << 20); }), 0);
  EXPECT_EQ(in_child([] { return exchange_under(rlim_t{8} << 20, 64 << 20); }), 42) << "names the limit";
  EXPECT_EQ(in_child([] { return exchange_under(rlim_t{64} << 10, 1 << 10); }), 5) << "none, and says so";
}

/// The channels of ranks 0 and 1, both of this process.
std::vector<std::shared_ptr<Channel>> pair() {
  auto store = make_memory_store();
  std::vector<std::shared_ptr<Channel>> channels(2);
  std::jthread other([&] { channels[1] = make_shared_memory_channel(options_of(1), {0, 1}, *store); });
  channels[0] = make_shared_memory_channel(options_of(0), {0, 1}, *store);
  other.join();
  return channels;
}

TEST(SharedMemory, AMessageThatIsReadInPlaceStaysUntilItsReaderIsDone) {
  const auto channels = pair();
  ASSERT_TRUE(channels[0] && channels[1]);
  const at::Tensor like = at::empty({100, 10}, at::kFloat);
  const auto send = [&](double value, std::uint64_t tag) {
    at::Tensor sent = at::full({100, 10}, value);
    channels[1]->post({Direction::Send, RankId(0), tag, sent, "out"})->wait();
    sent.fill_(-1);  // the tensor may change after it was sent
  };
  const auto receive = [&](std::uint64_t tag) {
    auto arrival = channels[0]->receive({Direction::Receive, RankId(1), tag, like, "in"});
    arrival->wait();
    return arrival;
  };
  send(1, 1);
  auto first = receive(1);
  const void* place = first->message().const_data_ptr();
  EXPECT_EQ(first->message().sizes(), like.sizes());
  send(2, 2);
  send(3, 3);
  const auto second = receive(2), third = receive(3);
  EXPECT_TRUE(at::equal(first->message(), at::full({100, 10}, 1.)));
  EXPECT_TRUE(at::equal(second->message(), at::full({100, 10}, 2.)));
  EXPECT_TRUE(at::equal(third->message(), at::full({100, 10}, 3.)));
  first.reset();
  send(4, 4);
  EXPECT_EQ(receive(4)->message().const_data_ptr(), place) << "the block was free again";
}

TEST(SharedMemory, AMessageOfAnotherLengthIsRefusedInPlaceToo) {
  const auto channels = pair();
  ASSERT_TRUE(channels[0] && channels[1]);
  channels[1]->post({Direction::Send, RankId(0), 1, at::full({7}, 1.), "out"})->wait();
  auto arrival = channels[0]->receive({Direction::Receive, RankId(1), 1, at::empty({8}, at::kFloat), "in"});
  try {
    arrival->wait();
    FAIL() << "nothing was said";
  } catch (const PeerError& error) {
    EXPECT_NE(std::string(error.what()).find("got 28 bytes, expected 32"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace millrace
