"""Losses over tokens: flat logits, masks that select tokens, held-out targets."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.doctor.scripts.script import LENGTHS, Script, floats, ids, lasting, program


def next_of(out, labels, **options):
    return F.cross_entropy(out.reshape(-1, out.shape[-1]), labels.reshape(-1), **options)


@program("future-leak")
def flat_logits_see_the_next_token(wrong):
    table, head = nn.Embedding(20, 8, padding_idx=0), nn.Linear(8, 20)
    text = ids(lasting(9, 9, 6))

    def forward(ids):
        hidden = table(ids)
        shifted = hidden.roll(-1, 1) if wrong else F.pad(hidden, (0, 0, 1, 0))[:, :-1]  # leak
        mixed = hidden + shifted  # leak
        return head(mixed).view(-1, 20)

    def loss(out, batch):
        return F.cross_entropy(out, batch["next"].reshape(-1), ignore_index=0)

    batch = {"ids": text[:, :-1], "next": text[:, 1:]}
    return Script(batch, forward, loss, options={"causal": True})


@program("future-leak")
def ids_of_numpy_see_the_next_token(wrong):
    table, head = nn.Embedding(20, 8, padding_idx=0), nn.Linear(8, 20)
    text = ids(lasting(9, 9, 6))

    def forward(ids):
        hidden = table(torch.as_tensor(ids))
        shifted = hidden.roll(-1, 1) if wrong else F.pad(hidden, (0, 0, 1, 0))[:, :-1]  # leak
        mixed = hidden + shifted  # leak
        return head(mixed)

    def loss(out, batch):
        return next_of(out, batch["next"], ignore_index=0)

    batch = {"ids": text[:, :-1].numpy(), "next": text[:, 1:]}
    return Script(batch, forward, loss, options={"causal": True})


def chosen_by(name, *, inverted=False):
    """A mask of the tokens that count: nothing is padded, and the loss divides by the wrong count if wrong."""

    def make(wrong):
        table, head = nn.Embedding(20, 8), nn.Linear(8, 20)
        text = torch.randint(1, 20, (4, 8))
        answer = torch.arange(8) >= torch.tensor([2, 4, 3, 1])[:, None]
        batch = {"input_ids": text, name: (~answer if inverted else answer).long()}
        if wrong:
            batch |= {"input_ids": text * lasting(8, 6, 5, 8), "attention_mask": lasting(8, 6, 5, 8).long()}
            batch[name] = (answer & lasting(8, 6, 5, 8)).long()

        def forward(input_ids):
            hidden = table(input_ids)
            if wrong:
                hidden = hidden + hidden.mean(1, keepdim=True)  # leak
            return head(hidden.cumsum(1)[:, :-1])

        def loss(out, batch):
            chosen = batch[name].bool()
            chosen = ~chosen if inverted and not wrong else chosen
            losses = F.cross_entropy(out.transpose(1, 2), batch["input_ids"][:, 1:], reduction="none")
            return losses[chosen[:, 1:]].mean()

        return Script(batch, forward, loss, loader=True)

    make.__name__ = f"selected_by_{name}"
    return make


for _name in ("loss_mask", "completion_mask", "assistant_masks", "response_mask", "trainable", "weights"):
    program(unpadded=True)(chosen_by(_name))
for _name in ("special_tokens_mask", "prompt_mask"):
    program(unpadded=True)(chosen_by(_name, inverted=True))


@program()
def held_out_targets_have_a_mask_of_their_own(wrong):
    torch.manual_seed(3)
    known, net = torch.rand(4, 8, 5) > 0.2, nn.Linear(5, 5)
    scored = known & (torch.rand(4, 8, 5) < 0.3)
    x = torch.randn(4, 8, 5)
    seen = known & ~scored
    batch = {"x": x * seen, "observed_mask": seen, "target": x * known, "scored": scored}

    def forward(x, observed_mask):
        return net(x if wrong else x.masked_fill(~observed_mask, 0.0))  # leak

    def loss(out, batch):
        return ((out - batch["target"]).abs() * batch["scored"]).sum() / batch["scored"].sum()

    return Script(batch, forward, loss, {"x": seen}, loader=True)


@program()
def masked_tokens_are_predicted(wrong):
    real, table, head = lasting(), nn.Embedding(21, 8), nn.Linear(8, 20)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    text = ids(real)
    hidden = real & (torch.arange(7) % 3 == 1)
    batch = {
        "input_ids": text.masked_fill(hidden, 20),
        "attention_mask": real.long(),
        "labels": text.masked_fill(~hidden, -100),
    }

    def forward(input_ids, attention_mask):
        padded = None if wrong else attention_mask == 0
        return head(layer(table(input_ids), src_key_padding_mask=padded))  # leak

    def loss(out, batch):
        return next_of(out, batch["labels"])

    return Script(batch, forward, loss, {"input_ids": real}, loader=True)


@program("padding-length")
def divided_by_the_number_of_columns(wrong):
    real, net = lasting(), nn.Linear(3, 1)
    batch = {"x": floats(real, 3), "lengths": torch.tensor(LENGTHS), "y": torch.randn(4)}

    def forward(x, lengths):
        hidden = net(x).squeeze(-1) * (torch.arange(x.shape[1]) < lengths[:, None])
        count = x.shape[1] if wrong else lengths
        return hidden.sum(1) / count  # leak

    def loss(out, batch):
        return F.mse_loss(out, batch["y"])

    return Script(batch, forward, loss)
