"""dcgan.py FOLDER: what tests/models/dcgan_test.cpp wrote there, beside DCGAN written plainly in PyTorch and trained as its
example trains it: the same losses and means, the same weights and running statistics.

FOLDER/SIZE-MICROBATCHES-RULE/{before,batches,after}.safetensors and steps.rank0.jsonl.
"""

import json
import pathlib
import sys

import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F

LATENT, FEATURES = 5, 4


def generator(size):
    channels = FEATURES * size // 8
    layers = [nn.ConvTranspose2d(LATENT, channels, 4, 1, 0, bias=False)]
    side = 4
    while side < size:
        following = 3 if side * 2 == size else channels // 2
        layers += [nn.BatchNorm2d(channels), nn.ReLU(True), nn.ConvTranspose2d(channels, following, 4, 2, 1, bias=False)]
        side, channels = side * 2, following
    return nn.Sequential(*layers, nn.Tanh())


def discriminator(size):
    layers, channels, side = [nn.Conv2d(3, FEATURES, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, True)], FEATURES, size // 2
    while side > 4:
        layers += [nn.Conv2d(channels, 2 * channels, 4, 2, 1, bias=False), nn.BatchNorm2d(2 * channels),
                   nn.LeakyReLU(0.2, True)]
        side, channels = side // 2, channels * 2
    return nn.Sequential(*layers, nn.Conv2d(channels, 1, 4, 1, 0, bias=False))


def check(folder):
    size, microbatches, rule = folder.name.split("-")
    size, microbatches = int(size), int(microbatches)
    before, batches, after = (load_file(folder / f"{part}.safetensors") for part in ("before", "batches", "after"))
    logged = [json.loads(line) for line in open(folder / "steps.rank0.jsonl")]
    logged = [line for line in logged if "errD.loss" in line]
    assert len(logged) == 4
    networks = {"generator.main.": generator(size), "discriminator.main.": discriminator(size)}
    optimizers = []
    for prefix, network in networks.items():
        network.load_state_dict({k.removeprefix(prefix): v for k, v in before.items() if k.startswith(prefix)}, strict=True)
        optimizers.append(torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9) if rule == "sgd"
                          else torch.optim.Adam(network.parameters(), lr=2e-4, betas=(0.5, 0.999)))
    (netG, netD), (optimizerG, optimizerD) = networks.values(), optimizers

    def loss_of(scores, label):
        return F.binary_cross_entropy_with_logits(scores, torch.full_like(scores, label)) / microbatches

    for step, line in enumerate(logged):
        means = dict.fromkeys(("errD.loss", "errD.D_x", "errD.D_G_z1", "errG.loss", "errG.D_G_z2"), 0.0)
        fakes = []
        netD.zero_grad()
        for position in range(step * microbatches, (step + 1) * microbatches):
            scores = netD(batches[f"real{position}"])
            error = loss_of(scores, 1.0)
            error.backward()
            means["errD.loss"] += error.item()
            means["errD.D_x"] += scores.sigmoid().mean().item() / microbatches
            fakes.append(netG(batches[f"noise{position}"]))
            scores = netD(fakes[-1].detach())
            error = loss_of(scores, 0.0)
            error.backward()
            means["errD.loss"] += error.item()
            means["errD.D_G_z1"] += scores.sigmoid().mean().item() / microbatches
        optimizerD.step()
        netG.zero_grad()
        for fake in fakes:
            scores = netD(fake)
            error = loss_of(scores, 1.0)
            error.backward()
            means["errG.loss"] += error.item()
            means["errG.D_G_z2"] += scores.sigmoid().mean().item() / microbatches
        optimizerG.step()
        for name, mean in means.items():
            assert abs(mean - line[name]) <= 1e-5 * max(0.1, abs(mean)), f"{folder.name} step {step} {name}: {mean} {line[name]}"

    expected = {prefix + name: tensor for prefix, network in networks.items() for name, tensor in network.state_dict().items()}
    assert expected.keys() == after.keys(), sorted(expected.keys() ^ after.keys())
    for name, tensor in expected.items():
        moved = (tensor.float() - before[name].float()).abs().max().item()
        error = (tensor.float() - after[name].float()).abs().max().item()
        # Of how far it went; Adam's steps are the rate's size however small, and so however rounded, a gradient is.
        bound = (1e-5 if rule == "sgd" else 2e-2) * moved + 1e-6
        assert moved > 0 and error <= bound, f"{folder.name} {name}: {error} of {moved}"


torch.set_num_threads(1)
folders = sorted(path for path in pathlib.Path(sys.argv[1]).iterdir() if path.is_dir())
assert len(folders) == 8, folders
for folder in folders:
    check(folder)
print("DCGAN's losses and weights are its twin's")
