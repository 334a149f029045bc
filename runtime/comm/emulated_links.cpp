// The sender holds a message until it would have arrived: so no two hosts need to agree on the time. A
// courier thread hands the messages on when they are due.
#include "runtime/comm/emulated_links.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/units.h"

namespace millrace {
namespace {

struct Message {
  Transfer transfer;
  std::shared_ptr<EmulatedPorts::Request> asked{};  ///< until its ports are settled
  TimePoint::duration latency{};
  std::unique_ptr<Pending> posted{};  ///< of the inner channel
  std::exception_ptr error{};
  bool handed_on = false;
};

class EmulatedLinks final : public ForwardingChannel {
 public:
  EmulatedLinks(std::shared_ptr<Channel> inner, EmulatedNetwork network)
      : ForwardingChannel(std::move(inner)), network_(std::move(network)) {
    courier_ = std::jthread([this] { deliver(); });
    std::unique_lock lock(mutex_);
    started_.wait(lock, [this] { return running_; });  // it waits in the clock before anybody else does
  }

  /// Waits until all messages on the way have arrived.
  ~EmulatedLinks() override {
    std::unique_lock lock(mutex_);
    clock().wait_until(lock, changed_, TimePoint::max(), [this] { return on_the_way_.empty() || aborted_; });
    stopped_ = true;
    clock().notify_all(changed_);
  }

  std::vector<int> hosts() const override { return network_.hosts; }

  std::unique_ptr<Pending> post(const Transfer& transfer) override {
    if (transfer.direction == Direction::Receive) return ForwardingChannel::post(transfer);
    auto message = std::make_shared<Message>(Message{.transfer = transfer});
    if (buffers_sends()) message->transfer.tensor = transfer.tensor.clone();
    if (transfer.moment) message->transfer.moment = std::make_shared<TimePoint>(*transfer.moment);
    message->transfer.what = transfer.what.text();  // it may outlast what the text is made of
    const std::lock_guard lock(mutex_);
    if (failed_) std::rethrow_exception(failed_);
    if (aborted_) return ForwardingChannel::post(transfer);  // which says why
    const int peer = transfer.peer.value;
    const bool is_collective = is_collective_tag(transfer.tag);
    const TimePoint left = left_device(transfer, clock().now());
    Wire& wire = wire_to(peer);
    const auto length = duration_of(double(transfer.tensor.nbytes()) * wire.times.seconds_per_byte);
    message->latency = duration_of(wire.times.latency_s);
    if (network_.ports && network_.ports->takes(rank(), peer, is_collective)) {
      message->asked = std::make_shared<EmulatedPorts::Request>(EmulatedPorts::Request{
          .from = rank(), .to = peer, .is_collective = is_collective, .length = length});
      if (is_collective && is_asking_) {
        waiting_.push_back(message);
      } else {
        ask(message, is_collective ? std::max(left, collectives_free_) : left);
      }
    } else {
      wire.free = std::max(wire.free, left) + length;
      on_the_way_.emplace(wire.free + message->latency, message);
    }
    clock().notify_all(changed_);
    if (buffers_sends()) return std::make_unique<NothingPending>();
    return std::make_unique<Sent>(*this, std::move(message));
  }

  void abort(const std::string& reason) noexcept override {
    {
      const std::lock_guard lock(mutex_);
      aborted_ = true;
      clock().notify_all(changed_);
    }
    ForwardingChannel::abort(reason);
  }

 private:
  struct Wire {
    EmulatedWire times;
    TimePoint free{};  ///< when what was posted so far has left
  };

  /// A send that is not copied: it is done when the message is with its receiver.
  class Sent final : public Pending {
   public:
    Sent(EmulatedLinks& links, std::shared_ptr<Message> message)
        : links_(links), message_(std::move(message)) {}
    void wait() override {
      const TimePoint start = links_.clock().now();
      {
        std::unique_lock lock(links_.mutex_);
        const bool in_time = links_.clock().wait_until(lock, links_.changed_, start + links_.deadline(), [&] {
          return message_->handed_on || links_.aborted_;
        });
        if (message_->error) std::rethrow_exception(message_->error);
        if (!message_->handed_on) {
          throw PeerError(wait_message(links_.rank(), message_->transfer, links_.clock(), start,
                                       in_time ? "aborted" : "still on the emulated link"),
                          in_time ? "" : "--timeout is shorter than the link is slow");
        }
      }
      if (message_->posted) message_->posted->wait();
    }

   private:
    EmulatedLinks& links_;
    std::shared_ptr<Message> message_;
  };

  /// The device was done then, even if the host noticed it later.
  static TimePoint left_device(const Transfer& transfer, TimePoint now) {
    return transfer.moment && *transfer.moment != kUnknownMoment ? *transfer.moment : now;
  }

  Wire& wire_to(int peer) {
    const auto found = wires_.find(peer);
    if (found != wires_.end()) return found->second;
    return wires_.emplace(peer, Wire{network_.wire(rank(), peer)}).first->second;
  }

  /// Asks for the ports of a message, as of `when`.
  void ask(const std::shared_ptr<Message>& message, TimePoint when) {
    at_once_ = when == newest_ ? at_once_ + 1 : 0;
    newest_ = when;
    message->asked->posted = when;
    message->asked->nth = at_once_;
    is_asking_ |= message->asked->is_collective;
    network_.ports->ask(message->asked);
    // All that ask at this moment are known a nanosecond later.
    on_the_way_.emplace(when + std::chrono::nanoseconds(1), message);
  }

  /// The ports of a message are settled: the next one of a collective asks when it has left.
  void settled(const EmulatedPorts::Request& request) {
    if (!request.is_collective) return;
    collectives_free_ = request.left;
    is_asking_ = false;
    if (waiting_.empty()) return;
    const std::shared_ptr<Message> next = std::move(waiting_.front());
    waiting_.pop_front();
    ask(next, std::max(request.left, left_device(next->transfer, request.left)));
  }

  void deliver() {
    const ClockUser user(clock());
    std::unique_lock lock(mutex_);
    running_ = true;
    started_.notify_all();
    for (;;) {
      const TimePoint due = on_the_way_.empty() ? TimePoint::max() : on_the_way_.begin()->first;
      const bool changed = clock().wait_until(lock, changed_, due, [&] {
        return stopped_ || aborted_ || (!on_the_way_.empty() && on_the_way_.begin()->first < due);
      });
      if (stopped_ || aborted_) return;
      if (changed) continue;
      const std::shared_ptr<Message> message = on_the_way_.begin()->second;
      if (message->asked) {
        network_.ports->settle(clock().now());
        on_the_way_.erase(on_the_way_.begin());
        on_the_way_.emplace(message->asked->left + message->latency, message);
        settled(*message->asked);
        message->asked.reset();
        continue;
      }
      if (message->transfer.moment) *message->transfer.moment = due;
      lock.unlock();
      try {
        message->posted = ForwardingChannel::post(message->transfer);
      } catch (...) {
        message->error = std::current_exception();
      }
      lock.lock();
      message->handed_on = true;
      if (message->error && !failed_) failed_ = message->error;
      on_the_way_.erase(std::ranges::find(on_the_way_, message, &Queue::value_type::second));
      clock().notify_all(changed_);
    }
  }

  using Queue = std::multimap<TimePoint, std::shared_ptr<Message>>;
  EmulatedNetwork network_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_, started_;
  std::map<int, Wire> wires_;  // by peer
  Queue on_the_way_;           // by arrival, or when ports are settled; equal ones in the order of posting
  TimePoint newest_ = TimePoint::min();  // when the newest message asked for ports
  int at_once_ = 0;                      // messages that asked at that moment, before the newest
  // Messages of collectives ask one after the other, each when the one before has left. If all asked when
  // they are posted, a rank that is a moment later would find ports taken for messages that leave much later.
  std::deque<std::shared_ptr<Message>> waiting_;
  TimePoint collectives_free_{};  // when the newest one that is settled has left
  bool is_asking_ = false;        // one of them is not settled
  std::exception_ptr failed_;     // the first message that could not be handed on
  bool running_ = false, stopped_ = false, aborted_ = false;
  std::jthread courier_;  // last: joined first
};

}  // namespace

std::shared_ptr<Channel> make_emulated_links(std::shared_ptr<Channel> inner, const EmulatedNetwork& network) {
  return std::make_shared<EmulatedLinks>(std::move(inner), network);
}

}  // namespace millrace
