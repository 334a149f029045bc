// The ports that messages share on an emulated network: a message occupies all ports that it passes, one
// message at a time. It is the simulator's model (runtime/schedule/simulate.h, `host`).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/base/clock.h"

namespace millrace {

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
  /// Decides on all requests of this process that were posted before `now`: in the order of their times, then
  /// of `nth`, then of their senders. In virtual time the order is the same in every run.
  void settle(TimePoint now);

 private:
  void pass(Request& request);

  const std::vector<int> hosts_;
  const std::size_t num_hosts_;
  int file_ = -1;
  std::vector<std::int64_t> own_;  // where no file is
  // When each port is free: out and in of every host, then out and in of every rank. Guarded by mutex_, and
  // between processes by a lock of the file.
  std::int64_t* free_ = nullptr;
  std::mutex mutex_;
  std::vector<std::shared_ptr<Request>> asked_;  // guarded by mutex_
};

}  // namespace millrace
