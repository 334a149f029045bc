#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include "runtime/base/all_reduce_route.h"
#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/base/random.h"
#include "runtime/base/text.h"
#include "runtime/comm/chain_reduce.h"
#include "runtime/comm/channel.h"
#include "runtime/comm/ordered_sum.h"

namespace millrace {
namespace {

// Tags: the user's in bits 0..47, collectives with bit 48 set, the subgroup's name in bits 49..63.
constexpr std::uint64_t kCollective = std::uint64_t{1} << 48;
constexpr int kGroupShift = 49;
constexpr int kSequenceShift = 20;  // tags of one collective: 2^20, more than a chain of 4,096 ranks has

class AllOf final : public Pending {
 public:
  explicit AllOf(std::vector<std::unique_ptr<Pending>> parts) : parts_(std::move(parts)) {}
  void wait() override {
    for (auto& part : parts_) part->wait();
    parts_.clear();
  }

 private:
  std::vector<std::unique_ptr<Pending>> parts_;
};

/// Runs collectives one after the other beside the caller, so that they overlap its computation.
class Worker {
 public:
  struct Job {
    std::function<void()> work;
    bool done = false;
    std::exception_ptr error;
  };

  explicit Worker(Clock& clock) : clock_(clock), thread_([this] { run(); }) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return running_; });  // its user of the clock is there before anybody waits
  }
  ~Worker() {
    std::lock_guard lock(mutex_);
    stopped_ = true;
    clock_.notify_all(changed_);
  }

  std::shared_ptr<Job> start(std::function<void()> work) {
    auto job = std::make_shared<Job>(Job{.work = std::move(work)});
    std::lock_guard lock(mutex_);
    jobs_.push_back(job);
    clock_.notify_all(changed_);
    return job;
  }

  void wait(Job& job) {
    std::unique_lock lock(mutex_);
    clock_.wait_until(lock, changed_, TimePoint::max(), [&] { return job.done; });
    if (job.error) std::rethrow_exception(job.error);
  }

 private:
  void run() {
    at::NoGradGuard no_grad;
    const ClockUser user(clock_);
    std::unique_lock lock(mutex_);
    running_ = true;
    changed_.notify_all();
    for (;;) {
      clock_.wait_until(lock, changed_, TimePoint::max(), [&] { return stopped_ || !jobs_.empty(); });
      if (stopped_) return;
      auto job = jobs_.front();
      jobs_.pop_front();
      lock.unlock();
      try {
        job->work();
      } catch (...) {
        job->error = std::current_exception();
      }
      lock.lock();
      job->done = true;
      clock_.notify_all(changed_);
    }
  }

  Clock& clock_;
  std::mutex mutex_;  // guards what follows, and each Job's done, error
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Job>> jobs_;
  bool running_ = false, stopped_ = false;
  std::jthread thread_;  // last: joined first
};

class WorkerPending final : public Pending {
 public:
  WorkerPending(std::shared_ptr<Worker> worker, std::shared_ptr<Worker::Job> job)
      : worker_(std::move(worker)), job_(std::move(job)) {}
  void wait() override { worker_->wait(*job_); }

 private:
  std::shared_ptr<Worker> worker_;
  std::shared_ptr<Worker::Job> job_;
};

class DirectReduce final : public Pending {
 public:
  DirectReduce(at::Tensor flat, std::vector<at::Tensor> received,
               std::vector<std::unique_ptr<Pending>> messages)
      : flat_(std::move(flat)), received_(std::move(received)), messages_(std::move(messages)) {}
  void wait() override {
    if (messages_.empty()) return;
    for (auto& message : messages_) message->wait();
    messages_.clear();
    at::NoGradGuard no_grad;
    sum_in_order(received_, flat_);
    received_.clear();
  }

 private:
  at::Tensor flat_;
  std::vector<at::Tensor> received_;
  std::vector<std::unique_ptr<Pending>> messages_;
};

class ChannelCommunicator final : public Communicator {
 public:
  ChannelCommunicator(std::shared_ptr<Channel> channel, std::vector<int> members, std::uint64_t group)
      : channel_(std::move(channel)), members_(std::move(members)), group_(group) {
    const auto found = std::ranges::find(members_, channel_->rank());
    MILLRACE_CHECK(found != members_.end(), "rank " << channel_->rank() << " is not a member of this group");
    rank_ = static_cast<int>(found - members_.begin());
    const std::vector<int> hosts = channel_->hosts();
    for (int member : members_) hosts_.push_back(hosts.empty() ? 0 : hosts[static_cast<std::size_t>(member)]);
  }

  RankId rank() const override { return RankId(rank_); }
  int size() const override { return static_cast<int>(members_.size()); }
  bool buffers_sends() const override { return channel_->buffers_sends(); }

  std::unique_ptr<Pending> exchange(std::span<const Transfer> transfers) override {
    std::vector<std::unique_ptr<Pending>> parts;
    for (const Transfer& transfer : transfers) {
      MILLRACE_CHECK(transfer.tag < kCollective, "tag " << transfer.tag << " is too large");
      parts.push_back(post(transfer));
    }
    return std::make_unique<AllOf>(std::move(parts));
  }

  std::unique_ptr<Pending> all_reduce(at::Tensor tensor, std::string what) override {
    MILLRACE_CHECK(tensor.is_contiguous());
    const std::uint64_t sequence = collectives_++;
    const AllReduceRoute route = all_reduce_route(hosts_, static_cast<std::int64_t>(tensor.nbytes()));
    if (route.way == AllReduceWay::Nothing) return std::make_unique<NothingPending>();
    if (route.way == AllReduceWay::Direct)
      return start_direct_reduce(tensor.view({-1}), kCollective | next_tag(sequence), what);
    if (!worker_) worker_ = std::make_shared<Worker>(channel_->clock());
    return std::make_unique<WorkerPending>(worker_, worker_->start([=, this] {
      const std::uint64_t tag = kCollective | next_tag(sequence);
      if (route.way == AllReduceWay::Chain) {
        reduce_along(route, tensor.view({-1}), tag, what);
      } else {
        reduce_by_chunks(tensor.view({-1}), tag, what);
      }
    }));
  }

  void broadcast(at::Tensor tensor, RankId root) override {
    const std::uint64_t tag = kCollective | next_tag(collectives_++);
    std::vector<std::unique_ptr<Pending>> parts;
    if (rank_ == root.value) {
      for (int peer = 0; peer < size(); ++peer) {
        if (peer != rank_) parts.push_back(post({Direction::Send, RankId(peer), tag, tensor, "broadcast"}));
      }
    } else {
      parts.push_back(post({Direction::Receive, root, tag, tensor, "broadcast"}));
    }
    for (auto& part : parts) part->wait();
  }

  void barrier() override { all_reduce(at::zeros({1}, at::kFloat), "barrier")->wait(); }

  std::unique_ptr<Communicator> subgroup(const std::vector<RankId>& ranks, const std::string& name) override {
    std::vector<int> members;
    for (RankId rank : ranks) members.push_back(members_.at(static_cast<std::size_t>(rank.value)));
    // 15 bits of the name's hash; 0 is the whole job's.
    const std::uint64_t group = 1 + derive_seed(group_, name) % ((std::uint64_t{1} << 15) - 1);
    return std::make_unique<ChannelCommunicator>(channel_, std::move(members), group);
  }

  void abort(const std::string& reason) noexcept override { channel_->abort(reason); }

 private:
  std::unique_ptr<Pending> post(Transfer transfer) {
    transfer.peer = RankId(members_.at(static_cast<std::size_t>(transfer.peer.value)));
    transfer.tag |= group_ << kGroupShift;
    return channel_->post(transfer);
  }

  static std::uint64_t next_tag(std::uint64_t sequence) {
    return (sequence << kSequenceShift) & (kCollective - 1);
  }

  /// Sends `mine[peer]` to each peer and receives from each into `theirs[peer]`.
  void all_to_all(const std::vector<at::Tensor>& mine, const std::vector<at::Tensor>& theirs,
                  std::uint64_t tag, const std::string& what) {
    for (auto& part : start_all_to_all(mine, theirs, tag, what)) part->wait();
  }

  std::vector<std::unique_ptr<Pending>> start_all_to_all(const std::vector<at::Tensor>& mine,
                                                         const std::vector<at::Tensor>& theirs,
                                                         std::uint64_t tag, const std::string& what) {
    std::vector<std::unique_ptr<Pending>> parts;
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank_) continue;
      parts.push_back(
          post({Direction::Receive, RankId(peer), tag, theirs[static_cast<std::size_t>(peer)], what}));
      parts.push_back(post({Direction::Send, RankId(peer), tag, mine[static_cast<std::size_t>(peer)], what}));
    }
    return parts;
  }

  /// Every rank gets every rank's whole tensor; posted now, added up by the caller's wait(): no thread and
  /// one round trip.
  std::unique_ptr<Pending> start_direct_reduce(at::Tensor flat, std::uint64_t tag, const std::string& what) {
    const auto n = static_cast<std::size_t>(size()), me = static_cast<std::size_t>(rank_);
    std::vector<at::Tensor> received(n);
    for (std::size_t p = 0; p < n; ++p) received[p] = p == me ? flat : at::empty_like(flat);
    auto messages = start_all_to_all(std::vector<at::Tensor>(n, flat), received, tag, what);
    return std::make_unique<DirectReduce>(std::move(flat), std::move(received), std::move(messages));
  }

  void reduce_by_chunks(at::Tensor flat, std::uint64_t tag, const std::string& what) {
    const auto n = static_cast<std::size_t>(size()), me = static_cast<std::size_t>(rank_);
    std::vector<at::Tensor> received(n);
    // Reduce-scatter: each rank sums its chunk in the order of ranks; then everybody gets every chunk.
    const std::int64_t chunk = (flat.numel() + size() - 1) / size();
    std::vector<at::Tensor> chunks(n);
    for (std::size_t p = 0; p < n; ++p) {
      const std::int64_t begin = std::min<std::int64_t>(static_cast<std::int64_t>(p) * chunk, flat.numel());
      chunks[p] = flat.narrow(0, begin, std::min(chunk, flat.numel() - begin));
    }
    for (std::size_t p = 0; p < n; ++p) received[p] = p == me ? chunks[p] : at::empty_like(chunks[me]);
    all_to_all(chunks, received, tag, what);
    sum_in_order(received, chunks[me]);
    all_to_all(std::vector<at::Tensor>(n, chunks[me]), chunks, tag + 1, what);
  }

  void reduce_along(const AllReduceRoute& route, at::Tensor flat, std::uint64_t tag,
                    const std::string& what) {
    ChainReduce(route, rank_, std::move(flat),
                [&](Direction direction, int peer, std::uint64_t message, at::Tensor tensor) {
                  return post({direction, RankId(peer), tag + message, std::move(tensor), what});
                })
        .run();
  }

  std::shared_ptr<Channel> channel_;
  std::vector<int> members_;
  std::vector<int> hosts_;  // by member
  std::uint64_t group_;
  int rank_ = 0;
  std::uint64_t collectives_ = 0;
  std::shared_ptr<Worker> worker_;
};

}  // namespace

std::shared_ptr<Channel> decorated(std::shared_ptr<Channel> channel,
                                   const std::vector<ChannelDecorator>& decorators) {
  for (const ChannelDecorator& decorate : decorators) channel = decorate(std::move(channel));
  return channel;
}

std::unique_ptr<Communicator> make_channel_communicator(std::shared_ptr<Channel> channel) {
  std::vector<int> members;
  for (int r = 0; r < channel->size(); ++r) members.push_back(r);
  return std::make_unique<ChannelCommunicator>(std::move(channel), std::move(members), 0);
}

std::string wait_message(int rank, const Transfer& t, const Clock& clock, TimePoint start,
                         const std::string& what) {
  const double seconds = std::chrono::duration<double>(clock.now() - start).count();
  return "rank " + std::to_string(rank) + ": " + t.what.text() +
         (t.direction == Direction::Send ? " to rank " : " from rank ") + std::to_string(t.peer.value) +
         ": " + what + " after " + printed("%.1f s", seconds);
}

}  // namespace millrace
