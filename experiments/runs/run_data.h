// Reads a run's folder back for people: plan, step logs, spans, summary. LibTorch-free.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/json.h"
#include "runtime/base/result.h"
#include "runtime/plan/cluster_spec.h"
#include "runtime/plan/layer_graph.h"
#include "runtime/plan/plan.h"
#include "runtime/schedule/schedule.h"
#include "runtime/trace/trace.h"

namespace millrace {

/// One line of steps.rank<k>.jsonl; times in seconds.
struct StepLine {
  std::int64_t step = 0;
  std::optional<double> loss;  ///< ranks of the last stage
  /// metrics of a single job besides the loss: "top1", "perplexity", ...
  std::vector<std::pair<std::string, double>> metrics{};
  std::optional<double> lr;  ///< of a single job
  double samples_per_s = 0;
  double step_s = 0;
  std::optional<double> ended_s;        ///< by the host's monotonic clock
  std::optional<std::int64_t> unix_ns;  ///< the same as nanoseconds since 1970 (UTC)
  double forward_s = 0, backward_s = 0, send_s = 0, receive_s = 0, wait_s = 0, all_reduce_s = 0, update_s = 0,
         data_s = 0;
  double bubble_share = 0;
  std::int64_t peak_memory_bytes = 0;
  std::int64_t resident_memory_bytes = 0;  ///< of its process, the most until then
  int weight_versions = 0;
  int stashed_microbatches = 0;
  std::optional<double> slow{};  ///< the last 20 steps took the rank so many times the usual to compute
  /// Every number of the line but the step and its end, if StepValues::All were asked for.
  std::vector<std::pair<std::string, double>> all{};
};

enum class StepValues {
  Known,  ///< those with a member in StepLine
  All
};

struct RankRun {
  int rank = 0;
  int stage = -1;               ///< the first it holds
  std::vector<StepLine> steps;  ///< ascending; of a step that was done twice (resume) the later one
  /// The commands that wrote the log, in order, with the steps done before. Older logs do not have them.
  std::vector<std::pair<std::int64_t, std::string>> commands;
  std::vector<std::int64_t> joints;  ///< first steps that a resumed run did, ascending
  std::vector<Span> spans;           ///< of the trace window; by the first rank's clock if that is known
  bool clock_is_tied = false;        ///< the log says how far its clock is from that of rank 0
  /// The number to add to a time of `spans` to get nanoseconds since 1970. Files of older versions do not
  /// have it.
  std::optional<std::int64_t> unix_offset_ns;
  /// When the rank, ready to train, opened its log: nanoseconds since 1970 by the clock of rank 0.
  std::optional<std::int64_t> opened_unix_ns;
};

/// BLEU of translations between two steps of a run (`train --bleu-every`).
struct RunScore {
  std::int64_t after_step = 0;
  double bleu = 0;
};

/// A job of an array, from jobs.csv and the summary. Steps are the job's own.
struct JobRun {
  int job = 0;
  std::vector<std::pair<std::string, std::string>> settings;  ///< flag and value, of what differs
  std::vector<std::pair<double, double>> losses;              ///< steps done, loss; finite ones only
  std::int64_t steps = 0;
  std::optional<double> loss;                           ///< the last one; none: not finite
  std::vector<std::pair<std::string, double>> metrics;  ///< of its last evaluation
  std::optional<std::int64_t> nonfinite_step;           ///< the first whose loss was NaN or infinite
};

/// How a run came to its end, or has not yet.
struct RunEnd {
  enum class State { Done, Stopped, Failed, Running, Unknown } state = State::Unknown;
  /// Failed: by which rank, after how many steps (-1: not known), why and what to do. Unknown: what the ranks
  /// did last. Done: what could not be written.
  int rank = -1;
  std::int64_t step = -1;
  std::string cause, hint;
};
const char* to_string(RunEnd::State state);

struct RunData {
  std::string folder;
  std::optional<Plan> plan;
  std::optional<ScheduleFile> schedule;  ///< of a plan whose schedule came from a file
  std::optional<LayerGraph> profile;
  std::optional<ClusterSpec> cluster;
  Json summary;  ///< null if the run has not finished
  RunEnd end;
  Json evaluations = Json::array();  ///< with "step": of the logs, else of the summary
  std::vector<JobRun> jobs;          ///< empty: no array
  std::vector<RankRun> ranks;        ///< by rank
  std::vector<RunScore> scores;      ///< ascending
  std::vector<std::string> notes;    ///< what is missing or damaged, one sentence each
};

/// Missing or damaged parts become notes. Problem if the folder is not there or holds nothing of a run.
Result<RunData> read_run(const std::string& folder, StepValues values = StepValues::Known);

/// The rank whose loss and throughput stand for the job: the first that has losses, else the first of the
/// latest stage. nullptr: none has steps.
const RankRun* loss_rank(const RunData& run);

}  // namespace millrace
