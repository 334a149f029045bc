"""B models as one by torch.func.vmap: stacked parameters, vmap of grad, SGD on the stacked tensors.

    vmap_peer.py mlp JOBS STEPS     prints the median step in seconds
"""

import statistics
import sys
import time

import torch
from torch import nn
from torch.func import functional_call, grad, stack_module_state, vmap


def make(name):
    if name != "mlp":
        sys.exit(f"vmap_peer: no model {name}")
    layers = []
    for _ in range(3):
        layers += [nn.Linear(64, 64), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(64, 10)), torch.randn(16, 64), torch.randint(0, 10, (16,))


def main():
    name, jobs, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    models = [make(name)[0] for _ in range(jobs)]
    _, x, target = make(name)
    parameters, buffers = stack_module_state(models)
    rates = torch.full((jobs,), 0.01)

    def loss(own, own_buffers):
        return nn.functional.cross_entropy(functional_call(models[0], (own, own_buffers), (x,)), target)

    gradients = vmap(grad(loss), in_dims=(0, 0))
    seconds = []
    for _ in range(steps):
        start = time.perf_counter()
        found = gradients(parameters, buffers)
        with torch.no_grad():
            for key, value in parameters.items():
                value.sub_(found[key] * rates.view(-1, *[1] * (value.dim() - 1)))
        seconds.append(time.perf_counter() - start)
    print(statistics.median(seconds[len(seconds) // 5:]))


if __name__ == "__main__":
    main()
