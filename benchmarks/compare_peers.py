"""millrace against PyTorch of the same wheel: steps of a 2-rank 1F1B pipeline and of 2-rank data parallelism.

Both sides: two processes of one host, one thread each, Gloo on loopback, the same model, microbatches, loss and update
kernel, one set of samples that is read at every step; the libraries come from the same torch wheel. Runs alternate A B A B.
The figure of a run is the median step after the first ones, of the slower rank; the table has medians and quartiles over
the runs, and their ratio. Beside them stands what the step's matrix products take by themselves (products_peer.py): what no
runtime on this BLAS goes below. --load N runs N busy loops beside both sides, as other programs on the machine would.
With --device cuda each rank has a GPU and NCCL, and the products by themselves are left out. The mode "one" is one rank.

    scripts/benchmark peers [--runs N] [--sizes 64:8,256:32,1024:64] [--modes 1f1b,ddp,one] [--device cuda] [--load N]
                            [--out FILE.json]
"""

import argparse
import contextlib
import glob
import json
import os
import statistics
import subprocess
import sys
import tempfile

from side_by_side import checked, figure, spread, steps_of_ranks, write_job

DEPTH = 8
MICROBATCHES = 8
CLASSES = 10
SKIPPED_STEPS = 10  # caches, allocator and the first connections


def pairs(first, last):
    return [f"layers.{i}.{kind}" for i in range(first, last) for kind in ("linear", "gelu")]


def ranks_of(mode):
    return 1 if mode == "one" else 2


def plan_of(mode):
    """The same cut as torch_peer.py's."""
    if mode == "1f1b":
        stages = [(pairs(0, DEPTH // 2), [0]), (pairs(DEPTH // 2, DEPTH) + ["head"], [1])]
    else:
        stages = [(pairs(0, DEPTH) + ["head"], list(range(ranks_of(mode))))]
    return {
        "format": "millrace-plan-1",
        "model": "mlp",
        "schedule": "1f1b",
        "microbatches": MICROBATCHES,
        "stages": [{"layers": layers, "ranks": ranks} for layers, ranks in stages],
    }


@contextlib.contextmanager
def busy_loops(count):
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def run_torch(opts, mode, width, microbatch, folder, peer="torch_peer.py"):
    peer = os.path.join(os.path.dirname(os.path.abspath(__file__)), peer)
    out = os.path.join(folder, os.path.basename(peer) + ".rank")
    words = [opts.torch_python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks_of(mode), peer]
    words += ["--mode", mode, "--width", width, "--microbatch", microbatch, "--microbatches", MICROBATCHES]
    words += ["--depth", DEPTH, "--classes", CLASSES, "--steps", opts.steps, "--out", out]
    if opts.peers_device != "cpu":
        words += ["--device", opts.peers_device]
    checked(words, folder, "torch")
    return figure([json.load(open(path))["step_s"] for path in glob.glob(out + "*.json")], SKIPPED_STEPS)


def run_millrace(opts, mode, width, microbatch, folder):
    out = os.path.join(folder, "millrace")
    plan = os.path.join(folder, "plan.json")
    with open(plan, "w") as file:
        json.dump(plan_of(mode), file)
    job = write_job(folder, {"model": "mlp", "width": width, "depth": DEPTH, "classes": CLASSES, "plan": plan,
                             "data": f"synthetic:{microbatch * MICROBATCHES}", "microbatch": microbatch, "steps": opts.steps,
                             "lr": 0.001, "device": opts.device, "output-dir": out})
    checked([*opts.prefix.split(), opts.millrace, "launch", job], folder, "launch")
    return figure(steps_of_ranks(out, ranks_of(mode), opts.steps), SKIPPED_STEPS)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millrace", required=True, help="the program")
    parser.add_argument("--torch-python", required=True, help="a Python that imports the same torch")
    parser.add_argument("--sizes", default="64:8,256:32,1024:64", help="WIDTH:MICROBATCH,...")
    parser.add_argument("--runs", type=int, default=10, help="of each side")
    parser.add_argument("--steps", type=int, default=60, help="of a run, at least 20")
    parser.add_argument("--modes", default="1f1b,ddp", help="of 1f1b, ddp and one")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--peers-device", choices=["cpu", "cuda"], help="PyTorch's, if it is another: to try this on the stand-in")
    parser.add_argument("--prefix", default="", metavar="RUN", help="a program that starts millrace, such as build/cuda/standin/run")
    parser.add_argument("--load", type=int, default=0, help="busy loops that run beside both sides")
    parser.add_argument("--out", help="all figures as JSON")
    opts = parser.parse_args()
    opts.peers_device = opts.peers_device or opts.device
    for mode in opts.modes.split(","):
        if mode not in ("1f1b", "ddp", "one"):
            sys.exit(f"peers: there is no mode '{mode}': 1f1b, ddp, one")
    with busy_loops(opts.load):
        compare(opts)


def with_products(opts, mode):
    return opts.device == "cpu" and mode != "one"


def compare(opts):
    results = []
    print("| width, microbatch | what | torch ms (quartiles) | millrace ms (quartiles) | torch / millrace | products alone ms |")
    print("|---|---|---|---|---|---|", flush=True)
    for size in opts.sizes.split(","):
        width, microbatch = (int(word) for word in size.split(":"))
        for mode in opts.modes.split(","):
            torch_s, millrace_s, products_s = [], [], []
            for _ in range(opts.runs):
                with tempfile.TemporaryDirectory() as folder:
                    torch_s.append(run_torch(opts, mode, width, microbatch, folder))
                    millrace_s.append(run_millrace(opts, mode, width, microbatch, folder))
                    if with_products(opts, mode):
                        products_s.append(run_torch(opts, mode, width, microbatch, folder, "products_peer.py"))
            ratio = statistics.median(torch_s) / statistics.median(millrace_s)
            print(f"| {width}, {microbatch} | {mode} | {spread(torch_s)} | {spread(millrace_s)} | {ratio:.2f} | "
                  f"{spread(products_s) if products_s else '-'} |", flush=True)
            results.append({"width": width, "microbatch": microbatch, "mode": mode, "torch_s": torch_s,
                            "millrace_s": millrace_s, "ratio": ratio, "products_s": products_s})
            if opts.out:
                with open(opts.out, "w") as file:
                    json.dump({"load_average": os.getloadavg(), "busy_loops": opts.load, "steps": opts.steps, "results": results}, file, indent=1)


if __name__ == "__main__":
    main()
