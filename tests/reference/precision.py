"""Runs in FOLDER again under torch.autocast and torch.amp.GradScaler: the dtype of every layer's output, the losses, the
scales of the loss, the steps that were skipped, and, where all is float32, the parameters. precision.py FOLDER"""
import glob
import json
import sys

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn

torch.set_num_threads(1)
folder = sys.argv[1]
NAMES = {"Float": torch.float32, "BFloat16": torch.bfloat16, "Half": torch.float16}
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Noting(nn.Module):
    def __init__(self):
        super().__init__()
        self.dtypes = {}

    def note(self, name, x):
        self.dtypes[name] = x.dtype
        return x

    def layer(self, name, x):
        return self.note(name, getattr(self, name)(x))


class Residual(Noting):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.conv2, self.bn2 = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.fc = nn.Linear(32, 4)

    def forward(self, x):
        x = self.layer("bn1", self.layer("conv1", x))
        skip = self.note("relu1", F.relu(x))
        x = self.layer("bn2", self.layer("conv2", skip))
        x = self.note("sum", x + skip)
        x = self.note("pool", F.max_pool2d(x, 2))
        x = self.note("mean", F.adaptive_avg_pool2d(x, 2))
        return self.layer("fc", self.note("flat", x.flatten(1)))


class Attention(Noting):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(13, 8)
        self.norm1, self.norm2, self.norm3 = nn.LayerNorm(8), nn.LayerNorm(8), nn.LayerNorm(16)
        self.qkv, self.out, self.up, self.fc = nn.Linear(8, 24), nn.Linear(8, 8), nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, tokens):
        x = skip = self.layer("embedding", tokens)
        q, k, v = self.layer("qkv", self.layer("norm1", x)).chunk(3, 2)
        split = lambda t: t.reshape(*t.shape[:2], 2, 4).transpose(1, 2)
        x = F.scaled_dot_product_attention(split(q), split(k), split(v)).transpose(1, 2).flatten(2)
        x = self.layer("out", self.note("attention", x))
        total = self.note("sum", x + skip)
        x = self.note("beside", torch.cat([total, self.layer("norm2", x)], -1))
        x = self.note("gelu", F.gelu(self.layer("up", x)))
        return self.layer("fc", self.layer("norm3", self.note("first", x[:, 0])))


class Mlp(Noting):
    def __init__(self):
        super().__init__()
        self.a, self.c = nn.Linear(12, 16), nn.Linear(16, 5)

    def forward(self, x):
        return self.layer("c", self.note("b", F.gelu(self.layer("a", x))))


def compare(path):
    case = json.load(open(path))
    base = path.removesuffix(".json")
    before, after, batches = (load_file(f"{base}.{part}.safetensors") for part in ("before", "after", "batches"))
    model = {"residual": Residual, "attention": Attention, "mlp": Mlp}[case["model"]]()
    model.load_state_dict(before)
    rule = torch.optim.Adam if case["adam"] else torch.optim.SGD
    optimizer = rule(model.parameters(), lr=case["lr"], **({} if case["adam"] else {"momentum": 0.9}))
    scaler = torch.amp.GradScaler("cpu", enabled=case["scales"], init_scale=case["initial"],
                                  growth_interval=case["growth_interval"])
    low = PRECISIONS[case["precision"]]
    log = [json.loads(line) for line in open(case["log"])][1:]
    skipped = 0
    for step in range(case["steps"]):
        field = "tokens" if case["model"] == "attention" else "input"
        optimizer.zero_grad()
        with torch.autocast("cpu", low, enabled=low != torch.float32):
            loss = F.cross_entropy(model(batches[f"{step}/{field}"]), batches[f"{step}/target"])
        scale = scaler.get_scale()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        # One rounding of a score is 2^-9 of it with bfloat16 (2^-12 with float16); scores are a few units, the losses
        # of 20 steps drift apart by a few roundings.
        tolerance = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}[low] * max(1, abs(loss.item()))
        assert abs(loss.item() - case["losses"][step]) <= tolerance, (path, step, loss.item(), case["losses"][step])
        if case["scales"]:
            skips = scaler.get_scale() < scale
            skipped += skips
            assert log[step]["loss_scale"] == scale, (path, step, log[step]["loss_scale"], scale)
            assert log[step]["skipped"] == skips, (path, step)
    assert skipped == case["skipped"], (path, skipped, case["skipped"])
    for name, dtype in case["dtypes"].items():
        assert model.dtypes[name] == NAMES[dtype], (path, name, dtype, model.dtypes[name])
    assert set(model.dtypes) == set(case["dtypes"])
    if low == torch.float32:
        assert skipped > 0, "nothing overflowed"
        for name, value in model.state_dict().items():  # matrix products may add up in another order
            torch.testing.assert_close(after[name], value, rtol=1e-5, atol=1e-6, msg=lambda m: f"{path} {name}: {m}")


paths = sorted(glob.glob(f"{folder}/*-*.json"))
assert len(paths) == 5, paths
for path in paths:
    compare(path)
