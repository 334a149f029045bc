"""A small BERT pre-trained on WikiText-2 from raw text: what it learns, on articles that it was not trained on.

The valid and test splits (the training split is not among the data sets here), every twentieth article held out. Articles are
split into sentences, a WordPiece vocabulary is learned of them (tokenizers), and millrace does the rest: token files, pairs of sentences,
masks drawn at load time, training, evaluation. Beside the loss stands that of guessing by how often each token occurs.

    scripts/benchmark bert [--steps 5000] [--vocabulary 1000] [--stages 1] [--folder DIR]

Exit code 1 if the held-out loss of the masked tokens is not below 4.5.
"""
import argparse
import json
import math
import os
import re
import subprocess
import sys
import tempfile

import numpy
from tokenizers import BertWordPieceTokenizer

import token_file

GOAL = 4.5
MODEL = ("--layers 4 --hidden 128 --heads 4 --feed-forward 512 --positions 64 --length 32 --dropout 0 --microbatch 64 "
         "--microbatches 1 --rule adamw --lr 1.5e-3 --lr-policy linear --warmup-steps 1000 --clip-norm 1 --seed 1")


def articles(path):
    """Sentences by article; headings of sections are left out."""
    found = []
    for line in open(path, encoding="utf8"):
        line = line.strip()
        if re.match(r"^= [^=].* =$", line):
            found.append([])
        elif line and not line.startswith("=") and found:
            for sentence in re.split(r'(?<=[.!?]) (?=[A-Z"])', line):
                if len(sentence.split()) >= 3:
                    for marked, plain in (("<unk>", "[UNK]"), (" @-@ ", "-"), (" @,@ ", ","), (" @.@ ", ".")):
                        sentence = sentence.replace(marked, plain)
                    found[-1].append(sentence)
    return [article for article in found if article]


def run(words):
    done = subprocess.run([str(w) for w in words], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}: exit code {done.returncode}")
    return done.stdout


def guessing_loss(path, vocabulary):
    """Nats a token of a token file, by how often each token occurs in it."""
    numbers, _ = token_file.read(path)
    shares = numpy.bincount(numbers, minlength=vocabulary) / len(numbers)
    return -sum(share * math.log(share) for share in shares if share > 0), len(numbers)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millrace", required=True)
    parser.add_argument("--data", required=True, help="folder with valid.txt and test.txt")
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--vocabulary", type=int, default=1000)
    parser.add_argument("--stages", type=int, default=1)
    parser.add_argument("--folder", help="that is made and kept")
    o = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = o.folder or scratch
        os.makedirs(os.path.join(folder, "data"), exist_ok=True)
        inside = lambda name: os.path.join(folder, name)
        found = articles(os.path.join(o.data, "valid.txt")) + articles(os.path.join(o.data, "test.txt"))
        splits = {"train": [a for i, a in enumerate(found) if i % 20], "val": found[::20]}
        for split, chosen in splits.items():
            open(inside(split + ".txt"), "w", encoding="utf8").write("\n\n".join(map("\n".join, chosen)) + "\n")
        tokenizer = BertWordPieceTokenizer(lowercase=True)
        tokenizer.train([inside("train.txt")], vocab_size=o.vocabulary, min_frequency=2, show_progress=False)
        tokenizer.save_model(folder)
        for split in splits:
            run([o.millrace, "data", "text", "encode", inside(split + ".txt"), "--wordpiece", inside("vocab.txt"),
                 "--keep-special-tokens", "--overwrite", "-o", inside(f"data/{split}.tokens")])
        guessing, tokens = guessing_loss(inside("data/train.tokens"), o.vocabulary)
        print(f"{tokens} tokens to train on, {o.vocabulary} pieces; guessing by frequency: {guessing:.2f}", flush=True)
        run([o.millrace, "train", "--model", "bert_base", *MODEL.split(), "--vocabulary", o.vocabulary, "--data",
             inside("data"), "--steps", o.steps, "--stages", o.stages, "--threads", 1, "--evaluate-every",
             max(1, o.steps // 8), "--output-dir", inside("run"), "--overwrite"])
        summary = json.load(open(inside("run/summary.json")))
    for one in summary["evaluations"]:
        print(f"step {one['step']:6}  masked tokens {one['mlm.loss']:.3f} (held out), next sentence {one['nsp.loss']:.3f}")
    last = summary["evaluations"][-1]["mlm.loss"]
    print(f"{summary['seconds']:.0f} s; held-out loss of masked tokens {last:.3f}, the goal is below {GOAL}")
    sys.exit(last >= GOAL)


if __name__ == "__main__":
    main()
