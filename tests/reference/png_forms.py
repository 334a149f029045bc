"""png_forms.py FOLDER: writes pictures in every form of PNG, and JPEG and WebP with what they share with it.

NAME.raw has the RGB bytes that are right: Pillow's, and transparent pixels on black. tests/data/pictures_test.cpp reads both.
"""
import io
import itertools
import os
import struct
import sys
import zlib

import numpy
from PIL import Image, PngImagePlugin

folder = sys.argv[1]
os.makedirs(folder, exist_ok=True)
random = numpy.random.default_rng(1)
WIDTH, HEIGHT = 13, 11  # odd, so that passes of interlacing have rows and columns of different numbers
CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # by colour type
DEPTHS = {0: [1, 2, 4, 8, 16], 2: [8, 16], 3: [1, 2, 4, 8], 4: [8, 16], 6: [8, 16]}
ADAM7 = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]


def chunk(kind, data=b""):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def rows(samples, depth):
    """Rows of [height, width, channels] as they are packed, each behind the filter type "none"."""
    for row in samples:
        if depth == 16:
            yield b"\0" + row.astype(">u2").tobytes()
        else:
            bits = numpy.unpackbits(row.astype(numpy.uint8).reshape(-1, 1), axis=1)[:, 8 - depth:]
            yield b"\0" + numpy.packbits(bits).tobytes()


def png(samples, depth, colour_type, interlaced=False, before=b"", after=b""):
    passes = [samples[y::down, x::right] for x, y, right, down in ADAM7] if interlaced else [samples]
    data = zlib.compress(b"".join(row for part in passes if part.size for row in rows(part, depth)))
    head = struct.pack(">IIBBBBB", samples.shape[1], samples.shape[0], depth, colour_type, 0, 0, int(interlaced))
    half = len(data) // 2
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + before + chunk(b"IDAT", data[:half]) + chunk(b"IDAT", data[half:]) +
            chunk(b"IEND") + after)


def on_black(pixels):
    """RGBA, or grey and alpha, of 8 bits."""
    alpha = pixels[..., -1:].astype(int)
    return ((pixels[..., :-1].astype(int) * alpha + 127) // 255).astype(numpy.uint8)


def by_pillow(data):
    image = Image.open(io.BytesIO(data))
    image.load()
    if image.mode.startswith("I;16"):
        # Pillow clips these at 255. Here they are as its RGB of 16 bits: the high byte.
        values = numpy.asarray(image)
        pixels = (values >> 8).astype(numpy.uint8)[..., None]
    elif image.has_transparency_data:
        pixels = on_black(numpy.asarray(image.convert("RGBA")))
    else:
        pixels = numpy.asarray(image.convert("RGB"))
    return numpy.broadcast_to(pixels, pixels.shape[:2] + (3,)).astype(numpy.uint8)


def write(name, data, pixels=None):
    with open(os.path.join(folder, name), "wb") as out:
        out.write(data)
    with open(os.path.join(folder, name + ".raw"), "wb") as out:
        out.write((by_pillow(data) if pixels is None else pixels).tobytes())


# Colour types, depths, interlacing, tRNS.
for colour_type, depths in DEPTHS.items():
    for depth, interlaced, transparent in itertools.product(depths, [False, True], [False, True]):
        if transparent and colour_type > 3:
            continue
        samples = random.integers(0, 1 << depth, (HEIGHT, WIDTH, CHANNELS[colour_type]))
        name = f"type{colour_type}-{depth}{'-interlaced' * interlaced}{'-trns' * transparent}.png"
        before, pixels = b"", None
        if colour_type == 3:
            before += chunk(b"PLTE", random.integers(0, 256, 3 << depth, dtype=numpy.uint8).tobytes())
            if transparent:
                before += chunk(b"tRNS", random.integers(0, 256, max(1, (1 << depth) * 2 // 3), dtype=numpy.uint8).tobytes())
        elif transparent:
            key = samples[3, 4]
            samples[5:8, 2:9] = key
            if depth == 16:
                samples[9, 2:9] = key ^ 1  # another colour, with the same high byte
            before += chunk(b"tRNS", key.astype(">u2").tobytes())
            if depth != 8:  # Pillow looks for the key among values of 8 bits
                levels = samples >> 8 if depth == 16 else samples * (255 // ((1 << depth) - 1))
                pixels = numpy.broadcast_to(levels * (samples != key).any(axis=2, keepdims=True), (HEIGHT, WIDTH, 3)).astype(numpy.uint8)
        write(name, png(samples, depth, colour_type, interlaced, before), pixels)

# Chunks that change nothing, at 8 and 16 bits.
profile = zlib.compress(bytes(200))
CHUNKS = {
    "gama": chunk(b"gAMA", struct.pack(">I", 100000)),
    "gama-sbit": chunk(b"gAMA", struct.pack(">I", 22000)) + chunk(b"sBIT", b"\5\5\5\5"),
    "chrm": chunk(b"gAMA", struct.pack(">I", 45455)) + chunk(b"cHRM", struct.pack(">8I", *[31270, 32900, 64000, 33000, 21000, 71000, 15000, 6000])),
    "srgb": chunk(b"sRGB", b"\0"),
    "iccp": chunk(b"iCCP", b"a profile that is none\0\0" + profile),
    "phys": chunk(b"pHYs", struct.pack(">IIB", 2835, 5000, 1)),
    "bkgd": chunk(b"bKGD", struct.pack(">HHH", 200, 100, 50)),
    "text": chunk(b"tEXt", b"Comment\0" + bytes(range(1, 200))) + chunk(b"zTXt", b"Comment\0\0" + zlib.compress(bytes(3000))) +
            chunk(b"iTXt", b"Comment\0\0\0\0\0text"),
    "long-text": chunk(b"tEXt", b"Comment\0" + b"x" * 9_000_000),
    "exif": chunk(b"eXIf", b"MM\0\x2a\0\0\0\x08\0\1\1\x12\0\3\0\0\0\1\0\6\0\0\0\0\0\0"),
    "unknown": chunk(b"teSt", b"anything"),
    "animated": chunk(b"acTL", struct.pack(">II", 1, 0)) + chunk(b"fcTL", struct.pack(">IIIIIHHBB", 0, WIDTH, HEIGHT, 0, 0, 1, 1, 0, 0)),
}
for (name, before), (colour_type, depth) in itertools.product(CHUNKS.items(), [(2, 8), (6, 8), (6, 16)]):
    if name == "long-text" and depth == 16:
        continue
    samples = random.integers(0, 1 << depth, (HEIGHT, WIDTH, CHANNELS[colour_type]))
    plain = png(samples, depth, colour_type)
    write(f"{name}-type{colour_type}-{depth}.png", png(samples, depth, colour_type, before=before), by_pillow(plain))
samples = random.integers(0, 256, (HEIGHT, WIDTH, 3))
for name, after in [("line-feed", b"\n"), ("trailing", b"\0" * 100), ("two-pictures", png(samples, 8, 2))]:
    write(name + ".png", png(samples, 8, 2, after=after))

# Pillow's own files: filters, palettes, animations; EXIF's orientations in all formats, which nobody applies unasked.
y, x = numpy.mgrid[0:HEIGHT, 0:WIDTH]
smooth = Image.fromarray(numpy.stack([x * 20, y * 23, (x + y) * 11], axis=2).astype(numpy.uint8))
clear = smooth.convert("RGBA")
clear.putalpha(Image.fromarray((x * y * 2).astype(numpy.uint8)))


def saved(image, kind, **options):
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


for mode in ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"]:
    image = (clear if mode.endswith("A") else smooth).convert("L" if mode == "I;16" else mode).convert(mode)
    write(f"pillow-{mode.replace(';', '-')}.png", saved(image, "PNG", optimize=True))
write("palette-alpha.png", saved(clear.quantize(16), "PNG"))
write("animation.png", saved(smooth, "PNG", save_all=True, append_images=[smooth.rotate(180), smooth.rotate(90)]))
write("alpha.webp", saved(clear, "WEBP", lossless=True, exact=True))
for orientation in range(1, 9):
    exif = Image.Exif()
    exif[0x0112] = orientation
    for kind, options in [("PNG", {}), ("WEBP", {"lossless": True}), ("JPEG", {"quality": 95, "subsampling": 0})]:
        data = saved(smooth, kind, exif=exif, **options)
        assert Image.open(io.BytesIO(data)).getexif()[0x0112] == orientation
        write(f"orientation{orientation}.{kind.lower()}", data)
