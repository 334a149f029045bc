// One line per step and rank: steps.rank<k>.jsonl, and the console line of the rank that owns the loss.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "runtime/base/files.h"
#include "runtime/stage/stage_executor.h"
#include "runtime/train/rank_runner.h"

namespace millrace {

struct EvaluationReport;

struct StepRecord {
  std::int64_t step = 0;
  StepTimes times;
  double step_s = 0;
  double samples_per_s = 0;
  double lr = 0;
  std::int64_t peak_memory_bytes = 0;      ///< of tensors on the device, since the start
  std::int64_t resident_memory_bytes = 0;  ///< of this process on the host, at most so far
  int weight_versions = 1;
  int stashed = 0;
  std::optional<LossSums> losses;  ///< last stage only
};

/// Default: writes nothing to disk, prints all the same.
class StepLog {
 public:
  StepLog() = default;
  StepLog(const std::filesystem::path& folder, int rank, int stage, int ranks, bool append);
  void write(const StepRecord& record);
  /// A progress bar that is drawn over itself on a terminal, a plain line elsewhere. stderr.
  void print(const StepRecord& record, std::int64_t total_steps);
  void print(const EvaluationReport& evaluation);

 private:
  LineFile file_;
};

}  // namespace millrace
