// The flags of the other commands that compute: `profile`, `models`, `evaluate`, `predict`, `fuse` and
// `split`. The commands need LibTorch and this header does not, so `millrace` prints their --help, and a job
// file has the same keys.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "driver/flags/train_flags.h"
#include "runtime/profile/profile_options.h"

namespace millrace {

inline constexpr int kMostProfileRanks = 1024;

struct ProfileFlags {
  ModelFlags model;
  ProfileOptions options{.microbatch = 8};
  std::string data;  ///< measure with its microbatches; empty: random ones
  int microbatches = 1;
  int measured_microbatches = 12;
  int length_buckets = 0;
  std::vector<int> jobs;  ///< of the arrays to measure in addition to a single job
  ArrayKernels kernels = ArrayKernels::Auto;
  int threads = 1;
  ComputeDevice device = ComputeDevice::Cpu;
  std::string out;
  OutputFormat format = OutputFormat::Text;
  std::string cluster;
  std::optional<int> ranks;
  std::chrono::milliseconds deadline{100'000};
  bool network = false;
  // -- of the network --
  std::string job;  ///< the job between whose hosts to measure; empty: see `cluster` and `ranks`
  Backend backend = Backend::Auto;
  bool encrypt = false;
  int round_trips = 200;
  Bytes largest = 4 * kMiB;
  double tolerance = 0.25;
};

struct ModelsFlags {
  std::string model;  ///< empty: all
  OutputFormat format = OutputFormat::Text;
};

/// `millrace fuse` and `millrace split`.
struct JobFilesFlags {
  std::string out;
  bool overwrite = false;
  int new_jobs = 0;  ///< of fuse
};

/// `millrace evaluate`: flags of `train`, and the weights to judge.
struct EvaluateFlags {
  TrainFlags train;
  std::string weights;
};

enum class PredictFormat { Text, Csv, Json };
constexpr auto names_of(PredictFormat) {
  return std::to_array<std::string_view>({"text", "csv", "json"});
}

struct PredictFlags {
  TrainFlags train;  ///< the model, how batches are made, where they are computed
  std::string weights;
  std::string class_names;  ///< a data folder or a file; empty: classes have numbers only
  int top = 5;
  std::string outputs;  ///< NPY file for the outputs themselves; empty: none
  PredictFormat format = PredictFormat::Text;
};

CommandSpec evaluate_spec(EvaluateFlags& flags);
CommandSpec predict_spec(PredictFlags& flags);
CommandSpec fuse_spec(JobFilesFlags& flags);
CommandSpec split_spec(JobFilesFlags& flags);
CommandSpec fuse_spec();
CommandSpec split_spec();
CommandSpec profile_spec(ProfileFlags& flags);
CommandSpec models_spec(ModelsFlags& flags);
// These specs are for printing and looking up. Their values go nowhere.
CommandSpec evaluate_spec();
CommandSpec predict_spec();
CommandSpec profile_spec();
CommandSpec models_spec();

}  // namespace millrace
