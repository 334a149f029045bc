"""Writes the files of tests/driver/state_dicts: what PyTorch saves, and the same tensors as safetensors."""
import argparse
import os
import pathlib
import sys

import safetensors.torch
import torch
import torch.distributed
import torch.distributed.checkpoint
import torch.multiprocessing
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh


def save_sharded(rank, folder):
    """Two ranks save tensors that are cut along a dimension, and what both hold."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29577", RANK=str(rank), WORLD_SIZE="2")
    torch.distributed.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2,))
    rows, cube = torch.arange(35.0).reshape(5, 7), torch.arange(60).reshape(3, 4, 5)
    torch.distributed.checkpoint.save({
        "model": {"rows": distribute_tensor(rows, mesh, [Shard(0)]), "columns": distribute_tensor(rows, mesh, [Shard(1)]),
                  "cube": distribute_tensor(cube, mesh, [Shard(1)]), "whole": distribute_tensor(rows + 1, mesh, [Replicate()])},
        "step": 3}, checkpoint_id=folder)
    torch.distributed.destroy_process_group()


def main(folder):
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2))
    tensors = dict(model.state_dict())
    for kind in (torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool):
        tensors[str(kind).removeprefix("torch.")] = torch.arange(-2, 3).to(kind)
    tensors["view"] = torch.arange(12.0).reshape(3, 4)[1:]
    torch.save(model.state_dict(), folder / "ordered.pt")
    torch.save(tensors, folder / "types.pt")
    torch.save(tensors, folder / "legacy.pth", _use_new_zipfile_serialization=False)
    safetensors.torch.save_file({name: tensor.contiguous().clone() for name, tensor in tensors.items()}, folder / "types.safetensors")
    torch.save({"w": torch.nn.Parameter(torch.ones(2))}, folder / "parameter.pt")
    torch.save({"epoch": 3, "state_dict": model.state_dict()}, folder / "nested.pt")
    torch.save({"w": torch.arange(6.0).reshape(2, 3).t()}, folder / "strided.pt")
    torch.save(model, folder / "module.pt")
    torch.save([torch.ones(2)], folder / "list.pt")
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "args": argparse.Namespace(lr=0.1),
                "ema": {"weights": {"w": torch.ones(2)}}}, folder / "training.pt")
    torch.distributed.checkpoint.save(model.state_dict(), checkpoint_id=folder / "dcp-flat", no_dist=True)
    torch.distributed.checkpoint.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3},
                                      checkpoint_id=folder / "dcp-nested", no_dist=True)
    safetensors.torch.save_file(dict(model.state_dict()), folder / "trained.safetensors")
    torch.multiprocessing.spawn(save_sharded, (folder / "dcp-sharded",), nprocs=2)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
