"""What the matrix products of a step take a rank by themselves, by the BLAS that both sides of compare_peers.py have: forward,
gradient of the input and of the weights, of the rank's layers and microbatches. No bias, activation, message or update."""

import argparse
import json
import os
import time

import torch


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for flag in ("--width", "--microbatch", "--microbatches", "--depth", "--classes", "--steps"):
        parser.add_argument(flag, type=int, required=True)
    parser.add_argument("--mode", choices=("1f1b", "ddp"), required=True)
    parser.add_argument("--out", required=True)
    o = parser.parse_args()
    torch.set_num_threads(1)
    layers, microbatches = (o.depth // 2, o.microbatches) if o.mode == "1f1b" else (o.depth, o.microbatches // 2)
    inputs = [torch.randn(o.microbatch, o.width) for _ in range(layers)]
    weights = [torch.randn(o.width, o.width) for _ in range(layers)]
    transposed = [weight.t().contiguous() for weight in weights]
    gradients = [torch.zeros(o.width, o.width) for _ in range(layers)]
    gradient, result = torch.randn(o.microbatch, o.width), torch.empty(o.microbatch, o.width)
    seconds = []
    for _ in range(o.steps):
        start = time.perf_counter()
        for _ in range(microbatches):
            for i in range(layers):
                torch.mm(inputs[i], transposed[i], out=result)
            for i in reversed(range(layers)):
                torch.mm(gradient, weights[i], out=result)
                gradients[i].addmm_(gradient.t(), inputs[i])
        took = time.perf_counter() - start
        # The last microbatch of a pipeline's first stage waits for the second.
        seconds.append(took * (microbatches + 1) / microbatches if o.mode == "1f1b" else took)
    with open(f"{o.out}{os.environ['RANK']}.json", "w") as file:
        json.dump({"step_s": seconds}, file)


if __name__ == "__main__":
    main()
