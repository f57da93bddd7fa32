"""Random operations: they apply to the specified entries; the pattern is unchanged.

Random numbers are drawn for all entries, specified or not, so that on complete data a seed gives PyTorch's
results, and shapes do not depend on the mask. Values under the mask remain arbitrary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from maskgrad.kernels.smallest import any_of
from maskgrad.semantics.elementwise import elementwise
from maskgrad.semantics.entries import Entries, filled
from maskgrad.semantics.facts import Operation, record

UNCHANGED = "unchanged"
KEPT = "torch's for the kept entries"


def _dropping(name: str, training: bool) -> Callable[..., Any]:
    """The rule of a dropout, which is linear in its input: masked values cannot interfere."""
    plain = getattr(F, name)

    def rule(
        input: Entries,
        p: float = 0.5,
        training: bool = training,
        inplace: bool = False,
        train: bool | None = None,
    ) -> Entries:
        return Entries(plain(input.values, p, training if train is None else train), input.mask)

    return rule


def feature_dropout(input: Entries, p: float, train: bool) -> Entries:
    """Drop whole channels."""
    return Entries(torch.feature_dropout(input.values, p, train), input.mask)


def native_dropout(input: Entries, p: float, train: bool | None) -> tuple[Entries, Entries]:
    """Dropout, and the mask of kept entries."""
    values, kept = torch.native_dropout(input.values, p, train)
    return Entries(values, input.mask), Entries(kept, input.mask)


def bernoulli_(input: Any, p: Any = 0.5, *, generator: torch.Generator | None = None) -> Entries:
    """Overwrite the values with zeros and ones; a masked probability passes on its mask."""
    values, mask = input
    if isinstance(p, Entries):
        mask = (mask & p.mask).expand(mask.shape)
    return Entries(values.clone().bernoulli_(filled(p, 0.5), generator=generator), mask)


def bernoulli(input: Entries, p: Any = None, *, generator: torch.Generator | None = None) -> Entries:
    """Zeros and ones with the entries as probabilities, or with probability ``p``."""
    if p is not None:
        return bernoulli_(input, p, generator=generator)
    return Entries(torch.bernoulli(filled(input), generator=generator), input.mask)


def multinomial(
    input: Entries, num_samples: int, replacement: bool = False, *, generator: torch.Generator | None = None
) -> Entries:
    """Draw positions among the specified weights; draws beyond the specified positions are unspecified."""
    values, mask = input
    present = any_of(mask, (-1,) if mask.ndim else (), keepdim=True)
    safe = torch.where(mask, values, torch.where(present, 0.0, 1.0).to(values.dtype))
    drawn = torch.multinomial(safe, num_samples, replacement, generator=generator)
    return Entries(drawn, mask.gather(-1, drawn))


#: Dropouts, and whether they are active by default.
DROPOUTS = {
    "dropout": True,
    "dropout1d": True,
    "dropout2d": True,
    "dropout3d": True,
    "alpha_dropout": False,
    "feature_alpha_dropout": False,
}

#: Methods that rewrite all values in place.
REFILLS = "normal_ uniform_ exponential_ cauchy_ log_normal_ geometric_ random_"


def _rewrite(function: Callable[..., Any], input: Entries, *args: Any, **kwargs: Any) -> Entries:
    """The rule of a method that rewrites all values in place: it returns a copy, which dispatch writes back."""
    return Entries(function(input.values.clone(), *args, **kwargs), input.mask)


def _refill(name: str) -> Operation:
    """A method that exists in place only."""
    method, rule = getattr(torch.Tensor, name), bernoulli_ if name == "bernoulli_" else _rewrite
    return record(name, "random", rule, UNCHANGED, "zero", functions=(method,), in_place=(method,))


def _function(name: str, body: Callable[..., Any], gradient: str = "zero", **facts: Any) -> Operation:
    return record(name, "random", body, UNCHANGED, gradient, namespaces=(torch, torch.Tensor), **facts)


OPERATIONS = (
    *(
        record(f"nn.functional.{name}", "random", _dropping(name, training), UNCHANGED, KEPT)
        for name, training in DROPOUTS.items()
    ),
    _function("feature_dropout", feature_dropout, KEPT),
    _function("native_dropout", native_dropout, KEPT),
    *(_refill(name) for name in (*REFILLS.split(), "bernoulli_")),
    _function("bernoulli", bernoulli, in_place=()),
    _function("multinomial", multinomial),
    _function("normal", elementwise(1, looks=True), functions=(torch.normal,), in_place=()),
    _function("poisson", elementwise(1, looks=True)),
    _function("binomial", elementwise(1, looks=True)),
)
