#include "driver/cli/other_words.h"

#include <algorithm>
#include <utility>

#include "driver/cli/cli.h"

namespace millrace {

namespace {

constexpr std::string_view kSamples = "samples of one microbatch; a step has --microbatches of them";
constexpr std::string_view kParts = "a step's samples are --microbatch times --microbatches";
constexpr std::string_view kHalf = "for example --precision float16";
constexpr std::string_view kBrain = "for example --precision bfloat16";
constexpr std::string_view kLast = "an incomplete last step is left out unless it is given";
constexpr std::string_view kHeld = "a share of each class, for example --holdout 0.1";
constexpr std::string_view kStep = "for example --augment random-horizontal-flip,mixup:0.2";
constexpr std::string_view kGpu = "for example --device cuda";
constexpr std::string_view kTensors = "millrace has no tensor parallelism: docs/abilities.md";
constexpr std::string_view kShards = "it shares the rule's state; weights are not sharded";

// A word may have several rows: the first one whose flag the command has is taken.
constexpr OtherWord kWords[] = {
    // -- the model and where it starts
    {"arch", "model", ""},
    {"backbone", "model", ""},
    {"model-name", "model", ""},
    {"model-name-or-path", "model", ""},
    {"num-classes", "classes", ""},
    {"n-classes", "classes", ""},
    {"nb-classes", "classes", ""},
    {"img-size", "image-size", ""},
    {"input-size", "image-size", ""},
    {"crop-size", "image-size", ""},
    {"train-crop-size", "image-size", ""},
    {"resolution", "image-size", ""},
    {"num-layers", "layers", ""},
    {"n-layers", "layers", ""},
    {"hidden-size", "hidden", ""},
    {"d-model", "hidden", ""},
    {"ffn-hidden-size", "feed-forward", ""},
    {"num-heads", "heads", ""},
    {"num-attention-heads", "heads", ""},
    {"vocab-size", "vocabulary", ""},
    {"seq-len", "length", ""},
    {"seq-length", "length", ""},
    {"max-seq-length", "length", ""},
    {"max-length", "length", ""},
    {"bptt", "length", ""},
    {"pretrained", "init-from", "give a safetensors file with torchvision's names"},
    {"weights", "init-from", ""},
    {"finetune", "init-from", ""},
    {"initial-checkpoint", "init-from", ""},
    // -- the step
    {"batch-size", "microbatch", kSamples},
    {"bs", "microbatch", kSamples},
    {"b", "microbatch", kSamples},
    {"train-batch-size", "microbatch", kSamples},
    {"micro-batch-size", "microbatch", kSamples},
    {"microbatch-size", "microbatch", kSamples},
    {"train-micro-batch-size-per-gpu", "microbatch", kSamples},
    {"per-device-train-batch-size", "microbatch", kSamples},
    {"global-batch-size", "batch", ""},
    {"global-batch-size", "microbatches", kParts},
    {"gradient-accumulation-steps", "microbatches", kParts},
    {"accumulate-grad-batches", "microbatches", kParts},
    {"grad-accum", "microbatches", kParts},
    {"accumulation-steps", "microbatches", kParts},
    {"num-microbatches", "microbatches", kParts},
    {"n-microbatches", "microbatches", kParts},
    {"max-steps", "steps", ""},
    {"train-iters", "steps", ""},
    {"max-iters", "steps", ""},
    {"num-steps", "steps", ""},
    {"iterations", "steps", ""},
    {"iters", "steps", ""},
    {"num-epochs", "epochs", ""},
    {"max-epochs", "epochs", ""},
    {"num-train-epochs", "epochs", ""},
    {"random-seed", "seed", ""},
    {"manual-seed", "seed", ""},
    // -- data
    {"dataset", "data", ""},
    {"data-dir", "data", ""},
    {"data-path", "data", ""},
    {"dataset-name", "data", ""},
    {"num-workers", "workers", "threads that load samples"},
    {"dataloader-num-workers", "workers", "threads that load samples"},
    {"drop-last", "keep-last", kLast},
    {"dataloader-drop-last", "keep-last", kLast},
    {"val-split", "holdout", kHeld},
    {"validation-split", "holdout", kHeld},
    {"val-size", "holdout", kHeld},
    {"mixup", "augment", kStep},
    {"mixup-alpha", "augment", kStep},
    {"color-jitter", "augment", kStep},
    {"auto-augment", "augment", kStep},
    {"aa", "augment", kStep},
    {"hflip", "augment", kStep},
    {"smoothing", "label-smoothing", ""},
    // -- the rule
    {"optim", "rule", "millrace calls an optimizer an update rule"},
    {"opt", "rule", "millrace calls an optimizer an update rule"},
    {"learning-rate", "lr", ""},
    {"base-lr", "lr", ""},
    {"wd", "weight-decay", ""},
    {"adam-beta1", "beta1", ""},
    {"adam-beta2", "beta2", ""},
    {"betas", "beta1", "and --beta2"},
    {"eps", "epsilon", ""},
    {"adam-eps", "epsilon", ""},
    {"adam-epsilon", "epsilon", ""},
    {"clip-grad", "clip-norm", ""},
    {"grad-clip", "clip-norm", ""},
    {"clip", "clip-norm", ""},
    {"gradient-clipping", "clip-norm", ""},
    {"gradient-clip-val", "clip-norm", ""},
    {"max-grad-norm", "clip-norm", ""},
    {"zero", "zero-1", kShards},
    {"zero-stage", "zero-1", kShards},
    {"use-distributed-optimizer", "zero-1", kShards},
    {"fsdp", "zero-1", kShards},
    // -- the rate
    {"lr-scheduler", "lr-policy", ""},
    {"lr-scheduler-type", "lr-policy", ""},
    {"lr-decay-style", "lr-policy", ""},
    {"lr-schedule", "lr-policy", ""},
    {"scheduler", "lr-policy", ""},
    {"sched", "lr-policy", ""},
    {"num-warmup-steps", "warmup-steps", ""},
    {"lr-warmup-iters", "warmup-steps", ""},
    {"warmup-iters", "warmup-steps", ""},
    {"lr-warmup-epochs", "warmup-epochs", ""},
    {"warmup-ratio", "warmup-fraction", ""},
    {"lr-warmup-fraction", "warmup-fraction", ""},
    {"min-lr", "lr-end", "it is a share of --lr"},
    {"lr-min", "lr-end", "it is a share of --lr"},
    {"eta-min", "lr-end", "it is a share of --lr"},
    {"lr-gamma", "gamma", ""},
    {"step-size", "lr-step-size", ""},
    {"milestones", "lr-milestones", ""},
    // -- precision and device
    {"fp16", "precision", kHalf},
    {"half", "precision", kHalf},
    {"amp", "precision", kHalf},
    {"bf16", "precision", kBrain},
    {"mixed-precision", "precision", kBrain},
    {"dtype", "precision", kBrain},
    {"cuda", "device", kGpu},
    {"gpu", "device", kGpu},
    {"gpus", "device", kGpu},
    {"use-gpu", "device", kGpu},
    {"accelerator", "device", kGpu},
    // -- the plan
    {"pp", "stages", ""},
    {"pp-size", "stages", ""},
    {"num-stages", "stages", ""},
    {"n-stages", "stages", ""},
    {"pipeline-parallel-size", "stages", ""},
    {"pipeline-model-parallel-size", "stages", ""},
    {"partitions", "stages", ""},
    {"dp", "replicas", ""},
    {"dp-size", "replicas", ""},
    {"data-parallel-size", "replicas", ""},
    {"num-model-chunks", "chunks", ""},
    {"virtual-stages", "chunks", ""},
    {"pipeline-schedule", "schedule", ""},
    {"pipeline-parallel-schedule", "schedule", ""},
    {"activation-checkpointing", "recompute", ""},
    {"checkpoint-activations", "recompute", ""},
    {"gradient-checkpointing", "recompute", ""},
    {"recompute-activations", "recompute", ""},
    {"nproc", "ranks", ""},
    {"nproc", "stages", "with --replicas: a thread for every rank of the plan"},
    {"nproc-per-node", "ranks", ""},
    {"nproc-per-node", "stages", "with --replicas: a thread for every rank of the plan"},
    {"world-size", "ranks", ""},
    {"world-size", "stages", "with --replicas: a thread for every rank of the plan"},
    {"num-processes", "ranks", ""},
    {"num-processes", "stages", "with --replicas: a thread for every rank of the plan"},
    {"tp", "", kTensors},
    {"tp-size", "", kTensors},
    {"tensor-parallel-size", "", kTensors},
    {"tensor-model-parallel-size", "", kTensors},
    // -- what comes out
    {"output", "output-dir", ""},
    {"out", "output-dir", ""},
    {"out", "", "what is written stands behind the flags: --help has examples"},
    {"out-dir", "output-dir", ""},
    {"save-dir", "output-dir", ""},
    {"log-dir", "output-dir", ""},
    {"logdir", "output-dir", ""},
    {"work-dir", "output-dir", ""},
    {"default-root-dir", "output-dir", ""},
    {"save", "save-weights", ""},
    {"save-model", "save-weights", ""},
    {"save-steps", "checkpoint-every", ""},
    {"save-interval", "checkpoint-every", ""},
    {"checkpoint-interval", "checkpoint-every", ""},
    {"save-total-limit", "keep-checkpoints", ""},
    {"async-save", "checkpoint-background", ""},
    {"checkpoint", "resume", ""},
    {"ckpt", "resume", ""},
    {"load", "resume", ""},
    {"load-checkpoint", "resume", ""},
    {"resume-from", "resume", ""},
    {"resume-from-checkpoint", "resume", ""},
    {"eval-steps", "evaluate-every", ""},
    {"eval-interval", "evaluate-every", ""},
    {"val-check-interval", "evaluate-every", ""},
    {"log-interval", "print-every", ""},
    {"logging-steps", "print-every", ""},
    {"log-every-n-steps", "print-every", ""},
    {"print-freq", "print-every", ""},
    // -- the process
    {"num-threads", "threads", ""},
    {"dist-backend", "backend", ""},
    {"distributed-backend", "backend", ""},
    {"sync-bn", "sync-batch-norm", ""},
    {"sync-batchnorm", "sync-batch-norm", ""},
    {"workload", "", "`millrace dlio` takes workload=NAME, without dashes"},
    {"pid", "", "a command is traced from its start: `millrace trace capture --out DIR -- COMMAND`"},
    {"config", "",
     "`millrace launch JOB.yaml` reads a file of settings, `millrace dlio` takes workload=FILE.yaml"},
};

}  // namespace

std::span<const OtherWord> other_words() {
  return kWords;
}

const OtherWord* other_word(std::string_view theirs, const std::vector<Flag>& flags) {
  const auto found = std::ranges::find_if(kWords, [&](const OtherWord& word) {
    return word.theirs == theirs &&
           (word.here.empty() || std::ranges::find(flags, word.here, &Flag::name) != flags.end());
  });
  return found == std::end(kWords) ? nullptr : found;
}

std::string hint_of(const OtherWord& word, std::string_view dashes) {
  if (word.here.empty()) return std::string(word.note);
  std::string text = "here it is " + std::string(dashes) + std::string(word.here);
  return word.note.empty() ? text : text + ": " + std::string(word.note);
}

}  // namespace millrace
