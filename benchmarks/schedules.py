#!/usr/bin/env python3
"""Every schedule that the planner can name, predicted and measured on two ranks of this host.

In each round the model is profiled with two ranks at once, planned for each schedule, and each plan is launched: profiles
and runs alternate, so that a machine that drifts does so for both. A figure is the median over the rounds; of a run it is
the median step of the slower rank. `simulated` is the plan's schedule simulated again with the mean times that the run
measured: predicted to simulated is the error of the times. `jitter` is from there to a simulation with each action's own
time, and the error of the model from that to the steps that were traced.
Usage: schedules.py MILLRACE [ROUNDS]"""
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
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    predicted, measured, simulated, jitter, model = ({kind: [] for kind in KINDS} for _ in range(5))
    stages, spreads = {}, []
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for _ in range(rounds):
            call(millrace, "profile", *MODEL, "--microbatch", str(MICROBATCH), "--ranks", "2", "--out", "profile.json")
            with open("profile.json") as file:
                spreads.append(json.load(file)["measured"]["spread"])
            for kind in KINDS:
                call(millrace, "plan", "--profile", "profile.json", "--ranks", "2", "--straight", "--schedule", kind,
                     "--microbatches", str(MICROBATCHES), "--out", f"{kind}.json")
                with open(f"{kind}.json") as file:
                    plan = json.load(file)
                stages[kind] = " ".join(str(s["ranks"][0]) for s in plan["stages"])
                each = kind == "pipedream"  # a step of its log is a minibatch
                scale = MICROBATCHES if each else 1
                call(millrace, "launch", job(kind, each))
                predicted[kind].append(plan.get("predicted_run_step_s", plan["predicted_step_s"]))
                measured[kind].append(measured_step(f"run-{kind}") * scale)
                error = json.loads(call(millrace, "report", "--run", f"run-{kind}", "--format", "json"))["error"]
                simulated[kind].append(error["simulated_s"] * scale)
                jitter[kind].append(error["of_jitter"])
                model[kind].append(error["of_model"])
    print(f"spread of the profiles: {', '.join(f'{s * 100:.1f} %' for s in spreads)}\n")
    print("| schedule | stages on ranks | predicted, ms | simulated, ms | measured, ms | times off by | jitter | model off by | all |")
    print("|---|---|---|---|---|---|---|---|---|")
    for kind in KINDS:
        plan, again, real = (statistics.median(times[kind]) for times in (predicted, simulated, measured))
        print(f"| `{kind}` | {stages[kind]} | {plan * 1e3:.1f} | {again * 1e3:.1f} | {real * 1e3:.1f} | "
              f"{(again / plan - 1) * 100:+.1f} % | {statistics.median(jitter[kind]) * 100:+.1f} % | {statistics.median(model[kind]) * 100:+.1f} % | "
              f"{(real / plan - 1) * 100:+.1f} % |")


def job(kind, each):
    with open(f"{kind}.yaml", "w") as file:
        file.write(f"model: mlp\nwidth: 1024\ndepth: 16\nplan: {kind}.json\nmicrobatch: {MICROBATCH}\n"
                   f"steps: {STEPS * (MICROBATCHES if each else 1)}\nno-evaluation: true\ntrace-first: 6\n"
                   f"trace-steps: {10 * (MICROBATCHES if each else 1)}\nprint-every: 100000\n"
                   f"data: synthetic:1024\noutput-dir: run-{kind}\noverwrite: true\n")
    return f"{kind}.yaml"


if __name__ == "__main__":
    main()
