"""B models as one by torch.func.vmap: stacked parameters and buffers, vmap of grad over one batch for all, Adadelta on the
stacked tensors. torch.optim has one rate for all of a tensor, so the jobs have the same one.

    vmap_peer.py MODEL JOBS STEPS [DEVICE [compile]]

Prints the parameters of a job and the median step: in seconds of CPU time, on DEVICE cuda in seconds of the clock. With
"compile" the function goes through torch.compile.
"""

import copy
import math
import statistics
import sys
import time

import torch
import torchvision
from torch import nn
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn import functional as F

from fusion_models import MLPS


def mlp(width, depth, classes):
    layers = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(width, classes))


def resnet18(classes):
    """Of small images: a 3x3 stem without pooling."""
    model = torchvision.models.resnet18(num_classes=classes)
    model.conv1, model.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Identity()
    return model


def rows(sizes):
    """Linear, batch norm and ReLU from each size to the next."""
    return nn.Sequential(*(layer for i, o in zip(sizes, sizes[1:]) for layer in (nn.Linear(i, o), nn.BatchNorm1d(o), nn.ReLU())))


class PointNet(nn.Module):
    """Its classifier without the transform of features; convolutions over points are linear layers over rows."""

    def __init__(self, classes):
        super().__init__()
        self.local, self.whole, self.matrix = rows((3, 64, 128, 1024)), rows((1024, 512, 256)), nn.Linear(256, 9)
        self.first, self.last = rows((3, 64, 128)), nn.Sequential(nn.Linear(128, 1024), nn.BatchNorm1d(1024))
        self.fc1, self.fc2 = rows((1024, 512)), nn.Sequential(nn.Linear(512, 256), nn.Dropout(0.3), nn.BatchNorm1d(256), nn.ReLU())
        self.fc3 = nn.Linear(256, classes)

    def forward(self, x):  # [N, P, 3]
        n, points = x.shape[:2]
        largest = lambda of_rows: of_rows.view(n, points, -1).amax(1)
        turn = self.matrix(self.whole(largest(self.local(x.flatten(0, 1))))).view(n, 3, 3) + torch.eye(3, device=x.device)
        x = torch.bmm(x, turn).flatten(0, 1)
        return self.fc3(self.fc2(self.fc1(largest(self.last(self.first(x))))))


class Transformer(nn.Module):
    def __init__(self, vocabulary, features, heads, feed_forward, layers, dropout):
        super().__init__()
        self.embedding, self.decoder = nn.Embedding(vocabulary, features), nn.Linear(features, vocabulary)
        self.drop, self.scale = nn.Dropout(dropout), math.sqrt(features)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(features, heads, feed_forward, dropout, batch_first=True) for _ in range(layers))
        position = torch.arange(64).unsqueeze(1) * torch.exp(torch.arange(0, features, 2) * (-math.log(10000.0) / features))
        self.positions = torch.stack([position.sin(), position.cos()], 2).flatten(1)

    def forward(self, tokens):  # [N, L]
        length = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=tokens.device)
        x = self.drop(self.embedding(tokens) * self.scale + self.positions[:length].to(tokens.device))
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=True)
        return self.decoder(x).flatten(0, 1)


def made(name):
    """The model, a batch, its labels."""
    labels = lambda *shape: torch.randint(0, 10, shape)
    if name in MLPS:
        width, depth, microbatch = MLPS[name]
        return mlp(width, depth, 10), torch.randn(microbatch, width), labels(microbatch)
    if name == "cnn":
        return torchvision.models.squeezenet1_1(num_classes=10), torch.randn(4, 3, 32, 32), labels(4)
    if name == "resnet18":
        return resnet18(10), torch.randn(8, 3, 32, 32), labels(8)
    if name == "pointnet":
        return PointNet(10), torch.randn(8, 256, 3), labels(8)
    if name == "transformer":
        vocabulary = 33278
        tokens = torch.randint(0, vocabulary, (8, 33))
        return Transformer(vocabulary, 128, 2, 128, 2, 0.2), tokens[:, :-1], tokens[:, 1:].flatten()
    sys.exit(f"vmap_peer: no model {name}")


def main():
    name, jobs, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    device, compiled = (sys.argv[4:5] or ["cpu"])[0], sys.argv[5:] == ["compile"]
    torch.backends.cudnn.allow_tf32 = False  # as millrace
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model, x, target = (one.to(device) for one in made(name))
    for norm in model.modules():
        if hasattr(norm, "num_batches_tracked"):
            norm.num_batches_tracked = None  # grad does not let a function count in place
    parameters, buffers = stack_module_state([copy.deepcopy(model) for _ in range(jobs)])
    parameters = {key: value.detach() for key, value in parameters.items()}
    optimizer = torch.optim.Adadelta(parameters.values(), lr=0.01, foreach=True)

    def loss(own, own_buffers):
        value = F.cross_entropy(functional_call(model, (own, own_buffers), (x,)), target)
        return value, value

    gradients = vmap(grad(loss, has_aux=True), in_dims=(0, 0), randomness="different")
    if compiled:
        gradients = torch.compile(gradients)

    def now():
        if device == "cpu":
            return time.process_time()
        torch.cuda.synchronize()
        return time.perf_counter()

    seconds = []
    for _ in range(steps):
        start = now()
        found, losses = gradients(parameters, buffers)
        for key, value in parameters.items():
            value.grad = found[key]
        optimizer.step()
        seconds.append(now() - start)
    if not torch.isfinite(losses).all():
        sys.exit(f"vmap_peer: the losses of {name} are {losses.tolist()}")
    print(sum(value[0].numel() for value in parameters.values()), statistics.median(seconds[len(seconds) // 5:]))


if __name__ == "__main__":
    if len(sys.argv) not in (4, 5, 6):
        sys.exit(__doc__)
    main()
