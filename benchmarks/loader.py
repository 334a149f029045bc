"""The loader of images beside torchvision's DataLoader: files read, decoded, cropped at random, resized to 224 with antialiasing, flipped
and normalised, in batches of 8. All sides take turns, and each reads files that are in the kernel's cache.

    scripts/benchmark loader FOLDER [--rounds N]      FOLDER: class folders of JPEGs

DALI and FFCV have rows where the Python can import them (pip: nvidia-dali-cuda120, which needs no GPU; ffcv with --no-deps, numba and
opencv-python-headless, which needs OpenCV's development files). MILLRACE_REFERENCE_PYTHON names another Python than that of
tests/reference/install. Their workers are threads. FFCV reads a file of its own, whose JPEGs it encodes again (quality 95).
torchvision's side has its two ways: ImageFolder, which decodes with Pillow, and torchvision.io.decode_image with transforms of
tensors. Its workers are processes; an epoch is the folder five times over, so that starting them counts little. Images are those a
second of wall time and of CPU time (workers included), medians over rounds.
"""

import argparse
import functools
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np
import torch
import torchvision
from torchvision.transforms import v2

from side_by_side import spread

try:
    from nvidia import dali
except ImportError:
    dali = None
try:
    import ffcv.fields
    import ffcv.fields.basics
    import ffcv.fields.rgb_image
    import ffcv.loader
    import ffcv.transforms
    import ffcv.writer
except ImportError:
    ffcv = None

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


def dali_epoch(folder, count, workers):
    """Wall and CPU seconds of an image."""
    @dali.pipeline_def(batch_size=BATCH, num_threads=workers, device_id=None)
    def pipeline():
        files, labels = dali.fn.readers.file(file_root=folder, random_shuffle=True)
        images = dali.fn.decoders.image_random_crop(files, device="cpu")
        images = dali.fn.resize(images, size=[224, 224], antialias=True)
        scaled = {"mean": [255 * m for m in MEAN], "std": [255 * d for d in DEVIATION]}
        return dali.fn.crop_mirror_normalize(images, mirror=dali.fn.random.coin_flip(), **scaled), labels

    built = pipeline()
    built.build()
    batches = count * TIMES // BATCH
    wall, cpu = time.perf_counter(), cpu_seconds()
    for _ in range(batches):
        built.run()
    return (time.perf_counter() - wall) / (batches * BATCH), (cpu_seconds() - cpu) / (batches * BATCH)


def write_for_ffcv(folder, file):
    fields = {"image": ffcv.fields.RGBImageField(write_mode="jpg", jpeg_quality=95), "label": ffcv.fields.IntField()}
    ffcv.writer.DatasetWriter(file, fields, num_workers=1).from_indexed_dataset(torchvision.datasets.ImageFolder(folder))


def ffcv_epoch(file, workers):
    """Wall and CPU seconds of an image. The first batches, for which it compiles code, do not count."""
    scaled = (np.array([255 * part for part in parts]) for parts in (MEAN, DEVIATION))
    images = [ffcv.fields.rgb_image.RandomResizedCropRGBImageDecoder((224, 224)), ffcv.transforms.RandomHorizontalFlip(),
              ffcv.transforms.NormalizeImage(*scaled, np.float32), ffcv.transforms.ToTensor(), ffcv.transforms.ToTorchImage()]
    loader = ffcv.loader.Loader(file, batch_size=BATCH, num_workers=workers, order=ffcv.loader.OrderOption.RANDOM, os_cache=True,
                                pipelines={"image": images, "label": [ffcv.fields.basics.IntDecoder(), ffcv.transforms.ToTensor()]})
    for _ in loader:
        pass
    count, wall, cpu = 0, time.perf_counter(), cpu_seconds()
    for _ in range(TIMES):
        count += sum(len(labels) for _, labels in loader)
    return (time.perf_counter() - wall) / count, (cpu_seconds() - cpu) / count


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
    epochs = {name: functools.partial(epoch, images) for name, images in peers.items()}
    for name, module in (("DALI", dali), ("FFCV", ffcv)):
        if not module:
            print(f"{name} is not installed and has no row")
    if dali:
        epochs[f"DALI {dali.__version__}"] = functools.partial(dali_epoch, options.folder, len(peers["torchvision, Pillow"]))
    folder_of_ffcv = tempfile.TemporaryDirectory()
    if ffcv:
        beton = os.path.join(folder_of_ffcv.name, "images.beton")
        write_for_ffcv(options.folder, beton)
        epochs[f"FFCV {ffcv.__version__}"] = functools.partial(ffcv_epoch, beton)
    measured = {}
    for _ in range(options.rounds):
        for workers, seconds in own_epochs(options.program, options.folder).items():
            measured.setdefault(("millrace", workers), []).append(seconds)
        for name, epoch_of in epochs.items():
            for workers in (1, 2):
                measured.setdefault((name, workers), []).append(epoch_of(workers))
    print(f"torchvision {torchvision.__version__}, {options.rounds} rounds; ms an image: median (quartiles)\n")
    print("| loader | workers | images/s | images a CPU second | wall ms an image | beside millrace |\n|---|---|---|---|---|---|")
    for (name, workers), seconds in measured.items():
        walls, cpus = ([pair[part] for pair in seconds] for part in (0, 1))
        wall, cpu = statistics.median(walls), statistics.median(cpus)
        ratio = wall / statistics.median(pair[0] for pair in measured["millrace", workers])
        print(f"| {name} | {workers} | {1 / wall:.0f} | {1 / cpu:.0f} | {spread(walls)} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
