"""Sentences/s of `millrace translate` and of the same search in plain PyTorch (torch_translate.py), alternating, one
core each; medians, and how many hypotheses are equal.
translate.py MILLRACE --weights W.safetensors --vocabulary V --codes C --input TEXT [--joiners] [--beam N] [--batch N]
[--rounds N] [--torch-python PYTHON]"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

parser = argparse.ArgumentParser()
parser.add_argument("millrace")
for name in ("weights", "vocabulary", "codes", "input"):
    parser.add_argument("--" + name, required=True)
parser.add_argument("--joiners", action="store_true")
parser.add_argument("--beam", default="5")
parser.add_argument("--batch", default="64")
parser.add_argument("--rounds", type=int, default=3)
parser.add_argument("--torch-python", default=sys.executable)
args = parser.parse_args()
rules = ["--joiners"] if args.joiners else []


def run(*words):
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(words)}\n{done.stdout}{done.stderr}")
    return done.stdout


with tempfile.TemporaryDirectory() as folder:
    split, ours, theirs = (os.path.join(folder, name) for name in ("split", "ours", "theirs"))
    run(args.millrace, "data", "text", "apply-bpe", args.input, *rules, "-c", args.codes, "-o", split)
    sentences = sum(1 for _ in open(split, encoding="utf-8"))
    rates = {"millrace": [], "torch": []}
    for _ in range(args.rounds):
        text = run(args.millrace, "translate", "--checkpoint", args.weights, "--input", split, "-v", args.vocabulary, "-o",
                   ours, "--overwrite", "--beam", args.beam, "--batch", args.batch, "--threads", "1", "--format", "json")
        rates["millrace"].append(json.loads(text)["sentences_per_s"])
        text = run(args.torch_python, os.path.join(os.path.dirname(__file__), "torch_translate.py"), args.weights,
                   args.vocabulary, split, theirs, "--beam", args.beam, "--batch", args.batch)
        rates["torch"].append(sentences / float(text))

    def joined(line):
        return line.strip().replace("@@ ", "").replace(" \uffed", "").replace("\uffed ", "").replace("\uffed", "")

    pairs = list(zip(open(ours, encoding="utf-8"), open(theirs, encoding="utf-8")))
    equal = sum(joined(a) == joined(b) for a, b in pairs)
    for name, values in rates.items():
        spread = f" ({min(values):.1f} to {max(values):.1f})" if len(values) > 1 else ""
        print(f"{name:9s} {statistics.median(values):8.1f} sentences/s{spread}")
    print(f"{statistics.median(rates['millrace']) / statistics.median(rates['torch']):.2f}x; "
          f"{equal} of {len(pairs)} hypotheses are equal")
