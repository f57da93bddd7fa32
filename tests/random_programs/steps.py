"""What a program consists of, and how a step is run on tensors of any kind."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import maskgrad as mg

__all__ = [
    "BINARY",
    "HALVES",
    "IN_PLACE",
    "REDUCED",
    "TRANSPARENT",
    "UNARY",
    "WITH_OTHER",
    "WRITES",
    "Program",
    "Step",
    "apply",
    "made",
    "moves",
    "started",
]

HALVES = (torch.bfloat16, torch.float16)
UNARY = (
    "sin",
    "tanh",
    "abs",
    "neg",
    "square",
    "exp",
    "clone",
    "detach",
    "sigmoid",
    "reciprocal",
    "conj",
    "sign",
)
BINARY = ("add", "sub", "mul", "maximum", "minimum", "atan2", "lt", "eq")
REDUCED = (
    "sum",
    "mean",
    "amax",
    "prod",
    "logsumexp",
    "softmax",
    "log_softmax",
    "cumsum",
    "cumprod",
    "flip",
    "argmax",
)
IN_PLACE = ("sin_", "tanh_", "neg_", "square_", "abs_", "zero_", "sigmoid_", "exp_", "relu_")
WITH_OTHER = ("add_", "mul_", "sub_", "copy_")
WRITES = (*IN_PLACE, *WITH_OTHER, "setitem", "out", "masked_fill_", "view and write")

#: What an unspecified entry and a NaN do alike.
TRANSPARENT = {
    *UNARY, *BINARY, *IN_PLACE, *WITH_OTHER, "setitem", "masked_fill_", "view and write", "out", "transpose", "reshape",
    "view", "index", "unsqueeze", "squeeze", "chunk", "unbind", "expand", "diagonal", "cat", "stack", "flip",
} - {"lt", "eq", "sign"}  # fmt: skip


@dataclass(frozen=True)
class Step:
    """One operation: what is done, with which variables, with which parameters."""

    name: str
    operands: tuple[int, ...]
    parameters: tuple[Any, ...] = ()


@dataclass
class Program:
    """Leaves and steps."""

    seed: int
    dtype: torch.dtype
    leaves: list[Tensor]
    masks: list[Tensor]
    steps: list[Step] = field(default_factory=list)

    def __str__(self) -> str:
        """As Python that can be run."""
        n = len(self.leaves)
        lines = [f"# seed {self.seed}", "import torch, maskgrad as mg"]
        for i, (leaf, mask) in enumerate(zip(self.leaves, self.masks, strict=True)):
            data = f"torch.tensor({leaf.tolist()}, dtype={self.dtype}, requires_grad={moves(self.dtype)})"
            lines.append(f"v{i} = mg.masked({data}, torch.tensor({mask.tolist()}))")
        lines += [f"v{n + i} = v{i}.clone()" for i in range(n)]
        number = 2 * n
        for step, count in zip(self.steps, made(self), strict=True):
            names = ", ".join(f"v{number + i}" for i in range(count))
            # what makes several is written as a list
            names = f"[{names}]" if step.name in ("chunk", "unbind") else names
            lines.append(f"{names} = {written_out(step)}" if count else written_out(step))
            number += count
        return "\n".join(lines)


#: Steps that are no method with the parameters as arguments.
AS_PYTHON = {
    "index": "{x}[{p[0]}]",
    "chunk": "{x}.chunk(2, {p[0]})",
    "unbind": "{x}.unbind({p[0]})[:2]",
    "cat": "torch.cat([{x}, {other}], {p[0]})",
    "stack": "torch.stack([{x}, {other}])",
    "where": "torch.where({x} > 0, {x}, {other})",
    "matmul": "{x} @ {other}",
    "sort": "{x}.sort({p[0]}).values",
    "remove": "{x}[{p[0]}] = mg.unspecified",
    "setitem": "{x}[{p[0]}] = {other}",
    "out": "torch.mul({other}, 2, out={x})",
    "view and write": "{x}.view(-1)[{p[0]}].mul_(2)",
}


def written_out(step: Step) -> str:
    """A step as Python, without the names of what it makes."""
    x, *rest = (f"v{i}" for i in step.operands)
    p = [f"torch.tensor({v.tolist()})" if isinstance(v, Tensor) else repr(v) for v in step.parameters]
    if step.name in AS_PYTHON:
        other = rest[0] if rest else "0" if step.name == "where" else p[-1] if p else ""
        return AS_PYTHON[step.name].format(x=x, p=p, other=other)
    if step.name in BINARY:
        return f"torch.{step.name}({x}, {(*rest, *p)[0]})"
    return f"{x}.{step.name}({', '.join((*rest, *p))})"


def made(program: Program) -> list[int]:
    """How many variables each step makes, on plain tensors."""
    leaves = [leaf.clone().requires_grad_(moves(program.dtype)) for leaf in program.leaves]
    variables, counts = started(lambda leaf, _: leaf, leaves, program.masks), []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for step in program.steps:
            new = list(apply(step, variables))
            counts.append(len(new))
            variables += new
    return counts


def apply(step: Step, variables: list[Any]) -> Iterable[Any]:
    """New variables; a write has none."""
    x, *rest = (variables[i] for i in step.operands)
    name, p = step.name, step.parameters
    if name in UNARY:
        return [getattr(x, name)()]
    if name in BINARY:
        return [getattr(torch, name)(x, rest[0] if rest else p[0])]
    if name in REDUCED:
        return [getattr(x, name)(p[0])]
    if name in IN_PLACE:
        getattr(x, name)()
        return []
    if name in WITH_OTHER:
        getattr(x, name)(rest[0] if rest else p[0])
        return []
    return OTHERS[name](x, rest, p)


def written(x: Any, index: Any, value: Any) -> list[Any]:
    x[index] = value
    return []


def nothing(_: Any) -> list[Any]:
    """A write makes no variable."""
    return []


def into(x: Any, value: Any) -> list[Any]:
    torch.mul(value, 2, out=x)
    return []


OTHERS: dict[str, Callable[[Any, list[Any], tuple[Any, ...]], Any]] = {
    "transpose": lambda x, _, p: [x.transpose(*p)],
    "reshape": lambda x, _, p: [x.reshape(p[0])],
    "view": lambda x, _, p: [x.view(p[0])],
    "index": lambda x, _, p: [x[p[0]]],
    "unsqueeze": lambda x, _, p: [x.unsqueeze(p[0])],
    "squeeze": lambda x, _, p: [x.squeeze()],
    "chunk": lambda x, _, p: list(x.chunk(2, p[0])),
    "unbind": lambda x, _, p: list(x.unbind(p[0]))[:2],
    "expand": lambda x, _, p: [x.expand(p[0])],
    "diagonal": lambda x, _, p: [x.diagonal()],
    "cat": lambda x, rest, p: [torch.cat([x, *rest], p[0])],
    "stack": lambda x, rest, p: [torch.stack([x, *rest])],
    "where": lambda x, rest, p: [torch.where(x > 0, x, rest[0] if rest else 0)],
    "matmul": lambda x, rest, p: [x @ rest[0]],
    "sort": lambda x, _, p: [x.sort(p[0]).values],
    "remove": lambda x, _, p: written(x, p[0], mg.unspecified if isinstance(x, mg.MaskedTensor) else p[1]),
    "setitem": lambda x, rest, p: written(x, p[0], rest[0] if rest else p[1]),
    "out": lambda x, rest, p: into(x, rest[0]),
    "masked_fill_": lambda x, _, p: nothing(x.masked_fill_(p[0], p[1])),
    "view and write": lambda x, _, p: nothing(x.view(-1)[p[0]].mul_(2)),
}


def moves(dtype: torch.dtype) -> bool:
    """Whether there are gradients."""
    return dtype.is_floating_point or dtype.is_complex


def started(wrap: Callable[[Tensor, Tensor], Any], leaves: list[Tensor], masks: list[Tensor]) -> list[Any]:
    """For each leaf itself and a copy that may be written."""
    variables = [wrap(leaf, mask) for leaf, mask in zip(leaves, masks, strict=True)]
    return [*variables, *(v.clone() for v in variables)]
