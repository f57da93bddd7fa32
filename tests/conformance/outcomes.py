"""What a program gives, and the gradients it sends back; whether two ways of running it agree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tests.conformance.programs import Program
from tests.laws.any_type.comparison import assert_close

__all__ = ["Outcome", "assert_same", "outcome_of", "outcomes_of", "together"]


class Outcome(NamedTuple):
    """Results, and the gradient of each input that moves; None where it takes no part."""

    results: tuple[Tensor, ...]
    gradients: tuple[Tensor | None, ...]


def together(programs: Sequence[Program]) -> Callable[..., list[tuple[Tensor, ...]]]:
    """Several programs as one function of the inputs of each: one graph costs less than many."""
    functions = [program.function for program in programs]

    def function(*inputs: tuple[Tensor, ...]) -> list[tuple[Tensor, ...]]:
        return [one(*its) for one, its in zip(functions, inputs, strict=True)]

    return function


def outcomes_of(
    programs: Sequence[Program], function: Callable[..., list[tuple[Tensor, ...]]], kind: str
) -> list[Outcome]:
    """Run ``function``, the programs together or what was made of it, forward and backward on one kind of masks."""
    inputs = [program.inputs(kind, differentiable=True) for program in programs]
    torch.manual_seed(1)
    results = function(*inputs)
    ends = [result for found in results for result in found if result.requires_grad]
    moving = [its[at] for program, its in zip(programs, inputs, strict=True) for at in program.moving]
    weights = [torch.linspace(0.5, 1.5, end.numel()).reshape(end.shape).to(end.dtype) for end in ends]
    gradients = iter(torch.autograd.grad(ends, moving, weights, allow_unused=True) if ends else ())
    return [
        Outcome(tuple(found), tuple(dense(next(gradients)) for _ in program.moving))
        for program, found in zip(programs, results, strict=True)
    ]


def outcome_of(program: Program, function: Callable[..., tuple[Tensor, ...]], kind: str) -> Outcome:
    """The same for one program."""
    return outcomes_of([program], lambda inputs: [function(*inputs)], kind)[0]


def dense(gradient: Tensor | None) -> Tensor | None:
    """Embeddings can send sparse gradients."""
    return gradient if gradient is None or gradient.layout == torch.strided else gradient.to_dense()


def assert_same(found: Outcome, expected: Outcome, program: Program, what: str) -> None:
    """Structure, masks bit for bit, values and gradients within rounding; a missing gradient is zero."""
    for kind in ("results", "gradients"):
        ours: Sequence[Tensor | None] = getattr(found, kind)
        theirs: Sequence[Tensor | None] = getattr(expected, kind)
        assert len(ours) == len(theirs), f"{program.name}, {what}: {len(ours)} {kind}, not {len(theirs)}"
        for i, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            here = f"{program.name}, {what}, {kind}[{i}]"
            if kind == "gradients" and (one is None or other is None):
                known = one if one is not None else other
                assert known is None or not known.count_nonzero(), (
                    f"{here}: one is missing, the other not zero"
                )
                continue
            assert one is not None, here
            assert other is not None, here
            assert one.dtype == other.dtype, f"{here}: {one.dtype}, not {other.dtype}"
            assert_close(one, other, here, exact=one.dtype == torch.bool, amplified=program.amplifies)
    if found.gradients:
        assert_nothing_leaks(found, program, what)


def assert_nothing_leaks(found: Outcome, program: Program, what: str) -> None:
    """Unspecified entries have the gradient zero, exactly."""
    kind = what.split(",")[0]
    inputs = program.inputs(kind)
    gradients = dict(zip(program.moving, found.gradients, strict=True))
    for data, mask in program.masked:
        gradient = gradients.get(data)
        if gradient is not None:
            assert not gradient[~inputs[mask]].count_nonzero(), (
                f"{program.name}, {what}: gradient under the mask"
            )
