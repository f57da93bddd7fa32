"""Losses that compare two models, two views or two sequences."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.doctor.pairs import Case, lasting, pair


@pair("padding-leak", "peremartra/optipfair#34")
def consistency_over_padding(wrong):
    """A consistency loss between two views of a text includes padded positions."""
    one, other = nn.Linear(4, 6), nn.Linear(4, 6)
    batch = {"x": torch.randn(3, 5, 4), "mask": lasting(5, 3, 2)}

    def step(batch):
        a, b = one(batch["x"]), other(batch["x"])
        if wrong:
            return 1 - F.cosine_similarity(a, b, dim=-1).mean()  # leak
        likeness = F.cosine_similarity(a, b, dim=-1)
        return 1 - torch.einsum("bt,bt->", likeness, batch["mask"].float()) / batch["mask"].sum()

    return Case(step, batch, padding={"x": "mask"})


@pair("padding-leak", "speechbrain/speechbrain#2386")
def contrastive_negatives(wrong):
    """Padded tokens are negatives in a contrastive loss between two views of a text."""
    encode = nn.Linear(4, 6)
    batch = {"one": torch.randn(2, 5, 4), "other": torch.randn(2, 5, 4), "mask": lasting(5, 3)}

    def step(batch):
        if wrong:
            one, other = encode(batch["one"]), encode(batch["other"])
            similarity = one @ other.transpose(1, 2)
            target = torch.arange(one.size(1)).expand(len(one), -1).masked_fill(~batch["mask"], -100)
            return F.cross_entropy(similarity.flatten(0, 1), target.flatten())  # leak
        padded = ~batch["mask"]
        one, other = (encode(batch[view].masked_fill(padded[..., None], 0)) for view in ("one", "other"))
        similarity = (one @ other.transpose(1, 2)).masked_fill(padded[:, None], -1e30)
        target = torch.arange(one.size(1)).expand(len(one), -1).masked_fill(padded, -100)
        return F.cross_entropy(similarity.flatten(0, 1), target.flatten())

    return Case(step, batch, padding={"one": "mask", "other": "mask"})


@pair("padding-leak", "peremartra/optipfair#34")
def distillation_over_padding(wrong):
    """The divergence from a teacher is averaged over all positions of the batch."""
    embed, student = nn.Embedding(12, 6), nn.Linear(6, 5)
    batch = {
        "input_ids": torch.tensor([[3, 4, 5, 6], [7, 8, 0, 0]]),
        "attention_mask": lasting(4, 2).long(),
        "teacher": torch.randn(2, 4, 5),
    }

    def step(batch):
        if wrong:
            logp = student(embed(batch["input_ids"])).log_softmax(-1)
            target = batch["teacher"].softmax(-1)
            return F.kl_div(logp, target, reduction="batchmean")  # leak
        padded = batch["attention_mask"][..., None] == 0
        logp = student(embed(batch["input_ids"])).log_softmax(-1)
        target = batch["teacher"].masked_fill(padded, 0).softmax(-1)
        each = F.kl_div(logp, target, reduction="none").masked_fill(padded, 0)
        return each.sum() / batch["attention_mask"].sum()

    return Case(step, batch, padding={"input_ids": "attention_mask", "teacher": "attention_mask"})


@pair("padding-leak", "arcee-ai/DAM#16")
def hidden_states_matched_at_padding(wrong):
    """Hidden states of a student are matched to the teacher's at every position."""
    student = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    teacher = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True).requires_grad_(False).eval()
    batch = {"x": torch.randn(3, 5, 4), "mask": lasting(5, 2, 3)}
    model = student

    def states_of(batch):
        with torch.no_grad():
            wanted = teacher(batch["x"], src_key_padding_mask=~batch["mask"])
        return student(batch["x"], src_key_padding_mask=~batch["mask"]), wanted

    def step(batch):
        found, wanted = states_of(batch)
        if wrong:
            return F.smooth_l1_loss(found, wanted)  # leak
        each = F.smooth_l1_loss(found, wanted, reduction="none").mean(-1)
        return (each * batch["mask"]).sum() / batch["mask"].sum()

    return Case(step, batch, padding={"x": "mask"}, model=model)


@pair("padding-leak", "huggingface/sentence-transformers#3827")
def pairs_with_padding(wrong):
    """In a pairwise ranking loss, padded documents count as the worst."""
    score = nn.Linear(4, 1)
    batch = {
        "documents": torch.randn(3, 5, 4),
        "relevance": torch.tensor(
            [[3.0, 1.0, 0.0, 2.0, 1.0], [2.0, 1.0, 0.0, 0.0, 0.0], [1.0, 0.0, 2.0, 0.0, 0.0]]
        ),
        "mask": lasting(5, 2, 3),
    }

    def hinge(batch):
        scores = score(batch["documents"]).squeeze(-1)
        better = batch["relevance"][:, :, None] > batch["relevance"][:, None, :]
        margins = (1 - (scores[:, :, None] - scores[:, None, :])).relu()
        return margins, better

    def step(batch):
        margins, better = hinge(batch)
        if wrong:
            chosen = better & batch["mask"][:, :, None]
            return (margins * chosen).sum() / 6  # leak
        chosen = better & batch["mask"][:, :, None] & batch["mask"][:, None, :]
        return (margins * chosen).sum() / 6

    return Case(step, batch, padding={"documents": "mask", "relevance": "mask"})


@pair("padding-leak", "0xallam/Direct-Preference-Optimization#4")
def preferences_over_padding(wrong):
    """Preference learning: the log-probability of an answer is summed over its padding."""
    embed, head = nn.Embedding(12, 6), nn.Linear(6, 12)
    batch = {
        "chosen": torch.tensor([[3, 4, 5, 6], [7, 8, 0, 0]]),
        "rejected": torch.tensor([[3, 9, 0, 0], [7, 10, 11, 0]]),
        "chosen_mask": lasting(4, 2).long(),
        "rejected_mask": torch.tensor([[1, 1, 0, 0], [1, 1, 1, 0]]),
    }

    def token_logp(ids):
        logp = head(embed(ids[:, :-1])).log_softmax(-1)
        return logp.gather(2, ids[:, 1:, None]).squeeze(-1)

    def step(batch):
        if wrong:
            chosen = token_logp(batch["chosen"]).sum(1)  # leak
            rejected = token_logp(batch["rejected"]).sum(1)  # leak
        else:
            chosen = token_logp(batch["chosen"]).masked_fill(batch["chosen_mask"][:, 1:] == 0, 0).sum(1)
            rejected = token_logp(batch["rejected"]).masked_fill(batch["rejected_mask"][:, 1:] == 0, 0).sum(1)
        return -F.logsigmoid(chosen - rejected).mean()

    return Case(step, batch, padding={"chosen": "chosen_mask", "rejected": "rejected_mask"})
