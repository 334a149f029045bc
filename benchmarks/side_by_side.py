"""What the benchmarks share that run millrace and another program in turn: one thread each, medians of steps."""
import glob
import json
import os
import statistics
import subprocess
import sys

TIMEOUT_S = 1800


def checked(words, folder, name):
    """Runs a command; ends the benchmark with all of its output if it fails: torchrun's closing lines do not say why."""
    environment = dict(os.environ, OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo")
    with open(os.path.join(folder, name + ".log"), "w+") as log:
        code = subprocess.run([str(w) for w in words], env=environment, stdout=log, stderr=log, timeout=TIMEOUT_S).returncode
        if code != 0:
            log.seek(0)
            sys.exit(f"{log.read()}{os.path.basename(sys.argv[0])}: {name} ended with exit code {code}; its output is above")


def words(flags):
    """The words of a command's flags; a flag that is True has no value."""
    return [word for key, value in flags.items() for word in ((f"--{key}",) if value is True else (f"--{key}", str(value)))]


def write_job(folder, keys):
    """A job file of flags that are the same for all but those that are None; returns its path."""
    job = os.path.join(folder, "job.yaml")
    keys = {"momentum": 0, "threads": 1, "no-evaluation": "true", "trace-steps": 0, "print-every": 1000, "overwrite": "true", **keys}
    with open(job, "w") as file:
        file.writelines(f"{key}: {value}\n" for key, value in keys.items() if value is not None)
    return job


def steps_of_ranks(out, ranks, steps):
    """Seconds of each step, by rank of the run in folder `out`."""
    logs = []
    for path in sorted(glob.glob(os.path.join(out, "steps.rank*.jsonl"))):
        records = [json.loads(line) for line in open(path)]
        logs.append([record["step_s"] for record in records if "step_s" in record])
    if len(logs) != ranks or any(len(log) != steps for log in logs):
        sys.exit(f"{os.path.basename(sys.argv[0])}: {out} does not have {steps} steps of {ranks} ranks")
    return logs


def figure(step_lists, skipped):
    """The median step of the slowest rank, the first ones aside."""
    return max(statistics.median(steps[skipped:]) for steps in step_lists)


def spread(seconds, digits=2):
    low, middle, high = statistics.quantiles(seconds, n=4) if len(seconds) > 1 else [seconds[0]] * 3
    return f"{middle * 1e3:.{digits}f} ({low * 1e3:.{digits}f}-{high * 1e3:.{digits}f})"
