"""Exports models of torchvision, transformers and a few of its own as millrace reads them.

    export_models.py FOLDER NAME...        (no NAME: prints the names)

For each: FOLDER/NAME.pt2, and FOLDER/NAME.step.safetensors: what PyTorch itself computes of one step from the archive's
weights: "input/FIELD", "loss", "grad/PARAMETER", "buffer/BUFFER" after the step, and "evaluation", the loss of the same batch
in evaluation mode before it. Dropout is 0 in these, so that there is one answer, and left as it is in those whose name ends
in _dropout, which only get an archive.
"""
import copy
import math
import os
import sys
import warnings

warnings.filterwarnings("ignore")
import torch
import torchvision
from safetensors.torch import save_file
from torch import nn

DYNAMIC = torch.export.Dim.DYNAMIC
AUTO = torch.export.Dim.AUTO


class WithLoss(nn.Module):
    """A classifier of images and its loss in one graph; several outputs (Inception's auxiliary scores) all count."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, images, labels):
        scores = self.model(images)
        if isinstance(scores, tuple):
            return sum(w * nn.functional.cross_entropy(s, labels) for w, s in zip((1.0, 0.4), scores))
        return nn.functional.cross_entropy(scores, labels)


class Mlp(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(12, 32), nn.GELU(), nn.Dropout(dropout), nn.Linear(32, 32), nn.LayerNorm(32), nn.ReLU(inplace=True),
            nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 5))

    def forward(self, x):
        return self.layers(x)


class LanguageModel(nn.Module):
    """LSTM, decoder tied to the embedding, loss over the tokens that are not padding."""

    def __init__(self, dropout):
        super().__init__()
        self.embedding = nn.Embedding(50, 24)
        self.lstm = nn.LSTM(24, 24, num_layers=2, batch_first=True, dropout=dropout)
        self.drop = nn.Dropout(dropout)
        self.decoder = nn.Linear(24, 50)
        self.decoder.weight = self.embedding.weight

    def forward(self, tokens, labels):
        hidden, _ = self.lstm(self.drop(self.embedding(tokens)))
        scores = self.decoder(self.drop(hidden))
        return nn.functional.cross_entropy(scores.flatten(0, 1), labels.flatten())


class WrittenOut(nn.Module):
    """GELU by tanh and attention call by call: three of each that one operator of PyTorch does as well, and one of each that it
    does not, because something else reads what stands between (or is learned)."""

    def __init__(self):
        super().__init__()
        self.maps = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))
        self.bias = nn.Parameter(torch.randn(1, 1, 6, 6))
        self.register_buffer("mask", torch.full((6, 6), -1e9).triu(1)[None, None])
        self.last = nn.Linear(16, 5)

    def attention(self, x, scores):
        heads = x.view(x.shape[0], 6, 2, 8).transpose(1, 2)
        weights = torch.softmax(scores(heads @ heads.transpose(-1, -2)), -1)
        return (nn.functional.dropout(weights, 0.0) @ heads).transpose(1, 2).reshape(x.shape[0], 6, 16), weights

    def forward(self, x):
        x = self.maps[0](x)
        x = 0.5 * x * (1.0 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))
        x = x + self.attention(x, lambda s: s * 0.3 + self.mask)[0]
        x = self.maps[1](x)
        x = (torch.tanh(math.sqrt(2 / math.pi) * (0.044715 * torch.pow(x, 3.0) + x)) + 1.0) * (x * 0.5)
        x = x + self.attention(x, lambda s: s / math.sqrt(8))[0]
        x = self.maps[2](x)
        x = x + self.attention(x, lambda s: s)[0]
        x = 0.5 * x * (1.0 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))
        x = x + self.attention(x, lambda s: s + self.bias)[0]
        y, weights = self.attention(x, lambda s: s * 0.3)
        x = self.maps[3](x + y) + weights.mean()
        bend = torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0)))
        return self.last((0.5 * x * (1.0 + bend) + bend).mean(1))


class Corners(nn.Module):
    """What graphs of other models have too: a parameter and a buffer at the root, a frozen and an unused parameter, a constant,
    views that are written to, split, shape arithmetic, a region without gradients, a shared weight."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.full((1, 12), 1.5))
        self.frozen = nn.Parameter(torch.ones(12), requires_grad=False)
        self.unused = nn.Parameter(torch.ones(3))
        self.register_buffer("count", torch.zeros(2))
        self.register_buffer("order", torch.arange(12).flip(0))
        self.a = nn.Linear(12, 12)
        self.b = nn.Linear(12, 12)
        self.b.weight = self.a.weight
        self.c = nn.Linear(6, 4)

    def forward(self, x):
        self.count.add_(1)
        x = x * self.scale + self.frozen
        mask = torch.zeros_like(x)
        mask[:, 2:5] = 1
        mask[:, 3].mul_(0.5)
        x = self.a(x * mask)[:, self.order]
        with torch.no_grad():
            norm = x.abs().mean() + torch.tensor([0.5, 1.0]).sum()
        y = self.b(torch.relu_(x / norm))
        left, right = y.split(6, dim=1)
        y = (left * right.sigmoid()).view(x.shape[0] * 2, 3).reshape(x.size(0), -1)
        return self.c(y)


class Fourier(nn.Module):
    """Complex values: between calls and layers, conjugated, made of a parameter of pairs, beside a complex buffer."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(12, 16)
        self.filter = nn.Parameter(torch.randn(9, 2))
        self.register_buffer("shift", torch.randn(9, dtype=torch.complex64))
        self.b = nn.Linear(16, 16)
        self.c = nn.Linear(9, 16)
        self.d = nn.Linear(16, 4)

    def forward(self, x):
        h = torch.fft.rfft(self.a(x)) * torch.view_as_complex(self.filter)
        h = torch.fft.irfft(h.conj() * self.shift, n=16)
        z = torch.fft.rfft(self.b(torch.tanh(h)))
        y = torch.fft.fft(self.c(z.abs()))
        return self.d(y.real * y.conj().imag + torch.view_as_real(y).sum(-1))


class ComplexParameter(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(12, 16)
        self.filter = nn.Parameter(torch.randn(9, dtype=torch.complex64))
        self.b = nn.Linear(9, 4)

    def forward(self, x):
        return self.b((torch.fft.rfft(self.a(x)) * self.filter).abs())


class Clamped(nn.Module):
    """The critic of a WGAN that clips its weights itself."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(12, 16)
        self.b = nn.Linear(16, 4)

    def forward(self, x):
        with torch.no_grad():
            self.a.weight.clamp_(-0.1, 0.1)
        return self.b(torch.relu(self.a(x)))


class Spectral(nn.Module):
    """Both forms of spectral_norm: calls that write their results into buffers."""

    def __init__(self):
        super().__init__()
        self.a = nn.utils.parametrizations.spectral_norm(nn.Linear(12, 16))
        self.b = nn.utils.spectral_norm(nn.Linear(16, 4))

    def forward(self, x):
        return self.b(torch.relu(self.a(x)))


class Written(nn.Module):
    """Writes that a gradient passes by (under no_grad), to a buffer through a view, to a copy of a buffer; a map whose gradient
    is zero and one that nothing reads."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(12, 16)
        self.register_buffer("seen", torch.zeros(2, 16))
        self.register_buffer("order", torch.arange(16))
        self.b = nn.Linear(16, 4)
        self.silent = nn.Linear(16, 4)
        self.idle = nn.Linear(16, 4)

    def forward(self, x):
        h = self.a(x)
        with torch.no_grad():
            h.clamp_(-0.5, 0.5)
            self.seen[0].add_(h.mean(0))
        h[:, 3] = 0.25
        scale = self.order.to(torch.float32)
        scale.mul_(0.1)
        if self.training:
            self.seen[1].copy_(h.detach().amax(0))
        return self.b(h * 2 * scale) + 0 * self.silent(h)


class Translator(nn.Module):
    """PyTorch's own encoder and decoder, with padding in the source."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        self.transformer = nn.Transformer(16, 2, 2, 2, 32, dropout=0.0, batch_first=True)
        self.scores = nn.Linear(16, 20)

    def forward(self, source, target, labels):
        padding = source == 0
        later = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        h = self.transformer(self.embedding(source), self.embedding(target), tgt_mask=later, tgt_is_causal=True,
                             src_key_padding_mask=padding, memory_key_padding_mask=padding)
        return nn.functional.cross_entropy(self.scores(h).flatten(0, 1), labels.flatten())


def small(config, **values):
    return config(num_hidden_layers=2, hidden_size=32, num_attention_heads=2, intermediate_size=64, vocab_size=100,
                  max_position_embeddings=64, **values)


def tokens(*names, rows=3, length=10):
    values = {}
    for name in names:
        shape = (rows,) if name == "next_sentence_label" else (rows, length)
        high = 2 if name in ("next_sentence_label", "token_type_ids") else 100
        values[name] = torch.ones(shape, dtype=torch.long) if name == "attention_mask" else torch.randint(0, high, shape)
    return (), values, {n: {d: AUTO for d in range(v.dim())} for n, v in values.items()}


def images(size, classes=10, rows=4):
    x, y = torch.randn(rows, 3, size, size), torch.randint(0, classes, (rows,))
    return (x, y), {}, ({0: DYNAMIC}, {0: DYNAMIC})


def vision(name, size, rows=4, **values):
    def make(dropout):
        model = getattr(torchvision.models, name)(weights=None, num_classes=10, **values)
        for module in model.modules():
            if dropout == 0 and isinstance(module, nn.Dropout):
                module.p = 0.0
            if dropout == 0 and isinstance(module, torchvision.ops.StochasticDepth):
                module.p = 0.0
            if dropout == 0 and isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0
        return WithLoss(model), images(size, rows=rows)

    return make


def bert(dropout):
    from transformers import BertConfig, BertForPreTraining

    model = BertForPreTraining(small(BertConfig, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout))
    return model, tokens("input_ids", "attention_mask", "token_type_ids", "labels", "next_sentence_label")


def gpt2(dropout):
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=100, n_positions=64, resid_pdrop=dropout,
                                       embd_pdrop=dropout, attn_pdrop=dropout, use_cache=False))
    return model, tokens("input_ids", "labels")


def llama(dropout):
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(small(LlamaConfig, num_key_value_heads=1, attention_dropout=dropout, use_cache=False))
    return model, tokens("input_ids", "labels")


def mixtral(dropout):
    from transformers import MixtralConfig, MixtralForCausalLM

    model = MixtralForCausalLM(small(MixtralConfig, num_key_value_heads=1, attention_dropout=dropout, use_cache=False,
                                     num_local_experts=6, num_experts_per_tok=2))
    return model, tokens("input_ids", "labels")


def scores(model, *shape):
    return model, ((torch.randn(*shape),), {}, ({0: DYNAMIC},))


MODELS = {
    "mlp": lambda dropout: scores(Mlp(dropout), 6, 12),
    "written_out": lambda dropout: scores(WrittenOut(), 6, 6, 16),
    "corners": lambda dropout: scores(Corners(), 6, 12),
    "frozen_batch": lambda dropout: (Mlp(dropout), ((torch.randn(6, 12),), {}, None)),
    "fourier": lambda dropout: scores(Fourier(), 6, 12),
    "complex_parameter": lambda dropout: scores(ComplexParameter(), 6, 12),
    "clamped": lambda dropout: scores(Clamped(), 6, 12),
    "spectral": lambda dropout: scores(Spectral(), 6, 12),
    "written": lambda dropout: scores(Written(), 6, 12),
    "translator": lambda dropout: (Translator(), sentences()),
    "resnet18": vision("resnet18", 32),
    "resnet50": vision("resnet50", 64),
    "vgg16": vision("vgg16", 32),
    "inception_v3": vision("inception_v3", 299, rows=2, init_weights=False),
    "efficientnet_b0": vision("efficientnet_b0", 64),
    "vit_b_16": vision("vit_b_16", 64, image_size=64),
    "swin_t": vision("swin_t", 64),
    "bert": bert,
    "gpt2": gpt2,
    "llama": llama,
    "mixtral": mixtral,
    "lstm": lambda dropout: (LanguageModel(dropout), tokens_of_lstm()),
}


def tokens_of_lstm():
    x, y = torch.randint(0, 50, (5, 9)), torch.randint(0, 50, (5, 9))
    y[2, 6:] = -100
    return (x, y), {}, ({0: AUTO, 1: AUTO}, {0: AUTO, 1: AUTO})


def sentences():
    source, target, labels = torch.randint(1, 20, (5, 7)), torch.randint(1, 20, (5, 6)), torch.randint(0, 20, (5, 6))
    source[1, 4:] = 0
    return (source, target, labels), {}, ({0: DYNAMIC},) * 3


def loss_of(output, dropout_free_labels):
    if isinstance(output, dict) or hasattr(output, "loss"):
        return output["loss"]
    if isinstance(output, torch.Tensor) and output.dim() == 0:
        return output
    return nn.functional.cross_entropy(output, dropout_free_labels)


def export(folder, name):
    torch.manual_seed(7)
    with_dropout = name.endswith("_dropout")
    model, (args, kwargs, dynamic) = MODELS[name.removesuffix("_dropout")](0.2 if with_dropout else 0.0)
    if not kwargs and isinstance(dynamic, dict):
        dynamic = tuple(dynamic.values())
    model.train()
    program = torch.export.export(model, args, kwargs, dynamic_shapes=dynamic, strict=False)
    path = os.path.join(folder, name + ".pt2")
    torch.export.save(program, path + ".tmp.pt2")
    if not with_dropout:
        batch = (args[0] if args else next(iter(kwargs.values()))).shape[0]
        target = torch.randint(0, 4, (batch,))
        names = [s.arg.name for s in program.graph_signature.input_specs if s.kind.name == "USER_INPUT"]
        values = dict(zip(names, list(args) + list(kwargs.values())))
        with torch.no_grad():
            evaluation = loss_of(copy.deepcopy(model).eval()(*args, **kwargs), target)
        output = model(*args, **kwargs)
        loss = loss_of(output, target)
        if isinstance(output, torch.Tensor) and output.dim() > 0:
            values["target"] = target
        loss.backward()
        step = {"input/" + n: v.clone() for n, v in values.items()}
        step["loss"] = loss.detach().reshape(1)
        step["evaluation"] = evaluation.reshape(1)
        for n, p in model.named_parameters(remove_duplicate=False):
            if p.grad is not None:
                step["grad/" + n] = p.grad.clone().contiguous()
        for n, b in model.state_dict().items():
            if n not in dict(model.named_parameters(remove_duplicate=False)) and b.dtype in (torch.float32, torch.int64, torch.complex64):
                step["buffer/" + n] = b.clone().contiguous()
        save_file(step, os.path.join(folder, name + ".step.safetensors"))
    os.replace(path + ".tmp.pt2", path)


def check(name, weights, archive):
    """Loads what millrace has trained."""
    from safetensors.torch import load_file

    torch.manual_seed(7)
    model = MODELS[name.removesuffix("_dropout")](0.2)[0]
    found = load_file(weights)
    print("strict load:", "ok" if not any(model.load_state_dict(found, strict=True)) else "differs")
    stored = torch.export.load(archive).state_dict
    same = all(torch.equal(found[n], v) for n, v in stored.items())
    print("archive:", "ok" if same and set(stored) == set(found) else "differs")


def arrays(name, path):
    """A user's own data set for the model: 24 samples, the lengths of the example."""
    import numpy

    _, (args, kwargs, _) = MODELS[name](0.0)
    values = dict(zip({"lstm": ("tokens", "labels"), "mlp": ("x",)}[name], args)) | kwargs
    numpy.savez(path, **{n: numpy.repeat(v.numpy(), 24, axis=0)[:24] for n, v in values.items()})


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1:2] == ["--check"]:
        sys.exit(check(*sys.argv[2:]))
    if sys.argv[1:2] == ["--arrays"]:
        sys.exit(arrays(*sys.argv[2:]))
    if len(sys.argv) < 3:
        print("\n".join(MODELS))
    for name in sys.argv[2:]:
        export(sys.argv[1], name)
        print(name, flush=True)
