"""Faults of what is given: job files, shapes, data, other plans, hostile text and files."""
import concurrent.futures
import hashlib
import json
import os
import pathlib
import resource
import stat
import struct
import subprocess
import time
import zlib

from rig import FOUR, JOB, TWO, Skip, Trial, checkpoints, fault, lines_of, yaml_of

WORDS = ["steps", "0", "-1", "1e999", "null", "~", "{", "}", "[", "]", "&a", "*a", "!!python/object", "\t", "\0", "\xff", "'", '"', ": ",
         "- ", "\n", "---", "...", "99999999999999999999", "nan", "resume", "plan", "stages", "true", "|", ">", "#", "%", "@", "<<", "?"]


def mutated(job, draw):
    """The text of a job file with a few things wrong."""
    lines = yaml_of(job).splitlines(keepends=True)
    for _ in range(draw.randint(1, 4)):
        kind, at = draw.randrange(8), draw.randrange(len(lines)) if lines else 0
        if not lines or kind == 0:
            lines.insert(at, draw.choice(WORDS) * draw.choice((1, 2, 3000)) + "\n")
        elif kind == 1:
            lines.insert(at, lines[at])
        elif kind == 2:
            del lines[at]
        elif kind == 3:  # a key that is almost right
            key, rest = lines[at].partition(":")[::2]
            place = draw.randrange(len(key) or 1)
            lines[at] = key[:place] + draw.choice("abexyz_- ") + key[place + 1:] + ":" + rest
        elif kind == 4:  # another value
            lines[at] = lines[at].partition(":")[0] + ": " + draw.choice(WORDS) + "\n"
        elif kind == 5:  # any character
            place = draw.randrange(len(lines[at]))
            lines[at] = lines[at][:place] + chr(draw.randrange(256)) + lines[at][place + 1:]
        elif kind == 6:
            lines[at] = draw.choice((" ", "    ", "\t")) + lines[at]
        else:
            depth = draw.choice((10, 100, 2000))
            lines.insert(at, f"env: {'[' * depth}{']' * draw.randint(0, depth)}\n")
    return "".join(lines).encode("latin-1" if draw.random() < 0.2 else "utf-8")


def stand_in_worker(rig):
    """A program that says which models there are as the worker does, and takes any job: the launcher's own checks are quick."""
    folder = rig.fresh()
    models = subprocess.run([rig.bin / "millrace-worker", "models", "--format=json"], capture_output=True, check=True).stdout
    (folder / "models").write_bytes(models)
    worker = folder / "worker"
    worker.write_text(f'#!/bin/sh\n[ "$1" = models ] && exec cat {folder}/models\nexit 0\n')
    worker.chmod(0o755)
    return worker


def limits():
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def measured(argv, folder, environment):
    """Exit code, stderr, seconds, peak memory in KiB of a short command."""
    begun = time.monotonic()
    with open(folder / "err", "wb") as err, open(os.devnull, "wb") as out:
        process = subprocess.Popen(argv, cwd=folder, env=environment, stdout=out, stderr=err, stdin=subprocess.DEVNULL, preexec_fn=limits)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    text = (folder / "err").read_text(errors="replace")
    return process.returncode, text, time.monotonic() - begun, usage.ru_maxrss


@fault("R11", "malformed job files", "exit 0, 2 or 3, no signal, the file is named, at most 256 MiB", limit=5)
def job_files(rig):
    worker, environment, whole = stand_in_worker(rig), rig.environment(), rig.some(300, 10_000)
    bases = [JOB, {**FOUR, "env": {"A": "b"}, "name": "x"}, {**TWO, "epochs": 2, "lr_policy": "step", "data": "synthetic:64"}]

    def one(texts):
        folder, trials = rig.folder / f"R11-files-{texts[0][0]}", []
        folder.mkdir()
        for number, text in texts:
            (folder / "job.yaml").write_bytes(text)
            code, said, seconds, kib = measured([rig.bin / "millrace", "launch", "job.yaml", "--dry-run", "--worker", worker], folder,
                                                environment)
            fine = code == 0 or (code in (2, 3) and "job.yaml" in said)
            trials.append(Trial(f"file {number}", fine and kib < 256 * 1024, seconds, None, (),
                                f"exit {code}, {kib} KiB: {said[:300]!r} of {text[:200]!r}"))
        return trials

    texts = list(enumerate(mutated(rig.random.choice(bases), rig.random) for _ in range(whole)))
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for trials in pool.map(one, [texts[i:i + 50] for i in range(0, whole, 50)]):
            yield from trials
    for i in range(rig.some(0, 100)):  # with the worker's own checks
        folder = rig.fresh()
        (folder / "job.yaml").write_bytes(mutated(rig.random.choice(bases), rig.random))
        code, said, _, _ = measured([rig.bin / "millrace", "launch", "job.yaml", "--dry-run"], folder, environment)
        fine = code == 0 or (code in (2, 3) and "job.yaml" in said)
        yield Trial(f"whole command {i}", fine, None, None, (), f"exit {code}: {said[:300]!r}")


SHAPES = [
    {"stages": 50}, {"stages": 0}, {"ranks": 3}, {"replicas": 0}, {"microbatches": -1}, {"microbatch": 0}, {"microbatch": -4},
    {"width": 0}, {"depth": 0}, {"classes": -1}, {"model": "vgg16", "image_size": 7}, {"schedule": "interleaved", "chunks": 40},
    {"schedule": "zb-v", "chunks": 3}, {"model": "no-such-model"}, {"plan": "missing.json"}, {"data": "missing"},
    {"data": "missing:de-en"}, {"init_from": "missing.safetensors"}, {"resume": "missing"}, {"steps": 0.5}, {"lr": "fast"},
    {"rule": "sdg"}, {"batchsize": 4}, {"image_size": 32}, {"device": "tpu"}, {"backend": "mpi2"}, {"threads": 0}, {"lr": "nan"},
    {"checkpoint_every": -1}, {"momentum": 2.5, "rule": "lamb"}]


@fault("R12", "shapes and numbers that do not fit", "refused by --dry-run with a reason, no hang", limit=20)
def shapes(rig):
    for case in rig.pick(SHAPES, 3):
        run = rig.launch({**JOB, **case}, "--dry-run")
        at = run.started
        run.wait()
        yield rig.ended(str(case), run, at, run.code in (2, 3, 4) and run.says(": "))


@fault("R21", "resume with other stages and replicas", "other stages: bit-equal; other replicas: within 1e-6")
def topologies(rig):
    small = {key: value for key, value in JOB.items() if key not in ("stages", "replicas")}
    forms = {"4": {"stages": 4, "replicas": 1}, "2x2": {"stages": 2, "replicas": 2}, "2": {"stages": 2, "replicas": 1},
             "1x2": {"stages": 1, "replicas": 2}}
    chains = [("4", "2", "4"), ("2x2", "2"), ("2", "2x2"), ("4", "1x2", "2x2")]
    for chain in rig.pick(chains, 1):
        losses = dict(rig.reference({**small, **forms[chain[0]], "steps": 30})[0])
        folder, seen = rig.fresh(), {}
        for i, form in enumerate(chain):
            run = rig.launch({**small, **forms[form], "steps": 10 * (i + 1) if i + 1 < len(chain) else 30}, folder=folder, resume=True)
            run.wait()
            seen.update({one["step"]: one["loss"] for path in run.out.glob("steps.rank*.jsonl") for one in lines_of(path)})
            if run.code:
                break
        worst = max((abs(seen.get(step, 1e9) - loss) / max(1, abs(loss)) for step, loss in losses.items()), default=1e9)
        yield rig.ended(" -> ".join(chain), run, run.started, run.code == 0 and len(seen) == 30 and worst < 1e-6,
                        seen == losses if len({forms[form]["replicas"] for form in chain}) == 1 else None,
                        f"greatest difference {worst:.3g}")


@fault("R23", "one job of an array diverges", "the other jobs are bit-equal to an array in which none does")
def arrays(rig):
    small = {key: value for key, value in TWO.items() if key not in ("seed", "checkpoint_every")}

    def rows(run):
        """The lines of each job, without the first, which names the columns."""
        lines = (run.out / "jobs.csv").read_text().splitlines()[1:]
        return {job: [line for line in lines if line.split(",")[1] == str(job)] for job in range(4)}

    def trained(victim):
        rates = [1e6 if job == victim else 0.01 * (job + 1) for job in range(4)]
        run = rig.launch({**small, "fused": True, "lr": rates, "seed": [1, 2, 3, 4]})
        run.wait()
        return run

    plain = rows(trained(None))
    for victim in rig.pick(range(4), 1):
        run = trained(victim)
        found = rows(run)
        equal = all(found[job] == plain[job] for job in range(4) if job != victim)
        yield rig.ended(f"job {victim}", run, run.started, run.code == 0 and any("nonfinite" in line for line in found[victim]), equal)


def png(draw, size=32):
    """A picture of random colours."""
    def chunk(kind, data):
        return struct.pack("!I", len(data)) + kind + data + struct.pack("!I", zlib.crc32(kind + data))
    rows = b"".join(b"\0" + draw.randbytes(3 * size) for _ in range(size))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack("!IIBBBBB", size, size, 8, 2, 0, 0, 0)) + chunk(
        b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


@fault("R24", "damaged images: cut, empty, not an image", "one: named, replaced, counted; many: exit 3; no hang", limit=30)
def images(rig):
    damages = [("cut", lambda b: b[:len(b) // 2]), ("empty", lambda b: b""), ("text", lambda b: b"hello"),
               ("a flipped byte", lambda b: b[:200] + bytes([b[200] ^ 255]) + b[201:])]
    for (name, damage), many in rig.pick([(one, many) for one in damages for many in (True, False)], 1):
        folder = rig.fresh()
        for split in ("train", "val"):
            for kind in ("a", "b"):
                (folder / "data" / split / kind).mkdir(parents=True)
                for i in range(12):
                    (folder / "data" / split / kind / f"{i}.png").write_bytes(png(rig.random))
        for victim in [folder / "data/train/b/5.png"] + [folder / f"data/train/a/{i}.png" for i in range(11) if many]:
            victim.write_bytes(damage(victim.read_bytes()))
        job = {"model": "resnet18", "image_size": 32, "classes": 2, "data": "data", "stages": 2, "microbatch": 2, "microbatches": 2,
               "steps": 8, "threads": 1, "timeout": 20, "no_evaluation": True}
        run = rig.launch(job, folder=folder)
        at = run.started
        run.wait()
        detected = run.code == 3 and run.says("train/") if many else run.code == 0 and run.says("b/5.png", "1 damaged (replaced)")
        yield rig.ended(f"{'many' if many else 'one'} {name}", run, at, detected)


HOSTILE = [";touch canary", "$(touch canary)", "`touch canary`", "|touch canary", "&touch canary", "a\ntouch canary",
           "-oProxyCommand=touch canary", "'; touch canary; '", '"; touch canary; "', "\u202e\u0000touch canary", "../../canary",
           "--help", "{}", "${IFS}touch${IFS}canary"]


@fault("S3", "shell text in the fields of a job file", "nothing is run; refused, or passed on as text")
def injections(rig):
    worker, environment = stand_in_worker(rig), rig.environment()
    fields = ["name", "model", "data", "plan", "resume", "init_from", "hosts", "workdir", "container", "client", "lr_policy",
              "env", "worker"]
    for field, text in rig.pick([(field, text) for field in fields for text in HOSTILE], 40):
        folder = rig.fresh()
        value = {"A": text} if field == "env" else [text] if field == "hosts" else text
        (folder / "job.yaml").write_text(yaml_of({**JOB, "output_dir": "out", field: value}))
        more = [] if field == "worker" else ["--worker", worker]
        code, said, seconds, _ = measured([rig.bin / "millrace", "launch", "job.yaml", "--dry-run", *more], folder, environment)
        fine = code in (0, 2, 3) and not list(rig.folder.rglob("canary"))
        yield Trial(f"{field}: {text!r}", fine, seconds, None, (), f"exit {code}: {said[:200]!r}")


@fault("S4", "who may read a run, whatever the umask", "folders of the run 0700, the job file 0600")
def permissions(rig):
    for umask in rig.pick(("000", "022", "077"), 1):
        run = rig.launch(TWO, wrapper=["bash", "-c", f'umask {umask}; exec "$@"', "masked"])
        at = run.started
        run.wait()
        mode = lambda path: stat.S_IMODE(path.stat().st_mode)
        wrong = [str(path) for path, wanted in ((run.out, 0o700), (run.out / "job.yaml", 0o600)) if mode(path) != wanted]
        wrong += [str(path) for path in run.out.rglob("*") if mode(path) & 0o022]  # nobody else comes here, but still
        yield rig.ended(f"umask {umask}", run, at, run.code == 0 and not wrong, note=str(wrong))


@fault("S5", "names that lead out of a checkpoint", "refused with a true seal, too; the other file is untouched")
def escapes(rig):
    source = rig.launch(TWO)
    source.wait()
    step = checkpoints(source.out)[-1]
    manifest = step / "manifest.json"
    kept = manifest.read_text()
    canary = source.folder / "canary"
    for name in rig.pick(["../../../canary", str(canary), "a/../../canary", "..", ".", "", "a\u0000b", "x" * 4096], 3):
        canary.write_text("untouched")
        text = kept.replace(json.dumps("stage0.safetensors"), json.dumps(name))
        manifest.write_text(sealed(text))
        run = rig.command("checkpoint", "verify", step, folder=source.folder)
        at = run.started
        code = run.wait()
        fine = code not in (0, "hung") and code < 128 and canary.read_text() == "untouched" and text != kept
        yield Trial(repr(name[:40]), fine, run.ended - at, None, (), run.tail())
    manifest.write_text(kept)


def sealed(text):
    """The manifest with the hash of the text before it as its last member."""
    head, mark, _ = text.rpartition(',\n "sha256": "')
    return f'{head}{mark}{hashlib.sha256(head.encode()).hexdigest()}"\n}}\n'


@fault("S6", "readers of hostile files, under sanitizers", "60 s each: no finding, at most 10 s and 1.5 GB an input")
def fuzzing(rig):
    folder = pathlib.Path(__file__).resolve().parents[2]
    programs = sorted((folder / "build/fuzz/bin").glob("*_fuzz"))
    if rig.quick or not programs:
        raise Skip("`scripts/fuzz 1` builds the programs" if not programs else "each takes a minute")
    environment = {**rig.environment(), "ASAN_OPTIONS": "detect_container_overflow=0:allocator_may_return_null=1"}

    def one(program):
        name, found = program.name.removesuffix("_fuzz"), rig.folder / f"S6-{program.name}"
        found.mkdir()
        seeds = folder / "tests/fuzz/corpus" / name
        begun = time.monotonic()
        run = subprocess.run([program, found, *([seeds] if seeds.exists() else []), "-max_total_time=60", "-timeout=10",
                              "-rss_limit_mb=1500", "-max_len=4096", f"-artifact_prefix={found}/"], env=environment, capture_output=True)
        return Trial(name, run.returncode == 0, time.monotonic() - begun, None, (), run.stderr.decode(errors="replace")[-400:])

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        yield from pool.map(one, programs)


@fault("S7", "pickles in the place of weights", "refused by name, at once, in little memory", limit=10)
def pickles(rig):
    for name, content in rig.pick([("zip", b"PK\3\4" + b"\0" * 1600), ("protocol 2", b"\x80\x02}q\0."),
                                   ("huge length", b"\xff" * 7 + b"\x7f{}"), ("protocol 5", b"\x80\x05\x95" + b"\xff" * 60)], 1):
        folder = rig.fresh()
        (folder / "weights.pt").write_bytes(content)
        run = rig.launch({**TWO, "init_from": "weights.pt"}, folder=folder)
        at = run.started
        run.wait()
        yield rig.ended(name, run, at, run.code in (2, 3, 4) and run.says("weights.pt"))


@fault("S8", "secrets in the environment of a job", "in no log, report or manifest")
def secrets(rig):
    marker = "marker-of-a-secret"
    run = rig.launch({**TWO, "env": {"MY_API_KEY": marker}}, OTHER_TOKEN=marker + "2")
    at = run.started
    run.wait()
    report = rig.command("report", "--run", "out", "--out", "report.html", folder=run.folder)
    report.wait()
    allowed = {run.folder / "job.yaml", run.out / "job.yaml"}
    found = [str(path) for path in run.folder.rglob("*")
             if path.is_file() and path not in allowed and marker.encode() in path.read_bytes()]
    fine = run.code == report.code == 0 and not found and marker not in run.text
    yield rig.ended("a launch and its report", run, at, fine, note=str(found))
