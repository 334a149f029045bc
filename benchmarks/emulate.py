"""Real jobs beside the same jobs on emulated devices: each model is profiled with as many ranks as the run has, planned, launched, and
then emulated from that profile on both clocks, in turn, N rounds. A figure is the median step of the slowest rank. The error is that of
the emulation, emulated / real - 1. It is worth what the machine drifts between profile and run.

    scripts/benchmark emulate [--models mlp,vgg16] [--schedules gpipe,1f1b,zb-h1,interleaved,pipedream] [--rounds N]
"""

import argparse
import os
import statistics
import sys
import tempfile

from side_by_side import checked, figure, steps_of_ranks, write_job

MODELS = {  # name: (options of the model, samples of a microbatch, steps)
    "mlp": ({"width": 1024, "depth": 8}, 32, 20),
    "vgg16": ({"image-size": 64}, 4, 10),
    "resnet50": ({"image-size": 64}, 4, 10),
}
RANKS, MICROBATCHES = 2, 4


def words(flags):
    return [word for key, value in flags.items() for word in (f"--{key}", value)]


def measure(millrace, name, schedule, folder):
    """Returns the real step and the emulated ones on the wall clock and in virtual time."""
    model, microbatch, steps = MODELS[name]
    profile, plan, out = (os.path.join(folder, part) for part in ("profile.json", "plan.json", "out"))
    checked([millrace, "profile", "--model", name, *words(model), "--microbatch", microbatch, "--ranks", RANKS, "--out", profile],
            folder, "profile")
    checked([millrace, "plan", "--profile", profile, "--straight", "--ranks", RANKS, "--microbatches", MICROBATCHES, "--schedule",
             schedule, "--out", plan], folder, "plan")
    job = write_job(folder, {"model": name, **model, "microbatch": microbatch, "data": "synthetic:256", "momentum": None, "plan": plan,
                             "steps": steps, "output-dir": out})
    checked([millrace, "launch", job], folder, "launch")
    found = [figure(steps_of_ranks(out, RANKS, steps), 2)]
    for clock in ("wall", "virtual"):
        emulated = os.path.join(folder, clock)
        checked([millrace, "emulate", job, "--device-profile", profile, "--clock", clock, "--output-dir", emulated], folder, clock)
        found.append(figure(steps_of_ranks(emulated, RANKS, steps), 2))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("millrace")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--schedules", default="gpipe,1f1b,zb-h1,interleaved,pipedream")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    names = options.models.split(",")
    for name in names:
        if name not in MODELS:
            sys.exit(f"benchmark emulate: there is no model '{name}': {', '.join(MODELS)}")
    millrace = os.path.abspath(options.millrace)
    print("| model | schedule | real ms | wall clock ms | error | virtual ms | error |\n|---|---|---|---|---|---|---|", flush=True)
    errors = {"wall": [], "virtual": []}
    for name in names:
        for schedule in options.schedules.split(","):
            rounds = []
            for _ in range(options.rounds):
                with tempfile.TemporaryDirectory() as folder:
                    rounds.append(measure(millrace, name, schedule, folder))
            real, wall, virtual = (statistics.median(column) for column in zip(*rounds))
            # An error is of one round: its profile and its runs are minutes apart, those of others are not its.
            off = [statistics.median(found[k] / found[0] - 1 for found in rounds) for k in (1, 2)]
            for clock, error in zip(errors, off):
                errors[clock].append(abs(error))
            print(f"| `{name}` | {schedule} | {real * 1e3:.1f} | {wall * 1e3:.1f} | {off[0] * 100:+.1f} % | {virtual * 1e3:.1f} "
                  f"| {off[1] * 100:+.1f} % |", flush=True)
    for clock, all_of in errors.items():
        print(f"{clock}: mean {statistics.mean(all_of) * 100:.1f} %, most {max(all_of) * 100:.1f} %")


if __name__ == "__main__":
    main()
