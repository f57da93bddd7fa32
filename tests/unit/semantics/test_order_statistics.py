"""Medians, quantiles, k-th entries and modes: torch's on what is left, wherever it lies among equals."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import maskgrad as mg
from tests.laws.any_type.comparison import parts_of
from tests.laws.evaluation import anomalies_raise
from tests.laws.slices import per_slice
from tests.poison import assert_entries, assert_nothing, assert_number, gradient, inf, nan, on, poisoned
from tests.unit.semantics.deletion import FLOATS, NUMBERS, assert_parts, data

SELECTIONS = {"median": [], "nanmedian": [], "kthvalue": [2], "mode": []}


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
@pytest.mark.parametrize("name", SELECTIONS)
def test_selected_by_deletion(name: str, dtype: torch.dtype) -> None:
    number = SELECTIONS[name]
    needed = number[0] if number else 1

    def rule(vector: Tensor, present: Tensor) -> list[tuple[Tensor, Tensor]]:
        enough = present.sum() >= needed
        value = getattr(torch, name)(vector[present], *number, 0).values if enough else vector[0] * 0
        return [(value.reshape(1), enough.reshape(1))]

    # torch's mode sorts with a comparison that NaN breaks: its result depends on the order of the entries
    for case in data(dtype, kinds="ordinary ties" if name == "mode" else "ordinary ties specials"):
        for dim in (0, 1):
            expected = per_slice(rule, case.x, case.mask, dim)
            found = getattr(torch, name)(case.masked, *number, dim, True)
            assert type(found) is getattr(torch.return_types, name)
            assert_parts(found.values, expected, lambda: f"{name}, dim {dim}, {case}")  # noqa: B023
            # the position is that of a specified entry with this value
            assert torch.equal(found.indices.mask, found.values.mask)
            assert_parts(case.masked.gather(dim, found.indices), expected, lambda: f"{name}, {case}")  # noqa: B023
            flat = getattr(case.masked, name)(*number, dim=dim).indices
            assert flat.tolist() == found.indices.squeeze(dim).tolist()


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
@pytest.mark.parametrize("name", ["median", "nanmedian"])
def test_medians_of_everything_by_deletion(name: str, dtype: torch.dtype) -> None:
    for case in data(dtype):
        left = case.x[case.mask].requires_grad_(dtype.is_floating_point)
        found = getattr(case.masked, name)()
        if dtype.is_floating_point:  # a number, torch's own NaN of nothing
            expected = getattr(left, name)()
            assert type(found) is Tensor
            torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
        else:
            assert bool(found.mask) == bool(case.mask.any())
            expected = getattr(left, name)() if left.numel() else torch.zeros((), dtype=dtype)
            assert_parts(found, [(expected, case.mask.any())], lambda: f"{name}, {case}")  # noqa: B023
        if dtype.is_floating_point:
            with anomalies_raise(True):
                found = gradient(found, case.masked)
            right = torch.autograd.grad(expected, left)[0] if left.numel() else left
            torch.testing.assert_close(found[case.mask], right)
            assert not found[~case.mask].any()


@pytest.mark.parametrize("interpolation", ["linear", "lower", "higher", "nearest", "midpoint"])
@pytest.mark.parametrize("name", ["quantile", "nanquantile"])
def test_quantiles_by_deletion(name: str, interpolation: str) -> None:
    for dtype in (torch.float32, torch.float64):
        for case in data(dtype):
            for q in (0.3, torch.tensor([0.0, 0.5, 1.0], dtype=dtype)):
                check_quantiles(name, interpolation, case.x, case.mask, case.masked, q)


def check_quantiles(
    name: str, interpolation: str, x: Tensor, mask: Tensor, masked: mg.MaskedTensor, q: float | Tensor
) -> None:
    clean = x.clone().requires_grad_()

    def rule(vector: Tensor, present: Tensor) -> list[tuple[Tensor, Tensor]]:
        some = present.any()
        result = getattr(torch, name)(
            vector[present] if some else vector * 0, q, 0, interpolation=interpolation
        ).reshape(-1)
        return [(result, some.expand(result.shape))]

    ((values, known),) = per_slice(rule, clean, mask, 1)
    values, known = (
        part.movedim(1, 0) if isinstance(q, Tensor) else part.squeeze(1) for part in (values, known)
    )
    found = getattr(torch, name)(masked, q, 1, interpolation=interpolation)
    assert_parts(found, [(values, known)], lambda: f"{name} {q} {interpolation}, {x}, {mask}")
    kept = getattr(masked, name)(q, dim=1, keepdim=True, interpolation=interpolation)
    assert kept.shape == (*values.shape, 1)
    if x.isfinite().all():
        (right,) = torch.autograd.grad(torch.where(known, values, 0).sum(), clean)
        with anomalies_raise(True):
            ours = gradient(found, masked)
        assert not ours[~mask].count_nonzero()
        # Which of several equal entries it goes to is PyTorch's choice, and another one since 2.15.
        entries, known = x.movedim(1, -1), mask.movedim(1, -1)
        equal = (entries.unsqueeze(-1) == entries.unsqueeze(-2)) & known.unsqueeze(-2)
        ours, theirs = ((equal * part.movedim(1, -1).unsqueeze(-2)).sum(-1) for part in (ours, right))
        torch.testing.assert_close(ours, theirs)


def test_quantiles_of_everything() -> None:
    x = poisoned([[3.0, None], [1.0, 2.0]], requires_grad=True)
    assert_entries(x.quantile(0.5), 2.0)
    assert_entries(x.quantile(0.25, keepdim=True), [[1.5]])
    assert_entries(poisoned([None]).quantile(torch.tensor([0.1, 0.9]).double()), [None, None])
    q = torch.tensor([0.25, nan]).double().requires_grad_()
    found = torch.quantile(x, mg.masked(q, on(1, 0)))
    assert_entries(found, [1.5, None])
    assert gradient(found, mg.masked(q, on(1, 0))).tolist() == [2.0, 0.0]
    plain = torch.arange(3.0).double()
    assert_entries(torch.quantile(plain, mg.masked(q, on(1, 0))), [0.5, None])
    assert_entries(poisoned(2.0).quantile(0.5, dim=0, keepdim=True), 2.0)


def test_quantiles_refuse_what_torch_refuses() -> None:
    for x, q, more in (
        (poisoned([1.0], torch.float16), 0.5, {}),
        (poisoned([1.0]), 1.5, {}),
        (poisoned([1.0]), torch.tensor(0.5), {}),
        (poisoned([1.0]), 0.5, {"interpolation": "cubic"}),
        (mg.masked(torch.zeros(0), torch.zeros(0, dtype=torch.bool)), 0.5, {}),
    ):
        with pytest.raises(RuntimeError, match="quantile"):
            torch.quantile(x, q, **more)
    with pytest.raises(IndexError):
        poisoned([1.0]).quantile(0.5, 1)


def test_ties_with_what_could_be_a_filler() -> None:
    limits = torch.iinfo(torch.int64)
    x = poisoned([None, limits.max, None, limits.min, None], torch.int64)
    assert_entries(x.median(0).indices, 3)
    assert_entries(x.kthvalue(2).indices, 1)
    y = poisoned([None, -inf, None, -inf, inf, None, nan])
    assert_entries(y.nanmedian(0).values, -inf)
    assert_entries(y.median(0).indices, 6)
    assert_entries(y.kthvalue(4).indices, 6)
    assert_entries(y.kthvalue(5).values, None)
    assert_entries(poisoned([None, nan, None]).nanmedian(0).indices, 1)
    assert_entries(poisoned([None, nan]).mode().indices, 1)
    assert_entries(poisoned([inf, nan, None, -inf, inf]).mode().indices, 4)
    assert_entries(poisoned([nan, None, 1.0]).mode().values, 1.0)


def test_gradients_go_to_the_selected_entry() -> None:
    x = poisoned([[4.0, None, 1.0, 3.0], [None] * 4, [None, 5.0, None, None]], requires_grad=True)
    for result in (x.median(1).values, x.nanmedian(1).values, x.quantile(0.5, 1)):
        assert_entries(result, [3.0, None, 5.0])
        assert gradient(result, x).tolist() == [[0.0, 0.0, 0.0, 1.0], [0.0] * 4, [0.0, 1.0, 0.0, 0.0]]
    assert gradient(x.kthvalue(1).values, x).tolist() == [
        [0.0, 0.0, 1.0, 0.0],
        [0.0] * 4,
        [0.0, 1.0, 0.0, 0.0],
    ]
    twice = poisoned([2.0, None, 2.0, 9.0], requires_grad=True)
    assert gradient(twice.median(), twice).tolist() == [0.5, 0.0, 0.5, 0.0]
    assert gradient(twice.mode().values, twice).tolist() == [0.0, 0.0, 1.0, 0.0]
    for garbage in (nan, inf, -inf, 1e38):
        mask = on(1, 0, 1, 1)
        free = torch.randn(3).double().requires_grad_()
        for reduce in (torch.median, lambda t: torch.quantile(t, 0.3), lambda t: t.kthvalue(2).values):

            def cubed(
                entries: Tensor, garbage: float = garbage, reduce=reduce, mask: Tensor = mask
            ) -> Tensor:
                data = torch.full((4,), garbage, dtype=torch.float64).masked_scatter(mask, entries)
                result = reduce(mg.masked(data, mask)) ** 3
                return result.filled(0.0) if isinstance(result, mg.MaskedTensor) else result

            assert gradcheck(cubed, (free,))
            assert gradgradcheck(cubed, (free,))


def test_small_tensors_and_errors() -> None:
    for name, number in SELECTIONS.items():
        result = getattr(poisoned(2.0), name)(*[1 for _ in number], dim=0)
        assert_entries(result.values, 2.0)
        assert_entries(result.indices, 0)
        with pytest.raises(IndexError):
            getattr(mg.masked(torch.zeros(2, 0), torch.ones(2, 0, dtype=torch.bool)), name)(
                *[1 for _ in number], dim=1
            )
        with pytest.raises(IndexError):
            getattr(poisoned([1.0]), name)(*[1 for _ in number], dim=1)
    nothing = mg.masked(torch.zeros(0, 3), torch.ones(0, 3, dtype=torch.bool))
    assert nothing.median(1).values.shape == nothing.mode(1).values.shape == (0,)
    assert_number(nothing.median(), nan)
    assert_entries(nothing.long().median(), None)
    x = poisoned([None, None], requires_grad=True)
    assert_nothing(x.median(), nan, x)
    assert_nothing(x.nanmedian(), nan, x)
    with pytest.raises(RuntimeError):
        poisoned([1.0, None]).kthvalue(3)
    assert_entries(poisoned([True, None, True], torch.bool).mode().indices, 2)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=str)
@pytest.mark.parametrize("name", [*SELECTIONS, "quantile", "median of all"])
def test_compiled_in_one_graph_and_under_vmap(name: str, dtype: torch.dtype) -> None:
    if name == "quantile" and dtype not in FLOATS:
        dtype = torch.float64

    def function(values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        x = mg.masked(values, mask)
        more = {"quantile": [0.4], **SELECTIONS}.get(name)
        result = x.median() if more is None else getattr(x, name)(*more, dim=-1)
        result = parts_of(result)[0]
        if not isinstance(result, mg.MaskedTensor):
            return result.nan_to_num(-1.0), result.isnan()
        return result.filled(0), result.mask

    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    for mask in (on([1, 0, 1], [0, 1, 1]), on([0, 0, 0], [1, 1, 1])):
        values = torch.tensor([[3, 7, 1], [5, 2, 9]], dtype=dtype)
        for found, expected in zip(compiled(values, mask), function(values, mask), strict=True):
            assert torch.equal(found, expected)
        each = torch.vmap(function)(values, mask)
        one = function(values[1], mask[1])
        assert torch.equal(each[0][1], one[0])
        assert torch.equal(each[1][1], one[1])
