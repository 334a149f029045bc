"""DLRM's training step beside the same step of a plain PyTorch twin (tests/reference/dlrm.py), one process each.

One thread, the same tables and widths, plain SGD, one microbatch a step, the same generated rows (data generate --workload clicks).
The twin's tables have sparse gradients, as in Meta's kit; its batches lie in memory, ours come from the loader, which reads the file
in a thread of its own. Runs alternate A B A B. The figure of a run is the median step after the first ones; the table has
medians and quartiles over the runs, and their ratio. "Dense updates" are
millrace with --weight-decay 1e-30, for which every row of a table is updated.

With --ranks N it compares two ways of N ranks instead, without PyTorch: all tables on each rank, and tables spread over
the ranks (--spread-tables). A batch is then divided among the ranks.

    scripts/benchmark dlrm [--runs N] [--sizes CAP:BATCH,...] [--steps N] [--ranks N]
"""
import argparse
import json
import os
import statistics
import sys
import tempfile

from side_by_side import checked, figure, spread, steps_of_ranks, write_job

SKIPPED_STEPS = 3
ROWS = [10000000, 38985, 17278, 7418, 20242, 3, 7120, 1543, 63, 9999978, 2642264, 397262, 10, 2208, 11931, 155, 4, 976, 14,
        10000000, 9832963, 10000000, 573162, 12969, 108, 36]
TWIN = """
import json, sys, time, torch, numpy
sys.path.insert(0, sys.argv[1])
from dlrm import Dlrm
cap, microbatch, steps = map(int, sys.argv[4:7])
torch.set_num_threads(1)
rows = [min(n, cap) for n in json.loads(sys.argv[7])]
model = Dlrm(13, rows, [512, 256, 128], [1024, 1024, 512, 256, 1])
for table in model.emb_l:
    table.sparse = True
rule = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.from_numpy(numpy.fromfile(sys.argv[3], "<i4").reshape(-1, 40).copy())
seconds = []
for step in range(steps):
    at = step * microbatch % (len(data) - microbatch + 1)
    part = data[at:at + microbatch]
    batch = {"dense": part[:, 1:14].float().log1p(), "label": part[:, 0].long()}
    batch |= {f"category{k}": part[:, 14 + k].long().contiguous() for k in range(26)}
    begin = time.perf_counter()
    loss = model.loss_of(batch)
    rule.zero_grad()
    loss.backward()
    rule.step()
    loss.item()
    seconds.append(time.perf_counter() - begin)
json.dump(seconds, open(sys.argv[2], "w"))
"""


def twin(opts, cap, batch, folder):
    out, here = os.path.join(folder, "twin.json"), os.path.dirname(os.path.abspath(__file__))
    checked([opts.torch_python, "-c", TWIN, os.path.join(here, "../tests/reference"), out,
             os.path.join(folder, "clicks/terabyte_processed_train.bin"), cap, batch, opts.steps, json.dumps(ROWS)], folder, "torch")
    return figure([json.load(open(out))], SKIPPED_STEPS)


def ours(opts, cap, batch, folder, decay=0):
    out = os.path.join(folder, f"millrace-{decay}")
    job = write_job(folder, {"model": "dlrm", "table-rows-cap": cap, "data": "criteo:" + os.path.join(folder, "clicks"),
                             "microbatch": batch, "microbatches": 1, "stages": 1, "steps": opts.steps, "rule": "sgd", "lr": 0.1,
                             "weight-decay": decay, "output-dir": out})
    checked([opts.millrace, "launch", job], folder, "launch")
    return figure(steps_of_ranks(out, 1, opts.steps), SKIPPED_STEPS)


def dense(opts, cap, batch, folder):
    return ours(opts, cap, batch, folder, decay=1e-30)


def on_ranks(spreads):
    """Returns a function that measures --ranks ranks, with the tables on each of them or spread over them."""
    def measure(opts, cap, batch, folder):
        out = os.path.join(folder, f"millrace-{spreads}")
        job = write_job(folder, {"model": "dlrm", "table-rows-cap": cap, "data": "criteo:" + os.path.join(folder, "clicks"),
                                 "microbatch": batch // opts.ranks, "microbatches": opts.ranks, "replicas": opts.ranks,
                                 "spread-tables": spreads, "steps": opts.steps, "rule": "sgd", "lr": 0.1, "output-dir": out})
        checked([opts.millrace, "launch", job], folder, "launch")
        return figure(steps_of_ranks(out, opts.ranks, opts.steps), SKIPPED_STEPS)
    return measure


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millrace", required=True)
    parser.add_argument("--torch-python", required=True, help="a Python with torch, numpy and safetensors")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=13)
    parser.add_argument("--sizes", default="1000:512,100000:512,1000000:512", help="CAP:BATCH,...")
    parser.add_argument("--ranks", type=int, default=1, help="above 1: replicated tables beside spread ones")
    opts = parser.parse_args()
    runs = [on_ranks("true"), on_ranks("false")] if opts.ranks > 1 else [ours, dense, twin]
    names = ["spread", "replicated"] if opts.ranks > 1 else ["millrace", "dense updates", "PyTorch"]
    print("| most rows | batch | " + " | ".join(f"{name} ms" for name in names) + f" | {names[0]} / {names[-1]} |")
    print("|---" * (3 + len(names)) + "|")
    for size in opts.sizes.split(","):
        cap, batch = map(int, size.split(":"))
        found = {run: [] for run in runs}
        with tempfile.TemporaryDirectory() as folder:
            checked([opts.millrace, "data", "generate", "-w", "clicks", "-o", os.path.join(folder, "clicks"), "-s",
                     160 * batch * 4, "--table-rows-cap", cap], folder, "generate")
            for _ in range(opts.runs):
                for run in found:
                    found[run].append(run(opts, cap, batch, folder))
        ratio = statistics.median(a / b for a, b in zip(found[runs[0]], found[runs[-1]]))
        print(f"| {cap:,} | {batch} | " + " | ".join(spread(found[run]) for run in runs) + f" | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
