"""DLIO itself beside `millrace dlio`: the same arguments, the same files, each under `trace capture`.

benchmarks/similarity.py calls it with --dlio FOLDER: a checkout of argonne-lcf/dlio_benchmark. --dlio-python is a Python that has
what DLIO imports (mpi4py, hydra-core, omegaconf, pandas, psutil, pydftracer, torch). One process runs it, without mpirun. Repeats
alternate. `millrace dlio` generates the files, and both read them, from the page cache. "Data" are reads of these files
(.npz). The score compares these reads and opens alone, from the first to the last, because a Python program opens thousands of files
before it begins.
Writes dlio.md and dlio.json, and a picture of each program's first run, into --out.
"""
import json
import os
import shutil
import statistics
import subprocess
import time

FILES, BATCH, EPOCHS, RECORD, COMPUTE_S = 48, 4, 2, 4_000_000, 0.15
PIECE = 262_144  # numpy reads a member of an .npz in such pieces, each as 4 KiB and the rest
PROGRAMS = ("dlio-itself", "millrace-dlio", "millrace-dlio-pieces")
VERSIONS = """
import sys, importlib.metadata
print(sys.version.split()[0], *[f"{p} {importlib.metadata.version(p)}" for p in ("torch", "numpy", "mpi4py", "hydra-core", "pydftracer")])
"""


def printed_by(*words):
    return subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def revision_of(folder):
    if not os.path.isdir(os.path.join(folder, ".git")):
        return "a commit that its folder does not tell"
    return printed_by("git", "-C", folder, "rev-parse", "HEAD")


def workload(bench):
    settings = {"workflow.checkpoint": False, "dataset.data_folder": bench.path("data-npz"), "dataset.num_files_train": FILES,
                "dataset.record_length_bytes": RECORD, "dataset.record_length_bytes_stdev": 0,
                "dataset.record_length_bytes_resize": 0, "reader.batch_size": BATCH, "reader.read_threads": 1,
                "train.epochs": EPOCHS, "train.computation_time": COMPUTE_S}
    return ["workload=unet3d_a100", *[f"++workload.{key}={value}" for key, value in settings.items()]]


def command_of(bench, program, name):
    out = bench.path("runs", name)
    if program != "dlio-itself":
        pieces = [f"++workload.reader.transfer_size={PIECE}"] if program == "millrace-dlio-pieces" else []
        return [bench.args.millrace, "dlio", *workload(bench), *pieces, "--calibration-steps", "0", "--output-dir", out]
    return [bench.args.dlio_python, "-m", "dlio_benchmark.main", *workload(bench), f"++workload.output.folder={out}",
            f"hydra.run.dir={out}/hydra"]


def is_data(row):
    return row[-1].endswith(".npz")


def rows_in(path):
    for line in open(path, errors="replace"):
        words = line.split()
        if words and words[0].isdigit():
            yield line, words


def data_alone(trace, out):
    """A copy of a trace with the calls on the data set's files alone, whose training lasts from the first to the last of them."""
    shutil.copytree(trace, out)
    begin, end = None, None
    for name in ("trace_read.out", "trace_openat.out", "trace_write.out"):
        with open(os.path.join(trace, name), errors="replace") as file:
            header = file.readline()
        kept = [(line, row) for line, row in rows_in(os.path.join(trace, name)) if is_data(row)]
        for _, row in kept:
            begin, end = min(begin or int(row[0]), int(row[0])), max(end or 0, int(row[0]))
        with open(os.path.join(out, name), "w") as file:
            file.writelines([header, *[line for line, _ in kept]])
    to_utc = time.time_ns() - time.monotonic_ns()
    events = [("INTERVAL_START", "init_start", begin), ("INTERVAL_END", "init_stop", begin), ("INTERVAL_START", "training_start", begin),
              ("INTERVAL_END", "training_stop", end)]
    with open(os.path.join(out, "capture.log"), "w") as file:
        for kind, key, at in events:
            file.write(":::MLLOG " + json.dumps({"namespace": "", "time_ms": (at + to_utc) // 1_000_000 + (kind == "INTERVAL_END"),
                                                 "event_type": kind, "key": key, "value": None,
                                                 "metadata": {"file": "capture", "lineno": 0}}) + "\n")


def figures_of(bench, name):
    trace = bench.path("traces", name)
    reads = [row for _, row in rows_in(os.path.join(trace, "trace_read.out")) if is_data(row)]
    opens = [row for _, row in rows_in(os.path.join(trace, "trace_openat.out"))]
    report = json.load(open(os.path.join(trace, "capture.json")))
    results = bench.path("runs", name)
    metric = json.load(open(os.path.join(results, "summary.json")))["metric"]
    return {"reads": len(reads), "data_bytes": sum(int(row[3]) for row in reads), "read_s": sum(int(row[4]) for row in reads) / 1e9,
            "largest_read": max(int(row[3]) for row in reads), "median_read": statistics.median(int(row[3]) for row in reads),
            "data_opens": sum(1 for row in opens if is_data(row)), "opens": len(opens),
            "processes": len({row[1] for row in reads}), "wall_s": report["seconds"], "lost": report["lost"],
            "utilisation": metric["train_au_mean_percentage"]}


def compare(bench, spread):
    bench.call("generate-npz", "dlio", *workload(bench), "++workload.workflow.generate_data=True", "++workload.workflow.train=False",
               "--output-dir", bench.path("runs", "generate-npz"))
    os.environ["PYTHONPATH"] = os.path.abspath(bench.args.dlio)
    results = {program: [] for program in PROGRAMS}
    for repeat in range(1, bench.args.repeats + 1):
        for program in PROGRAMS:
            name = f"{program}-{repeat}"
            bench.captured(name, *command_of(bench, program, name), ending=".npz")
            alone = bench.path("traces", name + "-data")
            shutil.rmtree(alone, ignore_errors=True)
            data_alone(bench.path("traces", name), alone)
            bench.call(name, "trace", "preprocess", alone, "--workload", "any", "--out", bench.path("processed"))
            results[program].append(figures_of(bench, name))
    runs = {program: [bench.path("processed", f"{program}-{repeat}-data") for repeat in range(1, bench.args.repeats + 1)]
            for program in PROGRAMS}
    theirs, scores = runs["dlio-itself"], {}
    for program in PROGRAMS:
        more = [word for run in theirs[1:] for word in ("--more-a", run)]
        more += [word for run in runs[program][1:] for word in ("--more-b", run) if program != "dlio-itself"]
        told = bench.call("similarity-" + program, "trace", "similarity", theirs[0], runs[program][0], *more, "--format", "json")
        score = json.loads(told[told.index("{"):])
        scores[program] = score.get("within_a" if program == "dlio-itself" else "between") or {
            "mean": score["total"], "low": score["total"], "high": score["total"]}
    for program in PROGRAMS:
        for suffix in ("", "-data"):
            out = bench.path("pictures", program + suffix)
            shutil.rmtree(out, ignore_errors=True)
            bench.call("plot", "trace", "plot", bench.path("processed", f"{program}-1{suffix}"), "--layout", "all_combined", "--formats",
                       "svg,html", "--title", program + suffix, "--out", out)
    json.dump({"runs": results, "similarity": scores}, open(bench.path("dlio.json"), "w"), indent=1)
    lines = ["| run | data: reads | data: MB | largest read, KiB | data: ms in reads | data: opens | all opens | run, s | utilisation, % | "
             "`tracesim/1` beside DLIO's |", "|---|---|---|---|---|---|---|---|---|---|"]
    for program, figures in results.items():
        of = lambda key: [one[key] for one in figures]
        cells = [spread(of("reads")), spread(of("data_bytes"), 1e-6, 2), spread(of("largest_read"), 1 / 1024), spread(of("read_s"), 1e3),
                 spread(of("data_opens")), spread(of("opens")), spread(of("wall_s"), 1, 2), spread(of("utilisation"), 1, 1),
                 "{mean:.2f} ({low:.2f}-{high:.2f})".format(**scores[program])]
        lines.append(f"| {program} | " + " | ".join(cells) + " |")
    lines.append("")
    lines.append(f"DLIO at {revision_of(bench.args.dlio)}; Python " + printed_by(bench.args.dlio_python, "-c", VERSIONS))
    with open(bench.path("dlio.md"), "w") as file:
        file.write("\n".join(lines) + "\n")
    print("\n".join(lines))
