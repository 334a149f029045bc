// Ranks as threads of one process: mailboxes.
#include <condition_variable>
#include <mutex>
#include <unordered_map>

#include "runtime/base/error.h"
#include "runtime/comm/channel.h"

namespace millrace {
namespace {

/// The messages that have come for one rank and that it has not asked for yet.
struct Mailbox {
  struct Key {
    int from;
    std::uint64_t tag;
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    std::size_t operator()(const Key& k) const {
      return (k.tag * 0x9e3779b97f4a7c15ull) ^ (static_cast<std::size_t>(k.from) * 0xbf58476d1ce4e5b9ull);
    }
  };
  std::mutex mutex;  // guards all of it
  std::condition_variable changed;
  std::unordered_map<Key, std::vector<at::Tensor>, KeyHash> messages;  ///< oldest first, never none
  std::string aborted;  ///< the first reason; empty: not aborted
};

struct Mailboxes {
  Mailboxes(int size, std::chrono::milliseconds d, Clock& c)
      : of_rank(static_cast<std::size_t>(size)), deadline(d), clock(c) {}
  Mailbox& of(int rank) { return of_rank[rank]; }
  std::vector<Mailbox> of_rank;
  std::chrono::milliseconds deadline;
  Clock& clock;
};

class Received final : public Arrival {
 public:
  enum class Into { ItsTensor, Nothing };  ///< where the message is copied to
  Received(std::shared_ptr<Mailboxes> boxes, int rank, Transfer transfer, Into into)
      : boxes_(std::move(boxes)), rank_(rank), transfer_(std::move(transfer)), into_(into) {}

  at::Tensor message() const override { return message_.view(transfer_.tensor.sizes()); }

  void wait() override {
    if (message_.defined()) return;
    const Mailbox::Key key{transfer_.peer.value, transfer_.tag};
    Mailbox& box = boxes_->of(rank_);
    Clock& clock = boxes_->clock;
    const TimePoint start = clock.now();
    std::unique_lock lock(box.mutex);
    auto found = box.messages.find(key);
    if (found == box.messages.end()) {
      const bool in_time = clock.wait_until(lock, box.changed, start + boxes_->deadline, [&] {
        return (found = box.messages.find(key)) != box.messages.end() || !box.aborted.empty();
      });
      if (!in_time) throw PeerError(wait_message(rank_, transfer_, clock, start, "no message"), kLateHint);
      if (found == box.messages.end())
        throw PeerError(wait_message(rank_, transfer_, clock, start, "aborted: " + box.aborted));
    }
    const at::Tensor message = std::move(found->second.front());
    found->second.erase(found->second.begin());
    if (found->second.empty()) box.messages.erase(found);
    lock.unlock();
    if (message.numel() != transfer_.tensor.numel()) {
      throw PeerError(wait_message(rank_, transfer_, clock, start,
                                   "got " + std::to_string(message.numel()) + " elements, expected " +
                                       std::to_string(transfer_.tensor.numel())));
    }
    // Each rank may have a GPU of its own. LibTorch orders a copy between GPUs behind the work on both of
    // their default streams, which the ranks use.
    if (into_ == Into::ItsTensor) transfer_.tensor.view({-1}).copy_(message.view({-1}));
    message_ = into_ == Into::ItsTensor ? transfer_.tensor : message.to(transfer_.tensor.device());
  }

 private:
  std::shared_ptr<Mailboxes> boxes_;
  int rank_;
  Transfer transfer_;
  Into into_;
  at::Tensor message_;  // undefined until it is there
};

class LocalChannel final : public Channel {
 public:
  LocalChannel(std::shared_ptr<Mailboxes> boxes, int rank) : boxes_(std::move(boxes)), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(boxes_->of_rank.size()); }
  std::chrono::milliseconds deadline() const override { return boxes_->deadline; }
  Clock& clock() const override { return boxes_->clock; }
  bool buffers_sends() const override { return true; }

  std::unique_ptr<Pending> post(const Transfer& t) override {
    if (t.direction == Direction::Receive)
      return std::make_unique<Received>(boxes_, rank_, t, Received::Into::ItsTensor);
    at::Tensor copy = t.tensor.clone();  // the sender may go on to change it
    Mailbox& box = boxes_->of(t.peer.value);
    std::lock_guard lock(box.mutex);
    if (!box.aborted.empty())
      throw PeerError("rank " + std::to_string(rank_) + ": " + t.what.text() + ": aborted: " + box.aborted);
    box.messages[{rank_, t.tag}].push_back(std::move(copy));
    boxes_->clock.notify_all(box.changed);
    return std::make_unique<NothingPending>();
  }

  std::unique_ptr<Arrival> receive(const Transfer& t) override {
    return std::make_unique<Received>(boxes_, rank_, t, Received::Into::Nothing);
  }

  void abort(const std::string& reason) noexcept override {
    for (Mailbox& box : boxes_->of_rank) {
      std::lock_guard lock(box.mutex);
      if (box.aborted.empty()) box.aborted = reason.empty() ? "a rank failed" : reason;
      boxes_->clock.notify_all(box.changed);
    }
  }

 private:
  std::shared_ptr<Mailboxes> boxes_;
  int rank_;
};

}  // namespace

std::vector<std::shared_ptr<Channel>> make_local_channels(int size, std::chrono::milliseconds deadline,
                                                          Clock& clock) {
  auto boxes = std::make_shared<Mailboxes>(size, deadline, clock);
  std::vector<std::shared_ptr<Channel>> channels;
  for (int rank = 0; rank < size; ++rank) channels.push_back(std::make_shared<LocalChannel>(boxes, rank));
  return channels;
}

std::vector<std::unique_ptr<Communicator>> make_local_communicators(
    int size, std::chrono::milliseconds deadline, const std::vector<ChannelDecorator>& decorators,
    Clock& clock) {
  std::vector<std::unique_ptr<Communicator>> result;
  for (std::shared_ptr<Channel>& channel : make_local_channels(size, deadline, clock))
    result.push_back(make_channel_communicator(decorated(std::move(channel), decorators)));
  return result;
}

}  // namespace millrace
