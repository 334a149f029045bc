// One line per step and rank: steps.rank<k>.jsonl, and the console line of the rank that owns the loss.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/files.h"
#include "runtime/stage/stage_executor.h"
#include "runtime/train/rank_runner.h"

namespace millrace {

struct EvaluationReport;
struct ScoreReport;

struct StepRecord {
  std::int64_t step = 0;
  StepTimes times;
  double step_s = 0;
  double ended_s = 0;  ///< when it ended, by the run's clock; in a stretch (TrainOptions) as if in turn
  double cpu_s = 0;    ///< CPU time of this process meanwhile, all its threads
  double samples_per_s = 0;
  std::vector<std::int64_t> own_steps;     ///< by job, where they are not all `step`; else empty
  std::vector<char> ended;                 ///< by job: it is trained no more; empty: all are
  std::vector<double> lr{0};               ///< by job
  std::vector<double> gradient_norms{-1};  ///< before clipping; negative: not measured. By job
  std::vector<double> loss_scales;         ///< by job, of this step; empty: the loss is not scaled
  std::vector<char> skipped;               ///< by job: a gradient was not finite, no update
  std::int64_t peak_memory_bytes = 0;      ///< of tensors on the device, since the start
  std::int64_t resident_memory_bytes = 0;  ///< of this process on the host, at most so far
  int weight_versions = 1;
  int stashed = 0;
  std::optional<LossSums> losses;  ///< last stage only
};

/// "loss.job1" of a run whose first job is number 4 among all: "loss.job5".
std::string numbered_from(const std::string& name, int first_job);

struct StepLogHeader {
  std::string run;
  int rank = 0;
  int stage = 0;
  int ranks = 1;
  bool writes_jobs = false;  ///< jobs.csv of a job array: a line for each step and job
  int first_job = 0;         ///< TrainOptions::first_job
  bool own_steps = false;    ///< its jobs are at different steps
  /// One moment by the run's clock, which times steps and spans, and as nanoseconds since 1970 (UTC).
  std::int64_t clock_ns = 0, unix_ns = 0;
};

/// Default: writes nothing to disk, prints all the same.
class StepLog {
 public:
  StepLog() = default;
  /// `from_step`: lines of earlier steps stay (of a run that goes on), those of later ones are cut off: they
  /// are of steps that will be done again. 0: a new log. Throws ConfigError if it cannot be made.
  StepLog(const std::filesystem::path& folder, const StepLogHeader& header, std::int64_t from_step);
  /// A line that cannot be written (disk full) is warned of once and counted.
  void write(const StepRecord& record);
  /// Lines between those of steps: "after_step", and the values.
  void write(const EvaluationReport& evaluation);
  void write(const ScoreReport& score);
  std::int64_t lost_lines() const { return lost_lines_; }
  /// A progress bar that is drawn over itself on a terminal, a plain line elsewhere. stderr.
  void print(const StepRecord& record, std::int64_t total_steps);
  void print(const EvaluationReport& evaluation);
  void print(const ScoreReport& score);

 private:
  void write_line(LineFile& file, const std::string& line);
  void write_jobs(const StepRecord& record);
  LineFile file_, jobs_file_;
  int first_job_ = 0;
  bool own_steps_ = false;
  bool jobs_begun_ = false;
  std::int64_t lost_lines_ = 0;
};

}  // namespace millrace
