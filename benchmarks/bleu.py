#!/usr/bin/env python3
"""Sentences a second of `millrace bleu` and of sacreBLEU on the same files, whole processes, one core each.

benchmarks/bleu.py MILLRACE PYTHON [SENTENCES] [ROUNDS]; scripts/benchmark bleu gives both programs. PYTHON is that of
tests/reference/install. The texts are made up: words of a Zipf distribution, a sixth of them changed.
"""
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time

millrace, python = sys.argv[1:3]
sentences = int(sys.argv[3]) if len(sys.argv) > 3 else 100_000
rounds = int(sys.argv[4]) if len(sys.argv) > 4 else 3
FLAGS = {
    "13a": ([], []),
    "intl, lower case": (["--tokenize", "intl", "--lowercase"], ["-tok", "intl", "-lc"]),
    "char": (["--tokenize", "char"], ["-tok", "char"]),
    "none": (["--tokenize", "none"], ["-tok", "none"]),
    "13a, 1000 resamples of 3003": (["--confidence"], ["--confidence"]),
}


def write_texts(folder):
    draw = random.Random(1)
    letters = "eeeeeetttaaooiinnsshhrrdlucmfwygpbvkäöüß"
    words = ["".join(draw.choice(letters) for _ in range(draw.randint(1, 10))) for _ in range(20_000)]
    weights = [1 / (rank + 1) for rank in range(len(words))]
    with open(folder + "/hyp", "w", encoding="utf-8") as hyp, open(folder + "/ref", "w", encoding="utf-8") as ref:
        for _ in range(sentences):
            text = draw.choices(words, weights, k=draw.randint(5, 40))
            text[0] = text[0].capitalize()
            text[-1] += draw.choice(".!?")
            text[len(text) // 2] += ","
            ref.write(" ".join(text) + "\n")
            hyp.write(" ".join(word for word in text if draw.random() > 1 / 6) + "\n")
    for name in ("hyp", "ref"):
        with open(f"{folder}/{name}") as whole, open(f"{folder}/{name}.3003", "w") as part:
            part.writelines(line for line, _ in zip(whole, range(3003)))


def measure(command):
    """CPU seconds, median, and what was printed."""
    times = []
    for _ in range(rounds):
        start = os.times()
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        end = os.times()
        times.append(end.children_user + end.children_system - start.children_user - start.children_system)
    return statistics.median(times), said


with tempfile.TemporaryDirectory() as folder:
    write_texts(folder)
    print(f"{sentences} sentences, {os.path.getsize(folder + '/hyp') / 1e6:.1f} + "
          f"{os.path.getsize(folder + '/ref') / 1e6:.1f} MB; CPU seconds, median of {rounds}, start included\n")
    print("| | millrace s | sentences/s | MB/s | sacreBLEU s | ratio | score |\n|---|---|---|---|---|---|---|")
    for name, (ours, theirs) in FLAGS.items():
        end = ".3003" if "3003" in name else ""
        hyp, ref = f"{folder}/hyp{end}", f"{folder}/ref{end}"
        count, size = 3003 if end else sentences, os.path.getsize(hyp) + os.path.getsize(ref)
        own, score = measure([millrace, "bleu", hyp, ref, "--score-only", *ours])
        other, same = measure([python, "-m", "sacrebleu", ref, "-i", hyp, "-b", "-w", "2", "-f", "text", *theirs])
        assert score == same, (name, score, same)
        print(f"| {name} | {own:.3f} | {count / own:,.0f} | {size / own / 1e6:.1f} | {other:.2f} | {other / own:.0f} | "
              f"{score.split()[0]} |")
    start = time.perf_counter()
    subprocess.run([millrace, "bleu", folder + "/hyp.3003", folder + "/ref.3003"], check=True, capture_output=True)
    print(f"\n3003 sentences from the shell: {(time.perf_counter() - start) * 1e3:.0f} ms")
