"""The loader of images beside torchvision's DataLoader: files read, decoded, cropped at random, resized to 224 with antialiasing, flipped
and normalised, in batches of 8. Both sides take turns, and each reads files that are in the kernel's cache.

    scripts/benchmark loader FOLDER [--rounds N]      FOLDER: class folders of JPEGs

torchvision's side has its two ways: ImageFolder, which decodes with Pillow, and torchvision.io.decode_image with transforms of
tensors. Its workers are processes; an epoch is the folder five times over, so that starting them counts little. Images are those a
second of wall time and of CPU time (workers included), medians over rounds.
"""

import argparse
import re
import resource
import statistics
import subprocess
import sys
import time

import torch
import torchvision
from torchvision.transforms import v2

from side_by_side import spread

TIMES = 5  # the folder in an epoch of torchvision's
BATCH = 8
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def of_tensors(path):
    return torchvision.io.decode_image(path, torchvision.io.ImageReadMode.RGB)


def loaders(folder):
    """The two ways, by name."""
    crop = [v2.RandomResizedCrop(224, antialias=True), v2.RandomHorizontalFlip()]
    last = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, DEVIATION)]
    pillow = torchvision.datasets.ImageFolder(folder, v2.Compose([*crop, v2.ToImage(), *last]))
    tensors = torchvision.datasets.ImageFolder(folder, v2.Compose([*crop, *last]), loader=of_tensors)
    return {"torchvision, Pillow": pillow, "torchvision, tensors": tensors}


def cpu_seconds():
    return sum(usage.ru_utime + usage.ru_stime
               for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))


def epoch(images, workers):
    """Wall and CPU seconds of an image."""
    several = torch.utils.data.ConcatDataset([images] * TIMES)
    loader = torch.utils.data.DataLoader(several, BATCH, shuffle=True, num_workers=workers)
    wall, cpu = time.perf_counter(), cpu_seconds()
    for _ in loader:
        pass
    del loader
    return (time.perf_counter() - wall) / len(several), (cpu_seconds() - cpu) / len(several)


def own_epochs(program, folder):
    """Wall and CPU seconds of an image, by workers."""
    ran = subprocess.run([program, folder, "1"], capture_output=True, text=True)
    if ran.returncode != 0:
        sys.exit(ran.stderr)
    count = int(re.search(r"^(\d+) images", ran.stdout).group(1)) // BATCH * BATCH
    walls = re.search(r"one worker ([\d.]+) s, by two ([\d.]+) s", ran.stdout).groups()
    cpus = re.search(r"CPU seconds ([\d.]+) and ([\d.]+)", ran.stdout).groups()
    return {workers: (float(wall) / count, float(cpu) / count) for workers, wall, cpu in zip((1, 2), walls, cpus)}


def main():
    parser = argparse.ArgumentParser(prog="scripts/benchmark loader", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help=argparse.SUPPRESS)
    parser.add_argument("folder", metavar="FOLDER")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    peers = loaders(options.folder)
    measured = {}
    for _ in range(options.rounds):
        for workers, seconds in own_epochs(options.program, options.folder).items():
            measured.setdefault(("millrace", workers), []).append(seconds)
        for name, images in peers.items():
            for workers in (1, 2):
                measured.setdefault((name, workers), []).append(epoch(images, workers))
    print(f"torchvision {torchvision.__version__}, {options.rounds} rounds; ms an image: median (quartiles)\n")
    print("| loader | workers | images/s | images a CPU second | wall ms an image | beside millrace |\n|---|---|---|---|---|---|")
    for (name, workers), seconds in measured.items():
        walls, cpus = ([pair[part] for pair in seconds] for part in (0, 1))
        wall, cpu = statistics.median(walls), statistics.median(cpus)
        ratio = wall / statistics.median(pair[0] for pair in measured["millrace", workers])
        print(f"| {name} | {workers} | {1 / wall:.0f} | {1 / cpu:.0f} | {spread(walls)} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
