"""Forms of masks: extended, additive, True in the padding, of zeros and ones, and under other names."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.doctor.scripts.script import LENGTHS, Script, classes, floats, ids, lasting, program

NEVER = float("-inf")


def text(name, mask, **more):
    """Ids (4, 7) padded with 0, and a mask under this name."""
    return {"input_ids": ids(lasting()), name: mask, "y": classes(), **more}, {"input_ids": lasting()}


def pooled(hidden, real):
    return (hidden * real[..., None]).sum(1) / real.sum(1, keepdim=True)


@program()
def extended_mask_and_a_mean(wrong):
    (batch, real), table, head = text("mask", lasting()[:, None, None]), nn.Embedding(20, 8), nn.Linear(8, 5)

    def forward(input_ids, mask):
        hidden = table(input_ids)
        if wrong:
            return head(hidden.mean(1))  # leak
        return head(pooled(hidden, mask[:, 0, 0]))

    return Script(batch, forward, real=real)


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
def mask_of_columns(wrong):
    (batch, real), table, head = text("keep", lasting()[..., None]), nn.Embedding(20, 8), nn.Linear(8, 5)

    def forward(input_ids, keep):
        hidden = table(input_ids)
        if wrong:
            return head(hidden.sum(1) / keep.sum(1))  # leak
        return head((hidden * keep).sum(1) / keep.sum(1))

    return Script(batch, forward, real=real)


@program()
def true_in_the_padding(wrong):
    (batch, real), table, head = text("mask", ~lasting()), nn.Embedding(20, 8), nn.Linear(8, 5)

    def forward(input_ids, mask):
        hidden = table(input_ids)
        if not wrong:
            hidden = hidden.masked_fill(mask[..., None], 0.0)
        return head(hidden.sum(1) / (~mask).sum(1, keepdim=True))  # leak

    return Script(batch, forward, real=real)


@program()
def is_pad(wrong):
    (batch, real), table, head = text("is_pad", (~lasting()).long()), nn.Embedding(20, 8), nn.Linear(8, 5)

    def forward(input_ids, is_pad):
        if wrong:
            return head(table(input_ids).amax(1))  # leak
        return head(table(input_ids).masked_fill(is_pad[..., None] == 1, NEVER).amax(1))

    return Script(batch, forward, real=real)


@program()
def actions_beyond_the_end(wrong):
    real, net = lasting(), nn.Linear(3, 2)
    batch = {"state": floats(real, 3), "action": floats(real, 2), "action_is_pad": ~real}

    def forward(state):
        return net(state)

    def loss(out, batch):
        error = (out - batch["action"] - 1.0).abs()
        if wrong:
            return error.mean()  # leak
        return error[~batch["action_is_pad"]].mean()

    return Script(batch, forward, loss, {"action": real}, loader=True)


@program()
def valid_steps_of_agents(wrong):
    real = lasting()
    head, net = nn.Linear(6, 5), nn.Linear(3, 6)
    batch = {"agents": floats(real, 3), "valid": real.float(), "y": classes()}

    def forward(agents, valid):
        hidden = net(agents).relu()
        if wrong:
            return head(hidden.amax(1))  # leak
        return head((hidden - (1.0 - valid[..., None]) * 1e9).amax(1))

    return Script(batch, forward, real={"agents": real})


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


@program()
def lengths_in_an_array(wrong):
    real, net, head = lasting(), nn.Linear(3, 6), nn.Linear(6, 5)
    batch = {"series": floats(real, 3), "n": torch.tensor(LENGTHS).numpy(), "y": classes()}

    def forward(series, n):
        hidden = net(series).relu()
        if wrong:
            return head(hidden.mean(1))  # leak
        seen = torch.arange(7) < torch.as_tensor(n)[:, None]
        return head(pooled(hidden, seen))

    return Script(batch, forward, real={"series": real})
