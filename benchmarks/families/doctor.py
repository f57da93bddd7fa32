"""The doctor's padding-leak: its first run, and the second that records where, beside the plain step."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.case import OURS, Case, Comparison, Implementation
from benchmarks.families.models import Program, programs
from benchmarks.plan import Family, Point
from maskgrad.doctor.case import randomize_padding
from maskgrad.doctor.comparison import compare_twins
from maskgrad.doctor.modes import Guarded
from maskgrad.doctor.recorder import Recorder
from maskgrad.doctor.roles import recognised
from maskgrad.doctor.runner import Outcome, StepRunner
from maskgrad.doctor.twins import Twins

__all__ = ["FAMILY"]

NAME = "doctor"
#: the first of each name: 16 x 128 x 128, 16 x 64 x 128 and 256 x 64 at the anchor
PROGRAMS = ("two encoder layers", "Bert", "MLP")
RUNS = ("first run", "second run")


def _cases(point: Point) -> Iterator[Case]:
    found: dict[str, Program] = {}
    for program in programs(point.size):
        found.setdefault(program.name, program)
    for name in PROGRAMS:
        shape = found[name].shape
        for run in RUNS:
            for mistake in (False, True):
                prepare = functools.partial(_contest, found[name], run, mistake)
                note = "a leak" if mistake else ""
                yield Case(NAME, name, run, shape, 0.7, "float32", prepare, note)


def _contest(program: Program, run: str, mistake: bool) -> Comparison:
    torch.manual_seed(0)
    model, data = program.model(program.shape), program.data(program.shape)
    padding = _padding(data)

    def step(batch: dict[str, Tensor]) -> Any:
        return _leaking(model, batch) if mistake else program.by_hand(model, batch)

    runner = StepRunner(step, data, model)
    runner.run(Guarded())
    paddings = recognised(data, padding)

    def examined() -> Tensor:
        mode: Twins = Twins()
        if run == "second run":
            mode = Recorder([found.mask for found in paddings], runner.modules())
        randomize_padding(mode, data, paddings, "numbers")

        def read(outcome: Outcome) -> Tensor:
            assert bool(compare_twins(mode, outcome, data, paddings)) == mistake
            return _numbers(outcome.loss, outcome.gradients)

        found: Tensor = runner.run(mode, after=read)
        return found

    def plain() -> Tensor:
        model.zero_grad()
        loss = step(data)
        loss.backward()
        return _numbers(
            loss.detach(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        )

    made = {OURS: lambda: Implementation(examined), "plain-step": lambda: Implementation(plain)}
    # the program's own numbers are those of a step without the doctor, bit for bit
    verify = functools.partial(torch.testing.assert_close, plain().clone(), rtol=0, atol=0)
    return Comparison(made, verify, weighs=True)


def _padding(data: dict[str, Tensor]) -> dict[Any, Any]:
    if "present" in data:
        return {"x": data["present"], "y": data["observed"]}
    return {"x": torch.arange(data["x"].shape[1]) < data["lengths"][:, None]}


def _leaking(model: nn.Module, data: dict[str, Tensor]) -> Tensor:
    """The mask is forgotten: in the first layer, in the attention, and in the mean."""
    if isinstance(model, nn.Sequential | nn.TransformerEncoder):
        found: Tensor = model(data["x"])
    else:
        found = model(inputs_embeds=data["x"]).last_hidden_state
    return found.square().mean()


def _numbers(loss: Tensor | None, gradients: dict[str, Tensor]) -> Tensor:
    assert loss is not None
    return torch.cat([loss.reshape(1), *(gradients[name].reshape(-1) for name in sorted(gradients))])


FAMILY = Family(
    NAME,
    "the doctor's padding-leak beside the plain step, time and memory",
    size_is="sequences of a batch",
    cases=_cases,
    sizes=(16,),
    quick_size=4,
    densities=(0.7,),
)
