"""What a GPU computes beside what the CPU does: every model, precision, schedule and rule that the programs offer, through
the command line. For a machine with one GPU or more; ctest calls it, and skips it where there is none.

    check.py MILLRACE [--device cuda|cpu] [--standin RUN] [--out FOLDER] [--only WORD,...] [--quick] [--at-once N] [--list]

Kernels add in other orders, and some models magnify that: batch normalisation over four samples, the first steps of adaptive
rules. So a model is judged by one step: its loss agrees to 1e-5, and the gradient of each tensor to 1e-4 of its norm or to ten times
what the CPU differs from itself with other kernels (without AVX: OTHER_ROUNDING), whichever is more (judged_gradient). Losses of three steps are judged in
the same way, from 2e-3 on. Cheap checks that say most come first; --quick leaves out all that come after them. Ends with a line for each
check; exit code 1 if one failed, 77 without a GPU. Needs NumPy. With --device cpu both sides compute on the CPU: that tries the
checks themselves. With --standin the programs run on the libraries of tests/standin, which its script RUN puts in their place.
"""

import argparse
import concurrent.futures
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

try:
    import numpy
except ImportError:
    numpy = None

IMAGES = "--image-size 32 --classes 10 --microbatch 4 --data synthetic:32"
# Batch normalisation over more samples magnifies rounding less.
DEEP = "--image-size 32 --classes 10 --microbatch 16 --microbatches 1 --data synthetic:32"
TOKENS = "--vocabulary 64 --length 12 --microbatch 4"
TRANSFORMER = "--layers 2 --hidden 32 --heads 2 --feed-forward 64 " + TOKENS
POINTS = "--points 64 --classes 4 --microbatch 4"
MODELS = {
    "mlp": "--width 32 --depth 3",
    **{name: IMAGES for name in ("vgg16", "vgg16_bn", "resnet18", "squeezenet1_0", "squeezenet1_1", "mobilenet_v2",
                                 "mobilenet_v3_large", "mobilenet_v3_small")},
    **{name: DEEP for name in ("resnet50", "resnet101", "resnext50_32x4d", "resnext101_32x4d", "resnext101_32x8d", "densenet121")},
    "alexnet": IMAGES.replace("32", "64", 1),
    "inception_v3": "--image-size 75 --aux-weight 0 --classes 10 --microbatch 4 --data synthetic:32",
    "gnmt": "--layers 2 --hidden 32 " + TOKENS,
    "gnmt_large": "--layers 3 --hidden 32 " + TOKENS,
    "bert_base": TRANSFORMER,
    "transformer_lm": TRANSFORMER,
    "awd_lstm": "--layers 2 --hidden 32 --embedding-features 16 " + TOKENS,
    "s2vt": "--frame-features 16 --embedding-features 16 --hidden 32 " + TOKENS,
    "pointnet_cls": POINTS,
    "pointnet_seg": POINTS,
    "dcgan": "--image-size 32 --generator-features 8 --discriminator-features 8 --microbatch 4",
    "dlrm": "--table-rows-cap 30 --bottom 16,8 --top 16,1 --microbatch 8",
    "unet3d": "--image-size 16 --levels 2 --filters 8 --microbatch 2 --data synthetic:32",
    "autoencoder": "--norm group --activation prelu --padding reflect --dropout 0.1 --microbatch 4",
}
MLP = "--model mlp --width 32 --depth 6 --microbatches 8"
LM = "--model transformer_lm " + TRANSFORMER + " --microbatches 4"
RESNET = "--model resnet18 " + IMAGES + " --microbatches 4"
TIMEOUT_S = 240
NOT_FINITE = 6  # exit code
TIED = "--model bert_base " + TRANSFORMER + " --microbatches 4"
# What a driver may wait for: tests/standin/README.md.
HAZARDS = {"STANDIN_LAZY": "1", "STANDIN_MALLOC_WAITS": "1", "STANDIN_HOST_WAITS": "1"}
DEVICE = "cuda"  # --device
PREFIX = []  # --standin
# The CPU's kernels for processors without AVX: another order of sums.
OTHER_ROUNDING = {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_CBWR": "COMPATIBLE"}
AMPLIFIED = 10
LOSS = re.compile(r"(^|\.)loss(\.job\d+)?$")


class Failed(Exception):
    pass


def run(command, folder, environment=None):
    """Runs it in `folder`; its standard output."""
    try:
        ran = subprocess.run(PREFIX + command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S,
                             env=dict(os.environ, **(environment or {})))
    except subprocess.TimeoutExpired:
        raise Failed(f"longer than {TIMEOUT_S} s: {' '.join(command)}")
    if ran.returncode != 0:
        raise Failed(f"exit code {ran.returncode}: {' '.join(command)}\n" + (ran.stderr + ran.stdout)[-1500:])
    must_be_silent(ran.stderr)
    return ran.stdout


def must_be_silent(told):
    """The stand-in has something to say where the real libraries would only misbehave."""
    for line in told.splitlines():
        if "standin: " in line:
            raise Failed(line)


def losses(folder):
    """Of each step: the whole, those of heads, those of the jobs of an array ("loss.job1")."""
    found = []
    for name in sorted(os.listdir(folder)):
        if name.startswith("steps.rank"):
            for line in open(os.path.join(folder, name)):
                step = json.loads(line)
                found += [(step["step"], key, value) for key, value in sorted(step.items())
                          if LOSS.search(key) and value is not None and "step" in step]  # null on ranks without a head
    return found


def with_masks(flags):
    """Of masks that a GPU draws itself the CPU knows nothing."""
    return flags if "--dropout-masks" in flags else flags + " --dropout-masks host"


def train(millrace, flags, folder, out, environment=None):
    run([millrace, "train", *with_masks(flags).split(), "--no-evaluation", "--threads", "1", "--output-dir", out], folder,
        environment)
    found = losses(os.path.join(folder, out))
    if not found:
        raise Failed(f"no losses in the log of: train {flags}")
    return found


def difference(one, other):
    """The greatest relative difference of two runs' losses."""
    if [key[:2] for key in one] != [key[:2] for key in other]:
        raise Failed(f"other steps or names: {one[:3]} and {other[:3]}")
    return max((abs(a[2] - b[2]) / max(abs(a[2]), 1e-30) if a[2] != b[2] else 0.0) for a, b in zip(one, other))


def judged(apart, tolerance):
    if not apart <= tolerance:
        raise Failed(f"losses differ by {apart:.2e}, allowed {tolerance:.0e}")
    return f"{apart:.1e} apart"


def weights(folder, name, buffers=False):
    """The tensors of the files that --save-weights wrote, by job and name; running statistics, too, with `buffers`."""
    found = {}
    for file in sorted(os.listdir(folder)):
        if not (file.startswith(name + ".") and file.endswith(".safetensors")):
            continue
        with open(os.path.join(folder, file), "rb") as opened:
            header = json.loads(opened.read(int.from_bytes(opened.read(8), "little")))
            data = opened.read()
        for key in sorted(header):
            if key != "__metadata__" and header[key]["dtype"] == "F32" and (buffers or "running_" not in key):
                first, last = header[key]["data_offsets"]
                found[file[len(name):], key] = numpy.frombuffer(data[first:last], numpy.float32).astype(numpy.float64)
    return found


def without_training(flags):
    """The flags of a step that leaves the weights as they were drawn."""
    flags = re.sub(r"--(steps|schedule|stages|replicas|clip-norm|clip-value) [\w.-]+|--zero-1|--recompute|--checkpoint-at-end", "", flags)
    rates = re.search(r"--lr((?: \d[\d.e-]*)+)", flags)
    return flags.replace(rates[0], "--lr" + " 0" * len(rates[1].split())) if rates else flags + " --lr 0"


DRAWN = {}  # by flags


def as_drawn(millrace, flags, folder):
    """The weights before the first step."""
    flags = " ".join(without_training(flags).split())
    if flags not in DRAWN:
        train(millrace, flags + " --steps 1 --device cpu --save-weights before.safetensors", folder, "before")
        DRAWN[flags] = weights(folder, "before", True)
    return DRAWN[flags]


def judged_weights(millrace, flags, folder, expected, found, tolerance):
    """What training changed: of each tensor the difference of two runs, of the change's norm. Rounding that the model magnifies is allowed
    as judged_gradient says; `expected` and `found` are names of --save-weights, `flags` those of the run on the CPU. Tolerance 0: bits."""
    one, other = weights(folder, expected, True), weights(folder, found, True)
    if not one or one.keys() != other.keys():
        raise Failed(f"weights: {len(one)} tensors of {expected}, {len(other)} of {found}")
    if all(numpy.array_equal(one[key], other[key]) for key in one):
        return "weights equal"
    if tolerance == 0:
        raise Failed("weights differ: " + ", ".join(name for _, name in (key for key in one if not numpy.array_equal(one[key], other[key])))[:300])
    before = as_drawn(millrace, flags, folder)
    moved = {key: numpy.linalg.norm(one[key] - before[key]) for key in one}
    apart = max(numpy.linalg.norm(one[key] - other[key]) / moved[key] for key in one if moved[key] > 0)
    if apart <= max(tolerance, 1e-4):
        return f"weights {apart:.1e} of their change apart"
    train(millrace, flags + " --device cpu --save-weights other.safetensors", folder, "other-weights", OTHER_ROUNDING)
    return judged_gradient(before, one, weights(folder, "other", True), other).replace("gradient", "weights")


def judged_gradient(before, cpu, other, gpu):
    """Each tensor's gradient by itself: its difference, of its norm, may be 1e-4, or ten times what the CPU differs from itself.
    Rounding is chance: a tensor in twenty may be off by ten times that. A gradient that is missing, doubled or of another sign is off by
    1 or more: none may be off by 0.5 whose bound is less, and half of the bounds must be, or the check would say nothing of the model."""
    names, differences, bounds = [], [], []
    for name in cpu:
        moved = numpy.linalg.norm(cpu[name] - before[name])
        if moved > 0:  # a bias before batch normalisation has none
            names.append(name[-1])
            differences.append(numpy.linalg.norm(gpu[name] - cpu[name]) / moved)
            bounds.append(max(1e-4, AMPLIFIED * numpy.linalg.norm(other[name] - cpu[name]) / moved))
    if not differences:
        raise Failed("the step changed nothing")
    differences, bounds = numpy.array(differences), numpy.array(bounds)
    off, middle = differences / bounds, float(numpy.median(bounds))
    most = numpy.where(bounds < 0.5, numpy.minimum(10 * bounds, 0.5), 10 * bounds)
    told = f"gradient: worst {off.max():.2f} of its bound, median bound {middle:.0e}"
    if off.max() > 1:
        worst = off.argmax()
        told += f"; {(off > 1).sum()} of {len(off)} above, worst {names[worst]}, {differences[worst]:.1e} apart"
    if not (middle < 0.5 and (differences <= most).all() and (off > 1).mean() <= 0.05):
        raise Failed(told)
    return told


def same_training(flags):
    """A check: the loss and the gradient of a step."""
    def check(millrace, folder):
        runs, ends = {}, {}
        for name, more, environment in (("before", "cpu --lr 0", {}), ("cpu", "cpu", {}), ("other", "cpu", OTHER_ROUNDING),
                                        ("gpu", DEVICE, {})):
            runs[name] = train(millrace, f"{flags} --momentum 0 --steps 1 --save-weights {name}.safetensors --device {more}",
                               folder, name, environment)
            ends[name] = weights(folder, name)
        loss = difference(runs["cpu"], runs["gpu"])
        if not loss <= 1e-5:
            raise Failed(f"loss {loss:.1e} apart")
        return f"loss {loss:.1e} apart, " + judged_gradient(ends["before"], ends["cpu"], ends["other"], ends["gpu"])
    return check


def same(flags, more, tolerance, base="--device cpu"):
    """A check: a run with `more` on the GPU against one with `base`."""
    def check(millrace, folder, environment=None):
        steps = "" if "--steps" in flags else " --steps 3"
        base_flags = flags + steps + " " + base.replace("DEVICE", DEVICE)
        expected = train(millrace, base_flags + " --save-weights expected.safetensors", folder, "expected")
        found = train(millrace, flags + steps + f" --device {DEVICE} {more} --save-weights found.safetensors", folder, "found", environment)
        apart, allowed = difference(expected, found), tolerance
        if apart > allowed >= 2e-3:
            allowed = max(allowed, AMPLIFIED * difference(expected, train(millrace, base_flags, folder, "other", OTHER_ROUNDING)))
        return judged(apart, allowed) + ", " + judged_weights(millrace, flags + steps, folder, "expected", "found", tolerance)
    return check


def checkpoints(millrace, folder):
    """What a GPU saved the CPU goes on with, and the other way round."""
    flags = RESNET + " --steps"
    whole = train(millrace, flags + " 4 --device cpu --save-weights whole.safetensors", folder, "whole")
    told = ""
    apart = 0
    for number, (first, second) in enumerate(((DEVICE, "cpu"), ("cpu", DEVICE), (DEVICE, DEVICE))):
        out = f"{number}{first}{second}"
        train(millrace, f"{flags} 2 --device {first} --checkpoint-at-end", folder, out)
        found = train(millrace, f"{flags} 4 --device {second} --resume {out} --save-weights {out}.safetensors", folder, out + "2")
        apart = max(apart, difference(whole[-len(found):], found))
        told += ", " + judged_weights(millrace, flags + " 4", folder, "whole", out, 2e-3)
    return judged(apart, 2e-3) + told


def device_masks(model):
    """Masks that the device draws: the same in every run and plan, others than the CPU's, of the same share and size."""
    def check(millrace, folder):
        flags = f"{model} --steps 4 --lr 0 --dropout-masks device --device " + DEVICE
        one = train(millrace, flags, folder, "one")
        apart = difference(one, train(millrace, flags + " --stages 3", folder, "stages"))
        both = train(millrace, flags + " --replicas 2", folder, "replicas")  # each says the loss of all
        apart = max(apart, difference(one, both[:len(one)]))
        if not apart <= 1e-5:
            raise Failed(f"losses of stages or replicas differ by {apart:.2e}: other masks")
        host = train(millrace, flags.replace("masks device", "masks host"), folder, "host")
        other = difference(one, host)
        if DEVICE == "cuda" and other < 1e-6:
            raise Failed("the device drew what the CPU draws: were the masks copied?")
        if not other <= 0.2:
            raise Failed(f"losses are {other:.2e} from those with the CPU's masks: another share is dropped")
        # What is kept is divided by the share that is kept: without that a step moves the weights less.
        steps = f"{MLP} --microbatch 128 --data synthetic:1024 --dropout 0.5 --steps 1"
        for masks in ("host", "device"):
            train(millrace, f"{steps} --dropout-masks {masks} --device {DEVICE} --save-weights {masks}.safetensors", folder, masks + "-step")
        before, moved = as_drawn(millrace, steps, folder), []
        for masks in ("host", "device"):
            after = weights(folder, masks)
            moved.append(numpy.sqrt(sum(((after[key] - before[key]) ** 2).sum() for key in before)))
        if not 0.92 < moved[1] / moved[0] < 1.08:
            raise Failed(f"a step moves the weights by {moved[1]:.3g}, with the CPU's masks by {moved[0]:.3g}")
        return f"plans {apart:.1e} apart, the CPU's masks {other:.1e}, moved {moved[1] / moved[0]:.3f} times as far"
    return check


def evaluation(millrace, folder):
    answers = []
    for side, device in (("cpu", "cpu"), ("gpu", DEVICE)):
        run([millrace, "train", *RESNET.split(), "--steps", "2", "--threads", "1", "--device", device,
             "--output-dir", side], folder)
        with open(os.path.join(folder, side, "summary.json")) as file:
            answers.append(json.load(file))
    first, second = (answer["evaluations"][-1] for answer in answers)
    if not abs(first["loss"] - second["loss"]) <= 2e-3 * abs(first["loss"]):
        raise Failed(f"{first} and {second}")
    return f"losses {first['loss']} and {second['loss']}"


def four_gpus(millrace, folder):
    """Four ranks, each on a GPU of its own where there are as many."""
    return same(f"{MLP} --stages 4", "", 1e-5)(millrace, folder, {"STANDIN_GPUS": "4"})


def exported(millrace, folder):
    """A model that PyTorch exported."""
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../reference/export_models.py")
    made = subprocess.run([sys.executable, script, folder, "mlp"], capture_output=True, text=True, timeout=TIMEOUT_S,
                          env=dict(os.environ, HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1"))
    if made.returncode != 0:
        raise Failed(f"the Python that runs this has no torch, or it cannot export (tests/reference/install): {made.stderr[-500:]}")
    return same(f"--model {os.path.join(folder, 'mlp.pt2')} --microbatches 4 --microbatch 6", "--stages 2", 1e-5)(millrace, folder)


def processes(backend, shape="--stages 2", model=MLP, ranks=2, tolerance=1e-5, more="--no-evaluation", steps=4, environment=None, one_gpu=False):
    """Some processes, as many on a GPU as there have to be. With a tolerance against threads of one on the CPU; bit by bit against threads
    of one on the same device."""
    def check(millrace, folder):
        flags = f"{model} {shape} --steps {steps}"
        expected = train(millrace, f"{flags} --device {'cpu' if tolerance else DEVICE} --save-weights expected.safetensors", folder, "expected")
        store = os.path.join(folder, "store")
        os.mkdir(store)
        started = [subprocess.Popen(PREFIX + [millrace, "train", *with_masks(flags).split(), *more.split(), "--threads", "1", "--timeout", "60", "--device", DEVICE,
                                   "--backend", backend, "--output-dir", "found", "--save-weights", "found.safetensors"], cwd=folder,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  env=dict(os.environ, **{key: value.format(rank=rank) for key, value in (environment or {}).items()}, RANK=str(rank), LOCAL_RANK=str(rank * (not one_gpu)), WORLD_SIZE=str(ranks),
                                           MILLRACE_STORE=store))
                   for rank in range(ranks)]
        try:
            told = [rank.communicate(timeout=TIMEOUT_S)[0] for rank in started]
        except subprocess.TimeoutExpired:
            for rank in started:
                rank.kill()
            raise Failed(f"longer than {TIMEOUT_S} s")
        if any(rank.returncode for rank in started):
            raise Failed("\n".join(told)[-1500:])
        must_be_silent("\n".join(told))
        return judged(difference(expected, losses(os.path.join(folder, "found"))), tolerance) + ", " + judged_weights(
            millrace, flags, folder, "expected", "found", tolerance)
    return check


def spans_in_time(millrace, folder):
    """The device's spans lie on the host's time line: none begins before the host had what it computes with."""
    train(millrace, MLP + " --stages 4 --steps 2 --trace-first 0 --device " + DEVICE, folder, "out", {"STANDIN_GPUS": "4"})
    compared = 0
    for rank in range(4):
        with open(os.path.join(folder, "out", f"trace.rank{rank}.json")) as file:
            spans = json.load(file)["spans"]
        ready = {}
        for span in spans:
            before = "forward" if span["kind"] == "data" or span["peer"] == rank - 1 else "backward"
            if span["kind"] in ("data", "wait"):
                key = before, span["microbatch"]
                ready[key] = max(ready.get(key, 0), span["end"])
        for span in spans:
            since = ready.get((span["kind"], span["microbatch"]))
            if since is None:
                continue
            compared += 1
            if span["start"] < since:
                raise Failed(f"rank {rank}: {span} begins {since - span['start']} ns before the host had its tensors")
    if compared < 2 * (8 * 4 + 8 * 3):
        raise Failed(f"only {compared} spans could be compared")
    return f"{compared} spans"


def nccl_on_one_gpu(millrace, folder):
    told = []
    for number, flags in enumerate(("--stages 2", "--stages 2 --schedule zb-h1", "--replicas 2")):
        os.mkdir(own := os.path.join(folder, str(number)))
        told.append(flags + ": " + processes("nccl", flags, one_gpu=True, environment={
            "NCCL_HOSTID": "host{rank}", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"})(millrace, own))
    return "; ".join(told)


def launched(millrace, folder, environment=None):
    flags = MLP + " --steps 3"
    expected = train(millrace, flags + " --stages 2 --save-weights expected.safetensors --device " + DEVICE, folder, "expected")
    with open(os.path.join(folder, "job.yaml"), "w") as file:
        file.write("model: mlp\nwidth: 32\ndepth: 6\nmicrobatches: 8\nstages: 2\nsteps: 3\nthreads: 1\n"
                   "no-evaluation: true\ndevice: " + DEVICE + "\noutput-dir: found\nsave-weights: found.safetensors\n")
    run([millrace, "launch", "job.yaml"], folder, environment)
    return judged(difference(expected, losses(os.path.join(folder, "found"))), 0) + ", " + judged_weights(
        millrace, flags, folder, "expected", "found", 0)


def planned(millrace, folder):
    """profile, plan, train: what was predicted and what was measured."""
    if DEVICE == "cuda" and not PREFIX:
        model, steps = "--model resnet50 --image-size 224 --microbatch 32", "20"
    else:  # the commands alone: such seconds say nothing of a GPU's
        model, steps = "--model mlp --width 64 --depth 6 --microbatch 8", "6"
    told = []
    for precision in ("float32", "bfloat16"):
        more = f" --precision {precision} --device " + DEVICE
        run([millrace, "profile", *(model + more).split(), "--out", precision + ".json"], folder)
        run([millrace, "plan", "--profile", precision + ".json", "--ranks", "1", "-m", "4", "--out", precision + ".plan"],
            folder)
        with open(os.path.join(folder, precision + ".plan")) as file:
            predicted = json.load(file)["predicted_step_s"]
        run([millrace, "train", *(model + more).split(), "--plan", precision + ".plan", "--microbatches", "4", "--steps", steps,
             "--no-evaluation", "--data", "synthetic:256", "--output-dir", precision], folder)
        with open(os.path.join(folder, precision, "summary.json")) as file:
            summary = json.load(file)
        told.append(f"{precision}: predicted {predicted * 1e3:.1f} ms, measured {summary['median_step_s'] * 1e3:.1f} ms")
    return "; ".join(told)


def diverged(millrace, folder):
    """A loss that is no number ends a run on the GPU as it does on the CPU."""
    codes = []
    for side, device in (("cpu", "cpu"), ("gpu", DEVICE)):
        ran = subprocess.run(PREFIX + [millrace, "train", *MLP.split(), "--steps", "50", "--lr", "1e6", "--no-evaluation", "--device",
                              device], cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S)
        codes.append((ran.returncode, ran.stderr.strip()[-400:]))
    if any(code != NOT_FINITE or "loss" not in said for code, said in codes):
        raise Failed(f"expected exit code {NOT_FINITE} and a word on the loss: {codes}")
    return f"exit code {NOT_FINITE} both"


def out_of_memory(millrace, folder):
    """A model that does not fit says so and does not hang."""
    ran = subprocess.run(PREFIX + [millrace, "train", "--model", "mlp", "--width", "1000000", "--depth", "8", "--device", DEVICE, "--steps",
                          "1"], cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S)
    if ran.returncode == 0:
        raise Failed("it fitted")
    return f"exit code {ran.returncode}: {ran.stderr.strip()[-160:]}"


# What says most in the first minutes.
QUICK = ("model mlp", "model resnet18", "model transformer_lm", "model gnmt", "model bert_base", "model dcgan", "schedule 1f1b", "schedule zb-h1",
         "schedule interleaved", "schedule pipedream", "replicas", "replicas, zero-1", "sync-batch-norm", "processes auto",
         "replicas in processes", "processes gloo", "launch", "hazards gpipe", "hazards 1f1b", "hazards zb-h1", "hazards launch",
         "hazards pipedream", "hazards lengths", "hazards evaluation", "hazards replicas", "slow NCCL", "ties over three stages",
         "statistics in processes", "a sum of three in processes", "pipedream in processes", "tables in processes", "four GPUs", "spans in time", "exported", "profile, plan, train",
         "recompute, bits", "bfloat16 transformer_lm", "float16 skipped steps", "fused mlp", "fused resnet18", "checkpoints", "evaluation", "diverged", "out of memory")


def checks():
    listed = {}
    for name, flags in MODELS.items():
        listed["model " + name] = same_training(f"--model {name} {flags}")
    for rule in ("sgd --nesterov", "adam", "adamw --amsgrad", "lamb", "lars", "adadelta", "rmsprop --centered", "asgd"):
        listed["rule " + rule] = same(f"{RESNET} --rule {rule}", "", 2e-3)
    listed["clip-norm"] = same(f"{LM} --clip-norm 0.1", "", 1e-5)
    listed["clip-value"] = same(f"{LM} --clip-value 0.01", "", 1e-5)
    for schedule in ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipev"):
        listed["schedule " + schedule] = same(f"{MLP} --stages 2 --schedule {schedule}", "", 1e-5)
    for schedule in ("pipedream", "pipedream-vsync", "pipedream-2bw"):
        listed["schedule " + schedule] = same(f"{MLP} --stages 2 --schedule {schedule} --steps 12", "", 1e-5)
    listed["stages against one"] = same(LM, "--stages 3", 1e-5, base="--device DEVICE")
    listed["deterministic, bits"] = same(MLP + " --deterministic --stages 2", "", 0, base="--device DEVICE")
    listed["recompute, bits"] = same(MLP + " --stages 2", "--recompute", 0, base="--device DEVICE")
    listed["replicas"] = same(MLP + " --stages 2 --replicas 2", "", 1e-5)
    listed["replicas, zero-1"] = same(MLP + " --replicas 2 --rule adam --zero-1", "", 1e-5)
    listed["sync-batch-norm"] = same(RESNET + " --replicas 2 --sync-batch-norm", "", 2e-3)
    for precision in ("bfloat16", "float16"):
        for name, model in (("mlp", MLP), ("resnet18", RESNET), ("transformer_lm", LM)):
            listed[f"{precision} {name}"] = same(f"{model} --precision {precision}", "", 3e-2)
        listed[precision + " stages"] = same(f"{LM} --precision {precision}", "--stages 2", 3e-2)
    listed["float16 skipped steps"] = same(f"{MLP} --precision float16 --loss-scale-initial 1e30 --steps 6", "", 1e-2)
    for name in ("mlp", "resnet18", "pointnet_cls", "dcgan", "transformer_lm", "bert_base", "gnmt", "awd_lstm", "mobilenet_v2"):
        listed["fused " + name] = same(f"--model {name} {MODELS[name]} --fused --lr 0.01 0.02 0.03 --seed 1 2 3 "
                                       "--data-seed 1", "", 2e-3)
    listed["fused adam"] = same(MLP + " --fused --rule adam --lr 0.001 0.002 --beta1 0.8 0.9", "", 2e-3)
    listed["fused stages"] = same(MLP + " --stages 2 --fused --arrays 2 --lr 0.1 0.2 0.3 0.4", "", 2e-3)
    listed["masks of the device"] = device_masks(LM)
    listed["masks of the device, fused"] = same(f"{LM} --dropout-masks device --fused --lr 0.01 0.02 --seed 1 2 --data-seed 1", "--kernels loop", 1e-5,
                                                base="--device DEVICE")
    listed["checkpoints"] = checkpoints
    listed["evaluation"] = evaluation
    listed["processes auto"] = processes("auto")
    listed["processes gloo"] = processes("gloo")
    listed["replicas in processes"] = processes("auto", "--replicas 2")
    listed["three replicas in processes"] = processes("auto", "--replicas 3", "--model mlp --width 1024 --depth 4 --microbatch 512 --microbatches 3 --data synthetic:1536", 3)
    listed["a sum of three in processes"] = processes("auto", "--replicas 3", MLP.replace("es 8", "es 3"), 3, tolerance=0)
    listed["zero-1 in processes"] = processes("auto", "--replicas 2 --rule adam --zero-1 --checkpoint-at-end")
    listed["ties in processes"] = processes("auto", model=TIED)
    listed["ties over three stages"] = processes("auto", "--stages 3", TIED, 3)
    listed["batch norm in processes"] = processes("auto", "--replicas 2 --sync-batch-norm", RESNET, tolerance=2e-3)
    listed["statistics in processes"] = processes("auto", "--replicas 2", RESNET, tolerance=2e-3)
    listed["pipedream in processes"] = processes("auto", "--stages 2 --replicas 2 --schedule pipedream", ranks=4, steps=60)
    if DEVICE == "cuda" and not PREFIX:  # NCCL takes the two for ranks of two hosts, which talk by sockets
        listed["NCCL on one GPU"] = nccl_on_one_gpu
    listed["tables in processes"] = processes("auto", "--replicas 2 --spread-tables", f"--model dlrm {MODELS['dlrm']}")
    listed["evaluation in processes"] = processes("auto", more="--evaluate-every 1")
    if PREFIX:
        for schedule in ("gpipe", "1f1b", "zb-h1", "dualpipev"):
            listed["hazards " + schedule] = processes("auto", f"--stages 2 --schedule {schedule}", environment=HAZARDS)
        listed["hazards launch"] = lambda millrace, folder: launched(millrace, folder, HAZARDS)
        listed["hazards pipedream"] = processes("auto", "--stages 2 --schedule pipedream", steps=60, environment=HAZARDS)
        listed["hazards lengths"] = processes("auto", model="--model gnmt " + MODELS["gnmt"] + " --microbatches 4", environment=HAZARDS)
        listed["hazards evaluation"] = processes("auto", "--stages 2 --schedule zb-v --data synthetic:100", more="--evaluate-every 2", environment=HAZARDS)
        listed["hazards replicas"] = processes("auto", "--stages 2 --replicas 2", ranks=4, environment=HAZARDS)
        listed["slow NCCL"] = processes("auto", "--stages 2 --replicas 2", ranks=4, environment={"STANDIN_NCCL_SLOW": "1"})
    listed["spans in time"] = spans_in_time
    listed["launch"] = launched
    listed["four GPUs"] = four_gpus
    listed["exported"] = exported
    listed["profile, plan, train"] = planned
    listed["diverged"] = diverged
    if DEVICE == "cuda":
        listed["out of memory"] = out_of_memory
    return {name: listed[name] for name in QUICK if name in listed} | listed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("millrace")
    parser.add_argument("--out", help="keep the runs here")
    parser.add_argument("--standin", metavar="RUN", help="build/cuda/standin/run: no GPU is needed")
    parser.add_argument("--only", default="", metavar="WORD,...", help="checks whose name has one of these words in it")
    parser.add_argument("--quick", action="store_true", help="the first checks alone")
    parser.add_argument("--at-once", type=int, default=max(1, (os.cpu_count() or 1) // 4))
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    options = parser.parse_args()
    global DEVICE, PREFIX
    DEVICE = options.device
    PREFIX = [os.path.abspath(options.standin)] if options.standin else []
    wanted = {name: check for name, check in checks().items() if any(word in name for word in options.only.split(","))}
    if options.quick:
        wanted = {name: check for name, check in wanted.items() if name in QUICK}
    if not wanted:
        sys.exit(f"check: no check has '{options.only}' in its name (--list)")
    if options.list:
        print("\n".join(wanted))
        return 0
    millrace = os.path.abspath(options.millrace)
    if DEVICE == "cuda" and not PREFIX and (shutil.which("nvidia-smi") is None
                             or subprocess.run(["nvidia-smi", "-L"], capture_output=True).returncode != 0):
        print("no GPU: skipped")
        return 77
    if numpy is None:
        sys.exit("check: this Python has no NumPy; take the one whose path tests/reference/install prints")
    out = options.out or tempfile.mkdtemp(prefix="millrace-gpu-")
    if os.path.exists(out) and not os.path.isdir(out):
        sys.exit(f"check: --out {out} is no folder")
    used = [folder for folder in (os.path.join(out, str(number)) for number in range(len(wanted))) if os.path.exists(folder)]
    if used:
        sys.exit(f"check: {used[0]} is of an earlier call: give another --out, or delete it")

    def one(item):
        number, (name, check) = item
        folder = os.path.join(out, str(number))
        start = time.monotonic()
        try:
            os.makedirs(folder)
            return name, True, check(millrace, folder), time.monotonic() - start
        except Exception as error:  # one that breaks must not end the others
            return name, False, f"{type(error).__name__}: {error}", time.monotonic() - start

    failed = 0
    with concurrent.futures.ThreadPoolExecutor(options.at_once) as pool:
        for done in concurrent.futures.as_completed([pool.submit(one, item) for item in enumerate(wanted.items())]):
            name, good, told, seconds = done.result()
            failed += not good
            print(f"{'ok  ' if good else 'FAIL'} {name:28} {seconds:6.1f} s  {told}", flush=True)
    print(f"{len(wanted) - failed} of {len(wanted)} checks passed")
    if not options.out:
        shutil.rmtree(out, ignore_errors=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
