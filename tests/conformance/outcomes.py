"""What a program gives, and the gradients it sends back; whether two ways of running it agree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

import maskgrad as mg
from tests.conformance.programs import Program
from tests.laws.any_type.comparison import assert_close

__all__ = [
    "Outcome",
    "as_plain",
    "assert_same",
    "dense",
    "outcome_of",
    "outcomes_of",
    "together",
    "weight_of",
]


class Outcome(NamedTuple):
    """Results, and the gradient of each input that moves; None where it takes no part."""

    results: Sequence[Tensor]
    gradients: Sequence[Tensor | None]


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
    weights = map(weight_of, ends)
    gradients = iter(torch.autograd.grad(ends, moving, [*weights], allow_unused=True) if ends else ())
    return [
        Outcome(tuple(found), tuple(dense(next(gradients)) for _ in program.moving))
        for program, found in zip(programs, results, strict=True)
    ]


def outcome_of(program: Program, function: Callable[..., tuple[Tensor, ...]], kind: str) -> Outcome:
    """The same for one program."""
    return outcomes_of([program], lambda inputs: [function(*inputs)], kind)[0]


def weight_of(end: Tensor) -> Tensor:
    """What comes back to a result."""
    return torch.linspace(0.5, 1.5, end.numel()).reshape(end.shape).to(end.dtype)


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


def as_plain(operation: Callable[..., Any]) -> Callable[..., tuple[Tensor, Tensor]]:
    """An operation on (data, mask, *others): a mask, and values with 0 where unspecified."""

    def function(data: Tensor, mask: Tensor, *others: Tensor) -> tuple[Tensor, Tensor]:
        result = operation(mg.masked(data, mask), *others)
        if isinstance(result, mg.MaskedTensor):
            return result.mask, result.filled(0.0)
        return mask.any(), result  # a number

    return function
