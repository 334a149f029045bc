"""Opens each data set below a folder with readers of other projects: NumPy, Pillow, crc32c, and TensorFlow's messages
as TensorBoard ships them (their generated classes need no TensorFlow)."""
import glob
import os
import struct
import sys

import crc32c
import numpy
from PIL import Image

folder = sys.argv[1]


def masked(data):
    crc = crc32c.crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def records(path):
    with open(path, "rb") as file:
        while head := file.read(12):
            (length,) = struct.unpack("<Q", head[:8])
            assert struct.unpack("<I", head[8:])[0] == masked(head[:8]), path
            payload = file.read(length)
            assert struct.unpack("<I", file.read(4))[0] == masked(payload), path
            yield payload


def fields(message):
    """(field, value) of a protobuf message of varints and byte strings."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(message):
        key = varint()
        assert key & 7 == 2, key
        size = varint()
        yield key >> 3, message[at:at + size]
        at += size


x = numpy.load(f"{folder}/imseg/case_00000_x.npy")
y = numpy.load(f"{folder}/imseg/case_00000_y.npy")
assert x.dtype == numpy.float32 and y.dtype == numpy.uint8 and x.shape == y.shape and x.ndim == 4 and x.shape[0] == 1
assert x.min() >= -2.340703 and x.max() <= 2.639793 and set(numpy.unique(y)) == {0, 1}

rows = numpy.fromfile(f"{folder}/dlrm/terabyte_processed_train.bin", dtype="<i4").reshape(-1, 40)
counts = numpy.load(f"{folder}/dlrm/day_fea_count.npz")["counts"]
assert len(rows) == 12500 and counts.shape == (26,) and (rows >= 0).all() and (rows[:, 14:] < counts).all()
assert set(numpy.unique(rows[:, 0])) == {0, 1}

names = set()
for payload in records(f"{folder}/bert/part-00027-of-00500"):
    (features,) = [value for field, value in fields(payload) if field == 1]
    names = {dict(fields(entry))[1].decode() for _, entry in fields(features)}
assert names == {"input_ids", "input_mask", "segment_ids", "masked_lm_positions", "masked_lm_ids", "masked_lm_weights",
                 "next_sentence_labels"}, names

images = glob.glob(f"{folder}/images/*/*/*.jpg")
for path in images[:20]:
    with Image.open(path) as image:
        image.load()
        assert image.mode == "RGB"
assert len(images) > 20

text = open(f"{folder}/text/train.txt", encoding="ascii").read()
assert text.endswith("\n") and len(text.split()) > 1000

if os.path.isdir(f"{folder}/dlio"):
    import h5py
    for path in glob.glob(f"{folder}/dlio/**/*.npz", recursive=True):
        with numpy.load(path) as arrays:
            assert arrays["x"].ndim == 3 and arrays["y"].sum() == 0
    for path in glob.glob(f"{folder}/dlio/**/*.npy", recursive=True):
        assert numpy.load(path).ndim == 3
    for path in glob.glob(f"{folder}/dlio/**/*.hdf5", recursive=True):
        with h5py.File(path) as file:
            assert file["records_0"].ndim == 3 and file["labels"].shape == file["records_0"].shape[:1]
    for path in glob.glob(f"{folder}/dlio/**/*.png", recursive=True) + glob.glob(f"{folder}/dlio/**/*.jpeg", recursive=True):
        with Image.open(path) as image:
            image.load()
            assert image.mode == "L"
    for path in glob.glob(f"{folder}/dlio/**/*.tfrecord", recursive=True):
        assert sum(1 for _ in records(path)) > 0
print("reference readers: all data sets opened")
