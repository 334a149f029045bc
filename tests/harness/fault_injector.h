// Faults on the way between ranks, at one message that a test names.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/comm/channel.h"

namespace millrace {

enum class Fault {
  Delay,        ///< the message leaves late, and so do all after it
  Drop,         ///< the message never leaves
  Cut,          ///< the message and all later ones in both directions are lost without an error
  WrongLength,  ///< the message is an element short
  Flip,         ///< a bit of the message changes on the way
};

struct FaultOptions {
  Fault fault = Fault::Drop;
  int rank = 0;              ///< the rank that sends the message
  std::int64_t message = 0;  ///< number of the message, counting the rank's sends from 0, with collectives
  std::chrono::milliseconds delay{0};
};

class FaultInjector final : public ForwardingChannel {
 public:
  FaultInjector(std::shared_ptr<Channel> inner, FaultOptions options, std::shared_ptr<std::atomic<int>> hits)
      : ForwardingChannel(std::move(inner)), options_(options), hits_(std::move(hits)) {}

  std::unique_ptr<Pending> post(const Transfer& transfer) override {
    if (rank() != options_.rank) return ForwardingChannel::post(transfer);
    if (transfer.direction == Direction::Receive) {
      // A tag that nobody sends: it waits until the deadline.
      if (!cut_) return ForwardingChannel::post(transfer);
      Transfer never = transfer;
      never.tag ^= std::uint64_t{1} << 46;
      return ForwardingChannel::post(never);
    }
    const bool hit = sends_++ == options_.message;
    if (hit) ++*hits_;
    if (cut_ || (hit && (options_.fault == Fault::Drop || options_.fault == Fault::Cut))) {
      cut_ = cut_ || options_.fault == Fault::Cut;
      return std::make_unique<NothingPending>();
    }
    if (hit && options_.fault == Fault::Delay) clock().sleep_until(clock().now() + options_.delay);
    if (hit && options_.fault == Fault::Flip) {
      Transfer other = transfer;
      other.tensor = transfer.tensor.clone();
      static_cast<unsigned char*>(other.tensor.mutable_data_ptr())[other.tensor.nbytes() / 2] ^= 4;
      return ForwardingChannel::post(other);
    }
    if (!hit || options_.fault != Fault::WrongLength) return ForwardingChannel::post(transfer);
    Transfer shorter = transfer;
    shorter.tensor = transfer.tensor.view({-1}).narrow(0, 0, transfer.tensor.numel() - 1).clone();
    return ForwardingChannel::post(shorter);
  }

 private:
  FaultOptions options_;
  std::shared_ptr<std::atomic<int>> hits_;  // a test whose fault did not happen proves nothing
  std::atomic<std::int64_t> sends_{0};
  std::atomic<bool> cut_{false};
};

/// `hits` counts the faults that happened.
inline ChannelDecorator inject(const FaultOptions& options, std::shared_ptr<std::atomic<int>> hits) {
  return [=](std::shared_ptr<Channel> inner) {
    return std::make_shared<FaultInjector>(std::move(inner), options, hits);
  };
}

}  // namespace millrace
