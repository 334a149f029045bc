#include "driver/flags/train_flags.h"

#include <algorithm>

#include "data/files/augmentation.h"
#include "runtime/base/quantities.h"
#include "runtime/base/text.h"

namespace millrace {
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

/// Returns the text if it is a list of steps.
Result<std::string> checked_augment(const std::string& text) {
  const auto steps = augment_steps_from(text);
  if (!steps) return steps.problems();
  return text;
}

std::vector<Flag> plan_flags(TrainFlags& f) {
  std::vector<Flag> flags = deciding(
      Decides::Plan,
      {flag("Plan", "plan", "FILE", "Plan (JSON) from `millrace plan` or written by hand.",
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
       flag(
           "Plan", "spread-tables",
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
            into::integer(f.batch, 1, 1 << 30))
           .also_called("batch-size")});
  std::vector<std::string>& kinds = std::ranges::find(flags, "schedule", &Flag::name)->choices;
  for (const bool asynchronous : {false, true})
    for (ScheduleKind kind : named_kinds(asynchronous)) kinds.push_back(to_string(kind));
  return flags;
}

std::vector<Flag> score_flags(ScoreFlags& bleu) {
  std::vector<Flag> flags = deciding(
      Decides::Results,
      {flag("BLEU", "bleu-every", "N",
            "Epochs after which the text of --bleu-source is translated with the weights of that moment, by "
            "all ranks, and scored; 0: never.",
            into::integer(bleu.every, 0, 1'000'000)),
       flag("BLEU", "bleu-source", "FILE", "A sentence a line, plain or gzip, as `translate --input`.",
            into::text(bleu.source)),
       flag("BLEU", "bleu-reference", "FILES",
            "What the translations are compared with, as REF of `bleu`; several: comma-separated.",
            into::list(bleu.references)),
       flag("BLEU", "bleu-translate", "FLAGS",
            "Flags of `translate` in one word: at least the vocabulary, '--joiners -c bpe.6000 -v "
            "vocab.bpe.6000'.",
            into::text(bleu.translate)),
       flag("BLEU", "bleu-lower-case", "BLEU without regard to case.", into::on(bleu.lower_case)),
       flag("BLEU", "target-bleu", "F",
            "End the run with the first score of at least F. Not with schedules that never flush.",
            into::number(bleu.target, 0, 100))});
  for (Flag& flag : flags) flag.emulated = Emulated::LeftOut;
  return flags;
}

std::vector<Flag> array_flags(TrainFlags& f) {
  std::vector<Flag> flags;
  append(
      flags,
      deciding(
          Decides::Results,
          {flag("Job array", "fused",
                "A job array: flags that change no shape take a list, a value for each job, and all jobs are "
                "trained as one (docs/fusion.md): --lr 0.1 0.2 --seed 1 2.",
                into::on(f.fused)),
           flag("Job array", "jobs", "N", "Jobs of the array; 0: as many as the lists have values.",
                into::integer(f.jobs, 0, 1024))}));
  append(
      flags,
      deciding(
          Decides::Plan,
          {flag(
              "Job array", "arrays", "N",
              "Arrays that the jobs are divided into, of equal size as far as possible: they go through the "
              "pipeline one after the other, with no flush in between, and each keeps what it computes no "
              "longer "
              "than its own backward. As many as jobs: every job by itself. 0: the plan's; without a plan "
              "as many "
              "as are fastest when they are tried (1 on a GPU, with --kernels fused and where several are "
              "refused), or as many as jobs where they cannot share an array (own samples of varying "
              "length).",
              into::integer(f.arrays, 0, 1024))}));
  append(
      flags,
      deciding(
          Decides::Rounding,
          {flag("Job array", "kernels", choices_of<ArrayKernels>(),
                "loop: layers run job by job, the bits of the jobs' own runs; fused: all jobs in one kernel "
                "where "
                "there is one; auto: whichever was faster when it was tried, or loop with --deterministic.",
                into::choice(f.kernels, "kind of kernels")),
           flag("Job array", "unfused", "PATTERNS",
                "Layers that always run job by job: comma-separated, * for any: 'layer1.*,fc'.",
                into::list(f.unfused))}));
  append(flags, deciding(Decides::Nothing,
                         {flag("Job array", "explain",
                               "Print at the end which layers ran in one kernel, and what both ways took.",
                               into::on(f.explain))}));
  return flags;
}

std::vector<Flag> process_flags(TrainFlags& f) {
  std::vector<Flag> flags;
  append(
      flags,
      deciding(Decides::Results,
               {flag("Training", "epochs", "N",
                     "Passes over the data, instead of --steps; evaluates and saves a checkpoint after each.",
                     into::integer(f.epochs, 0, 1'000'000)),
                flag("Output", "no-evaluation", "No evaluation pass.", into::off(f.evaluate))}));
  append(
      flags,
      deciding(
          Decides::Rounding,
          {flag("Training", "deterministic",
                "Only deterministic kernels, and none that a measured time chose (--kernels).",
                into::on(f.deterministic)),
           flag("Training", "threads", "N", "Intra-op threads per rank; 1 for bitwise equal results.",
                into::integer(f.threads, 1, 1024)),
           flag("Job", "device", "cpu|cuda|emulated",
                "Where to compute; cuda: rank k of a host on its k-th visible GPU, by millrace-worker-cuda. "
                "emulated: "
                "nowhere; layers take the times of --device-profile.",
                into::choice(f.device, "device")),
           flag("Job", "autograd",
                "Take every layer's backward from LibTorch's autograd instead of its own: slower, equal to "
                "rounding.",
                into::on(f.autograd))
               .needs_values(Emulated::Refused)}));
  append(
      flags,
      deciding(
          Decides::Nothing,
          {flag("Training", "time-limit", "TIME",
                "Stop before so much time has passed since the start, save, and end with exit code 75: 90s, "
                "30m, "
                "2h, "
                "1d. The last tenth of it, at most a minute, is for saving.",
                into::parsed(f.time_limit, time_limit_from)),
           flag("Output", "tensorboard", "DIR",
                "Write the numbers of each step as TensorBoard's event files while the run trains.",
                into::text(f.tensorboard)),
           flag("Output", "scalars", "FILE.csv",
                "Write the numbers of each step as a table while the run trains: a row for each step.",
                into::text(f.scalars)),
           flag("Output", "counters", "SECONDS",
                "From one sample to the next of CPU, memory, page faults, disks, networks, GPUs and the page "
                "cache, in counters.rank<k>.jsonl (docs/experiments.md); 0: none. Default: 1 with --variant "
                "instrumented, sleep or generated, else 0.",
                into::number(f.counters, 0, 3600)),
           flag("Job", "backend", "NAME",
                "Transport between processes: shm (ranks of one host), tcp (any), nccl (a GPU for every "
                "rank), "
                "auto (nccl or shm where it goes, else tcp), gloo (to compare with).",
                into::choice(f.backend, "transport")),
           flag("Job", "encrypt",
                "Messages between hosts go through TLS, with a key of the job's MILLRACE_TOKEN. Ranks of one "
                "host "
                "that share memory send nothing.",
                into::on(f.encrypt)),
           flag("Job", "wire-checksum",
                "Every message carries a hash, which the receiver compares: bytes that the way changes end "
                "the run "
                "(exit code 5) instead of spoiling it. NCCL is not used then.",
                into::on(f.wire_checksum)),
           flag("Job", "timeout", "SECONDS", "Deadline of every wait for another rank.",
                into::duration(f.deadline, 0.001, 1e6)),
           flag("Job", "cpp-frames", "Errors of LibTorch come with their C++ frames.",
                into::on(f.cpp_frames)),
           flag("Job", "dry-run", "Check everything, print what would run, train nothing.",
                into::on(f.dry_run)),
           flag("Job", "format", "text|json", "Form of the final result on stdout.",
                into::choice(f.format, "format"))}));
  return flags;
}

std::vector<Flag> variant_flags(TrainFlags& f) {
  return deciding(
      Decides::Results,
      {flag(
           "Variant", "variant", "original|instrumented|sleep|generated",
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
            into::on(f.variant_beyond))});
}

}  // namespace

Flag model_flag(ModelFlags& model) {
  return flag("Model", "model", "NAME", "Name of a model; `millrace models` lists them with their options.",
              into::text(model.name))
      .results("");
}

Flag length_buckets_flag(int& buckets) {
  return flag("Data", "length-buckets", "N",
              "Of pairs of sentences: steps of one of N ranges of lengths, as MLPerf v0.6's sampler draws "
              "them; "
              "0: PipeDream's sampler (docs/language.md).",
              into::integer(buckets, 0, 1024))
      .results(buckets > 0 ? std::to_string(buckets) : "");
}

std::vector<Flag> data_flags(TrainFlags& f) {
  std::vector<Flag> flags{
      flag("Data", "data", "PATH",
           "Folder with train/CLASS/*.jpg (or .png, .webp) and test/ or val/, or with CLASS/*.jpg, or with "
           "CIFAR's "
           "or MNIST's own files (docs/data.md); of text: "
           "FOLDER:SOURCE-TARGET or FOLDER with "
           "token files; of captions: FOLDER (docs/language.md); " +
               data_forms() + ".",
           into::text(f.data))
          .results(""),
      flag("Data", "holdout", "SHARE[,SEED]",
           "Of labelled images that have no test set: this share of each class evaluates and is not trained "
           "on. "
           "The same images whatever --seed is.",
           into::parsed(f.holdout, holdout_from, ""))
          .results(""),
      flag("Data", "augment", "STEP[,STEP...]",
           "Of labelled images: how training changes them, instead of what is usual for their size: " +
               augment_forms() + "; none. docs/data.md says more.",
           into::parsed(f.augment, checked_augment, ""))
          .results(f.augment),
      flag("Data", "class-weights", "FILE|balanced",
           "Of classifiers that end in cross-entropy: a weight for each class in the loss. FILE has one "
           "number a line, or lines class,weight; balanced is N / (classes * samples of the class) of the "
           "training "
           "set (docs/data.md).",
           into::text(f.class_weights))
          .results(""),
      flag("Data", "keep-last",
           "Train on an epoch's last, incomplete step too: fewer samples, spread over its microbatches.",
           into::on(f.keep_last))
          .results(f.keep_last ? "true" : "false"),
      length_buckets_flag(f.length_buckets),
      flag("Data", "random-bptt",
           "Of running text: windows of drawn lengths, about --length or, of one in twenty, half of it, as "
           "salesforce/awd-lstm-lm draws them (docs/language.md).",
           into::on(f.random_bptt))
          .results(f.random_bptt ? "true" : ""),
      flag("Training", "data-seed", "N",
           "Seed of the data alone: its order, its augmentation, synthetic samples. Without it --seed.",
           into::integer(f.data_seed, 0))
          .results(f.data_seed ? std::to_string(*f.data_seed) : "")
          .each_job()};
  append(flags, deciding(Decides::Nothing, {flag("Data", "workers", "N",
                                                 "Loader threads; 0: load in the training thread, which "
                                                 "makes batches that take under 40 us itself "
                                                 "anyway.",
                                                 into::integer(f.workers, 0, 256), 'j')}));
  return flags;
}

std::vector<Flag> flags_of(TrainFlags& f) {
  TrainOptions& o = f.options;
  std::vector<Flag> flags{model_flag(f.model)};
  for (std::vector<Flag> part : {plan_flags(f),
                                 data_flags(f),
                                 rule_flags(o.rule, o.clip),
                                 rate_flags(o.learning_rate, f.rate_in_epochs, o.rate_by_replicas),
                                 {flag("Learning rate", "lr-by-length",
                                       "The rate of each step is times the tokens of its windows / --length: "
                                       "AWD-LSTM's beside --random-bptt.",
                                       into::on(f.rate_by_length))
                                      .results("")},
                                 precision_flags(o.precision, o.loss_scale),
                                 nonfinite_flags(o.nonfinite),
                                 train_flags(o),
                                 array_flags(f),
                                 score_flags(f.bleu),
                                 process_flags(f),
                                 emulation_flags(f.emulation, f.storage),
                                 variant_flags(f)})
    append(flags, std::move(part));
  return flags;
}

CommandSpec train_spec(TrainFlags& f) {
  return {
      .command = "train",
      .summary = "Train a model through a plan: as a rank of a job, or all its ranks as threads.",
      .flags = flags_of(f),
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
}

CommandSpec train_spec() {
  return without_targets<TrainFlags>(train_spec);
}

}  // namespace millrace
