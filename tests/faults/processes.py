"""Faults of processes: ranks that are killed, crash, hang or slow down; stops and signals; limits; the soak."""
import dataclasses
import json
import os
import pathlib
import signal
import statistics
import subprocess
import time

from rig import FOUR, JOB, PATIENCE, TWO, Skip, Trial, checkpoints, fault, kill, losses_of, result, steps_of

RANKS = range(4)
EVALUATES = {**JOB, "no_evaluation": False, "data": "synthetic:64"}
BACKGROUND = {**FOUR, "checkpoint_background": True}
# The phases of a run: a place where a fault is planted, and the job that comes there. "" is the start of the process.
PHASES = {
    "start": ("", JOB), "meeting": ("meeting", JOB), "model": ("model", JOB),
    "first forward": ("forward:step=0", JOB), "first backward": ("backward:step=0", JOB),
    "forward": ("forward:step=12", JOB), "backward": ("backward:step=12", JOB), "send": ("send:step=12", JOB),
    "receive": ("wait:step=12", JOB), "all-reduce": ("reduce:step=12", JOB), "update": ("update:step=12", JOB),
    "snapshot": ("checkpoint:step=10", JOB), "first write of a save": ("file:step=10:hit=1", FOUR),
    "fifth write of a save": ("file:step=10:hit=5", FOUR), "background save": ("file:step=10:hit=4", BACKGROUND),
    "checkpoint at the end": ("checkpoint:step=20", JOB), "evaluation": ("evaluation", EVALUATES), "end": ("end", JOB)}


def planted(place, rank, action):
    name, _, step = place.partition(":")
    return ":".join(filter(None, (name, f"rank={rank}", step, f"action={action}")))


def at_start(rank, number):
    """Sends the signal as soon as the process of the rank is there."""
    def act(run):
        if run.until(lambda: run.pid(rank) is not None) and run.signal_rank(rank, number):
            return time.monotonic()
    return act


@fault("R1", "kill -9 of each rank in each phase", "all seen within 1 s and ended within 5 s, bit-equal after resume", limit=5)
def kills(rig):
    cases = [(rank, phase) for phase in PHASES for rank in RANKS]
    if rig.quick:
        cases = [(0, "meeting"), (1, "fifth write of a save"), (2, "update")]
    rig.seen = []
    for rank, phase in cases:
        place, job = PHASES[phase]
        act = None if place else at_start(rank, signal.SIGKILL)
        yield rig.broken(f"rank {rank}, {phase}", job, planted(place, rank, "kill") if place else "", {137},
                         [f"millrace launch: rank {rank} ", "killed by signal 9 (SIGKILL)"], act=act, seen_within=1)
    rig.told.append(f"seen in {statistics.median(rig.seen):.2f} s, {max(rig.seen):.2f} s at most")


@fault("R2", "SEGV, ABRT, an exception in a rank", "as R1", limit=5)
def crashes(rig):
    codes = {"segv": {139}, "abort": {134}, "throw": {1}}
    cases = [(action, rank, phase) for action in codes for rank in RANKS for phase in ("backward", "snapshot")]
    for action, rank, phase in rig.pick(cases, 1):
        place, job = PHASES[phase]
        yield rig.broken(f"{action}, rank {rank}, {phase}", job, planted(place, rank, action), codes[action],
                         [f"millrace launch: rank {rank} ", "failed first"])


def suspend(seconds, rank):
    """A rank stops itself; after `seconds` it goes on."""
    def act(run):
        if run.until(run.fired):
            time.sleep(seconds)
            return run.fired() if run.signal_rank(rank, signal.SIGCONT) else None
    return act


@fault("R3", "SIGSTOP for 1 s and for ever", "1 s: goes on bit-equal; for ever: that rank is named by its limit + 2 s", limit=12)
def suspensions(rig):
    for rank in rig.pick(RANKS, 1):
        yield rig.broken(f"rank {rank} for 1 s", JOB, planted("forward:step=12", rank, "stop"), {0}, ["ranks done"],
                         act=suspend(1, rank), resumes=False)
    for rank in [2] if rig.quick else list(RANKS) * 9:  # the heartbeat finds it
        yield rig.broken(f"rank {rank} for ever", {**JOB, "heartbeat": 2}, planted("backward:step=12", rank, "stop"), {5},
                         [f"millrace launch: rank {rank} (stage {rank // 2}) failed first: no sign of life", "suspended (SIGSTOP"])
    for rank in [] if rig.quick else RANKS:  # its peers give up first
        yield rig.broken(f"rank {rank} for ever, by timeout", {**JOB, "timeout": 3}, planted("backward:step=12", rank, "stop"), {5},
                         [f"millrace launch: rank {rank} (stage {rank // 2}) was suspended"])
    for rank in [] if rig.quick else RANKS:
        yield lost_in_status(rig, rank)


def lost_in_status(rig, rank):
    """`millrace status` calls a suspended rank lost, and no other."""
    run, states = rig.launch(JOB, failpoints=planted("update:step=12", rank, "stop")), []
    end = time.monotonic() + 20
    while run.until(run.fired) and "lost" not in states and time.monotonic() < end:
        answer = subprocess.run([rig.bin / "millrace", "status", run.out, "--format", "json"], capture_output=True, check=True)
        states = [one["state"] for one in json.loads(answer.stdout)["ranks"]]
    run.signal_rank(rank, signal.SIGCONT)
    run.wait()
    right = states == ["lost" if one == rank else "healthy" for one in RANKS]
    return rig.ended(f"status of rank {rank}", run, run.fired(), run.code == 0 and right, note=str(states))


def slowed(run, rank):
    """Takes from a rank nine tenths of its time, as a busy host does, until the command ends. Less is too little on a machine
    that others use: what they took from its first steps, which it is compared with, may be more than half."""
    pid = run.pid(rank)
    while pid and run.process.poll() is None:
        begun = time.monotonic()
        time.sleep(0.003)
        kill(pid, signal.SIGSTOP)
        time.sleep(9 * (time.monotonic() - begun))  # on a busy machine the rank had more than 3 ms
        kill(pid, signal.SIGCONT)


@fault("R4", "a rank that slows down", "that rank says so, no other does")
def slowness(rig):
    if rig.quick:
        raise Skip("times on a machine that tests share say little")
    job = {**TWO, "width": 1024, "microbatch": 64, "microbatches": 2, "steps": 80, "checkpoint_every": 0}
    for rank in [0, 1] * 5:  # its computations are long: a stop that falls into a wait is no slowness
        run = rig.launch(job)
        at = None
        if run.has_step(23):
            at = time.monotonic()
            slowed(run, rank)
        run.wait()
        told = [line for _, line in run.lines if "times its usual" in line or "slow" in line]
        right = bool(told) and all(f"rank{rank}" in line or f"rank {rank}" in line for line in told)
        yield rig.ended(f"rank {rank}", run, at, run.code == 0 and right, note="; ".join(told))


@fault("R27", "a lost replica: its peers have the model", "with max-restarts goes on bit-equal; most lose no step", limit=15)
def replicas(rig):
    job = {**JOB, "microbatches": 16, "checkpoint_every": 8, "steps": 16}
    rig.reference(job)
    places = ["backward", "forward", "update", "reduce", "send", "wait"]
    kept = tried = same = 0
    client = rig.folder / "client"  # in the place of ssh: the hosts are this machine, and each has an agent
    client.write_text('#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\nshift 2\nexec "$@"\n')
    client.chmod(0o755)
    on_hosts = ["--client", client, "--hosts", "127.0.0.2:2,127.0.0.3:2"]
    cases = [(rank, place, []) for place in places for rank in RANKS] + [(rank, "reduce", on_hosts) for rank in RANKS]
    for rank, place, where in rig.pick(cases, 1):
        run = rig.launch(job, "--max-restarts", "2", *where, failpoints=f"{place}:rank={rank}:step=12:delay={2 if rig.quick else 0.5},"
                         f"end:rank={(rank + 1) % 4}:delay=0.5")  # so that the processes can be looked at
        run.until(run.fired)
        before = {other: run.pid(other) for other in RANKS if other != rank}
        at = time.monotonic() if run.until(run.fired) and run.signal_rank(rank, signal.SIGKILL) else None
        run.until(lambda: run.time_of("resumed step="))
        same += sum(run.pid(other) == pid for other, pid in before.items())
        run.wait()
        tried += 1
        kept += run.says("the ranks that are left have the whole model after step 12: it is saved") or run.says(
            "the ranks that are left have the whole model after step 13: it is saved")
        resumed = run.time_of("resumed step=")
        name = f"rank {rank} in {place}{' on hosts' if where else ''}"
        trial = rig.ended(name, run, at, run.code == 0 and resumed, result(run.out) == rig.reference(job))
        yield dataclasses.replace(trial, seconds=resumed - at if resumed and at else None)
    if not rig.quick:
        yield Trial("without a step lost", kept > tried / 2, note=f"{kept} of {tried}")
        left = tried * (len(RANKS) - 1)
        rig.told = [f"{same} of {left} ranks that were left kept their processes"]
        yield Trial("processes kept", same > 0.9 * left, note=rig.told[0])


@fault("R13", "NaN in a gradient: stop, skip, rollback", "stop 6, skip counted, rollback bit-equal; the rank is named")
def numbers(rig):
    for rank, policy in rig.pick([(rank, policy) for rank in RANKS for policy in ("stop", "skip", "rollback")], 3):
        job = {**FOUR, "on_nonfinite": policy, "check_finite": "gradients"}
        rig.reference(FOUR)
        run = rig.launch(job, failpoints=planted("update:step=12", rank, "nan"))
        run.wait()
        detected = run.code == (6 if policy == "stop" else 0) and run.says(f"stage {rank}")
        equal = None
        if policy == "rollback":
            equal = result(run.out) == rig.reference(FOUR)
        if policy == "skip":
            detected = detected and [one["step"] for one in steps_of(run.out) if one.get("skipped")] == [12]
        if policy == "stop":
            equal, _ = rig.resumed(run, FOUR)
        yield rig.ended(f"rank {rank}, {policy}", run, run.fired(), detected, equal)


HELD = planted("update:step=12", 0, "kill").replace("action=kill", "delay=2")


def when_held(*numbers, rank=None):
    """Signals to the launcher, or to a rank, while step 12 is held up."""
    def act(run):
        if not run.until(run.fired):
            return None
        for number in numbers:
            run.signal(number) if rank is None else run.signal_rank(rank, number)
            time.sleep(0.1)
        return time.monotonic()
    return act


@fault("R19", "the launcher killed, hung up, interrupted", "no process left after it; saved when promised", limit=15)
def launcher(rig):
    cases = [("SIGKILL", {137}, [signal.SIGKILL]), ("SIGHUP", {75}, [signal.SIGHUP]), ("SIGINT", {75}, [signal.SIGINT]),
             ("SIGINT twice", {130}, [signal.SIGINT] * 2)]
    for name, codes, numbers in rig.pick(cases, 1):
        yield rig.broken(f"{name} in a step", JOB, HELD, codes, [], act=when_held(*numbers))
    for name, codes, numbers in [] if rig.quick else cases:
        def early(run, numbers=numbers):
            if run.until(lambda: run.pid(0) is not None):
                for number in numbers:
                    run.signal(number)
                return time.monotonic()
        yield rig.broken(f"{name} at the start", JOB, "", codes | {130, 129, 0}, [], act=early)
        yield rig.broken(f"{name} in a save", FOUR, "file:rank=1:step=10:hit=2:delay=1", codes, [], act=when_held(*numbers))


@fault("R20", "SIGTERM and SIGUSR1, to launcher and ranks", "saved within the grace, exit 75, bit-equal after resume", limit=15)
def preemption(rig):
    cases = [(number, rank) for number in (signal.SIGTERM, signal.SIGUSR1) for rank in (None, *RANKS)]
    for number, rank in rig.pick(cases, 1):
        def act(run, number=number, rank=rank):
            at = when_held(number, rank=rank)(run)
            return at if at and run.wait() is not None and len(checkpoints(run.out)) == 3 else None
        yield rig.broken(f"{number.name} to {'the launcher' if rank is None else f'rank {rank}'}", JOB, HELD, {75},
                         ["resume: millrace launch"], act=act)


# Where rank {r} is held for a moment. Most pairs of a setting, a fault and one of these were never thought of.
MOMENTS = {"a rank loads": "model:rank={r}:delay=0.6", "ranks meet": "meeting:rank={r}:delay=0.6",
           "a step": "update:rank={r}:step=12:delay=0.6", "an evaluation": "evaluation:rank={r}:delay=0.6",
           "a save": "file:rank={r}:step=10:hit=2:delay=0.6", "a best save": "file:rank={r}:step=8:hit=2:delay=0.6"}
BEST = {"no_evaluation": False, "evaluate_every": 4, "keep_best": "loss"}
SETTINGS = {"plain": ({}, []), "restarts": ({}, ["--max-restarts", "3"]), "best": (BEST, []),
            "best, restarts": (BEST, ["--max-restarts", "3"]), "background": ({"checkpoint_background": True}, ["--max-restarts", "3"])}


def stopped_at(again, where):
    """SIGTERM to the launcher (`where` None) or to a rank while one is held: in the first start, or, with `again`, when the
    ranks start again after one was killed."""
    def act(run):
        if not run.until(run.fired):
            return None
        if again:
            if not (run.has_step(6) and run.signal_rank(again - 1, signal.SIGKILL) and run.until(lambda: run.time_of(": restart 1 of"))):
                return None
            time.sleep(run.pause)
        if where is not None:
            return time.monotonic() if run.signal_rank(where, signal.SIGTERM) else None
        run.signal(signal.SIGTERM)
        return time.monotonic()
    return act


@fault("R28", "SIGTERM: settings x moments, drawn", "exit 75 wherever a checkpoint is; bit-equal after resume", limit=35)
def drawn_stops(rig):
    for i in range(rig.some(3, 60)):
        restarting = [name for name, (_, flags) in SETTINGS.items() if flags]
        setting, moment = rig.random.choice([*SETTINGS, *restarting * 2]), rig.random.choice(sorted(MOMENTS))
        more, flags = SETTINGS[setting]
        again = rig.random.randint(0, 4) if flags else 0
        rank, where = rig.random.choice(RANKS), rig.random.choice([None] * 6 + [*RANKS])
        job = {**JOB, **more}
        rig.reference(job)
        run = rig.launch(job, *flags, failpoints=MOMENTS[moment].format(r=rank) + ("" if not again else ",forward:step=7:rank=0:delay=0.6"))
        run.pause = rig.random.uniform(0, 0.8)
        at = stopped_at(again, where)(run)
        run.wait()
        saved = bool(checkpoints(run.out))
        right = run.code in ((75, 0) if saved else (75, 0, 143))
        equal, note = rig.resumed(run, job) if run.code != "hung" else (None, "")
        name = f"{i}: {setting}, {moment} of rank {rank}{f', after rank {again - 1} was killed' if again else ''}, to {'the launcher' if where is None else f'rank {where}'}"
        yield rig.ended(name, run, at or run.started, right, equal, note)


@fault("R22", "20 interruptions in 200 steps", "bit-equal to the unbroken run, no step lost or twice in the log")
def chains(rig):
    job = {**JOB, "steps": 200, "checkpoint_every": 7}
    for seed in range(rig.some(1, 10)):
        folder, interruptions, fired, worst, codes = rig.fresh(), rig.some(2, 20), 0, 0.0, []
        for i in range(interruptions):
            saved = checkpoints(folder / "out")
            step = min(198, (int(saved[-1].name[5:]) if saved else 0) + rig.random.randint(0, 17))
            rank, how = rig.random.choice(RANKS), rig.random.choice(("rank", "launcher", "stop"))
            place = f"update:step={step}"
            run = rig.launch(job, folder=folder, resume=i > 0,
                             failpoints=planted(place, rank, "kill") if how == "rank" else f"update:rank={rank}:step={step}:delay=0.3")
            if run.until(run.fired) and how != "rank":
                run.signal(signal.SIGKILL if how == "launcher" else signal.SIGTERM)
            codes.append(run.wait())
            if run.fired():
                fired += 1
                worst = max(worst, run.ended - run.fired())
            rig.leftovers(folder, recovered=False)  # waits for the ranks of a launcher that was killed
        equal, note = rig.resumed(run, job)
        yield Trial(f"chain {seed}", fired == interruptions and "hung" not in codes, worst, equal, rig.leftovers(folder),
                    f"{note} codes {codes}, fired {fired}")


def limited(*limits):
    return ["bash", "-c", "; ".join(f"ulimit {limit}" for limit in limits) + '; exec "$@"', "limited"]


@fault("R15", "too little memory (ulimit -v)", "no hang, no signal; the message speaks of memory")
def memory(rig):
    for kib in rig.pick([1_000_000, 8_000_000, 2_000_000, 600_000, 400_000, 200_000], 1):
        run = rig.launch({**TWO, "width": 2048, "steps": 3, "checkpoint_every": 0}, wrapper=limited(f"-v {kib}"))
        at = run.started
        run.wait()
        said = any(word in run.text.lower() for word in ("memory", "allocat", "map"))
        yield rig.ended(f"{kib} KiB", run, at, run.code == 0 or (run.code in (1, 2, 3, 127) and said))


@fault("R25", "too few descriptors (ulimit -n)", "no hang; trains, or the message speaks of open files")
def descriptors(rig):
    for number in rig.pick([24, 64, 40, 32, 16, 12, 10, 8], 1):
        run = rig.launch(JOB, wrapper=limited(f"-n {number}"))
        at = run.started
        run.wait()
        said = any(word in run.text for word in ("Too many open files", "files, and may open", "descriptor"))
        yield rig.ended(f"{number} files", run, at, run.code == 0 or (run.code != "hung" and run.code < 127 and said))


def equals_one_process(rig, run, job):
    """Whether a run has the losses and the weights of one process on the same microbatches, which needs a tenth of the time."""
    alone = rig.launch({**job, "stages": 1, "checkpoint_every": 0, "checkpoint_at_end": True})
    if alone.wait(PATIENCE + rig.soak) != 0:
        raise RuntimeError(f"the unbroken run failed: {alone.tail()}")
    same = rig.command("checkpoint", "diff", checkpoints(run.out)[-1], checkpoints(alone.out)[-1]).wait() == 0
    return same and losses_of(run.out) == losses_of(alone.out)


@fault("R26", "soak: a random fault every few seconds", "nothing wrong or hung, no growth; recovered in 10 s, in 5 s by half")
def soak(rig):
    job = {**FOUR, "steps": 100_000_000, "checkpoint_every": 50, "timeout": 4, "heartbeat": 2}
    run = rig.launch(job, "--max-restarts", 1_000_000)
    end, recoveries, first, last, wrong = time.monotonic() + rig.soak, [], None, None, ""
    resumed = lambda: sum("resumed step=" in line for _, line in list(run.lines))
    while time.monotonic() < end and not wrong:
        before, newest = resumed(), checkpoints(run.out)[-1:]
        if not run.until(lambda: checkpoints(run.out)[-1:] != newest):
            wrong = "it saves no more"
            break
        time.sleep(rig.random.uniform(0, 0.5 if rig.quick else 3))
        rank, number = rig.random.choice(RANKS), rig.random.choice([signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGSTOP])
        at = time.monotonic()
        if not run.signal_rank(rank, number):
            continue
        if not run.until(lambda: resumed() > before, 30):
            wrong = f"no recovery from {number.name} to rank {rank}: {run.tail()}"
        recoveries.append(time.monotonic() - at)
        status = pathlib.Path(f"/proc/{run.process.pid}/status").read_text()
        size = int(status.split("VmRSS:")[1].split()[0]), len(os.listdir(f"/proc/{run.process.pid}/fd"))
        first, last = first or size, size
        run.lines[:] = run.lines[-2000:]
    saved = checkpoints(run.out)[-1:]
    run.until(lambda: checkpoints(run.out)[-1:] != saved, 30)
    run.signal(signal.SIGTERM)
    code = run.wait()
    steps = int(checkpoints(run.out)[-1].name[5:])
    equal = equals_one_process(rig, run, {**job, "steps": steps})
    grown = (last[0] - first[0], last[1] - first[1]) if first else (0, 0)
    recoveries.sort()
    patience = 5 if rig.quick else 1
    late = recoveries and (recoveries[len(recoveries) * 95 // 100] > 10 * patience or recoveries[len(recoveries) // 2] > 5 * patience)
    stay = len(checkpoints(run.out))  # --keep-checkpoints is 3
    fine = not wrong and not late and code == 75 and recoveries and grown[0] < 4096 and grown[1] <= 0 and stay == 3
    note = wrong or f"exit {code}, {steps} steps, launcher grew by {grown[0]} KiB and {grown[1]} descriptors, {stay} checkpoints stay"
    left = rig.leftovers(run.folder)
    for i, seconds in enumerate(recoveries or [None]):
        yield Trial(f"fault {i}", bool(fine), seconds, equal if i == 0 else None, left if i == 0 else (), note)
