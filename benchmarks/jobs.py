"""Independent jobs as further microbatches of one pipeline: the bubble, measured, simulated, and by the formula.

N jobs on a pipeline of S stages, one process for each, S processes at a time: one after the other (the pipeline drains
after each job's step), as one array (all N in each microbatch), and as N arrays (`--arrays N`: each job by itself, no
flush between them). The bubble of a rank is the share of a step in which it neither forwards, goes back nor updates;
`simulated` is `millrace simulate` with the times measured in the same run, for the same rank. Runs alternate; the table
has medians over the rounds. One thread per process: the machine must have S cores.

    scripts/benchmark jobs [--model mlp|resnet18] [--rounds N] [--jobs 4] [--stages 2] [--microbatches 4] [--out FILE.json]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

MODELS = {
    "mlp": {"model": "mlp", "width": 512, "depth": 8, "classes": 512, "microbatch": 64},
    "resnet18": {"model": "resnet18", "image_size": 32, "classes": 10, "microbatch": 8},
}
FIRST = 5  # steps before it are not counted
TIMEOUT_S = 1800


def launch(millrace, options, folder, jobs, arrays):
    """One run of `jobs` jobs in `arrays` arrays; by rank, what a step took on average."""
    job = dict(MODELS[options.model], stages=options.stages, microbatches=options.microbatches, steps=options.steps,
               data="synthetic:4096", no_evaluation=True, threads=1, lr=0.001, output_dir=os.path.join(folder, "run"),
               overwrite=True)
    if jobs > 1:
        job.update(fused=True, kernels="loop", arrays=arrays, seed=list(range(1, jobs + 1)), data_seed=1)
    with open(os.path.join(folder, "job.yaml"), "w") as out:
        out.writelines(f"{key}: {json.dumps(value)}\n" for key, value in job.items())
    command = [millrace, "launch", os.path.join(folder, "job.yaml")]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT_S)
    if done.returncode != 0:
        sys.exit(f"{done.stdout}benchmark jobs: exit code {done.returncode}")
    ranks = []
    for rank in range(options.stages):
        with open(os.path.join(folder, "run", f"steps.rank{rank}.jsonl")) as lines:
            steps = [step for step in map(json.loads, lines) if step.get("step", -1) >= FIRST]
        ranks.append({key: statistics.mean(step[key] for step in steps)
                      for key in ("step_s", "forward_s", "backward_s", "update_s")})
    return ranks


def bubble(rank):
    return 1 - (rank["forward_s"] + rank["backward_s"] + rank["update_s"]) / rank["step_s"]


def simulated(millrace, options, ranks, arrays):
    """By rank: the bubble of a step with this run's mean times."""
    microbatches = options.microbatches * arrays

    def costs(key, count):
        return ",".join(str(rank[key] / count) for rank in ranks)

    command = [millrace, "simulate", "--stages", str(options.stages), "--microbatches", str(options.microbatches),
               "--arrays", str(arrays), "--forward", costs("forward_s", microbatches), "--backward",
               costs("backward_s", microbatches), "--update", costs("update_s", arrays), "--format", "json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True, timeout=TIMEOUT_S)
    return [rank["bubble_fraction"] for rank in json.loads(done.stdout)["ranks"]]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("millrace")
    parser.add_argument("--model", choices=sorted(MODELS), default="mlp")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--microbatches", type=int, default=4)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--out")
    options = parser.parse_args()
    ways = {"one after the other": (1, 1, options.jobs), "one array": (options.jobs, 1, 1),
            "arrays in turn": (options.jobs, options.jobs, 1)}  # jobs and arrays of a run, runs
    found = {name: [] for name in ways}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.rounds):
            for name, (jobs, arrays, runs) in ways.items():
                ranks = launch(options.millrace, options, folder, jobs, arrays)
                # A rank ends its list last, or waits for the others: the busiest has the schedule's bubble.
                busiest = min(range(options.stages), key=lambda rank: bubble(ranks[rank]))
                found[name].append({"bubble": bubble(ranks[busiest]),
                                    "simulated": simulated(options.millrace, options, ranks, arrays)[busiest],
                                    "step_s": statistics.mean(rank["step_s"] for rank in ranks) * runs})
    rows = []
    for name, (_, arrays, _) in ways.items():
        of = {key: statistics.median(run[key] for run in found[name]) for key in found[name][0]}
        drain = options.stages - 1
        rows.append(dict(of, way=name, formula=drain / (arrays * options.microbatches + drain), rounds=found[name]))
    print(f"{options.jobs} jobs, {options.stages} stages, {options.microbatches} microbatches: 1f1b, layers job by job")
    print(f"{'':<22}{'bubble':>9}{'simulated':>11}{'formula':>9}{'job-steps/s':>13}")
    for row in rows:
        print(f"{row['way']:<22}{row['bubble']:>8.1%}{row['simulated']:>10.1%}{row['formula']:>9.1%}"
              f"{options.jobs / row['step_s']:>13.1f}")
    if options.out:
        with open(options.out, "w") as out:
            json.dump({"options": vars(options), "rows": rows}, out, indent=1)


if __name__ == "__main__":
    main()
