"""Sequences of different lengths: whole models on jagged batches, beside padded ones with masks by hand."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

import maskgrad as mg
from benchmarks.case import Case
from benchmarks.families.models import Program, Step, contest, mean_by_hand, programs
from benchmarks.masked_comparison import FORWARD_AND_BACKWARD
from benchmarks.plan import Family, Point

__all__ = ["FAMILY"]

NAME = "ragged"
BOOLEAN = "maskgrad, Boolean mask"
PACKED = "rows and segments by hand"
BLOCK = "feed-forward block"
POOLING = "standardise, pool by softmax"
#: of the models that are measured with Boolean masks, those with padding
PADDED = ("two encoder layers", "Bert", "linear, mean over time")
#: the growth of one program: shares of real positions, and numbers of positions
SHARES = (0.1, 0.25, 0.5, 0.75)
LENGTHS = (16, 64, 256)


def _batch(density: float, shape: tuple[int, ...]) -> dict[str, Tensor]:
    """A padded batch, and its real positions one behind the other, as a loader would hand them out."""
    size, length, features = shape
    generator = torch.Generator().manual_seed(1)
    spread = min(density, 1 - density)
    shares = density + (2 * torch.rand(size, generator=generator) - 1) * spread
    lengths = (shares * length).round().long().clamp(1, length)
    real = torch.arange(length) < lengths[:, None]
    x = torch.randn(size, length, features, generator=generator) * real[..., None]
    offsets = nn.functional.pad(lengths.cumsum(0), (1, 0))
    return {"x": x, "lengths": lengths, "rows": x[real], "offsets": offsets}


def _jagged(data: dict[str, Tensor]) -> Any:
    return mg.from_offsets(data["rows"], data["offsets"], longest=data["x"].shape[1])


def _pooled(model: Any, data: dict[str, Tensor]) -> Any:
    return model(_jagged(data)).mean(1).square().mean()


def _bert(model: Any, data: dict[str, Tensor]) -> Any:
    return model(inputs_embeds=_jagged(data)).last_hidden_state.mean(1).square().mean()


STEPS: dict[str, Step] = {"Bert": _bert}


def _block(shape: tuple[int, ...]) -> nn.Module:
    return nn.Sequential(nn.Linear(shape[-1], 256), nn.GELU(), nn.Linear(256, shape[-1]))


def _block_by_hand(model: Any, data: dict[str, Tensor]) -> Any:
    real = torch.arange(data["x"].shape[1]) < data["lengths"][:, None]
    return mean_by_hand(model(data["x"]), real).square().mean()


def _block_alone(model: Any, data: dict[str, Tensor]) -> Any:
    rows = [model(x[:n]).mean(0) for x, n in zip(data["x"], data["lengths"].tolist(), strict=True)]
    return torch.stack(rows).square().mean()


def _block_on_mask(model: Any, data: dict[str, Tensor]) -> Any:
    return model(mg.from_lengths(data["x"], data["lengths"])).mean(1).square().mean()


def _scores(shape: tuple[int, ...]) -> nn.Module:
    return nn.Linear(shape[-1], 1)


def _standardised(model: Any, x: Any) -> Any:
    """The same line for a jagged batch, a masked one, and a sequence alone."""
    x = (x - x.mean(1, keepdim=True)) / (x.var(1, keepdim=True, correction=0) + 1e-5).sqrt()
    scores = model(x)
    powers = (scores - scores.amax(1, keepdim=True)).exp()
    return (x * (powers / powers.sum(1, keepdim=True))).sum(1)


def _pooling(model: Any, data: dict[str, Tensor]) -> Any:
    return _standardised(model, _jagged(data)).square().mean()


def _pooling_on_mask(model: Any, data: dict[str, Tensor]) -> Any:
    return _standardised(model, mg.from_lengths(data["x"], data["lengths"])).square().mean()


def _pooling_alone(model: Any, data: dict[str, Tensor]) -> Any:
    pairs = zip(data["x"], data["lengths"].tolist(), strict=True)
    return torch.cat([_standardised(model, x[None, :n]) for x, n in pairs]).square().mean()


def _pooling_by_hand(model: Any, data: dict[str, Tensor]) -> Any:
    x, number = data["x"], data["lengths"][:, None, None]
    real = (torch.arange(x.shape[1]) < data["lengths"][:, None])[..., None]
    centred = torch.where(real, x - torch.where(real, x, 0).sum(1, keepdim=True) / number, 0)
    x = centred / (centred.square().sum(1, keepdim=True) / number + 1e-5).sqrt()
    weights = model(x).masked_fill(~real, -torch.inf).softmax(1)
    return (x * weights).sum(1).square().mean()


def _pooling_packed(model: Any, data: dict[str, Tensor]) -> Any:
    rows, lengths = data["rows"], data["lengths"]
    which = torch.repeat_interleave(lengths, output_size=len(rows))

    def total(values: Tensor) -> Tensor:
        return values.new_zeros(len(lengths), values.shape[1]).index_add(0, which, values)

    centred = rows - (total(rows) / lengths[:, None])[which]
    rows = centred / (total(centred.square()) / lengths[:, None] + 1e-5).sqrt()[which]
    scores = model(rows)
    best = scores.new_empty(len(lengths), 1).scatter_reduce(
        0, which[:, None], scores.detach(), "amax", include_self=False
    )
    powers = (scores - best[which]).exp()
    return total(rows * (powers / total(powers)[which])).square().mean()


def _programs(size: int) -> Iterator[tuple[Program, dict[str, Step]]]:
    """Each program, and the same on a Boolean mask."""
    for program in programs(size):
        if program.name in PADDED:
            ours = STEPS.get(program.name, _pooled)
            yield dataclasses.replace(program, ours=ours), {BOOLEAN: program.ours}
    yield _growing(4 * size, 256)
    data = functools.partial(_batch, 0.65)
    pooling = Program(POOLING, (4 * size, 256, 64), _scores, data, _pooling, _pooling_by_hand, _pooling_alone)
    yield pooling, {BOOLEAN: _pooling_on_mask, PACKED: _pooling_packed}


def _growing(size: int, length: int) -> tuple[Program, dict[str, Step]]:
    shape = (size, length, 64)
    return Program(
        BLOCK, shape, _block, functools.partial(_batch, 0.65), _pooled, _block_by_hand, _block_alone
    ), {BOOLEAN: _block_on_mask}


def _cases(point: Point) -> Iterator[Case]:
    for program, others in _programs(point.size):
        yield _case(program, others, point.density)
    if not point.in_full and point.density == 1.0:  # how the time grows
        for share in (*SHARES, 1.0):
            yield _case(*_growing(4 * point.size, 256), share, "growth")
        for length in LENGTHS:
            yield _case(*_growing(point.size * 256, length), 0.65, "growth")


def _case(program: Program, others: dict[str, Step], density: float, note: str = "") -> Case:
    measured = dataclasses.replace(program, data=functools.partial(_batch, density))
    return Case(
        NAME, program.name, FORWARD_AND_BACKWARD, program.shape, density, "float32",
        functools.partial(contest, measured, others), note,
    )  # fmt: skip


FAMILY = Family(
    NAME,
    "models on sequences of different lengths, beside padded batches with masks by hand",
    size_is="sequences of a batch",
    cases=_cases,
    sizes=(16,),
    quick_size=4,
    densities=(0.65, 1.0),
)
