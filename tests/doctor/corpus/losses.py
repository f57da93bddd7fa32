"""Losses and metrics that count padding."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.doctor.pairs import Case, lasting, pair

IDS = torch.tensor([[3, 4, 5, 6], [7, 8, 0, 0], [9, 10, 11, 0]])


@pair("padding-leak", "cs230-stanford/cs230-code-examples#13")
def accuracy_over_padding(wrong):
    """The loss is weighted with an accuracy, a metric that counts padding as right or wrong answers."""
    model = nn.Linear(3, 4)
    batch = {
        "x": torch.randn(3, 4, 3),
        "tags": torch.tensor([[0, 1, 2, 3], [1, 2, 0, 0], [3, 0, 0, 0]]),
        "mask": lasting(4, 2, 1),
    }

    def weighted(batch, logits, accuracy):
        tags = batch["tags"].masked_fill(~batch["mask"], -100)
        return F.cross_entropy(logits.transpose(1, 2), tags) * (1.5 - accuracy)

    def step(batch):
        logits = model(batch["x"])
        if wrong:
            right = (logits.argmax(-1) == batch["tags"]).float()
            accuracy = right.mean()  # leak
        else:
            right = (logits.argmax(-1) == batch["tags"]) & batch["mask"]
            accuracy = right.sum() / batch["mask"].sum()
        return weighted(batch, logits, accuracy)

    return Case(step, batch, model=model, padding={"x": "mask", "tags": "mask"})


@pair("padding-leak", "lucidrains/vector-quantize-pytorch#62")
def codes_of_padding(wrong):
    """The entropy of a codebook's average use includes padded frames."""
    encode = nn.Linear(4, 3)
    codebook = nn.Parameter(torch.randn(5, 3))
    batch = {"frames": torch.randn(3, 6, 4), "mask": lasting(6, 3, 4)}

    def use_of(batch):
        hidden = encode(batch["frames"])
        distance = (hidden[..., None, :] - codebook).square().sum(-1)
        return (-distance).softmax(-1)

    def step(batch):
        average = use_of(batch).mean((0, 1)) if wrong else use_of(batch)[batch["mask"]].mean(0)  # leak
        return (average * average.log()).sum()

    return Case(step, batch, padding={"frames": "mask"})


@pair("padding-leak", "PaddlePaddle/PaddleNLP#1401")
def crf_without_mask(wrong):
    """The partition function of a linear-chain CRF includes the padding."""
    emit, transitions = nn.Linear(3, 4), nn.Parameter(torch.randn(4, 4))
    batch = {
        "x": torch.randn(3, 5, 3),
        "mask": lasting(5, 3, 2),
        "tags": torch.tensor([[0, 1, 2, 3, 0], [1, 1, 2, 0, 0], [3, 2, 0, 0, 0]]),
    }

    def path_score(emissions, tags, mask):
        tags = tags.masked_fill(~mask, 0)
        single = emissions.gather(2, tags[..., None]).squeeze(-1).masked_fill(~mask, 0)
        pairs = transitions[tags[:, :-1], tags[:, 1:]].masked_fill(~mask[:, 1:], 0)
        return single.sum(1) + pairs.sum(1)

    def step(batch):
        if wrong:
            emissions, mask = emit(batch["x"]), batch["mask"]
            alpha = emissions[:, 0]
            for t in range(1, emissions.size(1)):
                alpha = (alpha[:, :, None] + transitions + emissions[:, None, t]).logsumexp(1)  # leak
        else:
            mask = batch["mask"]
            emissions = emit(batch["x"]).masked_fill(~mask[..., None], 0)
            alpha = emissions[:, 0]
            for t in range(1, emissions.size(1)):
                onward = (alpha[:, :, None] + transitions + emissions[:, None, t]).logsumexp(1)
                alpha = torch.where(mask[:, t, None], onward, alpha)
        return (alpha.logsumexp(1) - path_score(emissions, batch["tags"], mask)).sum()

    return Case(step, batch, padding={"x": "mask", "tags": "mask"})


@pair("padding-leak", "NVIDIA/OpenSeq2Seq#393")
def ctc_lengths_forgotten(wrong):
    """CTC gets the length of the longest recording for all."""
    acoustic = nn.Linear(4, 5)
    batch = {
        "frames": torch.randn(2, 6, 4),
        "frame_lengths": torch.tensor([6, 4]),
        "text": torch.tensor([[1, 2], [3, 4]]),
        "text_lengths": torch.tensor([2, 1]),
    }

    def step(batch):
        if wrong:
            logp = acoustic(batch["frames"]).log_softmax(-1).transpose(0, 1)
            lengths = torch.full((logp.size(1),), logp.size(0))
            loss = F.ctc_loss(logp, batch["text"], lengths, batch["text_lengths"], reduction="sum")  # leak
        else:
            frames = batch["frames"]
            real = torch.arange(frames.size(1)) < batch["frame_lengths"][:, None]
            logp = acoustic(frames.masked_fill(~real[..., None], 0)).log_softmax(-1).transpose(0, 1)
            lengths, text_lengths = batch["frame_lengths"], batch["text_lengths"]
            loss = F.ctc_loss(logp, batch["text"], lengths, text_lengths, reduction="sum", zero_infinity=True)
        return loss / batch["text_lengths"].sum()

    return Case(step, batch, padding={"frames": torch.arange(6) < batch["frame_lengths"][:, None]})


@pair("padding-leak", "qubvel-org/segmentation_models.pytorch#366")
def dice_over_void(wrong):
    """Void pixels are ignored by the cross entropy but counted by the Dice loss."""
    model = nn.Conv2d(2, 1, 1)
    batch = {
        "picture": torch.randn(2, 2, 4, 4),
        "object": (torch.rand(2, 1, 4, 4) < 0.5).float(),
        "labelled": torch.rand(2, 1, 4, 4) < 0.7,
    }

    def step(batch):
        if wrong:
            p = model(batch["picture"]).sigmoid()
            both = (p * batch["object"]).sum()  # leak
            return 1 - (2 * both + 1) / (p.sum() + batch["object"].sum() + 1)  # leak
        p = model(batch["picture"]).sigmoid().masked_fill(~batch["labelled"], 0)
        y = batch["object"].masked_fill(~batch["labelled"], 0)
        return 1 - (2 * (p * y).sum() + 1) / (p.sum() + y.sum() + 1)

    return Case(step, batch, model=model, padding={"object": "labelled"})


@pair("padding-leak", "huggingface/transformers#32832")
def ignore_index_forgotten(wrong):
    """Pad tokens are targets: the loss teaches the tagger to predict padding."""
    embed, head = nn.Embedding(10, 6), nn.Linear(6, 4)
    batch = {
        "words": torch.tensor([[3, 4, 5, 6], [7, 8, 0, 0]]),
        "tags": torch.tensor([[1, 2, 3, 1], [2, 3, 0, 0]]),
        "mask": torch.tensor([[True, True, True, True], [True, True, False, False]]),
    }

    def step(batch):
        logits = head(embed(batch["words"]))
        if wrong:
            return F.cross_entropy(logits.flatten(0, 1), batch["tags"].flatten())  # leak
        tags = batch["tags"].masked_fill(~batch["mask"], -100)
        return F.cross_entropy(logits.flatten(0, 1), tags.flatten(), ignore_index=-100)

    return Case(step, batch, padding={"words": "mask", "tags": "mask"})


@pair("padding-leak", "deepchem/deepchem#1175")
def missing_targets_as_zero(wrong):
    """Missing targets become 0, and the model learns to predict 0."""
    model = nn.Linear(4, 3)
    nan = float("nan")
    batch = {
        "x": torch.randn(4, 4),
        "y": torch.tensor([[1.0, nan, 2.0], [nan, nan, 1.0], [3.0, 2.0, 1.0], [0.5, nan, nan]]),
    }

    def step(batch):
        if wrong:
            targets = batch["y"].nan_to_num(0.0)
            return F.mse_loss(model(batch["x"]), targets)  # leak
        measured = ~batch["y"].isnan()
        targets = torch.where(measured, batch["y"], 0.0)
        error = (model(batch["x"]) - targets).masked_fill(~measured, 0)
        return error.square().sum() / measured.sum()

    return Case(step, batch, model=model)


@pair("padding-leak", "pytorch/pytorch#73205")
def smoothing_over_padding(wrong):
    """Hand-written label smoothing: the uniform part includes padding, the other part ignores it."""
    embed, head = nn.Embedding(12, 6), nn.Linear(6, 5)
    batch = {
        "input_ids": IDS,
        "attention_mask": lasting(4, 2, 3).long(),
        "labels": torch.tensor([[1, 2, 3, 4], [0, 3, -100, -100], [2, 2, 1, -100]]),
    }

    def step(batch):
        logp = head(embed(batch["input_ids"])).log_softmax(-1)
        hard = F.nll_loss(logp.transpose(1, 2), batch["labels"])
        smooth = -logp.mean() if wrong else -logp[batch["labels"] != -100].mean()  # leak
        return 0.9 * hard + 0.1 * smooth

    return Case(step, batch)


@pair("padding-leak", "chengchingwen/Transformers.jl#4")
def teacher_forcing_onto_padding(wrong):
    """Targets are inputs shifted by one, but the mask is not: the last word of each text predicts padding."""
    embed, rnn, head = nn.Embedding(12, 6), nn.GRU(6, 6, batch_first=True), nn.Linear(6, 12)
    batch = {
        "ids": torch.tensor([[3, 4, 5, 6, 7], [8, 9, 10, 0, 0], [11, 2, 0, 0, 0]]),
        "mask": lasting(5, 3, 2),
    }

    def step(batch):
        ids, mask = batch["ids"], batch["mask"]
        hidden, _ = rnn(embed(ids[:, :-1]))
        losses = F.cross_entropy(head(hidden).transpose(1, 2), ids[:, 1:], reduction="none")
        if wrong:
            return losses[mask[:, :-1]].mean()  # leak
        return losses[mask[:, 1:]].mean()

    return Case(step, batch, padding={"ids": "mask"})
