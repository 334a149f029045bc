#include "driver/flags/value_flags.h"

namespace millrace {
namespace {

using F = TrainFlags;

constexpr ValueFlag kValueFlags[] = {
    {"save-weights", [](const F& f) { return !f.options.save_weights.empty(); }},
    {"checkpoint-every", [](const F& f) { return f.options.checkpoint_every > 0; }},
    {"checkpoint-at-end", [](const F& f) { return f.options.checkpoint_at_end; }},
    {"keep-best", [](const F& f) { return !f.options.keep_best.empty(); }},
    {"resume", [](const F& f) { return !f.options.resume.empty(); }},
    {"resume-changes", [](const F& f) { return !f.options.resume_changes.empty(); }},
    {"init-from", [](const F& f) { return !f.options.init_from.empty(); }},
    {"init-from-ignore", [](const F& f) { return !f.options.init_from_ignore.empty(); }},
    {"bleu-every", [](const F& f) { return f.bleu.every > 0; }},
    {"bleu-source", [](const F& f) { return !f.bleu.source.empty(); }},
    {"bleu-reference", [](const F& f) { return !f.bleu.references.empty(); }},
    {"bleu-translate", [](const F& f) { return !f.bleu.translate.empty(); }},
    {"bleu-lower-case", [](const F& f) { return f.bleu.lower_case; }},
    {"target-bleu", [](const F& f) { return f.bleu.target.has_value(); }},
    {"early-stop", [](const F& f) { return f.options.early_stop.has_value(); }},
    {"evaluate-every", [](const F& f) { return f.options.evaluate_every > 0; }},
    {"on-nonfinite", [](const F& f) { return f.options.nonfinite.on != OnNonfinite::Stop; }},
    {"check-finite", [](const F& f) { return f.options.nonfinite.check != FiniteCheckOf::Loss; }},
    {"sync-batch-norm", [](const F& f) { return f.options.sync_batch_norm; }, false},
    {"autograd", [](const F& f) { return f.autograd; }, false},
};

}  // namespace

std::span<const ValueFlag> value_flags() {
  return kValueFlags;
}

}  // namespace millrace
