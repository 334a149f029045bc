"""Models for benchmarks/exported.py, and PyTorch's own steps of them.

    exported_peer.py export NAME FOLDER       FOLDER/NAME.pt2 and NAME.npz, a step's samples
    exported_peer.py one NAME OUT             eager steps in this process
    exported_peer.py pipeline NAME OUT        one rank of torch.distributed.pipelining (started by torchrun): traced by
                                              pipeline(...), cut at SplitPoint --split; one place for Schedule1F1B, three for two
                                              stages a rank under ScheduleInterleavedZeroBubble or ScheduleZBVZeroBubble
The loss of a step is the mean over its microbatches, plain SGD through the fused kernel, the same samples every step. OUT
gets {"step_s": [...], "loss": [...]}.
"""
import argparse
import json
import time
import warnings

warnings.filterwarnings("ignore")
import torch
from torch import nn

CLASSES, VOCABULARY, LENGTH = 10, 1000, 64


class Scores(nn.Module):
    """The logits alone: what torch.distributed.pipelining cuts, its loss comes behind."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(x)


class TokenScores(Scores):
    """transformers' models make masks of tokens and booleans of them, which torch.distributed.pipelining cannot send (it asks
    for the gradient of everything that it receives): these are given the mask that is added to the scores."""

    def __init__(self, model, causal):
        super().__init__(model)
        mask = torch.full((LENGTH, LENGTH), -1e9).triu(1) if causal else torch.zeros(LENGTH, LENGTH)
        self.register_buffer("mask", mask[None, None])

    def forward(self, x):
        return self.model(input_ids=x, attention_mask=self.mask).logits


class Trained(nn.Module):
    """The model and its loss in one graph: what is exported."""

    def __init__(self, scores):
        super().__init__()
        self.scores = scores

    def forward(self, x, y):
        return loss_of(self.scores(x), y)


def loss_of(scores, y):
    return nn.functional.cross_entropy(scores.reshape(-1, scores.shape[-1]), y.reshape(-1))


def resnet50():
    import torchvision

    return Scores(torchvision.models.resnet50(num_classes=CLASSES))


def bert():
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(num_hidden_layers=4, hidden_size=256, num_attention_heads=4, intermediate_size=1024, vocab_size=VOCABULARY,
                        max_position_embeddings=LENGTH, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, attn_implementation="eager")
    return TokenScores(BertForMaskedLM(config), causal=False)


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=4, n_embd=256, n_head=4, vocab_size=VOCABULARY, n_positions=LENGTH, resid_pdrop=0.0, embd_pdrop=0.0,
                        attn_pdrop=0.0, use_cache=False, attn_implementation="eager")
    return TokenScores(GPT2LMHeadModel(config), causal=True)


# How it is made, samples of a microbatch, where torch's pipeline may be cut.
MODELS = {
    "resnet50": (resnet50, 8, ["model.layer3.0", "model.layer2.2", "model.layer3.3"]),
    "bert": (bert, 8, ["model.bert.encoder.layer.2"]),
    "gpt2": (gpt2, 8, ["model.transformer.h.2", "model.transformer.h.3"]),
}
MICROBATCHES = 8


def samples(name, microbatch):
    rows = microbatch * MICROBATCHES
    if name == "resnet50":
        return torch.randn(rows, 3, 64, 64), torch.randint(CLASSES, (rows,))
    return torch.randint(VOCABULARY, (rows, LENGTH)), torch.randint(VOCABULARY, (rows, LENGTH))


def export(opts, model, x, y):
    import numpy

    rows = {0: torch.export.Dim.DYNAMIC}
    program = torch.export.export(Trained(model).train(), (x[: opts.microbatch], y[: opts.microbatch]), dynamic_shapes=(rows, rows),
                                  strict=False)
    torch.export.save(program, f"{opts.out}/{opts.name}.pt2")
    numpy.savez(f"{opts.out}/{opts.name}.npz", x=x.numpy(), y=y.numpy())


def eager_step(model, x, y):
    rule = torch.optim.SGD(model.parameters(), lr=0.001, fused=True)
    parts = list(zip(x.chunk(MICROBATCHES), y.chunk(MICROBATCHES)))

    def step():
        rule.zero_grad()
        total = 0.0
        for inputs, targets in parts:
            loss = loss_of(model(inputs), targets) / MICROBATCHES
            loss.backward()
            total += loss.item()
        rule.step()
        return total

    return step


def pipeline_step(opts, model, x, y):
    import torch.distributed as dist
    from torch.distributed.pipelining import Schedule1F1B, ScheduleInterleavedZeroBubble, ScheduleZBVZeroBubble, SplitPoint, pipeline

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    splits = opts.split.split(",")
    pipe = pipeline(model, mb_args=(x[: opts.microbatch],), split_spec={split: SplitPoint.BEGINNING for split in splits})
    places = {"1f1b": [rank], "interleaved-zb": [rank, rank + 2], "zbv": [rank, 3 - rank]}[opts.schedule]
    stages = [pipe.build_stage(place, torch.device("cpu"), dist.group.WORLD) for place in places]
    for stage in stages:
        stage.submod.train()
    rule = torch.optim.SGD([p for stage in stages for p in stage.submod.parameters()], lr=0.001, fused=True)
    if opts.schedule == "1f1b":
        schedule = Schedule1F1B(stages[0], MICROBATCHES, loss_fn=loss_of)
    else:
        kind = ScheduleZBVZeroBubble if opts.schedule == "zbv" else ScheduleInterleavedZeroBubble
        schedule = kind(stages, MICROBATCHES, loss_fn=loss_of)
    first, last = 0 in places, len(splits) in places

    def step():
        rule.zero_grad()
        losses = []
        schedule.step(*([x] if first else []), **({"target": y, "losses": losses} if last else {}))
        rule.step()
        return sum(losses).item() / MICROBATCHES if losses else None

    return step


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["export", "one", "pipeline"])
    parser.add_argument("name", choices=list(MODELS))
    parser.add_argument("out")
    parser.add_argument("--microbatch", type=int, default=0, help="samples (default: the model's)")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--split", default="", help="where the next stage begins, with commas")
    parser.add_argument("--schedule", default="1f1b", choices=["1f1b", "interleaved-zb", "zbv"])
    opts = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(7)
    make, microbatch, splits = MODELS[opts.name]
    opts.microbatch = opts.microbatch or microbatch
    opts.split = opts.split or splits[0]
    model = make().train()
    x, y = samples(opts.name, opts.microbatch)
    if opts.what == "export":
        return export(opts, model, x, y)
    step = eager_step(model, x, y) if opts.what == "one" else pipeline_step(opts, model, x, y)
    seconds, losses = [], []
    for _ in range(opts.steps):
        start = time.perf_counter()
        losses.append(step())
        seconds.append(time.perf_counter() - start)
    rank = ""
    if opts.what == "pipeline":
        import torch.distributed as dist

        rank = f".rank{dist.get_rank()}"
        dist.destroy_process_group()
    with open(f"{opts.out}{rank}.json", "w") as file:
        json.dump({"step_s": seconds, "loss": losses}, file)


if __name__ == "__main__":
    main()
