"""PipeDream's Table 1 (SOSP'19) again: its profiles, its clusters, its planner and ours.

For each task and cluster of the table, and for two clusters of today, plans are made of PipeDream's own graph.txt: data
parallelism, the plan of PipeDream's planner with each stage inside its servers, our asynchronous plan (--schedule
pipedream) and our best plan that flushes. Asynchronous plans are judged by their steady state, twice: by `millrace
simulate`, which executes the actions of a run, and by async_pipeline.py, which shares no code with it. Speed-ups are over two
baselines: data parallelism with our all-reduce, and with the better of a flat and a hierarchical ring at the full rate.
A second table gives PipeDream's plans with one cost at a time left out. Nothing runs on a GPU.

Needs MILLRACE_DATA (its folder pipedream-profiles). AWD-LM and S2VT, and so cluster C, are left out: PipeDream ships no
profile of them.
"""
import argparse
import json
import math
import os
import subprocess
import sys
import tempfile

import async_pipeline

# Servers of the paper, section 5.1: GPUs a server, bytes/s inside, bytes/s between. PCIe 3.0 x16 and NVLink are
# taken at 12 and 25 GB/s for each GPU. H: 8 H100 with NVLink 4 and a 400 Gb/s port for each, 3.2 Tb/s a server; "speed" is
# the ratio of their float32 rates outside tensor cores (67 and 15.7 TFLOP/s).
CLUSTERS = {
    "A": {"devices": 4, "inside": 12e9, "between": 1.25e9, "speed": 1},
    "B": {"devices": 8, "inside": 25e9, "between": 3.125e9, "speed": 1},
    "H": {"devices": 8, "inside": 450e9, "between": 400e9, "speed": 67 / 15.7},
}
# Task, profile, servers, cluster, published plan, published speed-up of an epoch over data parallelism.
ROWS = [
    ("VGG-16", "vgg16", 4, "A", "15-1", 5.28),
    ("VGG-16", "vgg16", 2, "B", "15-1", 2.98),
    ("ResNet-50", "resnet50", 4, "A", "16 (DP)", 1.0),
    ("ResNet-50", "resnet50", 2, "B", "16 (DP)", 1.0),
    ("AlexNet", "alexnet", 4, "A", "15-1", 4.92),
    ("AlexNet", "alexnet", 2, "B", "15-1", 2.04),
    ("GNMT-16", "gnmt_large", 1, "A", "straight", 1.46),
    ("GNMT-16", "gnmt_large", 4, "A", "straight", 2.34),
    ("GNMT-16", "gnmt_large", 2, "B", "straight", 3.14),
    ("GNMT-8", "gnmt", 1, "A", "straight", 1.5),
    ("GNMT-8", "gnmt", 3, "A", "straight", 2.95),
    ("GNMT-8", "gnmt", 2, "B", "16 (DP)", 1.0),
    ("VGG-16", "vgg16", 2, "H", None, None),
    ("ResNet-50", "resnet50", 2, "H", None, None),
    ("AlexNet", "alexnet", 2, "H", None, None),
    ("GNMT-16", "gnmt_large", 2, "H", None, None),
]


def run(words):
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"table1: {' '.join(str(w) for w in words)}\n{done.stdout}{done.stderr}")
    return done.stdout


class Case:
    def __init__(self, millrace, profile, servers, name, folder, microbatches):
        self.millrace, self.profile, self.folder = millrace, profile, folder
        cluster = CLUSTERS[name]
        self.servers, self.cluster = servers, cluster
        self.ranks = servers * cluster["devices"]
        self.microbatches = microbatches * self.ranks
        hosts = "".join(f"  - {{name: h{k}, devices: {cluster['devices']}, bandwidth: {cluster['inside']:g}, "
                        f"latency: 1e-5, kind: gpu}}\n" for k in range(servers))
        network = f"network: {{bandwidth: {cluster['between']:g}, latency: 5e-5}}\n" if servers > 1 else ""
        self.file = os.path.join(folder, "cluster.yaml")
        with open(self.file, "w") as file:
            file.write(f"memory: 256GiB\nkinds:\n  - {{name: gpu, speed: {cluster['speed']:g}}}\nhosts:\n{hosts}{network}")

    def planned(self, *flags):
        """Seconds for a minibatch of the profile by our plan, and its stages' ranks."""
        out = os.path.join(self.folder, "plan.json")
        run([self.millrace, "plan", "--profile", self.profile, "--cluster", self.file, "--rule", "sgd", "--out", out,
             "--microbatches", self.microbatches, *flags])
        plan = json.load(open(out))
        return plan["predicted_step_s"] / self.microbatches, [len(stage["ranks"]) for stage in plan["stages"]], plan

    def pipedream(self, like):
        """What PipeDream's model predicts of its plan, as a speed-up, and the plan."""
        levels = [self.cluster["devices"]] + ([self.servers] if self.servers > 1 else [])
        bandwidths = [self.cluster["inside"]] + ([self.cluster["between"]] if self.servers > 1 else [])
        text = run([self.millrace, "plan", "--pipedream", "--profile", self.profile, "--machines", ",".join(map(str, levels)),
                    "--bandwidth", ",".join(f"{b / self.cluster['speed']:g}" for b in bandwidths),
                    "--activation-compression", 1, "--format", "json"])
        answer = json.loads(text)
        order = [layer for stage in like["stages"] for layer in stage["layers"]]
        stages = [{"ranks": stage["workers"], "layers": []} for stage in answer["stages"]]
        stage_of = {node: k for k, stage in enumerate(answer["stages"]) for node in stage["nodes"]}
        at = 0
        for layer in order:
            at = stage_of.get(layer, at)  # its planner drops tuple accesses: they stay with what they read
            stages[at]["layers"].append(layer)
        plan = dict(like, schedule="pipedream", versions="stash", stages=stages, crossings=[])
        return answer["data_parallel_time_s"] / answer["pipeline_time_s"], plan

    def steady(self, plan):
        """Seconds of a minibatch by our simulator, without fill and drain: what more minibatches add."""
        # Replicas take turns: their numbers divide the microbatches of a step.
        together = math.lcm(*(len(stage["ranks"]) for stage in plan["stages"]))
        path = os.path.join(self.folder, "steady.json")
        ends = []
        for times in (2, 4):
            count = -(-self.microbatches * times // together) * together
            with open(path, "w") as file:
                json.dump({k: v for k, v in dict(plan, microbatches=count).items() if not k.startswith("predicted_")}, file)
            simulated = json.loads(run([self.millrace, "simulate", "--plan", path, "--profile", self.profile, "--cluster", self.file,
                                        "--format", "json"]))
            ends.append((count, simulated["makespan_s"]))
        (few, early), (many, late) = ends
        return (late - early) / (many - few)


def stages_text(ranks):
    if len(ranks) == 1:
        return f"{ranks[0]} (DP)"
    return "straight" if set(ranks) == {1} else "-".join(map(str, ranks))


def print_row(lines):
    row = "| " + " | ".join(lines[-1]) + " |"
    if len(lines) == 2:
        row = "| " + " | ".join(lines[0]) + " |\n|" + " --- |" * len(lines[0]) + "\n" + row
    print(row, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millrace", default="build/release/bin/millrace")
    parser.add_argument("--data", default=os.environ.get("MILLRACE_DATA"), help="folder with pipedream-profiles (MILLRACE_DATA)")
    parser.add_argument("--only", default="", help="rows whose task has this in its name")
    parser.add_argument("--microbatches", type=int, default=4, help="microbatches of a step for each rank")
    parser.add_argument("--csv", help="the first table as CSV too")
    args = parser.parse_args()
    if not args.data or not os.path.isdir(os.path.join(args.data, "pipedream-profiles")):
        sys.exit("table1: no pipedream-profiles. Hint: MILLRACE_DATA=DIR, the folder that holds it")
    lines = [["task", "cluster", "published plan", "published", "DP ms", "ring", "PipeDream's plan", "its own model", "simulated",
              "independent", "our pipedream plan", "simulated", "independent", "our flushing plan", "simulated"]]
    losses = [["task", "cluster", "PipeDream's plan", "all costs", *(f"no {x}" for x in async_pipeline.SWITCHES), "none of them"]]
    with tempfile.TemporaryDirectory() as folder:
        for task, profile, servers, name, plan, speedup in ROWS:
            if args.only not in task:
                continue
            path = os.path.join(args.data, "pipedream-profiles", profile, "graph.txt")
            case = Case(args.millrace, path, servers, name, folder, args.microbatches)
            base, _, like = case.planned("--schedule", "pipedream", "--stages", 1)
            _, ranks, ours = case.planned("--schedule", "pipedream")
            flushing, flush_ranks, flush_plan = case.planned()
            own, theirs = case.pipedream(like)
            graph = async_pipeline.Graph(path)
            described = CLUSTERS[name]
            cluster = async_pipeline.Cluster(servers, described["devices"], described["inside"], described["between"],
                                             described["speed"])
            order = [layer for stage in like["stages"] for layer in stage["layers"]]
            ring = min(async_pipeline.data_parallel_seconds(graph, order, cluster, flat) for flat in (True, False)) / cluster.ranks

            def independent(plan, without=()):
                stages = [(stage["layers"], stage["ranks"]) for stage in plan["stages"]]
                return async_pipeline.steady_seconds(graph, cluster, stages, without=without)

            def both(seconds):
                return f"{base / seconds:.2f} / {ring / seconds:.2f}"

            where = f"{servers}x{described['devices']} {name}"
            shape = stages_text([len(stage["ranks"]) for stage in theirs["stages"]])
            lines.append([task, where, plan or "-", f"{speedup:.2f}" if speedup else "-", f"{base * 1e3:.1f}", f"{ring * 1e3:.1f}",
                          shape, f"{own:.2f}", both(case.steady(theirs)), both(independent(theirs)),
                          stages_text(ranks), both(case.steady(ours)), both(independent(ours)),
                          f"{stages_text(flush_ranks)} {flush_plan['schedule']}", both(flushing)])
            print_row(lines)
            losses.append([task, where, shape, *(f"{base / independent(theirs, without):.2f}" for without in
                                                 [(), *((x,) for x in async_pipeline.SWITCHES), async_pipeline.SWITCHES])])
    print()
    for end in range(2, len(losses) + 1):
        print_row(losses[:end])
    if args.csv:
        with open(args.csv, "w") as file:
            file.writelines(",".join(line) + "\n" for line in lines)


if __name__ == "__main__":
    main()
