"""What walks or looks along a sequence: recurrences, convolutions, windows, resampling."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tests.doctor.pairs import Case, lasting, pair


@pair("padding-leak", "pytorch/pytorch#3662")
def bidirectional_without_packing(wrong):
    """A bidirectional LSTM reads a padded batch without packing; its backward direction starts in the padding."""
    rnn, head = nn.LSTM(3, 4, batch_first=True, bidirectional=True), nn.Linear(8, 4)
    batch = {
        "x": torch.randn(3, 5, 3),
        "lengths": torch.tensor([5, 2, 3]),
        "tags": torch.tensor([[1, 2, 3, 0, 2], [2, 3, -100, -100, -100], [1, 0, 3, -100, -100]]),
    }

    def step(batch):
        if wrong:
            outputs, _ = rnn(batch["x"])  # leak
        else:
            lengths = batch["lengths"].clamp(min=1)
            packed = pack_padded_sequence(batch["x"], lengths, batch_first=True, enforce_sorted=False)
            outputs, _ = rnn(packed)
            outputs, _ = pad_packed_sequence(outputs, batch_first=True, total_length=batch["x"].size(1))
        return F.cross_entropy(head(outputs).transpose(1, 2), batch["tags"])

    return Case(step, batch, padding={"x": torch.arange(5) < batch["lengths"][:, None]})


@pair("padding-leak", "pytorch/audio#4205")
def convolution_across_the_border(wrong):
    """Two convolutions over a padded text: after the first the padding contains its bias, which the second reads."""
    first, second = nn.Conv1d(3, 4, 3, padding=1), nn.Conv1d(4, 5, 3, padding=1)
    batch = {
        "x": torch.randn(2, 3, 7),
        "mask": lasting(7, 4),
        "labels": torch.tensor([[0, 1, 2, 3, 4, 0, 1], [2, 3, 4, 0, -100, -100, -100]]),
    }

    def step(batch):
        if wrong:
            hidden = first(batch["x"]).relu()  # leak
        else:
            padded = ~batch["mask"][:, None]
            hidden = first(batch["x"].masked_fill(padded, 0)).relu().masked_fill(padded, 0)
        return F.cross_entropy(second(hidden), batch["labels"])

    return Case(step, batch, padding={"x": batch["mask"][:, None].expand(2, 3, 7)})


@pair("padding-leak", "bentrevett/pytorch-sentiment-analysis#86")
def final_state_over_padding(wrong):
    """The final state of a recurrent network includes the padding."""
    rnn, head = nn.LSTM(3, 5, batch_first=True), nn.Linear(5, 2)
    batch = {"x": torch.randn(3, 6, 3), "lengths": torch.tensor([2, 6, 3]), "y": torch.tensor([0, 1, 0])}

    def step(batch):
        if wrong:
            _, (state, _) = rnn(batch["x"])  # leak
        else:
            packed = pack_padded_sequence(
                batch["x"], batch["lengths"].clamp(min=1), batch_first=True, enforce_sorted=False
            )
            _, (state, _) = rnn(packed)
        return F.cross_entropy(head(state[-1]), batch["y"])

    return Case(step, batch, padding={"x": torch.arange(6) < batch["lengths"][:, None]})


@pair("padding-leak", "keitakurita/practical-torchtext#5")
def last_state_of_padding(wrong):
    """The last output of a recurrent network is used, which for all but the longest text is padding."""
    embed, rnn, head = nn.Embedding(12, 6), nn.GRU(6, 6, batch_first=True), nn.Linear(6, 2)
    batch = {
        "ids": torch.tensor([[3, 4, 5, 6], [7, 8, 0, 0], [9, 0, 0, 0]]),
        "lengths": torch.tensor([4, 2, 1]),
        "y": torch.tensor([0, 1, 0]),
    }

    def step(batch):
        outputs, _ = rnn(embed(batch["ids"]))
        if wrong:
            last = outputs[:, -1]  # leak
        else:
            rows = torch.arange(len(outputs))
            last = outputs[rows, batch["lengths"].clamp(min=1) - 1]
        return F.cross_entropy(head(last), batch["y"])

    return Case(step, batch, padding={"ids": torch.arange(4) < batch["lengths"][:, None]})


@pair("padding-leak", "NVIDIA/partialconv#6")
def missing_pixels(wrong):
    """A convolution over images with missing pixels reads their values."""
    conv = nn.Conv2d(1, 1, 3, padding=1)
    batch = {"picture": torch.randn(2, 1, 5, 5), "seen": torch.rand(2, 1, 5, 5) < 0.8}

    def step(batch):
        if wrong:
            filtered = conv(batch["picture"])  # leak
            return filtered.masked_fill(~batch["seen"], 0).square().sum() / batch["seen"].sum()
        seen = batch["seen"].float()
        clean = batch["picture"].masked_fill(~batch["seen"], 0)
        share = F.conv2d(seen, torch.ones(1, 1, 3, 3), padding=1).clamp(min=1) / 9
        filtered = F.conv2d(clean, conv.weight, padding=1) / share + conv.bias
        return (filtered * seen).square().sum() / seen.sum()

    return Case(step, batch, padding={"picture": "seen"})


@pair("padding-leak", "espnet/espnet#3037")
def pooling_across_the_border(wrong):
    """Max pooling halves a sequence; the window at the border contains one real and one padded frame."""
    encode, head = nn.Linear(3, 4), nn.Linear(4, 1)
    batch = {"x": torch.randn(2, 6, 3), "mask": lasting(6, 3), "y": torch.randn(2)}

    def step(batch):
        hidden = encode(batch["x"]).relu().transpose(1, 2)
        if wrong:
            halved = F.max_pool1d(hidden, 2, ceil_mode=True)  # leak
        else:
            halved = F.max_pool1d(hidden.masked_fill(~batch["mask"][:, None], 0), 2, ceil_mode=True)
        real = batch["mask"][:, None, ::2]
        mean = halved.masked_fill(~real, 0).sum(2) / real.sum(2).clamp(min=1)
        return F.mse_loss(head(mean).squeeze(-1), batch["y"])

    return Case(step, batch, padding={"x": "mask"})


@pair("padding-leak", "pytorch/pytorch#1811")
def reversed_padding(wrong):
    """The backward direction of a bidirectional network gets the flipped batch, so it starts with padding."""
    embed, backward_rnn, head = nn.Embedding(10, 4), nn.GRU(4, 4, batch_first=True), nn.Linear(4, 5)
    batch = {
        "words": torch.tensor([[3, 4, 5, 6], [7, 8, 0, 0], [9, 2, 3, 0]]),
        "lengths": torch.tensor([4, 2, 3]),
        "tags": torch.tensor([[1, 2, 3, 4], [2, 3, -100, -100], [1, 0, 4, -100]]),
    }

    def step(batch):
        if wrong:
            reverse = embed(batch["words"]).flip(1)
            outputs, _ = backward_rnn(reverse)  # leak
            return F.cross_entropy(head(outputs.flip(1)).transpose(1, 2), batch["tags"])
        words, lengths = batch["words"], batch["lengths"]
        time = torch.arange(words.size(1))
        within = (lengths[:, None] - 1 - time).clamp(min=0)  # each row is turned round within its own length
        outputs, _ = backward_rnn(embed(words.gather(1, within)))
        back = outputs.gather(1, within[..., None].expand_as(outputs))
        return F.cross_entropy(head(back).transpose(1, 2), batch["tags"])

    return Case(step, batch, padding={"words": torch.arange(4) < batch["lengths"][:, None]})


@pair("padding-leak", "lucidrains/x-transformers#208")
def rolled_padding(wrong):
    """`roll` mixes each token with the previous one: the first token gets the last column, which is padding."""
    mix, head = nn.Linear(8, 6), nn.Linear(6, 1)
    batch = {"x": torch.randn(3, 5, 4), "mask": lasting(5, 3, 2), "y": torch.randn(3, 5)}

    def loss_of(batch, hidden):
        error = head(hidden).squeeze(-1) - batch["y"]
        return error[batch["mask"]].square().mean()

    def step(batch):
        x = batch["x"]
        if wrong:
            hidden = mix(torch.cat([x, x.roll(1, 1)], -1)).relu()  # leak
        else:
            hidden = mix(torch.cat([x, nn.functional.pad(x, (0, 0, 1, -1))], -1)).relu()
        return loss_of(batch, hidden)

    return Case(step, batch, padding={"x": "mask", "y": "mask"})


@pair("padding-leak", "clab/dynet#1121")
def states_walk_over_left_padding(wrong):
    """A batch padded on the left is read by a recurrent network: its state starts with the padding."""
    embed, rnn, head = nn.Embedding(12, 6), nn.GRU(6, 6, batch_first=True), nn.Linear(6, 2)
    batch = {
        "ids": torch.tensor([[3, 4, 5, 6, 7], [0, 0, 8, 9, 2], [0, 0, 0, 5, 4]]),
        "mask": lasting(5, 3, 2).flip(1),
        "y": torch.tensor([0, 1, 0]),
    }

    def step(batch):
        if wrong:
            outputs, _ = rnn(embed(batch["ids"]))  # leak
            return F.cross_entropy(head(outputs[:, -1]), batch["y"])
        order = torch.sort(batch["mask"].int(), dim=1, descending=True, stable=True).indices
        ids = batch["ids"].masked_fill(~batch["mask"], 0).gather(1, order)
        outputs, _ = rnn(embed(ids))
        last = batch["mask"].sum(1).clamp(min=1) - 1
        return F.cross_entropy(head(outputs[torch.arange(len(ids)), last]), batch["y"])

    return Case(step, batch, padding={"ids": "mask"})
