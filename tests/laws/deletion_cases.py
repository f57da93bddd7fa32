"""Every reduction, with the arguments, dtypes and contents for which law 3 is put to the test."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from maskgrad import MaskedTensor

__all__ = ["DEVIATIONS", "REDUCTIONS", "Case", "Deviation", "Reduction", "cases_of"]

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
REALS = (*FLOATS, torch.int64)
ALL = (*REALS, torch.bool, torch.complex64)


@dataclass(frozen=True)
class Reduction:
    """One reduction: the keyword arguments to try, the dtypes, and whether it takes several dimensions at once."""

    function: Callable[..., Any]
    options: tuple[dict[str, Any], ...] = ({},)
    dtypes: tuple[torch.dtype, ...] = ALL
    several: bool = True
    keepdim: bool = True


CORRECTIONS = ({}, {"correction": 0}, {"correction": 2}, {"unbiased": False})
ORDERS = (2, 1, 0, 3, 0.5, float("inf"), float("-inf"), -1)
SPREAD_DTYPES = (*FLOATS, torch.complex64)


def logsumexp(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """``torch.logsumexp``, which does not take "all dimensions" for granted."""
    everything = (
        () if isinstance(x, MaskedTensor) else tuple(range(x.ndim))
    )  # torch does not differentiate ()
    return torch.logsumexp(x, everything if dim is None else dim, keepdim)


def hash_tensor(x: Any, **options: Any) -> Any:
    """``torch.hash_tensor``, as signed integers: torch cannot read others."""
    return torch.hash_tensor(x, **options).view(torch.int64)


#: By the name of the record.
REDUCTIONS = {
    "sum": Reduction(torch.sum, ({}, {"dtype": torch.float64})),
    "mean": Reduction(torch.mean, ({}, {"dtype": torch.float64}), (*FLOATS, torch.complex64)),
    "nansum": Reduction(torch.nansum, dtypes=REALS),
    "nanmean": Reduction(torch.nanmean, dtypes=FLOATS),
    "prod": Reduction(torch.prod, ({}, {"dtype": torch.float64}), several=False),
    "var": Reduction(torch.var, CORRECTIONS, SPREAD_DTYPES),
    "std": Reduction(torch.std, CORRECTIONS, SPREAD_DTYPES),
    "var_mean": Reduction(torch.var_mean, CORRECTIONS[:2], SPREAD_DTYPES),
    "std_mean": Reduction(torch.std_mean, CORRECTIONS[:2], SPREAD_DTYPES),
    "logsumexp": Reduction(logsumexp, dtypes=(*REALS, torch.complex64)),
    "any": Reduction(torch.any),
    "all": Reduction(torch.all),
    "count_nonzero": Reduction(torch.count_nonzero, keepdim=False),
    "amax": Reduction(torch.amax, dtypes=(*REALS, torch.bool)),
    "amin": Reduction(torch.amin, dtypes=(*REALS, torch.bool)),
    "aminmax": Reduction(torch.aminmax, dtypes=(*REALS, torch.bool), several=False),
    "argmax": Reduction(torch.argmax, dtypes=REALS, several=False),
    "argmin": Reduction(torch.argmin, dtypes=REALS, several=False),
    "max": Reduction(torch.max, dtypes=(*REALS, torch.bool), several=False),
    "min": Reduction(torch.min, dtypes=(*REALS, torch.bool), several=False),
    "linalg.vector_norm": Reduction(
        torch.linalg.vector_norm, tuple({"ord": p} for p in ORDERS), SPREAD_DTYPES
    ),
    # not halves: what their NaNs become in float32 and in float64 has other bits
    "hash_tensor": Reduction(hash_tensor, dtypes=(torch.float32, torch.float64, torch.int64, torch.bool)),
    "norm": Reduction(torch.norm, tuple({"p": p} for p in (*ORDERS, "fro")), SPREAD_DTYPES),
}

#: Shapes with the dimensions to reduce; the later ones for the two common dtypes only.
MAIN = {(3, 5): (None, 0, 1, (0, 1)), (2, 3, 4): (None, 0, -2, 2, (0, 2), (-1, 1))}
ODD = {
    (): (None, 0),
    (1,): (None, 0),
    (7,): (None, -1),
    (0,): (None, 0),
    (2, 0): (None, 0, 1),
    (0, 3): (1, (0, 1)),
}

CONTENTS = ("ordinary", "ties", "specials")


class Deviation(NamedTuple):
    """Cases in which a record is known not to obey, to be mended; a test says when one of them does."""

    reductions: tuple[str, ...]
    reason: str
    concerns: Callable[[Case], bool]
    gradients_only: bool = True


def has_infinities(case: Case) -> bool:
    return bool(case.x[case.mask].isinf().any())


def has_nan(case: Case) -> bool:
    return bool(case.x[case.mask].isnan().any())


DEVIATIONS = (
    Deviation(
        ("var_mean", "std_mean"),
        "next to an infinity torch's mean is NaN (Welford's algorithm); ours is torch.mean's",
        has_infinities,
        gradients_only=False,
    ),
    Deviation(
        ("nanmean",),
        "torch's gradient is NaN where all entries of a slice are; ours is 0",
        has_nan,
    ),
    Deviation(
        ("prod",),
        "1 takes no part in a real product, but 1 + 0j turns inf + 1j into inf + nan j",
        lambda case: case.x.is_complex() and has_infinities(case),
        gradients_only=False,
    ),
)


class Case(NamedTuple):
    """One call of a reduction on values of which some are specified."""

    what: str
    x: Tensor
    mask: Tensor
    arguments: dict[str, Any]


def cases_of(reduction: Reduction, dtype: torch.dtype) -> Iterator[Case]:
    """Shapes × dimensions × contents × arguments, each with a mask that leaves one slice of each dimension empty."""
    generator = torch.Generator().manual_seed(0)
    shapes = MAIN | ODD if dtype in (torch.float32, torch.int64) else MAIN
    calls = ((shape, dim) for shape, dims in shapes.items() for dim in dims)
    for (shape, dim), content, options in itertools.product(calls, CONTENTS, reduction.options):
        if isinstance(dim, tuple) and not reduction.several:
            continue
        if dtype.is_complex and options.get("dtype") == torch.float64:  # it would discard the imaginary part
            continue
        if content == "specials" and not (dtype.is_floating_point or dtype.is_complex):
            continue
        x = contents(content, shape, dtype, generator)
        mask = torch.rand(shape, generator=generator) < 0.6
        for d, size in enumerate(shape):
            if size > 2:
                mask.select(d, size - 1).fill_(False)
        keepdims = (False, True) if reduction.keepdim and dim is not None else (False,)
        for keepdim in keepdims:
            arguments = dict(options)
            if dim is not None:
                arguments["dim"] = dim
            if keepdim:
                arguments["keepdim"] = True
            yield Case(f"{content} {shape}, {arguments}, mask {mask.int().tolist()}", x, mask, arguments)


def contents(kind: str, shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Random numbers; few different ones, so that there are ties and zeros; or some infinities and NaNs among them."""
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    if kind == "ties" or not (dtype.is_floating_point or dtype.is_complex):
        x = torch.randint(-1, 2, shape, generator=generator).double()
    if kind == "specials":
        chosen = torch.randint(0, 12, shape, generator=generator)
        for i, value in enumerate((float("inf"), float("-inf"), float("nan"))):
            x = torch.where(chosen == i, value, x)
    if dtype.is_complex:
        return torch.complex(x, torch.randn(shape, generator=generator, dtype=torch.float64)).to(dtype)
    return x.to(dtype)
