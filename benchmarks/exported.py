"""Models exported by PyTorch, trained here, beside PyTorch itself: eager steps of one process, and a pipeline of two ranks.

Both sides: one thread a rank, the same samples, microbatches, loss and update rule; two ranks talk over loopback or shared
memory as each does by itself. Runs alternate A B A B. The figure of a run is the median step after the first ones, of the slower
rank; the table has medians and quartiles over the runs, and their ratio. torch's pipeline has the schedule and the cuts that were
the fastest in a run of each, ours what `millrace plan --schedule auto` says.

    scripts/benchmark exported [--torch-python PYTHON] [--models resnet50,bert,gpt2] [--runs N] [--steps N] [--out FILE.json]
PYTHON imports torch 2.11, torchvision and transformers (default: what tests/reference/install made).
"""
import argparse
import glob
import json
import os
import statistics
import sys
import tempfile

from side_by_side import checked, figure, spread, steps_of_ranks, write_job

PEER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "exported_peer.py")
# What torch's pipeline is tried with: schedule, and where its next stages begin.
PIPELINES = {
    "resnet50": [("1f1b", "model.layer3.0"), ("1f1b", "model.layer2.2"), ("1f1b", "model.layer3.3"),
                 ("interleaved-zb", "model.layer2.0,model.layer3.0,model.layer3.4")],
    "bert": [("1f1b", "model.bert.encoder.layer.2"),
             ("interleaved-zb", "model.bert.encoder.layer.1,model.bert.encoder.layer.2,model.bert.encoder.layer.3")],
    "gpt2": [("1f1b", "model.transformer.h.2"), ("1f1b", "model.transformer.h.3"),
             ("interleaved-zb", "model.transformer.h.1,model.transformer.h.2,model.transformer.h.3")],
}
MICROBATCH, MICROBATCHES = 8, 8  # exported_peer.py's
SKIPPED_STEPS = 3


def losses_agree(a, b, name, what):
    """Of the first step, rounding apart: else the comparison means nothing. An epoch's order is ours, so that a microbatch has other
    samples: batch normalisation sees it."""
    tolerance = 5e-2 if name == "resnet50" else 2e-3
    for step, (x, y) in enumerate(zip(a, b)):
        if abs(x - y) > tolerance * max(abs(x), 1e-3):
            sys.exit(f"exported: {what}: the losses of step {step} differ: torch {x}, millrace {y}")


def run_torch(opts, name, ranks, form, folder):
    out = os.path.join(folder, "torch")
    for path in glob.glob(out + "*.json"):
        os.remove(path)
    if ranks == 1:
        checked([opts.torch_python, PEER, "one", name, out, "--steps", opts.steps], folder, "torch")
    else:
        checked([opts.torch_python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks, PEER, "pipeline", name,
                 out, "--steps", opts.steps, "--schedule", form[0], "--split", form[1]], folder, "torch")
    found = [json.load(open(path)) for path in sorted(glob.glob(out + "*.json"))]
    return figure([run["step_s"] for run in found], SKIPPED_STEPS), found[-1]["loss"]


def plan(opts, name, ranks, folder):
    path = os.path.join(folder, f"plan{ranks}.json")
    if not os.path.exists(path):
        profile = os.path.join(folder, f"profile{ranks}.json")
        checked([opts.millrace, "profile", "--model", os.path.join(folder, name + ".pt2"), "--microbatch", MICROBATCH, "--ranks", ranks,
                 "--out", profile], folder, "profile")
        checked([opts.millrace, "plan", "--profile", profile, "--ranks", ranks, "--stages", ranks, "--straight", "--microbatches",
                 MICROBATCHES, "--schedule", opts.schedule, "--out", path], folder, "plan")
    return path


def run_millrace(opts, name, ranks, folder):
    out = os.path.join(folder, "run")
    archive = os.path.join(folder, name)
    keys = {"model": archive + ".pt2", "data": f"arrays:{archive}.npz", "microbatch": MICROBATCH, "microbatches": MICROBATCHES,
            "steps": opts.steps, "lr": 0.001, "output-dir": out}
    if ranks > 1:
        keys["plan"] = plan(opts, name, ranks, folder)
    checked([opts.millrace, "launch", write_job(folder, keys)], folder, "launch")
    logs = steps_of_ranks(out, ranks, opts.steps)
    return figure(logs, SKIPPED_STEPS), json.load(open(os.path.join(out, "summary.json")))["losses"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millrace", required=True, help="the program")
    parser.add_argument("--torch-python", required=True, help="a Python with torch 2.11, torchvision and transformers")
    parser.add_argument("--models", default="resnet50,bert,gpt2")
    parser.add_argument("--ranks", default="1,2")
    parser.add_argument("--schedule", default="auto", help="of our plan")
    parser.add_argument("--runs", type=int, default=5, help="of each side")
    parser.add_argument("--steps", type=int, default=20, help="of a run, at least 6")
    parser.add_argument("--out", help="all figures as JSON")
    opts = parser.parse_args()
    results = []
    print("| model | ranks | torch ms (quartiles) | millrace ms (quartiles) | torch / millrace |")
    print("|---|---|---|---|---|", flush=True)
    for name in opts.models.split(","):
        with tempfile.TemporaryDirectory() as folder:
            checked([opts.torch_python, PEER, "export", name, folder], folder, "export")
            for ranks in (int(word) for word in opts.ranks.split(",")):
                forms = PIPELINES[name] if ranks > 1 else [("eager", "")]
                form = min(forms, key=lambda f: run_torch(opts, name, ranks, f, folder)[0]) if len(forms) > 1 else forms[0]
                torch_s, millrace_s = [], []
                for _ in range(opts.runs):
                    seconds, losses = run_torch(opts, name, ranks, form, folder)
                    torch_s.append(seconds)
                    seconds, ours = run_millrace(opts, name, ranks, folder)
                    millrace_s.append(seconds)
                    losses_agree(losses[:1], ours[:1], name, f"{name} on {ranks}")
                ratio = statistics.median(torch_s) / statistics.median(millrace_s)
                print(f"| {name} | {ranks} ({form[0]}) | {spread(torch_s, 1)} | {spread(millrace_s, 1)} | {ratio:.2f} |", flush=True)
                results.append({"model": name, "ranks": ranks, "torch": form, "torch_s": torch_s, "millrace_s": millrace_s,
                                "ratio": ratio})
                if opts.out:
                    with open(opts.out, "w") as file:
                        json.dump({"load_average": os.getloadavg(), "steps": opts.steps, "results": results}, file, indent=1)


if __name__ == "__main__":
    main()
