"""Faults of files: full disks, saves that are cut off, damaged checkpoints, folders that cannot be used."""
import os
import pathlib
import shutil
import subprocess
import time

from processes import limited
from rig import FOUR, JOB, TWO, Trial, checkpoints, fault, result

WIDE = {**TWO, "width": 512}  # a checkpoint of 8 MB


class SmallDisk:
    """A tmpfs of so many bytes over a folder."""

    def __init__(self, folder, size):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={max(4096, int(size))}", "faults", folder], check=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        subprocess.run(["umount", "-l", self.folder], check=True)


@fault("R7", "a full disk while a checkpoint is saved", "training goes on, the old one stays, no file left of the new one")
def full_disks(rig):
    rig.reference(FOUR)
    # Each write, sync and rename of the second save fails once: of a shard's writer, and of rank 0, who publishes.
    calls = [(0, hit) for hit in range(1, 12)] + [(2, hit) for hit in range(1, 9)]
    for rank, hit in rig.pick(calls, 2):
        run = rig.launch(FOUR, failpoints=f"file:rank={rank}:step=10:hit={hit}:action=full")
        run.wait()
        said = run.says("checkpoint step=10 NOT saved", "No space left on device") or run.says("checkpoint step=15 seconds")
        steps = [path.name for path in checkpoints(run.out)]
        yield rig.ended(f"call {hit} of rank {rank}", run, run.fired(), run.code == 0 and said and "step-00000020" in steps,
                        result(run.out) == rig.reference(FOUR))
    for kib in rig.pick((100, 1000, 4000), 1):
        run = rig.launch(WIDE, wrapper=limited(f"-f {kib}"))
        at = run.started
        run.wait()
        yield rig.ended(f"files of at most {kib} KiB", run, at, run.code in (0, 4) and run.says("ulimit -f"))
    if not rig.may_mount():
        return
    whole = rig.launch(WIDE)
    whole.wait()
    need = sum(path.stat().st_size + 4096 for path in checkpoints(whole.out)[-1].iterdir())
    others = sum(path.stat().st_size + 4096 for path in whole.out.rglob("*") if "checkpoints" not in path.parts)
    for share in rig.pick((0.0, 0.1, 0.5, 0.9, 0.99), 1):
        folder = rig.fresh()
        with SmallDisk(folder, need * (1.2 + share) + others + 100_000):
            run = rig.launch(WIDE, folder=folder)
            run.wait()
            trained = "steps 20, final loss" in (folder / "stdout").read_text()
            detected = run.code == 4 and trained and run.says("NOT saved", "No space left on device", "are free")
            verified = rig.command("checkpoint", "verify", "out", folder=folder).wait() == 0
            left = rig.leftovers(folder)
            yield Trial(f"room for {1.2 + share:.2f} checkpoints", detected, None, verified, left, "" if detected else run.tail())


@fault("R8", "a save cut off at each of its system calls", "the reader takes the old or the new one, bit-equal after resume")
def prefixes(rig):
    one = {**FOUR, "keep_checkpoints": 1}  # a save removes the one before it
    for job, rank in [(one, 0), (one, 2), ({**one, "checkpoint_background": True}, 0)]:
        hit, step = 0, 10
        while True:
            hit += rig.some(10, 1)
            rig.reference(job)
            run = rig.launch(job, failpoints=f"file:rank={rank}:step={step}:hit={hit}:action=kill")
            run.wait()
            if not run.fired() and run.code == 0:
                break  # the save has fewer calls
            equal, note = rig.resumed(run, job)
            if (stay := len(checkpoints(run.out))) != 1:
                equal, note = False, f"{stay} checkpoints stay. {note}"
            yield rig.ended(f"rank {rank}, call {hit}", run, run.fired(), run.code == 137, equal, note)
        if rig.quick:
            return


def damaged(path, damage):
    content = bytearray(path.read_bytes())
    path.write_bytes(damage(content))


def flipped(bit):
    def damage(content):
        content[bit // 8] ^= 1 << bit % 8
        return content
    return damage


@fault("R9", "damaged checkpoints: flipped bits, cut files", "all detected; auto goes back to one that is whole, bit-equal")
def damages(rig):
    source = rig.launch(TWO)
    source.wait()
    folder = source.folder
    step = checkpoints(source.out)[-1]
    files = sorted(path for path in step.iterdir())

    def refused(name, file, damage):
        """Damages a file, looks whether that is seen, and mends it again."""
        kept = file.read_bytes()
        damage(file)
        begun = time.monotonic()
        run = rig.command("checkpoint", "verify", f"out/checkpoints/{step.name}", folder=folder)
        code = run.wait()
        for path in step.iterdir():
            if path not in files:
                path.unlink()
        file.write_bytes(kept)
        return Trial(name, code not in (0, "hung") and code < 128, run.ended - begun, None, (), run.tail())

    sizes = [file.stat().st_size for file in files]
    for _ in range(rig.some(50, 1000)):
        file = rig.random.choices(files, sizes)[0] if rig.random.random() < 0.7 else rig.random.choice(files)
        bit = rig.random.randrange(file.stat().st_size * 8)
        yield refused(f"bit {bit} of {file.name}", file, lambda path: damaged(path, flipped(bit)))
    for file in files:
        for i in range(rig.some(2, 22)):
            length = file.stat().st_size * i // 22
            yield refused(f"{file.name} of {length} bytes", file, lambda path: damaged(path, lambda old: old[:length]))
        yield refused(f"{file.name} is missing", file, pathlib.Path.unlink)
    yield refused("two shards swapped", files[-1], lambda path: path.write_bytes(files[-2].read_bytes()))
    # `resume: auto` passes over what is damaged, and an explicit path does not.
    reference = result(source.out)
    for name, file in [(file.name, file) for file in files][:: rig.some(2, 1)]:
        kept = shutil.copytree(source.out, folder / "kept")
        bit = rig.random.randrange(file.stat().st_size * 8)
        damaged(file, flipped(bit))
        named = rig.command("launch", "job.yaml", "--set", f"resume=out/checkpoints/{step.name}", "--output-dir", "named",
                            folder=folder)
        refuses = named.wait() == 4
        again = rig.launch(TWO, folder=folder, resume=True)
        at = again.started
        goes_on = again.wait() == 0 and again.says(step.name)
        yield Trial(f"resume with {name} damaged", refuses and goes_on, again.ended - at, result(source.out) == reference,
                    rig.leftovers(folder), f"named {named.code}: {named.tail()} auto {again.code}: {again.tail()}")
        shutil.rmtree(source.out)
        shutil.rmtree(folder / "named", ignore_errors=True)
        kept.rename(source.out)


def is_a_file(folder):
    (folder / "out").write_text("not a folder")


def parent_is_a_file(folder):
    (folder / "none").write_text("")
    os.symlink("none/out", folder / "out")


def link_to_nowhere(folder):
    os.symlink("/proc/nowhere", folder / "out")


def logs_is_a_file(folder):
    (folder / "out").mkdir()
    (folder / "out/logs").write_text("")


def holds_a_run(folder):
    (folder / "out/checkpoints/step-00000001").mkdir(parents=True)


@fault("R17", "an output folder that cannot be used", "exit 2 before a rank starts; a folder that goes away: no hang", limit=10)
def folders(rig):
    for make in rig.pick([is_a_file, parent_is_a_file, link_to_nowhere, logs_is_a_file, holds_a_run], 1):
        folder = rig.fresh()
        make(folder)
        run = rig.launch(JOB, folder=folder)
        at = run.started
        run.wait()
        yield rig.ended(make.__name__, run, at, run.code == 2 and run.says("out") and not run.says("fires"))
    if rig.may_mount():
        for share in rig.pick(("read-only", "full"), 1):
            folder = rig.fresh()
            disk = folder / "disk"
            with SmallDisk(disk, 4096):
                if share == "read-only":
                    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
                else:
                    (disk / "filler").write_bytes(b"x" * 4096)
                run = rig.launch(JOB, "--output-dir", "disk/out", folder=folder)
                at = run.started
                run.wait()
                trial = rig.ended(f"a disk that is {share}", run, at, run.code == 2 and run.says("disk/out"))
            yield trial
    run = rig.launch(JOB, failpoints="update:rank=0:step=12:delay=1")
    at = None
    if run.until(run.fired):
        at = time.monotonic()
        shutil.rmtree(run.out, ignore_errors=True)
    run.wait()
    yield rig.ended("removed while it trains", run, at, run.code in (0, 1, 2, 4))
