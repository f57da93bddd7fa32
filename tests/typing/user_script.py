"""A user's program, in which no type checker may find anything."""

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import maskgrad as mg

__all__ = ["train"]


def train() -> float:
    nan = float("nan")
    x: mg.MaskedTensor = mg.from_nan(torch.tensor([[1.0, nan, 3.0], [4.0, 5.0, nan]]))
    y = mg.masked(torch.tensor([0, 2]), torch.tensor([True, True]))
    doubled: mg.MaskedTensor = x * 2 + 2 * x[:, 1:2] - x.filled(0.0)
    means: mg.MaskedTensor = x.mean(1)
    spread: Tensor = mg.functional.var(x.filled(0.0), 0, unbiased=False, keepdim=True, mask=x.mask)
    mean: Tensor = spread.sum() + x.mean() + x.std(correction=0) + x.norm(2) + x.median()
    known: Tensor = doubled.exp().clamp(max=10.0).sum(dim=-1, keepdim=True).mask & means.mask
    assert x.max(1).values.mask.all()
    assert x.sort(descending=True).indices.shape == x.shape
    assert len([part.mask for part in x.split(1)] + [row.mask for row in x]) == 4
    x[0, 0] = 1.5
    x += 0.5
    chosen = x[x > 0].to(torch.float64) if (x != 0).any() else x.T
    biggest: float = mean.item() + x.max().item() + chosen.numel() + known.sum().item()

    # as in the table of docs/with_other_libraries.md
    joined = cast(mg.MaskedTensor, torch.stack([x, doubled]))
    assert joined.mask.shape == (2, 2, 3)
    weights: Tensor = x.softmax(-1).filled(0.0) + x.relu().exp().where(x > 0, x).filled(0.0)
    bent: mg.MaskedTensor = nn.GELU()(x)
    assert weights.shape == bent.mask.shape == (-x + weights).mask.shape
    jagged = mg.from_sequences([torch.ones(2), torch.ones(1)], layout=torch.jagged)
    assert jagged.drop_last(1).lengths().sum() < jagged.num_specified()

    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3))
    optimizer = mg.optim.AdamW(model.parameters(), lr=1e-2, unspecified="skip")
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1)
    accumulator = mg.GradientAccumulator(model)
    for part in (x, x * 2):
        output: mg.MaskedTensor = model(part)
        accumulator.backward(F.cross_entropy(output, y, reduction="none"))
    loss: float = accumulator.finish().item()
    optimizer.step()
    optimizer.zero_grad()
    schedule.step()

    def step(batch: dict[str, mg.MaskedTensor]) -> Tensor:
        return F.mse_loss(model(batch["x"]), batch["x"]) + F.cross_entropy(batch["x"], y)

    report = mg.doctor.examine(step, {"x": x}, quick=True)
    assert not [finding.message for finding in report.findings]
    out = nn.Linear(3, 4)(x)
    return loss + biggest + F.mse_loss(torch.zeros(2, 4), out).item()
