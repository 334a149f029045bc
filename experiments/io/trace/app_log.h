// The log of a traced program: mllog lines (UNET3D, DLRM, BERT) or DLIO's log, and the phases in it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "experiments/io/trace/lines.h"
#include "runtime/base/choices.h"
#include "runtime/base/result.h"

namespace millrace {

/// Any: whatever `trace capture` ran; its phases are those of capture.log.
enum class TracedWorkload { Unet3d, Bert, Dlrm, Dlio, Any };
constexpr auto names_of(TracedWorkload) {
  return std::to_array<std::string_view>({"unet3d", "bert", "dlrm", "dlio", "any"});
}

enum class Phase { Init, Training, Eval, Checkpoint };
inline constexpr std::array<const char*, 4> kPhaseNames{"INIT", "TRAINING", "EVAL", "CHECKPOINT"};

/// One stretch of a run; nanoseconds since 1970, UTC.
struct PhaseSpan {
  std::int64_t start = 0;
  std::int64_t end = 0;
  Phase phase = Phase::Init;
};

struct AppLog {
  std::vector<PhaseSpan> phases;   ///< in the order of their ends
  std::int64_t first = 0;          ///< the first event
  std::int64_t last = 0;           ///< the last
  std::int64_t lines = 0;          ///< events read
  int digits = 3;                  ///< of a second, in the log's times: mllog 3, DLIO 6
  std::string json;                ///< the events as the kit writes them: an array, time_ms as ISO text
  std::vector<std::string> notes;  ///< stops without a start and the like
  Dropped dropped;

  /// Start of the first INIT.
  std::optional<std::int64_t> init_start() const;
};

/// mllog: one `:::MLLOG {json}` a line, with anything before it; of horovod's ranks (`[1] :::MLLOG`) only the
/// first. Other lines are not events. Problem: no event at all, none that starts the initialisation, or the
/// training of another workload only.
Result<AppLog> read_mllog(std::string_view text, TracedWorkload workload, const std::string& name);

/// DLIO: `[INFO] <ISO time> Starting|Ending ...`; what comes before the first of them is INIT. The times are
/// taken as UTC.
Result<AppLog> read_dlio_log(std::string_view text, const std::string& name);

/// The kit's timeline.csv: `start,end,EVENT`, with the digits of the log's own times.
std::string timeline_csv(const AppLog& log);

}  // namespace millrace
