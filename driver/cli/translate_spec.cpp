#include "driver/cli/translate_spec.h"

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
           {.name = "input",
            .value = "FILE",
            .help = "A sentence a line, plain or gzip; -: stdin.",
            .target = into::text(f.input)},
           {.name = "output",
            .short_name = 'o',
            .value = "FILE",
            .help = "As many lines, in order; appears when all are done. -: stdout, as sentences are done.",
            .target = into::text(f.output)},
           {.name = "features",
            .value = "DIR",
            .help = "Captions instead: a line of --input is a video's name, its frames' features are in "
                    "DIR/NAME.npy, the checkpoint is of s2vt.",
            .target = into::text(f.features)},
           {.name = "vocabulary",
            .short_name = 'v',
            .value = "FILE",
            .help = "The file that `data text encode` was given: once for both languages, or the source's "
                    "and then the target's. Of captions the data's vocabulary.txt.",
            .required = true,
            .group = text,
            .repeatable = true,
            .target = into::texts(f.vocabulary)},
           {.name = "codes",
            .short_name = 'c',
            .value = "FILE",
            .help = "BPE codes of the source; without them the input is split already.",
            .group = text,
            .target = into::text(f.codes)},
           {.name = "pad-to",
            .value = "N",
            .help = "As in `data text encode`. Captions: 0 unless it is given.",
            .group = text,
            .target = into::integer(f.pad_to, 0, 1 << 20)},
           {.name = "detokenize",
            .value = "NAME",
            .help = "none: pieces and words with joiners are put together; moses: then Moses' detokenizer.",
            .group = text,
            .target = into::choice(f.detokenize, "detokenizer")},
           {.name = "preset",
            .value = "NAME",
            .help =
                "pipedream: --max-length 80 --coverage compat; mlperf: --max-length 150 --coverage compat.",
            .group = search,
            .target = into::choice(f.preset, "preset")},
           {.name = "beam",
            .value = "N",
            .help = "Hypotheses of a sentence; 1: greedy, without penalties.",
            .group = search,
            .target = into::integer(f.beam, 1, 1024)},
           {.name = "max-length",
            .value = "N",
            .help = "Tokens of a hypothesis, begin and end counted.",
            .group = search,
            .target = into::integer(f.max_length, 2, 1 << 20)},
           {.name = "length-penalty",
            .value = "X",
            .help = "Exponent of ((constant + length) / (constant + 1)), which divides a score.",
            .group = search,
            .target = into::number(f.length_penalty, 0, 1e3)},
           {.name = "length-constant",
            .value = "X",
            .help = "The constant in it.",
            .group = search,
            .target = into::number(f.length_constant, 0, 1e6)},
           {.name = "coverage-penalty",
            .value = "X",
            .help = "Weight of the source tokens that were looked at too little.",
            .group = search,
            .target = into::number(f.coverage_penalty, 0, 1e3)},
           {.name = "coverage",
            .value = "FORM",
            .help =
                "exact: of the hypothesis itself; compat: of what stood in its place, as in MLPerf's code.",
            .group = search,
            .target = into::choice(f.coverage, "coverage")},
           {.name = "n-best",
            .value = "N",
            .help = "Print the best N of each sentence with their scores, as Moses does: number ||| text ||| "
                    "score. "
                    "0: the best alone.",
            .group = search,
            .target = into::integer(f.n_best, 0, 1024)},
           {.name = "batch",
            .value = "N",
            .help = "Sentences that are translated side by side in a thread.",
            .target = into::integer(f.batch, 1, 1 << 20)},
           {.name = "max-source",
            .value = "N",
            .help =
                "Longer sentences are cut to so many tokens, videos to so many frames; the run says which.",
            .group = text,
            .target = into::integer(f.max_source, 1, 1 << 20)},
           {.name = "threads",
            .short_name = 'j',
            .value = "N",
            .help =
                "Batches at a time in each rank, each on one core; 0: the cores, shared by the ranks. The "
                "same hypotheses for any number.",
            .target = into::integer(f.threads, 0, 1024)},
           {.name = "ranks",
            .value = "N",
            .help = "Processes of this host that share the sentences, each with the whole model, or --stages "
                    "of them together; the same output for any number. Default: as many as stages. Under "
                    "torchrun's environment variables this is one of its ranks.",
            .group = ranks,
            .target = into::integer(f.ranks, 1, kMostTranslateRanks)},
           {.name = "stages",
            .value = "N",
            .help = "Ranks that hold the model together: runs of layers of about the same work. The same "
                    "output for any number.",
            .group = ranks,
            .target = into::integer(f.stages, 1, kMostTranslateRanks)},
           {.name = "plan",
            .value = "FILE",
            .help = "Instead of --stages: the stages of this plan, each on a rank of its own, once.",
            .group = ranks,
            .target = into::text(f.plan)},
           {.name = "timeout",
            .value = "SECONDS",
            .help = "Deadline of every wait for another rank; with stages for its work on the batches that "
                    "are under way, too.",
            .group = ranks,
            .target = into::duration(f.deadline, 0.001, 1e6)},
           {.name = "overwrite", .help = "Replace an output that exists.", .target = into::on(f.overwrite)},
           {.name = "format",
            .value = "text|json",
            .help = "How to print the counts (to stderr, or to stdout where --output is a file).",
            .target = into::choice(f.format, "format")}},
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
