"""image_pixels.py FOLDER: writes images of all formats with Pillow, and what Pillow and torchvision make of them.

NAME.raw is an image's RGB bytes, NAME.f32 a float32 tensor [3, H, W]. tests/data/augment_test.cpp compares with them.
"""
import os
import sys

import numpy
import torch
from PIL import Image
from torchvision.transforms import InterpolationMode, functional as F
from torchvision.transforms.autoaugment import RandAugment, _apply_op

folder = sys.argv[1]
os.makedirs(folder, exist_ok=True)
at = lambda name: os.path.join(folder, name)

y, x = numpy.mgrid[0:96, 0:96]
pixels = numpy.stack([x * 255 // 95, y * 255 // 95, (x * y) % 251], axis=2).astype(numpy.uint8)
smooth = numpy.stack([x * 255 // 95, y * 255 // 95, (x + y) * 255 // 190], axis=2).astype(numpy.uint8)
rgb = Image.fromarray(pixels)
gentle = Image.fromarray(smooth)
for name, image, options in [
    ("rgb.png", rgb, {}),
    ("grey.png", rgb.convert("L"), {}),
    ("palette.png", rgb.quantize(64), {}),
    ("lossless.webp", rgb, {"lossless": True}),
    ("lossy.webp", gentle, {"quality": 80}),
    ("rgb.jpg", gentle, {"quality": 90}),
    ("grey.jpg", gentle.convert("L"), {"quality": 90}),
    ("cmyk.jpg", gentle.convert("CMYK"), {"quality": 90}),
]:
    image.save(at(name), **options)
    with open(at(name + ".raw"), "wb") as out:
        out.write(Image.open(at(name)).convert("RGB").tobytes())

generator = torch.Generator().manual_seed(1)
image = torch.rand(3, 24, 20, generator=generator)
image[:, :4] = image[:1, :4]  # grey pixels, which have no hue


def write(name, tensor):
    tensor.contiguous().numpy().astype(numpy.float32).tofile(at(name + ".f32"))


write("image", image)
write("brightness", F.adjust_brightness(image, 1.3))
write("contrast", F.adjust_contrast(image, 0.6))
write("saturation", F.adjust_saturation(image, 1.7))
write("hue", F.adjust_hue(image, 0.2))
write("hue_back", F.adjust_hue(image, -0.4))
resized = F.resize(torch.from_numpy(pixels).permute(2, 0, 1).float() / 255, [32, 32], antialias=True)
write("resized", F.normalize(resized, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))

photo = torch.from_numpy(smooth).permute(2, 0, 1)[:, :, :90].clone()
photo[:, 20:50, 30:60] = torch.randint(0, 256, (3, 30, 30), generator=generator, dtype=torch.uint8)
write("photo", photo.float() / 255)
for name, (magnitudes, signed) in RandAugment()._augmentation_space(31, (96, 90)).items():
    magnitude = float(magnitudes[9].item()) if magnitudes.ndim > 0 else 0.0
    with open(at(name + ".magnitude"), "w") as out:
        out.write(repr(magnitude))
    for sign in [1, -1] if signed else [1]:
        made = _apply_op(photo, name, sign * magnitude, InterpolationMode.NEAREST, None)
        write(name + ("_back" if sign < 0 else ""), made.float() / 255)
