"""The doctor: a quick examination and a whole one beside the plain step, in time and memory."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

import maskgrad as mg
from benchmarks.case import OURS, Case, Comparison, Implementation
from benchmarks.families.models import Program, programs
from benchmarks.plan import Family, Point

__all__ = ["FAMILY"]

NAME = "doctor"
#: the first of each name: 16 x 128 x 128, 16 x 64 x 128 and 256 x 64 at the anchor
PROGRAMS = ("two encoder layers", "Bert", "MLP")
RUNS = ("quick", "whole")


def _cases(point: Point) -> Iterator[Case]:
    found: dict[str, Program] = {}
    for program in programs(point.size):
        found.setdefault(program.name, program)
    for name in PROGRAMS:
        for run in RUNS:
            prepare = functools.partial(_contest, found[name], run)
            yield Case(NAME, name, run, found[name].shape, 0.7, "float32", prepare)


def _contest(program: Program, run: str) -> Comparison:
    torch.manual_seed(0)
    model, data = program.model(program.shape), program.data(program.shape)

    def step(batch: dict[str, Tensor]) -> Any:
        return program.by_hand(model, batch)

    def examined() -> Tensor:
        report = mg.doctor.examine(step, data, padding=_padding(data), model=model, quick=run == "quick")
        assert not report.findings, report
        return gradients()

    def plain() -> Tensor:
        model.zero_grad()
        step(data).backward()
        return gradients()

    def gradients() -> Tensor:
        return torch.cat([param.grad.reshape(-1) for param in model.parameters() if param.grad is not None])

    made = {OURS: lambda: Implementation(examined), "plain-step": lambda: Implementation(plain)}
    # an examination leaves the gradients of the step before it, bit for bit
    return Comparison(
        made, functools.partial(torch.testing.assert_close, plain().clone(), rtol=0, atol=0), weighs=True
    )


def _padding(data: dict[str, Tensor]) -> dict[Any, Any]:
    if "present" in data:
        return {"x": data["present"], "y": data["observed"]}
    return {"x": torch.arange(data["x"].shape[1]) < data["lengths"][:, None]}


FAMILY = Family(
    NAME,
    "the doctor beside the plain step, time and memory",
    size_is="sequences of a batch",
    cases=_cases,
    sizes=(16,),
    quick_size=4,
    densities=(0.7,),
)
