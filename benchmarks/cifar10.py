"""PyTorch's own run of scripts/examples/cifar10: the same model, recipe and number of processes, beside the curve of that run.

Two processes under DistributedDataParallel, one thread each, read the same class folders with torchvision. After each epoch all test
images are evaluated, and a checkpoint is written: the same command goes on with a run that was interrupted. `--beside` is the
output folder of millrace's run; its curve stands in the same table. Hours go up to the epoch's last step, with the evaluations before it
and without breaks.

    scripts/benchmark cifar10 --data FOLDER --out FOLDER [--beside RUN] [--epochs 15] [--precision bfloat16]
"""
import argparse
import glob
import json
import os
import time

import curves

RANKS, BATCH, WARMUP_EPOCHS, RATE = 2, 128, 3, 0.1
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def resnet18(torch):
    """torchvision's, with the stem that millrace's has for small images."""
    import torchvision

    model = torchvision.models.resnet18(num_classes=10)
    model.conv1 = torch.nn.Conv2d(3, 64, 3, padding=1, bias=False)
    model.maxpool = torch.nn.Identity()
    torch.nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
    return model


def train(rank, opts):
    import torch
    import torch.distributed as dist
    from torchvision import datasets, transforms

    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group("gloo", init_method=f"file://{os.path.abspath(opts.out)}/meeting", rank=rank, world_size=RANKS)
    plain = [transforms.ToTensor(), transforms.Normalize(MEAN, DEVIATION)]
    changed = [transforms.RandomCrop(32, 4), transforms.RandomHorizontalFlip(), *plain]
    images = datasets.ImageFolder(os.path.join(opts.data, "train"), transforms.Compose(changed))
    tests = datasets.ImageFolder(os.path.join(opts.data, "test"), transforms.Compose(plain))
    sampler = torch.utils.data.distributed.DistributedSampler(images, drop_last=True)
    loader = torch.utils.data.DataLoader(images, BATCH // RANKS, sampler=sampler, num_workers=1, drop_last=True)
    mine = torch.utils.data.Subset(tests, range(rank, len(tests), RANKS))
    test_loader = torch.utils.data.DataLoader(mine, 256, num_workers=1)
    inner = resnet18(torch).to(memory_format=torch.channels_last)
    model = torch.nn.parallel.DistributedDataParallel(inner)
    loss_of = torch.nn.CrossEntropyLoss(label_smoothing=0.1)
    rule = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9, nesterov=True, weight_decay=5e-4)
    warmup, total = WARMUP_EPOCHS * len(loader), opts.epochs * len(loader)
    rate = torch.optim.lr_scheduler.LambdaLR(
        rule, lambda step: (step + 1) / warmup if step < warmup else max(0.0, (total - step) / (total - warmup)))
    saved, curve, hours = os.path.join(opts.out, "checkpoint.pt"), [], 0.0
    if os.path.exists(saved):
        state = torch.load(saved, weights_only=True)
        inner.load_state_dict(state["model"])
        rule.load_state_dict(state["rule"])
        rate.load_state_dict(state["rate"])
        curve, hours = state["curve"], state["hours"]
    cast = lambda: torch.autocast("cpu", torch.bfloat16, enabled=opts.precision == "bfloat16")
    for epoch in range(len(curve), opts.epochs):
        begun, sums = time.monotonic(), torch.zeros(3, dtype=torch.float64)
        sampler.set_epoch(epoch)
        model.train()
        for inputs, targets in loader:
            inputs = inputs.to(memory_format=torch.channels_last)
            with cast():
                loss = loss_of(model(inputs), targets)
            rule.zero_grad()
            loss.backward()
            rule.step()
            rate.step()
            sums[0] += loss.item()
        trained = time.monotonic()
        model.eval()
        with torch.no_grad(), cast():
            for inputs, targets in test_loader:
                sums[1] += (inner(inputs).argmax(1) == targets).sum()
                sums[2] += len(targets)
        dist.all_reduce(sums)
        curve.append([hours + (trained - begun) / 3600, (sums[1] / sums[2]).item()])
        hours += (time.monotonic() - begun) / 3600
        if rank == 0:
            loss = sums[0].item() / len(loader) / RANKS
            print(f"epoch {epoch + 1}: {curve[-1][0]:.2f} hours, loss {loss:.4f}, top-1 {curve[-1][1]:.4f}", flush=True)
            state = {"model": inner.state_dict(), "rule": rule.state_dict(), "rate": rate.state_dict(), "curve": curve, "hours": hours}
            torch.save(state, saved + ".new")
            os.replace(saved + ".new", saved)
    if rank == 0:
        with open(os.path.join(opts.out, "curve.json"), "w") as file:
            json.dump(curve, file)
    dist.destroy_process_group()


def of_run(folder):
    """Hours and top-1 of each evaluation of millrace's run. Breaks do not count: nothing ran between them."""
    for path in sorted(glob.glob(os.path.join(folder, "steps.rank*.jsonl"))):
        curve, seconds, last = [], 0.0, None
        for line in map(json.loads, open(path)):
            if "step_s" in line:
                seconds += line["step_s"] if last is None else line["ended_s"] - last
                last = line["ended_s"]
            elif "top1" in line:
                curve.append([seconds / 3600, line["top1"]])
            else:
                last = None  # the run goes on here, after a break
        if curve:
            return curve
    raise SystemExit(f"cifar10.py: {folder} has no evaluation with top1")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="class folders below train and test")
    parser.add_argument("--out", required=True)
    parser.add_argument("--beside", help="output folder of millrace's run")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--draw", help="an SVG of the curves")
    opts = parser.parse_args()
    os.makedirs(opts.out, exist_ok=True)
    if not os.path.exists(os.path.join(opts.out, "curve.json")):
        import torch

        meeting = os.path.join(opts.out, "meeting")
        if os.path.exists(meeting):
            os.remove(meeting)
        torch.multiprocessing.spawn(train, (opts,), RANKS)
    table = {"millrace": of_run(opts.beside)} if opts.beside else {}
    table["PyTorch"] = json.load(open(os.path.join(opts.out, "curve.json")))
    curves.print_table(table, ["top-1"], ["{:.2%}"])
    if opts.draw:
        curves.draw(table, opts.draw, "top-1 on the test images")


if __name__ == "__main__":
    main()
