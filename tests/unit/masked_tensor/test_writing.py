"""Writes reach every view, values and mask; and nothing else. Drawn programs: tests/random_programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nan

import maskgrad as mg
from tests.poison import assert_entries, on, poisoned

X = [[1.0, None, 3.0, 4.0], [5.0, 6.0, None, 8.0]]


def fill_rows(x: Any) -> None:
    for row in x:
        row.fill_(1.0)


def remove(x: Any) -> None:
    x[1][0] = mg.unspecified


def assign(x: Any) -> None:
    x.view(2, 2, 2)[0][1] = 3.14


#: What is written to X, through a view, and what X is then.
WRITES: dict[str, tuple[Callable[[Any], Any], list[Any]]] = {
    "fill_rows": (fill_rows, [[1.0] * 4, [1.0] * 4]),
    "zero the detached": (lambda x: x.detach().zero_(), [[0.0] * 4] * 2),
    "assign": (assign, [[1.0, None, 3.14, 3.14], X[1]]),
    "out=": (lambda x: torch.mul(x[1], 2.0, out=x[0]), [[10.0, 12.0, None, 16.0], X[1]]),
    "remove": (remove, [X[0], [None, 6.0, None, 8.0]]),
}


@pytest.mark.every
@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("made", ["masked", "computed", "shared", "compiled"])
def test_views_write_to_what_they_are_views_of(name: str, made: str) -> None:
    write, expected = WRITES[name]
    x = poisoned(X)
    if made == "computed":  # its mask is that of x, which must not change
        x = x * 1
    product, power, whole = x * 1, x.exp(), x[:]
    if made == "shared":
        x = mg.masked(x.get_data(), x.mask)
        whole = x[:]
    if made == "compiled":
        x = whole = mg.masked(x.get_data(), x.mask.clone())
        write = torch.compile(write, backend="aot_eager", fullgraph=True)
    write(x)
    assert_entries(x, expected)
    assert_entries(whole, expected)
    assert_entries(product, X)
    assert torch.equal(power.mask, product.mask)


def test_a_mask_is_written_where_it_was_passed_unless_two_tensors_have_it() -> None:
    data, mask = torch.tensor([1.0, nan, 3.0]), on(1, 0, 1)
    x = mg.masked(data, mask)
    x[1] = 2.0
    assert data.tolist() == [1.0, 2.0, 3.0]
    assert mask.all()
    y, z = mg.masked(torch.zeros(3), mask), mg.masked(torch.zeros(3), x.mask)
    read = x.mask
    for one in (x, y):
        one[2] = mg.unspecified
        assert one.mask.tolist() == [True, True, False]
        assert torch.cat([z.mask, mask, read]).all()


def test_a_leaf_stays_a_leaf() -> None:
    w = mg.masked(torch.tensor([1.0, -2.0, nan], requires_grad=True), on(1, 1, 0))
    (w * w).sum().backward()
    sparse = w.detach().to_sparse().requires_grad_()
    with torch.no_grad():
        for leaf in (w, sparse):
            leaf.clamp_(0, 10)
            assert leaf.requires_grad
            assert leaf.is_leaf
        w -= 0.1 * w.grad
        with pytest.raises(RuntimeError, match="would replace a leaf that requires grad"):
            sparse *= mg.masked(torch.ones(3), on(1, 0, 0)).to_sparse()
    assert_entries(w.detach(), [0.8, 0.4, None])
    w.grad.zero_()
    (w * w).sum().backward()
    assert_entries(w.grad, [1.6, 0.8, None])


def test_what_a_graph_kept_is_not_overwritten_in_silence() -> None:
    leaf, seen = torch.tensor([1.0, 2.0, nan], requires_grad=True), []
    x = mg.masked(leaf * 2, on(1, 1, 0))
    x.register_hook(lambda gradient: seen.append(gradient.tolist()))
    product, filled, data = (x * x).sum(), x.filled(), x.get_data()
    assert x.get_mask() is x.mask
    x[0] = 5.0
    x[2] = 4.0
    (gradient,) = torch.autograd.grad(product, leaf, retain_graph=True)  # it keeps copies of its own
    assert gradient.tolist() == [8.0, 16.0, 0.0]
    assert seen == [[4.0, 8.0, None]]  # with the mask of its registration
    for read in (filled, data):
        assert torch.autograd.grad(read.nansum(), leaf, retain_graph=True)[0].tolist() == [2.0, 2.0, 0.0]
    z = leaf * 2
    total = z.pow(2).sum()
    mg.masked(z, on(1, 1, 0))[0] = 5.0
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        total.backward()


def test_what_a_view_could_not_see_is_refused() -> None:
    def function(values: Tensor) -> Tensor:
        x = mg.masked(values, on([1, 0], [1, 1])) * 2  # has the mask of another
        x.t()[1] = 1.0
        return x.filled(0.0)

    values = torch.ones(2, 2)
    assert torch.equal(function(values), torch.tensor([[2.0, 1.0], [2.0, 1.0]]))
    with pytest.raises(RuntimeError, match=r"would not see it.*x\.clone\(\)"):
        torch.func.jvp(function, (values,), (values,))
    x = mg.masked(torch.zeros(2, 2), on(1, 0)[:, None])
    view = x.view(4)  # for which the mask had to be copied
    view[0] = 1.0
    with pytest.raises(RuntimeError, match=r"would not see it.*x\.clone\(\)"):
        view[2] = 1.0
    assert_entries(x, [[1.0, 0.0], [None, None]])


#: How a function of tensors is run.
WAYS = {
    "plainly": lambda run, *given: run(*given),
    "vectorised": lambda run, *given: [part[0] for part in torch.vmap(run)(*[x[None] for x in given])],
    "in forward mode": lambda run, x, mask: torch.func.jvp(lambda x: run(x, mask), (x,), (x,))[0],
    "compiled": lambda run, *given: torch.compile(run, backend="eager")(*given),
}


def reduced(x: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
    """Whether the masks of sums of one entry each stay as they are when that of their operand changes."""
    y = mg.masked(x.clone(), mask.clone())
    results = y.sum(1), y.any(1)
    y.zero_()
    return *[~result.mask ^ mask[:, 0] for result in results], y.mask


def viewed(x: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
    """The masks of a conjugate and of a view, which do."""
    y = mg.masked(x.clone(), mask.clone())
    views = y.conj(), y.unsqueeze(0)
    y.masked_fill_(torch.ones_like(mask), 1.5)
    return tuple(view.mask for view in views)


@pytest.mark.every
@pytest.mark.filterwarnings("ignore:There is a performance drop")  # vmap about fill_
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("function", [reduced, viewed])
def test_which_results_have_masks_of_their_own(function: Any, way: str) -> None:
    masks = WAYS[way](function, torch.randn(3, 1, dtype=torch.complex64), on([1], [0], [1]))
    assert all(mask.all() for mask in masks)


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_a_mask_that_was_read_of_a_result_is_not_written_through_another_tensor(layout: torch.layout) -> None:
    x = mg.from_lengths(torch.randn(3, 4), torch.tensor([2, 0, 4]), layout=layout)
    for read in (lambda: x.mean(1), (x * 2).to_dense):
        result = read()
        before = result.mask.clone()
        other = mg.masked(torch.zeros(result.shape), result.mask)
        other[2] = mg.unspecified
        assert torch.equal(result.mask, before)
        assert torch.equal(read().mask, before)


def test_whole_rows_of_a_mask_that_repeats() -> None:
    mask = on(0, 1, 0, 0)[:, None]
    queue = mg.masked(torch.tensor([[nan] * 3, [1.0] * 3, [nan] * 3, [nan] * 3]), mask)
    view = queue[:3]
    queue[[2]] = torch.full((1, 3), 5.0)
    assert mask[2].all()  # written where it is: nobody else reads it
    before, w = queue * 1, torch.ones(3, requires_grad=True)
    loss = (queue + w).sum()
    queue[0].copy_(torch.tensor([6.0, 7.0, 8.0]))
    queue[1] = mg.unspecified
    rows = [[6.0, 7.0, 8.0], [None] * 3, [5.0] * 3, [None] * 3]
    assert_entries(queue, rows)
    assert_entries(view, rows[:3])
    assert_entries(before, [[None] * 3, [1.0] * 3, [5.0] * 3, [None] * 3])
    loss.backward()  # of the mask of then
    assert w.grad.tolist() == [2.0] * 3
    x = mg.from_lengths(torch.ones(2, 3, 4), torch.tensor([1, 3]))
    x.sum(2).fill_(2.0)  # which has a mask of its own
    assert x.num_specified() == 16


def test_a_part_of_what_shares_a_boolean_is_not_written() -> None:
    queue = mg.masked(torch.zeros(2, 3), on(1, 0)[:, None])
    for part in (queue, queue[:, :2], queue[1:], queue[:, 0:2].expand(2, 2, 2)):
        with pytest.raises(RuntimeError, match=r"share one Boolean.*x\.clone\(\)"):
            part[..., 0] = 5.0
    with pytest.raises(RuntimeError, match="share one Boolean"):
        queue[:, 0].fill_(1.0)
    with pytest.raises(RuntimeError, match="share one Boolean"):
        queue[1] = mg.masked(torch.ones(3), on(1, 1, 0))
    assert_entries(queue, [[0.0] * 3, [None] * 3])
