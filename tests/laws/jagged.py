"""The law of the jagged layout: it means what the Boolean mask means, derivatives included, or refuses."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

import maskgrad as mg
from maskgrad.errors import UnsupportedLayoutError
from maskgrad.masked_tensor.tensor import MaskedTensor
from maskgrad.patterns.jagged import jagged_pattern
from maskgrad.semantics.jagged.registry import runs_on
from tests.effort import is_light
from tests.laws.any_type.comparison import HALVES, assert_close, parts_of
from tests.laws.any_type.evaluation import attempt, cotangents_for
from tests.laws.any_type.operands import Call, garbage_of
from tests.laws.any_type.operator_database import Entry, differentiable
from tests.laws.any_type.samples import LOOKED_AT
from tests.laws.effort import samples_of
from tests.laws.evaluation import filled
from tests.laws.second_order import has_second_derivatives, wide

__all__ = ["Arrangement", "arrangements", "check_jagged", "jagged"]

#: Families and operations that draw numbers: rows draw others than a padded batch. Masks are compared.
RANDOM = ("random", "rand_like", "randn_like", "randint_like")
#: Operations of which PyTorch's second derivative is NaN at a negative base, even times zero.
FIRST_ONLY = ("__rpow__",)
#: … and those that have none in half precision.
FIRST_ONLY_IN_HALVES = ("i0", "special.i0e")
#: Operations whose gradients next to NaN and infinities are written in two ways; at NaN, PyTorch's own loops of several
#: entries at once, and what remains of them, differ for the activations.
VALUES_ONLY = (
    *("var", "std", "var_mean", "std_mean", "prod", "logsumexp", "nn.functional.normalize"),
    *("nn.functional.celu", "nn.functional.elu", "nn.functional.hardshrink", "nn.functional.hardswish"),
    *("nn.functional.hardtanh", "nn.functional.relu6", "nn.functional.selu", "nn.functional.softshrink"),
)
#: Operations that write, and of which the rows are all that there is to be written, as on the sparse layouts.
WRITES_ROWS = ("zero_",)


class Arrangement(NamedTuple):
    """For each operand how it is stored, and its mask; None for a plain one.

    A jagged one is given by the positions of its batch dimensions and its ragged one; others by a function of values
    and mask (``tests/laws/stored.py``).
    """

    name: str
    places: tuple[Any, ...]
    masks: tuple[Tensor | None, ...]
    layouts: tuple[torch.layout, ...] = (torch.jagged, torch.strided)
    has_special_values: bool = False


def mask_of_lengths(lengths: Tensor, shape: Sequence[int], at: tuple[int, ...]) -> Tensor:
    """The mask of a tensor of ``shape`` of which batch and ragged dimension stand ``at`` these places."""
    known = torch.arange(shape[at[-1]]) < lengths.unsqueeze(-1)
    features = [d for d in range(len(shape)) if d not in at]
    whole = known.reshape(*known.shape, *(1,) * len(features)).expand(
        *known.shape, *(shape[d] for d in features)
    )
    order = [*at, *features]
    return whole.permute([order.index(d) for d in range(len(shape))])


def jagged(values: Tensor, mask: Tensor, at: tuple[int, ...]) -> MaskedTensor:
    """The specified entries as rows, taken one by one: nothing of the library's own conversion is used."""
    features = [d for d in range(values.ndim) if d not in at]
    turned, known = (t.permute(*at, *features) for t in (values, mask))
    known = known.flatten(len(at)) if features else known.unsqueeze(-1)
    known = known[..., 0] if known.shape[-1] else known.new_zeros(known.shape[:-1])
    offsets = pad(known.sum(-1).reshape(-1).cumsum(0), (1, 0))
    return MaskedTensor(turned[known], jagged_pattern(offsets, int(known.sum()), tuple(known.shape), at))


def stored(values: Tensor, mask: Tensor, at: Any) -> MaskedTensor:
    """The operand as the arrangement says."""
    return at(values, mask) if callable(at) else jagged(values, mask, at)  # type: ignore[no-any-return]


def arrangements(call: Call, thinned: bool) -> Iterator[Arrangement]:
    """All operands of the same lengths and of others, one alone; ragged in another dimension; with no entries."""
    generator = torch.Generator().manual_seed(0)

    def arranged(
        name: str,
        place: Callable[[int], tuple[int, ...]],
        only: Sequence[int],
        own: bool,
        most: int | None = None,
    ) -> Arrangement | None:
        known: dict[tuple[int, ...], Tensor] = {}
        places, masks = [], []
        for i, tensor in enumerate(call.tensors):
            at = place(tensor.ndim) if i in only and tensor.ndim > 1 else ()
            if not at:
                places.append(None)
                masks.append(None)
                continue
            sizes = tuple(tensor.shape[d] for d in at)
            lengths = torch.randint(sizes[-1] + 1, sizes[:-1], generator=generator)
            if lengths.numel() > 1:
                lengths.view(-1)[-1] = sizes[-1]
            if most is not None:
                lengths = lengths.clamp(max=most)
            lengths = lengths if own else known.setdefault(sizes, lengths)
            places.append(at)
            masks.append(mask_of_lengths(lengths, tensor.shape, at))
        return Arrangement(name, tuple(places), tuple(masks)) if any(places) else None

    first, data = call.data[:1], call.data
    front = lambda ndim: (0, 1)  # noqa: E731
    found = [
        arranged("same lengths", front, data, False),
        arranged("ragged first", lambda ndim: (1, 0), data, False),
        arranged("ragged last", lambda ndim: (0, ndim - 1) if ndim > 2 else (), data, False),
    ]
    if not thinned:
        found += [
            arranged("other lengths", front, data, True),
            arranged("first alone", front, first, False),
            arranged("all but the first", front, data[1:], False),
            arranged("several batch dimensions", lambda ndim: (0, 1, 2) if ndim > 2 else (), data, False),
            arranged("features first", lambda ndim: (1, 2) if ndim > 2 else (), data, False),
            arranged("no entries", front, data, False, 0),
        ]
    return (arrangement for arrangement in found if arrangement is not None)


def check_jagged(entry: Entry) -> None:
    """Each sample, arranged in several ways; what the page of all operations says of it."""
    thinned = is_light()
    count = 1 if thinned or entry.of else 5
    dtype = wide(entry) if entry.of is None else entry.of
    calls = [Call.of(entry, sample) for sample in samples_of(entry, dtype, LOOKED_AT)]
    calls = [call for call in calls if any(call.tensors[j].ndim > 1 for j in call.data)]
    count = min(count, len(calls))
    served = [
        check_arrangement(entry, calls[i], arrangement, f"{entry.id}, sample {i}, {arrangement.name}")
        for i in (k * len(calls) // count for k in range(count))
        for arrangement in arrangements(calls[i], thinned)
    ]
    said = runs_on(entry.operation)
    assert not served or any(served) == (said != "refused"), f"{entry.id}: the page says {said}"


def check_arrangement(entry: Entry, call: Call, arrangement: Arrangement, what: str) -> bool:
    """The jagged result is the Boolean one: masks, values, derivatives; or it is refused, which is said."""
    results, leaves = [], leaves_of(entry, call, arrangement)
    if entry.name in WRITES_ROWS:
        return True
    for build in (stored, lambda values, mask, at: mg.masked(values, mask)):
        operands = [
            build(leaf, mask, at)
            if mask is not None and at is not None
            else (leaf if i in call.data else leaf.clone())  # buffers are written to
            for i, (leaf, mask, at) in enumerate(
                zip(leaves, arrangement.masks, arrangement.places, strict=True)
            )
        ]
        torch.manual_seed(0)
        args, kwargs = call.with_tensors(operands)
        results.append(attempt(entry.function, args, kwargs))
    ours, theirs = results
    if isinstance(theirs, Exception):
        assert isinstance(ours, Exception), f"{what}: the mask raises {theirs!r}; rows give a result"
        allowed = (type(theirs), UnsupportedLayoutError)
        assert isinstance(ours, allowed), f"{what}: the mask raises {theirs!r}, rows {ours!r}"
        return not isinstance(ours, UnsupportedLayoutError)
    if isinstance(ours, Exception):
        refused = isinstance(ours, UnsupportedLayoutError) and "to_dense()" in str(ours)
        assert refused, f"{what}: {ours!r}"
        return False
    same_results(entry, ours, theirs, what, arrangement.layouts)
    if not draws(entry) and not (arrangement.has_special_values and entry.name in VALUES_ONLY):
        same_derivatives(entry, ours, theirs, leaves, what)
    return True


def draws(entry: Entry) -> bool:
    return entry.operation.family in RANDOM or entry.operation.name in RANDOM


def leaves_of(entry: Entry, call: Call, arrangement: Arrangement) -> list[Tensor]:
    """Copies of the operands, garbage under the masks, ready for gradients."""
    found = []
    for i, (tensor, mask) in enumerate(zip(call.tensors, arrangement.masks, strict=True)):
        copy = tensor.detach().clone()
        if mask is not None:
            if arrangement.has_special_values and tensor.is_floating_point():
                copy[mask] = specials(copy[mask])
            copy = torch.where(mask, copy, garbage_of("nan", tensor.dtype)).contiguous()
        inexact = tensor.is_floating_point() or tensor.is_complex()
        found.append(copy.requires_grad_(inexact and i in call.moving and differentiable(entry)))
    return found


def specials(entries: Tensor) -> Tensor:
    """Few different numbers, so that there are ties and zeros; NaN and infinities in place of some."""
    special = torch.tensor([math.nan, math.inf, -math.inf], dtype=entries.dtype)
    few = entries.round().clamp(-1, 1)
    return torch.cat([few[:4], special[: max(len(few) - 4, 0)], few[7:]])


def same_results(entry: Entry, ours: Any, theirs: Any, what: str, layouts: tuple[torch.layout, ...]) -> None:
    """The same structure, masks and values."""
    assert type(ours) is type(theirs), f"{what}: a {type(ours).__name__} instead of a {type(theirs).__name__}"
    pairs = list(zip(parts_of(ours), parts_of(theirs), strict=True))
    for i, (found, expected) in enumerate(pairs):
        part, other = found, expected
        here = f"{what}, result {i}" if len(pairs) > 1 else what
        assert type(part) is type(other), f"{here}: a {type(part).__name__}"
        if not isinstance(part, (MaskedTensor, Tensor)):
            assert part == other, f"{here}: {part} instead of {other}"
            continue
        assert part.dtype == other.dtype, f"{here}: {part.dtype} instead of {other.dtype}"
        assert part.shape == other.shape, f"{here}: {tuple(part.shape)} instead of {tuple(other.shape)}"
        if isinstance(part, MaskedTensor):
            assert part.layout in layouts, f"{here}: {part.layout}"
            assert torch.equal(part.mask, other.mask), f"{here}: the masks differ"
            part, other = filled(part), filled(other)
        if not draws(entry):
            assert_close(part, other, f"{here}: values", amplified=entry.tolerant)


def same_derivatives(entry: Entry, ours: Any, theirs: Any, leaves: list[Tensor], what: str) -> None:
    """First and second derivatives of all results, in random directions."""
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    only_first = entry.id in FIRST_ONLY or (entry.id in FIRST_ONLY_IN_HALVES and entry.dtype in HALVES)
    order = 2 if has_second_derivatives(entry) and not only_first else 1
    found = [derivatives(result, wanted, order) for result in (ours, theirs)]
    for number, (a, b) in enumerate(zip(*found, strict=True)):
        for i, (one, other) in enumerate(zip(a, b, strict=True)):
            assert_close(
                one, other, f"{what}: derivative {number + 1} of operand {i}", amplified=entry.tolerant
            )


def derivatives(result: Any, leaves: list[Tensor], order: int) -> list[list[Tensor]]:
    """What comes back at each leaf, and what comes back from there; zero for nothing."""
    parts = [
        filled(part) if isinstance(part, MaskedTensor) else part
        for part in parts_of(result)
        if isinstance(part, (MaskedTensor, Tensor))
    ]
    found: list[list[Tensor]] = []
    for _ in range(order):
        directions = cotangents_for(parts, [torch.ones(part.shape, dtype=torch.bool) for part in parts])
        pairs = [(p, d) for p, d in zip(parts, directions, strict=True) if d is not None]
        grads: Sequence[Tensor | None] = [None] * len(leaves)
        if pairs and leaves:
            moving, given = zip(*pairs, strict=True)
            grads = torch.autograd.grad(moving, leaves, given, create_graph=order > 1, allow_unused=True)
        parts = [torch.zeros_like(leaf) if g is None else g for g, leaf in zip(grads, leaves, strict=True)]
        parts = [part.to_dense() if part.layout != torch.strided else part for part in parts]
        found.append(parts)
    return found
