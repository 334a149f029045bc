"""What the fault battery stands on: it launches real jobs, plants faults, compares results and looks for leftovers."""
import dataclasses
import hashlib
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import threading
import time

PATIENCE = 90  # seconds after which a launch counts as hung


@dataclasses.dataclass
class Trial:
    """One fault that was tried. `equal` is None where no results are compared."""
    name: str
    detected: bool
    seconds: float = None  # from the fault until the command had ended or the run went on
    equal: bool = None
    leftovers: tuple = ()
    note: str = ""

    @property
    def passed(self):
        return self.detected and self.equal is not False and not self.leftovers


@dataclasses.dataclass
class Fault:
    id: str
    title: str
    goal: str
    run: object  # (rig) -> an iterable of Trials
    limit: float = None  # seconds that the worst trial may take


class Skip(Exception):
    """Why a row is not tried here."""


TABLE = []


def fault(id, title, goal, limit=None):
    """Puts a function that yields Trials, or raises Skip, into the table."""
    def add(run):
        TABLE.append(Fault(id, title, goal, run, limit))
        return run
    return add




# Two stages with two replicas: every rank sends, receives, reduces and updates.
JOB = {"model": "mlp", "width": 32, "depth": 4, "stages": 2, "replicas": 2, "microbatches": 4, "microbatch": 4, "steps": 20,
       "seed": 3, "threads": 1, "deterministic": True, "checkpoint_every": 5, "timeout": 20, "no_evaluation": True}
FOUR = {**JOB, "stages": 4, "replicas": 1}  # every rank writes a shard
TWO = {**JOB, "replicas": 1}


class Run:
    """A command under way. Its stderr is read line by line, with the time of each line."""

    def __init__(self, folder, argv, environment, wrapper=()):
        self.folder, self.lines, self.started = folder, [], time.monotonic()
        self.process = subprocess.Popen([*wrapper, *argv], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                                        stdout=open(folder / "stdout", "ab"), stderr=subprocess.PIPE, start_new_session=True,
                                        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL))  # nohup ignores it
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        self.code = self.ended = None

    def _read(self):
        for line in self.process.stderr:
            self.lines.append((time.monotonic(), line.decode(errors="replace").rstrip("\n")))

    @property
    def out(self):
        return self.folder / "out"

    @property
    def text(self):
        return "\n".join(line for _, line in list(self.lines))

    def time_of(self, part):
        """When a line with `part` came; None: none did."""
        return next((at for at, line in list(self.lines) if part in line), None)

    def seen_at(self, after):
        """When a failure had been seen, at the latest: a rank spoke of it, or the launcher's summary has its time. That counts
        from before the first word of a rank."""
        words = [at for at, line in list(self.lines) if at >= after and ("] error: " in line or "millrace launch: rank" in line)]
        told = re.search(r"failed first: .*, ([0-9.]+) s after the start", self.text)
        if told and self.time_of("[rank"):
            words.append(self.time_of("[rank") + float(told[1]))
        return max(after, min(words, default=float("inf")))

    def says(self, *parts):
        return all(part in self.text for part in parts)

    def until(self, done, seconds=PATIENCE):
        """Waits for a condition. False if the command ended, or the time is over, before it held."""
        end = time.monotonic() + seconds
        while not done():
            if self.process.poll() is not None or time.monotonic() > end:
                return bool(done())
            time.sleep(0.002)
        return True

    def step(self):
        """The newest step in the log of the rank with the loss; -1: none yet."""
        steps = [one["step"] for one in steps_of(self.out)]
        return steps[-1] if steps else -1

    def has_step(self, step):
        return self.until(lambda: self.step() >= step)

    def pid(self, rank):
        """The process of a rank of this run; None: there is none."""
        for pid, environment in processes_in(self.folder):
            if b"\0RANK=%d\0" % rank in b"\0" + environment:
                return pid
        return None

    def signal_rank(self, rank, number):
        pid = self.pid(rank)
        if pid is not None:
            os.kill(pid, number)
        return pid is not None

    def signal(self, number):
        self.process.send_signal(number)

    def wait(self, seconds=PATIENCE):
        """The exit code, 128 + n for signal n. A command that hangs is killed: 'hung'."""
        try:
            code = self.process.wait(seconds)
            self.code = code if code >= 0 else 128 - code
        except subprocess.TimeoutExpired:
            self.code = "hung"
            for pid, _ in processes_in(self.folder):
                kill(pid)
            kill(self.process.pid)
            self.process.wait()
        self.ended = time.monotonic()
        self.reader.join(5)
        return self.code

    def fired(self):
        return self.time_of("fires in step")

    def tail(self):
        return " | ".join(line for _, line in self.lines[-6:])[:600]


def kill(pid, number=signal.SIGKILL):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def processes_in(folder):
    """Processes of a trial: (pid, environment) of all whose current folder is the trial's."""
    for entry in os.listdir("/proc"):
        try:
            if entry.isdigit() and (os.readlink(f"/proc/{entry}/cwd") + "/").startswith(f"{folder}/"):
                state = pathlib.Path(f"/proc/{entry}/stat").read_text().rsplit(")", 1)[1].split()[0]
                if state != "Z":
                    yield int(entry), pathlib.Path(f"/proc/{entry}/environ").read_bytes()
        except (OSError, IndexError):
            continue


def lines_of(path):
    """The steps with a loss in a rank's log."""
    with path.open(errors="replace") as log:
        for line in log:
            try:
                one = json.loads(line)
            except ValueError:
                continue  # it is being written
            if "step" in one and one.get("loss") is not None:
                yield one


def steps_of(out, of=lambda one: one):
    """Those of the rank that logs the loss, in the order of the file."""
    logs = sorted(out.glob("steps.rank*.jsonl"), reverse=True)
    return next(filter(None, ([of(one) for one in lines_of(path)] for path in logs)), [])


def losses_of(out):
    return steps_of(out, lambda one: (one["step"], one["loss"]))


def checkpoints(out):
    return sorted(out.glob("checkpoints/step-????????"))


def result(out):
    """What must be the same bits: each step's loss, once and in order, and the newest checkpoint's shards."""
    newest = checkpoints(out)[-1:] or [out]
    shards = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in newest[0].glob("*.safetensors")}
    return losses_of(out), newest[0].name, shards


def yaml_of(job):
    return "".join(f"{key}: {json.dumps(value)}\n" for key, value in job.items())


class Rig:
    def __init__(self, bin, folder, quick, seed, soak):
        self.bin, self.folder, self.quick, self.seed, self.soak = bin, folder, quick, seed, soak
        self.random = random.Random(seed)
        self.tmp = folder / "tmp"
        self.tmp.mkdir(parents=True)
        self.count = 0
        self.references = {}
        self.id = ""
        self.left_out = []  # of the row under way: what cannot be tried here
        self.seen = []  # seconds from a fault to the first word of it
        self.told = []  # of the row under way: what its numbers do not say

    def may_mount(self):
        """Whether small disks can be made; if not, the row says so."""
        probe = self.fresh()
        may = os.geteuid() == 0 and subprocess.run(["mount", "-t", "tmpfs", "faults", probe], capture_output=True).returncode == 0
        if may:
            subprocess.run(["umount", "-l", probe], check=True)
        else:
            self.left_out.append("small disks need root, and the right to mount")
        probe.rmdir()
        return may

    def some(self, quick, whole):
        """How many trials: of the quick battery or of the whole one."""
        return quick if self.quick else whole

    def pick(self, cases, quick):
        """All cases, or a few of them spread over the list."""
        cases = list(cases)
        return cases[:: max(1, len(cases) // quick)][:quick] if self.quick else cases

    def fresh(self):
        self.count += 1
        folder = self.folder / f"{self.id}-{self.count}"
        folder.mkdir()
        return folder

    def environment(self, failpoints="", **more):
        kept = {key: value for key, value in os.environ.items() if not key.startswith("MILLRACE_FAILPOINTS")}
        return {**kept, "TMPDIR": str(self.tmp), **({"MILLRACE_FAILPOINTS": failpoints} if failpoints else {}), **more}

    def command(self, *argv, folder=None, failpoints="", wrapper=(), **environment):
        """Starts `millrace ARGV`."""
        return Run(folder or self.fresh(), [str(self.bin / "millrace"), *map(str, argv)],
                   self.environment(failpoints, **environment), wrapper)

    def launch(self, job, *argv, folder=None, resume=False, **how):
        """Starts `millrace launch` on a job. With `folder` it is a later launch of the job there."""
        folder = folder or self.fresh()
        job = {**job, "output_dir": "out", **({"resume": "auto"} if resume else {})}
        (folder / "job.yaml").write_text(yaml_of(job))
        return self.command("launch", "job.yaml", *argv, folder=folder, **how)

    def reference(self, job, patience=PATIENCE):
        """The result of the job without a fault."""
        key = yaml_of(job)
        if key not in self.references:
            run = self.launch(job)
            if run.wait(patience) != 0:
                raise RuntimeError(f"the unbroken run failed: {run.tail()}")
            self.references[key] = result(run.out)
        return self.references[key]

    def leftovers(self, folder, recovered=True):
        """Processes, shared memory, temporary files. Files of a broken save may stay until the run goes on."""
        end = time.monotonic() + 5  # a process that was killed needs a moment to go
        while (left := [f"process {pid}" for pid, _ in processes_in(folder)]) and time.monotonic() < end:
            time.sleep(0.02)
        left += [f"/dev/shm/{name}" for name in os.listdir("/dev/shm") if "millrace" in name]
        left += [f"tmp/{path.name}" for path in self.tmp.iterdir()]
        if recovered:
            left += [str(path) for path in folder.rglob("*.tmp*")]
        return tuple(left)

    def resumed(self, run, job, **how):
        """Goes on with a broken run. Returns whether it equals the unbroken one, bit for bit."""
        again = self.launch(job, folder=run.folder, resume=True, **how)
        equal = again.wait() == 0 and result(run.out) == self.reference(job)
        return equal, "" if equal else f"resume: exit {again.code}: {again.tail()}"

    def ended(self, name, run, fault_at, detected, equal=None, note=""):
        """The trial of a run that has ended."""
        if not detected or fault_at is None:
            note += f" exit {run.code}{'' if fault_at else ', the fault did not come'}: {run.tail()}"
        seconds = run.ended - fault_at if fault_at else None
        trial = Trial(name, bool(detected and fault_at), seconds, equal, self.leftovers(run.folder), note)
        if trial.passed:
            shutil.rmtree(run.folder, ignore_errors=True)
        return trial

    def broken(self, name, job, failpoints, codes, says, resumes=True, act=None, seen_within=None, **how):
        """Plants a fault, expects the launch to end with one of `codes` and to say `says`, and goes on with the run.
        `act(run)` brings the fault about instead; it returns its time, or None. `seen_within`: seconds until it is
        seen (Run.seen_at), five times as many in the quick battery."""
        self.reference(job)
        run = self.launch(job, failpoints=failpoints, **how)
        at = act(run) if act else None
        run.wait()
        at = at if act else run.fired()
        detected = run.code in codes and run.says(*says)
        if at and seen_within:
            seen = run.seen_at(at) - at
            detected = detected and seen <= seen_within * self.some(5, 1)
            self.seen.append(seen)
        equal, note = self.resumed(run, job) if resumes and run.code != "hung" else (None, "")
        return self.ended(name, run, at, detected, equal, note)
