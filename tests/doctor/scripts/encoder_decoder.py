"""Two sequences: source and target, question and context, memory and queries."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.doctor.scripts.script import Script, classes, ids, lasting, program

TARGET = (3, 6, 5, 2)


def pair(**more):
    """Source (4, 7) and target (4, 6), each padded with 0."""
    source, target = lasting(), lasting(*TARGET)
    batch = {"src": ids(source), "trg": ids(target), **more}
    return batch, {"src": source, "trg": target}


def next_token(out, batch):
    return F.cross_entropy(out.flatten(0, 1), batch["trg"][:, 1:].flatten(), ignore_index=0)


@program()
def second_table_has_padding_of_its_own(wrong):
    (batch, real), head = pair(), nn.Linear(8, 20)
    source, target = nn.Embedding(20, 8, padding_idx=0), nn.Embedding(20, 8, padding_idx=0)

    def forward(src, trg):
        context = (source(src) * (src != 0)[..., None]).sum(1, keepdim=True)
        return head(target(trg) + context)

    def loss(out, batch):
        gold = batch["trg"].flatten()
        return F.cross_entropy(out.flatten(0, 1), gold, ignore_index=-100 if wrong else 0)  # leak

    return Script(batch, forward, loss, real)


@program()
def teacher_is_read_as_a_slice(wrong):
    (batch, real), head = pair(), nn.Linear(8, 20)
    source, target = nn.Embedding(20, 8, padding_idx=0), nn.Embedding(20, 8, padding_idx=0)

    def forward(src, trg):
        context = (source(src) * (src != 0)[..., None]).sum(1, keepdim=True)
        return head(target(trg[:, :-1]) + context)

    def loss(out, batch):
        gold = batch["trg"][:, 1:].flatten()
        return F.cross_entropy(out.flatten(0, 1), gold, ignore_index=-100 if wrong else 0)  # leak

    return Script(batch, forward, loss, real)


@program()
def memory_without_its_mask(wrong):
    (batch, real), table, head = pair(), nn.Embedding(20, 8, padding_idx=0), nn.Linear(8, 20)
    transformer = nn.Transformer(8, 2, 1, 1, 16, dropout=0.0, batch_first=True)

    def forward(src, trg):
        read, padded = trg[:, :-1], src == 0
        causal = nn.Transformer.generate_square_subsequent_mask(read.shape[1])
        masks = {"src_key_padding_mask": padded, "memory_key_padding_mask": None if wrong else padded}
        hidden = transformer(table(src), table(read), tgt_mask=causal, **masks)  # leak
        return head(hidden)

    return Script(batch, forward, next_token, real)


@program()
def source_without_its_mask(wrong):
    (batch, real), head = pair(src_key_padding_mask=~lasting()), nn.Linear(8, 20)
    table, layer = nn.Embedding(20, 8), nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

    def forward(src, trg, src_key_padding_mask):
        memory = layer(table(src), src_key_padding_mask=None if wrong else src_key_padding_mask)  # leak
        seen = ~src_key_padding_mask[..., None]
        return head(table(trg[:, :-1]) + (memory * seen).sum(1, keepdim=True))

    return Script(batch, forward, next_token, real)


@program()
def attention_over_the_states_of_the_source(wrong):
    (batch, real), table, head = pair(src_lengths=lasting().sum(1)), nn.Embedding(20, 8), nn.Linear(16, 20)

    def forward(src, src_lengths, trg):
        states, queries = table(src), table(trg[:, :-1])
        scores = queries @ states.transpose(1, 2)
        if not wrong:
            beyond = torch.arange(src.shape[1]) >= src_lengths[:, None]
            scores = scores.masked_fill(beyond[:, None], float("-inf"))
        weights = scores.softmax(-1)  # leak
        return head(torch.cat([queries, weights @ states], -1))

    return Script(batch, forward, next_token, real)


@program()
def last_token_of_the_source(wrong):
    (batch, real), table, head = pair(attention_mask=lasting().long()), nn.Embedding(20, 8), nn.Linear(16, 20)

    def forward(src, attention_mask, trg):
        queries, states = table(trg[:, :-1]), table(src).cumsum(1)
        last = states[torch.arange(len(src)), attention_mask.sum(1) - 1]
        if wrong:
            last = states[:, -1]  # leak
        return head(torch.cat([queries, last[:, None].expand_as(queries)], -1))

    return Script(batch, forward, next_token, real)


@program()
def question_pooled_and_context_not(wrong):
    question, context = lasting(3, 5, 2, 4), lasting()
    table, head = nn.Embedding(20, 8), nn.Linear(16, 5)
    names = ("question", "question_mask", "context", "context_mask")
    batch = dict(zip(names, (ids(question), question.long(), ids(context), context.long()), strict=True))

    def forward(question, question_mask, context, context_mask):
        asked = (table(question) * question_mask[..., None]).sum(1) / question_mask.sum(1, keepdim=True)
        if wrong:
            read = table(context).amax(1)  # leak
        else:
            read = table(context).masked_fill(context_mask[..., None] == 0, -9.0).amax(1)
        return head(torch.cat([asked, read], -1))

    return Script(batch | {"y": classes()}, forward, real={"question": question, "context": context})


@program("future-leak")
def decoder_that_sees_its_future(wrong):
    (batch, _), table, head = pair(), nn.Embedding(20, 8, padding_idx=0), nn.Linear(8, 20)
    layer = nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    read = torch.cat([torch.full((4, 1), 3), torch.randint(1, 20, (4, 8))], 1)
    batch = {"trg": read, "src": batch["src"]}

    def forward(trg, src):
        queries, padded = table(trg[:, :-1]), src == 0
        causal = None if wrong else torch.ones(8, 8, dtype=torch.bool).triu(1)
        hidden = layer(queries, table(src), causal, memory_key_padding_mask=padded)  # leak
        return head(hidden)

    return Script(batch, forward, next_token, options={"causal": True})


@program()
def pairs_compared_by_means(wrong):
    first, second, table = lasting(), lasting(4, 6, 3, 5), nn.Embedding(20, 8, padding_idx=0)

    def mean(text):
        if wrong:
            return table(text).mean(1)  # leak
        seen = (text != 0)[..., None]
        return (table(text) * seen).sum(1) / seen.sum(1)

    def forward(premise, hypothesis):
        return F.cosine_similarity(mean(premise), mean(hypothesis))

    def loss(out, batch):
        return F.mse_loss(out, batch["score"])

    batch = {"premise": ids(first), "hypothesis": ids(second), "score": torch.rand(4)}
    script = Script(batch, forward, loss, {"premise": first, "hypothesis": second})
    script.model.table = table
    return script
