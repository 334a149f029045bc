"""B models as one by HFTA itself (github.com/UofT-EcoSystem/hfta, branch releases/mlsys21: at its head the encoder layer
cannot be made): its fused layers, its example models where it has them, its Adadelta with a rate for each model. The
batch is copied for each model at every step, as its examples do.

    hfta_peer.py FOLDER MODEL JOBS STEPS     prints the parameters of a job and the median step in seconds of CPU time; FOLDER has
                                             hfta/ and examples/
"""

import collections.abc
import importlib.util
import os
import statistics
import sys
import time
import types

import torch
from torch import nn
from torch.nn import functional as F

from fusion_models import MLPS

# What its PyTorch had and ours has not.
if importlib.util.find_spec("torch._six") is None:
    sys.modules["torch._six"] = types.SimpleNamespace(container_abcs=collections.abc)


class Mlp(nn.Module):
    def __init__(self, jobs, width, depth, classes):
        super().__init__()
        linear = ops.get_hfta_op_for(nn.Linear, B=jobs)
        layers = []
        for _ in range(depth):
            layers += [linear(width, width), nn.GELU()]
        self.layers = nn.Sequential(*layers, linear(width, classes))

    def forward(self, x):  # [B, N, F]
        return F.log_softmax(self.layers(x), -1)


class Fire(nn.Module):
    def __init__(self, conv, channels, squeeze, expand):
        super().__init__()
        self.squeeze, self.small, self.large = conv(channels, squeeze, 1), conv(squeeze, expand, 1), conv(
            squeeze, expand, 3, padding=1)

    def forward(self, x):  # [N, B, C, H, W]
        x = F.relu(self.squeeze(x))
        return torch.cat([F.relu(self.small(x)), F.relu(self.large(x))], 2)


class SqueezeNet(nn.Module):
    """1.1, as millrace's."""

    def __init__(self, jobs, classes):
        super().__init__()
        conv, pool = ops.get_hfta_op_for(nn.Conv2d, B=jobs), ops.get_hfta_op_for(nn.MaxPool2d, B=jobs)
        layers, channels = [conv(3, 64, 3, stride=2), nn.ReLU()], 64
        for part in (None, (16, 64), (16, 64), None, (32, 128), (32, 128), None, (48, 192), (48, 192), (64, 256), (64, 256)):
            if part is None:
                layers.append(pool(3, 2, ceil_mode=True))
                continue
            layers.append(Fire(conv, channels, *part))
            channels = 2 * part[1]
        self.layers = nn.Sequential(*layers, nn.Dropout(0.5), conv(channels, classes, 1), nn.ReLU())

    def forward(self, x):  # [N, B, C, H, W] -> [B, N, classes]
        return F.log_softmax(self.layers(x).mean((3, 4)).transpose(0, 1), -1)


def example(folder, name):
    """examples/NAME/model.py as a module."""
    spec = importlib.util.spec_from_file_location(f"hfta_{name}", os.path.join(folder, "examples", name, "model.py"))
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class Mean(nn.Module):
    """Over height and width, which become 1."""

    def forward(self, x):
        return x.mean((-2, -1), keepdim=True)


def resnet18(folder, jobs, classes):
    """As millrace's of small images: a 3x3 stem without pooling, then pooling before the last layer."""
    resnet = example(folder, "resnet")
    model = resnet.ResNet(resnet.BasicBlock, [2, 2, 2, 2], num_classes=classes, B=jobs)
    model.conv1 = ops.get_hfta_op_for(nn.Conv2d, B=jobs)(3, 64, 3, padding=1, bias=False)
    model.maxpool, model.layer4 = nn.Identity(), nn.Sequential(model.layer4, Mean())
    return model


def transformer(folder, jobs, vocabulary):
    model = example(folder, "transformer").TransformerModel(vocabulary, 128, 2, 128, 2, 0.2, B=jobs)
    encoder = model.transformer_encoder

    def walk(x, mask):  # torch's container says more to a layer than this one takes
        for layer in encoder.layers:
            x = layer(x, src_mask=mask)
        return x

    encoder.forward = walk
    return model


def made(folder, name, jobs):
    """The model, inputs of one job, how they are copied for all, and labels."""
    outer = lambda x: x.unsqueeze(0).expand(jobs, *x.shape).contiguous()
    folded = lambda x: x.unsqueeze(1).expand(-1, jobs, *x.shape[1:]).contiguous()
    labels = lambda *shape: torch.randint(0, 10, shape)
    if name in MLPS:
        width, depth, samples = MLPS[name]
        return Mlp(jobs, width, depth, 10), torch.randn(samples, width), outer, labels(samples)
    if name == "cnn":
        return SqueezeNet(jobs, 10), torch.randn(4, 3, 32, 32), folded, labels(4)
    if name == "resnet18":
        return resnet18(folder, jobs, 10), torch.randn(8, 3, 32, 32), folded, labels(8)
    if name == "pointnet":
        model = example(folder, "pointnet").PointNetCls(k=10, feature_transform=False, B=jobs)
        return model, torch.randn(8, 256, 3), outer, labels(8)
    if name == "transformer":
        vocabulary = 33278
        tokens = torch.randint(0, vocabulary, (8, 33))
        return transformer(folder, jobs, vocabulary), tokens[:, :-1], outer, tokens[:, 1:]
    sys.exit(f"hfta_peer: no model {name}")


def main():
    folder, name, jobs, steps = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    model, x, copied, labels = made(folder, name, jobs)
    optimizer = optim.get_hfta_optim_for(torch.optim.Adadelta, B=jobs)(
        model.parameters(), lr=[0.01 * (1 + job / 100) for job in range(jobs)])
    model.train()
    seconds = []
    for _ in range(steps):
        start = time.process_time()
        optimizer.zero_grad()
        scores = model(copied(x))
        scores = scores[0] if isinstance(scores, tuple) else scores  # [B, N, ..., classes]
        target = labels.unsqueeze(0).expand(jobs, *labels.shape)
        loss = jobs * F.nll_loss(scores.flatten(0, -2), target.flatten())
        loss.backward()
        optimizer.step()
        seconds.append(time.process_time() - start)
    if not torch.isfinite(loss):
        sys.exit(f"hfta_peer: the loss of {name} is {loss.item()}")
    print(sum(p.numel() for p in model.parameters()) // jobs, statistics.median(seconds[len(seconds) // 5:]))


if __name__ == "__main__":
    if len(sys.argv) != 5 or not os.path.isdir(os.path.join(sys.argv[1], "hfta")):
        sys.exit(__doc__)
    torch.set_num_threads(1)
    torch.manual_seed(1)
    sys.path.insert(0, sys.argv[1])
    from hfta import ops, optim
    main()
