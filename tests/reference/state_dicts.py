"""Writes the files of tests/driver/state_dicts: what PyTorch saves, and the same tensors as safetensors."""
import pathlib
import sys

import safetensors.torch
import torch

folder = pathlib.Path(sys.argv[1])
torch.manual_seed(3)
model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2))
tensors = dict(model.state_dict())
for kind in (torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool):
    tensors[str(kind).removeprefix("torch.")] = torch.arange(-2, 3).to(kind)
tensors["view"] = torch.arange(12.0).reshape(3, 4)[1:]
torch.save(model.state_dict(), folder / "ordered.pt")
torch.save(tensors, folder / "types.pt")
safetensors.torch.save_file({name: tensor.contiguous().clone() for name, tensor in tensors.items()}, folder / "types.safetensors")
torch.save({"w": torch.nn.Parameter(torch.ones(2))}, folder / "parameter.pt")
torch.save({"epoch": 3, "state_dict": model.state_dict()}, folder / "nested.pt")
torch.save({"w": torch.arange(6.0).reshape(2, 3).t()}, folder / "strided.pt")
torch.save(model, folder / "module.pt")
