"""The prediction of `millrace stalls what-if`, min(F, P, G), beside runs with a throttled storage at seven sizes of the cache, and the
size that it names as the smallest with which storage does not bound beside the smallest measured one that is as fast as the best.

    scripts/benchmark stalls [--images FOLDER] [--storage 8ms,20MB] [--policy minio] [--computation 0.05] [--batch 8] [--threads 2]
                             [--repeats 5] [--files 200] [--small]
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile

from side_by_side import checked

FRACTIONS = [0, 0.25, 0.35, 0.5, 0.65, 0.75, 1]
MOST = 0.04   # the error that DS-Analyzer reports at most
STEP = 0.05   # between the sizes of the cache among which the optimum is looked for


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("millrace")
    parser.add_argument("--images", help="JPEG files; without it they are made up")
    parser.add_argument("--storage", default="8ms,20MB")
    parser.add_argument("--policy", default="minio")
    parser.add_argument("--computation", type=float, default=0.05, help="seconds of a step")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--files", type=int, default=200)
    parser.add_argument("--size", type=int, default=110_000, help="bytes of an image that is made up")
    parser.add_argument("--small", action="store_true", help="few files and repeats: to see that it runs")
    options = parser.parse_args()
    if options.small:
        options.files, options.repeats, options.size = 64, 2, 20_000
    millrace = os.path.abspath(options.millrace)
    print(f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f} before; {options.repeats} repeats, "
          f"storage {options.storage}, policy {options.policy}\n", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "out")
        command = [millrace, "stalls", "analyze", "workload=default", f"++workload.reader.batch_size={options.batch}",
                   f"++workload.reader.read_threads={options.threads}", f"++workload.train.computation_time={options.computation}",
                   "--storage", options.storage, "--policy", options.policy, "--repeats", options.repeats, "--out", out,
                   "--measure", ",".join(map(str, FRACTIONS))]
        if options.images:
            command += ["--images", options.images]
        else:
            command += ["++workload.dataset.format=jpeg", f"++workload.dataset.num_files_train={options.files}",
                        "++workload.dataset.num_samples_per_file=1", f"++workload.dataset.record_length_bytes={options.size}",
                        "++workload.workflow.generate_data=True", f"++workload.dataset.data_folder={folder}/data"]
        checked(command, folder, "analyze")
        stalls = os.path.join(out, "stalls.json")
        with open(stalls) as opened:
            report = json.load(opened)
        said = subprocess.run([millrace, "stalls", "what-if", stalls, "--cache", ",".join(map(str, FRACTIONS)), "--format", "json"],
                              check=True, capture_output=True, text=True)
        predictions = json.loads(said.stdout)
    print("| cached | predicted min(F, P, G) | measured, median | mean | error | bound by |\n|---|---|---|---|---|---|")
    errors, speeds = [], []
    for point, told in zip(report["measured"], predictions["predictions"]):
        measured = point["measured_samples_per_s"]
        speeds.append(point["median_samples_per_s"])
        errors.append(told["samples_per_s"] / speeds[-1] - 1)
        print(f"| {point['cache_fraction'] * 100:.0f} % | {told['samples_per_s']:.1f} | {speeds[-1]:.1f} | {measured['mean']:.1f} ± "
              f"{measured['half_interval_95']:.1f} | {errors[-1] * 100:+.1f} % | {told['bound']} |")
    worst = max(errors, key=abs)
    print(f"\nworst error {worst * 100:+.1f} %, {sum(abs(e) <= MOST for e in errors)} of {len(errors)} within {MOST * 100:.0f} %")
    optimum = predictions.get("smallest_cache_fraction")
    enough = next(f for f, speed in zip(FRACTIONS, speeds) if speed >= (1 - MOST) * max(speeds))
    before = max([f for f in FRACTIONS if f < enough], default=0)
    if optimum is None:
        print("no optimum is named for this policy")
        return
    holds = before - STEP <= optimum <= enough + STEP
    print(f"optimum named: {optimum * 100:.0f} % of the data; measured between {before * 100:.0f} and {enough * 100:.0f} %: "
          f"{'it holds' if holds else 'it is off'}")
    if abs(worst) > MOST or not holds:
        sys.exit(1)


if __name__ == "__main__":
    main()
