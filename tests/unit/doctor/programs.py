"""Small steps with a known fault; the line with the fault ends in a comment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from maskgrad.doctor.padding import Padding, with_given
from maskgrad.doctor.roles import Roles

__all__ = ["batch", "line_of", "recognised", "step_with"]


def recognised(batch: Any, given: Any = None) -> list[Padding]:
    """The padding of each tensor of a batch, as it is given or recognised."""
    return with_given(Roles(batch, only_proven=given is not None).paddings, batch, given)


def batch() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    mask = torch.arange(5) < torch.tensor([5, 3, 2, 4])[:, None]
    x = torch.randn(4, 5, 3, generator=generator) * mask[..., None]
    return {"x": x, "mask": mask, "y": torch.randn(4, generator=generator)}


def line_of(comment: str, file: str = __file__) -> int:
    lines = Path(file).read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(f"# {comment}"))


class _Forgetful(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, mask: Tensor) -> Tensor:
        return h * mask

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient + 1.0, None  # gradient


def step_with(name: str) -> Callable[[dict[str, Tensor]], Any]:
    torch.default_generator.manual_seed(1)
    layer = nn.Linear(3, 3)

    def real(h: Tensor, mask: Tensor) -> Tensor:
        return h.masked_fill(~mask[..., None], 0.0)

    def fixed(b: dict[str, Tensor]) -> Tensor:
        h = real(torch.tanh(layer(b["x"])), b["mask"])
        return ((h.sum(1) / b["mask"].sum(1, keepdim=True)).sum(-1) - b["y"]).square().mean()

    def mean(b: dict[str, Tensor]) -> Tensor:
        pooled = torch.tanh(layer(b["x"])).mean(1)  # mean
        return (pooled.sum(-1) - b["y"]).square().mean()

    def gradient(b: dict[str, Tensor]) -> Tensor:
        kept = _Forgetful.apply(layer(b["x"]), b["mask"][..., None])
        return real(kept, b["mask"]).sum() / b["mask"].sum()

    def size(b: dict[str, Tensor]) -> Tensor:
        h = real(layer(b["x"]), b["mask"])
        return h.mean()  # size

    def parts(b: dict[str, Tensor]) -> Tensor:
        total = torch.zeros(())
        for rows in (slice(0, 2), slice(2, 4)):
            h, mask = layer(b["x"][rows]), b["mask"][rows]
            loss = real(h, mask).sum() / mask.sum() / 2  # parts
            loss.backward()
            total += loss.detach()
        return total

    return locals()[name]
