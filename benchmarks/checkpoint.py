"""What saves cost training: none, in the foreground, in the background.

A run of some tens of seconds with a save every `--interval` seconds, beside the same run without saves. Runs alternate, and the
table has medians over the rounds. `lost` is what a save adds to the run's time up to its last step, as a share of the
interval; the wait for the last background save at the end of the run is not in it. Prints the load of the machine, too.

    scripts/benchmark checkpoint [--models vgg16,gnmt,mlp] [--rounds 3] [--interval 10] [--saves 3] [--stages 1]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

MODELS = {
    "vgg16": ["--model", "vgg16", "--image-size", "64", "--classes", "1000", "--microbatch", "4", "--data", "synthetic:64"],
    "gnmt": ["--model", "gnmt", "--microbatch", "8"],
    "mlp": ["--model", "mlp", "--width", "2048", "--depth", "6", "--microbatch", "64", "--data", "synthetic:4096"],
}
WAYS = {"none": [], "foreground": ["--checkpoint-every"], "background": ["--checkpoint-background", "--checkpoint-every"]}
PROBE_STEPS = 6
TIMEOUT_S = 1800


def train(millrace, options, model, folder, steps, flags):
    """The summary of a run."""
    out = os.path.join(folder, "run")
    command = [millrace, "train", *MODELS[model], "--stages", str(options.stages), "--threads", "1", "--momentum", "0.9", "--lr", "0.001",
               "--no-evaluation", "--trace-steps", "0", "--keep-checkpoints", "1", "--steps", str(steps), "--output-dir", out, "--overwrite",
               *flags]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT_S)
    if done.returncode != 0:
        sys.exit(f"{done.stdout}benchmark checkpoint: exit code {done.returncode}")
    with open(os.path.join(out, "summary.json")) as summary:
        return json.load(summary)


def shards_of(folder):
    run = os.path.join(folder, "run", "checkpoints")
    files = [os.path.join(at, name) for at, _, names in os.walk(run) for name in names if name.endswith(".safetensors")]
    return sum(map(os.path.getsize, files))


def measure(millrace, options, model, folder):
    step_s = train(millrace, options, model, folder, PROBE_STEPS, [])["median_step_s"]
    every = max(1, round(options.interval / step_s))
    steps = every * (options.saves + 1) - 1  # steps follow the last save, too
    seconds, size = {way: [] for way in WAYS}, 0
    losses = set()
    for _ in range(options.rounds):
        for way, flags in WAYS.items():
            summary = train(millrace, options, model, folder, steps, [*flags, str(every)] if flags else [])
            seconds[way].append(summary["seconds"])
            losses.add(tuple(summary["losses"]))
            size = max(size, shards_of(folder))
    if len(losses) != 1:
        sys.exit(f"benchmark checkpoint: {model} has other losses with saves than without")
    none = statistics.median(seconds["none"])
    interval = none / steps * every
    row = [model, f"{size / 2**20:.0f}", f"{interval:.1f}"]
    for way in ("foreground", "background"):
        lost = (statistics.median(seconds[way]) - none) / options.saves
        row.append(f"{lost:.2f} s ({100 * lost / interval:.1f} %)")
    print("| " + " | ".join(row) + " |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("millrace")
    parser.add_argument("--models", default="vgg16,gnmt,mlp")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--interval", type=float, default=10)
    parser.add_argument("--saves", type=int, default=3)
    parser.add_argument("--stages", type=int, default=1)
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the start; stages {options.stages}")
    print("| model | checkpoint MiB | seconds between saves | lost a save, foreground | lost a save, background |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for model in options.models.split(","):
            measure(os.path.abspath(options.millrace), options, model, folder)


if __name__ == "__main__":
    main()
