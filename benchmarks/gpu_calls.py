"""What a training step asks of a GPU: operators, copies, waits of the host, allocations and events, counted on the stand-in.

Each model is trained by one GPU and by a pipeline of two (1F1B), with few and with more steps, and with 4 and with 8 microbatches.
The pipeline's ranks are threads, or processes over NCCL ("nccl"), or processes over page-locked and shared memory ("staged"). Over NCCL
the host waits until NCCL has taken each group, and until each message is there. The differences are what a step asks once it runs steadily, and what each microbatch adds to it.
What would stall a real GPU is named with the function of ours that asks for it: a wait or a copy from pageable memory at each
microbatch, memory from the device in steady steps. Counts say nothing about seconds. The stand-in has no cuDNN: an LSTM is
counted as its cells and products.

    scripts/benchmark gpu-calls [--models mlp,resnet50] [--plans one,1f1b] [--operators N] [--at-once N] [--out FILE.json]
                                [--require] [--list]
"""
import argparse
import bisect
import collections
import concurrent.futures
import functools
import json
import os
import re
import subprocess
import sys
import tempfile

IMAGES = "--image-size 32 --classes 10 --microbatch 4 --data synthetic:64"
TOKENS = "--vocabulary 64 --length 12 --microbatch 4"
TRANSFORMER = "--layers 2 --hidden 32 --heads 2 --feed-forward 64 " + TOKENS
MODELS = {
    "mlp": "--model mlp --width 32 --depth 6 --microbatch 4",
    "mlp-adamw": "--model mlp --width 32 --depth 6 --microbatch 4 --rule adamw --lr 0.001 --no-decay bias,norm",
    "mlp-clip": "--model mlp --width 32 --depth 6 --microbatch 4 --clip-norm 1",
    "mlp-float16": "--model mlp --width 32 --depth 6 --microbatch 4 --precision float16",
    "mlp-lamb": "--model mlp --width 32 --depth 6 --microbatch 4 --rule lamb --lr 0.001",
    "vgg16": "--model vgg16 " + IMAGES,
    "resnet18": "--model resnet18 " + IMAGES,
    "resnet50": "--model resnet50 " + IMAGES,
    "resnet50-bfloat16": "--model resnet50 --precision bfloat16 " + IMAGES,
    "resnet50-clip": "--model resnet50 --clip-norm 1 " + IMAGES,
    "gnmt": "--model gnmt --layers 2 --hidden 32 " + TOKENS,
    "awd-lstm": "--model awd_lstm --layers 2 --hidden 32 --embedding-features 16 " + TOKENS,
    "bert": "--model bert_base --rule adamw --lr 0.001 --clip-norm 1 --no-decay bias,norm " + TRANSFORMER,
    "mlp-array": "--model mlp --width 32 --depth 6 --microbatch 4 --fused --lr 0.01 0.02 0.03 0.04 0.05 0.06 0.07 0.08",
    "dcgan": "--model dcgan --image-size 32 --generator-features 8 --discriminator-features 8 --microbatch 4",
    "pointnet": "--model pointnet_seg --points 64 --classes 4 --microbatch 4",
    "autoencoder": "--model autoencoder --microbatch 4",
    "exported": "--model ARCHIVE --microbatch 6",  # torchvision's resnet18, with --torch-python
}
PLANS = {"one": (1, ""), "1f1b": (2, "--stages 2 --schedule 1f1b"), "nccl": (2, "--stages 2 --schedule 1f1b --backend nccl"),
         "staged": (2, "--stages 2 --schedule 1f1b --backend shm")}
STEPS, MICROBATCHES = (3, 6), (4, 8)
KINDS = ("operator", "copy", "wait", "allocation", "event")
TIMEOUT_S = 300
# Functions that only pass on what others ask for.
PASSING_ON = re.compile(r"^(at|c10|std|torch|__gnu_cxx)::|^(?:void|decltype|auto) .*std::|^_|^main$")


class Symbols:
    """The functions of a program by address."""

    def __init__(self, path):
        listed = subprocess.run(["nm", "-C", "--defined-only", path], capture_output=True, text=True).stdout
        rows = sorted((int(words[0], 16), words[2]) for words in (line.split(" ", 2) for line in listed.splitlines())
                      if len(words) == 3 and words[1] in "tTwW")
        self.addresses, self.names = [row[0] for row in rows], [row[1] for row in rows]

    def name(self, address):
        at = bisect.bisect_right(self.addresses, address) - 1
        return self.names[at] if at >= 0 else "?"

    def place(self, addresses):
        """The innermost functions of ours, two at most."""
        ours = []
        for address in addresses:
            name = short(self.name(int(address, 16)))
            if not PASSING_ON.search(name) and name not in ours:
                ours.append(name)
        return " < ".join(ours[:2]) or "LibTorch"


def short(name):
    """Without arguments, templates and the namespace."""
    name = re.sub(r"\[clone [^]]*\]|\(anonymous namespace\)::|\[abi:\w+\]", "", name).replace("millrace::", "").strip()
    name = re.sub(r"<lambda[^>]*>|\{lambda.*?\}", "lambda", name)
    out, depth = "", 0
    for letter in name:
        depth += letter in "<("
        out += letter if depth == 0 else ""
        depth -= letter in ">)"
    return out.replace(" const", "").strip() or name


def export(python, folder):
    script = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "tests/reference/export_models.py")
    ran = subprocess.run([python, script, folder, "resnet18"], capture_output=True, text=True, timeout=TIMEOUT_S,
                         env=dict(os.environ, HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1"))
    if ran.returncode != 0:
        raise RuntimeError(f"{python} exports no model: {ran.stderr[-500:]}")


def run(options, flags, steps, microbatches, folder):
    """{(GPU, kind, name, place): (count, bytes)} of a whole run."""
    table = os.path.join(folder, "counts")
    command = [options.standin, options.millrace, "train", *flags.split(), "--device", "cuda", "--threads", "1", "--no-evaluation",
               "--microbatches", str(microbatches), "--steps", str(steps), "--output-dir", os.path.join(folder, "run")]
    environment = dict(os.environ, STANDIN_COUNTS=table, STANDIN_BYTES=str(16 << 30), OMP_NUM_THREADS="1")
    ranks = [{}]
    if "--backend" in flags:  # processes
        ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "MILLRACE_STORE": folder} for rank in range(2)]
    started = [subprocess.Popen(command, cwd=folder, env=dict(environment, **rank), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
               for rank in ranks]
    for process in started:
        said = process.communicate(timeout=TIMEOUT_S)[0]
        if process.returncode != 0:
            raise RuntimeError(f"exit code {process.returncode}: {' '.join(command)}\n{said[-1500:]}")
    counts, bytes_ = collections.Counter(), collections.Counter()
    with open(table) as file:
        for line in file:
            _, program, gpu, kind, name, count, size, places = line.rstrip("\n").split("\t")
            if kind not in KINDS:
                continue
            key = int(gpu), kind, name, options.symbols(program).place([p for p in places.split(",") if p])
            counts[key] += int(count)
            bytes_[key] += int(size)
    if not counts:
        raise RuntimeError("the stand-in counted nothing: " + " ".join(command))
    return counts, bytes_


def steady(options, flags, folder):
    """{key: (of a step, of each further microbatch, bytes of a step)}."""
    found = {}
    for microbatches in MICROBATCHES:
        for steps in STEPS:
            own = os.path.join(folder, f"{microbatches}x{steps}")
            os.makedirs(own)
            found[microbatches, steps] = run(options, flags, steps, microbatches, own)

    def per_step(microbatches, key, which):
        return (found[microbatches, STEPS[1]][which][key] - found[microbatches, STEPS[0]][which][key]) / (STEPS[1] - STEPS[0])

    rows = {}
    for key in set().union(*(counts for counts, _ in found.values())):
        few, many = (per_step(m, key, 0) for m in MICROBATCHES)
        if few or many:
            rows[key] = (few, (many - few) / (MICROBATCHES[1] - MICROBATCHES[0]), per_step(MICROBATCHES[0], key, 1))
    return rows


def stalls(rows):
    """[(what would stall a GPU, where)]."""
    found = []
    for (gpu, kind, name, place), (step, each, size) in sorted(rows.items()):
        if kind == "wait" and each > 0.01:
            found.append((f"GPU {gpu}: the host waits {each:.3g} times a microbatch ({name})", place))
        if kind == "copy" and "pageable" in name and step > 0:
            found.append((f"GPU {gpu}: {step:.3g} copies a step, {each:.3g} a microbatch, {name}, {size:.0f} bytes", place))
        if kind == "allocation" and step > 0:
            found.append((f"GPU {gpu}: {step:.3g} {name} a step, {size:.0f} bytes", place))
    return found


def number(value):
    return f"{value:.0f}" if abs(value - round(value)) < 0.05 else f"{value:.1f}"


def row_of(name, plan, rows, gpu):
    def total(kind, which=0, word=""):
        return sum(value[which] for key, value in rows.items() if key[0] == gpu and key[1] == kind and word in key[2])

    operators, each = total("operator"), total("operator", 1)
    return [name, plan, str(gpu), number(operators), number(each), number(operators - MICROBATCHES[0] * each), number(total("wait")),
            number(total("wait", 1)), number(total("copy", word="pageable")), number(total("copy", word="locked")),
            number(total("copy", word="GPU to GPU")), number(total("allocation")), number(total("event"))]


HEAD = ["model", "plan", "GPU", "operators a step", "of a microbatch", "of the update", "waits a step", "of a microbatch", "pageable copies",
        "page-locked copies", "copies between GPUs", "allocations", "events"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("millrace")
    parser.add_argument("standin", help="build/cuda/standin/run")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--plans", default=",".join(PLANS))
    parser.add_argument("--torch-python", help="a Python that exports a model (tests/reference/install); without it 'exported' is left out")
    parser.add_argument("--operators", type=int, default=0, metavar="N", help="also the N operators that are called most, and from where")
    parser.add_argument("--at-once", type=int, default=max(1, (os.cpu_count() or 1) // 2))
    parser.add_argument("--out", help="all counts as JSON")
    parser.add_argument("--require", action="store_true", help="exit code 1 if pageable memory is copied at each microbatch, or if a host whose ranks are threads "
                        "waits at each microbatch, or more than twice a step: for the losses before the update and for the times after it (a "
                        "norm or loss scale: once more)")
    parser.add_argument("--list", action="store_true", help="the models and their flags")
    options = parser.parse_args()
    if options.list:
        print("\n".join(f"{name:18} {flags}" for name, flags in MODELS.items()))
        return 0
    models = [name for name in options.models.split(",") if name != "exported" or options.torch_python]
    for name, known in [(name, MODELS) for name in models] + [(name, PLANS) for name in options.plans.split(",")]:
        if name not in known:
            sys.exit(f"gpu-calls: there is no '{name}': {', '.join(known)}")
    if options.out and os.path.exists(options.out):
        sys.exit(f"gpu-calls: {options.out} is there already: give another --out")
    for word in ("millrace", "standin"):
        path = getattr(options, word)
        if not os.path.exists(path):
            sys.exit(f"gpu-calls: there is no {path}; scripts/build cuda millrace millrace-worker millrace-worker-cuda standin")
        setattr(options, word, os.path.abspath(path))
    options.symbols = functools.cache(Symbols)

    def one(name, plan):
        with tempfile.TemporaryDirectory() as folder:
            if name == "exported":
                export(options.torch_python, folder)
            return steady(options, MODELS[name].replace("ARCHIVE", os.path.join(folder, "resnet18.pt2")) + " " + PLANS[plan][1], folder)

    failed, bad, results, told = 0, [], [], []
    print("| " + " | ".join(HEAD) + " |\n" + "|---" * len(HEAD) + "|", flush=True)
    with concurrent.futures.ThreadPoolExecutor(options.at_once) as pool:
        wanted = [(name, plan) for name in models for plan in options.plans.split(",")]
        for (name, plan), future in [(item, pool.submit(one, *item)) for item in wanted]:
            try:
                rows = future.result()
            except Exception as error:  # one that breaks must not end the others
                failed += 1
                print(f"gpu-calls: {name}, {plan}: {error}", file=sys.stderr, flush=True)
                continue
            for gpu in range(PLANS[plan][0]):
                cells = row_of(name, plan, rows, gpu)
                print("| " + " | ".join(cells) + " |", flush=True)
                allowed = 4 if name in ("mlp-lamb", "dcgan") else 3 if re.search("clip|float16", MODELS[name].replace("bfloat16", "")) else 2
                if any(key[:2] == (gpu, "copy") and "pageable" in key[2] and value[1] > 0.01 for key, value in rows.items()):
                    bad.append(f"{name}, {plan}, GPU {gpu}: pageable memory is copied at each microbatch")
                if "--backend" not in PLANS[plan][1] and (float(cells[6]) > allowed or float(cells[7]) > 0):
                    bad.append(f"{name}, {plan}, GPU {gpu}: {cells[6]} waits a step ({allowed} allowed), {cells[7]} a microbatch")
            told += [(name, plan, *stall) for stall in stalls(rows)]
            waits = sorted((key, value) for key, value in rows.items() if key[1] == "wait")
            told += [(name, plan, f"GPU {key[0]}: waits {value[0]:.3g} times a step ({key[2]})", key[3]) for key, value in waits
                     if value[1] <= 0.01]
            calls = collections.Counter({key: value[0] for key, value in rows.items() if key[1] == "operator"})
            told += [(name, plan, f"GPU {key[0]}: {number(count)} x {key[2]}", key[3])
                     for key, count in calls.most_common(options.operators)]
            results.append({"model": name, "plan": plan, "rows": [[*key, *value] for key, value in sorted(rows.items())]})
    print("\n| model | plan | what | where |\n|---|---|---|---|")
    for line in told:
        print("| " + " | ".join(line) + " |")
    if options.out:
        with open(options.out, "x") as file:
            json.dump({"kinds": KINDS, "microbatches": MICROBATCHES, "results": results}, file, indent=1)
    if options.require:
        print("\n".join(bad), file=sys.stderr)
    return 1 if failed or (options.require and bad) else 0


if __name__ == "__main__":
    sys.exit(main())
