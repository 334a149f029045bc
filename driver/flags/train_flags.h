// The flags of `millrace train`, and the structs that they fill. A job file has the same keys. LibTorch-free.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/files/data_kinds.h"
#include "driver/cli/cli.h"
#include "driver/flags/emulation_flags.h"
#include "runtime/base/array_kernels.h"
#include "runtime/base/units.h"
#include "runtime/comm/backend.h"
#include "runtime/device/compute_device.h"
#include "runtime/plan/model_options.h"
#include "runtime/plan/plan.h"
#include "runtime/rules/rule_flags.h"
#include "runtime/train/train_options.h"

namespace millrace {

/// `--resume` with this: from the output folder if it has a checkpoint, else begin.
inline constexpr const char* kResumeAuto = "auto";

struct ModelFlags {
  std::string name;      ///< empty: not given
  GivenOptions options;  ///< filled by with_model_options
};

/// BLEU of a text while a run trains.
struct ScoreFlags {
  std::int64_t every = 0;               ///< epochs; 0: none
  std::string source;                   ///< the text that is translated
  std::vector<std::string> references;  ///< files, with a line for each of the source
  std::string translate;                ///< flags of `translate`
  bool lower_case = false;
  std::optional<double> target;
};

/// `--class-weights balanced`: weights from the labels of the training set.
inline constexpr const char* kBalancedClasses = "balanced";

/// The variants of a job that I/O studies compare.
enum class RunVariant {
  Original,      ///< nothing is traced
  Instrumented,  ///< every phase of every step is traced
  Sleep,         ///< traced too; waits of measured lengths in the place of the computation
  Generated      ///< traced too; generated data in the place of the real
};
constexpr auto names_of(RunVariant) {
  return std::to_array<std::string_view>({"original", "instrumented", "sleep", "generated"});
}

struct TrainFlags {
  ModelFlags model;
  TrainOptions options{.steps = 100, .microbatch = 8, .trace_first = 1};
  // -- the plan --
  std::string plan;  ///< file, or empty
  int stages = 1;
  std::string replicas = "1";
  int chunks = 0;
  bool spread_tables = false;
  std::optional<ScheduleKind> schedule;
  std::string schedule_file;
  bool recompute = false;
  int microbatches = 0;
  std::optional<int> batch;  ///< samples of a step; settle_batch() converts it to microbatches
  // -- the variant; `variant_from`: run folders or data, or empty --
  std::optional<RunVariant> variant;
  std::string variant_from;
  std::optional<double> counters;  ///< seconds between samples; 0: none; unset: as the variant has it
  bool variant_beyond = false;
  // -- files of scalars; empty: none --
  std::string tensorboard, scalars;
  // -- the data --
  std::string data = "synthetic";
  std::optional<Holdout> holdout;
  std::string augment;        ///< empty: as usual for the data
  std::string class_weights;  ///< a file, or kBalancedClasses; empty: classes weigh alike
  bool evaluate = true;
  int workers = 1;
  bool keep_last = false;
  int length_buckets = 0;
  bool random_bptt = false, rate_by_length = false;
  std::optional<std::uint64_t> data_seed;  ///< of the order of samples; else the run's
  ScoreFlags bleu;
  // -- a job array: driver/flags/job_lists.h takes the lists --
  bool fused = false;
  int jobs = 0;
  int arrays = 0;  ///< the number of arrays of the jobs; 0: the plan's
  ArrayKernels kernels = ArrayKernels::Auto;
  std::vector<std::string> unfused;
  bool explain = false;
  // -- in epochs, until the data's size is known; 0: not set --
  std::int64_t epochs = 0;
  RateInEpochs rate_in_epochs;
  // -- the process --
  int threads = 1;
  bool deterministic = false;
  bool autograd = false;
  ComputeDevice device = ComputeDevice::Cpu;
  Backend backend = Backend::Auto;
  bool encrypt = false;
  bool wire_checksum = false;
  std::chrono::milliseconds deadline{100'000};
  /// The folder in which the launcher's ranks of one host meet. Their emulated links keep the ports there.
  /// Empty: ranks are threads, or on several hosts.
  std::string store_folder;
  EmulationFlags emulation;
  StorageFlags storage;
  bool dry_run = false;
  bool cpp_frames = false;
  std::optional<Seconds> time_limit;  ///< of this process, from its start
  OutputFormat format = OutputFormat::Text;
};

/// The models' own options are appended (driver/launch/model_flags.h).
Flag model_flag(ModelFlags& model);
Flag length_buckets_flag(int& buckets);
/// The flags of the data of a single job.
std::vector<Flag> data_flags(TrainFlags& flags);
/// All flags of `train`. Each holds its effect on a run (Flag::decides).
std::vector<Flag> flags_of(TrainFlags& flags);
CommandSpec train_spec(TrainFlags& flags);
/// For printing and looking up. Its values go nowhere.
CommandSpec train_spec();

}  // namespace millrace
