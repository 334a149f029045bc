#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <mutex>

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
#include "runtime/comm/task_thread.h"

namespace millrace {
namespace {

// The subgroup's name is in bits 49..63 of a tag.
constexpr std::uint64_t kCollective = kCollectiveTag;
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

class TaskPending final : public Pending {
 public:
  TaskPending(std::shared_ptr<TaskThread> thread, std::shared_ptr<TaskThread::Task> task)
      : thread_(std::move(thread)), task_(std::move(task)) {}
  void wait() override { thread_->wait(*task_); }

 private:
  std::shared_ptr<TaskThread> thread_;
  std::shared_ptr<TaskThread::Task> task_;
};

/// The part of all messages of one collective of this rank that is the same.
struct Collective {
  std::uint64_t tag = 0;
  std::string what;
  std::shared_ptr<TimePoint> moment;

  /// `number`: of messages between the same two ranks.
  Transfer message(Direction direction, int peer, std::uint64_t number, at::Tensor tensor) const {
    return {direction, RankId(peer), tag + number, std::move(tensor), what, moment};
  }
};

/// Tells the channel when the caller has waited for a collective.
class CollectivePending final : public Pending {
 public:
  CollectivePending(std::unique_ptr<Pending> inner, std::shared_ptr<Channel> channel,
                    std::shared_ptr<TimePoint> moment)
      : inner_(std::move(inner)), channel_(std::move(channel)), moment_(std::move(moment)) {}
  void wait() override {
    const TimePoint start = channel_->clock().now();
    inner_->wait();
    channel_->end_collective(start, moment_);
  }

 private:
  std::unique_ptr<Pending> inner_;
  std::shared_ptr<Channel> channel_;
  std::shared_ptr<TimePoint> moment_;
};

/// The summand from each peer; null for this rank.
using Arrivals = std::vector<std::unique_ptr<Arrival>>;

/// Writes the sum of `mine` and of what arrives, in the order of ranks, into `mine`. What this rank has sent
/// of it must have left: `sends`.
void sum_arrivals(const Arrivals& arrivals, const std::vector<std::unique_ptr<Pending>>& sends,
                  const at::Tensor& mine) {
  std::vector<at::Tensor> parts;
  for (const auto& arrival : arrivals) {
    if (arrival) arrival->wait();
    parts.push_back(arrival ? arrival->message() : mine);
  }
  for (const auto& send : sends) send->wait();
  at::NoGradGuard no_grad;
  sum_in_order(parts, mine);
}

class DirectReduce final : public Pending {
 public:
  DirectReduce(at::Tensor flat, Arrivals arrivals, std::vector<std::unique_ptr<Pending>> sends)
      : flat_(std::move(flat)), arrivals_(std::move(arrivals)), sends_(std::move(sends)) {}
  void wait() override {
    if (arrivals_.empty()) return;
    sum_arrivals(arrivals_, sends_, flat_);
    arrivals_.clear();
    sends_.clear();
  }

 private:
  at::Tensor flat_;
  Arrivals arrivals_;
  std::vector<std::unique_ptr<Pending>> sends_;
};

/// The groups of this rank on one channel. Their numbers stand in the tags of their messages, and a number is
/// 15 bits of the hash of a name: two groups of one number would take each other's messages, and are refused.
/// Thread-safe.
class GroupNumbers {
 public:
  static constexpr std::uint64_t kWholeJob = 0;

  /// Throws ConfigError if another group that is still there has the number of `name` below `parent`.
  std::uint64_t take(std::uint64_t parent, const std::string& name) {
    const std::uint64_t number = 1 + derive_seed(parent, name) % ((std::uint64_t{1} << 15) - 1);
    const std::lock_guard lock(mutex_);
    const auto [found, is_new] = taken_.emplace(number, name);
    if (!is_new)
      throw ConfigError("groups of ranks " + found->second + " and " + name + " have the same number",
                        "cut the model into another number of stages");
    return number;
  }
  void give_back(std::uint64_t number) {
    const std::lock_guard lock(mutex_);
    taken_.erase(number);
  }

 private:
  std::mutex mutex_;
  std::map<std::uint64_t, std::string> taken_;
};

class ChannelCommunicator final : public Communicator {
 public:
  ChannelCommunicator(std::shared_ptr<Channel> channel, std::vector<int> members, std::uint64_t group,
                      std::shared_ptr<GroupNumbers> numbers)
      : channel_(std::move(channel)),
        members_(std::move(members)),
        group_(group),
        numbers_(std::move(numbers)) {
    const auto found = std::ranges::find(members_, channel_->rank());
    MILLRACE_CHECK(found != members_.end(), "rank " << channel_->rank() << " is not a member of this group");
    rank_ = static_cast<int>(found - members_.begin());
    const std::vector<int> hosts = channel_->hosts();
    for (int member : members_) hosts_.push_back(hosts.empty() ? 0 : hosts[member]);
  }

  ~ChannelCommunicator() override { numbers_->give_back(group_); }
  ChannelCommunicator(const ChannelCommunicator&) = delete;
  ChannelCommunicator& operator=(const ChannelCommunicator&) = delete;

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
    const auto bytes = static_cast<std::int64_t>(tensor.nbytes());
    const AllReduceRoute route = all_reduce_route(hosts_, bytes);
    if (route.way == AllReduceWay::Nothing) return std::make_unique<NothingPending>();
    const Collective collective{kCollective | next_tag(sequence), std::move(what),
                                channel_->begin_collective(tensor, added_bytes(route.way, size(), bytes))};
    return std::make_unique<CollectivePending>(start(route, tensor.view({-1}), collective), channel_,
                                               collective.moment);
  }

  /// Along the tree, which the root's tensor enters at its top. In a small group the root sends it to all.
  void broadcast(at::Tensor tensor, RankId root) override {
    const Collective collective{kCollective | next_tag(collectives_++), "broadcast",
                                channel_->begin_collective(tensor, 0)};
    const bool along_tree = size() > kDirectRanks;
    const TimePoint start = channel_->clock().now();
    if (rank_ != root.value) {
      const int from = along_tree && rank_ != 0 ? tree().parent[rank_] : root.value;
      post(collective.message(Direction::Receive, from, 0, tensor))->wait();
    }
    std::vector<int> to;
    if (along_tree) to = tree().children[rank_];
    if (along_tree && rank_ == root.value && rank_ != 0) to.push_back(0);
    for (int peer = 0; !along_tree && rank_ == root.value && peer < size(); ++peer) to.push_back(peer);
    std::vector<std::unique_ptr<Pending>> sends;
    for (const int peer : to) {
      if (peer != root.value) sends.push_back(post(collective.message(Direction::Send, peer, 0, tensor)));
    }
    AllOf(std::move(sends)).wait();
    channel_->end_collective(start, collective.moment);
  }

  void barrier() override { all_reduce(at::zeros({1}, at::kFloat), "barrier")->wait(); }

  std::unique_ptr<Communicator> subgroup(const std::vector<RankId>& ranks, const std::string& name) override {
    std::vector<int> members;
    for (RankId rank : ranks) members.push_back(members_.at(rank.value));
    const std::uint64_t group = numbers_->take(group_, name);
    return std::make_unique<ChannelCommunicator>(channel_, std::move(members), group, numbers_);
  }

  void abort(const std::string& reason) noexcept override { channel_->abort(reason); }

 private:
  /// With the channel's rank of the peer, and this group in its tag.
  Transfer of_channel(Transfer transfer) const {
    transfer.peer = RankId(members_.at(transfer.peer.value));
    transfer.tag |= group_ << kGroupShift;
    return transfer;
  }

  std::unique_ptr<Pending> post(Transfer transfer) { return channel_->post(of_channel(std::move(transfer))); }

  static std::uint64_t next_tag(std::uint64_t sequence) {
    return (sequence << kSequenceShift) & (kCollective - 1);
  }

  std::unique_ptr<Pending> start(const AllReduceRoute& route, at::Tensor flat, const Collective& collective) {
    if (route.way == AllReduceWay::Direct) return start_direct_reduce(std::move(flat), collective);
    // Beside the caller, so that collectives overlap its computation.
    if (!thread_) thread_ = std::make_shared<TaskThread>(channel_->clock());
    if (route.way == AllReduceWay::Tree) tree();  // made here: the thread only reads it
    const std::shared_ptr<TimePoint> before = newest_moment_;
    if (collective.moment) newest_moment_ = collective.moment;
    return std::make_unique<TaskPending>(thread_, thread_->start([=, this] {
      // One after the other: it begins when the one before it has ended.
      if (before && collective.moment) *collective.moment = std::max(*collective.moment, *before);
      if (route.way == AllReduceWay::Tree) {
        reduce_over_tree(flat, collective);
      } else if (route.way == AllReduceWay::Chain) {
        reduce_along(route, flat, collective);
      } else {
        reduce_by_chunks(flat, collective);
      }
    }));
  }

  /// Sends `tensors[peer]` to each peer. Every rank begins with the next one, so that no rank gets the
  /// messages of all others at once.
  std::vector<std::unique_ptr<Pending>> send_to_all(const std::vector<at::Tensor>& tensors,
                                                    const Collective& collective, std::uint64_t number) {
    std::vector<std::unique_ptr<Pending>> sends;
    for (int k = 1; k < size(); ++k) {
      const int peer = (rank_ + k) % size();
      sends.push_back(post(collective.message(Direction::Send, peer, number, tensors[peer])));
    }
    return sends;
  }

  /// From each peer a tensor like `mine`, which is only to be read.
  Arrivals receive_from_all(const at::Tensor& mine, const Collective& collective) {
    Arrivals arrivals;
    for (int peer = 0; peer < size(); ++peer) {
      arrivals.push_back(peer == rank_ ? nullptr
                                       : channel_->receive(of_channel(
                                             collective.message(Direction::Receive, peer, 0, mine))));
    }
    return arrivals;
  }

  /// Every rank gets every rank's whole tensor; posted now, added up by the caller's wait(): no thread and
  /// one round trip.
  std::unique_ptr<Pending> start_direct_reduce(at::Tensor flat, const Collective& collective) {
    Arrivals arrivals = receive_from_all(flat, collective);
    auto sends = send_to_all(std::vector<at::Tensor>(size(), flat), collective, 0);
    return std::make_unique<DirectReduce>(std::move(flat), std::move(arrivals), std::move(sends));
  }

  void reduce_by_chunks(const at::Tensor& flat, const Collective& collective) {
    const auto n = static_cast<std::size_t>(size()), me = static_cast<std::size_t>(rank_);
    // Reduce-scatter: each rank sums its chunk in the order of ranks; then everybody gets every chunk.
    const std::int64_t chunk = (flat.numel() + size() - 1) / size();
    std::vector<at::Tensor> chunks(n);
    for (std::size_t p = 0; p < n; ++p) {
      const std::int64_t begin = std::min<std::int64_t>(static_cast<std::int64_t>(p) * chunk, flat.numel());
      chunks[p] = flat.narrow(0, begin, std::min(chunk, flat.numel() - begin));
    }
    const Arrivals arrivals = receive_from_all(chunks[me], collective);
    const auto sends = send_to_all(chunks, collective, 0);
    sum_arrivals(arrivals, sends, chunks[me]);
    std::vector<std::unique_ptr<Pending>> results;
    for (std::size_t p = 0; p < n; ++p) {
      if (p != me)
        results.push_back(post(collective.message(Direction::Receive, static_cast<int>(p), 1, chunks[p])));
    }
    for (auto& send : send_to_all(std::vector<at::Tensor>(n, chunks[me]), collective, 1))
      results.push_back(std::move(send));
    for (auto& result : results) result->wait();
  }

  const RankTree& tree() {
    if (tree_.order.empty()) tree_ = rank_tree(hosts_);
    return tree_;
  }

  void reduce_over_tree(const at::Tensor& flat, const Collective& collective) {
    at::NoGradGuard no_grad;
    const RankTree& tree = tree_;
    const std::vector<int>& children = tree.children[rank_];
    // Row i is of the i-th member of this one's part of the tree's order.
    const at::Tensor rows = at::empty({tree.members[rank_], flat.numel()}, flat.options());
    rows[0].copy_(flat);
    std::vector<std::unique_ptr<Pending>> arrivals;
    std::int64_t row = 1;
    for (const int child : children) {
      arrivals.push_back(
          post(collective.message(Direction::Receive, child, 0, rows.narrow(0, row, tree.members[child]))));
      row += tree.members[child];
    }
    AllOf(std::move(arrivals)).wait();
    if (const int parent = tree.parent[rank_]; parent >= 0) {
      post(collective.message(Direction::Send, parent, 0, rows))->wait();
      post(collective.message(Direction::Receive, parent, 1, flat))->wait();
    } else {
      std::vector<at::Tensor> parts(hosts_.size());
      for (std::size_t i = 0; i < parts.size(); ++i)
        parts[static_cast<std::size_t>(tree.order[i])] = rows[static_cast<std::int64_t>(i)];
      sum_in_order(parts, flat);
    }
    std::vector<std::unique_ptr<Pending>> sends;
    for (const int child : children)
      sends.push_back(post(collective.message(Direction::Send, child, 1, flat)));
    AllOf(std::move(sends)).wait();
  }

  void reduce_along(const AllReduceRoute& route, const at::Tensor& flat, const Collective& collective) {
    ChainReduce(route, rank_, flat,
                [&](Direction direction, int peer, std::uint64_t number, at::Tensor tensor) {
                  return post(collective.message(direction, peer, number, std::move(tensor)));
                })
        .run();
  }

  std::shared_ptr<Channel> channel_;
  std::vector<int> members_;
  std::vector<int> hosts_;  // by member
  RankTree tree_;           // empty until it is needed
  std::uint64_t group_;
  std::shared_ptr<GroupNumbers> numbers_;
  int rank_ = 0;
  std::uint64_t collectives_ = 0;
  std::shared_ptr<TaskThread> thread_;
  std::shared_ptr<TimePoint> newest_moment_;  // of the collective that the thread got last; null: nobody asks
};

/// A receive into a tensor that nobody else has.
class CopiedArrival final : public Arrival {
 public:
  CopiedArrival(at::Tensor message, std::unique_ptr<Pending> received)
      : message_(std::move(message)), received_(std::move(received)) {}
  void wait() override { received_->wait(); }
  at::Tensor message() const override { return message_; }

 private:
  at::Tensor message_;
  std::unique_ptr<Pending> received_;
};

}  // namespace

std::unique_ptr<Arrival> Channel::receive(const Transfer& transfer) {
  Transfer copied = transfer;
  copied.tensor = at::empty_like(transfer.tensor);
  return std::make_unique<CopiedArrival>(copied.tensor, post(copied));
}

std::shared_ptr<Channel> decorated(std::shared_ptr<Channel> channel,
                                   const std::vector<ChannelDecorator>& decorators) {
  for (const ChannelDecorator& decorate : decorators) channel = decorate(std::move(channel));
  return channel;
}

std::unique_ptr<Communicator> make_channel_communicator(std::shared_ptr<Channel> channel) {
  std::vector<int> members;
  for (int r = 0; r < channel->size(); ++r) members.push_back(r);
  return std::make_unique<ChannelCommunicator>(std::move(channel), std::move(members),
                                               GroupNumbers::kWholeJob, std::make_shared<GroupNumbers>());
}

std::string wait_message(int rank, const Transfer& t, const Clock& clock, TimePoint start,
                         const std::string& what) {
  const double seconds = std::chrono::duration<double>(clock.now() - start).count();
  return "rank " + std::to_string(rank) + ": " + t.what.text() +
         (t.direction == Direction::Send ? " to rank " : " from rank ") + std::to_string(t.peer.value) +
         ": " + what + " after " + printed("%.1f s", seconds);
}

}  // namespace millrace
