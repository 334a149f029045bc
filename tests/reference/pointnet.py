"""pointnet.py FOLDER: what tests/models/pointnet_test.cpp wrote there, beside PointNet written plainly in PyTorch.

FOLDER/{pointnet_cls,pointnet_seg}-{off,on}.*.safetensors: one_step.py; with and without the feature transform.
"""

import pathlib
import sys

import torch
from torch import nn
from torch.nn import functional as F

from one_step import check_step


class Rows(nn.Module):
    """Linear layers `linears` (name: in, out), each with batch normalisation over all rows but those of `plain`."""

    def __init__(self, linears, plain=()):
        super().__init__()
        number = 0
        self.norm_of = {}
        for name, (fan_in, fan_out) in linears.items():
            self.add_module(name, nn.Linear(fan_in, fan_out))
            if name not in plain:
                number += 1
                self.norm_of[name] = f"bn{number}"
                self.add_module(f"bn{number}", nn.BatchNorm1d(fan_out))

    def apply_layer(self, name, x):
        x = getattr(self, name)(x)
        if name not in self.norm_of:
            return x
        return getattr(self, self.norm_of[name])(x.flatten(0, -2)).view(x.shape)


class Transformer(Rows):
    def __init__(self, size):
        super().__init__({"conv1": (size, 64), "conv2": (64, 128), "conv3": (128, 1024), "fc1": (1024, 512),
                          "fc2": (512, 256), "fc3": (256, size * size)}, plain=("fc3",))
        self.size = size

    def forward(self, points):
        x = points
        for name in ("conv1", "conv2", "conv3"):
            x = F.relu(self.apply_layer(name, x))
        x = x.max(1).values
        for name in ("fc1", "fc2"):
            x = F.relu(self.apply_layer(name, x))
        return self.fc3(x).view(-1, self.size, self.size) + torch.eye(self.size)


class Features(Rows):
    def __init__(self, transform):
        super().__init__({"conv1": (3, 64), "conv2": (64, 128), "conv3": (128, 1024)})
        self.stn = Transformer(3)
        self.fstn = Transformer(64) if transform else None

    def forward(self, points):
        x = F.relu(self.apply_layer("conv1", points @ self.stn(points)))
        matrix = self.fstn(x) if self.fstn else None
        of_points = x if matrix is None else x @ matrix
        x = F.relu(self.apply_layer("conv2", of_points))
        return self.apply_layer("conv3", x).max(1).values, of_points, matrix


class Classifier(Rows):
    def __init__(self, classes, transform):
        super().__init__({"fc1": (1024, 512), "fc2": (512, 256), "fc3": (256, classes)}, plain=("fc3",))
        self.feat = Features(transform)

    def forward(self, points):
        x, _, matrix = self.feat(points)
        for name in ("fc1", "fc2"):
            x = F.relu(self.apply_layer(name, x))
        return self.fc3(x), matrix


class Segmenter(Rows):
    def __init__(self, parts, transform):
        super().__init__({"conv1": (1088, 512), "conv2": (512, 256), "conv3": (256, 128), "conv4": (128, parts)},
                         plain=("conv4",))
        self.feat = Features(transform)

    def forward(self, points):
        cloud, x, matrix = self.feat(points)
        x = torch.cat([cloud.unsqueeze(1).expand(-1, points.size(1), -1), x], 2)
        for name in ("conv1", "conv2", "conv3"):
            x = F.relu(self.apply_layer(name, x))
        return self.conv4(x), matrix


def loss_of(model, batch):
    scores, matrix = model(batch["points"])
    labels = batch["target"] if "target" in batch else batch["labels"]
    loss = F.nll_loss(F.log_softmax(scores, -1).flatten(0, -2), labels.flatten())
    if matrix is not None:
        off = matrix @ matrix.transpose(1, 2) - torch.eye(matrix.size(1))
        loss = loss + 0.001 * torch.linalg.matrix_norm(off).mean()
    return loss


folder = pathlib.Path(sys.argv[1])
torch.set_num_threads(1)
for kind, make in (("pointnet_cls", Classifier), ("pointnet_seg", Segmenter)):
    for transform in ("off", "on"):
        twin = make(5, transform == "on")
        check_step(folder, f"{kind}-{transform}", twin, lambda batch: loss_of(twin, batch))
print("PointNet's losses and gradients are its twin's")
