"""One UNET3D run original, instrumented, sleeping, on generated data and as `dlio`, each under `trace capture`, and compared.

Every repeat runs all of them in turn. A sleeping run has the times of the instrumented run before it. `dlio` has as many files as
the data set, of their mean size. `dlio-crop` has files as large as what training reads of a sample. Both wait as long as the
instrumented run computed. All data are in the page cache. "Data" are reads of the data set's files (.npy). Writes into --out:
similarity.md, similarity.csv, similarity.json, and a picture of each run of the first repeat.

With --dlio FOLDER it compares DLIO itself, a checkout of argonne-lcf/dlio_benchmark, with `millrace dlio` instead (dlio_peer.py).

    scripts/benchmark similarity [--out DIR] [--repeats N] [--steps N] [--size BYTES] [--method ptrace|bpftrace]
                                 [--dlio FOLDER --dlio-python PYTHON]
"""
import argparse
import csv
import glob
import json
import os
import shutil
import statistics
import subprocess
import sys

import dlio_peer

TIMEOUT_S = 900
TRAINED = ["original", "instrumented", "sleep", "generated"]
MICROBATCH = 2
JOB = ["--model", "unet3d", "--filters", "8", "--levels", "3", "--image-size", "32", "--rule", "sgd", "--lr", "0.1", "--seed", "1",
       "--microbatch", str(MICROBATCH), "--microbatches", "1", "--threads", "1", "--print-every", "100000", "--no-evaluation"]


class Bench:
    def __init__(self, args):
        self.args, self.out = args, os.path.abspath(args.out)
        for part in ("runs", "traces", "processed", "pictures", "logs"):
            os.makedirs(os.path.join(self.out, part), exist_ok=True)

    def path(self, *parts):
        return os.path.join(self.out, *parts)

    def call(self, name, *words):
        """Runs millrace; ends the benchmark if it fails. Returns what it printed."""
        words = [self.args.millrace] + [str(word) for word in words]
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT_S)
        with open(self.path("logs", name + ".log"), "a") as log:
            log.write(" ".join(words) + "\n" + done.stdout)
        if done.returncode != 0:
            sys.exit(f"{done.stdout}similarity: {name} ended with exit code {done.returncode}; its output is above")
        return done.stdout

    def captured(self, name, *words, ending=".npy"):
        """Runs a command under `trace capture`, with all data in the page cache, and processes its trace."""
        for file in glob.glob(self.path("*", "**", "*" + ending), recursive=True):
            with open(file, "rb") as data:
                while data.read(1 << 20):
                    pass
        trace = self.path("traces", name)
        shutil.rmtree(trace, ignore_errors=True)
        self.call(name, "trace", "capture", "--method", self.args.method, "--out", trace, "--", *words)
        lost = json.load(open(os.path.join(trace, "capture.json")))["lost"]
        if lost:
            sys.exit(f"similarity: {lost} calls of {name} are not in its trace")
        self.call(name, "trace", "preprocess", trace, "--workload", "any", "--out", self.path("processed"))

    def train(self, variant, repeat, data):
        name = f"{variant}-{repeat}"
        words = ["train", *JOB, "--steps", self.args.steps, "--checkpoint-every", max(1, self.args.steps // 2), "--data", data,
                 "--variant", variant, "--output-dir", self.path("runs", name), "--overwrite"]
        if variant == "sleep":
            words += ["--variant-from", self.path("runs", f"instrumented-{repeat}")]
        if variant == "generated":
            words += ["--variant-from", "kits:" + self.path("other")]
        self.captured(name, self.args.millrace, *words)

    def dlio_words(self, kind, files, record):
        """The workload of one of the two emulations."""
        overrides = {"dataset.format": "npy", "dataset.data_folder": self.path("data-" + kind), "dataset.num_files_train": files,
                     "dataset.num_samples_per_file": 1, "dataset.record_length_bytes": record, "reader.read_threads": 1,
                     "train.epochs": -(-self.args.steps * MICROBATCH // files), "train.total_training_steps": self.args.steps}
        return ["dlio", f"workload={self.path('emulated.yaml')}", *[f"++workload.{key}={value}" for key, value in overrides.items()]]

    def emulate(self, kind, repeat, files, record):
        name = f"{kind}-{repeat}"
        words = self.dlio_words(kind, files, record) + ["--calibration-steps", 0]
        if not os.path.isdir(self.path("data-" + kind)):
            self.call(name, *words, "++workload.workflow.generate_data=True", "++workload.workflow.train=False", "--output-dir",
                      self.path("runs", "generate-" + kind))
        self.captured(name, self.args.millrace, *words, "--output-dir", self.path("runs", name))


def rows_of(path):
    """The rows of a raw trace, without its header."""
    for line in open(path, errors="replace"):
        words = line.split()
        if words and words[0].isdigit():
            yield words


def figures_of(bench, name):
    """What a trace says of the data set's files, and how long the run took."""
    trace = bench.path("traces", name)
    reads = [row for row in rows_of(os.path.join(trace, "trace_read.out")) if row[-1].endswith(".npy")]
    figures = {"reads": len(reads), "data_bytes": sum(int(row[3]) for row in reads),
               "read_s": sum(int(row[4]) for row in reads) / 1e9,
               "opens": sum(1 for _ in rows_of(os.path.join(trace, "trace_openat.out"))),
               "written_bytes": sum(int(row[3]) for row in rows_of(os.path.join(trace, "trace_write.out"))),
               "wall_s": json.load(open(os.path.join(trace, "capture.json")))["seconds"]}
    summary = bench.path("runs", name, "summary.json")
    if not name.startswith("dlio"):
        figures["run_s"] = json.load(open(summary))["seconds"]
        steps = [json.loads(line) for line in open(bench.path("runs", name, "steps.rank0.jsonl"))]
        steps = [step["step_s"] for step in steps if "step_s" in step][1:]
        figures["steps_s"] = sum(steps)
    return figures


def spread(values, scale=1.0, digits=0):
    low, middle, high = min(values) * scale, statistics.median(values) * scale, max(values) * scale
    text = f"{middle:,.{digits}f}"
    return text if f"{low:.{digits}f}" == f"{high:.{digits}f}" else f"{text} ({low:,.{digits}f}-{high:,.{digits}f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millrace", default="build/release/bin/millrace")
    parser.add_argument("--out", default="similarity")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--size", default="85MB", help="of the data set")
    parser.add_argument("--method", default="ptrace")
    parser.add_argument("--dlio", help="a checkout of DLIO: it is compared with `millrace dlio`, and nothing else is")
    parser.add_argument("--dlio-python", default=sys.executable, help="a Python that has what DLIO imports")
    args = parser.parse_args()
    args.millrace = os.path.abspath(args.millrace)
    bench = Bench(args)
    if args.dlio:
        return dlio_peer.compare(bench, spread)
    for folder, seed in (("data", 1), ("other", 2)):
        bench.call("generate", "data", "generate", "--workload", "kidneys", "--out", bench.path(folder), "--size", args.size,
                   "--image-side", 64, "--seed", seed, "--threads", 1)
    volumes = [os.path.getsize(path) for path in glob.glob(bench.path("data", "**", "*.npy"), recursive=True)]
    cases = len(volumes) // 2
    results = {}
    for repeat in range(1, args.repeats + 1):
        for variant in TRAINED:
            bench.train(variant, repeat, "kits:" + bench.path("data"))
            results.setdefault(variant, []).append(figures_of(bench, f"{variant}-{repeat}"))
        if repeat == 1:
            bench.call("fit", "instrument", "fit", bench.path("runs", "instrumented-1"), "--workload", "millrace", "--workload-file",
                       bench.path("emulated.yaml"))
        read = results["original"][0]["data_bytes"] // (args.steps * MICROBATCH)
        for kind, record in (("dlio", sum(volumes) // cases), ("dlio-crop", read)):
            bench.emulate(kind, repeat, cases, record)
            results.setdefault(kind, []).append(figures_of(bench, f"{kind}-{repeat}"))
    runs = {kind: [bench.path("processed", f"{kind}-{repeat}") for repeat in range(1, args.repeats + 1)] for kind in results}
    for kind, figures in results.items():
        more = [word for run in runs["original"][1:] for word in ("--more-a", run)]
        more += [word for run in runs[kind][1:] for word in ("--more-b", run)]
        if kind == "original":  # the repeats beside each other: what "close" is here
            more = [word for run in runs[kind][1:] for word in ("--more-a", run)]
        told = bench.call("similarity-" + kind, "trace", "similarity", runs["original"][0], runs[kind][0], *more, "--format", "json")
        score = json.loads(told[told.index("{"):])
        part = "within_a" if kind == "original" else "between"
        score = score.get(part) or {"mean": score["total"], "low": score["total"], "high": score["total"]}
        for one in figures:
            one.update({"similarity": score["mean"], "similarity_low": score["low"], "similarity_high": score["high"]})
        shutil.rmtree(bench.path("pictures", kind), ignore_errors=True)
        bench.call("plot", "trace", "plot", runs[kind][0], "--layout", "all_combined", "--formats", "svg,html", "--title", kind, "--out",
                   bench.path("pictures", kind))
    json.dump(results, open(bench.path("similarity.json"), "w"), indent=1)
    keys = ["reads", "data_bytes", "read_s", "opens", "written_bytes", "wall_s", "run_s", "steps_s", "similarity", "similarity_low",
            "similarity_high"]
    with open(bench.path("similarity.csv"), "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["run", "repeat", *keys])
        for kind, figures in results.items():
            for repeat, one in enumerate(figures, 1):
                table.writerow([kind, repeat, *[one.get(key, "") for key in keys]])
    lines = ["| run | data: reads | data: MB | data: ms in reads | all opens | written: MB | run, s | `tracesim/1` beside the originals |",
             "|---|---|---|---|---|---|---|---|"]
    for kind, figures in results.items():
        of = lambda key: [one[key] for one in figures if key in one]
        lines.append(f"| {kind} | {spread(of('reads'))} | {spread(of('data_bytes'), 1e-6, 2)} | {spread(of('read_s'), 1e3)} | "
                     f"{spread(of('opens'))} | {spread(of('written_bytes'), 1e-6, 2)} | {spread(of('run_s') or of('wall_s'), 1, 2)} | "
                     f"{figures[0]['similarity']:.2f} ({figures[0]['similarity_low']:.2f}-{figures[0]['similarity_high']:.2f}) |")
    lines.append("")
    for key, name in (("data_bytes", "bytes of data"), ("written_bytes", "bytes written"), ("run_s", "the run's time"),
                      ("steps_s", "the steps' time"), ("read_s", "time in reads")):
        off = [100 * (s[key] / i[key] - 1) for s, i in zip(results["sleep"], results["instrumented"])]
        lines.append(f"sleep beside the run whose times it has, {name}: {min(off):+.2f} to {max(off):+.2f} %")
    with open(bench.path("similarity.md"), "w") as file:
        file.write("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
