// Writes one line per step and rank to steps.rank<k>.jsonl, and the console line of the rank that owns the
// loss.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/files.h"
#include "runtime/base/scalar_sink.h"
#include "runtime/stage/stage_executor.h"
#include "runtime/train/rank_runner.h"

namespace millrace {

struct EvaluationReport;
struct ScoreReport;

struct StepRecord {
  std::int64_t step = 0;
  StepTimes times;
  double step_s = 0;
  /// the step's end on the run's clock; in a stretch (TrainOptions) as if the arrays alternated at each step
  double ended_s = 0;
  double cpu_s = 0;  ///< CPU time of this process during the step, all threads
  double samples_per_s = 0;
  std::vector<std::int64_t> own_steps;     ///< by job; empty if all are equal to `step`
  std::vector<char> ended;                 ///< by job: 1 if its training has ended; empty: none has ended
  std::vector<double> lr{0};               ///< by job
  std::vector<double> gradient_norms{-1};  ///< before clipping; negative: not measured. By job
  std::vector<double> loss_scales;         ///< factors of this step by job; empty: the loss is not scaled
  std::vector<char> skipped;            ///< by job: 1 if a gradient was not finite and the update was skipped
  std::int64_t peak_memory_bytes = 0;   ///< peak bytes of tensors on the device since the start
  std::int64_t taken_memory_bytes = 0;  ///< peak bytes that the process reserved on the GPU; 0: no GPU
  std::int64_t resident_memory_bytes = 0;  ///< peak resident bytes of this process on the host
  int weight_versions = 1;
  int stashed = 0;
  std::optional<LossSums> losses;  ///< last stage only
  bool spike = false;              ///< the loss is a spike (LossSpikes)
  double slow = 0;  ///< the rank's last computation times as a multiple of the usual (SlowSteps); 0: not slow
};

/// Renumbers the job in `name` among all jobs: in a run whose first job is number 4, "loss.job1" becomes
/// "loss.job5".
std::string numbered_from(const std::string& name, int first_job);

struct StepLogHeader {
  std::string run;
  std::string command;  ///< TrainOptions::command
  int rank = 0;
  int stage = 0;
  int ranks = 1;
  bool writes_jobs = false;  ///< also write jobs.csv, which has a line per step and job of a job array
  int first_job = 0;         ///< TrainOptions::first_job
  bool own_steps = false;    ///< the jobs are at different steps
  /// One timestamp on two clocks, in nanoseconds: the run's clock, which times steps and spans, and UTC since
  /// 1970.
  std::int64_t clock_ns = 0, unix_ns = 0;
  /// Offset from this rank's UTC times, computed from the two timestamps, to those of rank 0; 0 on rank 0.
  std::int64_t clock_offset_ns = 0;
  /// Shortest message round trip in that clock measurement; 0: the ranks share one clock.
  std::int64_t clock_round_trip_ns = 0;
};

/// The step log of one rank. A default-constructed log writes no file but still prints.
class StepLog {
 public:
  StepLog() = default;
  /// Opens the log in `folder`. If `from_step` is above 0 the run resumes: lines of earlier steps are kept,
  /// and later ones are cut off because those steps are repeated. 0: a new log. Throws ConfigError if a file
  /// cannot be created.
  StepLog(const std::filesystem::path& folder, const StepLogHeader& header, std::int64_t from_step);
  /// Writes the lines of a step. A line that cannot be written (disk full) is counted; the first one causes a
  /// warning.
  void write(const StepRecord& record);
  /// Writes an evaluation's line between those of steps: "after_step", and the values. A completed run that
  /// is resumed evaluates again: an evaluation that is already in the log is not repeated.
  void write(const EvaluationReport& evaluation);
  void write(const ScoreReport& score);
  /// Also writes the numbers of each line from now on to `sink`. `unix_minus_clock_s`: seconds from the run's
  /// clock to UTC since 1970.
  void add_sink(std::unique_ptr<ScalarSink> sink, double unix_minus_clock_s);
  std::int64_t lost_lines() const { return lost_lines_; }
  /// Returns whether the written lines can be read in the folder: the file was neither deleted nor replaced.
  bool is_in_place() const;
  /// Prints to stderr: on a terminal a progress bar that is redrawn in place, elsewhere a plain line.
  /// `left_s`: expected seconds of the remaining steps; shown from one second on.
  void print(const StepRecord& record, std::int64_t total_steps, double left_s = 0);
  void print(const EvaluationReport& evaluation);
  void print(const ScoreReport& score);

 private:
  void count_loss(const Status& written);
  void write_line(LineFile& file, const std::string& line);
  void give(std::int64_t step, const Scalars& values);
  void write_jobs(const StepRecord& record);
  LineFile file_, jobs_file_;
  std::filesystem::path path_;                       ///< path of file_; empty: there is none
  std::pair<std::uint64_t, std::uint64_t> file_id_;  ///< identity of file_ when it was opened
  std::vector<std::unique_ptr<ScalarSink>> sinks_;
  /// last_end_s_: end of the newest step, on the run's clock
  double unix_minus_clock_s_ = 0, last_end_s_ = 0;
  int first_job_ = 0;
  bool own_steps_ = false;
  bool jobs_begun_ = false;
  std::int64_t evaluated_ = -1;  ///< steps before the evaluation that the log had when it was opened
  std::int64_t lost_lines_ = 0;
};

}  // namespace millrace
