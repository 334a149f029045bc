#!/usr/bin/env python3
"""Every schedule that the planner can name, predicted and measured on two ranks of this host.

Profiles one model, plans it for each schedule, launches each plan; runs alternate. A figure is the median over
runs of the median step of the slower rank. Usage: schedules.py MILLRACE [RUNS]"""
import json
import os
import statistics
import subprocess
import sys
import tempfile

MODEL = ["--model", "mlp", "--width", "1024", "--depth", "16"]
MICROBATCH, MICROBATCHES, STEPS = 32, 8, 30
KINDS = ["gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "v-half", "v-min", "dualpipev",
         "auto-order", "pipedream", "pipedream-2bw"]


def call(*arguments):
    done = subprocess.run(arguments, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(arguments)}: exit {done.returncode}\n{done.stderr}")
    return done.stdout


def measured_step(folder):
    """Seconds; the first steps warm up."""
    slowest = 0.0
    for rank in (0, 1):
        with open(f"{folder}/steps.rank{rank}.jsonl") as lines:
            steps = [json.loads(line) for line in lines]
        times = [s["step_s"] for s in steps if "step_s" in s][5:]
        slowest = max(slowest, statistics.median(times))
    return slowest


def main():
    millrace = os.path.abspath(sys.argv[1])
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        call(millrace, "profile", *MODEL, "--microbatch", str(MICROBATCH), "--out", "profile.json")
        plans = {}
        for kind in KINDS:
            call(millrace, "plan", "--profile", "profile.json", "--ranks", "2", "--straight", "--schedule", kind,
                 "--microbatches", str(MICROBATCHES), "--out", f"{kind}.json")
            with open(f"{kind}.json") as file:
                plans[kind] = json.load(file)
        times = {kind: [] for kind in KINDS}
        for _ in range(runs):
            for kind in KINDS:
                each = kind == "pipedream"  # a step of its log is a minibatch
                call(millrace, "launch", job(kind, each))
                times[kind].append(measured_step(f"run-{kind}") * (MICROBATCHES if each else 1))
    print("| schedule | stages on ranks | predicted, ms | measured, ms | off by |")
    print("|---|---|---|---|---|")
    for kind in KINDS:
        stages = " ".join(str(s["ranks"][0]) for s in plans[kind]["stages"])
        predicted = plans[kind]["predicted_step_s"]
        measured = statistics.median(times[kind])
        print(f"| `{kind}` | {stages} | {predicted * 1e3:.1f} | {measured * 1e3:.1f} | "
              f"{(measured / predicted - 1) * 100:+.1f} % |")


def job(kind, each):
    with open(f"{kind}.yaml", "w") as file:
        file.write(f"model: mlp\nwidth: 1024\ndepth: 16\nplan: {kind}.json\nmicrobatch: {MICROBATCH}\n"
                   f"steps: {STEPS * (MICROBATCHES if each else 1)}\nno-evaluation: true\ntrace-steps: 0\n"
                   f"print-every: 100000\ndata: synthetic:1024\noutput-dir: run-{kind}\noverwrite: true\n")
    return f"{kind}.yaml"


if __name__ == "__main__":
    main()
