#!/usr/bin/env python3
"""Runs the fault battery: real jobs of small models, each with one fault. One row for each fault that docs/reliability.md
lists: how many were tried and detected, the median and the worst seconds, whether recovered runs are bit-equal to unbroken
ones, and what was left behind. A planted fault that does not fire fails its row; so does a leftover."""
import argparse
import difflib
import pathlib
import shutil
import signal
import statistics
import sys
import tempfile
import time
import traceback

import clocks  # noqa: F401  (each family fills the table)
import disks  # noqa: F401
import hosts  # noqa: F401
import inputs  # noqa: F401
import links  # noqa: F401
import processes  # noqa: F401
import rig

LOADED = 5  # in the quick battery a limit in seconds is so many times the goal: tests share their machine
SHOWN = 8  # failed trials of a row
COLUMNS = "{:<4} {:<44} {:>6} {:>8} {:>8} {:>8} {:>9} {:>9}  {}"


def number(fault_id):
    return fault_id[0], int(fault_id[1:])


def chosen(table, ids):
    by_id = {one.id: one for one in table}
    for given in ids:
        if given.upper() not in by_id:
            near = "".join(f"did you mean {one}? " for one in difflib.get_close_matches(given.upper(), by_id, 1))
            print(f"error: there is no fault '{given}'. Hint: {near}--list shows all", file=sys.stderr)
            raise SystemExit(2)
    wanted = {given.upper() for given in ids}
    return [one for one in table if not wanted or one.id in wanted]


def row(fault, trials, battery):
    """The line of a fault, and whether it passed."""
    seconds = [trial.seconds for trial in trials if trial.seconds is not None]
    equal = [trial.equal for trial in trials if trial.equal is not None]
    detected = sum(trial.detected for trial in trials)
    left = sum(len(trial.leftovers) for trial in trials)
    limit = fault.limit * (LOADED if battery.quick else 1) if fault.limit else None
    late = bool(limit and seconds and max(seconds) > limit)
    passed = bool(trials) and all(trial.passed for trial in trials) and not late
    verdict = "; ".join(["ok", *battery.told, *(f"left out: {what}" for what in battery.left_out)]) if passed else "FAILED" + (f": over {limit:g} s" if late else "")
    text = COLUMNS.format(fault.id, fault.title[:44], len(trials), detected,
                          f"{statistics.median(seconds):.2f}" if seconds else "-", f"{max(seconds):.2f}" if seconds else "-",
                          f"{sum(equal)}/{len(equal)}" if equal else "-", left, verdict)
    return text, passed


def seconds_of(text):
    seconds = float(text)
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is no number of seconds above 0")
    return seconds


def interrupted(number, _):
    raise SystemExit(128 + number)


def main():
    parser = argparse.ArgumentParser(prog="scripts/faults", description=__doc__)
    parser.add_argument("ids", nargs="*", metavar="ID", help="only these faults, R1 to S8")
    parser.add_argument("--quick", action="store_true", help="a few trials of each: below three minutes")
    parser.add_argument("--list", action="store_true", help="list the faults and their goals")
    parser.add_argument("--out", type=pathlib.Path, help="keep the folders of failed trials here (default: removed)")
    root = pathlib.Path(__file__).resolve().parents[2]
    parser.add_argument("--bin", type=pathlib.Path, default=root / "build/release/bin", help="folder of the programs")
    parser.add_argument("--soak", type=seconds_of, metavar="SECONDS", help="of R26 (default: 6 in the quick battery, else 120)")
    parser.add_argument("--seed", type=int, default=1, help="of everything that is drawn (default: 1)")
    args = parser.parse_args()
    table = chosen(sorted(rig.TABLE, key=lambda one: number(one.id)), args.ids)
    if args.list:
        for one in table:
            print(f"{one.id:<4} {one.title:<44} {one.goal}")
        return 0
    if not (args.bin / "millrace-worker").exists():
        print(f"error: {args.bin} holds no millrace-worker. Hint: scripts/build release, or --bin DIR", file=sys.stderr)
        return 2
    folder = args.out.resolve() if args.out else pathlib.Path(tempfile.mkdtemp(prefix="millrace-faults-"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        print(f"error: --out {args.out}: {error.strerror}. Hint: give a folder that you may write", file=sys.stderr)
        return 2
    for caught in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(caught) != signal.SIG_IGN:
            signal.signal(caught, interrupted)
    runs = folder / f"run-{int(time.time())}"
    try:
        return all_rows(table, args, runs)
    finally:  # jobs have sessions of their own: a signal to the battery does not reach them
        for pid, _ in rig.processes_in(runs):
            rig.kill(pid)
        if not args.out:
            shutil.rmtree(folder, ignore_errors=True)


def all_rows(table, args, runs):
    battery = rig.Rig(args.bin.resolve(), runs, args.quick, args.seed,
                      args.soak or (6 if args.quick else 120))
    print(COLUMNS.format("id", "fault", "tried", "detected", "median s", "worst s", "bit-equal", "leftovers", ""), flush=True)
    failed = skipped = 0
    begun = time.monotonic()
    for one in table:
        battery.id, battery.left_out, battery.told, trials = one.id, [], [], []
        try:
            trials.extend(one.run(battery))
        except rig.Skip as reason:
            skipped += 1
            print(COLUMNS.format(one.id, one.title[:44], "-", "-", "-", "-", "-", "-", f"skipped: {reason}"), flush=True)
            continue
        except RuntimeError as error:
            trials.append(rig.Trial("the battery itself", False, note=str(error)))
        except Exception:  # the other rows still have their say
            trials.append(rig.Trial("the battery itself", False, note=traceback.format_exc()))
        text, passed = row(one, trials, battery)
        print(text, flush=True)
        failed += not passed
        for trial in [trial for trial in trials if not trial.passed][:SHOWN]:
            print(f"     {trial.name}: detected {trial.detected}, equal {trial.equal}, left {trial.leftovers} {trial.note}", flush=True)
    print(f"{len(table) - failed - skipped} passed, {failed} failed, {skipped} skipped in {time.monotonic() - begun:.0f} s, "
          f"seed {args.seed}", flush=True)
    if args.out and not failed:
        shutil.rmtree(battery.folder, ignore_errors=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
