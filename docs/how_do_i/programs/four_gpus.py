import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

import maskgrad as mg

torch.manual_seed(0)
model = nn.Linear(4, 5)
x, labels = torch.randn(8, 6, 4), torch.randint(5, (8, 6))
for row, length in enumerate((6, 2, 5, 1, 6, 3, 4, 2)):
    labels[row, length:] = -100  # padding
batch = {"x": x, "labels": labels}


def usual(batch):
    return F.cross_entropy(model(batch["x"]).mT, batch["labels"])


def counted(batch):
    losses = F.cross_entropy(model(batch["x"]).mT, batch["labels"], reduction="sum")
    count = (batch["labels"] != -100).sum()
    dist.all_reduce(count)  # the labels of all ranks
    return losses / count * dist.get_world_size()  # which the average over the ranks divides by


for step in (usual, counted):
    report = mg.doctor.examine(step, batch, ranks=4)
    print(f"{step.__name__}: {report.verdict}")
    for found in report.findings:
        print(f"  {found.kind} at: {found.code}\n  {found.message.partition(': ')[2]}")
