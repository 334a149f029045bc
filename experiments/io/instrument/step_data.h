// Step times of many runs, from the kit's instrumentation or from our own step logs, pooled by configuration.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "experiments/io/instrument/statistics.h"
#include "runtime/base/json.h"
#include "runtime/base/result.h"

namespace millrace {

enum class StepSource { Unet3d, Dlrm, Bert, Dlio, Own };

/// Metric name -> values (seconds, or samples a second), in the kit's order of metrics.
using Metrics = std::vector<std::pair<std::string, std::vector<double>>>;
const std::vector<double>* find_metric(const Metrics& metrics, const std::string& name);

struct Configuration {
  int ranks = 0;  ///< GPUs
  int batch = 0;  ///< samples a step: of a worker (UNET3D, BERT), of the job (DLRM, our own runs)
  auto operator<=>(const Configuration&) const = default;
};

/// "UNET3D_1g_4b", "BERT_8GPU_6batch", "dlrm_4gpu_32kbatch_r2": the numbers before g|gpu(s) and b|batch,
/// whole.
std::optional<Configuration> configuration_in_name(const std::string& name);

/// One rank of one of our own runs.
struct RankSteps {
  std::string run;
  int rank = 0, stage = -1;
  Metrics metrics;
};

struct StepData {
  std::map<Configuration, Metrics> by_configuration;  ///< with throughputs
  std::vector<RankSteps> ranks;                       ///< of our own runs only
  std::int64_t files = 0, events = 0;
  std::map<std::string, std::int64_t> dropped;  ///< why and how many events or steps
  std::vector<std::string> notes;
};

struct StepDataOptions {
  StepSource source = StepSource::Unet3d;
  std::vector<std::string> folders;
  std::optional<int> ranks, batch;  ///< of all runs, instead of a manifest or names
  std::string manifest;             ///< JSON: {"runs": [{"path": "raw_data/a.json", "ranks": 2, "batch": 4}]}
  bool keep_warm_up = false;
  /// DLIO emulates a workload whose steps load batches (dlrm, bert) or samples (unet3d): its reader's metric.
  bool by_sample = true;
};

/// Warm-up: UNET3D and DLIO leave out the first epoch, and of each epoch (DLRM: of each training) what comes
/// before the end of its first step; our own runs their first step. Zero durations are left out. Problem: no
/// files, a configuration that nothing tells, one that contradicts the log (world_size), a log of another
/// workload, no step left.
Result<StepData> read_step_data(const StepDataOptions& options);

/// Rounded to 6 decimals of a second, as the kit keeps durations.
double kit_seconds(double nanoseconds);

/// Returns the text that json.dump(indent=4) of Python writes. indent < 0: one line with ", " and ": ".
std::string python_json(const Json& json, int indent);

/// {ranks: {batch: {metric: [...]}}}.
Json all_data_json(const StepData& data);

/// The kit's table. Columns: mean, std, q1, median, q3 (BERT: mean, median, std, q1, q3), five decimals.
std::string step_analysis(const StepData& data, const std::string& label, bool bert_columns);

/// {ranks: {batch: {metric: {median, mean, std, q1, q3}}}} of BERT_plotting_data.json.
Json plotting_data_json(const StepData& data);
/// dlio_sleep_times.json: of all_compute.
Json sleep_times_json(const StepData& data);
/// Per rank: the summary of each metric, and by how much the slowest rank is behind the mean.
Json ranks_json(const StepData& data);

/// The kit's fits of compute time: trimmed normals and their regressions.
struct KitFits {
  std::map<Configuration, std::pair<double, double>> normals;  ///< mean and population std
  Plane mean, std;                                             ///< on (ranks, batch)
};
Result<KitFits> kit_fits(const StepData& data);
Json compute_time_fit_json(const KitFits& fits);
std::string distribution_fits_text(const KitFits& fits);

}  // namespace millrace
