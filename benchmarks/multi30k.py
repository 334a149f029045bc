"""PyTorch's own run of scripts/examples/multi30k: the same model, tokens, recipe and number of processes, beside the curve of that run.

Two processes under DistributedDataParallel, one thread each (with --device cuda one process), read the token files that the example
wrote to `--run`'s folder and share its steps of 96 sentences. The model is nn.LSTM, nn.Embedding and the attention as MLPerf's reference writes it; the rule is
PyTorch's fused Adam. After each epoch the validation loss is taken and the weights are saved: the same command goes on with a run that
was interrupted. At the end `millrace translate` and `millrace bleu` score all of them, as they do in the example. Hours go up to the
epoch's last step, with the evaluations before it, without breaks and without translating.

    scripts/benchmark multi30k --run OUT_OF_THE_EXAMPLE --data FOLDER --out FOLDER [--epochs 12] [--device cuda]
"""
import argparse
import json
import math
import os
import struct
import subprocess
import time

from own_run import Progress, curve_of, draw, print_table, replicated

BATCH, HIDDEN, DROPOUT, SMOOTHING, RANGE = 96, 256, 0.25, 0.1, 0.1
RATE, GAMMA, WARMUP, DECAYS, REMAIN, CLIP = 1.5e-3, 0.5, 200, 4, 0.666, 1.0
STEPS_PER_SORT = 80
BEGIN, END = 2, 3


def read_tokens(path):
    """Sentences of a token file (docs/text.md)."""
    with open(path, "rb") as file:
        data = file.read()
    assert data[:8] == b"MILLTOK\n", path
    width, = struct.unpack_from("<I", data, 12)
    sentences, tokens, vocabulary = struct.unpack_from("<QQQ", data, 16)
    numbers = memoryview(data)[128:128 + tokens * width].cast({2: "H", 4: "I"}[width])
    index = 128 + (tokens * width + 7) // 8 * 8
    starts = struct.unpack_from(f"<{sentences + 1}Q", data, index)
    return [list(numbers[a:b]) for a, b in zip(starts, starts[1:])], vocabulary


def gnmt(torch, vocabulary):
    """Two encoder and two decoder layers; parameters have the names of MLPerf's state_dict."""
    nn = torch.nn
    drop = nn.Dropout(DROPOUT)

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear_q, self.linear_k = (nn.Linear(HIDDEN, HIDDEN, bias=False) for _ in range(2))
            self.linear_att = nn.Parameter(torch.empty(HIDDEN))
            self.normalize_scalar = nn.Parameter(torch.empty(1))
            self.normalize_bias = nn.Parameter(torch.empty(HIDDEN))

        def forward(self, queries, keys, padding):  # [T, B, H], [S, B, H], [S, B]
            z = torch.tanh(self.linear_q(queries).transpose(0, 1)[:, :, None] +
                           self.linear_k(keys).transpose(0, 1)[:, None] + self.normalize_bias)
            scores = z @ (self.normalize_scalar * self.linear_att / self.linear_att.norm())  # [B, T, S]
            weights = scores.masked_fill(padding.t()[:, None], -65504.0).softmax(2)
            return torch.bmm(weights, keys.transpose(0, 1)).transpose(0, 1)

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedder = nn.Embedding(vocabulary, HIDDEN, padding_idx=0)
            self.rnn_layers = nn.ModuleList([nn.LSTM(HIDDEN, HIDDEN, bidirectional=True), nn.LSTM(2 * HIDDEN, HIDDEN)])

        def forward(self, source, lengths):
            packed = nn.utils.rnn.pack_padded_sequence(drop(self.embedder(source)), lengths, enforce_sorted=False)
            x = nn.utils.rnn.pad_packed_sequence(self.rnn_layers[0](packed)[0], total_length=source.shape[0])[0]
            return self.rnn_layers[1](drop(x))[0]

    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedder = nn.Embedding(vocabulary, HIDDEN, padding_idx=0)
            self.att_rnn = nn.ModuleDict({"rnn": nn.LSTM(HIDDEN, HIDDEN), "attn": Attention()})
            self.rnn_layers = nn.ModuleList([nn.LSTM(2 * HIDDEN, HIDDEN)])
            self.classifier = nn.ModuleDict({"classifier": nn.Linear(HIDDEN, vocabulary)})

        def forward(self, target, encoded, padding):
            y = self.att_rnn["rnn"](drop(self.embedder(target)))[0]
            context = self.att_rnn["attn"](y, encoded, padding)
            y = self.rnn_layers[0](drop(torch.cat([y, context], 2)))[0]
            return self.classifier["classifier"](y)

    class Gnmt(nn.Module):
        def __init__(self):
            super().__init__()
            self.drop, self.encoder, self.decoder = drop, Encoder(), Decoder()
            for name, value in self.named_parameters():
                if name.endswith("normalize_scalar"):
                    nn.init.constant_(value, HIDDEN**-0.5)
                elif "bias_hh" in name or name.endswith("normalize_bias"):
                    nn.init.zeros_(value)
                else:
                    nn.init.uniform_(value, -RANGE, RANGE)

        def forward(self, source, lengths, target):
            return self.decoder(target, self.encoder(source, lengths), source.eq(0))

    return Gnmt()


def share(step, total):
    """Of the rate: an exponential warm-up, then `DECAYS` times less by `GAMMA` (MLPerf GNMT). The first step is 1."""
    t = step + 1
    if t < WARMUP:
        return 0.01**((WARMUP - t) / WARMUP)
    remain = math.floor(REMAIN * total)
    if t < remain:
        return 1.0
    return GAMMA**min(DECAYS, (t - remain) // max(1, (total - remain) // DECAYS) + 1)


def order_of(torch, lengths, epoch):
    """Steps of an epoch: sentences of like length come together, in a random order of steps (MLPerf v0.5)."""
    generator = torch.Generator().manual_seed(1 + epoch)
    shuffled = torch.randperm(len(lengths), generator=generator).tolist()[:len(lengths) // BATCH * BATCH]
    shard = BATCH * STEPS_PER_SORT
    ordered = []
    for first in range(0, len(shuffled), shard):
        ordered += sorted(shuffled[first:first + shard], key=lambda i: lengths[i])
    steps = torch.randperm(len(ordered) // BATCH, generator=generator).tolist()
    return [ordered[step * BATCH:(step + 1) * BATCH] for step in steps]


def batch_of(torch, pairs, numbers):
    pad = lambda rows: torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows])
    sources = [[BEGIN, *pairs[i][0], END] for i in numbers]
    target, labels = pad([[BEGIN, *pairs[i][1]] for i in numbers]), pad([[*pairs[i][1], END] for i in numbers])
    return pad(sources), torch.tensor([len(row) for row in sources]), target, labels


def train(rank, ranks, opts):
    import torch
    import torch.distributed as dist
    from safetensors.torch import save_file

    files = {name: read_tokens(os.path.join(opts.run, "tokens", name + ".tokens")) for name in ("train.de", "train.en", "val.de", "val.en")}
    pairs, tests = (list(zip(files[part + ".de"][0], files[part + ".en"][0])) for part in ("train", "val"))
    lengths = [len(source) + len(target) for source, target in pairs]
    inner = gnmt(torch, files["train.de"][1]).to(opts.device)
    model = replicated(inner, ranks)
    rule = torch.optim.Adam(model.parameters(), lr=RATE, fused=True)
    total = len(pairs) // BATCH * opts.epochs
    rate = torch.optim.lr_scheduler.LambdaLR(rule, lambda step: share(step, total))
    progress = Progress(opts.out, rank, {"model": inner, "rule": rule, "rate": rate})

    def losses(network, numbers, of):
        """The sum over this rank's tokens, and their number."""
        source, lengths, target, labels = batch_of(torch, of, numbers)
        source, target, labels = (tokens.to(opts.device) for tokens in (source, target, labels))
        scores = network(source, lengths, target).flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(scores, labels.flatten(), ignore_index=0, label_smoothing=SMOOTHING, reduction="sum")
        return loss, labels.ne(0).sum()

    for epoch in range(len(progress.curve), opts.epochs):
        torch.manual_seed(ranks * epoch + rank)  # of dropout
        model.train()
        for step in order_of(torch, lengths, epoch):
            loss, tokens = losses(model, step[rank::ranks], pairs)
            if ranks > 1:
                dist.all_reduce(tokens)
            rule.zero_grad()
            (loss * ranks / tokens).backward()  # the gradients' mean over ranks follows
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            rule.step()
            rate.step()
        sums = torch.zeros(2, dtype=torch.float64, device=opts.device)
        sums.sum().item()  # waits for a GPU
        trained = time.monotonic()
        model.eval()
        order = sorted(range(len(tests)), key=lambda i: -len(tests[i][0]))
        with torch.no_grad():
            for first in range(0, len(order), BATCH):
                sums += torch.stack([x.double() for x in losses(inner, order[first:first + BATCH][rank::ranks], tests)])
        dist.all_reduce(sums)
        if rank == 0:
            save_file(inner.state_dict(), os.path.join(opts.out, f"epoch-{epoch + 1}.safetensors"))
        progress.epoch_done(trained, (sums[0] / sums[1]).item())
    return progress.curve


def score(opts, weights, part):
    """BLEU of `weights` on DATA/PART.de.gz."""
    text, hypotheses = os.path.join(opts.run, "bpe.6000"), os.path.join(opts.out, "hypotheses")
    source, reference = (os.path.join(opts.data, f"{part}.{side}.gz") for side in ("de", "en"))
    with open(os.path.join(opts.out, "reference"), "wb") as file:
        subprocess.run(["gzip", "-dc", reference], stdout=file, check=True)
    subprocess.run([opts.millrace, "translate", "--checkpoint", weights, "--input", source, "--joiners", "-c", text,
                    "-v", os.path.join(opts.run, "vocab.bpe.6000"), "-o", hypotheses, "--overwrite"], check=True, stderr=subprocess.DEVNULL)
    answer = subprocess.run([opts.millrace, "bleu", hypotheses, file.name, "-b"], check=True, stdout=subprocess.PIPE, text=True)
    return float(answer.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", required=True, help="OUT of scripts/examples/multi30k: its tokens, its vocabulary and its scores")
    parser.add_argument("--data", required=True, help="DATA of scripts/examples/multi30k")
    parser.add_argument("--out", required=True)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--millrace", default="build/release/bin/millrace")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--draw", help="an SVG of the curves")
    opts = parser.parse_args()
    theirs = curve_of(train, opts)
    for epoch, row in enumerate(theirs, 1):
        row.append(score(opts, os.path.join(opts.out, f"epoch-{epoch}.safetensors"), "val"))
    scored = json.load(open(os.path.join(opts.run, "run", "bleu.json")))["checkpoints"]
    ours = [[row["hours"], row["validation_loss"], row["bleu"]] for row in scored if row["epochs"] % 1 == 0]
    table = {"millrace": ours, "PyTorch": theirs}
    print_table(table, ["validation loss", "BLEU"], ["{:.2f}", "{:.2f}"])
    if opts.draw:
        draw(table, opts.draw, "BLEU on the validation set")
    last = os.path.join(opts.out, f"epoch-{len(theirs)}.safetensors")
    print(f"test_2016_flickr, PyTorch: {score(opts, last, 'test_2016_flickr'):.2f} BLEU")


if __name__ == "__main__":
    main()
