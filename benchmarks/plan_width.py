#!/usr/bin/env python3
"""Plans wide and long graphs and prints wall time and peak memory of the whole command.

Arguments: MILLRACE [--data DIR]. DIR holds pipedream-profiles/ (Inception-v3 unabridged, ResNet-50, GNMT-16). The other
graphs are made here from fixed seeds: NASNet-like DAGs of 2,000 layers (cells of five pairs of branches that read the
outputs of the two cells before), and a transformer chain of 10,000 layers.
"""
import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time


def layer(rng, index, scale=1.0):
    forward = rng.uniform(1e-4, 3e-3) * scale
    return {"name": f"layer{index}", "kind": "conv", "forward_s": forward,
            "backward_input_s": forward * rng.uniform(0.8, 1.2), "backward_weight_s": forward * rng.uniform(0.8, 1.2),
            "parameter_bytes": rng.randrange(0, 4_000_000), "activation_bytes": rng.randrange(100_000, 2_000_000),
            "saved_bytes": rng.randrange(100_000, 2_000_000)}


def profile(name, layers, edges):
    out = {"format": "millrace-profile-1", "model": name, "microbatch": 8, "device": "made", "loss_s": 1e-4,
           "update_s_per_byte": 1e-10, "layers": layers,
           "edges": [{"from": layers[a]["name"], "to": layers[b]["name"], "tensor": layers[a]["name"],
                      "bytes": layers[a]["activation_bytes"]} for a, b in edges]}
    return out


def nasnet_like(seed, count):
    """Cells: five pairs of branches (1 to 4 layers each) over the two cells before, added, then joined."""
    rng = random.Random(seed)
    layers, edges = [layer(rng, 0), layer(rng, 1)], [(0, 1)]
    cells = [0, 1]

    def add(*inputs):
        layers.append(layer(rng, len(layers), 0.5))
        edges.extend((i, len(layers) - 1) for i in dict.fromkeys(inputs))
        return len(layers) - 1

    while len(layers) < count:
        states = [cells[-2], cells[-1]]
        unread = set()
        for _ in range(5):
            ends = []
            for _ in range(2):
                source = rng.choice(states)
                unread.discard(source)
                for _ in range(rng.randint(1, 4)):
                    source = add(source)
                ends.append(source)
            joined = add(*ends)
            states.append(joined)
            unread.add(joined)
        cells.append(add(*sorted(unread)))
    return profile(f"nasnet-like-{seed}", layers, edges)


def chain(seed, count):
    rng = random.Random(seed)
    layers = []
    for i in range(count):
        made = layer(rng, i)
        # Attention and feed-forward alternate; a wide vocabulary at both ends.
        made["forward_s"] *= 1.5 if i % 2 else 1.0
        layers.append(made)
    return profile(f"chain-{count}", layers, [(i, i + 1) for i in range(count - 1)])


def measure(command):
    """Seconds, peak MiB, standard output of a command; ends the program if it fails."""
    read, write = os.pipe()
    start = time.monotonic()
    child = subprocess.Popen(command, stdout=write)
    os.close(write)
    text = b""
    while chunk := os.read(read, 65536):
        text += chunk
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {child.returncode}")
    return time.monotonic() - start, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, text.decode()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("millrace")
    parser.add_argument("--data", default=os.environ.get("MILLRACE_DATA"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        def cluster(name, *levels):
            path = os.path.join(folder, name + ".yaml")
            with open(path, "w") as file:
                file.write("levels:\n" + "".join(f"  - {{count: {n}, bandwidth: {b}, latency: {l}}}\n" for n, b, l in levels))
            return path

        def stored(made):
            path = os.path.join(folder, made["model"] + ".json")
            with open(path, "w") as file:
                json.dump(made, file)
            return path

        four = cluster("four", (4, 1.25e8, 1e-4))  # 1 Gb/s Ethernet: pipelines win
        sixteen = cluster("sixteen", (8, 1e10, 1e-5), (2, 1.25e9, 5e-5))  # PCIe, 10 Gb/s
        thousand = cluster("thousand", (8, 2e11, 3e-6), (128, 2.5e10, 1e-5))
        cases = []
        for name in ("inception_v3", "resnet50", "gnmt_large"):
            if options.data:
                path = os.path.join(options.data, "pipedream-profiles", name, "graph.txt")
                cases += [(name, path, four, "4"), (name, path, sixteen, "8x2")]
        for seed in (1, 2, 3):
            path = stored(nasnet_like(seed, 2000))
            cases += [(f"NASNet-like {seed}", path, four, "4"), (f"NASNet-like {seed}", path, sixteen, "8x2")]
        cases.append(("chain of 10,000", stored(chain(1, 10000)), thousand, "8x128"))
        print("| graph | ranks | wall s | cpu s | peak MiB | plan |\n|---|---|---|---|---|---|")
        for name, path, spec, ranks in cases:
            wall, cpu, peak, text = measure([options.millrace, "plan", "--profile", path, "--cluster", spec,
                                             "--microbatches", "64" if ranks == "8x128" else "16"])
            print(f"| {name} | {ranks} | {wall:.2f} | {cpu:.2f} | {peak:.0f} | {text.splitlines()[0].split(': ')[1]} |",
                  flush=True)


if __name__ == "__main__":
    main()
