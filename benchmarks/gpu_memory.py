#!/usr/bin/env python3
"""What a plan for GPUs says of memory beside what the caching allocator took, on the stand-in of tests/standin. No GPU is
needed: LibTorch's own allocator runs there. It cannot say what cuDNN and cuBLAS take for themselves.

Each line is a profile, a plan and a run of it. "tensors" is the most that lay in blocks at once, "taken" the most that the
allocator had taken from the GPU, both of the fullest rank. --limits also looks for the smallest memory that the planner accepts, and runs
its plan on GPUs of that size, which must do, and of 5 % less than it predicts, which must not. Exit code 1 if one is off by more than 5 %.

    gpu_memory.py MILLRACE RUN [--models mlp,vgg16,...] [--schedules 1f1b,...] [--small] [--limits] [--quick] [--json FILE]
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile

ALLOWED = 0.05
IMAGES = "--image-size 32 --classes 10 --data synthetic:1024"
TOKENS = "--vocabulary 4000 --length 24 --data synthetic:1024"
# Flags of a model, and the sizes of its microbatch.
MODELS = {
    "mlp": ("--model mlp --width 1024 --depth 12 --classes 1024", (64, 512)),
    "vgg16": (f"--model vgg16 {IMAGES}", (4, 16)),
    "resnet18": (f"--model resnet18 {IMAGES}", (16, 64)),
    "resnet50": (f"--model resnet50 {IMAGES}", (8, 24)),
    "gnmt": (f"--model gnmt --layers 4 --hidden 256 {TOKENS}", (24, 48)),
    "bert": (f"--model bert_base --layers 6 --hidden 256 --heads 4 --feed-forward 1024 {TOKENS}", (8, 24)),
    "transformer": (f"--model transformer_lm --layers 6 --hidden 256 --heads 4 --feed-forward 1024 {TOKENS}", (8, 24)),
}
# Schedule, ranks, replicas, microbatches of a step.
SHAPES = [("1f1b", 1, 4), ("1f1b", 2, 4), ("1f1b", 2, 8), ("gpipe", 2, 4), ("zb-h1", 2, 4), ("interleaved", 2, 4), ("pipedream", 2, 4)]
QUICK = {("mlp", 64, "gpipe", 2, 4), ("resnet18", 16, "1f1b", 1, 4)}  # cuts of others follow measured times


class Failed(Exception):
    pass


def run(command, folder, environment=None):
    return subprocess.run(command, cwd=folder, env=dict(os.environ, **(environment or {})), capture_output=True, text=True,
                          timeout=900)


def must(done, command):
    if done.returncode != 0:
        raise Failed(f"exit code {done.returncode}: {' '.join(command)}\n{(done.stdout + done.stderr)[-1500:]}")
    return done


def measured(folder, out, ranks):
    """Of each rank: the most bytes of tensors, and the most that the allocator took."""
    found = []
    for rank in range(ranks):
        with open(os.path.join(folder, out, f"steps.rank{rank}.jsonl")) as file:
            last = json.loads(file.read().splitlines()[-1])
        found.append((last["peak_memory_bytes"], last["taken_memory_bytes"]))
    return found


class Bench:
    def __init__(self, options):
        self.millrace, self.standin = os.path.abspath(options.millrace), os.path.abspath(options.run)
        self.folder = tempfile.mkdtemp(prefix="millrace-gpu-memory-")
        self.profiles = {}

    def profile(self, model, microbatch):
        name = f"{model}-{microbatch}.json"
        if name not in self.profiles:
            command = [self.standin, self.millrace, "profile", *MODELS[model][0].split(), "--microbatch", str(microbatch),
                       "--repetitions", "1", "--device", "cuda", "--threads", "1", "--out", name]
            must(run(command, self.folder, {"STANDIN_GPUS": "1", "STANDIN_BYTES": str(8 << 30)}), command)
            self.profiles[name] = name
        return name

    def plan(self, profile, schedule, ranks, microbatches, more=()):
        cut = ["--chunks", "2"] if schedule == "interleaved" else ["--straight", "--stages", str(ranks)]
        command = [self.millrace, "plan", "--profile", profile, "--ranks", str(ranks), *cut, "-m", str(microbatches), "--schedule", schedule,
                   "--out", "plan.json", *more]
        done = run(command, self.folder)
        if done.returncode != 0:
            return None, (done.stdout + done.stderr)
        with open(os.path.join(self.folder, "plan.json")) as file:
            return json.load(file), done.stdout

    def train(self, model, microbatch, schedule, ranks, size, out):
        shutil.rmtree(os.path.join(self.folder, out), ignore_errors=True)
        # Sentences differ in length, and the prediction is of the longest: they must come together in some step.
        steps = "12" if schedule == "pipedream" or TOKENS in MODELS[model][0] else "3"
        command = [self.standin, self.millrace, "train", *MODELS[model][0].split(), "--microbatch", str(microbatch), "--plan", "plan.json",
                   "--steps", steps, "--device", "cuda", "--threads", "1", "--no-evaluation", "--output-dir", out]
        return run(command, self.folder, {"STANDIN_GPUS": str(ranks), "STANDIN_BYTES": str(size)}), command

    def line(self, model, microbatch, schedule, ranks, microbatches):
        profile = self.profile(model, microbatch)
        plan, told = self.plan(profile, schedule, ranks, microbatches)
        if plan is None:
            raise Failed(told)
        done, command = self.train(model, microbatch, schedule, ranks, 8 << 30, "out")
        must(done, command)
        predicted = [0] * ranks
        for stage in plan["stages"]:
            for rank in stage["ranks"]:
                predicted[rank] = max(predicted[rank], stage["peak_bytes"])
        return predicted, measured(self.folder, "out", ranks)


    def smallest(self, profile, shape):
        """The least --memory that the planner accepts, to 0.5 %; its plan is in the folder."""
        plan, told = self.plan(profile, *shape)
        if plan is None:
            raise Failed(told)
        low, high = 1 << 20, 2 * max(stage["peak_bytes"] for stage in plan["stages"]) + (64 << 20)
        while high > low * 1.005:
            middle = (low + high) // 2
            low, high = (low, middle) if self.plan(profile, *shape, ("--memory", f"{middle}B"))[0] else (middle, high)
        return high, self.plan(profile, *shape, ("--memory", f"{high}B"))[0]

    def limit(self, model, microbatch, schedule, ranks, microbatches):
        """The smallest memory accepted, what its plan predicts, and how runs on GPUs of this size, and of less than predicted, end."""
        least, plan = self.smallest(self.profile(model, microbatch), (schedule, ranks, microbatches))
        peak = max(stage["peak_bytes"] for stage in plan["stages"])
        ends = []
        for size in (least, int(peak * (1 - ALLOWED))):
            done, _ = self.train(model, microbatch, schedule, ranks, size, "limit")
            ends.append("runs" if done.returncode == 0 else "out of memory" if "out of memory" in done.stderr else f"exit code {done.returncode}")
        return least, peak, ends


def limits(bench, rows):
    """Prints the table; how many are not as the planner says."""
    off = 0
    print("| model | microbatch | schedule | ranks | microbatches | smallest MB | of that size | predicted MB | 5 % less than that |\n"
          "|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        least, peak, ends = bench.limit(*row)
        off += ends != ["runs", "out of memory"]
        print("| " + " | ".join(map(str, row)) + f" | {least / 1e6:.1f} | {ends[0]} | {peak / 1e6:.1f} | {ends[1]} |", flush=True)
    return off


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("millrace")
    parser.add_argument("run", help="build/cuda/standin/run")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--schedules", default="")
    parser.add_argument("--small", action="store_true", help="the smaller microbatch of each model alone")
    parser.add_argument("--limits", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json")
    options = parser.parse_args()
    bench = Bench(options)
    rows, off, shapes = [], 0, []
    print("| model | microbatch | schedule | ranks | microbatches | predicted MB | tensors MB | off | taken MB |\n|---|---|---|---|---|---|---|---|---|")
    for model in options.models.split(","):
        for microbatch in MODELS[model][1][:1 if options.small else None]:
            for schedule, ranks, microbatches in SHAPES:
                if options.schedules and schedule not in options.schedules.split(","):
                    continue
                if options.quick and (model, microbatch, schedule, ranks, microbatches) not in QUICK:
                    continue
                shapes.append((model, microbatch, schedule, ranks, microbatches))
                try:
                    predicted, found = bench.line(model, microbatch, schedule, ranks, microbatches)
                except Failed as error:
                    print(f"| {model} | {microbatch} | {schedule} | {ranks} | {microbatches} | {str(error)[-300:]!r}")
                    off += 1
                    continue
                for rank in range(ranks):
                    tensors, taken = found[rank]
                    wrong = predicted[rank] / tensors - 1
                    off += abs(wrong) > ALLOWED
                    print(f"| {model} | {microbatch} | {schedule} | {rank} of {ranks} | {microbatches} | {predicted[rank] / 1e6:.1f} | {tensors / 1e6:.1f} | "
                          f"{wrong * 100:+.1f} % | {taken / 1e6:.1f} |", flush=True)
                    rows.append([model, microbatch, schedule, rank, ranks, microbatches, predicted[rank], tensors, taken])
    if options.limits:
        off += limits(bench, shapes)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(rows, file)
    shutil.rmtree(bench.folder, ignore_errors=True)
    print(f"{off} off by more than {ALLOWED * 100:.0f} %")
    return 1 if off else 0


if __name__ == "__main__":
    sys.exit(main())
