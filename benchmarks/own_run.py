"""PyTorch's own run of an example's recipe beside millrace's: what cifar10.py and multi30k.py share.

Two processes train, on GPUs a process for each of them. After each epoch the first one saves the model, the rule and the curve, from which the same command goes on. A
curve is a list of rows, one for each epoch: hours up to its last step, then values. Breaks do not count.
"""
import json
import os
import time

COLOURS = ("#1f77b4", "#d62728", "#2ca02c")


class Progress:
    """Of one process. `parts`: name -> what has a state_dict."""

    def __init__(self, out, rank, parts):
        import torch

        self.path, self.rank, self.parts = os.path.join(out, "checkpoint.pt"), rank, parts
        self.curve, self.hours = [], 0.0
        if os.path.exists(self.path):
            state = torch.load(self.path, weights_only=True)
            for name, part in parts.items():
                part.load_state_dict(state[name])
            self.curve, self.hours = state["curve"], state["hours"]
        self.begun = time.monotonic()

    def epoch_done(self, trained, *values):
        """`trained`: when the last step ended, before the evaluation that gave the values."""
        import torch

        self.curve.append([self.hours + (trained - self.begun) / 3600, *values])
        now = time.monotonic()
        self.hours += (now - self.begun) / 3600
        self.begun = now
        if self.rank == 0:
            print(f"epoch {len(self.curve)}: {self.curve[-1][0]:.4f} hours, " + ", ".join(f"{value:.4f}" for value in values), flush=True)
            state = {name: part.state_dict() for name, part in self.parts.items()}
            torch.save({**state, "curve": self.curve, "hours": self.hours}, self.path + ".new")
            os.replace(self.path + ".new", self.path)


def curve_of(train, opts):
    """Runs train(rank, ranks, opts) in each process unless it has ended before. It returns the curve."""
    import torch

    path = os.path.join(opts.out, "curve.json")
    os.makedirs(opts.out, exist_ok=True)
    if not os.path.exists(path):
        ranks = 2 if opts.device == "cpu" else torch.cuda.device_count()
        torch.multiprocessing.spawn(in_a_process, (ranks, train, opts, time.time_ns()), ranks)
    with open(path) as file:
        return json.load(file)


def replicated(model, ranks):
    """`model` under DistributedDataParallel, or by itself where there is one process."""
    import torch

    return torch.nn.parallel.DistributedDataParallel(model) if ranks > 1 else model


def in_a_process(rank, ranks, train, opts, number):
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(1)
    backend = "gloo"
    if opts.device == "cuda":
        backend = "nccl"
        torch.cuda.set_device(rank)
        torch.backends.cudnn.allow_tf32 = False  # as millrace
    torch.distributed.init_process_group(backend, init_method=f"file://{os.path.abspath(opts.out)}/meeting.{number}", rank=rank, world_size=ranks)
    curve = train(rank, ranks, opts)
    torch.distributed.destroy_process_group()
    if rank == 0:
        with open(os.path.join(opts.out, "curve.json"), "w") as file:
            json.dump(curve, file)


def print_table(curves, titles, formats):
    """`curves`: name -> rows. `titles` and `formats` are of the values."""
    names = " | ".join(f"{name}: hours | " + " | ".join(titles) for name in curves)
    print(f"| epochs | {names} |\n|---|" + "---|" * len(curves) * (1 + len(titles)))
    formats = ["{:.2f}" if max(curve[-1][0] for curve in curves.values()) >= 1 else "{:.4f}", *formats]
    for epoch in range(max(map(len, curves.values()))):
        cells = []
        for curve in curves.values():
            cells += [f.format(x) for f, x in zip(formats, curve[epoch])] if epoch < len(curve) else [""] * len(formats)
        print(f"| {epoch + 1} | " + " | ".join(cells) + " |")


def draw(curves, path, title, across="hours"):
    """Writes an SVG of the last value of each row over the first."""
    left, right, top, bottom = 50, 560, 30, 230
    hours = max(curve[-1][0] for curve in curves.values())
    low, high = (of(row[-1] for curve in curves.values() for row in curve) for of in (min, max))
    step = next(s for s in (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50) if (high - low) / s <= 6)
    low, high = low // step * step, -(-high // step) * step
    x = lambda value: left + value / hours * (right - left)
    y = lambda value: bottom - (value - low) / (high - low) * (bottom - top)
    lines = ['<svg xmlns="http://www.w3.org/2000/svg" width="700" height="270" font-family="sans-serif" font-size="12">',
             '<rect width="100%" height="100%" fill="white"/>', f'<text x="{left}" y="18">{title}</text>']
    for number in range(round((high - low) / step) + 1):
        value = low + number * step
        lines.append(f'<line x1="{left}" x2="{right}" y1="{y(value):.1f}" y2="{y(value):.1f}" stroke="#ddd"/>'
                     f'<text x="{left - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value:.4g}</text>')
    for tenth in range(0, 11, 2):
        value = hours * tenth / 10
        lines.append(f'<text x="{x(value):.1f}" y="{bottom + 18}" text-anchor="middle">{value:.3g}</text>')
    lines.append(f'<text x="{(left + right) / 2}" y="{bottom + 36}" text-anchor="middle">{across}</text>')
    for number, (name, curve) in enumerate(curves.items()):
        points = " ".join(f"{x(row[0]):.1f},{y(row[-1]):.1f}" for row in curve)
        lines.append(f'<polyline points="{points}" fill="none" stroke="{COLOURS[number]}" stroke-width="2"/>')
        lines += [f'<circle cx="{x(row[0]):.1f}" cy="{y(row[-1]):.1f}" r="3" fill="{COLOURS[number]}"/>' for row in curve]
        lines.append(f'<text x="{right + 10}" y="{top + 20 * (number + 1)}" fill="{COLOURS[number]}">{name}</text>')
    with open(path, "w") as file:
        file.write("\n".join([*lines, "</svg>", ""]))
