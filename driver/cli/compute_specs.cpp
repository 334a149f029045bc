#include "driver/cli/compute_specs.h"

#include "data/files/data_kinds.h"

namespace millrace {
namespace {

Result<ScheduleKind> schedule_from(const std::string& text) {
  return parse_schedule_kind(text, "--schedule");
}

/// The models' own options come behind it (driver/launch/model_flags.h).
Flag model_flag(ModelFlags& model) {
  return {.name = "model",
          .value = "NAME",
          .help = "Name of a model; `millrace models` lists them with their options.",
          .group = "Model",
          .target = into::text(model.name)};
}

Flag length_buckets_flag(int& buckets) {
  return {
      .name = "length-buckets",
      .value = "N",
      .help =
          "Of pairs of sentences: steps of one of N ranges of lengths, as MLPerf v0.6's sampler draws them; "
          "0: PipeDream's sampler (docs/language.md).",
      .group = "Data",
      .target = into::integer(buckets, 0, 1024)};
}

}  // namespace

CommandSpec train_spec(TrainFlags& f) {
  TrainOptions& o = f.options;
  CommandSpec spec{
      .command = "train",
      .summary = "Train a model through a plan: as a rank of a job, or all its ranks as threads.",
      .flags = {model_flag(f.model)},
      .examples = {"millrace train --model mlp --plan plan.json --steps 100 --seed 0 "
                   "--deterministic --threads 1 --output-dir out --save-weights w.safetensors",
                   "millrace train --model vgg16_bn --image-size 32 --classes 10 --stages 2 "
                   "--data cifar10 --epochs 5",
                   "millrace train --model mlp --fused --lr 0.1 0.2 0.3 --seed 1 2 3 --output-dir out"}};
  const std::vector<Flag> own{
      {.name = "plan",
       .value = "FILE",
       .help = "Plan (JSON) from `millrace plan` or written by hand.",
       .group = "Plan",
       .target = into::text(f.plan)},
      {.name = "stages",
       .value = "N",
       .help = "Without a plan: ranks of the pipeline; the layers are cut into N runs of equal length.",
       .group = "Plan",
       .target = into::integer(f.stages, 1, 1024)},
      {.name = "replicas",
       .value = "N[,N...]",
       .help = "Without a plan: replicas of every stage (data parallel), or one number for each: 3,1.",
       .group = "Plan",
       .target = into::text(f.replicas)},
      {.name = "chunks",
       .value = "N",
       .help = "Without a plan: stages on each rank; 0: 2 for interleaved and V schedules, else 1.",
       .group = "Plan",
       .target = into::integer(f.chunks, 0, 1024)},
      {.name = "schedule",
       .value = "KIND",
       .help = names_of(named_kinds(false)) + "; without a flush " + names_of(named_kinds(true)) +
               " (docs/schedules.md). With --plan: replaces the plan's.",
       .group = "Plan",
       .target = into::parsed(f.schedule, schedule_from, "1f1b")},
      {.name = "schedule-file",
       .value = "FILE",
       .help =
           "The order of actions in PyTorch's CSV form, instead of --schedule; without a plan the file also "
           "says how many stages, ranks and microbatches there are.",
       .group = "Plan",
       .target = into::text(f.schedule_file)},
      {.name = "recompute",
       .help =
           "Every stage runs its forward again before its backward instead of keeping what it saved: less "
           "memory, the same bits. Without it as the plan says.",
       .group = "Plan",
       .target = into::on(f.recompute)},
      {.name = "microbatches",
       .value = "N",
       .help =
           "Microbatches per step, all replicas together (pipedream-2bw: per update; pipedream: no effect); "
           "0: the plan's (without a plan 4, pipedream-2bw at least what is in flight).",
       .group = "Plan",
       .target = into::integer(f.microbatches, 0, 1 << 20)},
      {.name = "microbatch",
       .value = "N",
       .help = "Samples per microbatch.",
       .group = "Data",
       .target = into::integer(o.microbatch, 1, 1 << 20)},
      {.name = "data",
       .value = "PATH",
       .help =
           "Folder with train/CLASS/*.jpg and test/ or val/; of text: FOLDER:SOURCE-TARGET or FOLDER with "
           "token files; of captions: FOLDER (docs/language.md); " +
           data_forms() + ".",
       .group = "Data",
       .target = into::text(f.data)},
      {.name = "workers",
       .short_name = 'j',
       .value = "N",
       .help =
           "Loader threads; 0: load in the training thread, which makes batches that take under 40 us itself "
           "anyway.",
       .group = "Data",
       .target = into::integer(f.workers, 0, 256)},
      {.name = "keep-last",
       .help = "Train on an epoch's last, incomplete step too: fewer samples, spread over its microbatches.",
       .group = "Data",
       .target = into::on(f.keep_last)},
      length_buckets_flag(f.length_buckets),
      {.name = "random-bptt",
       .help =
           "Of running text: windows of drawn lengths, about --length or, of one in twenty, half of it, as "
           "salesforce/awd-lstm-lm draws them (docs/language.md).",
       .group = "Data",
       .target = into::on(f.random_bptt)},
      {.name = "steps",
       .value = "N",
       .help =
           "Updates (pipedream, pipedream-vsync: minibatches, rounded up to whole turns of the replicas). Of "
           "a job array: each job's own, or a list.",
       .group = "Training",
       .target = into::integer(o.steps, 0, into::kAny / 1024)},
      {.name = "epochs",
       .value = "N",
       .help = "Passes over the data, instead of --steps; evaluates and saves a checkpoint after each.",
       .group = "Training",
       .target = into::integer(f.epochs, 0, 1'000'000)},
  };
  const std::vector<Flag> running{
      {.name = "sync-batch-norm",
       .help =
           "Batch normalisation over the microbatches that all replicas of a stage run at a time, not over "
           "each alone: docs/schedules.md says where and at what cost.",
       .group = "Training",
       .target = into::on(o.sync_batch_norm)},
      {.name = "dropout-masks",
       .value = choices_of<MasksFrom>(),
       .help = "Where dropout's masks are drawn: device, or host, so that a GPU drops what a CPU drops; its "
               "layers "
               "then wait for the copies.",
       .group = "Training",
       .target = into::choice(o.masks, "place")},
      {.name = "seed",
       .value = "N",
       .help = "Seed of weights, data order, augmentation and dropout.",
       .group = "Training",
       .target = into::integer(o.seed, 0)},
      {.name = "data-seed",
       .value = "N",
       .help = "Seed of the data alone: its order, its augmentation, synthetic samples. Without it --seed.",
       .group = "Training",
       .target = into::integer(f.data_seed, 0)},
      {.name = "fused",
       .help = "A job array: flags that change no shape take a list, a value for each job, and all jobs are "
               "trained as one (docs/fusion.md): --lr 0.1 0.2 --seed 1 2.",
       .group = "Job array",
       .target = into::on(f.fused)},
      {.name = "jobs",
       .value = "N",
       .help = "Jobs of the array; 0: as many as the lists have values.",
       .group = "Job array",
       .target = into::integer(f.jobs, 0, 1024)},
      {.name = "arrays",
       .value = "N",
       .help = "Arrays that the jobs are divided into, of equal size as far as possible: they go through the "
               "pipeline one after the other, with no flush in between, and each keeps what it computes no "
               "longer "
               "than its own backward. As many as jobs: every job by itself. 0: the plan's; without a plan "
               "as many "
               "as are fastest when they are tried (1 on a GPU, with --kernels fused and where several are "
               "refused), or as many as jobs where they cannot share an array (own samples of varying "
               "length).",
       .group = "Job array",
       .target = into::integer(f.arrays, 0, 1024)},
      {.name = "kernels",
       .value = choices_of<ArrayKernels>(),
       .help =
           "loop: layers run job by job, the bits of the jobs' own runs; fused: all jobs in one kernel where "
           "there is one; auto: whichever was faster when it was tried, or loop with --deterministic.",
       .group = "Job array",
       .target = into::choice(f.kernels, "kind of kernels")},
      {.name = "unfused",
       .value = "PATTERNS",
       .help = "Layers that always run job by job: comma-separated, * for any: 'layer1.*,fc'.",
       .group = "Job array",
       .target = into::list(f.unfused)},
      {.name = "explain",
       .help = "Print at the end which layers ran in one kernel, and what both ways took.",
       .group = "Job array",
       .target = into::on(f.explain)},
      {.name = "deterministic",
       .help = "Only deterministic kernels, and none that a measured time chose (--kernels).",
       .group = "Training",
       .target = into::on(f.deterministic)},
      {.name = "threads",
       .value = "N",
       .help = "Intra-op threads per rank; 1 for bitwise equal results.",
       .group = "Training",
       .target = into::integer(f.threads, 1, 1024)},
      {.name = "output-dir",
       .value = "DIR",
       .help = "Step logs, summary, traces and checkpoints go here.",
       .group = "Output",
       .target = into::text(o.output_dir)},
      {.name = "save-weights",
       .value = "FILE",
       .help = "The whole model's final weights by parameter name (safetensors); FILE.pt2: an exported model "
               "again, with these weights.",
       .group = "Output",
       .target = into::text(o.save_weights)},
      {.name = "checkpoint-every",
       .value = "N",
       .help = "Steps between checkpoints; 0: none.",
       .group = "Output",
       .target = into::integer(o.checkpoint_every, 0)},
      {.name = "keep-checkpoints",
       .value = "N",
       .help = "How many checkpoints stay, the newest ones; 0: all (`bleu --run` scores each).",
       .group = "Output",
       .target = into::integer(o.keep_checkpoints, 0, 1 << 20)},
      {.name = "checkpoint-at-end",
       .help = "Save a checkpoint after the last step.",
       .group = "Output",
       .target = into::on(o.checkpoint_at_end)},
      {.name = "resume",
       .value = "DIR",
       .help = "Go on from the newest checkpoint in this output folder, or from this step folder; auto: from "
               "--output-dir if it holds one, else begin.",
       .group = "Output",
       .target = into::text(o.resume)},
      {.name = "init-from",
       .value = "PATH",
       .help = "Start from these weights: a safetensors file by torchvision's names, or a checkpoint of any "
               "plan. A "
               "run that resumes does not read it.",
       .group = "Training",
       .target = into::text(o.init_from)},
      {.name = "init-from-ignore",
       .value = "PATTERNS",
       .help = "Names, comma-separated, * for any: of the model they start at random, of --init-from they "
               "are left "
               "out. For other classes the last layer's: 'fc.*'.",
       .group = "Training",
       .target = into::list(o.init_from_ignore)},
      {.name = "resume-changes",
       .value = "KEYS",
       .help = "What may differ from the run that --resume goes on from, e.g. lr,data; all: everything.",
       .group = "Output",
       .target = into::list(o.resume_changes)},
      {.name = "overwrite",
       .help = "Delete an earlier run in --output-dir; without it a folder that holds one is refused.",
       .group = "Output",
       .target = into::on(o.overwrite)},
      {.name = "checkpoint-timeout",
       .value = "SECONDS",
       .help = "Deadline of saving or verifying a checkpoint, which may take longer than --timeout.",
       .group = "Output",
       .target = into::duration(o.checkpoint_deadline, 0.001, 1e8)},
      {.name = "evaluate-every",
       .value = "N",
       .help = "Steps between evaluations; 0: at the end only.",
       .group = "Output",
       .target = into::integer(o.evaluate_every, 0)},
      {.name = "no-evaluation",
       .help = "No evaluation pass.",
       .group = "Output",
       .target = into::off(f.evaluate)},
      {.name = "bleu-every",
       .value = "N",
       .help =
           "Epochs after which the text of --bleu-source is translated with the weights of that moment, by "
           "all ranks, and scored; 0: never.",
       .group = "BLEU",
       .target = into::integer(f.bleu.every, 0, 1'000'000)},
      {.name = "bleu-source",
       .value = "FILE",
       .help = "A sentence a line, plain or gzip, as `translate --input`.",
       .group = "BLEU",
       .target = into::text(f.bleu.source)},
      {.name = "bleu-reference",
       .value = "FILES",
       .help = "What the translations are compared with, as REF of `bleu`; several: comma-separated.",
       .group = "BLEU",
       .target = into::list(f.bleu.references)},
      {.name = "bleu-translate",
       .value = "FLAGS",
       .help = "Flags of `translate` in one word: at least the vocabulary, '--joiners -c bpe.6000 -v "
               "vocab.bpe.6000'.",
       .group = "BLEU",
       .target = into::text(f.bleu.translate)},
      {.name = "bleu-lower-case",
       .help = "BLEU without regard to case.",
       .group = "BLEU",
       .target = into::on(f.bleu.lower_case)},
      {.name = "target-bleu",
       .value = "F",
       .help = "End the run with the first score of at least F. Not with schedules that never flush.",
       .group = "BLEU",
       .target = into::number(f.bleu.target, 0, 100)},
      {.name = "print-every",
       .value = "N",
       .help = "Steps between console lines.",
       .group = "Output",
       .target = into::integer(o.print_every, 1)},
      {.name = "trace-first",
       .value = "N",
       .help = "First step that is traced.",
       .group = "Output",
       .target = into::integer(o.trace_first, 0)},
      {.name = "trace-steps",
       .value = "N",
       .help = "Steps that are traced: of a long run some early, some in its middle, some at its end.",
       .group = "Output",
       .target = into::integer(o.trace_count, 0, 1 << 20)},
      {.name = "autograd",
       .help =
           "Take every layer's backward from LibTorch's autograd instead of its own: slower, the same bits.",
       .group = "Job",
       .target = into::on(f.autograd)},
      {.name = "device",
       .value = "cpu|cuda",
       .help = "Where to compute; cuda: rank k of a host on its k-th visible GPU, by millrace-worker-cuda.",
       .group = "Job",
       .target = into::choice(f.device, "device")},
      {.name = "backend",
       .value = "NAME",
       .help =
           "Transport between processes: shm (ranks of one host), gloo (any), nccl (a GPU for every rank), "
           "auto (nccl or shm where it goes).",
       .group = "Job",
       .target = into::choice(f.backend, "transport")},
      {.name = "timeout",
       .value = "SECONDS",
       .help = "Deadline of every wait for another rank.",
       .group = "Job",
       .target = into::duration(f.deadline, 0.001, 1e6)},
      {.name = "emulate-links",
       .value = "FILE",
       .help =
           "cluster.yaml: messages take as long as its links say, whatever joins the ranks; the weights are "
           "the same.",
       .group = "Job",
       .target = into::text(f.emulate_links)},
      {.name = "cpp-frames",
       .help = "Errors of LibTorch come with their C++ frames.",
       .group = "Job",
       .target = into::on(f.cpp_frames)},
      {.name = "dry-run",
       .help = "Check everything, print what would run, train nothing.",
       .group = "Job",
       .target = into::on(f.dry_run)},
      {.name = "format",
       .value = "text|json",
       .help = "Form of the final result on stdout.",
       .group = "Job",
       .target = into::choice(f.format, "format")},
  };
  const Flag by_length{.name = "lr-by-length",
                       .help =
                           "The rate of each step is times the tokens of its windows / --length: "
                           "AWD-LSTM's beside --random-bptt.",
                       .group = "Learning rate",
                       .target = into::on(f.rate_by_length)};
  for (const std::vector<Flag>& part : {own,
                                        rule_flags(o.rule, o.clip),
                                        rate_flags(o.learning_rate, f.rate_in_epochs, o.rate_by_replicas),
                                        {by_length},
                                        {precision_flag(o.precision)},
                                        loss_scale_flags(o.loss_scale),
                                        running})
    spec.flags.insert(spec.flags.end(), part.begin(), part.end());
  return spec;
}

namespace {
std::vector<Flag> job_files_flags(JobFilesFlags& f, const char* out_help) {
  return {{.name = "out",
           .short_name = 'o',
           .value = "DIR",
           .help = out_help,
           .required = true,
           .target = into::text(f.out)},
          {.name = "overwrite",
           .help = "Delete an earlier run in DIR; without it a folder that holds one is refused.",
           .target = into::on(f.overwrite)}};
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
  spec.flags.push_back({.name = "new",
                        .value = "N",
                        .help =
                            "Jobs more, after the others, that begin at their step 0 when the array goes on: "
                            "with what the lists of `train --resume` say of them.",
                        .target = into::integer(f.new_jobs, 0, kMostNew)});
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
                   "millrace profile --network --cluster cluster.yaml --out measured.yaml"}};
  const std::vector<Flag> own{
      {.name = "microbatch",
       .value = "N",
       .help = "Samples per microbatch.",
       .target = into::integer(f.options.microbatch, 1, 1 << 20)},
      {.name = "repetitions",
       .value = "N",
       .help = "Counted passes of a block; the median of each layer over all blocks is taken.",
       .target = into::integer(f.options.repetitions, 1, 10'000)},
      {.name = "blocks",
       .value = "N",
       .help = "Blocks of passes: how far they differ is written as the profile's spread.",
       .target = into::integer(f.options.blocks, 1, 1000)},
      {.name = "warmup",
       .value = "N",
       .help = "Passes before the counted ones.",
       .target = into::integer(f.options.warmup, 0, 1000)},
      {.name = "rule",
       .value = choices_of<UpdateRuleKind>(),
       .help = "Update rule to measure.",
       .target = into::choice(f.options.rule.kind, "update rule")},
      {.name = "jobs",
       .value = "LIST",
       .help = "Measure the model also as job arrays of so many jobs, e.g. 2,4,8 (a single job always is): "
               "what `millrace plan --jobs` chooses among.",
       .group = "Job arrays",
       .target = into::integers(f.jobs, 1, 1024)},
      {.name = "kernels",
       .value = choices_of<ArrayKernels>(),
       .help = "Kernels of the arrays' layers, as train --kernels takes it.",
       .group = "Job arrays",
       .target = into::choice(f.kernels, "kind of kernels")},
      {.name = "precision",
       .value = choices_of<Precision>(),
       .help = "What the run will compute in: times, bytes of tensors and of weights follow it.",
       .target = into::choice(f.options.precision, "precision")},
      {.name = "sync-batch-norm",
       .help = "Batch normalisation as replicas compute it that share its statistics (train "
               "--sync-batch-norm); the planner then prices what they exchange.",
       .target = into::on(f.options.sync_batch_norm)},
      {.name = "data",
       .value = "PATH",
       .help = "Measure with microbatches of this data set (as train --data takes it) instead of random ones "
               "of the "
               "model's nominal lengths, and measure what loading one takes.",
       .group = "Data",
       .target = into::text(f.data)},
      {.name = "microbatches",
       .value = "N",
       .help = "With --data: microbatches of a step of the run that is planned. A data set that sorts a "
               "step's samples "
               "by length makes other microbatches of them.",
       .group = "Data",
       .target = into::integer(f.microbatches, 1, 1 << 20)},
      {.name = "measured-microbatches",
       .value = "N",
       .help = "With --data, of a model whose microbatches differ in length: how many are measured at least, "
               "in whole steps "
               "spread evenly from the shortest of an epoch to the longest. Times are means over them, "
               "memory is the "
               "longest's; the planner lets them follow each other as they do here.",
       .group = "Data",
       .target = into::integer(f.measured_microbatches, 1, 1000)},
      length_buckets_flag(f.length_buckets),
      {.name = "threads",
       .value = "N",
       .help = "Intra-op threads, as the run will use.",
       .target = into::integer(f.threads, 1, 1024)},
      {.name = "device",
       .value = "cpu|cuda",
       .help = "Where to measure.",
       .target = into::choice(f.device, "device")},
      {.name = "seed",
       .value = "N",
       .help = "Seed of the initial weights.",
       .target = into::integer(f.options.seed, 0)},
      {.name = "out",
       .short_name = 'o',
       .value = "FILE",
       .help = "Where to write the profile (JSON), or with --network the cluster file (YAML).",
       .target = into::text(f.out)},
      {.name = "format",
       .value = "text|json",
       .help = "What to print.",
       .target = into::choice(f.format, "format")},
      {.name = "network",
       .help = "Measure latency and bandwidth between all pairs of ranks instead of a model.",
       .group = "Network",
       .target = into::on(f.network)},
      {.name = "cluster",
       .value = "FILE",
       .help =
           "cluster.yaml: its ranks are measured. Started alone, all of them run on this host; under "
           "torchrun's environment variables this is one of them. Of a model: as many ranks compute at once "
           "as its largest host has.",
       .group = "Ranks",
       .target = into::text(f.cluster)},
      {.name = "ranks",
       .value = "N",
       .help =
           "N ranks on this host, instead of --cluster. Of a model: N compute at the same time, as in the "
           "run that is planned, and the means over them are written.",
       .group = "Ranks",
       .target = into::integer(f.ranks, 1, kMostProfileRanks)},
      {.name = "backend",
       .value = "NAME",
       .help = "Transport to measure, as train takes it: auto, shm, gloo or nccl.",
       .group = "Network",
       .target = into::choice(f.backend, "transport")},
      {.name = "round-trips",
       .value = "N",
       .help = "Small messages to each peer and back: their median is twice the latency.",
       .group = "Network",
       .target = into::integer(f.round_trips, 1, 1'000'000)},
      {.name = "largest",
       .value = "BYTES",
       .help = "Messages of 64KiB and doubles of it up to this size give the bandwidth.",
       .group = "Network",
       .target = into::bytes(f.largest)},
      {.name = "tolerance",
       .value = "R",
       .help = "Links are alike, and written as one, if they differ by no more than this share.",
       .group = "Network",
       .target = into::number(f.tolerance, 0, 1e6)},
      {.name = "timeout",
       .value = "SECONDS",
       .help = "Deadline of every wait for another rank.",
       .group = "Ranks",
       .target = into::duration(f.deadline, 0.001, 1e6)},
  };
  spec.flags.insert(spec.flags.end(), own.begin(), own.end());
  return spec;
}

CommandSpec models_spec(ModelsFlags& f) {
  return {.command = "models",
          .summary = "List the models, or describe one: its parameters and options.",
          .flags = {{.name = "model",
                     .value = "NAME",
                     .help = "Describe this one with its options.",
                     .target = into::text(f.model)},
                    {.name = "format",
                     .value = "text|json",
                     .help = "What to print.",
                     .target = into::choice(f.format, "format")}},
          .examples = {"millrace models", "millrace models --model mobilenet_v3_small"}};
}

CommandSpec models_spec() {
  return without_targets<ModelsFlags>(models_spec);
}

CommandSpec train_spec() {
  return without_targets<TrainFlags>(train_spec);
}

CommandSpec profile_spec() {
  return without_targets<ProfileFlags>(profile_spec);
}

}  // namespace millrace
