"""dlrm.py FOLDER: what tests/models/dlrm_test.cpp wrote there, beside DLRM written plainly in PyTorch.

FOLDER/dlrm-FORM.*.safetensors: one_step.py, of the forms meta and nvidia; dlrm-FORM-fast.*: the same step with FAST_RATE.
"""

import pathlib
import sys

import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F

from one_step import check_step

FAST_RATE = 4096  # of dlrm-FORM-fast.*


def mlp(widths, last):
    layers = []
    for a, b in zip(widths, widths[1:]):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1], *last)


class Dlrm(nn.Module):
    """Meta's model and names; `nvidia`: logits instead of probabilities, and a zero behind the products."""

    def __init__(self, dense, rows, bottom, top, nvidia=False):
        super().__init__()
        self.nvidia, features, vectors = nvidia, bottom[-1], len(rows) + 1
        self.bot_l = mlp([dense, *bottom], [nn.ReLU()])
        self.top_l = mlp([features + vectors * (vectors - 1) // 2 + nvidia, *top], [] if nvidia else [nn.Sigmoid()])
        self.emb_l = nn.ModuleList(nn.EmbeddingBag(n, features, mode="sum") for n in rows)
        self.pairs = torch.tensor([(i, j) for i in range(vectors) for j in range(i)]).T

    def forward(self, dense, categories):
        offsets = torch.arange(len(dense))
        x = self.bot_l(dense)
        t = torch.stack([x] + [table(index, offsets) for table, index in zip(self.emb_l, categories)], 1)
        return self.top_l(F.pad(torch.cat([x, self.products(t)], 1), (0, int(self.nvidia)))).squeeze(1)

    def products(self, t):
        return torch.bmm(t, t.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]

    def loss_of(self, batch):
        kind = self.bot_l[0].weight.dtype
        scores = self(batch["dense"].to(kind), [batch[f"category{k}"] for k in range(len(self.emb_l))])
        target = batch["label"].to(kind)
        return (F.binary_cross_entropy_with_logits if self.nvidia else F.binary_cross_entropy)(scores, target)


def check_exactly(folder, name, sizes):
    """The loss, and the gradient as a share of its norm, are within 1e-6 of this model's in float64."""
    before, batch, after = (load_file(folder / f"{name}-fast.{part}.safetensors") for part in ("before", "batch", "after"))
    model = Dlrm(**sizes).double()
    model.load_state_dict(before)
    loss = model.loss_of(batch)
    loss.backward()
    gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
    ours = torch.cat([(before[key].double() - after[key].double()).flatten() / FAST_RATE
                      for key, _ in model.named_parameters()])
    off_by = [abs(batch["loss"].item() - loss.item()), ((ours - gradient).norm() / gradient.norm()).item()]
    print(f"{name}: loss and gradient are off by", *off_by)
    assert max(off_by) <= 1e-6


if __name__ == "__main__":
    folder = pathlib.Path(sys.argv[1])
    golden = torch.sin(0.1 * torch.arange(27 * 4, dtype=torch.double)).view(1, 27, 4)
    model = Dlrm(13, [1] * 26, [4], [1])
    assert abs(model.products(golden).sum().item() + 6.85697085422) < 1e-10
    for form in ("meta", "nvidia"):
        weights = load_file(folder / f"dlrm-{form}.before.safetensors")
        linears = {part: [value for key, value in weights.items() if key.startswith(part) and key.endswith("weight")]
                   for part in ("bot_l.", "top_l.", "emb_l.")}
        sizes = {"dense": linears["bot_l."][0].shape[1], "rows": [len(table) for table in linears["emb_l."]],
                 "bottom": [len(w) for w in linears["bot_l."]], "top": [len(w) for w in linears["top_l."]],
                 "nvidia": form == "nvidia"}
        check_step(folder, f"dlrm-{form}", model := Dlrm(**sizes), model.loss_of)
        check_exactly(folder, f"dlrm-{form}", sizes)
