"""Compares losses and gradients of models over tokens with PyTorch's own: the files that the test
Language.LossAndGradientsArePyTorchs writes (fields of two microbatches, weights, gradients, loss).
compare_language.py FOLDER"""
import os
import sys

import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F
from transformers import BertConfig, BertForPreTraining

folder = sys.argv[1]
TOLERANCE = 1e-5  # of the largest element; float32


class Gnmt(nn.Module):
    """In the state_dict's names; dropout is off."""

    def __init__(self, weights):
        super().__init__()
        self.w = nn.ParameterDict()
        self.names = {}
        for name, value in weights.items():
            key = name.replace(".", "/")
            self.w[key] = nn.Parameter(value.clone())
            self.names[name] = self.w[key]
        self.layers = sum(name.startswith("encoder.rnn_layers.") and name.endswith(".weight_ih_l0") for name in weights)

    def get(self, name):
        return self.names[name]

    def lstm(self, name, x, lengths=None):
        both = lengths is not None
        hidden = self.get(name + ".weight_hh_l0").shape[1]
        lstm = nn.LSTM(x.shape[2], hidden, bidirectional=both)
        parameters = {part: self.get(f"{name}.{part}") for part, _ in lstm.named_parameters()}
        if not both:
            return torch.func.functional_call(lstm, parameters, (x,))[0]
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
        out = torch.func.functional_call(lstm, parameters, (packed,))[0]
        return nn.utils.rnn.pad_packed_sequence(out, total_length=x.shape[0])[0]

    def attention(self, y, e, source):
        name = "decoder.att_rnn.attn."
        q, k = y @ self.get(name + "linear_q.weight").T, e @ self.get(name + "linear_k.weight").T
        v = self.get(name + "linear_att")
        v = self.get(name + "normalize_scalar") * v / v.norm()
        z = torch.tanh(q[:, None] + k[None] + self.get(name + "normalize_bias"))  # [T, S, B, H]
        scores = (z @ v).masked_fill(source.eq(0)[None], -65504.0)
        return torch.einsum("tsb,sbh->tbh", scores.softmax(1), e)

    def forward(self, source, target):
        embed = F.embedding(source, self.get("encoder.embedder.weight"), padding_idx=0)
        x = self.lstm("encoder.rnn_layers.0", embed, source.ne(0).sum(0))
        x = self.lstm("encoder.rnn_layers.1", x)
        for i in range(2, self.layers):
            x = x + self.lstm(f"encoder.rnn_layers.{i}", x)
        shared = "decoder.embedder.weight" not in self.names
        table = self.get(("encoder" if shared else "decoder") + ".embedder.weight")
        y = self.lstm("decoder.att_rnn.rnn", F.embedding(target, table, padding_idx=0))
        context = self.attention(y, x, source)
        y = self.lstm("decoder.rnn_layers.0", torch.cat([y, context], 2))
        for j in range(1, self.layers - 1):
            y = y + self.lstm(f"decoder.rnn_layers.{j}", torch.cat([y, context], 2))
        name = "decoder.classifier.classifier."
        return y @ self.get(name + "weight").T + self.get(name + "bias")


def gnmt(weights, batches):
    model = Gnmt(weights)
    total = sum(batch["labels"].ne(0).sum() for batch in batches)
    loss = 0
    for batch in batches:
        scores = model(batch["source"], batch["target"])
        loss = loss + F.cross_entropy(scores.flatten(0, 1), batch["labels"].flatten(), ignore_index=0,
                                      label_smoothing=0.1, reduction="sum") / total
    loss.backward()
    return loss, {name: value.grad for name, value in model.names.items()}


def bert(weights, batches):
    words = weights["bert.embeddings.word_embeddings.weight"]
    layers = sum(name.endswith(".attention.self.query.weight") for name in weights)
    config = BertConfig(vocab_size=words.shape[0], hidden_size=words.shape[1], num_hidden_layers=layers,
                        num_attention_heads=2,
                        intermediate_size=weights["bert.encoder.layer.0.intermediate.dense.weight"].shape[0],
                        max_position_embeddings=weights["bert.embeddings.position_embeddings.weight"].shape[0],
                        hidden_dropout_prob=0, attention_probs_dropout_prob=0, attn_implementation="eager")
    model = BertForPreTraining(config)
    missing = model.load_state_dict(weights, strict=False)
    assert not missing.unexpected_keys, missing
    aliases = {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias", "bert.embeddings.position_ids"}
    assert set(missing.missing_keys) <= aliases, missing
    model.tie_weights()
    model.train()
    masked = sum(batch["masked_labels"].ne(0).sum() for batch in batches)
    samples = sum(len(batch["next_sentence"]) for batch in batches)
    loss = 0
    for batch in batches:
        ids = batch["input_ids"]
        out = model(input_ids=ids, token_type_ids=batch["token_type_ids"], attention_mask=ids.ne(0).long())
        places = batch["masked_positions"][:, :, None].expand(-1, -1, config.vocab_size)
        scores = out.prediction_logits.gather(1, places)
        loss = loss + F.cross_entropy(scores.flatten(0, 1), batch["masked_labels"].flatten(), ignore_index=0,
                                      reduction="sum") / masked
        loss = loss + F.cross_entropy(out.seq_relationship_logits, batch["next_sentence"], reduction="sum") / samples
    loss.backward()
    return loss, {name: value.grad for name, value in model.named_parameters() if name in weights}


class TransformerLm(nn.Module):
    """As PyTorch's word_language_model example, batch first."""

    def __init__(self, vocabulary, features, heads, feed_forward, layers):
        super().__init__()
        self.encoder = nn.Embedding(vocabulary, features)
        layer = nn.TransformerEncoderLayer(features, heads, feed_forward, dropout=0.0, batch_first=True)
        self.transformer_encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.decoder = nn.Linear(features, vocabulary)

    def forward(self, tokens):
        features, length = self.encoder.embedding_dim, tokens.shape[1]
        place = torch.arange(length)[:, None]
        rate = torch.exp(torch.arange(0, features, 2) * (-torch.log(torch.tensor(10000.0)) / features))
        table = torch.zeros(length, features)
        table[:, 0::2], table[:, 1::2] = torch.sin(place * rate), torch.cos(place * rate)
        x = self.encoder(tokens) * features**0.5 + table
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        return self.decoder(self.transformer_encoder(x, mask=mask, is_causal=True))


def adaptive_softmax(names):
    """torch's own over decoder.*, for clusters of this divisor; None: the decoder is a matrix. `names` may hold parameters."""
    if "decoder.head.weight" not in names:
        return None
    prefix, tails = "decoder.", []
    while f"{prefix}tail.{len(tails)}.1.weight" in names:
        tails.append(names[f"{prefix}tail.{len(tails)}.1.weight"].shape[0])
    head, features = names[prefix + "head.weight"].shape
    cutoffs = [head - len(tails)]
    for classes in tails:
        cutoffs.append(cutoffs[-1] + classes)
    module = nn.AdaptiveLogSoftmaxWithLoss(features, cutoffs[-1], cutoffs[:-1], div_value=2.0)
    parameters = {name.removeprefix(prefix): value for name, value in names.items() if name.startswith(prefix)}
    assert parameters.keys() == dict(module.named_parameters()).keys(), parameters.keys()
    return lambda x, labels: torch.func.functional_call(module, parameters, (x.flatten(0, -2), labels.flatten()))


def transformer_lm(weights, batches):
    vocabulary, features = weights["encoder.weight"].shape
    feed_forward = weights["transformer_encoder.layers.0.linear1.weight"].shape[0]
    layers = sum(name.endswith("in_proj_weight") for name in weights)
    model = TransformerLm(vocabulary, features, 2, feed_forward, layers)
    tail = {name: nn.Parameter(value.clone()) for name, value in weights.items() if name.startswith("decoder.")}
    adaptive = adaptive_softmax(tail)
    if adaptive:
        model.decoder = nn.Identity()
        model.load_state_dict({name: value for name, value in weights.items() if name not in tail})
    else:
        model.load_state_dict(weights)
    total = sum(batch["labels"].ne(-100).sum() for batch in batches)
    loss = 0
    for batch in batches:
        if adaptive:
            assert batch["labels"].ge(0).all()
            loss = loss - adaptive(model(batch["tokens"]), batch["labels"]).output.sum() / total
            continue
        loss = loss + F.cross_entropy(model(batch["tokens"]).flatten(0, 1), batch["labels"].flatten(),
                                      reduction="sum") / total
    loss.backward()
    gradients = {name: value.grad for name, value in model.named_parameters()}
    return loss, gradients | {name: value.grad for name, value in tail.items() if adaptive}


def awd_lstm(weights, batches):
    """salesforce/awd-lstm-lm's without its dropouts: two microbatches of a window, then the next windows of the same rows."""
    names = {name: nn.Parameter(value.clone()) for name, value in weights.items()}
    layers = sum(name.endswith(".weight_ih_l0") for name in weights)
    table = names["encoder.weight"]
    adaptive = adaptive_softmax(names)

    def run(batch, states):
        x, after = F.embedding(batch["tokens"], table), []
        for i in range(layers):
            prefix = f"rnns.{i}.module."
            parameters = {part: names[prefix + part] for part in ("weight_ih_l0", "bias_ih_l0", "bias_hh_l0")}
            parameters["weight_hh_l0"] = names[prefix + "weight_hh_l0_raw"]
            lstm = nn.LSTM(x.shape[2], parameters["weight_hh_l0"].shape[1])
            x, state = torch.func.functional_call(lstm, parameters, (x, states[i]) if states else (x,))
            after.append(state)
        scores = None if adaptive else x @ names.get("decoder.weight", table).T + names["decoder.bias"]
        return x, scores, after

    with torch.no_grad():
        states = [run(batch, None)[2] for batch in batches[:2]]
    total = sum(batch["labels"].numel() for batch in batches[2:])
    loss = 0
    for batch, state in zip(batches[2:], states):
        h, scores, _ = run(batch, state)
        if adaptive:
            mean = adaptive(h, batch["labels"]).loss
        else:
            mean = F.cross_entropy(scores.flatten(0, 1), batch["labels"].flatten())
        mean = mean + 2 * h.pow(2).mean() + (h[1:] - h[:-1]).pow(2).mean()
        loss = loss + mean * batch["labels"].numel() / total
    loss.backward()
    return loss, {name: value.grad for name, value in names.items()}


def s2vt(weights, batches):
    """As its paper has it, a sample at a time: frames while no word is read, then words while no frame is."""
    features, hidden = weights["embedding.weight"].shape[1], weights["lstm1.weight_hh_l0"].shape[1]
    lstm1, lstm2 = nn.LSTM(features, hidden), nn.LSTM(hidden + features + 1, hidden)
    encoder = nn.Linear(weights["embed_encoder.weight"].shape[1], features)
    words = nn.Embedding(*weights["embedding.weight"].shape)
    predict = nn.Linear(hidden, weights["predict.weight"].shape[0])
    model = nn.ModuleDict(
        {"embed_encoder": encoder, "embedding": words, "lstm1": lstm1, "lstm2": lstm2, "predict": predict})
    model.load_state_dict(weights)
    total = sum(batch["labels"].ne(0).sum() for batch in batches)
    loss = 0
    for batch in batches:
        for b in range(batch["tokens"].shape[1]):
            labels = batch["labels"][:, b]
            said = labels.nonzero().squeeze(1)
            first, end = said[0].item(), said[-1].item() + 1
            assert batch["tokens"][first, b] == 2 and labels[end - 1] == 3 and len(said) == end - first
            frames = batch["frames"][:first, b]
            assert first > 0 and frames.abs().sum(1).min() > 0
            spoken = batch["tokens"][first:end, b]
            seen, state1 = lstm1(encoder(frames))
            nothing = torch.cat([words(torch.zeros(first, dtype=torch.long)), torch.zeros(first, 1)], 1)
            _, state2 = lstm2(torch.cat([seen, nothing], 1))
            blank = encoder(torch.zeros(end - first, frames.shape[1]))
            seen, _ = lstm1(blank, state1)
            told, _ = lstm2(torch.cat([seen, words(spoken), torch.ones(end - first, 1)], 1), state2)
            loss = loss + F.cross_entropy(predict(told), labels[first:end], reduction="sum") / total
    loss.backward()
    return loss, {name: value.grad for name, value in model.named_parameters()}


def compare(name, function):
    tensors = load_file(os.path.join(folder, name + ".safetensors"))
    weights, gradients, batches = {}, {}, []
    for key, value in tensors.items():
        kind, _, rest = key.partition("/")
        if kind == "weight":
            weights[rest] = value
        elif kind == "gradient":
            gradients[rest] = value
        elif kind == "field":
            batches.extend({} for _ in range(int(rest[0]) + 1 - len(batches)))
            batches[int(rest[0])][rest[2:]] = value
    loss, found = function(weights, batches)
    assert found.keys() == gradients.keys(), found.keys() ^ gradients.keys()
    ours = tensors["loss"].item()
    assert abs(ours - loss.item()) <= TOLERANCE * abs(loss.item()), (name, ours, loss.item())
    # A gradient that is zero but for rounding (of a key's bias) is compared with the largest of the model.
    largest = max(gradient.abs().max().item() for gradient in found.values())
    worst = 0.0
    for key, gradient in found.items():
        scale = max(gradient.abs().max().item(), 1e-3 * largest)
        error = (gradient - gradients[key]).abs().max().item() / scale
        worst = max(worst, error)
        assert error <= TOLERANCE, (name, key, error)
    print(f"{name}: loss {ours:.6f}, {len(found)} gradients, worst {worst:.1e}")


torch.manual_seed(0)
compare("gnmt", gnmt)
compare("gnmt_shared", gnmt)
compare("gnmt_deep", gnmt)
compare("bert", bert)
compare("transformer_lm", transformer_lm)
compare("awd_lstm", awd_lstm)
compare("awd_lstm_separate", awd_lstm)
compare("transformer_lm_adaptive", transformer_lm)
compare("awd_lstm_adaptive", awd_lstm)
compare("s2vt", s2vt)
