#include "driver/flags/translate_spec.h"

namespace millrace {

CommandSpec translate_spec(TranslateFlags& f) {
  const std::string search = "Search", text = "Text", ranks = "Ranks";
  CommandSpec spec{
      .command = "translate",
      .summary =
          "Translate text with a trained GNMT, or say captions of videos with an S2VT: beam search from "
          "any plan's checkpoint.",
      .flags =
          {{.name = "checkpoint",
            .value = "PATH",
            .help = "A run's output folder, a checkpoint's folder, or weights of all layers (safetensors).",
            .required = true,
            .target = into::text(f.checkpoint)},
           flag("", "input", "FILE", "A sentence a line, plain or gzip; -: stdin.", into::text(f.input)),
           flag("", "output", "FILE",
                "As many lines, in order; appears when all are done. -: stdout, as sentences are done.",
                into::text(f.output), 'o'),
           flag("", "features", "DIR",
                "Captions instead: a line of --input is a video's name, its frames' features are in "
                "DIR/NAME.npy, the checkpoint is of s2vt.",
                into::text(f.features)),
           {.name = "vocabulary",
            .short_name = 'v',
            .value = "FILE",
            .help = "The file that `data text encode` was given: once for both languages, or the source's "
                    "and then the target's. Of captions the data's vocabulary.txt.",
            .required = true,
            .group = text,
            .repeatable = true,
            .target = into::texts(f.vocabulary)},
           flag(text, "codes", "FILE", "BPE codes of the source; without them the input is split already.",
                into::text(f.codes), 'c'),
           flag(text, "pad-to", "N", "As in `data text encode`. Captions: 0 unless it is given.",
                into::integer(f.pad_to, 0, 1 << 20)),
           flag(text, "detokenize", "NAME",
                "none: pieces and words with joiners are put together; moses: then Moses' detokenizer.",
                into::choice(f.detokenize, "detokenizer")),
           flag(search, "preset", "NAME",
                "pipedream: --max-length 80 --coverage compat; mlperf: --max-length 150 --coverage compat.",
                into::choice(f.preset, "preset")),
           flag(search, "beam", "N", "Hypotheses of a sentence; 1: greedy, without penalties.",
                into::integer(f.beam, 1, 1024)),
           flag(search, "max-length", "N", "Tokens of a hypothesis, begin and end counted.",
                into::integer(f.max_length, 2, 1 << 20)),
           flag(search, "length-penalty", "X",
                "Exponent of ((constant + length) / (constant + 1)), which divides a score.",
                into::number(f.length_penalty, 0, 1e3)),
           flag(search, "length-constant", "X", "The constant in it.",
                into::number(f.length_constant, 0, 1e6)),
           flag(search, "coverage-penalty", "X",
                "Weight of the source tokens that were looked at too little.",
                into::number(f.coverage_penalty, 0, 1e3)),
           flag(search, "coverage", "FORM",
                "exact: of the hypothesis itself; compat: of what stood in its place, as in MLPerf's code.",
                into::choice(f.coverage, "coverage")),
           flag(search, "n-best", "N",
                "Print the best N of each sentence with their scores, as Moses does: number ||| text ||| "
                "score. "
                "0: the best alone.",
                into::integer(f.n_best, 0, 1024)),
           flag("", "batch", "N", "Sentences that are translated side by side in a thread.",
                into::integer(f.batch, 1, 1 << 20)),
           flag(text, "max-source", "N",
                "Longer sentences are cut to so many tokens, videos to so many frames; the run says which.",
                into::integer(f.max_source, 1, 1 << 20)),
           flag("", "threads", "N",
                "Batches at a time in each rank, each on one core; 0: the cores, shared by the ranks. The "
                "same hypotheses for any number.",
                into::integer(f.threads, 0, 1024), 'j'),
           flag(ranks, "ranks", "N",
                "Processes of this host that share the sentences, each with the whole model, or --stages "
                "of them together; the same output for any number. Default: as many as stages. Under "
                "torchrun's environment variables this is one of its ranks.",
                into::integer(f.ranks, 1, kMostTranslateRanks)),
           flag(ranks, "stages", "N",
                "Ranks that hold the model together: runs of layers of about the same work. The same "
                "output for any number.",
                into::integer(f.stages, 1, kMostTranslateRanks)),
           flag(ranks, "plan", "FILE",
                "Instead of --stages: the stages of this plan, each on a rank of its own, once.",
                into::text(f.plan)),
           flag(ranks, "timeout", "SECONDS",
                "Deadline of every wait for another rank; with stages for its work on the batches that "
                "are under way, too.",
                into::duration(f.deadline, 0.001, 1e6)),
           flag("", "overwrite", "Replace an output that exists.", into::on(f.overwrite)),
           flag("", "format", "text|json",
                "How to print the counts (to stderr, or to stdout where --output is a file).",
                into::choice(f.format, "format"))},
      .examples = {
          "millrace translate --checkpoint run --input test.de --joiners -c bpe.6000 -v vocab.bpe.6000 -o "
          "hypotheses.en",
          "millrace translate --checkpoint w.safetensors --input newstest2014.tok.bpe.32000.en -v "
          "vocab.bpe.32000 --preset mlperf --detokenize moses -o hypotheses.de",
          "millrace translate --checkpoint run --plan run/plan.json --input test.de --joiners -c bpe.6000 -v "
          "vocab.bpe.6000 -o hypotheses.en",
          "millrace translate --checkpoint captions --features videos/features --input names -v "
          "videos/vocabulary.txt -o said"}};
  add_text_rules(spec, f.rules);
  return spec;
}

CommandSpec translate_spec() {
  return without_targets<TranslateFlags>(translate_spec);
}

}  // namespace millrace
