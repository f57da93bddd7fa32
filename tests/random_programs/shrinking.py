"""A program that fails, made short: without steps and leaves, with plain masks and values, while it still fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from tests.random_programs.runs import Failure
from tests.random_programs.steps import Program, made

__all__ = ["examined"]

Check = Callable[[Program], str]


def examined(check: Check, program: Program) -> str:
    """What a check says of a program. One that fails is raised as the shortest that still does, as Python.

    Raises:
        Failure: also for an error of any other kind.
    """
    error = _error(check, program)
    if error is None:
        return check(program)
    seen = True
    while seen:
        seen = False
        for candidate in _shorter(program):
            found = _error(check, candidate)
            # what is large is drawn from the seed alone, whatever the steps are
            if type(found) is type(error) and (type(found) is not Failure or str(candidate) in str(found)):
                program, error, seen = candidate, found, True
                break
    raise Failure(
        str(error) if isinstance(error, Failure) else f"{program}\n{type(error).__name__}: {error}"
    ) from error


def _error(check: Check, program: Program) -> Exception | None:
    try:
        check(program)
    except Exception as error:  # a crash is a failure, too
        return error
    return None


def _shorter(program: Program) -> Iterator[Program]:
    """Programs that are one step or leaf shorter, or plainer in one leaf, and that PyTorch runs."""
    leaves, steps = range(len(program.leaves)), range(len(program.steps))
    for step in reversed(steps):
        yield from _part(program, list(leaves), [k for k in steps if k != step])
    for leaf in leaves if len(leaves) > 1 else ():
        yield from _part(program, [k for k in leaves if k != leaf], list(steps))
    for leaf in leaves:
        values = torch.arange(1, program.leaves[leaf].numel() + 1).reshape(program.leaves[leaf].shape)
        for name, plain in (
            ("masks", program.masks[leaf].new_ones(values.shape)),
            ("leaves", values.to(program.dtype)),
        ):
            tensors = list(getattr(program, name))
            if not torch.equal(tensors[leaf], plain):
                tensors[leaf] = plain
                yield replace(program, **{name: tensors})


def _part(program: Program, leaves: list[int], steps: list[int]) -> Iterator[Program]:
    """The program of some leaves and steps, if there is one; what a missing step made is what it was made of."""
    every, number = len(program.leaves), 2 * len(leaves)
    numbers = {old: new for new, old in enumerate(leaves)}
    numbers |= {every + old: len(leaves) + new for new, old in enumerate(leaves)}
    old, kept, expected = 2 * every, [], []
    for k, (step, count) in enumerate(zip(program.steps, made(program), strict=True)):
        there = all(i in numbers for i in step.operands)
        if k in steps and there:
            kept.append(replace(step, operands=tuple(numbers[i] for i in step.operands)))
            expected.append(count)
            numbers |= {old + i: number + i for i in range(count)}
            number += count
        elif step.operands[0] in numbers:
            numbers |= {old + i: numbers[step.operands[0]] for i in range(count)}
        old += count
    found = replace(
        program,
        leaves=[program.leaves[i] for i in leaves],
        masks=[program.masks[i] for i in leaves],
        steps=kept,
    )
    try:
        if made(found) == expected:
            yield found
    except (RuntimeError, IndexError, TypeError, NotImplementedError, ValueError):
        return
