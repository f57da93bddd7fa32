"""Programs drawn by Hypothesis, which shortens those that fail: each step runs on plain tensors first."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, multiple, rule
from torch import Tensor

import maskgrad as mg
from tests.random_programs.comparisons import Program, Step, check, has_gradients

__all__ = ["STEPS", "Programs"]

#: At most, in a program.
STEPS = 10

SHAPES = ((2, 3), (3,), (2, 1), (3, 2), (1, 3), (2, 3, 2), (4,), (2, 2))
DTYPES = (*[torch.float64] * 4, torch.float32, torch.complex128, torch.int64, torch.uint8, torch.bool)
LAYOUTS = ("coo", "csr", "csc", "jagged")
#: What PyTorch raises for a step that does not fit its operands; ``i % 0``: there is no dimension.
REFUSED = (RuntimeError, IndexError, TypeError, NotImplementedError, ValueError, ZeroDivisionError)
#: The digits of larger values are too few to compare.
MOST = 1e4

UNARY = ("sin", "tanh", "abs", "neg", "square", "exp", "clone", "sigmoid", "reciprocal")
BINARY = ("add", "sub", "mul", "maximum", "minimum", "atan2")
VIEWS: dict[str, Callable[[Any, int, int], Any]] = {
    "transpose": lambda x, i, j: x.transpose(i % x.ndim, j % x.ndim),
    "reshape": lambda x, i, j: x.reshape(((-1,), x.shape[::-1], (1, *x.shape))[i]),
    "view": lambda x, i, j: x.view(((-1,), x.shape[::-1], (1, *x.shape))[i]),
    "unsqueeze": lambda x, i, j: x.unsqueeze(i % x.ndim),
    "squeeze": lambda x, i, j: x.squeeze(),
    "chunk": lambda x, i, j: x.chunk(2, i % x.ndim),
    "unbind": lambda x, i, j: x.unbind(i % x.ndim)[:2],
    "expand": lambda x, i, j: x.expand(2, *x.shape),
    "diagonal": lambda x, i, j: x.diagonal(),
    "flip": lambda x, i, j: x.flip(i % x.ndim),
}
#: An index of each kind, for a tensor of ``n`` rows.
INDICES: dict[str, Callable[[int, int, int], Any]] = {
    "all": lambda n, i, j: ...,
    "row": lambda n, i, j: i % n,
    "from a row on": lambda n, i, j: slice(i % n, None),
    "column": lambda n, i, j: (..., 0),
    "every other row": lambda n, i, j: (slice(None, None, 2),),
    "new dimension": lambda n, i, j: None,
    "rows": lambda n, i, j: torch.tensor([i % n, j % n]),
    "mask": lambda n, i, j: torch.arange(n) % 2 == i % 2,
}
#: With an operand, another one, and a number.
Call = Callable[[Any, Any, int], Any]


def in_place(name: str) -> Call:
    return lambda x, y, i: getattr(x, name)()


def in_place_with_other(name: str) -> Call:
    return lambda x, y, i: getattr(x, name)(y)


def along(name: str) -> Call:
    return lambda x, y, i: getattr(x, name)(i % x.ndim)


WRITES = {name: in_place(name) for name in ("sin_", "neg_", "zero_", "exp_", "relu_")}
WRITES |= {name: in_place_with_other(name) for name in ("add_", "mul_", "sub_", "copy_")}
WRITES |= {
    "masked_fill_": lambda x, y, i: x.masked_fill_(torch.arange(x.numel()).reshape(x.shape) % 2 == 0, 0.5),
    "write to a view": lambda x, y, i: x.view(-1)[i:].mul_(2),
}
#: Operations in which an entry depends on several, or is specified where NaN is a number.
OTHERS = {
    name: along(name)
    for name in ("sum", "mean", "amax", "prod", "logsumexp", "softmax", "cumsum", "cumprod", "argmax")
}
OTHERS |= {
    "sort": lambda x, y, i: x.sort(i % x.ndim).values,
    "matmul": lambda x, y, i: x @ y,
    "where": lambda x, y, i: torch.where(x > 0, x, y),
    "lt": lambda x, y, i: x < y,
    "eq": lambda x, y, i: x == y,
}
small = st.integers(0, 2)
scalars = st.sampled_from((0.5, -1.5, 0.0))


@st.composite
def leaves(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Values and a mask: any, or one of lengths."""
    shape = draw(st.sampled_from(SHAPES))
    values = torch.randn(shape, dtype=torch.complex128, generator=torch.Generator().manual_seed(draw(small)))
    if len(shape) > 1 and draw(st.booleans()):
        lengths = torch.tensor(draw(st.lists(st.integers(0, shape[1]), min_size=shape[0], max_size=shape[0])))
        mask = (torch.arange(shape[1]) < lengths[:, None]).reshape(*shape[:2], *[1] * (len(shape) - 2))
    else:
        size = math.prod(shape)
        mask = torch.tensor(draw(st.lists(st.booleans(), min_size=size, max_size=size))).reshape(shape)
    return values, mask.expand(shape).clone()


class Programs(RuleBasedStateMachine):
    """A program that PyTorch runs, one step at a time; when it is complete, its runs are compared."""

    variables: Bundle[int] = Bundle("v")

    @initialize(
        target=variables,
        dtype=st.sampled_from(DTYPES),
        drawn=st.lists(leaves(), min_size=1, max_size=3),
        garbage=st.sampled_from((math.inf, -math.inf, 1e38)),
        layout=st.sampled_from(LAYOUTS),
    )
    def begin(
        self, dtype: torch.dtype, drawn: list[tuple[Tensor, Tensor]], garbage: float, layout: str
    ) -> Any:
        self.garbage, self.layout = garbage, layout
        # the last leaf is what `assign` takes to be unspecified
        values, masks = zip(
            *drawn, (torch.ones((), dtype=torch.complex128), torch.tensor(False)), strict=True
        )
        cast = [
            v if dtype.is_complex else v.real if dtype.is_floating_point else (v.real * 4).abs()
            for v in values
        ]
        self.program = Program([x.to(dtype) for x in cast], list(masks))
        fresh = [leaf.clone().requires_grad_(has_gradients(leaf)) for leaf in self.program.leaves]
        self.plain: list[Tensor] = [*fresh, *(leaf.clone() for leaf in fresh)]
        self.has_ended = False
        return multiple(*range(len(self.plain)))

    def step(self, call: Callable[..., Any], *operands: int | float, is_write: bool = False) -> Any:
        """Run the step on plain tensors, and keep it if PyTorch runs it; the numbers of its results."""
        step = Step(call, operands, is_write)
        memory = [self.plain[x].untyped_storage().data_ptr() for x in set(operands) if isinstance(x, int)]
        if self.has_ended or (is_write and len(set(memory)) < len(memory)):  # the result is not defined
            return multiple()
        before = [v.detach().clone() for v in self.plain]
        try:
            every = [*self.plain, *step.run(self.plain)]
            for v in every:
                v.reshape(-1)  # PyTorch refuses to read some views of what was written
        except REFUSED:
            pairs = zip(self.plain, before, strict=True)  # some writes fail halfway
            self.has_ended = not all(torch.equal(v.detach().nan_to_num(), b.nan_to_num()) for v, b in pairs)
            return multiple()
        if not all(bool((v.detach().abs() < MOST).all()) for v in every if v.dtype is not torch.bool):
            self.has_ended = True
            return multiple()
        self.program.steps.append(step)
        numbers = range(len(self.plain), len(every))
        self.plain = every
        return multiple(*numbers)

    @rule(target=variables, name=st.sampled_from(UNARY), x=variables)
    def unary(self, name: str, x: int) -> Any:
        return self.step(lambda x: getattr(x, name)(), x)

    @rule(target=variables, name=st.sampled_from(BINARY), x=variables, y=st.one_of(variables, scalars))
    def binary(self, name: str, x: int, y: int | float) -> Any:
        return self.step(getattr(torch, name), x, y)

    @rule(target=variables, name=st.sampled_from(sorted(VIEWS)), x=variables, i=small, j=small)
    def view(self, name: str, x: int, i: int, j: int) -> Any:
        return self.step(lambda x: VIEWS[name](x, i, j), x)

    @rule(target=variables, at=st.sampled_from(sorted(INDICES)), x=variables, i=small, j=small)
    def index(self, at: str, x: int, i: int, j: int) -> Any:
        return self.step(lambda x: x[INDICES[at](x.shape[:1].numel(), i, j)], x)

    @rule(target=variables, x=variables, y=variables, dim=small)
    def join(self, x: int, y: int, dim: int) -> Any:
        return self.step(lambda x, y: torch.cat([x, y], dim) if dim < x.ndim else torch.stack([x, y]), x, y)

    @rule(
        target=variables,
        name=st.sampled_from(sorted(OTHERS)),
        x=variables,
        y=st.one_of(variables, scalars),
        i=small,
    )
    def other(self, name: str, x: int, y: int | float, i: int) -> Any:
        self.program.is_entrywise = False
        return self.step(lambda x, y: OTHERS[name](x, y, i), x, y)

    @rule(name=st.sampled_from(sorted(WRITES)), x=variables, y=st.one_of(variables, scalars), i=small)
    def write(self, name: str, x: int, y: int | float, i: int) -> None:
        self.step(lambda x, y: WRITES[name](x, y, i), x, y, is_write=True)

    @rule(x=variables, y=variables)
    def out(self, x: int, y: int) -> None:
        if self.plain[x].shape == self.plain[y].shape:  # PyTorch would resize x
            self.step(lambda x, y: torch.mul(y, 2, out=x), x, y, is_write=True)

    @rule(
        at=st.sampled_from(sorted(INDICES)), x=variables, y=st.one_of(variables, scalars, st.none()), i=small
    )
    def assign(self, at: str, x: int, y: int | float | None, i: int) -> None:
        """None: the entries become unspecified; plain tensors are assigned the last leaf."""
        is_removal = y is None

        def call(x: Any, y: Any) -> None:
            value = mg.unspecified if is_removal and isinstance(x, mg.MaskedTensor) else y
            x[INDICES[at](x.shape[:1].numel(), i, i + 1)] = value

        if self.plain[x].shape[:1] != (1,):  # with a row listed twice PyTorch sends gradients to both values
            self.program.has_removed |= is_removal
            self.step(call, x, len(self.program.leaves) - 1 if y is None else y, is_write=True)

    def teardown(self) -> None:
        check(self.program, self.garbage, self.layout)
