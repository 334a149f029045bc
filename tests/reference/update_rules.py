"""50 updates of every rule in FOLDER against torch.optim, and against short formulas where torch has none (LAMB, LARS).
Expected is float64; float32 may differ from it four times as much as torch's own float32 does, and by 1e-6 of the
largest value. update_rules.py FOLDER"""
import json
import sys

import torch
from safetensors.torch import load_file

torch.set_num_threads(1)  # small tensors; threads would only wait for each other
folder = sys.argv[1]
cases = json.load(open(f"{folder}/cases.json"))
shared = load_file(f"{folder}/shared.safetensors")
names = [name.removeprefix("weight/") for name in shared if name.startswith("weight/")]


class LayerWise(torch.optim.Optimizer):
    """LAMB (arXiv 1904.00962, as NVIDIA's BERT), LARS (arXiv 1708.03888)."""

    def __init__(self, groups, case):
        super().__init__(groups, {"lr": case["lr"]})
        self.case, self.count = case, 0

    def step(self):
        self.count += 1
        for group in self.param_groups:
            for p in group["params"]:
                spared = group["weight_decay"] == 0
                (self.lamb if self.case["optimizer"] == "LAMB" else self.lars)(p, group["weight_decay"], spared)

    def lamb(self, p, decay, spared):
        case, state = self.case, self.state[p]
        b1, b2 = case["beta1"], case["beta2"]
        m = state.setdefault("exp_avg", torch.zeros_like(p))
        v = state.setdefault("exp_avg_sq", torch.zeros_like(p))
        m.copy_(b1 * m + (1 - b1) * p.grad)
        v.copy_(b2 * v + (1 - b2) * p.grad**2)
        u = (m / (1 - b1**self.count)) / ((v / (1 - b2**self.count)).sqrt() + case["epsilon"]) + decay * p.detach()
        w, n = p.detach().norm(), u.norm()
        r = w / n if w > 0 and n > 0 and not (spared and not case["nvlamb"]) else 1.0
        p.data -= case["lr"] * r * u

    def lars(self, p, decay, spared):
        case = self.case
        w, n = p.detach().norm(), p.grad.norm()
        rate = case["lr"]
        if w > 0 and n > 0 and not spared:
            rate = rate * case["trust"] * w / (n + decay * w + case["epsilon"])
        buffer = self.state[p].setdefault("momentum_buffer", torch.zeros_like(p))
        buffer.copy_(case["momentum"] * buffer + rate * (p.grad + decay * p.detach()))
        p.data -= buffer


def optimizer_of(case, groups):
    lr, kind = case["lr"], case["optimizer"]
    if kind == "SGD":
        return torch.optim.SGD(groups, lr=lr, momentum=case["momentum"], dampening=case["dampening"],
                               nesterov=case["nesterov"])
    if kind in ("Adam", "AdamW"):
        return getattr(torch.optim, kind)(groups, lr=lr, betas=(case["beta1"], case["beta2"]), eps=case["epsilon"],
                                          amsgrad=case["amsgrad"])
    if kind == "Adadelta":
        return torch.optim.Adadelta(groups, lr=lr, rho=case["rho"], eps=case["epsilon"])
    if kind == "RMSprop":
        return torch.optim.RMSprop(groups, lr=lr, alpha=case["alpha"], eps=case["epsilon"], momentum=case["momentum"],
                                   centered=case["centered"])
    if kind == "ASGD":
        return torch.optim.ASGD(groups, lr=lr, lambd=case["lambd"], alpha=case["alpha"], t0=case["average-start"])
    return LayerWise(groups, case)


def run(case, dtype):
    parameters = {name: shared[f"weight/{name}"].to(dtype, copy=True).requires_grad_() for name in names}
    spared = set(case["no_decay"])
    groups = [{"params": [p for n, p in parameters.items() if (n in spared) == left_out],
               "weight_decay": 0.0 if left_out else case["weight-decay"]} for left_out in (False, True)]
    optimizer = optimizer_of(case, [group for group in groups if group["params"]])
    for step in range(cases["steps"]):
        for group in optimizer.param_groups:
            group["lr"] = case["lr"] * case["lr_decay"] ** step
        for name, p in parameters.items():
            p.grad = shared[f"gradient/{step}/{name}"].to(dtype).clone()
        if case["clip_value"] > 0:
            torch.nn.utils.clip_grad_value_(parameters.values(), case["clip_value"])
        if case["clip_norm"] > 0 and case["optimizer"] == "LAMB":
            norm = torch.sqrt(sum(p.grad.double().pow(2).sum() for p in parameters.values()))
            for p in parameters.values():
                p.grad /= max(1.0, norm / case["clip_norm"])
        elif case["clip_norm"] > 0:
            torch.nn.utils.clip_grad_norm_(parameters.values(), case["clip_norm"])
        optimizer.step()
    result = {}
    for name, p in parameters.items():
        result[name] = p.detach()
        for key, value in optimizer.state[p].items():
            if torch.is_tensor(value) and value.shape == p.shape and p.dim() > 0:
                result[f"rule/{key}/{name}"] = value
    return result


for case in cases["cases"]:
    ours = load_file(f"{folder}/{case['file']}")
    exact, single = run(case, torch.float64), run(case, torch.float32)
    for name, tensor in ours.items():
        assert name in exact, f"{case['name']}: torch has no {name}"
        error = (tensor.double() - exact[name]).abs().max().item()
        usual = (single[name].double() - exact[name]).abs().max().item()
        allowed = 4 * usual + 1e-6 * exact[name].abs().max().item()
        assert error <= allowed, f"{case['name']}: {name} is off by {error:.3g}, torch's float32 by {usual:.3g}"
print(f"{len(cases['cases'])} rules")
