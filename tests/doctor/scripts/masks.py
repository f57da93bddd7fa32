"""Forms of masks: extended, additive, True in the padding, of zeros and ones, and under other names."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.doctor.scripts.script import LENGTHS, Script, classes, ids, lasting, program

NEVER = float("-inf")


def text(name, mask, **more):
    """Ids (4, 7) padded with 0, and a mask under this name."""
    return {"input_ids": ids(lasting()), name: mask, "y": classes(), **more}, {"input_ids": lasting()}


def pooled(hidden, real):
    return (hidden * real[..., None]).sum(1) / real.sum(1, keepdim=True)


@program()
def additive_mask_forgotten(wrong):
    additive = torch.zeros(4, 1, 1, 7).masked_fill(~lasting()[:, None, None], -1e9)
    (batch, real), table, head = text("attention_mask", additive), nn.Embedding(20, 8), nn.Linear(8, 5)

    def forward(input_ids, attention_mask):
        q = table(input_ids)[:, None]
        mask = None if wrong else attention_mask
        hidden = F.scaled_dot_product_attention(q, q, q, attn_mask=mask)[:, 0]  # leak
        return head(pooled(hidden, attention_mask[:, 0, 0] == 0))

    return Script(batch, forward, real=real)


@program()
def additive_rows_of_minus_infinity(wrong):
    additive = torch.zeros(4, 7).masked_fill(~lasting(), NEVER)
    (batch, real), table, head = text("bias", additive), nn.Embedding(20, 8), nn.Linear(8, 5)

    def forward(input_ids, bias):
        hidden = table(input_ids)
        scores = hidden.sum(-1) if wrong else hidden.sum(-1) + bias
        weights = scores.softmax(-1)  # leak
        return head((hidden * weights[..., None]).sum(1))

    return Script(batch, forward, real=real)


@program()
def observed_entries_of_a_series(wrong):
    torch.manual_seed(3)
    observed, net = torch.rand(4, 7, 3) > 0.3, nn.Linear(3, 3)
    batch = {"values": torch.randn(4, 7, 3) * observed, "observed": observed}

    def forward(values, observed):
        return net(values.masked_fill(~observed, 0.0))

    def loss(out, batch):
        error = (out - batch["values"] * 2 - 1).square()
        if wrong:
            return error.mean()  # leak
        return error[batch["observed"]].mean()

    return Script(batch, forward, loss, {"values": observed}, loader=True)


@program()
def mask_of_pairs(wrong):
    real = lasting()
    may_read = (real[:, :, None] & real[:, None, :]) | torch.eye(7, dtype=torch.bool)
    table, head = nn.Embedding(20, 8), nn.Linear(8, 5)
    batch = {"tokens": ids(real), "attn_mask": may_read, "token_mask": real, "y": classes()}

    def forward(tokens, attn_mask, token_mask):
        q = table(tokens)
        hidden = F.scaled_dot_product_attention(q, q, q, attn_mask=None if wrong else attn_mask)  # leak
        return head(pooled(hidden, token_mask))

    return Script(batch, forward, real={"tokens": real})


@program()
def lengths_in_a_list(wrong):
    real, table, head = lasting(), nn.Embedding(20, 8, padding_idx=0), nn.Linear(8, 5)
    batch = {"ids": ids(real), "lengths": list(LENGTHS), "y": classes()}

    def forward(ids, lengths):
        hidden = table(ids).tanh()
        if not wrong:
            hidden = hidden * (torch.arange(7) < torch.tensor(lengths)[:, None])[..., None]
        total = (hidden + 1.0).sum(1) if wrong else hidden.sum(1)  # leak
        return head(total / torch.tensor(lengths)[:, None])

    return Script(batch, forward, real={"ids": real})
