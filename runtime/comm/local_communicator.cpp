// Ranks as threads of one process: mailboxes.
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <tuple>

#include "runtime/base/error.h"
#include "runtime/comm/channel.h"

namespace millrace {
namespace {

struct Mailboxes {
  using Key = std::tuple<int, int, std::uint64_t>;  // from, to, tag
  std::mutex mutex;                                 // guards all of it
  std::condition_variable changed;
  std::map<Key, std::deque<at::Tensor>> messages;
  std::string aborted;  ///< the first reason; empty: not aborted
};

class Sent final : public Pending {
 public:
  void wait() override {}
};

class Received final : public Pending {
 public:
  Received(std::shared_ptr<Mailboxes> boxes, int rank, Transfer transfer, std::chrono::milliseconds deadline)
      : boxes_(std::move(boxes)), rank_(rank), transfer_(std::move(transfer)), deadline_(deadline) {}

  void wait() override {
    if (done_) return;
    const auto start = std::chrono::steady_clock::now();
    const Mailboxes::Key key{transfer_.peer.value, rank_, transfer_.tag};
    std::unique_lock lock(boxes_->mutex);
    const bool in_time = boxes_->changed.wait_until(
        lock, start + deadline_, [&] { return boxes_->messages.contains(key) || !boxes_->aborted.empty(); });
    auto found = boxes_->messages.find(key);
    if (found == boxes_->messages.end()) {
      if (!in_time)
        throw PeerError(wait_message(rank_, transfer_, start, "no message"),
                        "is the peer alive and running the same plan? The deadline is --timeout");
      throw PeerError(wait_message(rank_, transfer_, start, "aborted: " + boxes_->aborted));
    }
    at::Tensor message = std::move(found->second.front());
    found->second.pop_front();
    if (found->second.empty()) boxes_->messages.erase(found);
    lock.unlock();
    if (message.numel() != transfer_.tensor.numel()) {
      throw PeerError(wait_message(rank_, transfer_, start,
                                   "got " + std::to_string(message.numel()) + " elements, expected " +
                                       std::to_string(transfer_.tensor.numel())));
    }
    transfer_.tensor.view({-1}).copy_(message.view({-1}));
    done_ = true;
  }

 private:
  std::shared_ptr<Mailboxes> boxes_;
  int rank_;
  Transfer transfer_;
  std::chrono::milliseconds deadline_;
  bool done_ = false;
};

class LocalChannel final : public Channel {
 public:
  LocalChannel(std::shared_ptr<Mailboxes> boxes, int rank, int size, std::chrono::milliseconds deadline)
      : boxes_(std::move(boxes)), rank_(rank), size_(size), deadline_(deadline) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::chrono::milliseconds deadline() const override { return deadline_; }
  bool buffers_sends() const override { return true; }

  std::unique_ptr<Pending> post(const Transfer& t) override {
    if (t.direction == Direction::Receive) return std::make_unique<Received>(boxes_, rank_, t, deadline_);
    at::Tensor copy = t.tensor.clone();  // the sender may go on to change it
    std::lock_guard lock(boxes_->mutex);
    if (!boxes_->aborted.empty())
      throw PeerError("rank " + std::to_string(rank_) + ": " + t.what + ": aborted: " + boxes_->aborted);
    boxes_->messages[{rank_, t.peer.value, t.tag}].push_back(std::move(copy));
    boxes_->changed.notify_all();
    return std::make_unique<Sent>();
  }

  void abort(const std::string& reason) noexcept override {
    std::lock_guard lock(boxes_->mutex);
    if (boxes_->aborted.empty()) boxes_->aborted = reason.empty() ? "a rank failed" : reason;
    boxes_->changed.notify_all();
  }

 private:
  std::shared_ptr<Mailboxes> boxes_;
  int rank_, size_;
  std::chrono::milliseconds deadline_;
};

}  // namespace

std::vector<std::shared_ptr<Channel>> make_local_channels(int size, std::chrono::milliseconds deadline) {
  auto boxes = std::make_shared<Mailboxes>();
  std::vector<std::shared_ptr<Channel>> channels;
  for (int rank = 0; rank < size; ++rank)
    channels.push_back(std::make_shared<LocalChannel>(boxes, rank, size, deadline));
  return channels;
}

std::vector<std::unique_ptr<Communicator>> make_local_communicators(int size,
                                                                    std::chrono::milliseconds deadline) {
  std::vector<std::unique_ptr<Communicator>> result;
  for (std::shared_ptr<Channel>& channel : make_local_channels(size, deadline))
    result.push_back(make_channel_communicator(std::move(channel)));
  return result;
}

}  // namespace millrace
