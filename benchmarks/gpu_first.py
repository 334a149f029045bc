"""The first minutes on a machine with a GPU: installs, builds, checks, compares with PyTorch, writes one report.

What says most comes first. A part that fails is told in the report, and the next one begins. A part that the budget has no
time for is named there, too. The report is a Markdown file that is written anew after each part, so what an interrupted call
has found stays. An earlier report is never overwritten. The outputs of the parts lie in the folder beside it.

    scripts/gpu-first [--minutes 10] [--out FILE.md] [--only PART,...] [--list]
    scripts/gpu-first --standin          without a GPU: on the libraries of tests/standin, PyTorch's side on the CPU

Building takes most of ten minutes on a small machine and needs no GPU: `scripts/gpu-first --only install,python,build` before
the GPU is paid for leaves the rest its time. Exit code: 0 if all parts passed, 1 if one failed or had no time, 2 for wrong
arguments, 130 after Ctrl-C.
"""
import argparse
import dataclasses
import datetime
import os
import re
import shutil
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MILLRACE = "build/cuda/bin/millrace"
STANDIN = "build/cuda/standin/run"
PROGRAMS = ["millrace", "millrace-worker", "millrace-worker-cuda"]
# Without them the other parts have nothing to run.
PREPARE = ("install", "python", "build")


@dataclasses.dataclass
class Part:
    name: str
    title: str
    command: list  # words; {python} is the Python with torch
    limit_s: float
    only_gpu: str = ""  # why it cannot run on the stand-in
    table: bool = False  # its output is Markdown or a table, and all of it says something


def parts(options, gpus):
    standin = options.standin
    # check.py, compare_peers.py and fusion.py have other names for the same.
    check = ["{python}", "tests/gpu/check.py", MILLRACE] + (["--standin", STANDIN] if standin else [])
    sides = ["--device", "cuda"] + (["--peers-device", "cpu", "--prefix", STANDIN] if standin else [])
    sizes, steps = ("64:8", "14") if standin else ("256:32,1024:64,4096:64", "60")
    peers = ["{python}", "benchmarks/compare_peers.py", "--millrace", MILLRACE, "--torch-python", "{python}", *sides, "--sizes", sizes,
             "--steps", steps, "--runs", "1" if standin else "3", "--modes"]
    arrays = ["{python}", "benchmarks/fusion.py", MILLRACE, "{python}", *sides, "--rounds", "1", *(["--steps", "12"] if standin else [])]
    found = [
        Part("install", "LibTorch's CUDA libraries, cuBLAS, cuDNN, NCCL", ["scripts/bootstrap", "--cuda-runtime"], 600,
             only_gpu="the stand-in takes their place"),
        Part("python", "PyTorch and NumPy for the other side", ["tests/reference/install"], 600),
        Part("build", "the programs", ["scripts/build", "cuda", *PROGRAMS, *(["standin"] if standin else [])], 1800),
        Part("smoke", "one training on the GPU", [*([STANDIN] if standin else []), MILLRACE, "train", "--model", "resnet18", "--image-size", "32",
             "--classes", "10", "--microbatch", "4", "--data", "synthetic:32", "--steps", "3", "--no-evaluation", "--device", "cuda"], 120),
        Part("check", "the GPU beside the CPU: the checks that say most", [*check, "--quick"], 300, table=True),
        Part("nccl", "two ranks of the real NCCL on one GPU", [*check, "--only", "NCCL on one GPU"], 150, table=True,
             only_gpu="its NCCL is no real one"),
        Part("one", "a step by one rank, beside PyTorch's eager step", [*peers, "one"], 180, table=True),
    ]
    if gpus >= 2:
        found += [Part("1f1b", "a pipeline of two ranks, beside torch.distributed.pipelining", [*peers, "1f1b"], 180, table=True),
                  Part("ddp", "two replicas, beside DistributedDataParallel", [*peers, "ddp"], 180, table=True)]
    models = "mlp" if standin else "mlp,resnet18,transformer"
    found += [
        Part("arrays", "job arrays beside the jobs one by one and beside torch.func.vmap",
             [*arrays, "--models", models, "--jobs", "4" if standin else "1,8,16", "--modes", "fused,serial,vmap"], 180, table=True),
        Part("compile", "job arrays beside vmap through torch.compile",
             [*arrays, "--models", "mlp", "--jobs", "4" if standin else "8", "--modes", "fused,compile"], 180, table=True),
        Part("predict", "profile, plan, train: steps predicted and measured", [*check, "--only", "profile, plan"], 240, table=True,
             only_gpu="its clock says nothing about a GPU"),
        Part("kernels", "where a step's time goes: Nsight's summary of ten steps of ResNet-50",
             ["nsys", "profile", "--stats=true", "--force-overwrite=true", "-o", "{folder}/nsys", MILLRACE, "train", "--model", "resnet50", "--device",
              "cuda", "--microbatch", "32", "--steps", "10", "--no-evaluation"], 120, only_gpu="there are no kernels"),
        Part("all", "all other checks", check, 1200, table=True),
    ]
    return found


def told(command):
    """The first lines that a program says of itself; why not, if it says nothing."""
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=30, cwd=HERE)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"({os.path.basename(command[0])}: {error.strerror if isinstance(error, OSError) else 'no answer in 30 s'})"
    return ran.stdout.strip() or f"({os.path.basename(command[0])}: exit code {ran.returncode})"


def machine(options):
    """What the figures were measured on."""
    if options.standin:
        gpu = f"**none: the stand-in of tests/standin, {os.environ.get('STANDIN_GPUS', '2')} GPUs. No figure of a second means anything**"
    else:
        gpu = told(["nvidia-smi", "--query-gpu=name,memory.total,driver_version,clocks.max.sm,power.limit", "--format=csv,noheader"])
    processor = [line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")]
    rows = [("GPU, memory, driver, clock, power", gpu.replace("\n", "<br>")),
            ("millrace", told(["git", "log", "-1", "--format=%h of %cs"]) +
             (", with changes" if not told(["git", "status", "--porcelain", "--untracked-files=no"]).startswith("(") else "")),
            ("CUDA toolkit", told(["nvcc", "--version"]).splitlines()[-1]),
            ("processor", f"{processor[0] if processor else '?'}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"),
            ("system", told(["uname", "-sr"])), ("begun", datetime.datetime.now().astimezone().isoformat(timespec="seconds")),
            ("budget", f"{options.minutes:g} minutes")]
    return [f"| {what} | {how} |" for what, how in rows]


def num_gpus(options):
    if options.standin:
        return int(os.environ.get("STANDIN_GPUS", "2"))
    return told(["nvidia-smi", "-L"]).count("GPU ")


class Report:
    """The file, which is this call's own."""

    def __init__(self, options):
        self.path = options.out
        if not self.path:
            os.makedirs(os.path.join(HERE, "gpu-reports"), exist_ok=True)
            stem = os.path.join(HERE, "gpu-reports", time.strftime("%Y-%m-%d-%H%M%S"))
            self.path = stem + ".md"
            number = 1
            while os.path.exists(self.path):
                number += 1
                self.path = f"{stem}-{number}.md"
        self.path = os.path.abspath(self.path)
        self.folder = self.path.removesuffix(".md") + ".parts"
        try:
            open(self.path, "x").close()
            os.mkdir(self.folder)
        except FileExistsError as error:
            sys.exit(f"gpu-first: {error.filename} is there already, and an earlier report is not overwritten: give another --out")
        except OSError as error:
            sys.exit(f"gpu-first: {error.filename}: {error.strerror}")
        self.head, self.rows, self.texts, self.foot = [], [], [], ""

    def write(self):
        lines = ["# millrace on a GPU: the first minutes", "", "| | |", "|---|---|", *self.head, "", "| part | outcome | seconds |", "|---|---|---|",
                 *self.rows, "", *self.texts, self.foot]
        with open(self.path + ".new", "w") as file:
            file.write("\n".join(lines).rstrip() + "\n")
        os.replace(self.path + ".new", self.path)

    def add(self, part, outcome, seconds, output):
        self.rows.append(f"| {part.name}: {part.title} | {outcome} | {seconds:.0f} |")
        if seconds and (part.table or not outcome.startswith("passed")):
            self.texts += [f"## {part.name}: {part.title}", "", *shown(part, output), ""]
        self.write()
        print(f"{part.name:8} {seconds:6.0f} s  {outcome}", flush=True)


def shown(part, output):
    """Tables as tables, the rest as it was printed; of a long one the end."""
    lines = [line.rstrip() for line in output.splitlines() if line.strip()]
    if part.table and lines and lines[0].startswith("| "):
        rest = [line for line in lines if not line.startswith("|")]
        return [line for line in lines if line.startswith("|")] + (["", "```", *rest[-15:], "```"] if rest else [])
    lines = lines[-(120 if part.table else 15):]
    return ["```", *lines, "```"] if lines else ["It printed nothing."]


def run(part, words, seconds, folder):
    """(outcome, output). The part's processes end with it."""
    log = os.path.join(folder, part.name + ".log")
    with open(log, "w") as file:
        try:
            process = subprocess.Popen(words, cwd=HERE, stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True,
                                       env=dict(os.environ, PYTHONUNBUFFERED="1"))
        except OSError as error:
            return f"**FAILED**: {words[0]}: {error.strerror}", ""
        try:
            code = process.wait(timeout=seconds)
            outcome = "passed" if code == 0 else "**FAILED**: exit code %d" % code
        except subprocess.TimeoutExpired:
            outcome = f"**not done**: stopped after {seconds:.0f} s"
        finally:
            try:
                os.killpg(process.pid, signal.SIGTERM)
                process.wait(timeout=10)
            except ProcessLookupError:
                pass
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
    with open(log, errors="replace") as file:
        return outcome, file.read()


def main():
    parser = argparse.ArgumentParser(prog="scripts/gpu-first", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10, help="all parts together (default 10)")
    parser.add_argument("--out", metavar="FILE.md", help="the report (default gpu-reports/TIME.md)")
    parser.add_argument("--only", default="", metavar="PART,...", help="these parts alone")
    parser.add_argument("--standin", action="store_true", help="no GPU is needed: tries this script itself")
    parser.add_argument("--list", action="store_true", help="the parts in their order")
    options = parser.parse_args()
    gpus = num_gpus(options)
    all_parts = parts(options, gpus)
    if options.list:
        print("\n".join(f"{part.name:8} {part.title}" for part in all_parts))
        return 0
    only = [word for word in options.only.split(",") if word]
    unknown = [word for word in only if word not in [part.name for part in all_parts]]
    if unknown:
        parser.error(f"there is no part '{unknown[0]}': {', '.join(part.name for part in all_parts)}"
                     + ("" if gpus >= 2 else " (1f1b and ddp want two GPUs)"))
    if not options.minutes > 0:
        parser.error(f"--minutes {options.minutes:g}: a number above 0")
    if options.out and not options.out.endswith(".md"):
        parser.error(f"--out {options.out}: a name that ends in .md")
    wanted = [part for part in all_parts if not only or part.name in only]
    if gpus == 0 and not all(part.name in PREPARE for part in wanted):
        sys.exit("gpu-first: nvidia-smi finds no GPU here. Hint: --only install,python,build prepares the machine; --standin tries without one")
    report = Report(options)

    def interrupted(*_):
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupted)
    report.head = machine(options)
    report.write()
    print(f"gpu-first: {report.path}", flush=True)
    end, python, good, code = time.monotonic() + 60 * options.minutes, "python3", True, 0
    # What tests/reference/install would print, where its part is left out.
    installed = os.path.join(os.environ.get("MILLRACE_CACHE", os.path.expanduser("~/.cache/millrace")), "reference-python/bin/python")
    if os.access(installed, os.X_OK):
        python = installed
    part = None
    try:
        for part in wanted:
            left = end - time.monotonic()
            if options.standin and part.only_gpu:
                report.add(part, f"not on the stand-in: {part.only_gpu}", 0, "")
                continue
            if left < 5:
                good = False
                report.add(part, "**not run**: the budget is spent", 0, "")
                continue
            if part.name == "kernels" and not shutil.which("nsys"):
                report.add(part, "not run: nsys is not installed", 0, "")
                continue
            start = time.monotonic()
            words = [word.replace("{python}", python).replace("{folder}", report.folder) for word in part.command]
            # The comparisons have their turn, too, where the checks are slow.
            share = left if part.name in PREPARE or part is wanted[-1] else max(30, left / 2)
            outcome, output = run(part, words, min(part.limit_s, share, left), report.folder)
            good &= outcome == "passed"
            if part.name == "python" and outcome == "passed" and output.split():
                python = output.split()[-1]
            if part.name in ("check", "all", "predict") and (summary := re.findall(r"^\d+ of \d+ checks passed$", output, re.M)):
                outcome += ", " + summary[-1]
            report.add(part, outcome, time.monotonic() - start, output)
        report.foot = f"Done {datetime.datetime.now().astimezone().isoformat(timespec='seconds')}. What each part printed: `{os.path.basename(report.folder)}/`."
        code = 0 if good else 1
    except KeyboardInterrupt:
        report.foot, code = f"**Interrupted** in {part.name if part else 'the beginning'}: the parts above are all there are.", 130
    report.write()
    print(f"gpu-first: {'all parts passed' if code == 0 else 'see what failed or had no time'}: {report.path}")
    return code


if __name__ == "__main__":
    sys.exit(main())
