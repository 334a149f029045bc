"""UNET3D's training step beside the same step of a plain PyTorch twin (tests/reference/unet3d.py): one process each, or with --ranks
replicas beside DistributedDataParallel over Gloo.

One thread a rank, the same sizes, plain SGD with momentum, one microbatch a step and rank. The twin's samples lie in memory;
ours come from the loader, which makes them in a thread of its own. Runs alternate A B A B. The figure of a run is the median step after the
first ones; the table has medians and quartiles over the runs, and their ratio.

    scripts/benchmark unet3d [--runs N] [--sizes SIDE:FILTERS:LEVELS,...] [--steps N] [--ranks N]
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

from side_by_side import checked, figure, spread, steps_of_ranks, write_job

SKIPPED_STEPS = 3
TWIN = """
import json, os, sys, time, torch
import torch.multiprocessing
sys.path.insert(0, sys.argv[1])
from unet3d import Unet3d, loss_of
side, filters, levels, microbatch, steps, ranks = map(int, sys.argv[3:9])

def train(rank, out):
    torch.set_num_threads(1)
    model = Unet3d(filters, levels)
    if ranks > 1:
        torch.distributed.init_process_group("gloo", init_method="file://" + out + ".meeting", rank=rank, world_size=ranks)
        model = torch.nn.parallel.DistributedDataParallel(model)
    rule = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    samples = [(torch.randn(microbatch, 1, side, side, side), torch.randint(0, 3, (microbatch, 1, side, side, side)).byte())
               for _ in range(4)]
    seconds = []
    for step in range(steps):
        begin = time.perf_counter()
        x, target = samples[step % len(samples)]
        loss = loss_of(model(x), target)
        rule.zero_grad()
        loss.backward()
        rule.step()
        loss.item()
        seconds.append(time.perf_counter() - begin)
    with open(f"{out}.{rank}", "w") as file:
        json.dump(seconds, file)
    if ranks > 1:
        torch.distributed.destroy_process_group()

if ranks > 1:
    torch.multiprocessing.start_processes(train, args=(sys.argv[2],), nprocs=ranks, start_method="fork")
else:
    train(0, sys.argv[2])
"""


def twin(opts, side, filters, levels, folder):
    out = os.path.join(folder, "twin")
    if os.path.exists(out + ".meeting"):
        os.remove(out + ".meeting")
    here = os.path.dirname(os.path.abspath(__file__))
    checked([opts.torch_python, "-c", TWIN, os.path.join(here, "../tests/reference"), out, side, filters, levels,
             opts.microbatch, opts.steps, opts.ranks], folder, "torch")
    return figure([json.load(open(f"{out}.{rank}")) for rank in range(opts.ranks)], SKIPPED_STEPS)


def ours(opts, side, filters, levels, folder):
    out = os.path.join(folder, "millrace")
    job = write_job(folder, {"model": "unet3d", "image-size": side, "filters": filters, "levels": levels, "data": "synthetic:8",
                             "microbatch": opts.microbatch, "microbatches": opts.ranks, "stages": 1, "replicas": opts.ranks,
                             "steps": opts.steps, "lr": 0.01, "momentum": 0.9, "output-dir": out})
    checked([opts.millrace, "launch", job], folder, "launch")
    return figure(steps_of_ranks(out, opts.ranks, opts.steps), SKIPPED_STEPS)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millrace", required=True)
    parser.add_argument("--torch-python", required=True, help="a Python with torch and safetensors")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=13)
    parser.add_argument("--microbatch", type=int, default=1)
    parser.add_argument("--ranks", type=int, default=1, help="above 1: replicas beside DistributedDataParallel")
    parser.add_argument("--sizes", default="32:8:3,32:16:3,64:8:4", help="SIDE:FILTERS:LEVELS,...")
    opts = parser.parse_args()
    print("| side | filters | levels | millrace ms | PyTorch ms | ratio |\n|---|---|---|---|---|---|")
    for size in opts.sizes.split(","):
        side, filters, levels = map(int, size.split(":"))
        found = {ours: [], twin: []}
        with tempfile.TemporaryDirectory() as folder:
            for _ in range(opts.runs):
                for run in found:
                    found[run].append(run(opts, side, filters, levels, folder))
        ratio = statistics.median(a / b for a, b in zip(found[ours], found[twin]))
        print(f"| {side} | {filters} | {levels} | {spread(found[ours])} | {spread(found[twin])} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
