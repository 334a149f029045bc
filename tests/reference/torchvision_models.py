"""torchvision_models.py FOLDER: what tests/models/torchvision_test.cpp wrote there, beside torchvision's models.

FOLDER/state_dicts.json: {model: {name: shape}} of every image model at full size.
FOLDER/MODEL.{before,batch,after}.safetensors: the weights before and after one step of plain SGD with rate 1 on one
batch of seven classes, without dropout: their difference is the gradient.
"""

import json
import pathlib
import sys

import torch
import torchvision
from safetensors.torch import load_file


def made(name, **options):
    if name == "resnext101_32x4d":  # PipeDream's, which torchvision does not name
        bottleneck = torchvision.models.resnet.Bottleneck
        return torchvision.models.ResNet(bottleneck, [3, 4, 23, 3], groups=32, width_per_group=4, **options)
    if name == "inception_v3":
        options.setdefault("init_weights", False)
    return torchvision.models.get_model(name, weights=None, **options)


def check_state_dict(name, ours):
    with torch.device("meta"):
        theirs = {key: list(value.shape) for key, value in made(name).state_dict().items()}
    assert ours == theirs, f"{name}: {sorted(set(map(str, ours.items())) ^ set(map(str, theirs.items())))[:6]}"


def check_step(folder, name):
    before, batch, after = (load_file(folder / f"{name}.{part}.safetensors") for part in ("before", "batch", "after"))
    model = made(name, num_classes=7, **({"aux_logits": False} if name == "inception_v3" else {}))
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    model.load_state_dict(before, strict=True)
    model.train()
    torch.nn.functional.cross_entropy(model(batch["input"]), batch["target"]).backward()
    for key, parameter in model.named_parameters():
        gradient, step = parameter.grad, before[key] - after[key]
        # torch adds branches up in another order, and a step is rounded to the last place of the weight.
        scale, weight = gradient.abs().max().item(), before[key].abs().max().item()
        error = (step - gradient).abs().max().item()
        assert error <= 1e-3 * scale + 2e-7 * (weight + scale) + 1e-7, f"{name} {key}: {error} of {scale}"
    for key, statistic in model.named_buffers():
        assert torch.allclose(statistic.float(), after[key].float(), rtol=1e-4, atol=1e-5), f"{name} {key}"


folder = pathlib.Path(sys.argv[1])
torch.set_num_threads(1)
state_dicts = json.loads((folder / "state_dicts.json").read_text())
for name, shapes in state_dicts.items():
    check_state_dict(name, shapes)
steps = sorted(path.name.split(".")[0] for path in folder.glob("*.before.safetensors"))
for name in steps:
    check_step(folder, name)
print(f"{len(state_dicts)} state_dicts and {len(steps)} gradients are torchvision's")
