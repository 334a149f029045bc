// The part that a transport supplies: messages between two ranks. All collectives are built on it once
// (channel_communicator.cpp), so that every back end gives bitwise the same sums.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/comm/communicator.h"

namespace millrace {

/// Tags: the user's in bits 0..47; collectives have this bit; above it is the subgroup's name.
inline constexpr std::uint64_t kCollectiveTag = std::uint64_t{1} << 48;
inline bool is_collective_tag(std::uint64_t tag) {
  return (tag & kCollectiveTag) != 0;
}

/// A message that is read where the transport has it.
class Arrival : public Pending {
 public:
  /// Returns the message, which nobody may write. The tensor is valid after wait(), and while this Arrival
  /// lives.
  virtual at::Tensor message() const = 0;
};

/// Thread-safe. Ranks are those of the whole job.
class Channel {
 public:
  virtual ~Channel() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::chrono::milliseconds deadline() const = 0;
  virtual Clock& clock() const = 0;        ///< of its waits
  virtual bool buffers_sends() const = 0;  ///< see Communicator
  /// Returns a number of the host of each rank, the same on all ranks. Empty: one host, or not known.
  virtual std::vector<int> hosts() const { return {}; }
  /// Returns the number of ranks with which this one has a connection of its own.
  virtual int connections() const { return 0; }
  /// `tensor` is contiguous and must not change before the Pending is done.
  virtual std::unique_ptr<Pending> post(const Transfer& transfer) = 0;
  /// Posts a receive for a caller that only reads the message, which saves a copy on some transports.
  /// `transfer.tensor` only gives shape, dtype and device; nothing is written into it. The default posts the
  /// receive of a new tensor.
  virtual std::unique_ptr<Arrival> receive(const Transfer& transfer);
  /// A collective of `tensor` begins, of which messages may be posted by another thread. The thread that
  /// makes the tensor calls it. `added`: bytes of other ranks that this rank will add to its own. Returns the
  /// Transfer::moment that all messages of the collective share: its sends leave then, and each wait for a
  /// receive moves it on. Null: nobody asks.
  virtual std::shared_ptr<TimePoint> begin_collective(const at::Tensor& /*tensor*/, std::int64_t /*added*/) {
    return nullptr;
  }
  /// The thread that began a collective has waited since `start` until it ended, at `moment`.
  virtual void end_collective(TimePoint /*start*/, const std::shared_ptr<TimePoint>& /*moment*/) {}
  virtual void abort(const std::string& reason) noexcept = 0;
};

/// Hands everything on: what a decorator overrides is what it changes. All receives are posted by post(),
/// where the decorator does not say otherwise.
class ForwardingChannel : public Channel {
 public:
  explicit ForwardingChannel(std::shared_ptr<Channel> inner) : inner_(std::move(inner)) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::chrono::milliseconds deadline() const override { return inner_->deadline(); }
  Clock& clock() const override { return inner_->clock(); }
  bool buffers_sends() const override { return inner_->buffers_sends(); }
  std::vector<int> hosts() const override { return inner_->hosts(); }
  std::shared_ptr<TimePoint> begin_collective(const at::Tensor& tensor, std::int64_t added) override {
    return inner_->begin_collective(tensor, added);
  }
  void end_collective(TimePoint start, const std::shared_ptr<TimePoint>& moment) override {
    inner_->end_collective(start, moment);
  }
  std::unique_ptr<Pending> post(const Transfer& transfer) override { return inner_->post(transfer); }
  void abort(const std::string& reason) noexcept override { inner_->abort(reason); }

 protected:
  std::unique_ptr<Arrival> receive_within(const Transfer& transfer) { return inner_->receive(transfer); }

 private:
  std::shared_ptr<Channel> inner_;
};

/// Wraps `channel` in all of `decorators`, the first one innermost.
std::shared_ptr<Channel> decorated(std::shared_ptr<Channel> channel,
                                   const std::vector<ChannelDecorator>& decorators);

/// A Pending that is done: a transfer of no bytes, or a sum over one rank.
class NothingPending final : public Pending {
 public:
  void wait() override {}
};

/// The seven functions of a Communicator over a channel.
std::unique_ptr<Communicator> make_channel_communicator(std::shared_ptr<Channel> channel);

/// Ranks as threads of this process; index = rank.
std::vector<std::shared_ptr<Channel>> make_local_channels(int size, std::chrono::milliseconds deadline,
                                                          Clock& clock = steady_clock());

/// "rank 1: RECV_F of stage 1 from rank 0: no message after 10.0 s".
/// `start`: by `clock`.
std::string wait_message(int rank, const Transfer& transfer, const Clock& clock, TimePoint start,
                         const std::string& what);

/// Hints for a wait that ended at its deadline, and for a peer that is gone.
inline constexpr const char* kLateHint =
    "is the peer alive and running the same plan? The deadline is --timeout";
inline constexpr const char* kPeerEndedHint =
    "the peer has ended, or gave up because of another rank; its log says which";

}  // namespace millrace
