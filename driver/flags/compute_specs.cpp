#include "driver/flags/compute_specs.h"

#include <algorithm>

#include "runtime/base/text.h"

namespace millrace {

namespace {

Flag weights_flag(std::string& weights) {
  return {.name = "weights",
          .value = "PATH",
          .help = "A run's output folder, a checkpoint of any plan, or a safetensors file.",
          .required = true,
          .group = "Model",
          .target = into::text(weights)};
}

/// Adds the flags of `train` that are called `names`, with the same help and targets.
void add_flags_of_train(CommandSpec& spec, TrainFlags& train, std::initializer_list<std::string_view> names) {
  for (const Flag& flag : train_spec(train).flags) {
    if (std::ranges::find(names, flag.name) != names.end()) spec.flags.push_back(flag);
  }
}

}  // namespace

CommandSpec evaluate_spec(EvaluateFlags& f) {
  CommandSpec spec{
      .command = "evaluate",
      .summary = "Judge weights on the test data: loss and metrics, computed as `train` evaluates.",
      .flags = {model_flag(f.train.model)},
      .examples = {"millrace evaluate --model mlp --weights runs/first",
                   "millrace evaluate --model resnet18 --image-size 32 --classes 10 --weights w.safetensors "
                   "--data cifar10 --format json"},
      .first = {"model", "classes", "image-size", "weights", "plan", "stages", "data", "holdout",
                "microbatch", "threads", "precision", "device", "format"},
      .interrupted = "nothing was written"};
  spec.flags.push_back(weights_flag(f.weights));
  add_flags_of_train(spec, f.train,
                     {"plan", "stages", "replicas", "microbatches", "microbatch", "data", "holdout",
                      "class-weights", "workers", "length-buckets", "threads", "deterministic",
                      "init-from-ignore", "precision", "device", "timeout", "cpp-frames", "format"});
  return spec;
}

CommandSpec predict_spec(PredictFlags& f) {
  CommandSpec spec{
      .command = "predict",
      .summary = "Say what trained weights make of files: images, folders of images, NPY and NPZ arrays.",
      .positionals = {"FILE..."},
      .flags = {model_flag(f.train.model)},
      .examples =
          {"millrace predict --model mlp --weights runs/first input.npy",
           "millrace predict --model resnet18 --image-size 32 --classes 10 --weights w.safetensors "
           "--class-names cifar10 --top-k 3 photo.jpg photos/",
           "millrace predict --model resnet18 --weights w.safetensors --format csv photos > classes.csv"},
      .first = {"model", "classes", "image-size", "weights", "class-names", "top-k", "outputs", "format",
                "microbatch", "threads", "precision", "device"},
      .interrupted = "nothing was written"};
  spec.flags.push_back(weights_flag(f.weights));
  spec.flags.push_back(flag("Result", "class-names", "PATH",
                            "Names of the classes: the folder of the training data, or a file with a name a "
                            "line, class 0 first.",
                            into::text(f.class_names)));
  spec.flags.push_back(flag("Result", "top-k", "N",
                            "The classes that are shown of each input, the likeliest first.",
                            into::integer(f.top, 1, 1 << 20)));
  spec.flags.push_back(flag("Result", "outputs", "FILE.npy",
                            "Write what the model computes of each input, before probabilities, as an array.",
                            into::text(f.outputs)));
  spec.flags.push_back(flag("Result", "format", choices_of<PredictFormat>(), "Form of the result on stdout.",
                            into::choice(f.format, "format")));
  add_flags_of_train(spec, f.train,
                     {"microbatch", "workers", "threads", "deterministic", "init-from-ignore", "precision",
                      "device", "cpp-frames"});
  return spec;
}

CommandSpec predict_spec() {
  return without_targets<PredictFlags>(predict_spec);
}

CommandSpec evaluate_spec() {
  return without_targets<EvaluateFlags>(evaluate_spec);
}

namespace {
std::vector<Flag> job_files_flags(JobFilesFlags& f, const char* out_help) {
  return {
      {.name = "out",
       .short_name = 'o',
       .value = "DIR",
       .help = out_help,
       .required = true,
       .target = into::text(f.out)},
      flag("", "overwrite", "Delete an earlier run in DIR; without it a folder that holds one is refused.",
           into::on(f.overwrite))};
}
}  // namespace

CommandSpec fuse_spec(JobFilesFlags& f) {
  constexpr int kMostNew = 1024;
  CommandSpec spec{
      .command = "fuse",
      .summary =
          "Make a checkpoint of a job array of those of its jobs: DIR is a checkpoint or an output "
          "folder, of an array all its jobs, or with DIR@0,2 some of them. With one job: a single "
          "job's. Jobs may be at different steps: each goes on at its own.",
      .positionals = {"DIR..."},
      .flags = job_files_flags(f, "Output folder that gets the checkpoint: --resume it."),
      .examples = {"millrace fuse run0 run1 run2 --out array", "millrace fuse array@0,2 run3 --out next",
                   "millrace fuse array --new 2 --out next"}};
  spec.flags.push_back(flag("", "new", "N",
                            "Jobs more, after the others, that begin at their step 0 when the array goes on: "
                            "with what the lists of `train --resume` say of them.",
                            into::integer(f.new_jobs, 0, kMostNew)));
  return spec;
}

CommandSpec split_spec(JobFilesFlags& f) {
  return {.command = "split",
          .summary =
              "Make a checkpoint of each job of a job array's: OUT/job0, OUT/job1, ... are output folders "
              "of single jobs.",
          .positionals = {"DIR"},
          .flags = job_files_flags(f, "Folder for the jobs' output folders."),
          .examples = {"millrace split array --out jobs"}};
}

CommandSpec fuse_spec() {
  return without_targets<JobFilesFlags>(fuse_spec);
}

CommandSpec split_spec() {
  return without_targets<JobFilesFlags>(split_spec);
}

CommandSpec profile_spec(ProfileFlags& f) {
  CommandSpec spec{
      .command = "profile",
      .summary =
          "Measure every layer of a model, or with --network the links between the ranks of a cluster.",
      .flags = {model_flag(f.model)},
      .examples = {"millrace profile --model vgg16 --image-size 32 --classes 10 --microbatch 8 --threads 1 "
                   "--out profile.json",
                   "millrace profile --model resnet50 --ranks 4 --blocks 5 --out profile.json",
                   "millrace profile --model mlp --jobs 2,4,8 --ranks 2 --out profile.json",
                   "millrace profile --network --cluster cluster.yaml --out measured.yaml",
                   "millrace profile --network --job job.yaml --out measured.yaml"},
      .first = {"model", "classes", "image-size", "microbatch", "threads", "precision", "device", "data",
                "ranks", "network", "cluster", "out", "format"},
      .interrupted = "nothing was written"};
  const std::vector<Flag> own{
      flag("", "microbatch", "N", "Samples per microbatch.", into::integer(f.options.microbatch, 1, 1 << 20)),
      flag("", "repetitions", "N",
           "Counted passes of a block; the median of each layer over all blocks is taken.",
           into::integer(f.options.repetitions, 1, 10'000)),
      flag("", "blocks", "N", "Blocks of passes: how far they differ is written as the profile's spread.",
           into::integer(f.options.blocks, 1, 1000)),
      flag("", "warmup", "N", "Passes before the counted ones.", into::integer(f.options.warmup, 0, 1000)),
      flag("", "rule", choices_of<UpdateRuleKind>(), "Update rule to measure.",
           into::choice(f.options.rule.kind, "update rule"))
          .also_called("optimizer"),
      flag("", "momentum", "F",
           "Momentum of that rule, if it has one; with 0, sgd updates only rows of tables that were read.",
           into::number(f.options.rule.momentum, 0, 1)),
      flag("Job arrays", "jobs", "LIST",
           "Measure the model also as job arrays of so many jobs, e.g. 2,4,8 (a single job always is): "
           "what `millrace plan --jobs` chooses among.",
           into::integers(f.jobs, 1, 1024)),
      flag("Job arrays", "kernels", choices_of<ArrayKernels>(),
           "Kernels of the arrays' layers, as train --kernels takes it.",
           into::choice(f.kernels, "kind of kernels")),
      flag("", "precision", choices_of<Precision>(),
           "What the run will compute in: times, bytes of tensors and of weights follow it.",
           into::choice(f.options.precision, "precision")),
      flag("", "sync-batch-norm",
           "Batch normalisation as replicas compute it that share its statistics (train "
           "--sync-batch-norm); the planner then prices what they exchange.",
           into::on(f.options.sync_batch_norm)),
      flag("Data", "data", "PATH",
           "Measure with microbatches of this data set (as train --data takes it) instead of random ones "
           "of the "
           "model's nominal lengths, and measure what loading one takes.",
           into::text(f.data)),
      flag("Data", "microbatches", "N",
           "With --data: microbatches of a step of the run that is planned. A data set that sorts a "
           "step's samples "
           "by length makes other microbatches of them.",
           into::integer(f.microbatches, 1, 1 << 20)),
      flag("Data", "measured-microbatches", "N",
           "With --data, of a model whose microbatches differ in length: how many are measured at least, "
           "in whole steps "
           "spread evenly from the shortest of an epoch to the longest. Times are means over them, "
           "memory is the "
           "longest's; the planner lets them follow each other as they do here.",
           into::integer(f.measured_microbatches, 1, 1000)),
      length_buckets_flag(f.length_buckets),
      flag("", "threads", "N", "Intra-op threads, as the run will use.", into::integer(f.threads, 1, 1024)),
      flag("", "device", "cpu|cuda", "Where to measure.", into::choice(f.device, "device")),
      flag("", "seed", "N", "Seed of the initial weights.", into::integer(f.options.seed, 0)),
      flag("", "out", "FILE", "Where to write the profile (JSON), or with --network the cluster file (YAML).",
           into::text(f.out), 'o'),
      flag("", "format", "text|json", "What to print.", into::choice(f.format, "format")),
      flag("Network", "network",
           "Measure latency and bandwidth between all pairs of ranks instead of a model.",
           into::on(f.network)),
      flag("Network", "job", "JOB.yaml",
           "Measure between the hosts of this job, with its ranks where `millrace launch` would place them, "
           "by "
           "its backend.",
           into::text(f.job)),
      flag("Ranks", "cluster", "FILE",
           "cluster.yaml: its ranks are measured. Started alone, all of them run on this host; under "
           "torchrun's environment variables this is one of them. Of a model: as many ranks compute at once "
           "as its largest host has.",
           into::text(f.cluster)),
      flag("Ranks", "ranks", "N",
           "N ranks on this host, instead of --cluster. Of a model: N compute at the same time, as in the "
           "run that is planned, and the means over them are written.",
           into::integer(f.ranks, 1, kMostProfileRanks)),
      flag("Network", "backend", "NAME",
           "Transport to measure, as train takes it: auto, shm, tcp, gloo or nccl.",
           into::choice(f.backend, "transport")),
      flag("Network", "encrypt", "Measure through TLS, as train --encrypt sends.", into::on(f.encrypt)),
      flag("Network", "round-trips", "N",
           "Small messages to each peer and back: their median is twice the latency.",
           into::integer(f.round_trips, 1, 1'000'000)),
      flag("Network", "largest", "BYTES",
           "Messages of 64KiB and doubles of it up to this size give the bandwidth.", into::bytes(f.largest)),
      flag("Network", "tolerance", "R",
           "Links are alike, and written as one, if they differ by no more than this share.",
           into::number(f.tolerance, 0, 1e6)),
      flag("Ranks", "timeout", "SECONDS", "Deadline of every wait for another rank.",
           into::duration(f.deadline, 0.001, 1e6)),
  };
  spec.flags.insert(spec.flags.end(), own.begin(), own.end());
  return spec;
}

CommandSpec models_spec(ModelsFlags& f) {
  return {.command = "models",
          .summary = "List the models, or describe one: its parameters and options.",
          .flags = {flag("", "model", "NAME", "Describe this one with its options; --model may be left out.",
                         into::text(f.model)),
                    flag("", "format", "text|json", "What to print.", into::choice(f.format, "format"))},
          .examples = {"millrace models", "millrace models mobilenet_v3_small"}};
}

CommandSpec models_spec() {
  return without_targets<ModelsFlags>(models_spec);
}

CommandSpec profile_spec() {
  return without_targets<ProfileFlags>(profile_spec);
}

}  // namespace millrace
