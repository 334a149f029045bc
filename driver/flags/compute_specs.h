// The flags of `millrace profile` and `millrace train`, and the structs that they fill. The commands need
// LibTorch and this header does not, so `millrace` prints their --help, and a job file has the same keys.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/files/cache_policy.h"
#include "data/files/data_kinds.h"
#include "data/files/storage_model.h"
#include "driver/cli/cli.h"
#include "driver/flags/rule_flags.h"
#include "runtime/base/array_kernels.h"
#include "runtime/base/units.h"
#include "runtime/comm/backend.h"
#include "runtime/device/compute_device.h"
#include "runtime/plan/model_options.h"
#include "runtime/plan/plan.h"
#include "runtime/profile/profile_options.h"
#include "runtime/train/train_options.h"

namespace millrace {

/// `--resume` with this: from the output folder if something is there to go on from, else begin.
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

class SharedWorld;

/// How much the times of emulated work vary.
struct EmulatedJitter {
  bool of_profile = false;  ///< as much as the profile says
  double sigma = 0;         ///< of a log-normal factor of mean 1; 0: not at all
};
/// "none", "profile" or a number.
Result<EmulatedJitter> jitter_from(const std::string& text);

/// A rank whose work takes so many times as long.
struct Straggler {
  int rank = 0;
  double factor = 1;
};
/// "RANK:FACTOR", several separated by commas.
Result<std::vector<Straggler>> stragglers_from(const std::string& text);

/// How much slower some emulated ranks are.
struct EmulatedStragglers {
  bool of_profile = false;  ///< ranks differ as those of the profile did
  std::vector<Straggler> of_ranks;
};
/// "profile", or what stragglers_from() reads.
Result<EmulatedStragglers> emulated_stragglers_from(const std::string& text);
/// Problem: a straggler that is none of `ranks` ranks.
Status check(const Straggler& straggler, int ranks);

/// Emulated devices of `--device emulated`.
struct EmulationFlags {
  std::string profile;  ///< file; empty: not given
  EmulatedClock clock = EmulatedClock::Wall;
  EmulatedPayload payload = EmulatedPayload::None;
  int devices = 0;    ///< of the job: rank r has device r modulo this; 0: each rank has one of its own
  std::string share;  ///< folder of the time lines of devices that other processes use too; empty: none do
  EmulatedJitter jitter;
  EmulatedStragglers stragglers;
  std::shared_ptr<SharedWorld> world;  ///< of jobs in one virtual time; null: the job is alone
};

/// A modelled storage from which the training data comes.
struct StorageFlags {
  std::optional<StorageSpec> storage;  ///< empty: data is read as fast as this machine does
  double cache = 0;                    ///< share of the data's bytes that a rank's cache holds
  CachePolicy policy = CachePolicy::MinIo;
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
  std::optional<int> batch;  ///< samples of a step; settle_batch() turns it into microbatches
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
  int arrays = 0;  ///< that the jobs are divided into; 0: as the plan says
  ArrayKernels kernels = ArrayKernels::Auto;
  std::vector<std::string> unfused;
  bool explain = false;
  // -- in epochs, until the data says how long one is; 0: not asked for --
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
  std::string emulate_links;  ///< file, or empty
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

inline constexpr int kMostProfileRanks = 1024;

struct ProfileFlags {
  ModelFlags model;
  ProfileOptions options{.microbatch = 8};
  std::string data;  ///< measure with its microbatches; empty: random ones
  int microbatches = 1;
  int measured_microbatches = 12;
  int length_buckets = 0;
  std::vector<int> jobs;  ///< of the arrays to measure beside a single job
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
  std::string job;  ///< the job between whose hosts to measure; empty: as `cluster` and `ranks` say
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

CommandSpec train_spec(TrainFlags& flags);
CommandSpec evaluate_spec(EvaluateFlags& flags);
CommandSpec predict_spec(PredictFlags& flags);
CommandSpec fuse_spec(JobFilesFlags& flags);
CommandSpec split_spec(JobFilesFlags& flags);
CommandSpec fuse_spec();
CommandSpec split_spec();
CommandSpec profile_spec(ProfileFlags& flags);
CommandSpec models_spec(ModelsFlags& flags);
// These specs are for printing and looking up. Their values go nowhere.
CommandSpec train_spec();
CommandSpec evaluate_spec();
CommandSpec predict_spec();
CommandSpec profile_spec();
CommandSpec models_spec();

}  // namespace millrace
