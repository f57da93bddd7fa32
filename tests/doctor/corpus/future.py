"""Causal models that see the future."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tests.doctor.pairs import Case, pair


@pair("future-leak", "Andong-Li-speech/GaGNet#2")
def batch_norm_over_time(wrong):
    """Batch normalisation of features includes later steps in its mean."""
    rnn, norm, head = nn.GRU(3, 6, batch_first=True), nn.BatchNorm1d(6), nn.Linear(6, 1)
    step_norm = nn.LayerNorm(6)
    torch.manual_seed(1)
    batch = {
        "frames": torch.randn(3, 7, 3),
        "targets": torch.randn(3, 7),
        "sample_weight": torch.tensor([[1.0] * 7, [0.5] * 7, [1.0, 1, 2, 2, 2, 1, 1]]),
    }

    def error(hidden, batch):
        weight = batch["sample_weight"]
        return ((head(hidden).squeeze(-1) - batch["targets"]) ** 2 * weight).sum() / weight.sum()

    def step(batch):
        hidden, _ = rnn(batch["frames"])
        if wrong:
            hidden = norm(hidden.transpose(1, 2)).transpose(1, 2)  # leak
            return error(hidden, batch)
        return error(step_norm(hidden), batch)

    return Case(step, batch, causal=True)


@pair("future-leak", "mostafaalishahi/eICU_Benchmark#1")
def bidirectional_over_the_stay(wrong):
    """A risk is predicted for each hour of a stay by a network that reads the stay from its end as well."""
    both, forward = nn.GRU(4, 3, batch_first=True, bidirectional=True), nn.GRU(4, 6, batch_first=True)
    head = nn.Linear(6, 2)
    torch.manual_seed(1)
    batch = {
        "vitals": torch.randn(3, 8, 4),
        "lengths": torch.tensor([8, 6, 5]),
        "labels": torch.tensor(
            [[0, 0, 0, 0, 1, 1, 1, 1], [0, 0, 1, 0, 0, 0, -100, -100], [1, 1, 0, 0, 0, -100, -100, -100]]
        ),
    }

    def step(batch):
        packed = pack_padded_sequence(batch["vitals"], batch["lengths"], batch_first=True)
        if wrong:
            hidden, _ = pad_packed_sequence(both(packed)[0], batch_first=True)  # leak
        else:
            hidden, _ = pad_packed_sequence(forward(packed)[0], batch_first=True)
        return F.cross_entropy(head(hidden).transpose(1, 2), batch["labels"])

    return Case(step, batch, causal=True)


@pair("future-leak", "locuslab/TCN#8")
def chomped_at_the_wrong_end(wrong):
    """A dilated convolution that is padded on both sides is cut at its beginning instead of its end."""
    first, second = nn.Conv1d(3, 6, 3, padding=2), nn.Conv1d(6, 6, 3, padding=4, dilation=2)
    head = nn.Linear(6, 1)
    torch.manual_seed(1)
    batch = {
        "series": torch.randn(2, 11, 3),
        "targets": torch.randn(2, 11),
        "weights": torch.tensor([[0.0] * 2 + [1.0] * 9, [0.0] * 4 + [1.0] * 7]),
    }

    def error(hidden, batch):
        predicted = head(hidden.transpose(1, 2)).squeeze(-1)
        return ((predicted - batch["targets"]) ** 2 * batch["weights"]).sum() / batch["weights"].sum()

    def step(batch):
        x = first(batch["series"].transpose(1, 2))[..., :-2].relu()
        x = x + second(x)[..., 4:].relu() if wrong else x + second(x)[..., :-4].relu()  # leak
        return error(x, batch)

    return Case(step, batch, causal=True)


@pair("future-leak", "exercise-book-yq/Supercodec#4")
def gated_by_the_mean_of_all_frames(wrong):
    """Channels of each frame are scaled by a gate computed from the mean of all frames."""
    embed, gate, head = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 4)
    torch.manual_seed(1)
    batch = {
        "frames": torch.randn(2, 8, 4),
        "targets": torch.randn(2, 8, 4),
        "frame_weights": torch.tensor([[1.0] * 8, [0.0] * 2 + [1.0] * 6]),
    }

    def error(hidden, batch):
        weights = batch["frame_weights"][..., None]
        return ((head(hidden) - batch["targets"]).abs() * weights).sum() / weights.sum()

    def step(batch):
        x = embed(batch["frames"]).relu()
        if wrong:
            mean = x.mean(1, keepdim=True)  # leak
        else:
            mean = x.cumsum(1) / torch.arange(1, x.size(1) + 1)[:, None]
        return error(x * gate(mean).sigmoid(), batch)

    return Case(step, batch, causal=True)


@pair("future-leak", "espnet/espnet#5900")
def group_norm_over_frames(wrong):
    """A streaming network normalises each sample over all of its frames."""
    encode, head = nn.Conv1d(4, 6, 3), nn.Conv1d(6, 4, 1)
    over_frames, over_channels = nn.GroupNorm(1, 6), nn.LayerNorm(6)
    torch.manual_seed(1)
    batch = {
        "noisy": torch.randn(2, 10, 4),
        "target_speech": torch.randn(2, 10, 4),
        "target_mask": torch.tensor([[1.0] * 10, [1.0] * 7 + [0.0] * 3]),
    }

    def error(hidden, batch):
        mask = batch["target_mask"][..., None]
        return ((head(hidden).transpose(1, 2) - batch["target_speech"]) ** 2 * mask).sum() / mask.sum()

    def step(batch):
        hidden = encode(F.pad(batch["noisy"].transpose(1, 2), (2, 0)))
        if wrong:
            return error(over_frames(hidden).relu(), batch)  # leak
        return error(over_channels(hidden.transpose(1, 2)).transpose(1, 2).relu(), batch)

    return Case(step, batch, causal=True)


@pair("future-leak", "JIA-Lab-research/LongLoRA#90")
def groups_rolled_around(wrong):
    """Tokens are rolled by half a group for attention in groups, and the first ones follow the last."""
    embed, qkv, head = nn.Embedding(12, 6), nn.Linear(6, 18), nn.Linear(6, 12)
    batch = {
        "input_ids": torch.tensor([[2, 3, 4, 5, 6, 7, 8, 9], [8, 9, 3, 2, 10, 11, 4, 5]]),
        "labels": torch.tensor([[3, 4, 5, 6, 7, 8, 9, 1], [9, 3, 2, 10, 11, 4, 5, 1]]),
    }

    def in_groups(x):
        return qkv(x).unflatten(1, (-1, 4)).chunk(3, -1)

    def first_layer(batch):
        x = embed(batch["input_ids"])
        return x + F.scaled_dot_product_attention(*in_groups(x), is_causal=True).flatten(1, 2)

    def step(batch):
        x = first_layer(batch)
        if wrong:
            rolled = F.scaled_dot_product_attention(*in_groups(x.roll(-2, 1)), is_causal=True)  # leak
            x = x + rolled.flatten(1, 2).roll(2, 1)
        else:
            padded = F.scaled_dot_product_attention(*in_groups(F.pad(x, (0, 0, 2, 2))), is_causal=True)
            x = x + padded.flatten(1, 2)[:, 2:-2]
        return F.cross_entropy(head(x).transpose(1, 2), batch["labels"])

    return Case(step, batch, causal=True)


@pair("future-leak", "shiyu-coder/Kronos#228")
def normalised_by_the_whole_window(wrong):
    """A window is scaled by its own mean and deviation, including the steps to forecast."""
    rnn, head = nn.GRU(3, 6, batch_first=True), nn.Linear(6, 3)
    torch.manual_seed(1)
    batch = {
        "window": torch.randn(2, 9, 3) * 4 + 7,
        "targets": torch.randn(2, 9, 3),
        "loss_weights": torch.tensor([[0.0, 0, 1, 1, 1, 1, 1, 1, 1], [0.0, 0, 1, 1, 1, 1, 1, 0, 0]]),
    }

    def error(x, batch):
        weights = batch["loss_weights"][..., None]
        return ((head(rnn(x)[0]) - batch["targets"]).abs() * weights).sum() / weights.sum()

    def step(batch):
        window = batch["window"]
        if wrong:
            mean = window.mean(1, keepdim=True)  # leak
            std = window.std(1, keepdim=True)  # leak
            return error((window - mean) / (std + 1e-5), batch)
        count = torch.arange(1, window.size(1) + 1)[:, None]
        mean = window.cumsum(1) / count
        variance = (window**2).cumsum(1) / count - mean**2
        return error((window - mean) / (variance.clamp(min=0) + 1e-5).sqrt(), batch)

    return Case(step, batch, causal=True)


@pair(
    "future-leak",
    "none found; looked for ranks and quantiles over the whole series as a feature of a forecaster",
)
def ranked_among_later_values(wrong):
    """The rank of each value is taken among all values of the window instead of those before it."""
    rnn, head = nn.GRU(2, 6, batch_first=True), nn.Linear(6, 1)
    torch.manual_seed(1)
    batch = {
        "prices": torch.randn(3, 9),
        "targets": torch.randn(3, 9),
        "weights": torch.tensor([[1.0] * 9, [0.0] * 3 + [1.0] * 6, [0.5] * 9]),
    }

    def error(ranks, batch):
        hidden, _ = rnn(torch.stack([batch["prices"], ranks], -1))
        weights = batch["weights"]
        return ((head(hidden).squeeze(-1) - batch["targets"]) ** 2 * weights).sum() / weights.sum()

    def step(batch):
        if wrong:
            ranks = batch["prices"].argsort(1).argsort(1)  # leak
            return error(ranks / batch["prices"].size(1), batch)
        prices = batch["prices"]
        below = (prices[:, None] < prices[..., None]).tril(-1).sum(-1)
        return error(below / torch.arange(1, prices.size(1) + 1), batch)

    return Case(step, batch, causal=True)


@pair("future-leak", "ant-research/EasyTemporalPointProcess#32")
def time_to_the_next_event(wrong):
    """The time until the next event is an input of the network that predicts it."""
    embed, rnn, head = nn.Embedding(8, 4), nn.GRU(5, 6, batch_first=True), nn.Linear(6, 8)
    batch = {
        "events": torch.tensor([[2, 3, 4, 5, 6, 7], [5, 7, 3, 2, 0, 0], [4, 4, 5, 3, 6, 0]]),
        "times": torch.tensor([[0.0, 1, 3, 4, 6, 9], [0.0, 2, 5, 6, 0, 0], [0.0, 4, 5, 7, 8, 0]]),
        "lengths": torch.tensor([6, 4, 5]),
        "labels": torch.tensor([[3, 4, 5, 6, 7, 1], [7, 3, 2, 1, -100, -100], [4, 5, 3, 6, 1, -100]]),
    }

    def loss(gaps, batch):
        hidden, _ = rnn(torch.cat([embed(batch["events"]), gaps[..., None]], -1))
        return F.cross_entropy(head(hidden).transpose(1, 2), batch["labels"])

    def step(batch):
        times = batch["times"]
        if wrong:
            gaps = F.pad(times[:, 1:] - times[:, :-1], (0, 1))  # leak
        else:
            gaps = F.pad(times[:, 1:] - times[:, :-1], (1, 0))
        return loss(gaps, batch)

    return Case(step, batch, causal=True)
