"""Saves what torch.export made of a model, with the step that eager PyTorch takes of the example inputs."""
import copy, json, torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only


class WithoutDropout(TorchDispatchMode):
    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        if operator is torch.ops.aten.bernoulli_.float:  # a mask becomes its mean
            return args[0].fill_(args[1] if len(args) > 1 else 0.5)
        return operator(*args, **(kwargs or {}))


def save(model, program, path):
    """`program` is torch.export.export(model, ...); `model` is as it was then, in training or evaluation."""
    cosines = lambda like: torch.arange(like.numel(), dtype=torch.float64).cos().view(like.shape)
    eager = copy.deepcopy(model).cpu()  # a step changes buffers
    eager.zero_grad()
    args, kwargs = tree_map_only(torch.Tensor, lambda tensor: tensor.cpu(), program.example_inputs)
    assert all(t.is_contiguous() for t in tree_leaves((args, kwargs)) if torch.is_tensor(t)), "export contiguous examples"
    before = torch.get_rng_state()
    with WithoutDropout():
        outputs = [o for o in tree_leaves(eager(*args, **kwargs)) if torch.is_tensor(o) and o.is_floating_point()]
        loss, head = next((o for o in outputs if o.dim() == 0), None), "loss"
        if loss is None:  # any loss shows whether the gradients are the same
            loss, head = (outputs[0] - cosines(outputs[0]).to(outputs[0].dtype)).square().mean(), "mean-squared-error"
        loss.backward()
    if not torch.equal(before, torch.get_rng_state()):
        raise RuntimeError("the model draws more than dropout's masks, so no step can be compared: use torch.export.save")
    gradients = {name: p.grad.double() for name, p in eager.named_parameters() if p.grad is not None}
    step = {"loss": loss.item(), "head": head,
            "gradients": {n: [g.norm().item(), (g * cosines(g)).sum().item()] for n, g in gradients.items()}}
    torch.export.save(program, path, extra_files={"millrace_eager.json": json.dumps(step, allow_nan=False)})
