#!/usr/bin/env python3
"""Failures of a GPU, of NCCL, of a rank and of the machine's set-up, on the stand-in: each ends the run soon, with the exit code of
its kind and a message that says what failed and what to do.

    failures.py MILLRACE RUN [--only WORD] [--at-once N] [--list]    RUN: build/cuda/standin/run
"""

import argparse
import concurrent.futures
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

TIMEOUT_S = 120
MLP = "train --model mlp --width 32 --depth 6 --microbatches 4 --steps 6 --threads 1 --no-evaluation"
CUDA = MLP + " --device cuda"
JOB = ("model: mlp\nwidth: 32\ndepth: 6\nmicrobatches: 4\nstages: {stages}\nsteps: {steps}\nthreads: 1\nno-evaluation: true\ndevice: cuda\n"
       "timeout: {deadline}\noutput-dir: out\n")


class Failed(Exception):
    pass


class Bench:
    def __init__(self, millrace, run, folder):
        self.millrace, self.run, self.folder = os.path.abspath(millrace), os.path.abspath(run), folder

    def start(self, arguments, environment):
        return subprocess.Popen([self.run, self.millrace, *arguments.split()], cwd=self.folder, env=dict(os.environ, **environment),
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def ends(self, arguments, environment, code, *words):
        """The command ends with `code` and says each of `words`, regular expressions. What it said."""
        return self.ended(self.start(arguments, environment), code, *words)

    def ended(self, process, code, *words):
        try:
            told = process.communicate(timeout=TIMEOUT_S)[0]
        except subprocess.TimeoutExpired:
            process.kill()
            raise Failed(f"hangs; it said {process.communicate()[0][-1500:]}")
        if process.returncode != code:
            raise Failed(f"exit code {process.returncode}, expected {code}: {told[-1500:]}")
        for word in words:
            if not re.search(word, told):
                raise Failed(f"does not say '{word}': {told[-1500:]}")
        return told

    def job(self, stages=2, steps=6, deadline=20):
        with open(os.path.join(self.folder, "job.yaml"), "w") as file:
            file.write(JOB.format(stages=stages, steps=steps, deadline=deadline))
        return "launch job.yaml"

    def rank(self, number):
        """The process of a rank of this job, once it has done a step."""
        log = os.path.join(self.folder, "out", f"steps.rank{number}.jsonl")
        end = time.monotonic() + TIMEOUT_S
        while time.monotonic() < end:
            if os.path.exists(log) and len(open(log).read().splitlines()) > 2:
                for name in os.listdir("/proc"):
                    try:
                        here = name.isdigit() and os.readlink(f"/proc/{name}/cwd") == os.path.realpath(self.folder)
                        variables = open(f"/proc/{name}/environ", "rb").read().split(b"\0") if here else []
                        if f"RANK={number}".encode() in variables and b"train" in open(f"/proc/{name}/cmdline", "rb").read():
                            return int(name)
                    except OSError:
                        continue
            time.sleep(0.01)
        raise Failed(f"rank {number} never came to its third step")


def fails(wanted, arguments, code, *words, gpus="2"):
    """A check: a call of the GPU's that fails."""
    return lambda bench: bench.ends(arguments, {"STANDIN_FAIL": wanted, "STANDIN_GPUS": gpus}, code, *words)


def sets_up(environment, code, *words, arguments=CUDA):
    return lambda bench: bench.ends(arguments, environment, code, *words)


def in_a_launch(wanted, code, *words):
    return lambda bench: bench.ends(bench.job(), {"STANDIN_FAIL": wanted}, code, *words)


def killed(bench):
    process = bench.start(bench.job(steps=100000), {})
    os.kill(bench.rank(1), signal.SIGKILL)
    bench.ended(process, 137, "rank 1")


def hung(bench):
    process = bench.start(bench.job(steps=100000, deadline=2), {})
    victim = bench.rank(1)
    os.kill(victim, signal.SIGSTOP)
    try:
        bench.ended(process, 5, r"rank 0: .* (from|to) rank 1", "no message")
    finally:
        try:
            os.kill(victim, signal.SIGKILL)
        except ProcessLookupError:
            pass


def ranks_fail(wanted, *words):
    """A check: two ranks that nobody launched. The first says each of `words`."""
    def check(bench):
        ranks = [bench.start(MLP.replace("--steps 6", "--steps 400") + " --stages 2 --device cuda --backend nccl --timeout 20",
                             {"STANDIN_FAIL": wanted, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "MILLRACE_STORE": bench.folder})
                 for rank in range(2)]
        try:
            bench.ended(ranks[0], 5, *words)
        finally:
            for rank in ranks:
                rank.kill()
                rank.communicate()
    return check


def name_spaces(bench):
    """Two ranks with process numbers of their own, as in two containers, on one GPU: NCCL would refuse them."""
    ranks = [subprocess.Popen(["unshare", "-pf", bench.run, bench.millrace, *CUDA.split(), "--stages", "2"], cwd=bench.folder,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              env=dict(os.environ, RANK=str(rank), LOCAL_RANK="0", WORLD_SIZE="2", MILLRACE_STORE=bench.folder))
             for rank in range(2)]
    for rank, words in zip(ranks, (["ranks share a GPU"], [])):
        bench.ended(rank, 0, *words)


def held_up(bench):
    """A call of CUDA that waits for all work while a receive is posted, as the first use of a kernel does."""
    bench.ends(bench.job(deadline=3), {"STANDIN_FAIL": "launch:300:-1@0"}, 5, "call 300 of launch waits",
               r"rank 0: .*the rank has done nothing for \d+ ms while it was to have .*from rank 1", "CUDA_MODULE_LOADING=EAGER")


def communicators(bench):
    """A rank in the middle of three has a communicator for each of its four directions: a fifth is never made."""
    for number, code in ((4, 5), (5, 0)):
        bench.ends(bench.job(stages=3), {"STANDIN_FAIL": f"ncclCommInitRankConfig:{number}", "STANDIN_GPUS": "3"}, code)
        shutil.rmtree(os.path.join(bench.folder, "out"), ignore_errors=True)


def version_of_driver(bench):
    marker = os.path.join(bench.folder, "nvidiactl")
    open(marker, "w").close()
    bench.ends(CUDA, {"STANDIN_REAL_DRIVER": marker}, 2, "a real driver is here .*nvidiactl", "LD_PRELOAD")


CHECKS = {
    "an allocation that succeeds again": fails("cudaMalloc:1", CUDA, 0, "call 1 of cudaMalloc fails"),
    "an allocation": fails("cudaMalloc:1,cudaMalloc:2", CUDA, 1, "out of memory", "--microbatch"),
    "an allocation of page-locked memory": fails("cudaHostAlloc:1", CUDA, 1, "out of memory"),
    "a kernel": fails("launch:60", CUDA, 1, "step 0|layer", "unspecified launch failure"),
    "a copy": fails("cudaMemcpyAsync:9", CUDA, 1, "illegal memory access"),
    "a kernel of a later step": fails("launch:400", CUDA, 1, "step [1-9]", "unspecified launch failure"),
    "a profile's wait for its GPU": fails("cudaDeviceSynchronize:20", "profile --model mlp --device cuda --threads 1", 1, "unspecified launch failure"),
    "a GPU that falls off the bus": fails("launch:60:46@1", CUDA + " --stages 2", 1, "busy or unavailable"),
    "a GPU without its events": fails("cudaEventCreateWithFlags:5", CUDA, 1, "out of memory|CUDA error"),
    "NCCL does not start": in_a_launch("ncclCommInitRankConfig:1", 5, "joining 0-1: NCCL"),
    "NCCL does not send": in_a_launch("ncclSend:6", 5, "NCCL"),
    "a kernel of a rank of a launch": in_a_launch("launch:60@1", 1, "rank 1", "unspecified launch failure"),
    "a rank that fails tells the others": ranks_fail("launch:900@1", "aborted: rank 1: .*unspecified launch failure"),
    "a rank that is held up": held_up,
    "a rank is killed": killed,
    "a rank hangs": hung,
    "communicators of a rank": communicators,
    "a GPU for two name spaces": name_spaces,
    "no GPU": sets_up({"STANDIN_GPUS": "0"}, 2, "no GPU is visible"),
    "another LibTorch": sets_up({"STANDIN_TORCH_VERSION": "1.13.0"}, 1, "built with LibTorch 1.13.0, and this is 2"),
    "a real driver beside it": version_of_driver,
    "another NCCL": lambda bench: bench.ends(bench.job(), {"STANDIN_NCCL_VERSION": "31901"}, 5, "NCCL 31901 does not fit"),
    "a wrong setting": sets_up({"STANDIN_FAIL": "cudaMaloc:1"}, 2, "cudaMalloc"),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("millrace")
    parser.add_argument("run")
    parser.add_argument("--only", default="")
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    wanted = {name: check for name, check in CHECKS.items() if options.only in name}
    if options.list:
        print("\n".join(wanted))
        return 0
    failed = 0

    def one(name):
        folder = tempfile.mkdtemp(prefix="millrace-failures-")
        start = time.monotonic()
        try:
            wanted[name](Bench(options.millrace, options.run, folder))
            told = ""
        except Failed as error:
            told = str(error)
        shutil.rmtree(folder, ignore_errors=True)
        return name, told, time.monotonic() - start

    with concurrent.futures.ThreadPoolExecutor(options.at_once) as pool:
        for done in concurrent.futures.as_completed([pool.submit(one, name) for name in wanted]):
            name, told, seconds = done.result()
            failed += told != ""
            print(f"{'FAIL' if told else 'ok  '} {name:44} {seconds:5.1f} s  {told}", flush=True)
    print(f"{len(wanted) - failed} of {len(wanted)} failures are told")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
