"""One rank of a PyTorch peer, for compare_peers.py: a pipeline of torch.distributed.pipelining, or DDP.

Started by torchrun. The model is the mlp of `millrace`: `depth` pairs (Linear, GELU) of one width, then a Linear to the
classes; cross entropy, plain SGD through the same fused kernel. Writes {"step_s": [...], "loss": [...]}, the seconds of
every step on this rank. With --device cuda each rank has a GPU, and NCCL carries what they send.
"""

import argparse
import contextlib
import json
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn


def options():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", choices=["1f1b", "gpipe", "ddp", "one"], required=True)
    parser.add_argument("--width", type=int, required=True)
    parser.add_argument("--microbatch", type=int, required=True)
    parser.add_argument("--microbatches", type=int, default=8, help="of a step, all ranks together")
    parser.add_argument("--depth", type=int, default=8)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--lr", type=float, default=0.001)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--out", required=True, help="prefix; the rank and .json are appended")
    opts = parser.parse_args()
    if opts.device == "cuda":
        opts.device = f"cuda:{os.environ['LOCAL_RANK']}"
    return opts


def pipeline_step(opts, rank, ranks, layers, x, y):
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

    pairs = opts.depth // ranks
    end = len(layers) if rank + 1 == ranks else (rank + 1) * pairs
    module = nn.Sequential(*layers[rank * pairs : end])
    rule = torch.optim.SGD(module.parameters(), lr=opts.lr, fused=True)
    stage = PipelineStage(module, rank, ranks, torch.device(opts.device))
    kind = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}[opts.mode]
    schedule = kind(stage, opts.microbatches, loss_fn=nn.functional.cross_entropy)

    def step():
        rule.zero_grad()
        losses = []
        if rank == 0:
            schedule.step(x)
        else:
            schedule.step(target=y, losses=losses)
        rule.step()
        return sum(losses).item() / opts.microbatches if losses else None

    return step


def replica_step(opts, rank, ranks, layers, x, y):
    module = nn.Sequential(*layers)
    wrapped = module
    if ranks > 1:
        wrapped = nn.parallel.DistributedDataParallel(module, bucket_cap_mb=25, gradient_as_bucket_view=True)
    rule = torch.optim.SGD(module.parameters(), lr=opts.lr, fused=True)
    mine = list(zip(x.chunk(opts.microbatches), y.chunk(opts.microbatches)))[rank::ranks]

    def step():
        rule.zero_grad()
        total = torch.zeros((), device=opts.device)
        for number, (inputs, targets) in enumerate(mine):
            last = number + 1 == len(mine)
            # Gradients travel once a step, during the backward of the last microbatch.
            with contextlib.nullcontext() if last or ranks == 1 else wrapped.no_sync():
                loss = nn.functional.cross_entropy(wrapped(inputs), targets) / len(mine)
                loss.backward()
            total += loss.detach()
        rule.step()
        return total.item()

    return step


def main():
    opts = options()
    torch.set_num_threads(1)
    if opts.device != "cpu":
        torch.cuda.set_device(opts.device)
        torch.backends.cudnn.allow_tf32 = False  # as millrace
    dist.init_process_group("gloo" if opts.device == "cpu" else "nccl")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(opts.width, opts.width), nn.GELU()) for _ in range(opts.depth)]
    layers.append(nn.Linear(opts.width, opts.classes))
    for layer in layers:
        layer.to(opts.device)
    samples = opts.microbatch * opts.microbatches
    x, y = torch.randn(samples, opts.width).to(opts.device), torch.randint(opts.classes, (samples,)).to(opts.device)
    make = replica_step if opts.mode in ("ddp", "one") else pipeline_step
    step = make(opts, rank, ranks, layers, x, y)
    seconds, losses = [], []
    for _ in range(opts.steps):
        start = time.perf_counter()
        losses.append(step())
        if opts.device != "cpu":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    with open(f"{opts.out}{rank}.json", "w") as file:
        json.dump({"step_s": seconds, "loss": losses}, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
