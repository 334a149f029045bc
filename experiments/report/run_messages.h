// The spans of all ranks on one time line, and the messages between them.
#pragma once

#include <cstdint>
#include <vector>

#include "experiments/runs/run_data.h"

namespace millrace {

/// Returns what to add to the times of each rank's spans so that all are on one time line, in the order of
/// RunData::ranks. Ranks of one host share its monotonic clock: zeros. Else nanoseconds since 1970 by each
/// host's clock.
std::vector<std::int64_t> clock_offsets(const RunData& run);

/// The spans of a rank without those within its evaluations. Those have the number of the step behind the
/// evaluation, and are no part of it.
std::vector<Span> step_spans(const RankRun& rank);

enum class MessagesOf { All, Steps };  ///< Steps: without those of evaluations

/// A message, as the spans of both ends tell of it. Times of one time line.
struct RunMessage {
  int from = 0, to = 0;  ///< ranks
  std::int64_t microbatch = -1, step = -1;
  std::int64_t sent = 0;     ///< its sender began to send
  std::int64_t arrived = 0;  ///< its receiver had it and knew: it may have lain there before
};
/// Joins each traced send with its receive: the k-th send of a microbatch in a step from a to b belongs to
/// the k-th such receive. Ascending by `sent`. Pairs whose clocks contradict each other are left out.
std::vector<RunMessage> messages_of(const RunData& run, MessagesOf which = MessagesOf::All);

}  // namespace millrace
