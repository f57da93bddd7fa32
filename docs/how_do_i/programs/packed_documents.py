import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention.flex_attention import flex_attention

import maskgrad as mg

torch.manual_seed(0)
documents = [torch.randint(0, 20, (length,)) for length in (5, 3, 9, 2, 4, 1)]
members = mg.interop.pack([len(document) for document in documents], budget=12)
print("documents that share a row:", members)

# rows of tokens, the document of each token (-1: padding), and the next token of the document as its label
tokens, ids, labels = torch.zeros(2, 12).long(), torch.full((2, 12), -1), torch.full((2, 12), -100)
for row, row_members in enumerate(members):
    start = 0
    for number in row_members:
        end = start + len(documents[number])
        tokens[row, start:end], ids[row, start:end] = documents[number], number
        labels[row, start : end - 1] = documents[number][1:]
        start = end
batch = {"tokens": tokens, "segment_ids": ids, "labels": labels}

# positions that start again in each document
counted = mg.unpack_documents(torch.ones_like(ids), segment_ids=ids).cumsum(1) - 1
batch["position_ids"] = mg.pack_documents(counted, segment_ids=ids).filled(0)
print("positions:", batch["position_ids"][0].tolist())

table, places = nn.Embedding(20, 8), nn.Embedding(12, 8)
projection, head = nn.Linear(8, 24), nn.Linear(8, 20)


def losses_of(tokens, positions, labels, blocks):
    x = table(tokens) + places(positions)
    q, k, v = projection(x).unflatten(-1, (3, 1, 8)).unbind(2)
    hidden = flex_attention(*(each.transpose(1, 2) for each in (q, k, v)), block_mask=blocks)
    scores = head(hidden.transpose(1, 2).flatten(2))
    return F.cross_entropy(scores.transpose(1, 2), mg.masked(labels, labels != -100), reduction="none")


def step(batch, how="seq-mean-token-mean"):
    ids = batch["segment_ids"]
    blocks = mg.block_mask(segment_ids=ids, causal=True)
    tokens = mg.masked(batch["tokens"], ids >= 0)
    losses = losses_of(tokens, batch["position_ids"], batch["labels"], blocks)
    return mg.aggregate(losses, how, documents=ids)


# beside each document alone, in a jagged batch of one sequence per document
alone = {name: mg.unpack_documents(held, segment_ids=ids) for name, held in batch.items()}
blocks = mg.block_mask(alone["tokens"], causal=True)
losses = losses_of(alone["tokens"], alone["position_ids"], alone["labels"], blocks)
for how in ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum"):
    same = torch.allclose(step(batch, how), mg.aggregate(losses, how))
    print(how, round(step(batch, how).item(), 3), "the same as alone:", same)

report = mg.doctor.examine(step, batch, experiments=["document-leak", "document-alone"])
print("the doctor finds:", [finding.kind for finding in report.findings])


def mean_of_rows(batch):
    return step({**batch, "segment_ids": torch.where(ids < 0, -1, 0)})  # one sequence per row


report = mg.doctor.examine(mean_of_rows, batch, experiments=["document-leak", "document-alone"])
print("of attention and means over rows:", sorted({finding.kind for finding in report.findings}))
