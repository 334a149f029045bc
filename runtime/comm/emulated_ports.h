// The ports that messages share on an emulated network: a message occupies all ports that it passes, one
// message at a time. It is the simulator's model (runtime/schedule/simulate.h, `host`).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "runtime/base/clock.h"

namespace millrace {

/// One port. Messages pass it in the order of the times at which they were posted. On the wall clock a
/// message may ask late, because its process was not running, when others that were posted after it have
/// passed. Then it passes when it would have, and those that ask from now on wait as long as they would have.
/// Plain data: processes share it; zeros are a port that nothing has passed.
class EmulatedPort {
 public:
  /// Returns when the port is free for a message that was posted at `posted`. Nanoseconds, as below.
  std::int64_t free_at(std::int64_t posted) const;
  /// Tells that this message occupies the port for `length`, until `left`.
  void passed(std::int64_t posted, std::int64_t length, std::int64_t left);

 private:
  struct Message {
    std::int64_t posted, length, left;
  };
  std::size_t later_than(std::int64_t posted) const;

  std::int64_t left_before_ = 0;         // when the last message left that is no longer in newest_
  std::size_t count_ = 0;                // of messages in newest_
  std::array<Message, 32> newest_ = {};  // in the order of passing
};

/// A host has a port for what leaves it and one for what arrives. Messages between hosts take the sending
/// host's and the receiving host's. A rank has two ports of its own, which the messages of collectives inside
/// its host take: the planner charges for them one after the other (AllReduceCost). Thread-safe.
class EmulatedPorts {
 public:
  /// `hosts`: by rank, the number of the host whose ports it uses; equal numbers: no message between them
  /// takes those. `file`: where processes of one machine keep the ports that they share; empty: all ranks are
  /// threads of this process. Throws ConfigError if the file cannot be made.
  explicit EmulatedPorts(std::vector<int> hosts, const std::string& file = "");
  ~EmulatedPorts();
  EmulatedPorts(const EmulatedPorts&) = delete;
  EmulatedPorts& operator=(const EmulatedPorts&) = delete;

  /// A message that asks for its ports.
  struct Request {
    int from = 0, to = 0;
    bool is_collective = false;
    TimePoint posted{};
    int nth = 0;                   ///< its number among the messages that its rank posted at this moment
    TimePoint::duration length{};  ///< for which it occupies its ports
    TimePoint left{};              ///< set by settle(): when it has passed them
  };

  /// Returns whether a message takes ports at all; else it has a wire of its own.
  bool takes(int from, int to, bool is_collective) const;
  void ask(std::shared_ptr<Request> request);
  /// Returns when the first request of this process was posted that is not settled; TimePoint::max(): none.
  TimePoint next();
  /// Decides on all requests of this process that were posted before `now`, and returns them in their order:
  /// of their times, then of `nth`, then of their senders. In virtual time it is the same in every run.
  std::vector<std::shared_ptr<Request>> settle(TimePoint now);

 private:
  struct Earlier {
    bool operator()(const std::shared_ptr<Request>& a, const std::shared_ptr<Request>& b) const;
  };
  void pass(Request& request);

  const std::vector<int> hosts_;
  const std::size_t num_hosts_;
  int file_ = -1;
  std::vector<EmulatedPort> own_;  // where no file is
  // Out and in of every host, then out and in of every rank. Guarded by mutex_, and between processes by a
  // lock of the file.
  EmulatedPort* ports_ = nullptr;
  std::mutex mutex_;
  std::multiset<std::shared_ptr<Request>, Earlier> asked_;  // guarded by mutex_
};

}  // namespace millrace
