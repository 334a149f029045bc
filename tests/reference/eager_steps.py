"""Exports models with examples/pytorch/millrace_export.py: `eager_steps.py FOLDER`."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../../examples/pytorch"))

import millrace_export
import torch
from torch import nn


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -grad


class Domains(nn.Module):
    """A gradient-reversal layer (arXiv 1409.7495): the shared map learns against the second loss."""

    def __init__(self):
        super().__init__()
        self.shared, self.labels, self.domains = nn.Linear(12, 16), nn.Linear(16, 4), nn.Linear(16, 2)

    def forward(self, x, labels, domains):
        h = torch.tanh(self.shared(x))
        loss = nn.functional.cross_entropy(self.labels(h), labels)
        return loss + nn.functional.cross_entropy(self.domains(Reversed.apply(h)), domains)


class Flipped(nn.Module):
    """Every norm is the same: only the direction differs."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(12, 16), nn.Linear(16, 4)

    def forward(self, x):
        return self.b(Reversed.apply(torch.tanh(self.a(x))))


class Ordinary(nn.Module):
    """Dropout in three forms, statistics of the batch, a tied weight; it ends in scores."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        self.attention = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.3, batch_first=True)
        self.lstm = nn.LSTM(16, 16, num_layers=2, dropout=0.3, batch_first=True)
        self.norm, self.drop, self.scores = nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, 20)
        self.scores.weight = self.embedding.weight

    def forward(self, tokens):
        h, _ = self.lstm(self.attention(self.embedding(tokens)))
        return self.scores(self.drop(self.norm(h.mean(1))))


torch.manual_seed(7)
torch.set_num_threads(1)
MODELS = {
    "domains": (Domains(), (torch.randn(6, 12), torch.randint(0, 4, (6,)), torch.randint(0, 2, (6,)))),
    "flipped": (Flipped(), (torch.randn(6, 12),)),
    "ordinary": (Ordinary(), (torch.randint(0, 20, (6, 5)),)),
}
for name, (model, example) in MODELS.items():
    program = torch.export.export(model.train(), example, dynamic_shapes=({0: torch.export.Dim.DYNAMIC},) * len(example), strict=False)
    millrace_export.save(model, program, os.path.join(sys.argv[1], name + ".pt2"))
