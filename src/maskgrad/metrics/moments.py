"""Mean and variance over batches, weighted by entries."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from maskgrad.masked_tensor import MaskedTensor, masked
from maskgrad.metrics.mean import group_of

__all__ = ["Moments"]

Dim = int | tuple[int, ...] | None


class _State(NamedTuple):
    """Float64 tensors of one shape: number of entries, their mean, and the sum of squared deviations from it."""

    number: Tensor
    mean: Tensor
    squares: Tensor


class Moments:
    r"""Mean, variance and standard deviation over batches and ranks; each slice has its own count.

    .. math:: n = n_a + n_b, \quad \delta = \bar x_b - \bar x_a, \quad \bar x = \bar x_a + \delta \frac{n_b}{n}, \quad
              M = M_a + M_b + \delta^2 \frac{n_a n_b}{n}

    for two batches a and b, with M the sum of squared deviations: no difference of large sums. In float64. For
    standardising data that does not fit into memory: ``(x - moments.mean()) / moments.std()``.

    Args:
        dim: dimensions that are reduced in each batch, as in ``x.mean(dim)``; None: all. The other dimensions have the
            same sizes in all batches.
        keepdim: keep them with size 1.
        group: a process group; None: the default one, or this process only if there is none.

    Raises:
        TypeError, ValueError: in ``update``: not a tensor of real numbers, or a different shape from before.
        RuntimeError: there was no ``update`` on any rank.

    Dense equivalent: ``x[mask].mean()``, ``.var()`` and ``.std()`` of each slice of all batches together.

    Example:
        >>> moments = mg.metrics.Moments(dim=0)
        >>> moments.update(mg.from_nan(torch.tensor([[1., 5.], [3., float("nan")]])))
        >>> moments.update(mg.from_nan(torch.tensor([[8., 7.]])))
        >>> moments.mean().tolist(), moments.var().tolist()
        ([4.0, 6.0], [13.0, 2.0])

    Source: Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979.
    """

    _state: _State | None
    _masked: bool

    def __init__(self, dim: Dim = None, keepdim: bool = False, group: Any = None) -> None:
        self.dim, self.keepdim, self._group = dim, keepdim, group
        self.reset()

    @torch.no_grad()
    def update(self, x: Tensor | MaskedTensor) -> None:
        """Add the entries of a batch: the specified ones of a MaskedTensor of any layout, all of a plain tensor."""
        if not isinstance(x, (Tensor, MaskedTensor)) or x.dtype.is_complex:
            kind = str(x.dtype) if isinstance(x, (Tensor, MaskedTensor)) else type(x).__name__
            raise TypeError(f"x must be a tensor or a MaskedTensor of real numbers, found {kind}")
        dtype = x.dtype if x.dtype.is_floating_point else torch.get_default_dtype()
        plain = isinstance(x, Tensor)
        wide: Any = (masked(x) if plain else x).detach().double()  # empty masked batches do not warn
        options: dict[str, Any] = {"dim": self.dim, "keepdim": self.keepdim}
        count = _plain(torch.ones_like(wide).sum(**options))
        mean = torch.where(count > 0, _plain(wide.mean(**options)), 0)
        variance = torch.where(count > 0, _plain(wide.var(correction=0, **options)), 0)
        new = _State(count, mean, variance * count)
        if self._state is not None and self._state.number.shape != count.shape:
            raise ValueError(
                f"x of shape {tuple(x.shape)} gives moments of shape {tuple(count.shape)}, but earlier batches gave "
                f"{tuple(self._state.number.shape)}; reduce all other dimensions with dim="
            )
        self._state = new if self._state is None else _merged(self._state, new)
        self._masked = self._masked or (not plain and self.dim is not None)
        self._dtype = dtype

    def count(self) -> Tensor:
        """Return the number of entries, int64, plain. All ranks must call this, as the methods below."""
        return self._of_all()[0].number.long()

    def mean(self) -> Any:
        """Return the mean: masked if a batch was and ``dim`` is given, and unspecified without entries, else NaN."""
        state, is_masked = self._of_all()
        return self._result(state.mean, state.number > 0, is_masked)

    def var(self, correction: float = 1) -> Any:
        """Return the variance, unspecified or NaN where there are no more entries than ``correction``."""
        state, is_masked = self._of_all()
        enough = state.number > correction
        values = state.squares / torch.where(enough, state.number - correction, 1)
        return self._result(values, enough, is_masked)

    def std(self, correction: float = 1) -> Any:
        """Return the standard deviation, the square root of :meth:`var`."""
        return self.var(correction).sqrt()

    def reset(self) -> None:
        """Drop all entries."""
        self._state, self._masked, self._dtype = None, False, torch.get_default_dtype()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of this rank: plain tensors, numbers and strings."""
        tensors = {} if self._state is None else {k: v.clone() for k, v in self._state._asdict().items()}
        options = {"dim": self.dim, "keepdim": self.keepdim}
        return {**tensors, "masked": self._masked, "dtype": str(self._dtype), **options}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state of :meth:`state_dict`; ValueError if ``dim`` or ``keepdim`` differ."""
        for name in ("dim", "keepdim"):
            if state[name] != getattr(self, name):
                raise ValueError(
                    f"the state was saved with {name}={state[name]}, but this has {getattr(self, name)}; use "
                    f"mg.metrics.Moments(dim={state['dim']}, keepdim={state['keepdim']})"
                )
        self._state = _State(*(state[k].clone() for k in _State._fields)) if "number" in state else None
        self._masked, self._dtype = state["masked"], getattr(torch, state["dtype"].removeprefix("torch."))

    def _of_all(self) -> tuple[_State, bool]:
        """The combined state of all ranks, and whether results are masked."""
        ranks = group_of(self._group, "metrics.Moments")
        states, is_masked = [self._state], self._masked
        if ranks is not None:
            text = json.dumps([None if self._state is None else list(self._state.number.shape), is_masked])
            rows = [json.loads(one) for one in ranks.gather_texts(text)]
            shapes = [shape for shape, _ in rows if shape is not None]
            if any(shape != shapes[0] for shape in shapes):
                raise ValueError(f"the ranks have moments of different shapes, {shapes}; use the same dim=")
            if shapes:
                own = torch.zeros(3, *shapes[0], dtype=torch.float64)
                own = own if self._state is None else torch.stack(self._state)
                gathered = ranks.gather(own.to(ranks.device)).to(own.device)
                states, is_masked = [_State(*one) for one in gathered], any(row[1] for row in rows)
        found = [state for state in states if state is not None]
        if not found:
            raise RuntimeError("Moments without update(), on any rank: call update(x) first")
        return functools.reduce(_merged, found), is_masked

    def _result(self, values: Tensor, enough: Tensor, is_masked: bool) -> Any:
        values = torch.where(enough, values, math.nan).to(self._dtype)
        return masked(values, enough) if is_masked else values


def _merged(a: _State, b: _State) -> _State:
    count = a.number + b.number
    share = b.number / count.clamp(min=1)
    difference = b.mean - a.mean
    mean = torch.where(a.number > 0, a.mean + difference * share, b.mean)
    return _State(count, mean, a.squares + b.squares + difference**2 * a.number * share)


def _plain(x: Any) -> Any:
    return x.to_dense().filled(0) if isinstance(x, MaskedTensor) else x
