"""What tests/models/one_step.h writes, beside the same step of a PyTorch model."""

import torch
from safetensors.torch import load_file


def check_step(folder, name, model, loss_of):
    """FOLDER/NAME.{before,batch,after}.safetensors: weights before and after one step of plain SGD with rate 1, whose
    difference is the gradient, and the batch with its loss. `loss_of(batch)` is the model's."""
    before, batch, after = (load_file(folder / f"{name}.{part}.safetensors") for part in ("before", "batch", "after"))
    model.load_state_dict(before, strict=True)
    model.train()
    loss = loss_of(batch)
    assert abs(loss.item() - batch["loss"].item()) <= 1e-5 * max(1, abs(loss.item())), f"{name}: {loss} {batch['loss']}"
    loss.backward()
    for key, parameter in model.named_parameters():
        gradient, step = parameter.grad, before[key] - after[key]
        # torch adds branches up in another order, and a step is rounded to the last place of the weight.
        scale, weight = gradient.abs().max().item(), before[key].abs().max().item()
        # What is added before a normalisation cancels in it: rounding is all that is left of its gradient, and that is
        # as large as the weight's.
        beside = model.get_parameter(key[:-len("bias")] + "weight").grad if key.endswith("bias") else gradient
        rounding = 1e-5 * beside.abs().max().item()
        error = (step - gradient).abs().max().item()
        bound = 1e-3 * scale + 2e-7 * (weight + scale) + 1e-7 + rounding
        assert error <= bound, f"{name} {key}: {error} of {scale}, {rounding}"
    for key, statistic in model.named_buffers():
        assert torch.allclose(statistic.float(), after[key].float(), rtol=1e-4, atol=1e-5), f"{name} {key}"
