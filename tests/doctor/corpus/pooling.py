"""One vector or one entry of a sequence: means, sums, largest values, positions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.doctor.pairs import Case, lasting, pair


@pair("padding-leak", "huggingface/transformers#5429")
def argmax_over_padding(wrong):
    """The argmax for the start of an answer includes padding, and its state is used in the loss."""
    encode, head = nn.Linear(4, 6), nn.Linear(6, 3)
    batch = {
        "x": torch.randn(6, 5, 4),
        "mask": lasting(5, 1, 2, 1, 3, 1),
        "y": torch.tensor([0, 2, 1, 1, 0, 2]),
    }

    def step(batch):
        if wrong:
            hidden = encode(batch["x"]).tanh()
            found = hidden.sum(-1).argmax(1)  # leak
        else:
            padded = ~batch["mask"]
            hidden = encode(batch["x"].masked_fill(padded[..., None], 0)).tanh()
            found = hidden.sum(-1).masked_fill(padded, -torch.inf).argmax(1)
        return F.cross_entropy(head(hidden[torch.arange(len(found)), found]), batch["y"])

    return Case(step, batch, padding={"x": "mask"})


@pair("padding-leak", "LAION-AI/temporal-embedding-aggregation#14")
def attention_pooling_over_padding(wrong):
    """Attention pooling: the softmax over time gives weight to padding."""
    score, head = nn.Linear(4, 1), nn.Linear(4, 2)
    batch = {
        "hidden": torch.randn(3, 6, 4),
        "attention_mask": lasting(6, 2, 4).long(),
        "y": torch.tensor([1, 0, 1]),
    }

    def step(batch):
        if wrong:
            hidden = batch["hidden"]
            weights = score(hidden).softmax(1)  # leak
        else:
            padded = batch["attention_mask"][..., None] == 0
            hidden = batch["hidden"].masked_fill(padded, 0)
            weights = score(hidden).masked_fill(padded, -1e30).softmax(1).masked_fill(padded, 0)
        return F.cross_entropy(head((weights * hidden).sum(1)), batch["y"])

    return Case(step, batch, padding={"hidden": "attention_mask"})


@pair("padding-leak", "none found; pooling under autocast and checkpointing, as without them")
def autocast_without_mask(wrong):
    """Under autocast, the maximum over tokens includes padding."""
    encode = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
    head = nn.Linear(8, 3)
    batch = {"x": torch.randn(3, 5, 8), "mask": lasting(5, 3, 2), "y": torch.tensor([0, 2, 1])}

    def hidden_of(batch):
        keep = lambda x: encode(x, src_key_padding_mask=~batch["mask"])  # noqa: E731
        with torch.autocast("cpu", torch.bfloat16):
            return checkpoint(keep, batch["x"], use_reentrant=False)

    def step(batch):
        if wrong:
            pooled = hidden_of(batch).amax(1)  # leak
        else:
            hidden = hidden_of(batch).masked_fill(~batch["mask"][..., None], -torch.inf)
            pooled = hidden.amax(1).clamp(min=-1e4)
        return F.cross_entropy(head(pooled.float()), batch["y"])

    return Case(step, batch, padding={"x": "mask"})


@pair("padding-leak", "NVIDIA-NeMo/Speech#3216")
def gate_of_padding(wrong):
    """Squeeze and excitation: channels are weighted by their mean over time, including padding."""
    conv, gate, head = nn.Conv1d(4, 6, 1), nn.Linear(6, 6), nn.Linear(6, 1)
    batch = {"x": torch.randn(3, 4, 5), "mask": lasting(5, 3, 2), "y": torch.randn(3, 5)}

    def loss_of(batch, hidden, squeezed):
        excited = hidden * gate(squeezed).sigmoid()[..., None]
        error = head(excited.transpose(1, 2)).squeeze(-1) - batch["y"]
        return error.masked_fill(~batch["mask"], 0).square().sum() / batch["mask"].sum()

    def step(batch):
        if wrong:
            hidden = conv(batch["x"])
            squeezed = nn.functional.adaptive_avg_pool1d(hidden, 1).squeeze(-1)  # leak
        else:
            hidden, real = conv(batch["x"]), batch["mask"][:, None]
            squeezed = (hidden * real).sum(2) / real.sum(2).clamp(min=1)
        return loss_of(batch, hidden, squeezed)

    return Case(step, batch, padding={"x": batch["mask"][:, None], "y": "mask"})


@pair("padding-leak", "none found; rows averaged one by one into a buffer")
def in_place_buffers(wrong):
    """A buffer is filled in place, row by row, one token too far."""
    encode, head = nn.Linear(4, 6), nn.Linear(6, 1)
    batch = {"x": torch.randn(3, 5, 4), "lengths": torch.tensor([4, 2, 3]), "y": torch.randn(3)}

    def loss_of(batch, pooled):
        return (head(pooled).squeeze(-1) - batch["y"]).square().mean()

    def step(batch):
        hidden, pooled = encode(batch["x"]).relu(), torch.zeros(3, 6)
        if wrong:
            for row, length in enumerate(batch["lengths"].tolist()):
                pooled[row] = hidden[row, : length + 1].mean(0)  # leak
        else:
            for row, length in enumerate(batch["lengths"].clamp(min=1).tolist()):
                pooled[row] = hidden[row, :length].mean(0)
        return loss_of(batch, pooled)

    return Case(step, batch, padding={"x": torch.arange(5) < batch["lengths"][:, None]})


@pair("padding-leak", "thunlp/HATT-Proto#12")
def max_over_padding(wrong):
    """The maximum over tokens represents the sentence; it may be a padded token."""
    encoder, head = nn.Linear(4, 8), nn.Linear(8, 2)
    batch = {"features": torch.randn(3, 5, 4), "mask": lasting(5, 3, 1), "y": torch.tensor([0, 1, 1])}

    def step(batch):
        hidden = encoder(batch["features"]).relu()
        if wrong:
            strongest = hidden.amax(1)  # leak
        else:
            strongest = hidden.masked_fill(~batch["mask"][..., None], 0).amax(1)
        return F.cross_entropy(head(strongest), batch["y"])

    return Case(step, batch, padding={"features": "mask"})


@pair("padding-leak", "huggingface/sentence-transformers#230")
def mean_over_padding(wrong):
    """A sentence's vector is the mean over its tokens, including padding: it depends on the longest of the batch."""
    embed, head = nn.Embedding(20, 8), nn.Linear(8, 3)
    batch = {
        "input_ids": torch.tensor([[5, 6, 7, 8], [9, 4, 0, 0], [3, 0, 0, 0]]),
        "attention_mask": lasting(4, 2, 1).long(),
        "y": torch.tensor([0, 2, 1]),
    }

    def step(batch):
        hidden = embed(batch["input_ids"]).tanh()
        if wrong:
            pooled = hidden.mean(1)  # leak
        else:
            real = batch["attention_mask"].bool().unsqueeze(-1)
            pooled = hidden.masked_fill(~real, 0).sum(1) / real.sum(1).clamp(min=1)
        return F.cross_entropy(head(pooled), batch["y"])

    return Case(step, batch)


@pair("padding-leak", "OliverRichter/normalized-attention#1")
def norm_over_padding(wrong):
    """Activations are scaled by their global norm, which includes the padding."""
    encode, head = nn.Linear(4, 6), nn.Linear(6, 3)
    batch = {
        "x": torch.randn(3, 5, 4),
        "mask": lasting(5, 2, 3),
        "labels": torch.tensor([[0, 1, 2, 0, 1], [1, 2, -100, -100, -100], [2, 0, 0, -100, -100]]),
    }

    def step(batch):
        if wrong:
            hidden = encode(batch["x"]).tanh()
            scale = torch.linalg.vector_norm(hidden).clamp(min=1)  # leak
        else:
            hidden = encode(batch["x"].masked_fill(~batch["mask"][..., None], 0)).tanh()
            scale = torch.linalg.vector_norm(hidden.masked_fill(~batch["mask"][..., None], 0)).clamp(min=1)
        return F.cross_entropy(head(hidden / scale).transpose(1, 2), batch["labels"])

    return Case(step, batch, padding={"x": "mask"})


@pair("padding-leak", "earthspecies/avex#26")
def one_minus_mask(wrong):
    """`1 - mask` instead of `mask`: the pooled vector is that of the padding."""
    encode, head = nn.Linear(4, 6), nn.Linear(6, 3)
    batch = {"x": torch.randn(3, 5, 4), "mask": lasting(5, 3, 1).float(), "y": torch.tensor([0, 2, 1])}

    def step(batch):
        if wrong:
            hidden = encode(batch["x"]).tanh()
            pooled = ((1 - batch["mask"][..., None]) * hidden).sum(1)  # leak
            return F.cross_entropy(head(pooled), batch["y"])
        mask = batch["mask"][..., None]
        hidden = encode(batch["x"].masked_fill(mask == 0, 0)).tanh()
        return F.cross_entropy(head((mask * hidden).sum(1) / mask.sum(1).clamp(min=1)), batch["y"])

    return Case(step, batch, padding={"x": "mask"})


@pair("padding-leak", "huggingface/transformers#5429")
def span_softmax_over_padding(wrong):
    """The softmax for the start of an answer includes padding."""
    encode, start = nn.Linear(4, 6), nn.Linear(6, 1, bias=False)
    batch = {
        "x": torch.randn(3, 6, 4),
        "attention_mask": lasting(6, 4, 3).long(),
        "start": torch.tensor([4, 2, 0]),
    }

    def step(batch):
        logits = start(encode(batch["x"]).relu()).squeeze(-1)
        if wrong:
            return F.cross_entropy(logits, batch["start"])  # leak
        logits = logits.masked_fill(batch["attention_mask"] == 0, torch.finfo(logits.dtype).min)
        return F.cross_entropy(logits, batch["start"])

    return Case(step, batch)


@pair("padding-leak", "NVIDIA-NeMo/Speech#5401")
def std_over_padding(wrong):
    """Mean and standard deviation over time describe a speaker; both include padded frames."""
    frames, speaker = nn.Linear(4, 6), nn.Linear(6, 3)
    batch = {"frames": torch.randn(3, 7, 4), "real": lasting(7, 4, 5), "speaker": torch.tensor([0, 1, 2])}

    def step(batch):
        if wrong:
            hidden = frames(batch["frames"]).tanh()
            spread = hidden.std(1)  # leak
            return F.cross_entropy(speaker(spread), batch["speaker"])
        real = batch["real"][..., None]
        hidden = frames(batch["frames"]).tanh().masked_fill(~real, 0)
        count = real.sum(1).clamp(min=1)
        centre = hidden.sum(1, keepdim=True) / count[:, None]
        variance = (hidden - centre).masked_fill(~real, 0).square().sum(1) / count
        return F.cross_entropy(speaker((variance + 1e-6).sqrt()), batch["speaker"])

    return Case(step, batch, padding={"frames": "real"})


@pair("padding-leak", "none found; a function of one sample under vmap")
def vmapped_without_mask(wrong):
    """A function of one sample is mapped over the batch without the sample's length."""
    encode, head = nn.Linear(4, 6), nn.Linear(6, 1)
    batch = {"x": torch.randn(3, 5, 4), "mask": lasting(5, 3, 2), "y": torch.randn(3)}

    def step(batch):
        if wrong:

            def of_one(x, y):
                pooled = encode(x).tanh().logsumexp(0)  # leak
                return (head(pooled).squeeze(-1) - y).square()

            return torch.func.vmap(of_one)(batch["x"], batch["y"]).mean()

        def of_one(x, real, y):
            hidden = torch.where(real[:, None], encode(x).tanh(), -1e9)
            return (head(hidden.logsumexp(0).clamp(min=-1e3)).squeeze(-1) - y).square()

        return torch.func.vmap(of_one)(batch["x"], batch["mask"], batch["y"]).mean()

    return Case(step, batch, padding={"x": "mask"})
