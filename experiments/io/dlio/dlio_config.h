// DLIO's configuration: a workload (shipped or a file) and overrides, checked key by key. Every key of DLIO
// is known here: it has an effect, or is accepted without one (and said so), or is refused by name. Source:
// DLIO's documentation of its configuration.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/files/elements.h"
#include "data/files/sample_file.h"
#include "experiments/io/dlio/time_spec.h"
#include "experiments/io/generate/sample_writer.h"
#include "runtime/base/json.h"
#include "runtime/base/result.h"

namespace millrace {

enum class Shuffle { Off, Seed, Random };

struct DlioConfig {
  std::string workload;  ///< name or path
  struct {
    std::string name = "default", type;
    Bytes size_bytes = 10240;
    int model_datatype_bytes = 2, optimizer_datatype_bytes = 4;
    std::string model_datatype = "fp16", optimizer_datatype = "fp32";
    std::vector<std::int64_t> optimization_groups, layer_parameters;
    std::int64_t num_layers = -1;
    std::int64_t tensor = 1, pipeline = 1, data = -1, zero_stage = 0;
    std::int64_t hidden = 2048, ffn_hidden = 8192, vocabulary = 32000, heads = 32, kv_heads = 8;
  } model;
  struct {
    bool generate_data = false, train = true, evaluation = false, checkpoint = false;
  } workflow;
  struct {
    std::string storage_root = "./";
    std::string data_folder = "./data/";
    SampleFormat format = SampleFormat::TfRecord;
    std::int64_t num_files_train = 8, num_files_eval = 0, num_samples_per_file = 1;
    std::int64_t num_subfolders_train = 0, num_subfolders_eval = 0;
    std::string file_prefix = "img";
    double record_length = 65536, record_length_stdev = 0;
    std::vector<std::int64_t> record_dims;
    Element element = Element::UInt8;
    SampleCompression compression = SampleCompression::None;
    std::int64_t compression_level = 4;
    bool keep_files = true;
    bool enable_chunking = false;
    Bytes chunk_size = 0;
    std::vector<std::int64_t> chunk_dims;
    std::int64_t sets_per_record = 1;
  } dataset;
  struct {
    bool synthetic = false;  ///< data_loader: synthetic
    std::int64_t batch_size = 1, batch_size_eval = 1, read_threads = 1, prefetch_size = 2;
    Shuffle file_shuffle = Shuffle::Off, sample_shuffle = Shuffle::Off;
    bool in_memory = false;  ///< read_type: memory
    bool odirect = false;
    Bytes transfer_size = 0;
    TimeSpec preprocess_time;
  } reader;
  struct {
    std::int64_t epochs = 1, total_training_steps = -1, seed = 123;
    bool seed_change_epoch = true;
    TimeSpec computation_time;
  } train;
  struct {
    TimeSpec eval_time;
    std::int64_t eval_after_epoch = 1, epochs_between_evals = 1;
  } evaluation;
  struct {
    std::string folder = "./checkpoints/";
    std::int64_t after_epoch = 1, epochs_between = 1, steps_between = -1;
    bool all_ranks = false, subset = false, fsync = false, rank_sync = false, recovery_rank_shift = false;
    double time_between = -1;
    std::int64_t num_write = -1, num_read = -1;
    bool randomize = true;
  } checkpoint;
  struct {
    std::string folder, log_file = "dlio.log";
    std::int64_t exclude_start = 1, exclude_end = 0;
  } output;
  double expected_au = 0.90;

  Json tree;                           ///< sections as they were read and overridden
  std::vector<std::string> overrides;  ///< as they were given
  std::vector<std::string> notes;      ///< keys without an effect here

  bool only_generates() const {
    return workflow.generate_data && !workflow.train && !workflow.evaluation && !workflow.checkpoint;
  }
  bool only_checkpoints() const { return workflow.checkpoint && !workflow.train; }
  std::int64_t samples(bool train_split) const {
    return (train_split ? dataset.num_files_train : dataset.num_files_eval) * dataset.num_samples_per_file;
  }
};

/// `words`: `workload=NAME|FILE` and Hydra's overrides (`++workload.section.key=value`, also with one plus or
/// none;
/// `~workload.section.key` removes). All problems at once.
Result<DlioConfig> load_dlio_config(const std::vector<std::string>& words);

/// Parses the sections in `text` (YAML), for tests and fuzzing.
Result<DlioConfig> parse_dlio_config(std::string_view text, const std::string& name,
                                     const std::vector<std::string>& overrides);

/// Names of the workloads that come with it.
std::vector<std::string> shipped_workloads();
/// Their sections; nullopt: no such name.
std::optional<Json> shipped_workload(const std::string& name);

/// `data_folder` below `storage_root` if it is relative, as DLIO joins them.
std::string data_path(const DlioConfig& config);

}  // namespace millrace
