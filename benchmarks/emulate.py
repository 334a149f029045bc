"""Real jobs beside the same jobs on emulated devices. Each schedule is planned once, from a profile of its own: the profile that chose a plan
flatters it. A round profiles each model with as many ranks as the run has, then launches each plan, and emulates it from that profile on
both clocks; schedules come in another order each round. Errors are emulated / real - 1 of one round. Before and after each real run a short
probe profiles the model again: the mean of their ranks / profile is the drift of the machine. The last column emulates once more with each
rank as slow as in its probes (--straggler). Figures are medians over rounds, with the least and the greatest. Of six rounds these two hold
the true median with 97 %. Ctrl-C or a failure ends the run, and the tables are of the rounds that are whole.

Three more tables: the quickest real run of all rounds beside the quickest emulated one, as neighbours only ever slow a machine down; whether the ranking of a model's plans is kept, among pairs whose ranges do not overlap; and the peak of each rank's memory, real and emulated (bytes of tensors, as the ranks' logs have them).

All that is measured runs on pinned ranks: rank r on core r modulo N. With --devices N below --ranks several ranks share a core, and the
emulated ones share N devices. Profiles are then of all ranks on N cores.

    scripts/benchmark emulate [--models mlp,vgg16,resnet50,gnmt] [--schedules gpipe,1f1b,...,replicas] [--ranks 2] [--devices N] [--rounds N]
                              [--small]
"""

import argparse
import contextlib
import glob
import json
import os
import platform
import random
import statistics
import sys
import tempfile
import threading

from side_by_side import checked, figure, steps_of_ranks, words, write_job

MODELS = {  # name: (options of the model, samples of a microbatch, steps)
    "mlp": ({"width": 1024, "depth": 8}, 32, 20),
    "vgg16": ({"image-size": 64}, 4, 10),
    "resnet50": ({"image-size": 64}, 2, 6),
    "gnmt": ({"layers": 2, "hidden": 256, "vocabulary": 8000, "length": 32}, 16, 12),
}
SMALL = {"mlp": ({"width": 256, "depth": 4}, 16, 8), "vgg16": ({"image-size": 32}, 1, 4), "resnet50": ({"image-size": 32}, 1, 4),
         "gnmt": ({"layers": 2, "hidden": 32, "vocabulary": 500, "length": 8}, 4, 4)}
DATA = "synthetic:256"
SCHEDULES = ["gpipe", "1f1b", "zb-h1", "interleaved", "pipedream", "replicas"]  # replicas: one stage on all ranks, 1f1b
MICROBATCHES = 4  # at least one for each replica
OF_DATA = {"gnmt": {"data": DATA, "measured-microbatches": 24, "microbatches": MICROBATCHES}}  # its sentences differ in length
SKIPPED_STEPS = 2


def pin_workers(cores):
    """Pins all threads of each rank that runs now; returns how many ranks that are."""
    own = sorted(os.sched_getaffinity(0))
    pinned = set()
    for process in glob.glob("/proc/[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            if b"millrace-worker" not in open(process + "/cmdline", "rb").read().split(b"\0")[0]:
                continue
            rank = int(open(process + "/environ", "rb").read().split(b"\0RANK=")[1].split(b"\0")[0])
            for task in os.listdir(process + "/task"):
                os.sched_setaffinity(int(task), {own[rank % cores]})
            pinned.add(rank)
    return len(pinned)


@contextlib.contextmanager
def pinned(cores, ranks):
    """Pins the ranks of the run that goes on meanwhile. Looking for them takes time of a core, so that ends when all are pinned. Their
    later threads have the cores of those that make them."""
    done = threading.Event()

    def watch():
        while not done.wait(0.2) and pin_workers(cores) < ranks:
            pass

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def seconds_of(profile):
    """Forward, backward and loss of one microbatch, by rank."""
    with open(profile) as opened:
        return json.load(opened)["measured"]["rank_seconds"]


def peaks_of(out):
    """The peak of each rank's memory in bytes."""
    peaks = []
    for path in sorted(glob.glob(os.path.join(out, "steps.rank*.jsonl"))):
        found = [json.loads(line).get("peak_memory_bytes") for line in open(path)]
        peaks.append(max([peak for peak in found if peak is not None], default=0))
    return peaks


def shown(values, factor, digits, unit=""):
    parts = [statistics.median(values), min(values), max(values)]
    median, low, high = (f"{part * factor:.{digits}f}" for part in parts)
    return f"{median}{unit} ({low} to {high})"


class Case:
    def __init__(self):
        self.real, self.wall, self.virtual, self.drifted, self.drift, self.memory = [], [], [], [], [], []

    def add(self, measured):
        for field, value in measured.items():
            getattr(self, field).append(value)


def typical(name, out, ranks, steps):
    """The step of the slowest rank, the first ones aside: the median, or the mean where steps of other sentences take other times."""
    lists = steps_of_ranks(out, ranks, steps)
    return max(statistics.mean(one[SKIPPED_STEPS:]) for one in lists) if name in OF_DATA else figure(lists, SKIPPED_STEPS)


def profile_command(millrace, name, settings, ranks, devices, out, *more):
    model, microbatch, _ = settings
    on_cores = ["taskset", "-c", ",".join(map(str, sorted(os.sched_getaffinity(0))[:devices]))]
    return [*on_cores, millrace, "profile", "--model", name, *words(model | OF_DATA.get(name, {})), "--microbatch", microbatch, "--ranks", ranks,
            "--out", out, *more]


def pinned_run(command, what, folder, devices, ranks):
    with pinned(devices, ranks):
        checked(command, folder, what)


def make_plans(millrace, name, settings, schedules, ranks, devices, folder):
    """Writes the plan of each schedule into the folder."""
    profile = os.path.join(folder, "profile.json")
    pinned_run(profile_command(millrace, name, settings, ranks, devices, profile), "profile", folder, devices, ranks)
    for schedule in schedules:
        shape = ["--stages", 1] if schedule == "replicas" else ["--straight"]
        checked([millrace, "plan", "--profile", profile, *shape, "--ranks", ranks, "--microbatches", max(MICROBATCHES, ranks), "--schedule",
                 "1f1b" if schedule == "replicas" else schedule, "--out", os.path.join(folder, f"{schedule}.json")], folder, "plan")


def one_round(millrace, name, settings, schedules, ranks, devices, plans):
    """Returns a measurement of each schedule: its real step, the emulated ones, the drift, and the memory of both. `plans` is the folder of
    make_plans()."""
    model, microbatch, steps = settings
    measured = {}
    with tempfile.TemporaryDirectory() as folder:
        profile, probe = (os.path.join(folder, part) for part in ("profile.json", "probe.json"))
        sharing = ["--emulated-devices", devices] if devices < ranks else []
        shared = ["--share-devices", os.path.join(folder, "devices")] if sharing else []

        def probed():
            pinned_run(profile_command(millrace, name, settings, ranks, devices, probe, "--blocks", 1), "probe", folder, devices, ranks)
            return seconds_of(probe)

        pinned_run(profile_command(millrace, name, settings, ranks, devices, profile), "profile", folder, devices, ranks)
        mean, before = statistics.mean(seconds_of(profile)), probed()
        for schedule in random.sample(schedules, len(schedules)):
            plan, out = os.path.join(plans, f"{schedule}.json"), os.path.join(folder, schedule)
            job = write_job(folder, {"model": name, **model, "microbatch": microbatch, "data": DATA, "momentum": None,
                                     "plan": plan, "steps": steps, "output-dir": out})
            pinned_run([millrace, "launch", job], "launch", folder, devices, ranks)
            after = probed()
            of_ranks = [(a + b) / 2 / mean for a, b in zip(before, after)]
            before = after
            one = {"drift": statistics.mean(of_ranks), "real": typical(name, out, ranks, steps)}
            stragglers = ["--straggler", ",".join(f"{rank}:{factor:.4f}" for rank, factor in enumerate(of_ranks))]
            for kind, clock, more in (("wall", "wall", shared), ("virtual", "virtual", []), ("drifted", "virtual", stragglers)):
                emulated = out + kind
                checked([millrace, "emulate", job, "--device-profile", profile, "--clock", clock, "--output-dir", emulated, *sharing, *more],
                        folder, kind)
                one[kind] = typical(name, emulated, ranks, steps)
            one["memory"] = (peaks_of(out), peaks_of(out + "virtual"))
            measured[schedule] = one
    return measured


def errors_of(case, emulated):
    return [e / r - 1 for e, r in zip(emulated, case.real)]


def print_errors(title, errors):
    worst = max(errors, key=lambda key: abs(errors[key]))
    print(f"{title}: mean error {statistics.mean(map(abs, errors.values())) * 100:.2f} %, worst {errors[worst] * 100:+.2f} % "
          f"({' '.join(worst)})")


def print_quickest(cases):
    print("| model | schedule | quickest real ms | quickest virtual ms | off |\n|---|---|---|---|---|")
    errors = {key: min(case.virtual) / min(case.real) - 1 for key, case in cases.items()}
    for key, case in cases.items():
        print(f"| `{key[0]}` | {key[1]} | {min(case.real) * 1e3:.1f} | {min(case.virtual) * 1e3:.1f} | {errors[key] * 100:+.1f} % |")
    print_errors("quickest of all rounds", errors)
    print()


def print_steps(cases):
    print("| model | schedule | real ms | wall clock | virtual | drift | virtual with the drift |\n|---|---|---|---|---|---|---|")
    for (name, schedule), case in cases.items():
        print(f"| `{name}` | {schedule} | {shown(case.real, 1e3, 1)} | {shown(errors_of(case, case.wall), 100, 1, ' %')} "
              f"| {shown(errors_of(case, case.virtual), 100, 1, ' %')} | {statistics.median(case.drift):.3f} "
              f"| {shown(errors_of(case, case.drifted), 100, 1, ' %')} |")
    for title, emulated in (("wall clock", "wall"), ("virtual", "virtual"), ("virtual with the drift", "drifted")):
        print_errors(title, {key: statistics.median(errors_of(case, getattr(case, emulated))) for key, case in cases.items()})
    noise = [(max(case.real) - min(case.real)) / 2 / statistics.median(case.real) for case in cases.values()]
    print(f"half of the range of the real steps: {statistics.mean(noise) * 100:.2f} % in the mean, at most {max(noise) * 100:.2f} %\n")


def print_ranking(cases):
    kept = told = 0
    for name in {name for name, _ in cases}:
        own = [(schedule, case) for (model, schedule), case in cases.items() if model == name]
        for i, (schedule, one) in enumerate(own):
            for other_schedule, other in own[i + 1:]:
                if min(one.real) <= max(other.real) and min(other.real) <= max(one.real):
                    continue
                told += 1
                a, b = (statistics.median(case.real) for case in (one, other))
                same = (statistics.median(one.virtual) < statistics.median(other.virtual)) == (a < b)
                kept += same
                if not same:
                    print(f"ranking of {name}: {schedule} {a * 1e3:.1f} ms and {other_schedule} {b * 1e3:.1f} ms are emulated the other "
                          "way round")
    print(f"ranking kept in {kept} of {told} pairs of plans whose ranges do not overlap\n")


def print_memory(cases):
    print("| model | schedule | rank | real MB | emulated MB | off |\n|---|---|---|---|---|---|")
    off = []
    for (name, schedule), case in cases.items():
        real, emulated = case.memory[-1]
        for rank, (a, b) in enumerate(zip(real, emulated)):
            off.append(b / a - 1)
            print(f"| `{name}` | {schedule} | {rank} | {a / 1e6:.1f} | {b / 1e6:.1f} | {off[-1] * 100:+.1f} % |")
    print(f"memory: mean {statistics.mean(map(abs, off)) * 100:.1f} % off, at most {max(map(abs, off)) * 100:.1f} %")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("millrace")
    parser.add_argument("--models", default="mlp,vgg16,resnet50")
    parser.add_argument("--schedules", default=",".join(SCHEDULES))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--devices", type=int, help="cores and emulated devices that the ranks share (default: as many as ranks)")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--small", action="store_true", help="tiny models and few steps: to see that it runs")
    options = parser.parse_args()
    names, schedules = options.models.split(","), options.schedules.split(",")
    settings = SMALL if options.small else MODELS
    for kind, given, known in (("model", names, MODELS), ("schedule", schedules, SCHEDULES)):
        for name in given:
            if name not in known:
                sys.exit(f"benchmark emulate: there is no {kind} '{name}': {', '.join(known)}")
    millrace = os.path.abspath(options.millrace)
    random.seed(1)
    with open("/proc/cpuinfo") as opened:
        processor = next((line.split(":", 1)[1].strip() for line in opened if line.startswith("model name")), platform.machine())
    print(f"{processor}, {len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f} before; {options.ranks} ranks, "
          f"{options.rounds} rounds\n", flush=True)
    cases = {(name, schedule): Case() for name in names for schedule in schedules}
    failed, folders, devices = None, {name: tempfile.TemporaryDirectory() for name in names}, options.devices or options.ranks
    try:
        for name in names:
            make_plans(millrace, name, settings[name], schedules, options.ranks, devices, folders[name].name)
        for number in range(options.rounds):
            for name in names:
                measured = one_round(millrace, name, settings[name], schedules, options.ranks, devices, folders[name].name)
                for schedule, one in measured.items():
                    cases[name, schedule].add(one)
                print(f"round {number + 1} of {options.rounds}: {name}", file=sys.stderr, flush=True)
    except (KeyboardInterrupt, SystemExit) as error:
        failed = error if isinstance(error, SystemExit) else None
    cases = {key: case for key, case in cases.items() if case.real}
    if not cases:
        raise failed or SystemExit("benchmark emulate: no round is whole")
    print_steps(cases)
    print_quickest(cases)
    print_ranking(cases)
    print_memory(cases)
    if failed:
        raise failed


if __name__ == "__main__":
    main()
