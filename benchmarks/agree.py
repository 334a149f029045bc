"""Random plans: is an emulated step the step that was planned? Each case draws the times of a model's 12 layers, a cluster (one host, two
even or uneven ones, three levels; latency or bandwidth alone), a schedule and a number of microbatches. `plan` makes the plan, `simulate`
says its step again, and `train --device emulated --clock virtual` runs it with real messages. All times are virtual, so the machine and
its load change nothing. Prints the cases that are more than 1 % apart, worst first, and how many are not.

    scripts/benchmark agree [--cases 90] [--seed 1]
"""
import argparse
import json
import os
import random
import subprocess
import sys
import tempfile

MODEL = ["--model", "mlp", "--width", "64", "--depth", "12", "--microbatch", "8"]
SCHEDULES = ["gpipe", "1f1b", "zb-h1", "zb-h2", "interleaved", "zb-v", "v-half", "v-min", "dualpipev", "auto-order", "auto"]
TOLERANCE = 0.01
DEADLINE_S = 300
REFUSED = 2  # the exit code of a plan that does not exist: too few layers or microbatches for its schedule


def with_random_times(profile, draw):
    profile = json.loads(json.dumps(profile))
    profile.update(loss_s=1e-5, update_s_per_byte=2e-10, update_copy_s_per_byte=5e-11)  # the same on every machine
    for layer in profile["layers"]:
        is_large = layer["parameter_bytes"] > 0
        mean = 1e-3 if is_large else 1e-4
        layer["forward_s"], layer["backward_input_s"] = mean * draw.uniform(0.5, 2), mean * draw.uniform(0.5, 2)
        layer["backward_weight_s"] = mean * draw.uniform(0.5, 2) if is_large else 0
    return profile


def random_cluster(draw):
    """A name and the text of a cluster file."""
    bandwidth, latency = 10**draw.uniform(5.5, 8), 10**draw.uniform(-5, -2)
    level = lambda count, b, l: f"{{count: {count}, bandwidth: {b:g}, latency: {l:g}}}"
    host = lambda name, devices: f"{{name: {name}, devices: {devices}, bandwidth: 1e9, latency: 1e-5}}"
    network = f"network: {{bandwidth: {bandwidth:g}, latency: {latency:g}}}\n"
    return draw.choice([
        ("one host", f"levels: [{level(draw.randint(2, 6), bandwidth, latency)}]\n"),
        ("latency alone", f"levels: [{level(draw.randint(2, 6), 1e12, 3 * latency)}]\n"),
        ("bandwidth alone", f"levels: [{level(draw.randint(2, 6), bandwidth, 0)}]\n"),
        ("two hosts", f"hosts: [{host('a', 2)}, {host('b', 2)}]\n{network}"),
        ("uneven hosts", f"hosts: [{host('a', draw.randint(1, 3))}, {host('b', draw.randint(1, 3))}]\n{network}"),
        ("three levels", f"levels: [{level(2, bandwidth * 30, latency / 100)}, {level(2, bandwidth * 6, latency / 10)}, "
                         f"{level(2, bandwidth, latency)}]\n"),
    ])


def run(words, codes=(0,)):
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=DEADLINE_S)
    if done.returncode not in codes:
        sys.exit(f"{done.stdout}{done.stderr}agree.py: exit code {done.returncode} of {' '.join(words)}")
    return done


def one_case(millrace, base, number):
    """What was drawn and the three steps in seconds; None for the steps of a plan that does not exist."""
    draw = random.Random(number)
    cluster, text = random_cluster(draw)
    schedule, microbatches, straight = draw.choice(SCHEDULES), draw.choice([3, 4, 5, 6, 7, 8, 12]), draw.random() < 0.5
    with open("profile.json", "w") as file:
        json.dump(with_random_times(base, draw), file)
    with open("cluster.yaml", "w") as file:
        file.write(text)
    given = ["--profile", "profile.json", "--cluster", "cluster.yaml"]
    answer = run([millrace, "plan", *given, "--microbatches", str(microbatches), "--schedule", schedule, "--out", "plan.json",
                  *(["--straight"] if straight else [])], (0, REFUSED))
    what = f"case {number}: {cluster}, {schedule}, {microbatches} microbatches"
    if answer.returncode == REFUSED:
        return what, None
    with open("plan.json") as file:
        plan = json.load(file)
    simulated = json.loads(run([millrace, "simulate", "--plan", "plan.json", *given, "--format", "json"]).stdout)
    run([millrace, "train", *MODEL, "--plan", "plan.json", "--steps", "5", "--data", "synthetic:256", "--device", "emulated",
         "--device-profile", "profile.json", "--clock", "virtual", "--emulate-links", "cluster.yaml", "--overwrite", "--output-dir", "run"])
    with open("run/summary.json") as file:
        emulated = json.load(file)["median_step_s"]
    planned = plan.get("predicted_run_step_s") or plan["predicted_step_s"]
    replicas = " ".join(str(len(stage["ranks"])) for stage in plan["stages"])
    return f"{what}, ranks of each stage {replicas}", (planned, simulated.get("steady_step_s") or simulated["makespan_s"], emulated)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("millrace")
    parser.add_argument("--cases", type=int, default=90)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    millrace = os.path.abspath(options.millrace)
    rows, refused = [], 0
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        run([millrace, "profile", *MODEL, "--out", "base.json"])
        with open("base.json") as file:
            base = json.load(file)
        for at in range(options.cases):
            what, steps = one_case(millrace, base, 1000 * options.seed + at)
            refused += steps is None
            if steps:
                planned, simulated, emulated = steps
                rows.append((simulated / planned - 1, emulated / planned - 1, what))
            print(f"{at + 1} of {options.cases}", file=sys.stderr, flush=True)
        os.chdir("/")
    apart = sorted((row for row in rows if max(map(abs, row[:2])) > TOLERANCE), key=lambda row: -max(map(abs, row[:2])))
    for simulated, emulated, what in apart:
        print(f"simulated {simulated:+.2%}, emulated {emulated:+.2%}: {what}")
    print(f"{len(rows) - len(apart)} of {len(rows)} plans are simulated and emulated within {TOLERANCE:.0%} of what was planned; "
          f"of {refused} more there is no plan")


if __name__ == "__main__":
    main()
