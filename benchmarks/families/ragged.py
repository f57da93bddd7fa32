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
BLOCK = "feed-forward block"
#: of the models that are measured with Boolean masks, those with padding
PADDED = ("two encoder layers", "Bert", "linear, mean over time", "LSTM")
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


def _lstm(model: Any, data: dict[str, Tensor]) -> Any:
    return model(_jagged(data))[0].mean(1).square().mean()


STEPS: dict[str, Step] = {"Bert": _bert, "LSTM": _lstm}


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


def _programs(size: int) -> Iterator[tuple[Program, Step]]:
    """Each program, and the same on a Boolean mask."""
    for program in programs(size):
        if program.name in PADDED:
            yield dataclasses.replace(program, ours=STEPS.get(program.name, _pooled)), program.ours
    yield _growing(4 * size, 256)


def _growing(size: int, length: int) -> tuple[Program, Step]:
    shape = (size, length, 64)
    return Program(
        BLOCK, shape, _block, functools.partial(_batch, 0.65), _pooled, _block_by_hand, _block_alone
    ), _block_on_mask


def _cases(point: Point) -> Iterator[Case]:
    for program, on_mask in _programs(point.size):
        yield _case(program, on_mask, point.density)
    if not point.in_full and point.density == 1.0:  # how the time grows
        for share in (*SHARES, 1.0):
            yield _case(*_growing(4 * point.size, 256), share, "growth")
        for length in LENGTHS:
            yield _case(*_growing(point.size * 256, length), 0.65, "growth")


def _case(program: Program, on_mask: Step, density: float, note: str = "") -> Case:
    measured = dataclasses.replace(program, data=functools.partial(_batch, density))
    return Case(
        NAME, program.name, FORWARD_AND_BACKWARD, program.shape, density, "float32",
        functools.partial(contest, measured, {BOOLEAN: on_mask}), note,
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
