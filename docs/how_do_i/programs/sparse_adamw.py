import torch

import maskgrad as mg


def train(optimizer_class, table, **options):
    with torch.no_grad():
        table.weight.fill_(1.0)
    optimizer = optimizer_class(table.parameters(), lr=0.1, weight_decay=0.1, **options)
    for words in ([3, 7, 3], [7, 1], [3]):
        optimizer.zero_grad()
        table(torch.tensor(words)).square().sum().backward()
        optimizer.step()
    if options:
        optimizer.flush()  # before reading the weights other than through the table
    return table.weight.detach()


dense = train(torch.optim.AdamW, torch.nn.Embedding(1000, 8))
lazy = train(mg.optim.AdamW, mg.nn.Embedding(1000, 8), unspecified="zero")
print("equal to dense AdamW:", torch.allclose(lazy, dense))

skip = train(mg.optim.AdamW, torch.nn.Embedding(1000, 8, sparse=True))
print("rows that moved by default:", (skip != 1).any(1).nonzero().flatten().tolist())
