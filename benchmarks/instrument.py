"""What it costs a run to be watched: steps with phases traced, with counters, and with both, beside neither.

Runs alternate. The figure of a run is the median step after the first ones; of two ranks that of the slower. The table has medians
and quartiles over the runs, and the median of the ratios to the plain run of the same round. The sampler's own CPU time comes from
the end of counters.rank0.jsonl.

    scripts/benchmark instrument [--runs N] [--steps N] [--jobs mlp,unet3d,pipeline]
"""
import argparse
import json
import os
import statistics
import tempfile

from side_by_side import checked, figure, spread, steps_of_ranks, write_job

SKIPPED_STEPS = 5
# Flags beside those of write_job; with steps that take about a millisecond, and some tens of them.
JOBS = {
    "mlp": (1, {"model": "mlp", "width": 256, "depth": 4, "microbatch": 32, "microbatches": 4, "data": "synthetic:512"}, 20),
    "unet3d": (1, {"model": "unet3d", "image-size": 32, "filters": 8, "levels": 3, "microbatch": 1, "microbatches": 2,
                   "data": "synthetic:8"}, 1),
    "pipeline": (2, {"model": "mlp", "width": 256, "depth": 4, "microbatch": 32, "microbatches": 8, "data": "synthetic:512"}, 10),
}
WAYS = {"plain": ("original", 0), "phases": ("instrumented", 0), "counters": ("original", 1), "both": ("instrumented", 1)}


def run(opts, name, way, folder):
    """The step's seconds, and the sampler's share of the run's time."""
    stages, keys, more = JOBS[name]
    variant, counters = WAYS[way]
    out, steps = os.path.join(folder, "out"), opts.steps * more
    job = write_job(folder, {**keys, "stages": stages, "steps": steps, "lr": 0.01, "variant": variant, "counters": counters,
                             "trace-steps": None, "output-dir": out})
    checked([opts.millrace, "launch", job], folder, way)
    share = None
    if counters:
        lines = [json.loads(line) for line in open(os.path.join(out, "counters.rank0.jsonl"))]
        samples = [line["clock_ns"] for line in lines if "process" in line]
        share = lines[-1]["own_cpu_s"] / max((samples[-1] - samples[0]) * 1e-9, 1e-9)
    return figure(steps_of_ranks(out, stages, steps), SKIPPED_STEPS), share


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millrace", required=True)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=40, help="of the slowest job; the others do more")
    parser.add_argument("--jobs", default=",".join(JOBS))
    opts = parser.parse_args()
    print("| job | watched by | step, ms | ratio to plain | sampler's CPU, % of a core |\n|---|---|---|---|---|")
    for name in opts.jobs.split(","):
        found, shares = {way: [] for way in WAYS}, {way: [] for way in WAYS}
        with tempfile.TemporaryDirectory() as folder:
            for _ in range(opts.runs):
                for way in WAYS:
                    seconds, share = run(opts, name, way, folder)
                    found[way].append(seconds)
                    shares[way] += [share] if share is not None else []
        for way in WAYS:
            ratio = statistics.median(a / b for a, b in zip(found[way], found["plain"]))
            share = f"{100 * statistics.median(shares[way]):.2f}" if shares[way] else "-"
            print(f"| {name} | {way} | {spread(found[way], 3)} | {ratio:.3f} | {share} |", flush=True)


if __name__ == "__main__":
    main()
