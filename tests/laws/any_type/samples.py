"""Samples of the operator database: number, forms and exclusions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_leaves, tree_map

__all__ = ["FORMS", "LOOKED_AT", "OWN", "THIN", "UNUSED_SAMPLES", "Effort", "Sample", "strided"]

#: Number of samples considered for an entry.
LOOKED_AT = 64


class Effort(NamedTuple):
    """Amount of testing.

    Attributes:
        samples: number of samples of an entry: half of them the first ones, half spread over the others.
        densities: densities of the masks to try.
        alone: whether to also mask each operand alone, and all but each.
        garbage: garbage under the masks.
        thinned: whether to use only every other sample, and only the densities of :data:`THIN`.
        own: whether to add the samples that PyTorch's database lacks.
    """

    samples: int
    densities: tuple[float, ...]
    alone: bool
    garbage: tuple[str, ...]
    thinned: bool = False
    own: bool = True


#: Effort for operations in their own dtype and form.
OWN = Effort(6, (0.6, 0.25, 0.0), True, ("ordinary", "nan", "inf", "-inf", "-1e30"))
#: The densities of a thinned run.
THIN = (0.6, 0.0)


def emptied(tensor: torch.Tensor, size: int | None) -> torch.Tensor:
    """Return an empty tensor if the first size is that of the first operand."""
    return tensor[:0] if tensor.ndim and tensor.shape[0] == size else tensor


def strided(tensor: torch.Tensor, size: int | None = None) -> torch.Tensor:
    """Every other entry of a larger tensor, the dimensions in reverse order."""
    backwards = tuple(reversed(range(tensor.ndim)))
    room = torch.zeros(*(tensor.shape[d] for d in backwards), 2, dtype=tensor.dtype, device=tensor.device)
    view = room[..., 0].permute(backwards)
    view.copy_(tensor)
    return view


def single(tensor: torch.Tensor, size: int | None) -> torch.Tensor:
    """Without dimensions."""
    return tensor.reshape(-1)[:1].reshape(()) if tensor.numel() else tensor


#: Conversions of the tensors of a sample, besides using it unchanged.
FORMS: dict[str, Callable[[torch.Tensor, int | None], torch.Tensor]] = {
    "strided": strided,
    "emptied": emptied,
    "single": single,
}


@dataclass(frozen=True)
class Sample:
    """One call: positional and keyword arguments, tensors anywhere among them."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def in_form(self, form: str) -> Sample:
        """The same call on tensors in one of :data:`FORMS`."""
        reshape = FORMS[form]
        size = next((t.shape[0] for t in self.tensors() if t.ndim), None)
        args, kwargs = tree_map(
            lambda leaf: reshape(leaf, size) if isinstance(leaf, torch.Tensor) else leaf,
            (self.args, self.kwargs),
        )
        return Sample(args, kwargs)

    def tensors(self) -> list[torch.Tensor]:
        """Return the tensors among the arguments."""
        return [leaf for leaf in tree_leaves((self.args, self.kwargs)) if isinstance(leaf, torch.Tensor)]


#: Excluded samples, each with its reason.
UNUSED_SAMPLES: tuple[tuple[str, Callable[[Sample], bool]], ...] = (
    (
        "more than 16384 entries: verdicts do not depend on size, but time does",
        lambda sample: any(leaf.numel() > 16384 for leaf in sample.tensors()),
    ),
    (
        "not strided: the constructor refuses other layouts for now",
        lambda sample: any(leaf.layout != torch.strided for leaf in sample.tensors()),
    ),
    (
        "weights of cov narrower than the data: torch adds them up in their own precision",
        lambda sample: (
            isinstance(sample.kwargs.get("aweights"), torch.Tensor)
            and sample.kwargs["aweights"].dtype != sample.tensors()[0].dtype
        ),
    ),
    (
        "sparse gradients scaled by frequency: torch itself raises in the backward pass",
        lambda sample: all(sample.kwargs.get(key) for key in ("sparse", "scale_grad_by_freq")),
    ),
    (
        "random (rrelu in training): the assignment of random values to entries is undefined",
        lambda sample: bool(sample.kwargs.get("training")) and "upper" in sample.kwargs,
    ),
)
