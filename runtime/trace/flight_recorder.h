// The most recent actions and messages of a rank, in a mapped file. The file survives any end of the rank, so
// a hang or a kill can be analysed during or after it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/result.h"

namespace millrace {

/// One action or message. Times are nanoseconds of the rank's clock; 0: not yet. This is the file's binary
/// format.
struct FlightRecord {
  enum class Kind : std::uint8_t { Action, Send, Receive };
  enum class State : std::uint8_t {
    Begun,    ///< an action runs, or a message is posted
    Waiting,  ///< the rank waits for it
    Done,
    Failed  ///< the wait ended with an error
  };
  std::uint64_t number = 0;  ///< counts the rank's records from 1; 0: an empty slot
  std::int64_t begun = 0, waited = 0, ended = 0;
  std::int64_t step = -1;  ///< step of an action; for a message, that of the action that posted it
  std::int64_t bytes = 0;  ///< size of a message
  std::uint64_t tag = 0;   ///< tag of a message: equal at both ends
  std::int32_t peer = -1;  ///< the other rank of a message
  Kind kind = Kind::Action;
  State state = State::Begun;
  char what[66] = {};  ///< an action in schedule notation, or a message's description; ends with 0

  std::string_view text() const { return {what}; }
};
static_assert(sizeof(FlightRecord) == 128);

/// Writes one rank's records. Before open() nothing is recorded, at the cost of one comparison. Thread-safe.
class FlightRecorder {
 public:
  static constexpr std::size_t kCapacity = 1024;  ///< number of records kept

  explicit FlightRecorder(Clock& clock) : clock_(clock) {}
  ~FlightRecorder();
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

  /// Creates the file; a second call does nothing. If the file cannot be created, only the records are lost.
  /// `unix_ns`: the current time in nanoseconds since 1970.
  void open(const std::string& path, int rank, int stage, std::int64_t unix_ns);
  bool is_open() const { return is_open_; }

  /// Returns the number of the new record; 0 if nothing is recorded. The other functions accept it, and
  /// ignore one that was overwritten.
  std::uint64_t action(std::int64_t step, std::string_view what);
  std::uint64_t message(FlightRecord::Kind kind, int peer, std::int64_t bytes, std::uint64_t tag);
  void wait(std::uint64_t number, std::string_view what);
  void end(std::uint64_t number, FlightRecord::State state);

 private:
  struct Header;
  FlightRecord& place(std::uint64_t number) const;
  std::uint64_t add(FlightRecord record, std::string_view what);

  Clock& clock_;
  std::mutex mutex_;  // guards the mapped memory
  std::atomic<bool> is_open_{false};
  Header* header_ = nullptr;
  FlightRecord* records_ = nullptr;
  std::uint64_t last_ = 0;
  std::int64_t step_ = -1;  ///< step of the newest action
};

/// The content of a FlightRecorder's file.
struct Flight {
  int rank = 0, stage = -1;
  std::int64_t pid = 0;
  std::int64_t unix_minus_clock_ns = 0;  ///< offset from a record's time to nanoseconds since 1970
  std::vector<FlightRecord> records;     ///< oldest first
};
/// Reads a file that may be written concurrently, or that a killed rank left. Incomplete records are skipped.
Result<Flight> read_flight(const std::string& path);

}  // namespace millrace
