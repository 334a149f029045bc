"""GNMT's beam search in plain PyTorch, batched as MLPerf's generator is: what `millrace translate` is measured beside.
torch_translate.py WEIGHTS VOCABULARY SPLIT_TEXT OUT [--beam 5] [--max-length 150] [--batch 64] [--coverage exact|compat]
[--threads N]. SPLIT_TEXT has words split by codes; OUT gets the tokens. Prints the seconds of translating."""
import argparse
import sys
import time

import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F

PAD, UNK, BOS, EOS = 0, 1, 2, 3


class Gnmt:
    def __init__(self, weights):
        self.w = weights
        self.layers = sum(n.startswith("encoder.rnn_layers.") and n.endswith(".weight_ih_l0") for n in weights)
        self.encoder = [self.lstm(f"encoder.rnn_layers.{i}", both=i == 0) for i in range(self.layers)]
        names = ["decoder.att_rnn.rnn"] + [f"decoder.rnn_layers.{j}" for j in range(self.layers - 1)]
        self.decoder = [self.lstm(name) for name in names]
        a = "decoder.att_rnn.attn."
        self.wq, self.wk, self.beta = weights[a + "linear_q.weight"], weights[a + "linear_k.weight"], weights[a + "normalize_bias"]
        v = weights[a + "linear_att"]
        self.v = weights[a + "normalize_scalar"] * v / v.norm()
        self.table = weights.get("decoder.embedder.weight", weights["encoder.embedder.weight"])
        self.classifier = [weights["decoder.classifier.classifier." + part] for part in ("weight", "bias")]

    def lstm(self, name, both=False):
        w = {key[len(name) + 1:]: value for key, value in self.w.items() if key.startswith(name + ".")}
        made = nn.LSTM(w["weight_ih_l0"].shape[1], w["weight_hh_l0"].shape[1], bidirectional=both)
        made.load_state_dict(w)
        return made

    def encode(self, source, lengths):
        x = F.embedding(source, self.w["encoder.embedder.weight"])
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths)
        x = nn.utils.rnn.pad_packed_sequence(self.encoder[0](packed)[0])[0]
        x = self.encoder[1](x)[0]
        for lstm in self.encoder[2:]:
            x = x + lstm(x)[0]
        e = x.transpose(0, 1).contiguous()  # [B, S, H]
        return e, e @ self.wk.T + self.beta, source.T.eq(PAD)

    def step(self, words, memory, states):
        """words [B, k]; the states of each LSTM: [1, B k, H] twice."""
        e, keys, padded = memory
        batch, beam = words.shape
        out, new = self.decoder[0](F.embedding(words.flatten(), self.table)[None], states[0])
        new, y = [new], out[0]
        scores = torch.tanh((y @ self.wq.T).view(batch, beam, 1, -1) + keys[:, None]) @ self.v  # [B, k, S]
        attention = scores.masked_fill(padded[:, None], -65504.0).softmax(2)
        context = torch.bmm(attention, e).flatten(0, 1)
        for j, lstm in enumerate(self.decoder[1:]):
            out, state = lstm(torch.cat([y, context], 1)[None], states[j + 1])
            new.append(state)
            y = out[0] + y if j > 0 else out[0]
        return F.linear(y, *self.classifier).view(batch, beam, -1), attention, new


def search(model, sources, beam, longest, compat):
    """sources: lists of numbers with begin and end, longest first. A list of words for each."""
    n = len(sources)
    lengths = torch.tensor([len(s) for s in sources])
    source = nn.utils.rnn.pad_sequence([torch.tensor(s) for s in sources], padding_value=PAD)
    memory = tuple(t for t in model.encode(source, lengths))
    hidden = model.wq.shape[0]
    states = [(torch.zeros(1, n * beam, hidden),) * 2 for _ in model.decoder]
    active = torch.arange(n)
    words = torch.full((n, beam), BOS)
    scores, size = torch.zeros(n, beam), torch.ones(n, beam)
    coverage = torch.zeros(n, beam, source.shape[0])
    out = torch.full((n, beam, longest), PAD)
    final = torch.zeros(n, beam)
    for t in range(1, longest):
        ended = words.eq(EOS)
        done = ended.all(1)
        if done.any():  # score them, and go on without them
            at = active[done]
            norm = ((5 + size[done]) / 6) ** 0.6
            covered = coverage[done].clamp(max=1).log()
            covered[covered == -float("inf")] = 0
            final[at] = scores[done] / norm + 0.1 * covered.sum(2) if beam > 1 else scores[done]
            keep = ~done
            active, words, scores, size, coverage = active[keep], words[keep], scores[keep], size[keep], coverage[keep]
            memory = tuple(m[keep] for m in memory)
            rows = keep[:, None].expand(-1, beam).flatten()
            states = [(h[:, rows], c[:, rows]) for h, c in states]
            ended = ended[keep]
            if not len(active):
                break
        size += ~ended
        logits, attention, states = model.step(words, memory, states)
        likely, next_words = logits.log_softmax(2).topk(beam, 2)  # [B, k, k]
        coverage += attention.masked_fill(ended[:, :, None], 0)
        next_words = next_words.masked_fill(ended[:, :, None], EOS)
        only = torch.full((beam,), -float("inf"))
        only[0] = 0
        likely = torch.where(ended[:, :, None], only, likely)
        new = scores[:, :, None] + likely
        if t == 1:
            new[:, 1:] = -float("inf")
        scores, index = new.flatten(1).topk(beam, 1)
        origin = index // beam
        words = next_words.flatten(1).gather(1, index)
        out[active] = out[active].gather(1, origin[:, :, None].expand(-1, -1, longest))
        out[active, :, t] = words
        size = size.gather(1, origin)
        if not compat:
            coverage = coverage.gather(1, origin[:, :, None].expand_as(coverage))
        rows = (origin + torch.arange(len(active))[:, None] * beam).flatten()
        states = [(h[:, rows], c[:, rows]) for h, c in states]
    final[active] = scores
    best = final.argmax(1)
    results = []
    for s in range(n):
        line = out[s, best[s], 1:].tolist()
        results.append(line[:line.index(EOS)] if EOS in line else line)
    return results


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("weights")
    parser.add_argument("vocabulary")
    parser.add_argument("text")
    parser.add_argument("out")
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--max-length", type=int, default=150)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--coverage", default="exact")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.set_grad_enabled(False)
    model = Gnmt(load_file(args.weights))
    tokens = ["<pad>", "<unk>", "<s>", "<\\s>"] + open(args.vocabulary, encoding="utf-8").read().split("\n")[:-1]
    numbers = {token: i for i, token in enumerate(tokens)}
    lines = [line.split() for line in open(args.text, encoding="utf-8")]
    sources = [[BOS] + [numbers.get(token, UNK) for token in line] + [EOS] for line in lines]
    order = sorted((i for i in range(len(lines)) if lines[i]), key=lambda i: -len(sources[i]))
    results = [[]] * len(lines)
    start = time.perf_counter()
    for first in range(0, len(order), args.batch):
        some = order[first:first + args.batch]
        for i, words in zip(some, search(model, [sources[i] for i in some], args.beam, args.max_length, args.coverage == "compat")):
            results[i] = words
    seconds = time.perf_counter() - start
    with open(args.out, "w", encoding="utf-8") as file:
        for words in results:
            file.write(" ".join(tokens[word] if word < len(tokens) else "<unk>" for word in words) + "\n")
    print(f"{seconds:.3f}")


if __name__ == "__main__":
    sys.exit(main())
