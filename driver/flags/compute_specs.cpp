#include "driver/flags/compute_specs.h"

#include <algorithm>

#include "data/files/augmentation.h"
#include "data/files/data_kinds.h"
#include "data/files/storage_names.h"
#include "runtime/base/quantities.h"
#include "runtime/base/text.h"

namespace millrace {

Result<EmulatedJitter> jitter_from(const std::string& text) {
  if (text == "none") return EmulatedJitter{};
  if (text == "profile") return EmulatedJitter{.of_profile = true};
  const Result<double> sigma = number_from(text, 0, 10);
  if (!sigma)
    return Problem{"", "'" + text + "' is no jitter", "none, profile, or a sigma from 0 to 10, as 0.05"};
  return EmulatedJitter{.sigma = *sigma};
}

Result<std::vector<Straggler>> stragglers_from(const std::string& text) {
  constexpr double kMostSlowdown = 1e6;
  std::vector<Straggler> stragglers;
  for (const std::string& item : split(text, ',')) {
    const std::size_t colon = std::min(item.find(':'), item.size());
    const Result<std::int64_t> rank = integer_from(item.substr(0, colon), 0, INT32_MAX);
    const Result<double> factor =
        number_from(item.substr(std::min(colon + 1, item.size())), 0, kMostSlowdown);
    if (!rank || !factor || *factor == 0)
      return Problem{"", "'" + item + "' is not RANK:FACTOR", "for example 3:1.5, or 0:2,3:1.5"};
    stragglers.push_back({static_cast<int>(*rank), *factor});
  }
  return stragglers;
}

Result<EmulatedStragglers> emulated_stragglers_from(const std::string& text) {
  if (text == "profile") return EmulatedStragglers{.of_profile = true};
  Result<std::vector<Straggler>> of_ranks = stragglers_from(text);
  if (!of_ranks) {
    Problem problem = of_ranks.problems().front();
    problem.hint += ", or profile";
    return problem;
  }
  return EmulatedStragglers{.of_ranks = *std::move(of_ranks)};
}

Status check(const Straggler& straggler, int ranks) {
  if (straggler.rank < ranks) return Ok{};
  return Problem{"--straggler", "there is no rank " + std::to_string(straggler.rank),
                 "ranks are 0 to " + std::to_string(ranks - 1)};
}

namespace {

Result<Seconds> time_limit_from(const std::string& text) {
  const std::optional<double> seconds = parse_duration(text);
  if (seconds && *seconds > 0 && *seconds < 1e9) return Seconds(*seconds);
  return Problem{"", "'" + text + "' is no duration", "for example 90s, 30m, 2h or 1d"};
}

Result<ScheduleKind> schedule_from(const std::string& text) {
  const Result<ScheduleKind> kind = parse_schedule_kind(text, "--schedule");
  if (kind && *kind == ScheduleKind::SpreadTables)
    return Problem{"--schedule", "'" + text + "' goes with a placement of its own", "give --spread-tables"};
  return kind;
}

/// The models' own options come behind it (driver/launch/model_flags.h).
Flag model_flag(ModelFlags& model) {
  return flag("Model", "model", "NAME", "Name of a model; `millrace models` lists them with their options.",
              into::text(model.name));
}

Flag length_buckets_flag(int& buckets) {
  return flag(
      "Data", "length-buckets", "N",
      "Of pairs of sentences: steps of one of N ranges of lengths, as MLPerf v0.6's sampler draws them; "
      "0: PipeDream's sampler (docs/language.md).",
      into::integer(buckets, 0, 1024));
}

/// Returns the text if it is a list of steps.
Result<std::string> checked_augment(const std::string& text) {
  const auto steps = augment_steps_from(text);
  if (!steps) return steps.problems();
  return text;
}

}  // namespace

CommandSpec train_spec(TrainFlags& f) {
  TrainOptions& o = f.options;
  CommandSpec spec{
      .command = "train",
      .summary = "Train a model through a plan: as a rank of a job, or all its ranks as threads.",
      .flags = {model_flag(f.model)},
      .examples =
          {"millrace train --model mlp --rule adam --lr 0.001 --stages 2 --epochs 2 --output-dir runs/first",
           "millrace train --model vgg16_bn --image-size 32 --classes 10 --stages 2 "
           "--data cifar10 --epochs 5",
           "millrace train --model mlp --plan plan.json --steps 100 --seed 0 "
           "--deterministic --threads 1 --output-dir out --save-weights w.safetensors",
           "millrace train --model mlp --fused --lr 0.1 0.2 0.3 --seed 1 2 3 --output-dir out"},
      .first = {"model",      "classes",      "image-size", "plan",         "stages", "schedule", "data",
                "microbatch", "microbatches", "steps",      "epochs",       "seed",   "threads",  "rule",
                "lr",         "precision",    "output-dir", "save-weights", "resume", "device"}};
  const std::vector<Flag> own{
      flag("Plan", "plan", "FILE", "Plan (JSON) from `millrace plan` or written by hand.",
           into::text(f.plan)),
      flag("Plan", "stages", "N",
           "Without a plan: ranks of the pipeline; the layers are cut into N runs of equal length.",
           into::integer(f.stages, 1, 1024)),
      flag("Plan", "replicas", "N[,N...]",
           "Without a plan: replicas of every stage (data parallel), or one number for each: 3,1.",
           into::text(f.replicas)),
      flag("Plan", "chunks", "N",
           "Without a plan: stages on each rank; 0: 2 for interleaved and V schedules, else 1.",
           into::integer(f.chunks, 0, 1024)),
      flag("Plan", "spread-tables",
           "Each table of the model (dlrm's embeddings) on one of the N ranks of --replicas N, largest first "
           "where the fewest bytes are; all else is replicated on every rank (docs/dlrm.md).",
           into::on(f.spread_tables)),
      flag("Plan", "schedule", "KIND",
           names_of(named_kinds(false)) + "; without a flush " + names_of(named_kinds(true)) +
               " (docs/schedules.md). With --plan: replaces the plan's.",
           into::parsed(f.schedule, schedule_from, "1f1b")),
      flag("Plan", "schedule-file", "FILE",
           "The order of actions in PyTorch's CSV form, instead of --schedule; without a plan the file also "
           "says how many stages, ranks and microbatches there are.",
           into::text(f.schedule_file)),
      flag("Plan", "recompute",
           "Every stage runs its forward again before its backward instead of keeping what it saved: less "
           "memory, the same bits. Without it as the plan says.",
           into::on(f.recompute)),
      flag("Plan", "microbatches", "N",
           "Microbatches per step, all replicas together (pipedream-2bw: per update; pipedream: no effect); "
           "0: the plan's (without a plan 4, pipedream-2bw at least what is in flight).",
           into::integer(f.microbatches, 0, 1 << 20)),
      flag("Plan", "batch", "N",
           "Samples of a step, all replicas together, instead of --microbatches: a step adds up the "
           "gradients of "
           "batch / microbatch microbatches.",
           into::integer(f.batch, 1, 1 << 30)),
      flag("Data", "microbatch", "N", "Samples per microbatch.", into::integer(o.microbatch, 1, 1 << 20)),
      flag("Data", "data", "PATH",
           "Folder with train/CLASS/*.jpg (or .png, .webp) and test/ or val/, or with CLASS/*.jpg, or with "
           "CIFAR's "
           "or MNIST's own files (docs/data.md); of text: "
           "FOLDER:SOURCE-TARGET or FOLDER with "
           "token files; of captions: FOLDER (docs/language.md); " +
               data_forms() + ".",
           into::text(f.data)),
      flag("Data", "holdout", "SHARE[,SEED]",
           "Of labelled images that have no test set: this share of each class evaluates and is not trained "
           "on. "
           "The same images whatever --seed is.",
           into::parsed(f.holdout, holdout_from, "")),
      flag("Data", "augment", "STEP[,STEP...]",
           "Of labelled images: how training changes them, instead of what is usual for their size: " +
               augment_forms() + "; none. docs/data.md says more.",
           into::parsed(f.augment, checked_augment, "")),
      flag("Data", "class-weights", "FILE|balanced",
           "Of classifiers that end in cross-entropy: a weight for each class in the loss. FILE has one "
           "number a line, or lines class,weight; balanced is N / (classes * samples of the class) of the "
           "training "
           "set (docs/data.md).",
           into::text(f.class_weights)),
      flag("Data", "workers", "N",
           "Loader threads; 0: load in the training thread, which makes batches that take under 40 us itself "
           "anyway.",
           into::integer(f.workers, 0, 256), 'j'),
      flag("Data", "keep-last",
           "Train on an epoch's last, incomplete step too: fewer samples, spread over its microbatches.",
           into::on(f.keep_last)),
      length_buckets_flag(f.length_buckets),
      flag("Data", "random-bptt",
           "Of running text: windows of drawn lengths, about --length or, of one in twenty, half of it, as "
           "salesforce/awd-lstm-lm draws them (docs/language.md).",
           into::on(f.random_bptt)),
      flag("Training", "steps", "N",
           "Updates (pipedream, pipedream-vsync: minibatches, rounded up to whole turns of the replicas). Of "
           "a job array: each job's own, or a list.",
           into::integer(o.steps, 0, into::kAny / 1024)),
      flag("Training", "time-limit", "TIME",
           "Stop before so much time has passed since the start, save, and end with exit code 75: 90s, 30m, "
           "2h, "
           "1d. The last tenth of it, at most a minute, is for saving.",
           into::parsed(f.time_limit, time_limit_from)),
      flag("Training", "epochs", "N",
           "Passes over the data, instead of --steps; evaluates and saves a checkpoint after each.",
           into::integer(f.epochs, 0, 1'000'000)),
  };
  const std::vector<Flag> running{
      flag("Training", "sync-batch-norm",
           "Batch normalisation over the microbatches that all replicas of a stage run at a time, not over "
           "each alone: docs/schedules.md says where and at what cost.",
           into::on(o.sync_batch_norm)),
      flag("Training", "dropout-masks", choices_of<MasksFrom>(),
           "Where dropout's masks are drawn: device, or host, so that a GPU drops what a CPU drops; its "
           "layers "
           "then wait for the copies.",
           into::choice(o.masks, "place")),
      flag("Training", "seed", "N", "Seed of weights, data order, augmentation and dropout.",
           into::integer(o.seed, 0)),
      flag("Training", "data-seed", "N",
           "Seed of the data alone: its order, its augmentation, synthetic samples. Without it --seed.",
           into::integer(f.data_seed, 0)),
      flag("Job array", "fused",
           "A job array: flags that change no shape take a list, a value for each job, and all jobs are "
           "trained as one (docs/fusion.md): --lr 0.1 0.2 --seed 1 2.",
           into::on(f.fused)),
      flag("Job array", "jobs", "N", "Jobs of the array; 0: as many as the lists have values.",
           into::integer(f.jobs, 0, 1024)),
      flag("Job array", "arrays", "N",
           "Arrays that the jobs are divided into, of equal size as far as possible: they go through the "
           "pipeline one after the other, with no flush in between, and each keeps what it computes no "
           "longer "
           "than its own backward. As many as jobs: every job by itself. 0: the plan's; without a plan "
           "as many "
           "as are fastest when they are tried (1 on a GPU, with --kernels fused and where several are "
           "refused), or as many as jobs where they cannot share an array (own samples of varying "
           "length).",
           into::integer(f.arrays, 0, 1024)),
      flag("Job array", "kernels", choices_of<ArrayKernels>(),
           "loop: layers run job by job, the bits of the jobs' own runs; fused: all jobs in one kernel where "
           "there is one; auto: whichever was faster when it was tried, or loop with --deterministic.",
           into::choice(f.kernels, "kind of kernels")),
      flag("Job array", "unfused", "PATTERNS",
           "Layers that always run job by job: comma-separated, * for any: 'layer1.*,fc'.",
           into::list(f.unfused)),
      flag("Job array", "explain",
           "Print at the end which layers ran in one kernel, and what both ways took.", into::on(f.explain)),
      flag("Training", "deterministic",
           "Only deterministic kernels, and none that a measured time chose (--kernels).",
           into::on(f.deterministic)),
      flag("Training", "threads", "N", "Intra-op threads per rank; 1 for bitwise equal results.",
           into::integer(f.threads, 1, 1024)),
      flag("Output", "output-dir", "DIR", "Step logs, summary, traces and checkpoints go here.",
           into::text(o.output_dir)),
      flag("Output", "save-weights", "FILE",
           "The whole model's final weights by parameter name (safetensors); FILE.pt2: an exported model "
           "again, with these weights.",
           into::text(o.save_weights)),
      flag("Output", "checkpoint-every", "N", "Steps between checkpoints; 0: none.",
           into::integer(o.checkpoint_every, 0)),
      flag("Output", "keep-checkpoints", "N",
           "How many checkpoints stay, the newest ones; 0: all (`bleu --run` scores each).",
           into::integer(o.keep_checkpoints, 0, 1 << 20)),
      flag("Output", "keep-every", "N",
           "Checkpoints of every Nth step stay for ever, beside the newest ones of --keep-checkpoints; 0: "
           "none do.",
           into::integer(o.keep_every, 0)),
      flag("Output", "checkpoint-background",
           "Write checkpoints while training goes on, from a copy of each stage's tensors in the host's "
           "memory.",
           into::on(o.background_saves)),
      flag("Output", "checkpoint-required",
           "End the run with code 4 when a checkpoint cannot be saved. Otherwise it goes on with a warning.",
           into::on(o.checkpoint_required)),
      flag("Output", "checkpoint-at-end", "Save a checkpoint after the last step.",
           into::on(o.checkpoint_at_end)),
      flag("Output", "resume", "DIR",
           "Go on from the newest checkpoint in this output folder, or from this step folder; auto: from "
           "--output-dir if it holds one, else begin.",
           into::text(o.resume)),
      flag("Training", "init-from", "PATH",
           "Start from these weights: a safetensors file by torchvision's names, or a checkpoint of any "
           "plan. A "
           "run that resumes does not read it.",
           into::text(o.init_from)),
      flag("Training", "init-from-ignore", "PATTERNS",
           "Names, comma-separated, * for any: of the model they start at random, of --init-from they "
           "are left "
           "out. For other classes the last layer's: 'fc.*'.",
           into::list(o.init_from_ignore)),
      flag("Output", "resume-changes", "KEYS",
           "What may differ from the run that --resume goes on from, e.g. lr,data; all: everything.",
           into::list(o.resume_changes)),
      flag("Output", "overwrite",
           "Delete an earlier run in --output-dir; without it a folder that holds one is refused.",
           into::on(o.overwrite)),
      flag("Output", "checkpoint-timeout", "SECONDS",
           "Deadline of saving or verifying a checkpoint, which may take longer than --timeout.",
           into::duration(o.checkpoint_deadline, 0.001, 1e8)),
      flag("Output", "evaluate-every", "N", "Steps between evaluations; 0: at the end only.",
           into::integer(o.evaluate_every, 0)),
      flag("Output", "keep-best", "METRIC",
           "Keep the checkpoint of the best evaluation in OUTPUT-DIR/best: loss, top1, dice, bleu, ...",
           into::parsed(o.keep_best, known_metric)),
      flag("Training", "early-stop", "METRIC:N",
           "End the run when N evaluations in a row were no better than the best: top1:5. Not with schedules "
           "that never flush.",
           into::parsed(o.early_stop, early_stop_from)),
      flag("Output", "tensorboard", "DIR",
           "Write the numbers of each step as TensorBoard's event files while the run trains.",
           into::text(f.tensorboard)),
      flag("Output", "scalars", "FILE.csv",
           "Write the numbers of each step as a table while the run trains: a row for each step.",
           into::text(f.scalars)),
      flag("Output", "no-evaluation", "No evaluation pass.", into::off(f.evaluate)),
      flag("BLEU", "bleu-every", "N",
           "Epochs after which the text of --bleu-source is translated with the weights of that moment, by "
           "all ranks, and scored; 0: never.",
           into::integer(f.bleu.every, 0, 1'000'000)),
      flag("BLEU", "bleu-source", "FILE", "A sentence a line, plain or gzip, as `translate --input`.",
           into::text(f.bleu.source)),
      flag("BLEU", "bleu-reference", "FILES",
           "What the translations are compared with, as REF of `bleu`; several: comma-separated.",
           into::list(f.bleu.references)),
      flag("BLEU", "bleu-translate", "FLAGS",
           "Flags of `translate` in one word: at least the vocabulary, '--joiners -c bpe.6000 -v "
           "vocab.bpe.6000'.",
           into::text(f.bleu.translate)),
      flag("BLEU", "bleu-lower-case", "BLEU without regard to case.", into::on(f.bleu.lower_case)),
      flag("BLEU", "target-bleu", "F",
           "End the run with the first score of at least F. Not with schedules that never flush.",
           into::number(f.bleu.target, 0, 100)),
      flag("Output", "print-every", "N", "Steps between console lines.", into::integer(o.print_every, 1)),
      flag("Output", "trace-first", "N", "First step that is traced.", into::integer(o.trace_first, 0)),
      flag("Output", "trace-steps", "N",
           "Steps that are traced: of a long run some early, some in its middle, some at its end.",
           into::integer(o.trace_count, 0, 1 << 20)),
      flag("Job", "autograd",
           "Take every layer's backward from LibTorch's autograd instead of its own: slower, equal to "
           "rounding.",
           into::on(f.autograd)),
      flag("Job", "device", "cpu|cuda|emulated",
           "Where to compute; cuda: rank k of a host on its k-th visible GPU, by millrace-worker-cuda. "
           "emulated: "
           "nowhere; layers take the times of --device-profile.",
           into::choice(f.device, "device")),
      flag("Job", "backend", "NAME",
           "Transport between processes: shm (ranks of one host), tcp (any), nccl (a GPU for every rank), "
           "auto (nccl or shm where it goes, else tcp), gloo (to compare with).",
           into::choice(f.backend, "transport")),
      flag("Job", "encrypt",
           "Messages between hosts go through TLS, with a key of the job's MILLRACE_TOKEN. Ranks of one host "
           "that share memory send nothing.",
           into::on(f.encrypt)),
      flag(
          "Job", "wire-checksum",
          "Every message carries a hash, which the receiver compares: bytes that the way changes end the run "
          "(exit code 5) instead of spoiling it. NCCL is not used then.",
          into::on(f.wire_checksum)),
      flag("Job", "check-writes",
           "Hash all weights before and after each action: a change that is no update's ends the run, with "
           "the stage, the action, the layer and the tensor. To look for faults: slow.",
           into::on(o.check_writes)),
      flag("Job", "timeout", "SECONDS", "Deadline of every wait for another rank.",
           into::duration(f.deadline, 0.001, 1e6)),
      flag("Emulation", "emulate-links", "FILE",
           "cluster.yaml: messages take as long as its links say, whatever joins the ranks; the weights are "
           "the same.",
           into::text(f.emulate_links)),
      flag("Emulation", "device-profile", "FILE",
           "Of --device emulated: the profile whose times its layers take, as `millrace profile` writes it.",
           into::text(f.emulation.profile)),
      flag("Emulation", "clock", "NAME",
           "Of --device emulated. wall: a step takes as long as on the devices. virtual: time jumps from "
           "event "
           "to event, ranks are threads of one process, and data takes no time.",
           into::choice(f.emulation.clock, "clock")),
      flag(
          "Emulation", "payload", "NAME",
          "Of --device emulated. none: messages carry a time stamp alone, so that only --emulate-links makes "
          "them take time. bytes: they have the real number of bytes.",
          into::choice(f.emulation.payload, "payload")),
      flag("Emulation", "emulated-devices", "N",
           "Of --device emulated: the ranks share N devices, and rank r uses device r modulo N. 0: each rank "
           "has a device of its own. With --clock wall it needs --share-devices.",
           into::integer(f.emulation.devices, 0, 1 << 20)),
      flag(
          "Emulation", "share-devices", "DIR",
          "Of --device emulated, with --clock wall: jobs of this host that name the same folder use the same "
          "devices, by rank. A device works 3 ms for each of them in turn.",
          into::text(f.emulation.share)),
      flag("Emulation", "storage", "NAME|LATENCY,BANDWIDTH[,DEPTH]",
           "Training samples come as late as from this storage. Each rank that reads has one of its own. "
           "Presets: " +
               storage_presets() + ".",
           {.read = [&f](const std::vector<std::string>& words) -> std::optional<Problem> {
             const Result<StorageSpec> storage = modelled_storage_from(words.back());
             if (!storage) return storage.problems().front();
             f.storage.storage = *storage;
             return std::nullopt;
           }}),
      flag(
          "Emulation", "storage-cache", "F",
          "With --storage: a cache that holds this share of the data's bytes. It is as full as after epochs.",
          into::number(f.storage.cache, 0, 1)),
      flag("Emulation", "storage-policy", "none|random|lru|fifo|minio",
           "With --storage: what the cache keeps.", into::choice(f.storage.policy, "policy")),
      flag(
          "Emulation", "jitter", "none|profile|SIGMA",
          "Of --device emulated: each piece of work takes a time that is drawn (--seed). profile: as much as "
          "the passes of the profile differed. SIGMA: a log-normal factor of mean 1.",
          into::parsed(f.emulation.jitter, jitter_from, "none")),
      flag("Emulation", "straggler", "profile|RANK:FACTOR,...",
           "Of --device emulated: the work of this rank takes FACTOR times as long. profile: ranks differ as "
           "they did in the profile, which was measured with as many.",
           into::parsed(f.emulation.stragglers, emulated_stragglers_from, "")),
      flag("Variant", "variant", "original|instrumented|sleep|generated",
           "For I/O studies (docs/experiments.md). original: nothing is traced. instrumented: every phase of "
           "every step. sleep: waits in the place of the computation. generated: made-up data in the place "
           "of --data. The last two are instrumented too.",
           into::choice(f.variant, "variant")),
      flag("Variant", "variant-from", "PATH",
           "Of --variant sleep: the output folder of an instrumented run, from whose times the waits are "
           "drawn. Several, comma-separated, are a table of ranks and microbatches: between them the times "
           "are "
           "interpolated. Of --variant generated: the data to take, as --data has it; without it as many "
           "samples as --data has, made up in memory.",
           into::text(f.variant_from)),
      flag("Variant", "variant-beyond",
           "Of --variant sleep: ranks and microbatches outside of the measured ones take the nearest run, "
           "whose forwards and backwards count in proportion to the samples. Without it they are refused.",
           into::on(f.variant_beyond)),
      flag("Output", "counters", "SECONDS",
           "From one sample to the next of CPU, memory, page faults, disks, networks, GPUs and the page "
           "cache, in counters.rank<k>.jsonl (docs/experiments.md); 0: none. Default: 1 with --variant "
           "instrumented, sleep or generated, else 0.",
           into::number(f.counters, 0, 3600)),
      flag("Job", "cpp-frames", "Errors of LibTorch come with their C++ frames.", into::on(f.cpp_frames)),
      flag("Job", "dry-run", "Check everything, print what would run, train nothing.", into::on(f.dry_run)),
      flag("Job", "format", "text|json", "Form of the final result on stdout.",
           into::choice(f.format, "format")),
  };
  const Flag by_length = flag("Learning rate", "lr-by-length",
                              "The rate of each step is times the tokens of its windows / --length: "
                              "AWD-LSTM's beside --random-bptt.",
                              into::on(f.rate_by_length));
  for (const std::vector<Flag>& part : {own,
                                        rule_flags(o.rule, o.clip),
                                        rate_flags(o.learning_rate, f.rate_in_epochs, o.rate_by_replicas),
                                        {by_length},
                                        {precision_flag(o.precision)},
                                        loss_scale_flags(o.loss_scale),
                                        nonfinite_flags(o.nonfinite),
                                        running})
    spec.flags.insert(spec.flags.end(), part.begin(), part.end());
  std::vector<std::string>& kinds = std::ranges::find(spec.flags, "schedule", &Flag::name)->choices;
  for (const bool asynchronous : {false, true})
    for (ScheduleKind kind : named_kinds(asynchronous)) kinds.push_back(to_string(kind));
  return spec;
}

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
           into::choice(f.options.rule.kind, "update rule")),
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

CommandSpec train_spec() {
  return without_targets<TrainFlags>(train_spec);
}

CommandSpec profile_spec() {
  return without_targets<ProfileFlags>(profile_spec);
}

}  // namespace millrace
