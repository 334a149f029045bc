"""PyTorch's own run of scripts/examples/cifar10: the same model, recipe and number of processes, beside the curve of that run.

Two processes under DistributedDataParallel, one thread each, read the same class folders with torchvision. With --device cuda there is
one for each GPU, with eight processes that load. After each epoch all test
images are evaluated, and a checkpoint is written: the same command goes on with a run that was interrupted. `--beside` is the
output folder of millrace's run; its curve stands in the same table. Hours go up to the epoch's last step, with the evaluations before it
and without breaks.

    scripts/benchmark cifar10 --data FOLDER --out FOLDER [--beside RUN] [--epochs 15] [--precision bfloat16] [--device cuda]
"""
import argparse
import glob
import json
import os
import time

from own_run import Progress, curve_of, draw, print_table, replicated

BATCH, WARMUP_EPOCHS, RATE = 128, 3, 0.1
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def resnet18(torch):
    """torchvision's, with the stem that millrace's has for small images."""
    import torchvision

    model = torchvision.models.resnet18(num_classes=10)
    model.conv1 = torch.nn.Conv2d(3, 64, 3, padding=1, bias=False)
    model.maxpool = torch.nn.Identity()
    torch.nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
    return model


def train(rank, ranks, opts):
    import torch
    import torch.distributed as dist
    from torchvision import datasets, transforms

    plain = [transforms.ToTensor(), transforms.Normalize(MEAN, DEVIATION)]
    changed = [transforms.RandomCrop(32, 4), transforms.RandomHorizontalFlip(), *plain]
    images = datasets.ImageFolder(os.path.join(opts.data, "train"), transforms.Compose(changed))
    tests = datasets.ImageFolder(os.path.join(opts.data, "test"), transforms.Compose(plain))
    sampler = torch.utils.data.distributed.DistributedSampler(images, drop_last=True)
    workers = dict(num_workers=8, persistent_workers=True, pin_memory=True) if opts.device == "cuda" else dict(num_workers=1)
    loader = torch.utils.data.DataLoader(images, BATCH // ranks, sampler=sampler, drop_last=True, **workers)
    mine = torch.utils.data.Subset(tests, range(rank, len(tests), ranks))
    test_loader = torch.utils.data.DataLoader(mine, 256, **workers)
    inner = resnet18(torch).to(opts.device, memory_format=torch.channels_last)
    model = replicated(inner, ranks)
    loss_of = torch.nn.CrossEntropyLoss(label_smoothing=0.1)
    rule = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9, nesterov=True, weight_decay=5e-4)
    warmup, total = WARMUP_EPOCHS * len(loader), opts.epochs * len(loader)
    rate = torch.optim.lr_scheduler.LambdaLR(
        rule, lambda step: (step + 1) / warmup if step < warmup else max(0.0, (total - step) / (total - warmup)))
    progress = Progress(opts.out, rank, {"model": inner, "rule": rule, "rate": rate})
    cast = lambda: torch.autocast(opts.device, torch.bfloat16, enabled=opts.precision == "bfloat16")
    for epoch in range(len(progress.curve), opts.epochs):
        sums = torch.zeros(2, dtype=torch.float64, device=opts.device)
        sampler.set_epoch(epoch)
        model.train()
        for inputs, targets in loader:
            inputs = inputs.to(opts.device, non_blocking=True, memory_format=torch.channels_last)
            targets = targets.to(opts.device, non_blocking=True)
            with cast():
                loss = loss_of(model(inputs), targets)
            rule.zero_grad()
            loss.backward()
            rule.step()
            rate.step()
        sums.sum().item()  # waits for a GPU
        trained = time.monotonic()
        model.eval()
        with torch.no_grad(), cast():
            for inputs, targets in test_loader:
                inputs, targets = inputs.to(opts.device), targets.to(opts.device)
                sums[0] += (inner(inputs).argmax(1) == targets).sum()
                sums[1] += len(targets)
        dist.all_reduce(sums)
        progress.epoch_done(trained, (sums[0] / sums[1]).item())
    return progress.curve


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
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--draw", help="an SVG of the curves")
    opts = parser.parse_args()
    table = {"millrace": of_run(opts.beside)} if opts.beside else {}
    table["PyTorch"] = curve_of(train, opts)
    print_table(table, ["top-1"], ["{:.2%}"])
    if opts.draw:
        draw(table, opts.draw, "top-1 on the test images")


if __name__ == "__main__":
    main()
