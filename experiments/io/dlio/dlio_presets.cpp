// The workloads that DLIO ships, by name: what each trains on and how long a step takes, in the notation of
// overrides.
#include <sstream>

#include "experiments/io/dlio/dlio_config.h"

namespace millrace {
namespace {

struct Preset {
  const char* name;
  const char* base;  ///< a preset that this one changes, or nullptr
  const char* keys;
};

constexpr const char* kTransformer =
    "framework=pytorch model.type=transformer model.model_datatype=fp16 model.optimizer_datatype=fp32 "
    "workflow.train=false workflow.checkpoint=true checkpoint.time_between_checkpoints=5 "
    "checkpoint.num_checkpoints_write=10 checkpoint.num_checkpoints_read=10 checkpoint.fsync=true";
constexpr const char* kS3 =
    "workflow.generate_data=true workflow.checkpoint=false storage.storage_type=s3 "
    "storage.storage_root=s3pytorchconnector dataset.data_folder=s3://s3pytorchconnector "
    "dataset.record_length_bytes_stdev=0";

// A name that starts with a dot is a base only.
constexpr Preset kPresets[] = {
    {"default", nullptr,
     "model.name=default framework=pytorch workflow.evaluation=true dataset.data_folder=data/default "
     "dataset.format=npz dataset.num_files_train=64 dataset.num_files_eval=8 "
     "dataset.record_length_bytes=4096 "
     "dataset.num_subfolders_train=2 dataset.num_subfolders_eval=2 reader.data_loader=pytorch "
     "reader.batch_size=4 "
     "reader.batch_size_eval=1 train.epochs=10 train.computation_time=1 evaluation.eval_time=0.5 "
     "evaluation.epochs_between_evals=1"},
    {"bert_v100", nullptr,
     "model.name=bert model.model_size_bytes=4034713312 framework=tensorflow workflow.checkpoint=true "
     "dataset.data_folder=data/bert dataset.format=tfrecord dataset.num_files_train=500 "
     "dataset.num_samples_per_file=313532 dataset.record_length_bytes=2500 dataset.file_prefix=part "
     "train.seed_change_epoch=false train.computation_time=0.968 train.total_training_steps=1000 "
     "reader.data_loader=tensorflow reader.transfer_size=262144 reader.batch_size=48 "
     "reader.file_shuffle=seed "
     "reader.sample_shuffle=seed checkpoint.checkpoint_folder=checkpoints/bert "
     "checkpoint.steps_between_checkpoints=250"},
    {".cosmoflow", nullptr,
     "model.name=cosmoflow framework=tensorflow dataset.data_folder=data/cosmoflow "
     "dataset.num_files_train=524288 "
     "dataset.record_length_bytes=2828486 dataset.record_length_bytes_stdev=71311 dataset.format=tfrecord "
     "reader.data_loader=tensorflow reader.read_threads=4 reader.batch_size=1 train.epochs=5"},
    {".cosmoflow_shuffled", ".cosmoflow",
     "reader.file_shuffle=seed reader.sample_shuffle=seed reader.shuffle_size=2 metric.au=0.70"},
    {"cosmoflow_a100", ".cosmoflow_shuffled", "train.computation_time=0.00551"},
    {"cosmoflow_h100", ".cosmoflow_shuffled", "train.computation_time=0.00350"},
    {"cosmoflow_v100", ".cosmoflow", "model.type=CNN train.computation_time=0.00936"},
    {"dlrm", nullptr,
     "model.name=dlrm framework=pytorch dataset.data_folder=data/dlrm dataset.format=indexed_binary "
     "dataset.num_files_train=1 dataset.num_files_eval=1 dataset.num_samples_per_file=1024 "
     "dataset.record_length_bytes=671088640 reader.data_loader=pytorch reader.batch_size=1 "
     "reader.sample_shuffle=random train.computation_time=0.064296"},
    {"llama_7b", nullptr,
     "model.name=llama_7b model.num_layers=32 model.parallelism.zero_stage=1 "
     "model.transformer.vocab_size=32000 "
     "model.transformer.hidden_size=4096 model.transformer.ffn_hidden_size=11008 "
     "model.transformer.num_attention_heads=32 model.transformer.num_kv_heads=32 "
     "checkpoint.checkpoint_folder=checkpoints/llama_7b"},
    {"llama_7b_zero3", "llama_7b",
     "model.name=llama_7b_zero3 model.parallelism.zero_stage=3 "
     "checkpoint.checkpoint_folder=checkpoints/llama_7b_zero3"},
    {"llama_8b_zero3", "llama_7b",
     "model.name=llama_8b_zero3 model.parallelism.zero_stage=3 model.transformer.vocab_size=128256 "
     "model.transformer.ffn_hidden_size=14336 model.transformer.num_kv_heads=8 "
     "checkpoint.checkpoint_folder=checkpoints/llama_8b_zero3"},
    {"llama_70b", nullptr,
     "model.name=llama_70b model.num_layers=80 model.parallelism.tensor=8 model.parallelism.pipeline=4 "
     "model.parallelism.zero_stage=1 model.transformer.vocab_size=128256 model.transformer.hidden_size=8192 "
     "model.transformer.ffn_hidden_size=28672 model.transformer.num_attention_heads=128 "
     "model.transformer.num_kv_heads=8 checkpoint.checkpoint_folder=checkpoints/llama_70b"},
    {"llama_70b_zero3", "llama_70b", "model.parallelism.pipeline=1 model.parallelism.zero_stage=3"},
    {"llama_405b", "llama_70b",
     "model.name=llama_405b model.num_layers=126 model.parallelism.pipeline=32 "
     "model.transformer.hidden_size=16384 "
     "model.transformer.ffn_hidden_size=53248 checkpoint.checkpoint_folder=checkpoints/llama_405b"},
    {"llama_1t", "llama_405b",
     "model.num_layers=128 model.parallelism.pipeline=64 model.transformer.hidden_size=25872 "
     "model.transformer.ffn_hidden_size=98304 model.transformer.num_attention_heads=192 "
     "model.transformer.num_kv_heads=32 workflow.generate_data=true workflow.train=true "
     "checkpoint.checkpoint_folder=checkpoints/llama_1t"},
    {"megatron_deepspeed_LLNL", nullptr,
     "model.name=megatron_deepspeed model.type=megatron_deepspeed "
     "model.optimization_groups=[1009254400,865075200,793600] model.model_size_bytes=30102 "
     "model.num_layers=40 "
     "model.parallelism.pipeline=8 model.parallelism.tensor=4 model.parallelism.zero_stage=1 "
     "model.layer_parameters=[52583936,209715200] framework=pytorch workflow.checkpoint=true "
     "dataset.data_folder=dataset/megatron-deepspeed/ dataset.format=mmap_indexed_binary "
     "dataset.num_files_train=1 "
     "dataset.num_samples_per_file=277203535 dataset.record_length_bytes=2048 reader.data_loader=pytorch "
     "reader.batch_size=16 reader.read_threads=1 reader.file_shuffle=seed reader.sample_shuffle=seed "
     "train.epochs=3 "
     "train.computation_time=2.44 train.total_training_steps=1000 "
     "checkpoint.checkpoint_folder=checkpoints/megatron-deepspeed checkpoint.steps_between_checkpoints=1000 "
     "checkpoint.type=all_ranks"},
    {".resnet50", nullptr,
     "model.name=resnet50 model.type=cnn framework=tensorflow dataset.num_files_train=1024 "
     "dataset.num_samples_per_file=1251 dataset.record_length_bytes=114660.07 "
     "dataset.record_length_bytes_resize=150528 dataset.data_folder=data/resnet50 dataset.format=tfrecord "
     "reader.data_loader=tensorflow reader.read_threads=8 reader.computation_threads=8 reader.batch_size=64"},
    {"resnet50_a100", ".resnet50",
     "train.computation_time=0.435 train.epochs=5 reader.batch_size=400 reader.dont_use_mmap=true "
     "metric.au=0.90"},
    {"resnet50_h100", ".resnet50",
     "train.computation_time=0.224 train.epochs=5 reader.batch_size=400 metric.au=0.90"},
    {"resnet50_tf", ".resnet50", "train.computation_time=0.098"},
    {"resnet50_v100", ".resnet50",
     "train.computation_time=0.195 train.epochs=5 reader.batch_size_eval=128 reader.dont_use_mmap=true"},
    {".unet3d", nullptr,
     "model.name=unet3d model.type=cnn model.model_size_bytes=499153191 framework=pytorch "
     "workflow.checkpoint=true "
     "dataset.data_folder=data/unet3d/ dataset.format=npz dataset.num_files_train=168 "
     "dataset.record_length_bytes=146600628 dataset.record_length_bytes_stdev=68341808 "
     "dataset.record_length_bytes_resize=2097152 reader.data_loader=pytorch reader.batch_size=7 "
     "reader.read_threads=4 reader.file_shuffle=seed reader.sample_shuffle=seed train.epochs=5 "
     "checkpoint.checkpoint_folder=checkpoints/unet3d checkpoint.checkpoint_after_epoch=5 "
     "checkpoint.epochs_between_checkpoints=2"},
    {"unet3d_a100", ".unet3d", "train.computation_time=0.636 metric.au=0.90"},
    {"unet3d_h100", ".unet3d", "train.computation_time=0.323 metric.au=0.90"},
    {"unet3d_v100", ".unet3d", "train.computation_time=1.3604 reader.batch_size=4"},
    {"unet3d_a100_s3", "unet3d_a100", kS3},
    {".unet3d_h100_s3", "unet3d_h100", kS3},
    {"unet3d_h100_s3", ".unet3d_h100_s3", "train.epochs=7"},
    {".unet3d_v100_s3", "unet3d_v100", kS3},
    {"unet3d_v100_s3", ".unet3d_v100_s3", "dataset.format=npy"},
};

const Preset* find(const std::string& name) {
  for (const Preset& preset : kPresets) {
    if (name == preset.name) return &preset;
  }
  return nullptr;
}

void apply(Json& tree, const std::string& words) {
  std::istringstream stream(words);
  for (std::string word; stream >> word;) {
    const std::size_t equals = word.find('=');
    const Result<Json> value = parse_yaml(word.substr(equals + 1), "shipped workload");
    MILLRACE_CHECK(value.has_value(), word);
    Json* place = &tree;
    std::istringstream path(word.substr(0, equals));
    for (std::string part; std::getline(path, part, '.');) place = &(*place)[part];
    *place = *value;
    place->set_where({});
  }
}

void apply_preset(Json& tree, const Preset& preset) {
  if (preset.base) {
    apply_preset(tree, *find(preset.base));
  } else if (std::string(preset.name).starts_with("llama")) {
    apply(tree, kTransformer);
  }
  apply(tree, preset.keys);
}

}  // namespace

std::vector<std::string> shipped_workloads() {
  std::vector<std::string> names;
  for (const Preset& preset : kPresets) {
    if (preset.name[0] != '.') names.emplace_back(preset.name);
  }
  return names;
}

std::optional<Json> shipped_workload(const std::string& name) {
  const Preset* preset = name.starts_with('.') ? nullptr : find(name);
  if (!preset) return std::nullopt;
  Json tree = Json::object();
  apply_preset(tree, *preset);
  return tree;
}

}  // namespace millrace
