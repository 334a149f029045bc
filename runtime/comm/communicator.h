// Ranks talk through this and nothing else. Back ends: threads (local), shared memory, TCP, Gloo, NCCL.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "runtime/base/clock.h"
#include "runtime/base/ids.h"
#include "runtime/base/rank_pairs.h"
#include "runtime/comm/backend.h"
#include "runtime/comm/lazy_text.h"

namespace millrace {

enum class Direction { Send, Receive };

/// The Transfer::moment of a message if nobody knows when it left or was there.
inline constexpr TimePoint kUnknownMoment = TimePoint::min();

/// One message. `tensor` is contiguous; receives are written in place. (peer, tag, direction) is unique among
/// the transfers in flight. `what` names the action for error messages, e.g. "SEND_F microbatch 3 of stage
/// 1".
struct Transfer {
  Direction direction = Direction::Send;
  RankId peer;
  std::uint64_t tag = 0;
  at::Tensor tensor;
  LazyText what;
  /// Emulated devices say here when a message leaves, if they know; links add their time. The wait for a
  /// receive sets it to the moment at which the message was there, or leaves it if that is not known. Null:
  /// nobody asks.
  std::shared_ptr<TimePoint> moment{};
};

/// Work in flight. Keeps its tensors alive. Destroying an unfinished one is allowed only after abort().
class Pending {
 public:
  virtual ~Pending() = default;
  /// Blocks until done. Throws PeerError naming peer, action and elapsed time on time-out or lost peer.
  virtual void wait() = 0;
};

/// What a communicator is going to do with tensors on devices.
struct Traffic {
  RankPairs messages;  ///< ranks of the communicator
  bool sums = false;   ///< all_reduce
};
/// Messages between all of `size` ranks, and sums.
Traffic all_traffic(int size);

/// Thread-safety: one thread at a time per communicator, except abort().
/// Every wait ends by `deadline()` with PeerError; the first failure aborts the others.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual RankId rank() const = 0;
  virtual int size() const = 0;
  /// Returns whether a send is copied when it is posted. Such a send completes whatever the peer does, and
  /// its tensor is free at once. Any other send may complete as late as its receive.
  virtual bool buffers_sends() const = 0;
  /// Returns whether messages between two ranks match in the order of posting, whatever their tags, as NCCL's
  /// do. Both ends must then post them in the same order.
  virtual bool is_ordered() const { return false; }

  /// Makes the connections that `traffic` needs and that are not there yet. Collective: all ranks name the
  /// same traffic, and go through their communicators in one order. Tensors on devices travel only where it
  /// was named; a broadcast is a message from its root to each other rank. Transports that are joined from
  /// the start, and tensors on the CPU, do without. Throws PeerError.
  virtual void connect(const Traffic& traffic) { static_cast<void>(traffic); }

  /// Posts all transfers as one group and returns at once; no order among them is assumed. Sends may finish
  /// before the peer receives, but need not.
  virtual std::unique_ptr<Pending> exchange(std::span<const Transfer> transfers) = 0;

  /// Sum over all ranks of this communicator, in place, in the order of ranks (bitwise the same result on
  /// every rank and run: ((r0 + r1) + r2) + ...). Starts at once; calls are executed in the order of issue.
  virtual std::unique_ptr<Pending> all_reduce(at::Tensor tensor, std::string what) = 0;
  virtual void broadcast(at::Tensor tensor, RankId root) = 0;
  virtual void barrier() = 0;

  /// A communicator of some ranks (ascending), ranks renumbered 0..n-1 in that order. Collective over the
  /// *members* only; `name` is the same on all of them and used once. Throws ConfigError if the name's number
  /// is that of another group of this rank that is still there.
  virtual std::unique_ptr<Communicator> subgroup(const std::vector<RankId>& ranks,
                                                 const std::string& name) = 0;

  /// Makes all current and future waits of this rank and its peers fail soon. Callable from any thread.
  virtual void abort(const std::string& reason) noexcept = 0;
};

class FlightRecorder;  // runtime/trace/flight_recorder.h
class NcclApi;         // nccl_api.h
class Channel;         // channel.h

/// Puts something between the ranks and a transport (a ForwardingChannel of channel.h): an emulated link, a
/// counter, faults.
using ChannelDecorator = std::function<std::shared_ptr<Channel>(std::shared_ptr<Channel>)>;

struct CommunicatorOptions {
  Backend backend = Backend::Tcp;  ///< threads: make_local_communicators
  RankId rank;
  int size = 1;
  std::chrono::milliseconds deadline{100'000};
  std::chrono::milliseconds rendezvous_deadline{60'000};
  std::string interface_address = "127.0.0.1";
  std::string token{};   ///< secret of the job: connections over TCP are made with who knows it only
  bool encrypt = false;  ///< connections over TCP use TLS with a key of the token; the same on all ranks
  /// Tensors may live on a device: Device::identity() of this rank's. Empty: all tensors are on the CPU.
  std::string device;
  std::shared_ptr<NcclApi> nccl;  ///< null: this program, or its device, has no NCCL
  /// Decorators of the channel that joins the ranks, the first one innermost. With decorators NCCL is not
  /// used, because its messages pass no channel.
  std::vector<ChannelDecorator> decorators;
  FlightRecorder* recorder = nullptr;  ///< is told of each message; it outlives the communicator
  Clock& clock = steady_clock();       ///< of all waits and deadlines
};

/// `size` communicators that share memory, one for each thread; index = rank.
std::vector<std::unique_ptr<Communicator>> make_local_communicators(
    int size, std::chrono::milliseconds deadline, const std::vector<ChannelDecorator>& decorators = {},
    Clock& clock = steady_clock());

class Store;  // store.h
/// Connects through `store`. Throws PeerError (rendezvous), ConfigError (the back end does not go here).
std::unique_ptr<Communicator> make_communicator(const CommunicatorOptions& options,
                                                std::shared_ptr<Store> store);

}  // namespace millrace
