// A run as data for all exporters: spans, values by step, facts.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/json.h"
#include "runtime/base/result.h"

namespace millrace {

/// Something that lasted. Nanoseconds of the log's clock.
struct LoggedSpan {
  int rank = 0;
  std::string lane;  ///< "compute", "READ", ...: spans of one lane may overlap
  std::string name;
  std::string category;
  std::int64_t start = 0, end = 0;
  std::int64_t step = -1, microbatch = -1, stage = -1;
  std::uint64_t flow_out = 0,
                flow_in = 0;  ///< arrows: the same number leaves one span and enters another; 0: none
};

/// A number at a step (`step` >= 0) or a time.
struct LoggedValue {
  int rank = 0;
  std::string name;
  std::int64_t step = -1;
  std::int64_t time = 0;
  double value = 0;
};

/// A phase as MLPerf's log names it: "init", "epoch", "block", "eval", "checkpoint", "run", "training"
/// (DLRM's block in the I/O kit).
struct LoggedPhase {
  int rank = 0;
  std::string name;
  std::int64_t start = 0, end = 0;
  std::int64_t number = -1;  ///< of the epoch that it is, or begins in; epochs count from 1
  std::int64_t epochs = 1;   ///< of a block: how many it has a part of
};

struct EventLog {
  std::string source;
  std::string kind;  ///< "run", "dlio" or "timeline"
  int world_size = 1;
  std::string backend;
  /// Times are nanoseconds since 1970 (UTC); else they count from some moment, and only their differences
  /// mean anything (runs of older versions).
  bool has_unix_time = false;
  bool succeeded = true;  ///< it came to its end
  std::vector<LoggedSpan> spans;
  std::vector<LoggedValue> values;
  std::vector<LoggedPhase> phases;
  std::vector<std::pair<std::string, Json>> facts;  ///< "global_batch_size", "seed", ...
  std::vector<std::string> notes;                   ///< what was missing or left out
};

/// Reads an output folder of `train` or `launch`, of `millrace dlio`, or a timeline folder of preprocessed
/// traces. A folder that holds none of them, or nothing to export, is a Problem: never an empty log.
Result<EventLog> read_event_log(const std::string& folder);

/// "2023-02-11T13:11:22.123456789" (UTC, any number of digits) as Unix nanoseconds; false if it is no such
/// time.
bool parse_time(std::string_view text, std::int64_t& nanoseconds);

}  // namespace millrace
