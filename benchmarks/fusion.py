"""Job arrays: steps of B jobs fused and one after the other, beside torch.func.vmap and HFTA itself.

A figure is job-steps per second of CPU time, which other programs on the machine disturb less than the clock: B over the
median step of a fused run, one over the median step of a run by itself (serial). All train by Adadelta, the rule that HFTA has (an array is divided
as `train --fused` does it by itself), on batches that lie in memory, with one thread. Runs alternate;
the table has medians over the rounds and what they are of serial; the parameters of a job are compared. With glibc's
malloc as it is PyTorch gives large tensors' pages back at every step: vmap and HFTA run with higher thresholds. B processes
at once are `millrace sweep`'s to measure, which takes the time in which all of them ran. With --device cuda a second is one of the
clock. The mode "compile" is vmap through torch.compile.

    scripts/benchmark fusion [--hfta FOLDER] [--rounds N] [--jobs 1,2,4,8,16] [--models mlp,cnn,resnet18] [--device cuda] [--out FILE.json]
"""

import argparse
import json
import math
import os
import statistics
import struct
import subprocess
import sys
import tempfile

MODELS = {
    # name: (flags of millrace, steps)
    "mlp": ("--model mlp --width 64 --depth 3 --classes 10 --microbatch 16 --data synthetic:128", 300),
    "mlp-narrow": ("--model mlp --width 32 --depth 3 --classes 10 --microbatch 8 --data synthetic:64", 400),
    "mlp-tiny": ("--model mlp --width 16 --depth 3 --classes 10 --microbatch 4 --data synthetic:32", 400),
    "mlp-wide": ("--model mlp --width 256 --depth 4 --classes 10 --microbatch 32", 100),
    "cnn": ("--model squeezenet1_1 --image-size 32 --classes 10 --microbatch 4", 120),
    "pointnet": ("--model pointnet_cls --points 256 --classes 10 --microbatch 8", 12),
    "resnet18": ("--model resnet18 --image-size 32 --classes 10 --microbatch 8", 12),
    "transformer": ("--model transformer_lm --microbatch 8", 12),
    "dcgan": ("--model dcgan --image-size 32 --generator-features 16 --discriminator-features 16 --microbatch 8", 12),
}
PEERS = ("vmap", "compile", "hfta")
NOT_OF_PEERS = ("dcgan",)
MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(1 << 32), "MALLOC_TRIM_THRESHOLD_": str(1 << 32), "MALLOC_TOP_PAD_": str(1 << 26)}
TIMEOUT_S = 1800


def start(command, folder, more=None):
    environment = dict(os.environ, OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", **(more or {}))
    log = open(os.path.join(folder, "log"), "w")
    return subprocess.Popen(command, env=environment, stdout=log, stderr=log)


def finish(process, folder):
    if process.wait(timeout=TIMEOUT_S) != 0:
        sys.exit(open(os.path.join(folder, "log")).read() + f"benchmark fusion: exit code {process.returncode}")


def train(options, flags, steps, more, folder):
    out = os.path.join(folder, "out")
    return start(
        [*options.prefix.split(), options.millrace, "train", "--device", options.device, *flags.split(), "--rule", "adadelta", "--microbatches", "1", "--steps", str(steps),
         "--no-evaluation", "--threads", "1", "--output-dir", out, "--save-weights", os.path.join(folder, "w.safetensors"),
         "--lr", *(more or ["0.01"])], folder)


def parameters_in(path):
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    buffers = ("__metadata__", "running_mean", "running_var", "num_batches_tracked")
    return sum(math.prod(t["shape"]) for name, t in header.items() if not name.endswith(buffers))


def measure(options, name, jobs, mode):
    """Job-steps a CPU second, bytes at the peak (peers: none) and the parameters of a job."""
    flags, steps = MODELS[name]
    steps = options.steps or max(6, 4 * steps // max(4, jobs))
    with tempfile.TemporaryDirectory() as folder:
        if mode in PEERS:
            peer = os.path.join(os.path.dirname(os.path.abspath(__file__)), ("hfta" if mode == "hfta" else "vmap") + "_peer.py")
            command = [options.python, peer, *([options.hfta] if mode == "hfta" else []), name, str(jobs), str(steps)]
            command += [] if mode == "hfta" else [options.peers_device, *(["compile"] if mode == "compile" else [])]
            finish(start(command, folder, MALLOC), folder)
            with open(os.path.join(folder, "log")) as log:
                parameters, seconds = log.read().split()[-2:]
            return jobs / float(seconds), 0, int(parameters)
        rates = [f"{0.01 * (1 + b / 100):.4f}" for b in range(jobs)]
        fused = mode.startswith("fused") and jobs > 1
        kernels = ["--fused", "--kernels", mode.partition("-")[2] or "auto"] if fused else []
        finish(train(options, flags, steps, [*rates, *kernels] if fused else None, folder), folder)
        with open(os.path.join(folder, "out", "steps.rank0.jsonl")) as file:
            records = [json.loads(line) for line in file][1:]
        seconds = statistics.median(record["cpu_s" if options.device == "cpu" else "step_s"] for record in records[len(records) // 5:])
        weights = os.path.join(folder, "w.job0.safetensors" if fused else "w.safetensors")
        return (jobs if fused else 1) / seconds, records[-1]["peak_memory_bytes"], parameters_in(weights)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("millrace")
    parser.add_argument("python", help="with torch; '-': neither vmap nor HFTA")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", default="1,2,4,8,16")
    parser.add_argument("--models", default="mlp,cnn,pointnet,resnet18,transformer")
    parser.add_argument("--modes", default="fused,serial,hfta,vmap")
    parser.add_argument("--hfta", help="folder with HFTA's hfta/ and examples/, branch releases/mlsys21")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--peers-device", choices=["cpu", "cuda"], help="PyTorch's, if it is another: to try this on the stand-in")
    parser.add_argument("--prefix", default="", metavar="RUN", help="a program that starts millrace, such as build/cuda/standin/run")
    parser.add_argument("--steps", type=int, help="of each run, instead of the model's own number")
    parser.add_argument("--out")
    options = parser.parse_args()
    if options.hfta and options.python == "-":
        sys.exit("benchmark fusion: --hfta needs a Python with torch: set MILLRACE_REFERENCE_PYTHON (tests/reference/install)")
    options.peers_device = options.peers_device or options.device
    if options.hfta and options.device != "cpu":
        sys.exit("benchmark fusion: --hfta compares on the CPU alone")
    for mode in options.modes.split(","):
        if mode not in ("fused", "fused-loop", "fused-fused", "serial", *PEERS):
            sys.exit(f"benchmark fusion: there is no mode '{mode}': fused, fused-loop, fused-fused, serial, {', '.join(PEERS)}")

    def takes_part(mode, name):
        if mode not in PEERS:
            return True
        return options.python != "-" and name not in NOT_OF_PEERS and (mode != "hfta" or options.hfta)

    rows = []
    print(f"{'model':<12} {'jobs':>4} {'mode':<11} {'steps/s':>12} {'least-most':>17} {'of serial':>9} {'MiB/job':>8}")
    for name in options.models.split(","):
        for jobs in map(int, options.jobs.split(",")):
            modes = [mode for mode in options.modes.split(",") if takes_part(mode, name)]
            found = {mode: [] for mode in modes}
            for _ in range(options.rounds):
                for mode in modes:
                    found[mode].append(measure(options, name, jobs, mode))
            sizes = {mode: runs[0][2] for mode, runs in found.items()}
            if len(set(sizes.values())) != 1:
                sys.exit(f"benchmark fusion: {name} has not the same parameters everywhere: {sizes}")
            medians = {mode: statistics.median(speed for speed, *_ in runs) for mode, runs in found.items()}
            for mode in modes:
                speeds = [speed for speed, *_ in found[mode]]
                memory = found[mode][0][1] / (1 if mode == "serial" else jobs) / 2**20
                rows.append({"model": name, "jobs": jobs, "mode": mode, "job_steps_per_s": medians[mode],
                             "runs": speeds, "mib_per_job": memory})
                share = medians[mode] / medians["serial"] if "serial" in medians else 0
                spread = f"{min(speeds):.1f}-{max(speeds):.1f}"
                print(f"{name:<12} {jobs:>4} {mode:<11} {medians[mode]:>12.1f} {spread:>17} {share:>9.2f} {memory:>8.1f}",
                      flush=True)
    if options.out:
        with open(options.out, "w") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
