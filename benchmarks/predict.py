"""A step's prediction beside its measurement: each model is profiled with as many ranks as the run will have, planned, launched and
measured, in turn, N rounds. A figure is the median step of the run; the error that of the prediction, (measured - predicted) /
predicted. It is worth what the machine drifts between profile and run: the profile's own spread stands beside it.

    scripts/benchmark predict [--models dcgan,gnmt_large,bert_large,resnet18_sync] [--rounds N] [--ranks 1,2]
"""

import argparse
import json
import os
import statistics
import sys
import tempfile

from side_by_side import checked, steps_of_ranks, words, write_job

MODELS = {
    # name: (options of the model, of data and run, of the profile, microbatches, steps)
    "dcgan": ({"image-size": 32, "generator-features": 32, "discriminator-features": 32},
              {"microbatch": 16, "rule": "adam", "momentum": None, "beta1": 0.5, "lr": 0.0002}, {}, 4, 30),
    "gnmt": ({"layers": 2, "hidden": 256, "vocabulary": 8000, "length": 32},
             {"microbatch": 16, "data": "synthetic:512"}, {"measured-microbatches": 24}, 4, 24),
    "gnmt_large": ({"length": 24}, {"microbatch": 4, "data": "synthetic:128"},
                   {"measured-microbatches": 8, "repetitions": 1, "warmup": 1}, 4, 8),
    "bert_large": ({"length": 64}, {"microbatch": 2, "data": "synthetic:128"},
                   {"measured-microbatches": 8, "repetitions": 1, "warmup": 1}, 4, 8),
    # Two replicas that share the statistics of their batch normalisation.
    "resnet18_sync": ({"image-size": 32, "classes": 10},
                      {"microbatch": 8, "data": "synthetic:256", "sync-batch-norm": True}, {}, 4, 30),
}
NAMES = {"resnet18_sync": "resnet18"}  # of models whose case has another
REPLICATED = {"resnet18_sync"}  # one stage on all ranks; the others have one stage a rank
OF_PROFILE = {"microbatch", "data", "rule", "sync-batch-norm"}  # of the run's flags


def measure(millrace, name, ranks, folder):
    model, run, profile, microbatches, steps = MODELS[name]
    measured_as = {key: value for key, value in run.items() if key in OF_PROFILE}
    if "data" in run:
        measured_as["microbatches"] = microbatches
    file, plan, out = (os.path.join(folder, part) for part in ("profile.json", "plan.json", "out"))
    model_name = NAMES.get(name, name)
    stages = ["--stages", 1] if name in REPLICATED else ["--straight", "--stages", ranks]
    checked([millrace, "profile", "--model", model_name, *words({**model, **measured_as, **profile}), "--ranks", ranks, "--out", file],
            folder, "profile")
    checked([millrace, "plan", "--profile", file, *stages, "--ranks", ranks, "--microbatches", microbatches,
             "--schedule", "1f1b", "--rule", run.get("rule", "sgd"), "--out", plan], folder, "plan")
    job = write_job(folder, {"model": model_name, **model, **run, "plan": plan, "steps": steps, "output-dir": out})
    checked([millrace, "launch", job], folder, "launch")
    with open(plan) as opened:
        planned = json.load(opened)
    logs = steps_of_ranks(out, ranks, steps)
    found = max(statistics.median(log[2:]) for log in logs)
    return planned.get("predicted_run_step_s", planned["predicted_step_s"]), found, planned.get("predicted_spread", 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("millrace")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ranks", default="1,2")
    options = parser.parse_args()
    names = options.models.split(",")
    for name in names:
        if name not in MODELS:
            sys.exit(f"benchmark predict: there is no model '{name}': {', '.join(MODELS)}")
    millrace = os.path.abspath(options.millrace)
    print("| model | ranks | predicted ms | measured ms | error | spread of the profile |\n|---|---|---|---|---|---|", flush=True)
    for name in names:
        for ranks in (int(text) for text in options.ranks.split(",")):
            for _ in range(options.rounds):
                with tempfile.TemporaryDirectory() as folder:
                    predicted, found, spread = measure(millrace, name, ranks, folder)
                print(f"| `{name}` | {ranks} | {predicted * 1e3:.1f} | {found * 1e3:.1f} | {(found / predicted - 1) * 100:+.1f} % "
                      f"| {spread * 100:.1f} % |", flush=True)


if __name__ == "__main__":
    main()
