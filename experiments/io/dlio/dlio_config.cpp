#include "experiments/io/dlio/dlio_config.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>

#include "driver/cli/home_path.h"
#include "runtime/base/files.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

/// One value with the place where it stands, read with a type; problems are collected.
class Value {
 public:
  Value(const Json& json, std::string key, Problems& problems)
      : json_(json), key_(std::move(key)), problems_(problems) {}

  const Json& json() const { return json_; }
  const std::string& key() const { return key_; }
  void wrong(const std::string& what, const std::string& hint = {}) const {
    problems_.push_back({json_.where().empty() ? key_ : json_.where() + ": " + key_, what, hint});
  }
  std::string text() const {
    if (json_.is_string()) return json_.as_string();
    if (json_.is_number() || json_.kind() == Json::Kind::Bool) return json_.dump();
    return json_.is_null() ? "" : (wrong("is not a word"), "");
  }
  /// YAML 1.1 words too: the files are read by a parser of that version.
  bool boolean() const {
    if (json_.kind() == Json::Kind::Bool) return json_.as_bool();
    const std::string word = json_.is_string() ? json_.as_string() : "";
    for (const char* yes : {"True", "TRUE", "yes", "Yes", "on", "On"}) {
      if (word == yes) return true;
    }
    for (const char* no : {"False", "FALSE", "no", "No", "off", "Off"}) {
      if (word == no) return false;
    }
    wrong("is neither true nor false");
    return false;
  }
  double number(double low, double high) const {
    double value = 0;
    if (json_.is_number()) {
      value = json_.as_double();
    } else {
      return wrong("is not a number"), low;
    }
    if (!(value >= low && value <= high))
      wrong("is " + json_.dump() + ", expected " + Json(low).dump() + " to " + Json(high).dump());
    return value;
  }
  std::int64_t integer(std::int64_t low, std::int64_t high) const {
    const double value = number(static_cast<double>(low), static_cast<double>(high));
    if (value != std::floor(value)) wrong("is " + json_.dump() + ", expected a whole number");
    return json_.kind() == Json::Kind::Int ? json_.as_int()
                                           : static_cast<std::int64_t>(std::clamp(value, -9e18, 9e18));
  }
  std::vector<std::int64_t> integers() const {
    std::vector<std::int64_t> values;
    if (!json_.is_array()) return wrong("is not a list of numbers"), values;
    for (const Json& item : json_.items())
      values.push_back(Value(item, key_, problems_).integer(1, INT64_MAX / 4));
    return values;
  }
  TimeSpec time() const {
    Result<TimeSpec> spec = parse_time_spec(json_, key_);
    if (spec) return *spec;
    append(problems_, spec.problems());
    return {};
  }
  /// Index of the word in `words`; a problem that lists them if it is none.
  int one_of(const std::vector<std::string>& words) const {
    std::string word = text();
    std::transform(word.begin(), word.end(), word.begin(), [](unsigned char c) { return std::tolower(c); });
    const auto found = std::find(words.begin(), words.end(), word);
    if (found != words.end()) return static_cast<int>(found - words.begin());
    std::string all;
    for (const std::string& w : words) all += (all.empty() ? "" : ", ") + w;
    wrong("is '" + word + "'", "one of " + all);
    return 0;
  }

 private:
  const Json& json_;
  std::string key_;
  Problems& problems_;
};

using Setter = void (*)(DlioConfig&, const Value&);
enum class Effect { Some, None, Refused };
struct Key {
  const char* path;
  Setter set;
  Effect effect = Effect::Some;
  const char* why = "";  ///< of None and Refused
};

constexpr std::int64_t kMany = std::int64_t{1} << 50;
constexpr double kTime = 1e6;

int datatype_bytes(const Value& v) {
  static const std::vector<std::string> names{"fp16", "bf16", "fp32", "fp64", "int8", "uint8", "fp8"};
  static const int bytes[] = {2, 2, 4, 8, 1, 1, 1};
  return bytes[v.one_of(names)];
}

Shuffle shuffle_of(const Value& v) {
  // YAML 1.1 reads a bare `off` as false.
  if (v.json().kind() == Json::Kind::Bool && !v.json().as_bool()) return Shuffle::Off;
  return static_cast<Shuffle>(v.one_of({"off", "seed", "random"}));
}

void stdev_of(TimeSpec& time, const Value& v) {
  const double stdev = v.number(0, kTime);
  if (time.kind == TimeSpec::Kind::Constant) time = {.kind = TimeSpec::Kind::Normal, .a = time.a};
  if (time.kind == TimeSpec::Kind::Normal) time.b = stdev;
}

constexpr const char* kPython = "names a Python class";
constexpr const char* kNoMpi = "there is one way to open files here";
constexpr const char* kOneProcess = "readers are threads here";

// Alphabetical by section as DLIO documents them. `_stdev` keys stand behind those that they spread.
constexpr Key kKeys[] = {
    {"framework", nullptr, Effect::None, "the loop is the same for all frameworks"},
    {"model.name", [](DlioConfig& c, const Value& v) { c.model.name = v.text(); }},
    {"model.type", [](DlioConfig& c, const Value& v) { c.model.type = v.text(); }},
    {"model.model_size_bytes", [](DlioConfig& c, const Value& v) { c.model.size_bytes = v.integer(0, kMany); }},
    {"model.model_size", [](DlioConfig& c, const Value& v) { c.model.size_bytes = v.integer(0, kMany); }},
    {"model.model_datatype",
     [](DlioConfig& c, const Value& v) { c.model.model_datatype_bytes = datatype_bytes(v), c.model.model_datatype = v.text(); }},
    {"model.optimizer_datatype",
     [](DlioConfig& c, const Value& v) { c.model.optimizer_datatype_bytes = datatype_bytes(v), c.model.optimizer_datatype = v.text(); }},
    {"model.optimization_groups", [](DlioConfig& c, const Value& v) { c.model.optimization_groups = v.integers(); }},
    {"model.num_layers", [](DlioConfig& c, const Value& v) { c.model.num_layers = v.integer(-1, 1'000'000); }},
    {"model.layer_parameters", [](DlioConfig& c, const Value& v) { c.model.layer_parameters = v.integers(); }},
    {"model.parallelism.tensor", [](DlioConfig& c, const Value& v) { c.model.tensor = v.integer(1, 65536); }},
    {"model.parallelism.pipeline", [](DlioConfig& c, const Value& v) { c.model.pipeline = v.integer(1, 65536); }},
    {"model.parallelism.data", [](DlioConfig& c, const Value& v) { c.model.data = v.integer(-1, 65536); }},
    {"model.parallelism.zero_stage", [](DlioConfig& c, const Value& v) { c.model.zero_stage = v.integer(0, 3); }},
    {"model.transformer.hidden_size", [](DlioConfig& c, const Value& v) { c.model.hidden = v.integer(1, 1 << 24); }},
    {"model.transformer.ffn_hidden_size", [](DlioConfig& c, const Value& v) { c.model.ffn_hidden = v.integer(1, 1 << 26); }},
    {"model.transformer.vocab_size", [](DlioConfig& c, const Value& v) { c.model.vocabulary = v.integer(1, 1 << 26); }},
    {"model.transformer.num_attention_heads", [](DlioConfig& c, const Value& v) { c.model.heads = v.integer(1, 1 << 20); }},
    {"model.transformer.num_kv_heads", [](DlioConfig& c, const Value& v) { c.model.kv_heads = v.integer(1, 1 << 20); }},
    {"workflow.generate_data", [](DlioConfig& c, const Value& v) { c.workflow.generate_data = v.boolean(); }},
    {"workflow.train", [](DlioConfig& c, const Value& v) { c.workflow.train = v.boolean(); }},
    {"workflow.evaluation", [](DlioConfig& c, const Value& v) { c.workflow.evaluation = v.boolean(); }},
    {"workflow.checkpoint", [](DlioConfig& c, const Value& v) { c.workflow.checkpoint = v.boolean(); }},
    {"workflow.profiling",
     [](DlioConfig&, const Value& v) {
       if (v.boolean()) v.wrong("is true: no profiler is started here", "trace the run from outside, or leave it out");
     }},
    {"workflow.debug", nullptr, Effect::None, "there is one kind of log"},
    {"storage.storage_type",
     [](DlioConfig&, const Value& v) {
       if (const std::string type = v.text(); type != "local_fs" && type != "parallel_fs")
         v.wrong("is '" + type + "', which is not supported", "local_fs or parallel_fs: mount the store as a file system");
     }},
    {"storage.storage_root", [](DlioConfig& c, const Value& v) { c.dataset.storage_root = v.text(); }},
    {"storage.storage_options", nullptr, Effect::None, "file systems have none"},
    {"dataset.format",
     [](DlioConfig& c, const Value& v) {
       const auto format = sample_format_named(v.text());
       if (!format) v.wrong("is '" + v.text() + "', which is not supported", "npz, npy, tfrecord, csv, jpeg, png, hdf5, indexed_binary, mmap_indexed_binary or synthetic");
       c.dataset.format = format.value_or(SampleFormat::Npz);
     }},
    {"dataset.data_folder", [](DlioConfig& c, const Value& v) { c.dataset.data_folder = v.text(); }},
    {"dataset.num_files_train", [](DlioConfig& c, const Value& v) { c.dataset.num_files_train = v.integer(0, 1'000'000'000); }},
    {"dataset.num_files_eval", [](DlioConfig& c, const Value& v) { c.dataset.num_files_eval = v.integer(0, 1'000'000'000); }},
    {"dataset.num_samples_per_file", [](DlioConfig& c, const Value& v) { c.dataset.num_samples_per_file = v.integer(1, 10'000'000'000); }},
    {"dataset.num_subfolders_train", [](DlioConfig& c, const Value& v) { c.dataset.num_subfolders_train = v.integer(0, 1'000'000); }},
    {"dataset.num_subfolders_eval", [](DlioConfig& c, const Value& v) { c.dataset.num_subfolders_eval = v.integer(0, 1'000'000); }},
    {"dataset.file_prefix", [](DlioConfig& c, const Value& v) { c.dataset.file_prefix = v.text(); }},
    {"dataset.record_length_bytes", [](DlioConfig& c, const Value& v) { c.dataset.record_length = v.number(1, 1e13); }},
    {"dataset.record_length_bytes_stdev", [](DlioConfig& c, const Value& v) { c.dataset.record_length_stdev = v.number(0, 1e13); }},
    {"dataset.record_length_bytes_resize", nullptr, Effect::None, "samples are handed on as they are read"},
    {"dataset.record_dims", [](DlioConfig& c, const Value& v) { c.dataset.record_dims = v.integers(); }},
    {"dataset.record_element_type",
     [](DlioConfig& c, const Value& v) {
       const auto element = element_named(v.text());
       if (!element) v.wrong("is '" + v.text() + "'", "a type of NumPy: uint8, int32, float32, ...");
       c.dataset.element = element.value_or(Element::UInt8);
     }},
    {"dataset.record_element_bytes", nullptr, Effect::None, "record_element_type says it"},
    {"dataset.compression",
     [](DlioConfig& c, const Value& v) {
       const std::string word = v.json().is_null() ? "none" : v.text();
       if (word == "lzf" || word == "bz2" || word == "xz") return v.wrong("is '" + word + "', which is not supported", "none, gzip (hdf5) or zip (npz)");
       c.dataset.compression = static_cast<SampleCompression>(v.one_of({"none", "gzip", "zip"}));
     }},
    {"dataset.compression_level", [](DlioConfig& c, const Value& v) { c.dataset.compression_level = v.integer(0, 9); }},
    {"dataset.enable_chunking", [](DlioConfig& c, const Value& v) { c.dataset.enable_chunking = v.boolean(); }},
    {"dataset.chunk_size", [](DlioConfig& c, const Value& v) { c.dataset.chunk_size = v.integer(0, kMany); }},
    {"dataset.generation_buffer_size", nullptr, Effect::None, "files are written through a buffer of 1 MiB"},
    {"dataset.keep_files", [](DlioConfig& c, const Value& v) { c.dataset.keep_files = v.boolean(); }},
    {"dataset.hdf5.chunk_dims", [](DlioConfig& c, const Value& v) { c.dataset.chunk_dims = v.integers(); }},
    {"dataset.hdf5.num_dset_per_record", [](DlioConfig& c, const Value& v) { c.dataset.sets_per_record = v.integer(1, 10'000); }},
    {"dataset.hdf5.max_shape", nullptr, Effect::Refused, "data sets that can grow"},
    {"reader.data_loader",
     [](DlioConfig& c, const Value& v) {
       const std::string loader = v.text();
       c.reader.synthetic = loader == "synthetic";
       if (loader != "tensorflow" && loader != "pytorch" && loader != "synthetic")
         v.wrong("is '" + loader + "', which is not supported", "pytorch, tensorflow (both are one loader here) or synthetic");
     }},
    {"reader.data_loader_classname", nullptr, Effect::Refused, kPython},
    {"reader.reader_classname", nullptr, Effect::Refused, kPython},
    {"reader.data_loader_sampler", nullptr, Effect::None, "every sample is taken once whatever the sampler"},
    {"reader.batch_size", [](DlioConfig& c, const Value& v) { c.reader.batch_size = v.integer(1, 1'000'000'000); }},
    {"reader.batch_size_eval", [](DlioConfig& c, const Value& v) { c.reader.batch_size_eval = v.integer(1, 1'000'000'000); }},
    {"reader.read_threads", [](DlioConfig& c, const Value& v) { c.reader.read_threads = v.integer(0, 4096); }},
    {"reader.computation_threads", nullptr, Effect::None, "waiting needs no threads"},
    {"reader.prefetch_size", [](DlioConfig& c, const Value& v) { c.reader.prefetch_size = v.integer(0, 1'000'000); }},
    {"reader.file_shuffle", [](DlioConfig& c, const Value& v) { c.reader.file_shuffle = shuffle_of(v); }},
    {"reader.sample_shuffle", [](DlioConfig& c, const Value& v) { c.reader.sample_shuffle = shuffle_of(v); }},
    {"reader.shuffle_size", nullptr, Effect::None, "shuffling is over all samples, not within a buffer"},
    {"reader.read_type", [](DlioConfig& c, const Value& v) { c.reader.in_memory = v.one_of({"on_demand", "memory"}) == 1; }},
    {"reader.file_access",
     [](DlioConfig&, const Value& v) {
       if (const std::string access = v.text(); access != "multi" && access != "shared" && access != "posix")
         v.wrong("is '" + access + "', which is not supported (no MPI)", "multi or shared");
     }},
    {"reader.transfer_size", [](DlioConfig& c, const Value& v) { c.reader.transfer_size = v.json().is_null() ? 0 : v.integer(1, kMany); }},
    {"reader.preprocess_time", [](DlioConfig& c, const Value& v) { c.reader.preprocess_time = v.time(); }},
    {"reader.preprocess_time_stdev", [](DlioConfig& c, const Value& v) { stdev_of(c.reader.preprocess_time, v); }},
    {"reader.odirect", [](DlioConfig& c, const Value& v) { c.reader.odirect = v.boolean(); }},
    {"reader.pin_memory", nullptr, Effect::None, "nothing is copied to a device"},
    {"reader.multiprocessing_context", nullptr, Effect::None, kOneProcess},
    {"reader.dont_use_mmap", nullptr, Effect::None, kNoMpi},
    {"reader.transformed_record_dims", nullptr, Effect::None, "samples are handed on as they are read"},
    {"reader.transformed_record_element_type", nullptr, Effect::None, "samples are handed on as they are read"},
    {"train.epochs", [](DlioConfig& c, const Value& v) { c.train.epochs = v.integer(1, 1'000'000); }},
    {"train.total_training_steps", [](DlioConfig& c, const Value& v) { c.train.total_training_steps = v.integer(-1, kMany); }},
    {"train.computation_time", [](DlioConfig& c, const Value& v) { c.train.computation_time = v.time(); }},
    {"train.computation_time_stdev", [](DlioConfig& c, const Value& v) { stdev_of(c.train.computation_time, v); }},
    {"train.seed", [](DlioConfig& c, const Value& v) { c.train.seed = v.integer(0, INT64_MAX / 4); }},
    {"train.seed_change_epoch", [](DlioConfig& c, const Value& v) { c.train.seed_change_epoch = v.boolean(); }},
    {"evaluation.eval_time", [](DlioConfig& c, const Value& v) { c.evaluation.eval_time = v.time(); }},
    {"evaluation.eval_time_stdev", [](DlioConfig& c, const Value& v) { stdev_of(c.evaluation.eval_time, v); }},
    {"evaluation.eval_after_epoch", [](DlioConfig& c, const Value& v) { c.evaluation.eval_after_epoch = v.integer(1, 1'000'000); }},
    {"evaluation.epochs_between_evals", [](DlioConfig& c, const Value& v) { c.evaluation.epochs_between_evals = v.integer(1, 1'000'000); }},
    {"checkpoint.checkpoint_folder", [](DlioConfig& c, const Value& v) { c.checkpoint.folder = v.text(); }},
    {"checkpoint.checkpoint_after_epoch", [](DlioConfig& c, const Value& v) { c.checkpoint.after_epoch = v.integer(1, 1'000'000); }},
    {"checkpoint.epochs_between_checkpoints", [](DlioConfig& c, const Value& v) { c.checkpoint.epochs_between = v.integer(1, 1'000'000); }},
    {"checkpoint.steps_between_checkpoints", [](DlioConfig& c, const Value& v) { c.checkpoint.steps_between = v.integer(-1, kMany); }},
    {"checkpoint.type", [](DlioConfig& c, const Value& v) { c.checkpoint.all_ranks = v.one_of({"rank_zero", "all_ranks"}) == 1; }},
    {"checkpoint.mode", [](DlioConfig& c, const Value& v) { c.checkpoint.subset = v.one_of({"default", "subset"}) == 1; }},
    {"checkpoint.checkpoint_mechanism_classname", nullptr, Effect::Refused, kPython},
    {"checkpoint.fsync", [](DlioConfig& c, const Value& v) { c.checkpoint.fsync = v.boolean(); }},
    {"checkpoint.rank_sync", [](DlioConfig& c, const Value& v) { c.checkpoint.rank_sync = v.boolean(); }},
    {"checkpoint.recovery_rank_shift", [](DlioConfig& c, const Value& v) { c.checkpoint.recovery_rank_shift = v.boolean(); }},
    {"checkpoint.time_between_checkpoints", [](DlioConfig& c, const Value& v) { c.checkpoint.time_between = v.number(-1, kTime); }},
    {"checkpoint.num_checkpoints_write", [](DlioConfig& c, const Value& v) { c.checkpoint.num_write = v.integer(-1, 1'000'000); }},
    {"checkpoint.num_checkpoints_read", [](DlioConfig& c, const Value& v) { c.checkpoint.num_read = v.integer(-1, 1'000'000); }},
    {"checkpoint.randomize_tensor", [](DlioConfig& c, const Value& v) { c.checkpoint.randomize = v.boolean(); }},
    {"checkpoint.ksm", nullptr, Effect::None, "a checkpoint is written from one small buffer"},
    {"output.folder", [](DlioConfig& c, const Value& v) { c.output.folder = v.text(); }},
    {"output.log_file", [](DlioConfig& c, const Value& v) { c.output.log_file = v.text(); }},
    {"output.metric.exclude_start_steps", [](DlioConfig& c, const Value& v) { c.output.exclude_start = v.integer(0, kMany); }},
    {"output.metric.exclude_end_steps", [](DlioConfig& c, const Value& v) { c.output.exclude_end = v.integer(0, kMany); }},
    {"profiling.profiler", nullptr, Effect::None, "workflow.profiling is what would start it"},
    {"profiling.iostat_devices", nullptr, Effect::None, "workflow.profiling is what would start it"},
    {"metric.au", [](DlioConfig& c, const Value& v) { c.expected_au = v.number(0, 1); }},
};

const Key* find_key(const std::string& path) {
  const auto* found =
      std::find_if(std::begin(kKeys), std::end(kKeys), [&](const Key& key) { return path == key.path; });
  return found == std::end(kKeys) ? nullptr : found;
}

bool is_section(const std::string& path) {
  return std::any_of(std::begin(kKeys), std::end(kKeys),
                     [&](const Key& key) { return std::string_view(key.path).starts_with(path + "."); });
}

struct Leaf {
  std::string path;
  const Json* json;
};

/// Every key of the tree that is no section.
void collect(const Json& tree, const std::string& prefix, std::vector<Leaf>& leaves, Problems& problems) {
  for (const auto& [name, value] : tree.members()) {
    const std::string path = prefix.empty() ? name : prefix + "." + name;
    if (find_key(path)) {
      leaves.push_back({path, &value});
    } else if (is_section(path)) {
      if (value.is_object()) {
        collect(value, path, leaves, problems);
      } else if (!value.is_null()) {
        problems.push_back({value.where(), "workload." + path + " is a section, expected keys in it", {}});
      }
    } else {
      std::vector<std::string> names;
      for (const Key& key : kKeys) names.emplace_back(key.path);
      // A file of something else has hundreds: a few hints are enough.
      const auto nearest = problems.size() < 20 ? nearest_name(path, names) : std::nullopt;
      problems.push_back(
          {value.where().empty() ? "workload." + path : value.where() + ": workload." + path,
           "is not a key of DLIO",
           nearest ? "did you mean " + *nearest + "?" : "`millrace dlio --help` says where keys are listed"});
    }
  }
}

/// Workloads with checkpoints whose data alone are asked for (DLIO's own words are generate_data=True
/// train=False): without a number of checkpoints there is nothing else to do.
void drop_checkpoints_of_generating(DlioConfig& c) {
  if (!c.workflow.generate_data || !c.only_checkpoints()) return;
  if (c.checkpoint.num_write > 0 || c.checkpoint.num_read > 0) return;
  c.workflow.checkpoint = false;
  c.notes.push_back("only data are generated: no number of checkpoints is given");
}

void check_together(DlioConfig& c, Problems& problems) {
  const auto wrong = [&](const char* key, const std::string& what, const std::string& hint) {
    problems.push_back({std::string("workload.") + key, what, hint});
  };
  const SampleFormat format = c.dataset.format;
  const bool image = format == SampleFormat::Jpeg || format == SampleFormat::Png;
  const bool single = image || format == SampleFormat::Csv;
  if (format == SampleFormat::Synthetic) c.reader.synthetic = true;
  if (image && c.dataset.num_samples_per_file != 1)
    wrong("dataset.num_samples_per_file", "is more than 1, but an image file holds one sample",
          "set it to 1");
  if (single && c.dataset.element != Element::UInt8)
    wrong("dataset.record_element_type", "of images and csv is uint8", "leave it out");
  if (image && !c.dataset.record_dims.empty() && c.dataset.record_dims.size() != 2)
    wrong("dataset.record_dims", "of an image are two", "height and width");
  if (c.dataset.compression == SampleCompression::Zip && format != SampleFormat::Npz)
    wrong("dataset.compression", std::string("zip is not for ") + to_string(format), "npz has it");
  if (c.dataset.compression == SampleCompression::Gzip && format != SampleFormat::Hdf5)
    wrong("dataset.compression", std::string("gzip is not for ") + to_string(format), "hdf5 has it");
  if (c.reader.odirect && !reads_directly(format))
    wrong("reader.odirect", std::string("is not for ") + to_string(format),
          "npz, npy, tfrecord and indexed_binary read past the page cache");
  if (c.workflow.train && c.samples(true) == 0)
    wrong("dataset.num_files_train", "is 0, but workflow.train is true", "say how many files there are");
  if (c.workflow.evaluation && c.samples(false) == 0)
    wrong("dataset.num_files_eval", "is 0, but workflow.evaluation is true", "say how many files there are");
  if (c.workflow.evaluation && !c.workflow.train)
    wrong("workflow.evaluation", "is true, but workflow.train is not",
          "evaluation follows the epochs of training");
  if (c.model.zero_stage == 3 && c.model.pipeline > 1)
    wrong("model.parallelism.zero_stage", "3 does not go with a pipeline",
          "set model.parallelism.pipeline to 1");
  if (c.checkpoint.subset && c.model.data < 1)
    wrong("checkpoint.mode", "is subset, but model.parallelism.data is not given",
          "say how many data-parallel ranks the whole job has");
  if (!c.workflow.generate_data && !c.workflow.train && !c.workflow.checkpoint)
    wrong("workflow", "has nothing to do", "set generate_data, train or checkpoint to true");
  if (c.only_checkpoints() && c.checkpoint.num_write <= 0 && c.checkpoint.num_read <= 0)
    wrong("checkpoint.num_checkpoints_write",
          "is not given, nor is num_checkpoints_read: there is nothing to do", "for example 10");
  if (c.checkpoint.steps_between == 0)
    wrong("checkpoint.steps_between_checkpoints", "is 0", "-1 for none, or at least 1");
  if (c.dataset.sets_per_record > 1 && !c.dataset.record_dims.empty() &&
      c.dataset.record_dims[0] < c.dataset.sets_per_record)
    wrong("dataset.hdf5.num_dset_per_record", "is more than the records' first side",
          "at most record_dims[0]");
  double bytes = static_cast<double>(info_of(c.dataset.element).bytes);
  for (const std::int64_t side : c.dataset.record_dims) bytes *= static_cast<double>(side);
  if (!c.dataset.record_dims.empty() && bytes > 1e13)
    wrong("dataset.record_dims", "make a record of more than 10 TB", {});
  if (!c.dataset.record_dims.empty()) c.dataset.record_length = bytes;
  if (static_cast<double>(c.dataset.num_files_train) * static_cast<double>(c.dataset.num_samples_per_file) >
      1e15)
    wrong("dataset.num_samples_per_file", "makes more than 10^15 samples", {});
  if (static_cast<double>(c.reader.batch_size) > 1e9) wrong("reader.batch_size", "is above 10^9", {});
}

Result<DlioConfig> read_tree(Json tree, const std::string& workload,
                             const std::vector<std::string>& overrides, Problems problems) {
  DlioConfig config;
  config.workload = workload;
  config.overrides = overrides;
  std::vector<Leaf> leaves;
  collect(tree, "", leaves, problems);
  // The table's order puts a spread after the time that it spreads.
  for (const Key& key : kKeys) {
    const auto leaf =
        std::find_if(leaves.begin(), leaves.end(), [&](const Leaf& l) { return l.path == key.path; });
    if (leaf == leaves.end()) continue;
    const Value value(*leaf->json, "workload." + leaf->path, problems);
    if (key.effect == Effect::None) config.notes.push_back(value.key() + " has no effect: " + key.why);
    if (key.effect == Effect::Refused && !leaf->json->is_null() &&
        !(leaf->json->is_array() && leaf->json->size() == 0))
      value.wrong(std::string("is not supported: ") + key.why, "leave it out");
    if (leaf->path == "model.model_size")
      config.notes.push_back("workload.model.model_size is read as model_size_bytes");
    if (key.effect == Effect::Some) key.set(config, value);
  }
  drop_checkpoints_of_generating(config);
  if (problems.empty()) check_together(config, problems);
  if (!problems.empty()) return problems;
  config.tree = std::move(tree);
  return config;
}

/// One override, applied to the tree.
void apply_override(Json& tree, const std::string& word, Problems& problems) {
  std::string text = word;
  const bool removes = text.starts_with('~');
  text.erase(0, std::min(text.find_first_not_of("+~"), text.size()));
  const std::size_t equals = text.find('=');
  std::string path = text.substr(0, equals);
  if (path.starts_with("workload.")) path.erase(0, 9);
  if (path.empty() || (!removes && equals == std::string::npos)) {
    problems.push_back({word, "is no override", "for example ++workload.reader.batch_size=4"});
    return;
  }
  Json value;
  if (!removes) {
    const std::string written = text.substr(equals + 1);
    // YAML reads `a: b` as a mapping; a path with a colon is a word.
    const Result<Json> parsed = parse_yaml(written.empty() ? "null" : written, word);
    if (!parsed) return append(problems, parsed.problems());
    value = *parsed;
    value.set_where({});
  }
  if (!find_key(path) && !is_section(path)) {
    std::vector<std::string> names;
    for (const Key& key : kKeys) names.emplace_back(key.path);
    const auto nearest = nearest_name(path, names);
    problems.push_back({word, "workload." + path + " is not a key of DLIO",
                        nearest ? "did you mean " + *nearest + "?" : ""});
    return;
  }
  Json* place = &tree;
  for (std::size_t at = 0; at <= path.size();) {
    const std::size_t dot = std::min(path.find('.', at), path.size());
    if (!place->is_object()) *place = Json::object();
    place = &(*place)[path.substr(at, dot - at)];
    at = dot + 1;
  }
  // A removed key is one that was never given: null reads as that below.
  *place = std::move(value);
}

/// Null keys are absent ones, as Hydra's `key:` without a value.
Json without_nulls(const Json& tree) {
  Json result = Json::object();
  for (const auto& [name, value] : tree.members()) {
    if (value.is_null()) continue;
    Json kept = value.is_object() ? without_nulls(value) : value;
    kept.set_where(value.where());
    result.append_member(name, std::move(kept));
  }
  result.set_where(tree.where());
  return result;
}

Result<DlioConfig> overridden(Json tree, const std::string& workload,
                              const std::vector<std::string>& overrides) {
  Problems problems;
  for (const std::string& word : overrides) apply_override(tree, word, problems);
  return read_tree(without_nulls(tree), workload, overrides, std::move(problems));
}

Result<Json> sections_of(Result<Json> json, const std::string& name) {
  if (!json) return json.problems();
  if (json->is_object() && json->size() == 1 && json->find("workload")) {
    Json inner = *json->find("workload");
    json = Result<Json>(std::move(inner));
  }
  if (!json->is_object()) return Problem{name, "has no sections", "model:, dataset:, reader:, train: ..."};
  return with_home(*std::move(json));
}

}  // namespace

Result<DlioConfig> parse_dlio_config(std::string_view text, const std::string& name,
                                     const std::vector<std::string>& overrides) {
  Result<Json> tree = sections_of(parse_yaml(text, name), name);
  if (!tree) return tree.problems();
  return overridden(std::move(*tree), name, overrides);
}

Result<DlioConfig> load_dlio_config(const std::vector<std::string>& words) {
  std::string workload;
  std::vector<std::string> overrides;
  Problems problems;
  for (const std::string& word : words) {
    if (word.starts_with("workload=")) {
      if (!workload.empty()) problems.push_back({word, "is the second workload", "give one"});
      workload = word.substr(9);
    } else {
      overrides.push_back(word);
    }
  }
  if (workload.empty()) workload = "default";  // as DLIO
  if (!problems.empty()) return problems;
  if (std::optional<Json> shipped = shipped_workload(workload))
    return overridden(std::move(*shipped), workload, overrides);
  std::error_code error;
  if (!fs::exists(workload, error)) {
    const auto nearest = nearest_name(workload, shipped_workloads());
    std::string all, longer;  // names that begin as `workload` does: unet3d of unet3d_h100
    for (const std::string& name : shipped_workloads()) {
      all += (all.empty() ? "" : ", ") + name;
      if (name.starts_with(workload)) longer += (longer.empty() ? "" : ", ") + name;
    }
    return Problem{"workload=" + workload, "is neither a shipped workload nor a file",
                   nearest           ? "did you mean " + *nearest + "?"
                   : !longer.empty() ? "shipped are " + longer
                                     : "shipped are " + all};
  }
  Result<Json> tree = sections_of(read_yaml(workload), workload);
  if (!tree) return tree.problems();
  return overridden(std::move(*tree), workload, overrides);
}

std::string data_path(const DlioConfig& config) {
  const fs::path folder = config.dataset.data_folder;
  return folder.is_absolute() ? folder.string() : (fs::path(config.dataset.storage_root) / folder).string();
}

}  // namespace millrace
