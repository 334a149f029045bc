"""Job arrays: steps of B jobs fused and one after the other; torch.func.vmap, or HFTA itself, beside them.

A figure is job-steps per second: B over the median step of a fused run, one over the median step of a run by itself
(serial). Runs alternate; the table has medians over the rounds and what they are of serial. One thread per process. B
processes at once are `millrace sweep`'s to measure, which takes the time in which all of them ran.

    scripts/benchmark fusion [--rounds N] [--jobs 1,2,4,8,16] [--models mlp,cnn,resnet18,transformer] [--out FILE.json]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

MODELS = {
    # name: (flags of millrace, steps, arguments of vmap_peer.py or none)
    "mlp": ("--model mlp --width 64 --depth 3 --classes 10 --microbatch 16", 300, "mlp"),
    "mlp-wide": ("--model mlp --width 256 --depth 4 --classes 10 --microbatch 32", 100, None),
    "pointnet": ("--model pointnet_cls --points 256 --classes 10 --microbatch 8", 12, None),
    "dcgan": ("--model dcgan --image-size 32 --generator-features 16 --discriminator-features 16 --microbatch 8 "
              "--rule adam --beta1 0.5", 12, None),
    "cnn": ("--model squeezenet1_1 --image-size 32 --classes 10 --microbatch 4", 20, None),
    "resnet18": ("--model resnet18 --image-size 32 --classes 10 --microbatch 8", 12, None),
    "transformer": ("--model transformer_lm --microbatch 8", 12, None),
}
TIMEOUT_S = 1800


def start(command, folder):
    environment = dict(os.environ, OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
    log = open(os.path.join(folder, "log"), "w")
    return subprocess.Popen(command, env=environment, stdout=log, stderr=log)


def finish(process, folder):
    if process.wait(timeout=TIMEOUT_S) != 0:
        sys.exit(open(os.path.join(folder, "log")).read() + f"benchmark fusion: exit code {process.returncode}")


def train(millrace, flags, steps, more, folder):
    out = os.path.join(folder, "out")
    return start(
        [millrace, "train", *flags.split(), "--microbatches", "1", "--steps", str(steps), "--no-evaluation",
         "--threads", "1", "--output-dir", out, "--lr", *(more or ["0.01"])], folder)


def summary(folder):
    with open(os.path.join(folder, "out", "summary.json")) as file:
        return json.load(file)


def measure(options, name, jobs, mode):
    flags, steps, peer = MODELS[name]
    steps = options.steps or steps
    millrace = options.millrace
    if options.hfta:
        flags += " --rule adadelta"
    with tempfile.TemporaryDirectory() as work:
        folder = work
        if mode in ("vmap", "hfta"):
            here = os.path.dirname(os.path.abspath(__file__))
            command = [options.python, os.path.join(here, mode + "_peer.py")]
            command += [peer] if mode == "vmap" else [options.hfta, name]
            finish(start([*command, str(jobs), str(steps)], folder), folder)
            return jobs / float(open(os.path.join(folder, "log")).read().split()[-1]), 0
        rates = [f"{0.01 * (1 + b / 100):.4f}" for b in range(jobs)]
        if mode.startswith("fused") and jobs > 1:
            kernels = mode.partition("-")[2] or "auto"
            process = train(millrace, flags, steps, [*rates, "--fused", "--kernels", kernels], folder)
        else:
            process = train(millrace, flags, steps, None, folder)
        finish(process, folder)
        found = summary(folder)
        return (jobs if mode.startswith("fused") else 1) / found["median_step_s"], found["peak_memory_bytes"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("millrace")
    parser.add_argument("python", help="with torch; '-': neither vmap nor HFTA")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", default="1,2,4,8,16")
    parser.add_argument("--models", default="mlp,cnn,pointnet,resnet18,transformer")
    parser.add_argument("--modes", default="fused,fused-loop,serial,vmap,hfta")
    parser.add_argument("--hfta", help="folder with HFTA's hfta/ and examples/, branch releases/mlsys21")
    parser.add_argument("--steps", type=int, help="of each run, instead of the model's own number")
    parser.add_argument("--out")
    options = parser.parse_args()
    if options.hfta and options.python == "-":
        sys.exit("benchmark fusion: --hfta needs a Python with torch: set MILLRACE_REFERENCE_PYTHON (tests/reference/install)")
    for mode in options.modes.split(","):
        if mode not in ("fused", "fused-loop", "fused-fused", "serial", "vmap", "hfta"):
            sys.exit(f"benchmark fusion: there is no mode '{mode}': fused, fused-loop, fused-fused, serial, vmap, hfta")

    def takes_part(mode, name):
        if mode == "hfta":
            return options.hfta
        return mode != "vmap" or (options.python != "-" and MODELS[name][2] and not options.hfta)

    rows = []
    print(f"{'model':<12} {'jobs':>4} {'mode':<11} {'job-steps/s':>12} {'of serial':>9} {'MiB/job':>8}")
    for name in options.models.split(","):
        for jobs in map(int, options.jobs.split(",")):
            modes = [mode for mode in options.modes.split(",") if takes_part(mode, name)]
            found = {mode: [] for mode in modes}
            for _ in range(options.rounds):
                for mode in modes:
                    found[mode].append(measure(options, name, jobs, mode))
            medians = {mode: statistics.median(speed for speed, _ in runs) for mode, runs in found.items()}
            for mode in modes:
                memory = found[mode][0][1] / (1 if mode == "serial" else jobs) / 2**20
                rows.append({"model": name, "jobs": jobs, "mode": mode, "job_steps_per_s": medians[mode],
                             "runs": [speed for speed, _ in found[mode]], "mib_per_job": memory})
                share = medians[mode] / medians["serial"] if "serial" in medians else 0
                print(f"{name:<12} {jobs:>4} {mode:<11} {medians[mode]:>12.1f} {share:>9.2f} {memory:>8.1f}", flush=True)
    if options.out:
        with open(options.out, "w") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
