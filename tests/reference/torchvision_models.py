"""torchvision_models.py FOLDER: what tests/models/torchvision_test.cpp wrote there, beside torchvision's models.

FOLDER/state_dicts.json: {model: {name: shape}} of every image model at full size.
FOLDER/MODEL.{before,batch,after}.safetensors: one_step.py; of seven classes, without dropout.
"""

import json
import pathlib
import sys

import torch
import torchvision

from one_step import check_step


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


def check(folder, name):
    model = made(name, num_classes=7, **({"aux_logits": False} if name == "inception_v3" else {}))
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    check_step(folder, name, model,
               lambda batch: torch.nn.functional.cross_entropy(model(batch["input"]), batch["target"]))


folder = pathlib.Path(sys.argv[1])
torch.set_num_threads(1)
state_dicts = json.loads((folder / "state_dicts.json").read_text())
for name, shapes in state_dicts.items():
    check_state_dict(name, shapes)
steps = sorted(path.name.split(".")[0] for path in folder.glob("*.before.safetensors"))
for name in steps:
    check(folder, name)
print(f"{len(state_dicts)} state_dicts and {len(steps)} gradients are torchvision's")
