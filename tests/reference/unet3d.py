"""unet3d.py FOLDER: what tests/models/unet3d_test.cpp wrote there, beside UNET3D written plainly in PyTorch.

FOLDER/unet3d.*.safetensors: one_step.py; unet3d-fast.*: the same step with the rate FAST_RATE.
"""

import pathlib
import sys

import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F

from one_step import check_step


FAST_RATE = 4096  # of unet3d-fast.*


def unit(a, b, stride=1):
    return nn.Sequential(nn.Conv3d(a, b, 3, stride, 1, bias=False), nn.InstanceNorm3d(b, affine=True), nn.ReLU())


class Block(nn.Module):
    def __init__(self, a, b, stride=1):
        super().__init__()
        self.conv1, self.conv2 = unit(a, b, stride), unit(b, b)

    def forward(self, x):
        return self.conv2(self.conv1(x))


class Up(Block):
    def __init__(self, a, b):
        super().__init__(2 * b, b)
        self.upsample_conv = nn.Sequential(nn.ConvTranspose3d(a, b, 2, 2))

    def forward(self, x, skip):
        return super().forward(torch.cat([self.upsample_conv(x), skip], 1))


class Unet3d(nn.Module):
    def __init__(self, filters=32, levels=5, classes=3):
        super().__init__()
        c = [filters * min(2**level, 10) for level in range(levels + 1)]
        self.input_block = Block(1, c[0])
        self.downsample = nn.ModuleList(Block(c[i], c[i + 1], 2) for i in range(levels - 1))
        self.bottleneck = Block(c[-2], c[-1], 2)
        self.upsample = nn.ModuleList(Up(c[i + 1], c[i]) for i in reversed(range(levels)))
        self.output = nn.Module()
        self.output.conv = nn.Conv3d(c[0], classes, 1)

    def forward(self, x):
        skips = [self.input_block(x)]
        for block in self.downsample:
            skips.append(block(skips[-1]))
        x = self.bottleneck(skips[-1])
        for block, skip in zip(self.upsample, reversed(skips)):
            x = block(x, skip)
        return self.output.conv(x)


def loss_of(scores, target):
    """Half cross-entropy, half one minus the mean dice of samples and classes but the background."""
    classes, voxels = scores.shape[1], (2, 3, 4)
    one_hot = F.one_hot(target[:, 0].long(), classes).movedim(-1, 1).to(scores.dtype)
    p = scores.softmax(1)
    dice = (2 * (p * one_hot).sum(voxels) + 1e-6) / (p.sum(voxels) + one_hot.sum(voxels) + 1e-6)
    return (F.cross_entropy(scores, target[:, 0].long()) + (1 - dice[:, 1:]).mean()) / 2


def gradient_of(weights, batch, model):
    """The loss and all gradients as one float64 vector, computed in the model's precision."""
    kind = next(model.parameters()).dtype
    model.load_state_dict(weights)
    loss = loss_of(model(batch["input"].to(kind)), batch["target"])
    loss.backward()
    return loss.item(), torch.cat([p.grad.double().flatten() for p in model.parameters()])


def check_exactly(folder, sizes):
    """The loss, and the gradient as a share of its norm, are within 1e-6 of this model's in float64."""
    before, batch, after = (load_file(folder / f"unet3d-fast.{part}.safetensors")
                            for part in ("before", "batch", "after"))
    ours = torch.cat([(before[name].double() - after[name].double()).flatten() / FAST_RATE
                      for name, _ in Unet3d(**sizes).named_parameters()])
    loss, gradient = gradient_of(before, batch, Unet3d(**sizes).double())
    off_by = [abs(batch["loss"].item() - loss), ((ours - gradient).norm() / gradient.norm()).item()]
    print("unet3d: loss and gradient are off by", *off_by)
    assert max(off_by) <= 1e-6


if __name__ == "__main__":
    folder = pathlib.Path(sys.argv[1])
    weights = load_file(folder / "unet3d.before.safetensors")
    sizes = {"filters": weights["input_block.conv1.0.weight"].shape[0],
             "levels": sum(key.endswith("upsample_conv.0.weight") for key in weights)}
    assert sum(p.numel() for p in Unet3d().parameters()) == 31_190_243
    check_step(folder, "unet3d", model := Unet3d(**sizes), lambda b: loss_of(model(b["input"]), b["target"]))
    check_exactly(folder, sizes)
