"""Texts and series with time first, the default of nn.LSTM and nn.Transformer."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from tests.doctor.scripts.script import LENGTHS, Script, classes, ids, lasting, program


@program()
def mean_over_time(wrong):
    real, table, head = lasting().T, nn.Embedding(20, 8, padding_idx=0), nn.Linear(8, 5)

    def forward(src):
        hidden, seen = table(src).tanh(), (src != 0)[..., None]
        if wrong:
            return head(hidden.mean(0))  # leak
        return head((hidden * seen).sum(0) / seen.sum(0))

    return Script({"src": ids(real), "y": classes()}, forward, real={"src": real})


@program("padding-length")
def sum_over_time_by_the_padded_length(wrong):
    real, table, head = lasting().T, nn.Embedding(20, 8, padding_idx=0), nn.Linear(8, 5)

    def forward(src):
        count = len(src) if wrong else (src != 0).sum(0)[:, None]
        return head((table(src) * (src != 0)[..., None]).sum(0) / count)  # leak

    return Script({"src": ids(real), "y": classes()}, forward)


@program()
def last_state_of_an_lstm(wrong):
    real, table, head = lasting().T, nn.Embedding(20, 8), nn.Linear(6, 5)
    lstm = nn.LSTM(8, 6)

    def forward(text, lengths):
        packed = table(text)
        if not wrong:
            packed = pack_padded_sequence(packed, lengths)
        state = lstm(packed)[1][0]  # leak
        return head(state[-1])

    batch = {"text": ids(real), "lengths": torch.tensor(LENGTHS), "y": classes()}
    return Script(batch, forward, real={"text": real})


@program()
def encoder_layer_with_its_mask_and_a_mean(wrong):
    real, table, head = lasting().T, nn.Embedding(20, 8), nn.Linear(8, 5)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0)

    def forward(src, src_padding_mask):
        hidden = layer(table(src), src_key_padding_mask=src_padding_mask)
        if wrong:
            return head(hidden.mean(0))  # leak
        seen = ~src_padding_mask.T[..., None]
        return head((hidden * seen).sum(0) / seen.sum(0))

    batch = {"src": ids(real), "src_padding_mask": ~real.T, "y": classes()}
    return Script(batch, forward, real={"src": real})


@program()
def labels_of_padding(wrong):
    real, table, head = lasting().T, nn.Embedding(20, 8, padding_idx=0), nn.Linear(8, 20)

    def loss(out, batch):
        ignored = -100 if wrong else 0
        return F.cross_entropy(out.view(-1, 20), batch["tags"].reshape(-1), ignore_index=ignored)  # leak

    batch = {"words": ids(real), "tags": ids(real)}
    return Script(batch, lambda words: head(table(words)), loss, {"words": real}, loader=True)


@program("future-leak")
def future_of_a_transformer(wrong):
    table, head = nn.Embedding(20, 8), nn.Linear(8, 20)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0)

    def forward(ids):
        mask = None if wrong else nn.Transformer.generate_square_subsequent_mask(len(ids))
        hidden = layer(table(ids), src_mask=mask)  # leak
        return head(hidden)

    def loss(out, batch):
        return F.cross_entropy(out.flatten(0, 1), batch["next"].flatten())

    text = torch.randint(1, 20, (13, 4))
    return Script({"ids": text[:-1], "next": text[1:]}, forward, loss, options={"causal": True})


@program("future-leak")
def future_of_a_bidirectional_lstm(wrong):
    table, head = nn.Embedding(20, 8), nn.Linear(6 if not wrong else 12, 20)
    lstm = nn.LSTM(8, 6, bidirectional=wrong)

    def forward(text):
        hidden, _ = lstm(table(text))  # leak
        return head(hidden)

    def loss(out, batch):
        return F.cross_entropy(out.view(-1, 20), batch["target"].reshape(-1))

    text = torch.randint(1, 20, (12, 5))
    return Script({"text": text[:-1], "target": text[1:]}, forward, loss, options={"causal": True})
