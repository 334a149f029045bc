"""Language models trained on WikiText-2 by millrace, two stages under 1F1B, and by PyTorch from the same weights on the same
windows: validation perplexities after as many steps. Dropout is drawn by each side for itself, so they agree to its noise;
without it (--dropout 0 for all kinds) the curves are one.

    scripts/benchmark perplexity [--models awd_lstm,transformer_lm] [--steps 300] [--no-dropout] [--folder DIR]

The text is the test split of WikiText-2 (the training split is not among the data sets here), the validation the start of its
valid split; words that occur fewer than 3 times are unknown. Exit code 1 if millrace's perplexity is more than 2 % worse.
"""
import argparse
import collections
import json
import os
import struct
import subprocess
import sys
import tempfile

import numpy
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F

import token_file

ROWS, MICROBATCHES, LENGTH = 20, 2, 35
RATE, CLIP, WORSE = 2e-3, 0.25, 1.02
END = 3
SIZES = {
    "awd_lstm": {"layers": 3, "embedding-features": 100, "hidden": 200},
    "transformer_lm": {"layers": 2, "hidden": 128, "heads": 2, "feed-forward": 128},
}
DROPOUT = {
    "awd_lstm": {"dropout": 0.2, "hidden-dropout": 0.1, "input-dropout": 0.2, "embedding-dropout": 0.05,
                 "weight-drop": 0.2},
    "transformer_lm": {"dropout": 0.2},
}


def checked(words):
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}:\n{done.stdout}{done.stderr}")
    return done.stdout


def encode(o, folder):
    """Returns the size of the vocabulary; train.tokens and valid.tokens are in the folder."""
    train = [line.split() for line in open(os.path.join(o.data, "test.txt"))]
    valid = [line.split() for line in open(os.path.join(o.data, "valid.txt"))][: o.valid_lines]
    counts = collections.Counter(word for line in train for word in line if word != "<unk>")
    words = sorted((word for word, count in counts.items() if count >= 3), key=lambda w: (-counts[w], w))
    vocabulary = os.path.join(folder, "vocabulary")
    open(vocabulary, "w").writelines(word + "\n" for word in words)
    for split, lines in (("train", train), ("valid", valid)):
        text = os.path.join(folder, split + ".txt")
        open(text, "w").writelines(" ".join(line) + "\n" for line in lines if line)
        checked([o.millrace, "data", "text", "encode", text, "-o", os.path.join(folder, split + ".tokens"), "-v",
                 vocabulary])
    return struct.unpack_from("<Q", open(os.path.join(folder, "train.tokens"), "rb").read(128), 32)[0]


def row_of_text(path):
    """The numbers of a token file, an end after each sentence."""
    numbers, index = token_file.read(path)
    numbers = numbers.astype(numpy.int64)
    parts = []
    for first, last in zip(index[:-1], index[1:]):
        parts += [numbers[int(first):int(last)], [END]]
    return torch.from_numpy(numpy.concatenate(parts))


def windows(text, rows):
    """PyTorch's batchify: (tokens, labels) [T, rows] of window after window."""
    columns = text[: len(text) // rows * rows].view(rows, -1).t().contiguous()
    for first in range(0, len(columns) - 1, LENGTH):
        length = min(LENGTH, len(columns) - 1 - first)
        yield columns[first:first + length], columns[first + 1:first + 1 + length]


class AwdLstm(nn.Module):
    def __init__(self, weights, dropout):
        super().__init__()
        self.p = dropout
        self.encoder = nn.Parameter(weights["encoder.weight"].clone())
        self.bias = nn.Parameter(weights["decoder.bias"].clone())
        self.lstms = nn.ModuleList()
        for i in range(SIZES["awd_lstm"]["layers"]):
            prefix = f"rnns.{i}.module."
            of = {name: weights[prefix + name] for name in ("weight_ih_l0", "bias_ih_l0", "bias_hh_l0")}
            of["weight_hh_l0"] = weights[prefix + "weight_hh_l0_raw"]
            lstm = nn.LSTM(of["weight_ih_l0"].shape[1], of["weight_hh_l0"].shape[1])
            lstm.load_state_dict(of)
            self.lstms.append(lstm)

    def locked(self, x, p):
        return x * F.dropout(torch.ones_like(x[:1]), p, self.training)

    def forward(self, tokens, states):
        rows = F.dropout(torch.ones(len(self.encoder), 1), self.p["embedding-dropout"], self.training)
        x = self.locked(F.embedding(tokens, self.encoder * rows), self.p["input-dropout"])
        after = []
        for i, lstm in enumerate(self.lstms):
            parameters = dict(lstm.named_parameters())
            parameters["weight_hh_l0"] = F.dropout(parameters["weight_hh_l0"], self.p["weight-drop"], self.training)
            h, state = torch.func.functional_call(lstm, parameters, (x, states[i]) if states else (x,))
            after.append(tuple(s.detach() for s in state))
            x = self.locked(h, self.p["dropout" if i + 1 == len(self.lstms) else "hidden-dropout"])
        penalty = 2 * x.pow(2).mean() + (h[1:] - h[:-1]).pow(2).mean()
        return x @ self.encoder.T + self.bias, penalty, after


class TransformerLm(nn.Module):
    def __init__(self, weights, dropout):
        super().__init__()
        size = SIZES["transformer_lm"]
        self.encoder = nn.Embedding(*weights["encoder.weight"].shape)
        self.drop = nn.Dropout(dropout["dropout"])
        layer = nn.TransformerEncoderLayer(size["hidden"], size["heads"], size["feed-forward"], dropout["dropout"])
        self.transformer_encoder = nn.TransformerEncoder(layer, size["layers"], enable_nested_tensor=False)
        self.decoder = nn.Linear(size["hidden"], len(weights["encoder.weight"]))
        self.load_state_dict(weights)

    def forward(self, tokens, _):
        features, length = self.encoder.embedding_dim, len(tokens)
        place = torch.arange(length)[:, None]
        rate = torch.exp(torch.arange(0, features, 2) * (-torch.log(torch.tensor(10000.0)) / features))
        table = torch.zeros(length, 1, features)
        table[:, 0, 0::2], table[:, 0, 1::2] = torch.sin(place * rate), torch.cos(place * rate)
        x = self.drop(self.encoder(tokens) * features**0.5 + table)
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        return self.decoder(self.transformer_encoder(x, mask=mask, is_causal=True)), 0, None


def torch_perplexity(o, name, weights, dropout, folder):
    torch.manual_seed(1)
    model = {"awd_lstm": AwdLstm, "transformer_lm": TransformerLm}[name](weights, dropout)
    rule = torch.optim.Adam(model.parameters(), lr=RATE)
    text, step, states = row_of_text(os.path.join(folder, "train.tokens")), 0, None
    while step < o.steps:
        states = [None] * MICROBATCHES
        for tokens, labels in windows(text, ROWS):
            if step == o.steps:
                break
            rule.zero_grad()
            halves = zip(tokens.chunk(MICROBATCHES, 1), labels.chunk(MICROBATCHES, 1))
            for m, (own, wanted) in enumerate(halves):
                scores, penalty, states[m] = model(own, states[m])
                loss = F.cross_entropy(scores.flatten(0, 1), wanted.flatten()) + penalty
                (loss / MICROBATCHES).backward()
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            rule.step()
            step += 1
    model.eval()
    total, count, states = 0.0, 0, None
    with torch.no_grad():
        for tokens, labels in windows(row_of_text(os.path.join(folder, "valid.tokens")), ROWS // MICROBATCHES):
            scores, _, states = model(tokens, states)
            total += F.cross_entropy(scores.flatten(0, 1), labels.flatten(), reduction="sum").item()
            count += labels.numel()
    return float(numpy.exp(total / count))


def flags_of(name, vocabulary, dropout):
    return {**SIZES[name], **dropout, "vocabulary": vocabulary, "length": LENGTH, "model": name}


def initial_weights(o, flags, folder):
    path = os.path.join(folder, flags["model"] + ".safetensors")
    words = [o.millrace, "train", "--microbatch", ROWS // MICROBATCHES, "--microbatches", MICROBATCHES, "--steps", 1, "--lr", 0,
             "--data", folder, "--no-evaluation", "--save-weights", path]
    for flag, value in flags.items():
        words += ["--" + flag, value]
    checked(words)
    return path


def millrace_perplexity(o, flags, start, folder):
    out = os.path.join(folder, "run-" + flags["model"])
    job = {**flags, "stages": 2, "schedule": "1f1b", "microbatch": ROWS // MICROBATCHES, "microbatches": MICROBATCHES,
           "steps": o.steps, "rule": "adam", "lr": RATE, "clip-norm": CLIP, "data": folder, "init-from": start,
           "threads": 1, "output-dir": out}
    path = os.path.join(folder, flags["model"] + ".yaml")
    open(path, "w").writelines(f"{key}: {value}\n" for key, value in job.items())
    checked([o.millrace, "launch", path])
    values = json.load(open(os.path.join(out, "summary.json")))["evaluations"][-1]
    return next(value for key, value in values.items() if key.endswith("perplexity"))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--millrace", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--models", default="awd_lstm,transformer_lm")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--valid-lines", type=int, default=800)
    parser.add_argument("--no-dropout", action="store_true")
    parser.add_argument("--folder")
    o = parser.parse_args()
    torch.set_num_threads(1)
    worst = 0
    with tempfile.TemporaryDirectory() as made:
        folder = o.folder or made
        vocabulary = encode(o, folder)
        print(f"vocabulary of {vocabulary}, {o.steps} steps of {ROWS} x {LENGTH} tokens, Adam {RATE}\n")
        print("| model | PyTorch | millrace, 2 stages | ratio |\n|---|---|---|---|")
        for name in o.models.split(","):
            dropout = {kind: 0 if o.no_dropout else p for kind, p in DROPOUT[name].items()}
            flags = flags_of(name, vocabulary, dropout)
            start = initial_weights(o, flags, folder)
            theirs = torch_perplexity(o, name, load_file(start), dropout, folder)
            ours = millrace_perplexity(o, flags, start, folder)
            worst = max(worst, ours / theirs)
            print(f"| `{name}` | {theirs:.2f} | {ours:.2f} | {ours / theirs:.4f} |", flush=True)
    return int(worst > WORSE)


if __name__ == "__main__":
    sys.exit(main())
