"""What `millrace trace capture` costs the command that it traces.

Three commands run by themselves and under each method, in turn: reads of 128 KiB from files in the page cache by
cat, 20,000 reads of 4 KiB by Python, and torchvision's DataLoader with two workers over a folder of photographs
(with --images and a Python that has torchvision). Prints the median seconds, the ratio to the command by itself,
and the added microseconds for each traced call. It says nothing about disks: all files are in the page cache.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

READS = """
import os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
for i in range(20000):
    os.pread(fd, 4096, (i * 4096) % (os.fstat(fd).st_size - 4096))
"""
LOADER = """
import sys
import torch, torchvision
torch.set_num_threads(1)
transform = torchvision.transforms.Compose([torchvision.transforms.RandomResizedCrop(224), torchvision.transforms.ToTensor()])
data = torchvision.datasets.ImageFolder(sys.argv[1], transform)
for epoch in range(2):
    for batch, labels in torch.utils.data.DataLoader(data, batch_size=32, shuffle=True, num_workers=2):
        pass
"""


def run(words):
    start = time.perf_counter()
    subprocess.run([str(w) for w in words], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - start


def traced(millrace, method, words, folder):
    """Seconds of the command under a method, and how many rows the trace has."""
    out = os.path.join(folder, "trace")
    shutil.rmtree(out, ignore_errors=True)
    subprocess.run([millrace, "trace", "capture", "--method", method, "--out", out, "--"] + [str(w) for w in words],
                   check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    report = json.load(open(os.path.join(out, "capture.json")))
    return report["seconds"], sum(report["rows"].values()) + sum(report["left_out"].values()), report["lost"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millrace", default="build/release/bin/millrace")
    parser.add_argument("--python", default=sys.executable, help="a Python that has torchvision, for --images")
    parser.add_argument("--images", help="folder with a folder for each class")
    parser.add_argument("--methods", default="ptrace,bpftrace")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data = os.path.join(folder, "data.bin")
        with open(data, "wb") as file:
            file.write(os.urandom(1 << 28))
        commands = {"cat": ["sh", "-c", f"for i in 1 2 3 4; do cat {data} >/dev/null; done"],
                    "reads of 4 KiB": [sys.executable, "-c", READS, data]}
        if args.images:
            commands["torchvision's loader"] = [args.python, "-c", LOADER, args.images]
        print(f"{'command':22} {'method':10} {'seconds':>8} {'ratio':>6} {'calls':>8} {'us/call':>8} {'lost':>5}")
        for name, words in commands.items():
            run(words)
            alone, under = [], {method: [] for method in args.methods.split(",")}
            for _ in range(args.rounds):
                alone.append(run(words))
                for method in under:
                    under[method].append(traced(args.millrace, method, words, folder))
            base = statistics.median(alone)
            print(f"{name:22} {'none':10} {base:8.3f} {1:6.2f}")
            for method, results in under.items():
                seconds = statistics.median(r[0] for r in results)
                calls = statistics.median(r[1] for r in results)
                lost = sum(r[2] for r in results)
                print(f"{'':22} {method:10} {seconds:8.3f} {seconds / base:6.2f} {calls:8.0f} "
                      f"{(seconds - base) / max(calls, 1) * 1e6:8.1f} {lost:5d}")


if __name__ == "__main__":
    main()
