// Why a run does not get on, or failed: who waited for whom, from what the ranks recorded. LibTorch-free.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/json.h"
#include "runtime/base/result.h"
#include "runtime/base/run_folder.h"
#include "runtime/trace/flight_recorder.h"

namespace millrace {

/// A rank that waits, or gave up waiting, for another.
struct RankWait {
  int from = 0, to = 0;
  std::string what;      ///< the message: "RECV_F microbatch 3 of stage 1"
  double seconds = 0;    ///< until it gave up, or until the newest sign of any rank
  bool gave_up = false;  ///< the wait ended with an error
  bool sent = false;  ///< the message had been sent: the rank did not take it, so nobody is to blame for it
};

struct Explanation {
  std::vector<Flight> flights;  ///< by rank, as far as there are files
  std::vector<RankWait> waits;
  std::optional<RunFailure> failure;  ///< that explains the others (failure_of)
  std::vector<int>
      root;  ///< the rank at the root; several: they wait for each other in this order; empty: nobody waits
  std::string why;             ///< what is known of the root
  std::int64_t newest_ns = 0;  ///< time of the newest sign, nanoseconds since 1970
  Problems unread{};           ///< records that cannot be read
};

/// Finds the waits in `flights` and the rank at their root. `failure` wins over the graph, unless it is of a
/// rank that only lost its peer. Pure.
Explanation explain(std::vector<Flight> flights, std::optional<RunFailure> failure);

/// Reads the newest round of an output folder and explains it. A Problem if no rank has left a record that
/// can be read.
Result<Explanation> explain_run(const std::filesystem::path& folder);

/// Returns the explanation with the last `records` records of each rank.
std::string to_text(const Explanation& explanation, std::size_t records);
Json to_json(const Explanation& explanation, std::size_t records);

}  // namespace millrace
