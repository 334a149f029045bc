#include "runtime/train/train_options.h"

namespace millrace {
namespace {

std::vector<Flag> training_flags(TrainOptions& o) {
  return {
      flag("Data", "microbatch", "N", "Samples per microbatch.", into::integer(o.microbatch, 1, 1 << 20))
          .results(std::to_string(o.microbatch)),
      flag("Training", "steps", "N",
           "Updates (pipedream, pipedream-vsync: minibatches, rounded up to whole turns of the replicas). Of "
           "a job array: each job's own, or a list.",
           into::integer(o.steps, 0, into::kAny / 1024))
          .meetings()
          .each_job(),
      flag("Training", "seed", "N", "Seed of weights, data order, augmentation and dropout.",
           into::integer(o.seed, 0))
          .results(std::to_string(o.seed))
          .each_job(),
      flag("Training", "sync-batch-norm",
           "Batch normalisation over the microbatches that all replicas of a stage run at a time, not over "
           "each alone: docs/schedules.md says where and at what cost.",
           into::on(o.sync_batch_norm))
          .results(o.sync_batch_norm ? "true" : "")
          .needs_values(Emulated::Refused),
      flag("Training", "dropout-masks", choices_of<MasksFrom>(),
           "Where dropout's masks are drawn: device, or host, so that a GPU drops what a CPU drops; its "
           "layers "
           "then wait for the copies.",
           into::choice(o.masks, "place"))
          .results(o.masks == MasksFrom::Device ? "" : to_string(o.masks)),
      flag("Training", "init-from", "PATH",
           "Start from these weights: a safetensors file by torchvision's names, or a checkpoint of any "
           "plan. A "
           "run that resumes does not read it.",
           into::text(o.init_from))
          .given_by_all()
          .needs_values(),
      flag("Training", "init-from-ignore", "PATTERNS",
           "Names, comma-separated, * for any: of the model they start at random, of --init-from they "
           "are left "
           "out. For other classes the last layer's: 'fc.*'.",
           into::list(o.init_from_ignore))
          .results("")
          .needs_values(),
      flag("Training", "early-stop", "METRIC:N",
           "End the run when N evaluations in a row were no better than the best: top1:5. Not with schedules "
           "that never flush.",
           into::parsed(o.early_stop, early_stop_from, o.early_stop ? to_string(*o.early_stop) : ""))
          .meetings()
          .needs_values()};
}

std::vector<Flag> checkpoint_flags(TrainOptions& o) {
  return {
      flag("Output", "output-dir", "DIR", "Step logs, summary, traces and checkpoints go here.",
           into::text(o.output_dir))
          .given_by_all(),
      flag("Output", "save-weights", "FILE",
           "The whole model's final weights by parameter name (safetensors); FILE.pt2: an exported model "
           "again, with these weights.",
           into::text(o.save_weights))
          .given_by_all()
          .needs_values(),
      flag("Output", "checkpoint-every", "N", "Steps between checkpoints; 0: none.",
           into::integer(o.checkpoint_every, 0))
          .meetings()
          .needs_values(),
      flag("Output", "checkpoint-background",
           "Write checkpoints while training goes on, from a copy of each stage's tensors in the host's "
           "memory.",
           into::on(o.background_saves))
          .meetings(),
      flag("Output", "checkpoint-required",
           "End the run with code 4 when a checkpoint cannot be saved. Otherwise it goes on with a warning.",
           into::on(o.checkpoint_required))
          .meetings(),
      flag("Output", "checkpoint-at-end", "Save a checkpoint after the last step.",
           into::on(o.checkpoint_at_end))
          .meetings()
          .needs_values(),
      flag("Output", "resume", "DIR",
           "Go on from the newest checkpoint in this output folder, or from this step folder; auto: from "
           "--output-dir if it holds one, else begin.",
           into::text(o.resume))
          .given_by_all()
          .needs_values(),
      flag("Output", "evaluate-every", "N", "Steps between evaluations; 0: at the end only.",
           into::integer(o.evaluate_every, 0))
          .meetings()
          .needs_values(),
      flag("Output", "keep-best", "METRIC",
           "Keep the checkpoint of the best evaluation in OUTPUT-DIR/best: loss, top1, dice, bleu, ...",
           into::parsed(o.keep_best, known_metric, o.keep_best))
          .meetings()
          .needs_values()};
}

std::vector<Flag> output_flags(TrainOptions& o) {
  return deciding(
      Decides::Nothing,
      {flag("Output", "resume-changes", "KEYS",
            "What may differ from the run that --resume goes on from, e.g. lr,data; all: everything.",
            into::list(o.resume_changes))
           .needs_values(),
       flag("Output", "overwrite",
            "Delete an earlier run in --output-dir; without it a folder that holds one is refused.",
            into::on(o.overwrite)),
       flag("Output", "keep-checkpoints", "N",
            "How many checkpoints stay, the newest ones; 0: all (`bleu --run` scores each).",
            into::integer(o.keep_checkpoints, 0, 1 << 20)),
       flag("Output", "keep-every", "N",
            "Checkpoints of every Nth step stay for ever, beside the newest ones of --keep-checkpoints; 0: "
            "none do.",
            into::integer(o.keep_every, 0)),
       flag("Output", "checkpoint-timeout", "SECONDS",
            "Deadline of saving or verifying a checkpoint, which may take longer than --timeout.",
            into::duration(o.checkpoint_deadline, 0.001, 1e8)),
       flag("Output", "print-every", "N", "Steps between console lines.", into::integer(o.print_every, 1)),
       flag("Output", "trace-first", "N", "First step that is traced.", into::integer(o.trace_first, 0)),
       flag("Output", "trace-steps", "N",
            "Steps that are traced: of a long run some early, some in its middle, some at its end.",
            into::integer(o.trace_count, 0, 1 << 20)),
       flag("Job", "check-writes",
            "Hash all weights before and after each action: a change that is no update's ends the run, with "
            "the stage, the action, the layer and the tensor. To look for faults: slow.",
            into::on(o.check_writes))});
}

}  // namespace

std::vector<Flag> train_flags(TrainOptions& options) {
  std::vector<Flag> flags = training_flags(options);
  append(flags, checkpoint_flags(options));
  append(flags, output_flags(options));
  return flags;
}

}  // namespace millrace
