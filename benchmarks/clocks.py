"""The wall clock beside the virtual one: emulated jobs of four ranks on two emulated hosts of two devices. Times are a fixed profile's, so a
step in virtual time is the same on every machine. On the wall clock it is longer by what emulating costs. Prints the step of each plan in
virtual time and how much longer it is on the wall clock, means of all steps but the first ones, least to greatest of the rounds.

    scripts/benchmark clocks [--rounds 3] [--scales 1,10]

--scales: factors on all times, messages' bytes included: a step of 10 ms and one of 100 ms.
"""
import argparse
import json
import os
import statistics
import tempfile

from side_by_side import checked, steps_of_ranks, words, write_job

MODEL = {"model": "mlp", "width": 256, "depth": 8, "microbatch": 64}
RANKS, MICROBATCHES, SKIPPED_STEPS, SECONDS = 4, 8, 5, 4
LAYER_S = {"forward_s": 150e-6, "backward_input_s": 110e-6, "backward_weight_s": 120e-6}  # of a linear layer
PLANS = {"pipeline of four stages": ["--straight", "--stages", 4], "two stages of two replicas": ["--stages", 2],
         "four replicas": ["--stages", 1]}


def write_inputs(millrace, folder, scale):
    """The profile and the cluster file."""
    profile, cluster = (os.path.join(folder, name) for name in ("profile.json", "cluster.yaml"))
    checked([millrace, "profile", *words(MODEL), "--blocks", 1, "--out", profile], folder, "profile")
    with open(profile) as file:
        times = json.load(file)
    times.update(loss_s=40e-6 * scale, update_s_per_byte=2e-10 * scale, update_copy_s_per_byte=5e-11 * scale)
    for layer in times["layers"]:
        for name, seconds in LAYER_S.items():
            layer[name] = scale * seconds * (1 if layer["parameter_bytes"] > 0 else 0.1)
    with open(profile, "w") as file:
        json.dump(times, file)
    host = f"devices: 2, bandwidth: {1e10 / scale:g}, latency: 5e-6"
    with open(cluster, "w") as file:
        file.write(f"hosts: [{{name: a, {host}}}, {{name: b, {host}}}]\nnetwork: {{bandwidth: {1e9 / scale:g}, latency: 5e-5}}\n")
    return profile, cluster


def mean_step(millrace, job, given, clock, folder, steps):
    out = os.path.join(folder, clock)
    checked([millrace, "emulate", job, "--device-profile", given[0], "--cluster", given[1], "--clock", clock, "--output-dir", out], folder, clock)
    return max(statistics.mean(one[SKIPPED_STEPS:]) for one in steps_of_ranks(out, RANKS, steps))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("millrace")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scales", default="1,10")
    options = parser.parse_args()
    millrace = os.path.abspath(options.millrace)
    print("| plan | step in virtual time, ms | longer on the wall clock |\n|---|---|---|")
    for scale in map(float, options.scales.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            given = write_inputs(millrace, folder, scale)
            steps = max(30, round(SECONDS / (0.01 * scale)))
            for name, shape in PLANS.items():
                plan = os.path.join(folder, "plan.json")
                checked([millrace, "plan", "--profile", given[0], "--cluster", given[1], *shape, "--microbatches", MICROBATCHES, "--schedule",
                         "1f1b", "--out", plan], folder, "plan")
                job = write_job(folder, {**MODEL, "data": "synthetic:4096", "plan": plan, "steps": steps, "momentum": None})
                virtual = mean_step(millrace, job, given, "virtual", folder, steps)
                longer = [mean_step(millrace, job, given, "wall", folder, steps) / virtual - 1 for _ in range(options.rounds)]
                print(f"| {name} | {virtual * 1e3:.2f} | {min(longer) * 100:+.2f} to {max(longer) * 100:+.2f} % |", flush=True)


if __name__ == "__main__":
    main()
