"""millrace against PyTorch of the same wheel on language models: steps of one process and of a 2-rank 1F1B pipeline.

Both sides: one thread a process, Gloo on loopback or whatever millrace takes for one host, the same sizes, sentences of one
length, plain SGD through the same kernel. PyTorch's models are those of torch_language.py: nn.LSTM, nn.TransformerEncoder,
transformers' BERT (which computes its masked tokens only, as ours does). The pipeline's cut is the same on both sides. Runs
alternate A B A B; the figure of a run is the median step after the first ones, of the slower rank; the table has medians and
quartiles over the runs.

    scripts/benchmark language [--runs N] [--cases NAME,...] [--modes one,1f1b] [--out FILE.json]
"""

import argparse
import glob
import json
import os
import random
import statistics
import tempfile

from side_by_side import checked, figure, spread, steps_of_ranks, write_job

CASES = {
    "gnmt small": {"model": "gnmt", "layers": 2, "hidden": 256, "vocabulary": 8000, "length": 24, "microbatch": 32},
    "gnmt medium": {"model": "gnmt", "layers": 4, "hidden": 512, "vocabulary": 8000, "length": 24, "microbatch": 32},
    "transformer_lm": {"model": "transformer_lm", "layers": 4, "hidden": 256, "vocabulary": 8000, "length": 64,
                       "microbatch": 8},
    "bert small": {"model": "bert_base", "layers": 4, "hidden": 256, "vocabulary": 8000, "length": 128, "microbatch": 8},
    "bert base": {"model": "bert_base", "layers": 12, "hidden": 768, "vocabulary": 30522, "length": 128, "microbatch": 4},
}
MICROBATCHES = 4
SKIPPED_STEPS = 2
STEPS = 8


def run_torch(opts, case, mode, folder):
    peer = os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch_language.py")
    out = os.path.join(folder, "torch.rank")
    words = [opts.torch_python]
    if mode == "1f1b":
        words += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words += [peer, "--microbatches", MICROBATCHES, "--steps", STEPS, "--out", out]
    for key, value in case.items():
        words += ["--" + key, value]
    checked(words, folder, "torch")
    return figure([json.load(open(path))["step_s"] for path in glob.glob(out + "*.json")], SKIPPED_STEPS)


def layer_names(opts, case, folder):
    """Of the model, in its order: those that a plan of one stage has."""
    profile = os.path.join(folder, "profile.json")
    words = [opts.millrace, "profile", "--repetitions", "1", "--blocks", "1", "--warmup", "0", "--out", profile]
    checked([str(w) for w in words + model_flags(case)], folder, "profile")
    return [node["name"] for node in json.load(open(profile))["layers"]]


def model_flags(case):
    flags = []
    for key, value in case.items():
        # GNMT's length is a limit that counts a target's begin and end.
        flags += ["--" + key, value + 1 if (case["model"], key) == ("gnmt", "length") else value]
    if case["model"] == "bert_base":
        flags += ["--heads", case["hidden"] // 64, "--feed-forward", 4 * case["hidden"]]
    if case["model"] == "transformer_lm":
        flags += ["--heads", 2, "--feed-forward", case["hidden"]]
    return flags + ["--dropout", 0.1]


def is_second_half(case, name):
    """Where torch_language.py cuts."""
    if case["model"] == "gnmt":
        return name.startswith("decoder")
    return int(name.split(".")[2]) >= case["layers"] // 2 if ".layers." in name else name.startswith("decoder")


def write_pairs(opts, case, folder):
    """Sentences of exactly the length that PyTorch is given: begin or end is added on each side."""
    draw = random.Random(1)
    words = [f"w{i}" for i in range(case["vocabulary"] - 16)]
    vocabulary = os.path.join(folder, "vocabulary")
    with open(vocabulary, "w") as file:
        file.writelines(word + "\n" for word in words)
    # The source has begin and end, the target one of them.
    for side, own in (("src", case["length"] - 2), ("tgt", case["length"] - 1)):
        text = os.path.join(folder, f"train.{side}")
        with open(text, "w") as file:
            for _ in range(8 * MICROBATCHES * case["microbatch"]):
                file.write(" ".join(draw.choice(words) for _ in range(own)) + "\n")
        command = [opts.millrace, "data", "text", "encode", text, "-o", text + ".tokens", "-v", vocabulary]
        checked(command, folder, "encode")
    return f"{folder}:src-tgt"


def run_millrace(opts, case, mode, folder, layers, data):
    out = os.path.join(folder, "millrace")
    words = [opts.millrace]
    flags = model_flags(case) + ["--steps", STEPS, "--lr", 0.01, "--momentum", 0,
                                 "--data", data, "--no-evaluation", "--trace-steps", 0, "--output-dir", out,
                                 "--print-every", 1000, "--threads", 1]
    if mode == "1f1b":
        second = [is_second_half(case, name) for name in layers]
        cut = second.index(True)
        plan = {"format": "millrace-plan-1", "model": case["model"], "schedule": "1f1b", "microbatches": MICROBATCHES,
                "stages": [{"layers": layers[:cut], "ranks": [0]}, {"layers": layers[cut:], "ranks": [1]}]}
        path = os.path.join(folder, "plan.json")
        with open(path, "w") as file:
            json.dump(plan, file)
        given = iter(flags + ["--plan", path])
        keys = {flag[2:]: "true" if flag == "--no-evaluation" else next(given) for flag in given}
        job = write_job(folder, keys)
        words += ["launch", job]
    else:
        words += ["train", "--microbatches", MICROBATCHES] + flags
    checked(words, folder, "millrace")
    return figure(steps_of_ranks(out, 2 if mode == "1f1b" else 1, STEPS), SKIPPED_STEPS)


def compare(opts, name, case, mode, layers, data):
    torch_s, millrace_s = [], []
    for _ in range(opts.runs):
        with tempfile.TemporaryDirectory() as folder:
            torch_s.append(run_torch(opts, case, mode, folder))
            millrace_s.append(run_millrace(opts, case, mode, folder, layers, data))
    ratio = statistics.median(torch_s) / statistics.median(millrace_s)
    print(f"| {name} | {mode} | {spread(torch_s)} | {spread(millrace_s)} | {ratio:.2f} |", flush=True)
    return {"case": name, "mode": mode, "torch_s": torch_s, "millrace_s": millrace_s, "ratio": ratio}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millrace", required=True, help="the program")
    parser.add_argument("--torch-python", required=True, help="a Python that imports the same torch, and transformers")
    parser.add_argument("--runs", type=int, default=5, help="of each side")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--modes", default="one,1f1b")
    parser.add_argument("--out", help="all figures as JSON")
    opts = parser.parse_args()
    results = []
    print("| model | what | torch ms (quartiles) | millrace ms (quartiles) | torch / millrace |")
    print("|---|---|---|---|---|", flush=True)
    for name in opts.cases.split(","):
        case = CASES[name]
        with tempfile.TemporaryDirectory() as shared:
            layers = layer_names(opts, case, shared)
            data = write_pairs(opts, case, shared) if case["model"] == "gnmt" else "synthetic:4096"
            for mode in opts.modes.split(","):
                if mode == "1f1b" and case["model"] == "bert_base":
                    continue  # torch.distributed.pipelining cannot run a matrix that two stages share
                results.append(compare(opts, name, case, mode, layers, data))
                if opts.out:
                    with open(opts.out, "w") as file:
                        json.dump({"load_average": os.getloadavg(), "results": results}, file, indent=1)


if __name__ == "__main__":
    main()
