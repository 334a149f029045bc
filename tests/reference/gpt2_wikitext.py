"""GPT-2 (4 layers, 256 wide) on the characters of a text: exported, planned and pipeline-trained by millrace, and trained by
PyTorch from the same weights on the same batches. Prints both curves; exit code 1 if they part within 100 steps.

    gpt2_wikitext.py --millrace PROGRAM --text FILE [--steps 300] [--stages 2] [--schedule zb-h1] [--folder DIR]
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import warnings

warnings.filterwarnings("ignore")
import numpy
import torch
from transformers import GPT2Config, GPT2LMHeadModel

WORD = (1 << 64) - 1
MICROBATCH, MICROBATCHES, LENGTH = 8, 4, 64
RATE = 1e-3
# Rounding differs from the first step on (another order of sums) and grows as the weights part; a wrong gradient, batch or rule is
# 1e-2 apart within five steps.
TOLERANCE, COMPARED = 2e-3, 100


def split_mix(state):
    state = (state + 0x9E3779B97F4A7C15) & WORD
    z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & WORD
    return state, z ^ (z >> 31)


def order_of_epoch(size, seed, epoch):
    """data/loading/sampler.cpp: Fisher and Yates with xoshiro256**, seeded from (seed, "order", epoch)."""
    name = 14695981039346656037
    for byte in b"order":
        name = ((name ^ byte) * 1099511628211) & WORD
    state = seed
    for part in (name, epoch, 0):
        state = split_mix(state)[1] ^ part
    state = split_mix(state)[1]
    s = []
    for _ in range(4):
        state, word = split_mix(state)
        s.append(word)

    def rotl(x, by):
        return ((x << by) | (x >> (64 - by))) & WORD

    def draw():
        result = (rotl((s[1] * 5) & WORD, 7) * 9) & WORD
        t = (s[1] << 17) & WORD
        s[2] ^= s[0]
        s[3] ^= s[1]
        s[1] ^= s[2]
        s[0] ^= s[3]
        s[2] ^= t
        s[3] = rotl(s[3], 45)
        return result

    order = list(range(size))
    for i in range(size, 1, -1):
        limit = WORD - WORD % i
        value = draw()
        while value >= limit:
            value = draw()
        order[i - 1], order[value % i] = order[value % i], order[i - 1]
    return order


class Trained(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, labels):
        return self.model(input_ids=input_ids, labels=labels).loss


def python_losses(model, samples, steps):
    rule = torch.optim.Adam(model.parameters(), lr=RATE)
    order = order_of_epoch(len(samples), 0, 0)
    per_step = MICROBATCH * MICROBATCHES
    losses = []
    for step in range(steps):
        rows = samples[order[step * per_step : (step + 1) * per_step]]
        rule.zero_grad()
        total = 0.0
        for part in rows.chunk(MICROBATCHES):
            loss = model(part, part) / MICROBATCHES
            loss.backward()
            total += loss.item()
        rule.step()
        losses.append(total)
    return losses


def millrace_losses(opts, folder, steps):
    def run(*words):
        done = subprocess.run([opts.millrace, *map(str, words)], cwd=folder, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"gpt2_wikitext: millrace {words[0]} ended with {done.returncode}:\n{done.stdout}{done.stderr}")

    run("profile", "--model", "gpt2.pt2", "--microbatch", MICROBATCH, "--repetitions", 2, "--blocks", 1, "--out", "profile.json")
    run("plan", "--profile", "profile.json", "--stages", opts.stages, "--straight", "--microbatches", MICROBATCHES, "--schedule",
        opts.schedule, "--out", "plan.json")
    job = {"model": "./gpt2.pt2", "plan": "plan.json", "data": "arrays:text.npz", "microbatch": MICROBATCH, "steps": steps, "rule": "adam",
           "lr": RATE, "seed": 0, "no-evaluation": "true", "output-dir": "run", "overwrite": "true"}
    with open(os.path.join(folder, "job.yaml"), "w") as file:
        file.writelines(f"{key}: {value}\n" for key, value in job.items())
    run("launch", "job.yaml")
    return json.load(open(os.path.join(folder, "run", "summary.json")))["losses"]


def compare(opts, folder):
    text = open(opts.text, encoding="utf-8", errors="replace").read(64 * MICROBATCH * MICROBATCHES * opts.steps + 4096)
    alphabet = {c: i for i, c in enumerate(sorted(set(text)))}
    codes = torch.tensor([alphabet[c] for c in text])
    rows = MICROBATCH * MICROBATCHES * opts.steps
    if len(codes) < rows * LENGTH:
        sys.exit(f"gpt2_wikitext: {opts.text} has {len(codes)} characters, {opts.steps} steps read {rows * LENGTH}")
    samples = codes[: rows * LENGTH].reshape(rows, LENGTH)
    torch.manual_seed(7)
    torch.set_num_threads(1)
    config = GPT2Config(n_layer=4, n_embd=256, n_head=4, vocab_size=len(alphabet), n_positions=LENGTH, resid_pdrop=0.0, embd_pdrop=0.0,
                        attn_pdrop=0.0, use_cache=False, bos_token_id=0, eos_token_id=0)
    model = Trained(GPT2LMHeadModel(config)).train()
    rows = {0: torch.export.Dim.DYNAMIC}
    program = torch.export.export(model, (samples[:MICROBATCH], samples[:MICROBATCH].clone()), dynamic_shapes=(rows, rows), strict=False)
    torch.export.save(program, os.path.join(folder, "gpt2.pt2"))
    numpy.savez(os.path.join(folder, "text.npz"), input_ids=samples.numpy(), labels=samples.numpy())
    theirs, ours = python_losses(model, samples, opts.steps), millrace_losses(opts, folder, opts.steps)
    worst = early = 0.0
    print("step  python    millrace")
    for step, (a, b) in enumerate(zip(theirs, ours, strict=True)):
        worst = max(worst, abs(a - b) / a)
        early = worst if step < COMPARED else early
        if step % max(1, opts.steps // 10) == 0 or step + 1 == opts.steps:
            print(f"{step:4d}  {a:.6f}  {b:.6f}")
    print(f"{len(alphabet)} characters, {opts.stages} stages, {opts.schedule}: at most {worst:.1e} apart over {opts.steps} steps, "
          f"{early:.1e} over the first {min(opts.steps, COMPARED)}")
    return 0 if early <= TOLERANCE and ours[-1] < ours[0] else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millrace", required=True)
    parser.add_argument("--text", required=True)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--schedule", default="zb-h1")
    parser.add_argument("--folder", help="keeps the files; by default they are deleted")
    opts = parser.parse_args()
    opts.millrace, opts.text = os.path.abspath(opts.millrace), os.path.abspath(opts.text)
    if opts.folder:
        os.makedirs(opts.folder, exist_ok=True)
        return compare(opts, opts.folder)
    with tempfile.TemporaryDirectory() as folder:
        return compare(opts, folder)


if __name__ == "__main__":
    sys.exit(main())
