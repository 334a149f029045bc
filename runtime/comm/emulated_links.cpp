// The sender holds a message until it would have arrived: so no two hosts need to agree on the time. One
// courier thread for all ranks of a process hands the messages on when they are due.
#include "runtime/comm/emulated_links.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/base/units.h"

namespace millrace {
namespace {

/// The device was done then, even if the host noticed it later.
TimePoint left_device(const Transfer& transfer, TimePoint now) {
  return transfer.moment && *transfer.moment != kUnknownMoment ? *transfer.moment : now;
}

TimePoint::duration length_of(std::size_t bytes, const EmulatedWire& wire) {
  return duration_of(double(bytes) * wire.seconds_per_byte);
}

}  // namespace

/// The messages on the way of all ranks, in one thread that ends with the last link.
class LinkCourier {
 public:
  struct Message;
  struct Link;

  /// A message. Guarded by the courier.
  struct Message : EmulatedPorts::Request {
    std::shared_ptr<Link> link;  ///< of the sender
    Transfer transfer{};
    TimePoint::duration latency{};
    std::unique_ptr<Pending> pending{};  ///< of the inner channel
    std::exception_ptr error{};
    bool handed_on = false;
  };

  /// A rank's end of all its links. Guarded by the courier's mutex, but for `inner`.
  struct Link {
    Link(std::shared_ptr<Channel> channel, const EmulatedNetwork& of)
        : inner(std::move(channel)), network(of), rank(inner->rank()) {}

    struct Wire {
      EmulatedWire times;
      TimePoint free{};  ///< when what was posted so far has left
    };
    Wire& wire_to(int peer) {
      const auto found = wires.find(peer);
      if (found != wires.end()) return found->second;
      return wires.emplace(peer, Wire{network.wire(rank, peer)}).first->second;
    }

    std::shared_ptr<Channel> inner;
    const EmulatedNetwork& network;  ///< gone when `aborted`
    int rank;
    std::condition_variable changed{};
    std::map<int, Wire> wires{};          ///< by peer
    int under_way = 0;                    ///< messages
    bool is_handing_on = false;           ///< the courier is in `inner`
    TimePoint newest = TimePoint::min();  ///< when the newest message asked for ports
    int at_once = 0;                      ///< messages that asked at that moment, before the newest
    // Messages of collectives ask one after the other, each when the one before has left. If all asked when
    // they are posted, a rank that is a moment later would find ports taken for messages that leave much
    // later.
    std::deque<std::shared_ptr<Message>> waiting{};
    TimePoint collectives_free{};  ///< when the newest one that is settled has left
    bool is_asking = false;        ///< one of them is not settled
    std::exception_ptr failed{};   ///< the first message that could not be handed on
    bool aborted = false;
  };

  void join(Channel& channel, std::shared_ptr<EmulatedPorts> ports) {
    std::unique_lock lock(mutex_);
    MILLRACE_CHECK(links_ == 0 || clock_ == &channel.clock());
    if (++links_ > 1) return;
    clock_ = &channel.clock();
    ports_ = std::move(ports);
    running_ = stopped_ = false;
    thread_ = std::jthread([this] { deliver(); });
    started_.wait(lock, [this] { return running_; });  // it waits in the clock before anybody else does
  }

  /// Waits until all messages of `link` have arrived.
  void leave(Link& link) {
    std::jthread last;
    std::unique_lock lock(mutex_);
    clock_->wait_until(lock, link.changed, TimePoint::max(),
                       [&] { return !link.is_handing_on && (link.under_way == 0 || link.aborted); });
    link.aborted = true;
    if (--links_ > 0) return;
    stopped_ = true;
    clock_->notify_all(changed_);
    last = std::move(thread_);
    lock.unlock();
    last = {};
    on_the_way_.clear();
    ports_.reset();
  }

  void abort(Link& link) {
    const std::lock_guard lock(mutex_);
    link.aborted = true;
    link.waiting.clear();
    clock_->notify_all(link.changed);
  }

  /// Sends the message over its link. Returns false if that is aborted.
  bool send(const std::shared_ptr<Message>& message) {
    const std::lock_guard lock(mutex_);
    Link& link = *message->link;
    if (link.failed) std::rethrow_exception(link.failed);
    if (link.aborted) return false;
    const Transfer& transfer = message->transfer;
    const int peer = transfer.peer.value;
    const TimePoint left = left_device(transfer, clock_->now());
    const EmulatedWire wire = link.wire_to(peer).times;
    ++link.under_way;
    message->to = peer;
    message->is_collective = is_collective_tag(transfer.tag);
    message->length = length_of(transfer.tensor.nbytes(), wire);
    message->latency = duration_of(wire.latency_s);
    if (ports_ && ports_->takes(link.rank, peer, message->is_collective)) {
      ask_in_turn(message, left);
    } else {
      TimePoint& free = link.wire_to(peer).free;
      free = std::max(free, left) + message->length;
      on_the_way_.emplace(free + message->latency, message);
    }
    clock_->notify_all(changed_);
    return true;
  }

  enum class End { HandedOn, Aborted, Late };
  /// Waits until the message is handed on or its link is aborted, but no longer than `deadline`.
  End wait(const Message& message, std::chrono::milliseconds deadline) {
    std::unique_lock lock(mutex_);
    const Link& link = *message.link;
    const bool in_time = clock_->wait_until(lock, message.link->changed, clock_->now() + deadline,
                                            [&] { return message.handed_on || link.aborted; });
    if (message.error) std::rethrow_exception(message.error);
    return message.handed_on ? End::HandedOn : in_time ? End::Aborted : End::Late;
  }

 private:
  using Queue = std::multimap<TimePoint, std::shared_ptr<Message>>;

  void ask_in_turn(const std::shared_ptr<Message>& message, TimePoint left) {
    Link& link = *message->link;
    if (message->is_collective && link.is_asking) {
      link.waiting.push_back(message);
    } else {
      ask(message, message->is_collective ? std::max(left, link.collectives_free) : left);
    }
  }

  /// Asks for the ports of a message, as of `when`. All that ask then are known a nanosecond later.
  void ask(const std::shared_ptr<Message>& message, TimePoint when) {
    Link& link = *message->link;
    link.at_once = when == link.newest ? link.at_once + 1 : 0;
    link.newest = when;
    link.is_asking |= message->is_collective;
    message->from = link.rank;
    message->posted = when;
    message->nth = link.at_once;
    ports_->ask(message);
  }

  /// The ports of a message are settled: the next one of a collective asks when it has left.
  void settled(const std::shared_ptr<Message>& message) {
    Link& link = *message->link;
    if (link.aborted) return;
    const TimePoint left = message->left;
    on_the_way_.emplace(left + message->latency, message);
    if (!message->is_collective) return;
    link.collectives_free = left;
    link.is_asking = false;
    if (link.waiting.empty()) return;
    const std::shared_ptr<Message> next = std::move(link.waiting.front());
    link.waiting.pop_front();
    ask(next, std::max(left, left_device(next->transfer, left)));
  }

  /// Returns when something is to be done.
  TimePoint next() const {
    TimePoint due = on_the_way_.empty() ? TimePoint::max() : on_the_way_.begin()->first;
    if (!ports_) return due;
    const TimePoint asked = ports_->next();
    return asked == TimePoint::max() ? due : std::min(due, asked + std::chrono::nanoseconds(1));
  }

  void deliver() {
    const ClockUser user(*clock_);
    std::unique_lock lock(mutex_);
    running_ = true;
    started_.notify_all();
    for (;;) {
      const TimePoint due = next();
      const bool changed = clock_->wait_until(lock, changed_, due, [&] { return stopped_ || next() < due; });
      if (stopped_) return;
      if (changed) continue;
      const TimePoint now = clock_->now();
      if (ports_)
        for (const auto& request : ports_->settle(now)) settled(std::static_pointer_cast<Message>(request));
      while (!on_the_way_.empty() && on_the_way_.begin()->first <= now) {
        const auto first = on_the_way_.extract(on_the_way_.begin());
        hand_on(first.mapped(), first.key(), lock);
      }
    }
  }

  /// Hands on a message that is due.
  void hand_on(const std::shared_ptr<Message>& message, TimePoint due, std::unique_lock<std::mutex>& lock) {
    Link& link = *message->link;
    if (link.aborted) return;
    if (message->transfer.moment) *message->transfer.moment = due;
    link.is_handing_on = true;
    lock.unlock();
    try {
      message->pending = link.inner->post(message->transfer);
    } catch (...) {
      message->error = std::current_exception();
    }
    lock.lock();
    link.is_handing_on = false;
    if (message->error && !link.failed) link.failed = message->error;
    --link.under_way;
    message->handed_on = true;
    clock_->notify_all(link.changed);
  }

  std::mutex mutex_;  // guards what follows, and each Link
  Clock* clock_ = nullptr;
  std::shared_ptr<EmulatedPorts> ports_;
  Queue on_the_way_;  // by arrival; equal ones in the order of posting
  std::condition_variable changed_, started_;
  int links_ = 0;
  bool running_ = false, stopped_ = false;
  std::jthread thread_;
};

std::shared_ptr<LinkCourier> make_link_courier() {
  return std::make_shared<LinkCourier>();
}

namespace {

class EmulatedLinks final : public ForwardingChannel {
 public:
  EmulatedLinks(std::shared_ptr<Channel> inner, EmulatedNetwork network)
      : ForwardingChannel(inner),
        network_(std::move(network)),
        link_(std::make_shared<LinkCourier::Link>(std::move(inner), network_)) {
    courier().join(*link_->inner, network_.ports);
  }

  /// Waits until all messages on the way have arrived.
  ~EmulatedLinks() override { courier().leave(*link_); }

  std::vector<int> hosts() const override { return network_.hosts; }

  std::unique_ptr<Pending> post(const Transfer& transfer) override {
    if (transfer.direction == Direction::Receive) return ForwardingChannel::post(transfer);
    auto message = std::make_shared<LinkCourier::Message>();
    message->link = link_;
    message->transfer = transfer;
    if (buffers_sends()) message->transfer.tensor = transfer.tensor.clone();
    if (transfer.moment) message->transfer.moment = std::make_shared<TimePoint>(*transfer.moment);
    message->transfer.what = transfer.what.text();  // it may outlast what the text is made of
    if (!courier().send(message)) return ForwardingChannel::post(transfer);  // which says why
    if (buffers_sends()) return std::make_unique<NothingPending>();
    return std::make_unique<Sent>(*this, std::move(message));
  }

  void abort(const std::string& reason) noexcept override {
    courier().abort(*link_);
    ForwardingChannel::abort(reason);
  }

 private:
  LinkCourier& courier() { return *network_.courier; }

  /// A send that is not copied: it is done when the message is with its receiver.
  class Sent final : public Pending {
   public:
    Sent(EmulatedLinks& links, std::shared_ptr<LinkCourier::Message> message)
        : links_(links), message_(std::move(message)) {}
    void wait() override {
      const TimePoint start = links_.clock().now();
      const LinkCourier::End end = links_.courier().wait(*message_, links_.deadline());
      const bool late = end == LinkCourier::End::Late;
      if (end != LinkCourier::End::HandedOn)
        throw PeerError(wait_message(links_.rank(), message_->transfer, links_.clock(), start,
                                     late ? "still on the emulated link" : "aborted"),
                        late ? "--timeout is shorter than the link is slow" : "");
      if (message_->pending) message_->pending->wait();
    }

   private:
    EmulatedLinks& links_;
    std::shared_ptr<LinkCourier::Message> message_;
  };

  const EmulatedNetwork network_;
  const std::shared_ptr<LinkCourier::Link> link_;
};

}  // namespace

std::shared_ptr<Channel> make_emulated_links(std::shared_ptr<Channel> inner, const EmulatedNetwork& network) {
  return std::make_shared<EmulatedLinks>(std::move(inner), network);
}

}  // namespace millrace
