"""One rank of a PyTorch peer for language models, for compare_language.py: one process, or two ranks of
torch.distributed.pipelining under 1F1B, on the CPU. Models as a user of PyTorch writes them: nn.LSTM,
nn.TransformerEncoder, transformers' BERT with its default attention. Made-up tokens of fixed lengths; plain SGD through
its fused kernel. Writes {"step_s": [...]}, the seconds of every step on this rank.
"""

import argparse
import json
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


def options():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=["gnmt", "bert_base", "transformer_lm"], required=True)
    parser.add_argument("--layers", type=int, required=True)
    parser.add_argument("--hidden", type=int, required=True)
    parser.add_argument("--vocabulary", type=int, required=True)
    parser.add_argument("--length", type=int, required=True)
    parser.add_argument("--microbatch", type=int, required=True)
    parser.add_argument("--microbatches", type=int, required=True)
    parser.add_argument("--cut", type=int, default=0, help="two ranks: how many parts the first has")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--out", required=True, help="prefix; the rank and .json are appended")
    return parser.parse_args()


class Attention(nn.Module):
    """GNMT's: Bahdanau's with a normalised vector."""

    def __init__(self, hidden):
        super().__init__()
        self.q, self.k = nn.Linear(hidden, hidden, bias=False), nn.Linear(hidden, hidden, bias=False)
        self.v, self.scale = nn.Parameter(torch.randn(hidden) * 0.1), nn.Parameter(torch.tensor(0.1))
        self.bias = nn.Parameter(torch.zeros(hidden))

    def forward(self, y, e, padding):  # [T, B, H], [S, B, H], [S, B]
        z = torch.tanh(self.q(y)[:, None] + self.k(e)[None] + self.bias)
        scores = (z @ (self.scale * self.v / self.v.norm())).masked_fill(padding[None], -65504.0)
        weights = scores.softmax(1)  # [T, S, B]
        return torch.bmm(weights.permute(2, 0, 1), e.transpose(0, 1)).transpose(0, 1)


class GnmtPart(nn.Module):
    """Runs of GNMT's parts; between them (x, context): the encoder's output, then the decoder's and its context."""

    def __init__(self, o, first, last):
        super().__init__()
        h, self.layers = o.hidden, o.layers
        self.drop = nn.Dropout(o.dropout)
        self.first, self.last = first, last
        parts = {}
        for number in range(first, last):
            if number == 0:
                parts["embed"] = nn.Embedding(o.vocabulary, h, padding_idx=0)
                parts["p0"] = nn.LSTM(h, h, bidirectional=True)
            elif number < o.layers:
                parts[f"p{number}"] = nn.LSTM(2 * h if number == 1 else h, h)
            elif number == o.layers:
                parts["target"] = nn.Embedding(o.vocabulary, h, padding_idx=0)
                parts[f"p{number}"] = nn.LSTM(h, h)
                parts["attention"] = Attention(h)
            elif number < 2 * o.layers:
                parts[f"p{number}"] = nn.LSTM(2 * h, h)
            else:
                parts["classifier"] = nn.Linear(h, o.vocabulary)
        self.parts = nn.ModuleDict(parts)

    def forward(self, x, context=None, source=None, words=None):
        n = self.layers
        # Batches come samples first, as pipelining cuts them; LSTMs run time first.
        if self.first == 0:
            x = x.t()
        source, words = (t if t is None else t.t() for t in (source, words))
        for number in range(self.first, self.last):
            lstm = self.parts[f"p{number}"] if f"p{number}" in self.parts else None
            if number == 0:
                lengths = x.ne(0).sum(0).clamp(min=1)  # pipelining runs a forward on zeros first
                packed = nn.utils.rnn.pack_padded_sequence(self.drop(self.parts["embed"](x)), lengths, enforce_sorted=False)
                x = nn.utils.rnn.pad_packed_sequence(lstm(packed)[0], total_length=x.shape[0])[0]
            elif number < n:
                y = lstm(self.drop(x))[0]
                x = y if number == 1 else x + y
            elif number == n:
                y = lstm(self.drop(self.parts["target"](words)))[0]
                context = self.parts["attention"](y, x, source.eq(0))
                x = y
            elif number < 2 * n:
                y = lstm(self.drop(torch.cat([x, context], 2)))[0]
                x = y if number == n + 1 else x + y
            else:
                return self.parts["classifier"](x)
        return x if context is None else (x, context)


def gnmt(o, rank, ranks):
    parts = 2 * o.layers + 1
    cut = o.cut or o.layers
    module = GnmtPart(o, 0, parts) if ranks == 1 else GnmtPart(o, 0, cut) if rank == 0 else GnmtPart(o, cut, parts)
    size = (o.microbatch * o.microbatches, o.length)
    source, target, labels = (torch.randint(4, o.vocabulary, size) for _ in range(3))

    def loss(scores, labels):
        return F.cross_entropy(scores.flatten(0, 1), labels.t().flatten(), ignore_index=0, label_smoothing=0.1)

    return module, (source,), {"source": source, "words": target}, labels, loss


class LmPart(nn.Module):
    def __init__(self, o, first, last):
        super().__init__()
        self.o, self.first, self.last = o, first, last
        if first == 0:
            self.encoder, self.drop = nn.Embedding(o.vocabulary, o.hidden), nn.Dropout(o.dropout)
        inner = range(max(first - 1, 0), min(last - 1, o.layers))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(o.hidden, 2, o.hidden, dropout=o.dropout, batch_first=True) for _ in inner)
        if last == o.layers + 2:
            self.decoder = nn.Linear(o.hidden, o.vocabulary)
        place = torch.arange(o.length)[:, None]
        rate = torch.exp(torch.arange(0, o.hidden, 2) * (-torch.log(torch.tensor(10000.0)) / o.hidden))
        table = torch.zeros(o.length, o.hidden)
        table[:, 0::2], table[:, 1::2] = torch.sin(place * rate), torch.cos(place * rate)
        self.register_buffer("table", table)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(o.length))

    def forward(self, x):
        if self.first == 0:
            x = self.drop(self.encoder(x) * self.o.hidden**0.5 + self.table)
        for block in self.blocks:
            x = block(x, src_mask=self.mask, is_causal=True)
        return self.decoder(x) if self.last == self.o.layers + 2 else x


def transformer_lm(o, rank, ranks):
    parts = o.layers + 2
    cut = o.cut or parts // 2
    module = LmPart(o, 0, parts) if ranks == 1 else LmPart(o, 0, cut) if rank == 0 else LmPart(o, cut, parts)
    size = (o.microbatch * o.microbatches, o.length)
    tokens, labels = torch.randint(o.vocabulary, size), torch.randint(o.vocabulary, size)

    def loss(scores, labels):
        return F.cross_entropy(scores.flatten(0, 1), labels.flatten())

    return module, (tokens,), {}, labels, loss


class BertPart(nn.Module):
    """Tied decoder: one process only."""

    def __init__(self, o):
        from transformers import BertConfig, BertForPreTraining

        super().__init__()
        self.model = BertForPreTraining(BertConfig(
            vocab_size=o.vocabulary, hidden_size=o.hidden, num_hidden_layers=o.layers, num_attention_heads=o.hidden // 64,
            intermediate_size=4 * o.hidden, hidden_dropout_prob=o.dropout, attention_probs_dropout_prob=o.dropout))

    def forward(self, ids, types=None, masked=None):
        out = self.model.bert(input_ids=ids, token_type_ids=types, attention_mask=ids.ne(0).long())
        hidden = out.last_hidden_state.gather(1, masked[:, :, None].expand(-1, -1, out.last_hidden_state.shape[2]))
        return self.model.cls(hidden, out.pooler_output)


def bert_base(o, rank, ranks):
    samples = o.microbatch * o.microbatches
    ids = torch.randint(4, o.vocabulary, (samples, o.length))
    types = (torch.arange(o.length) >= o.length // 2).long().expand(samples, -1).contiguous()
    masked = torch.randint(o.length, (samples, 20))
    labels = torch.randint(4, o.vocabulary, (samples, 20))

    def loss(scores, labels):
        words, nsp = scores
        return F.cross_entropy(words.flatten(0, 1), labels.flatten()) + F.cross_entropy(nsp, labels[:, 0] % 2)

    return BertPart(o), (ids,), {"types": types, "masked": masked}, labels, loss


def main():
    o = options()
    torch.set_num_threads(1)
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks > 1:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if ranks > 1 else 0
    torch.manual_seed(rank)
    module, args, kwargs, labels, loss = globals()[o.model](o, rank, ranks)
    rule = torch.optim.SGD(module.parameters(), lr=0.01, fused=True)

    def cut(tensor):
        return tensor.chunk(o.microbatches)

    if ranks > 1:
        from torch.distributed.pipelining import PipelineStage, Schedule1F1B

        stage = PipelineStage(module, rank, ranks, torch.device("cpu"))
        own = {name: value for name, value in kwargs.items() if rank == 1}
        schedule = Schedule1F1B(stage, o.microbatches, loss_fn=loss)

        def step():
            rule.zero_grad()
            if rank == 0:
                schedule.step(*args)
            else:
                losses = []
                schedule.step(target=labels, losses=losses, **own)
                sum(losses).item()
            rule.step()
    else:
        def step():
            rule.zero_grad()
            for number in range(o.microbatches):
                inputs = [cut(a)[number] for a in args]
                own = {name: cut(value)[number] for name, value in kwargs.items()}
                (loss(module(*inputs, **own), cut(labels)[number]) / o.microbatches).backward()
            rule.step()

    seconds = []
    for _ in range(o.steps):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    with open(f"{o.out}{rank}.json", "w") as file:
        json.dump({"step_s": seconds}, file)
    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
