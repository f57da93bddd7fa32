"""Writes reach every view, values and mask; and nothing else."""

from __future__ import annotations

import operator
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


#: What is written to X, mostly through a view, and what X is then.
WRITES: dict[str, tuple[Callable[[Any], Any], list[Any]]] = {
    "fill_rows": (fill_rows, [[1.0] * 4, [1.0] * 4]),
    "zero a row": (lambda x: x[0].zero_(), [[0.0] * 4, X[1]]),
    "double the transposed": (lambda x: x.t().mul_(2), [[2.0, None, 6.0, 8.0], [10.0, 12.0, None, 16.0]]),
    "add to a column": (lambda x: operator.iadd(x[:, 0], 1), [[2.0, None, 3.0, 4.0], [6.0, 6.0, None, 8.0]]),
    "zero the detached": (lambda x: x.detach().zero_(), [[0.0] * 4] * 2),
    "assign": (assign, [[1.0, None, 3.14, 3.14], X[1]]),
    "out=": (lambda x: torch.mul(x[1], 2.0, out=x[0]), [[10.0, 12.0, None, 16.0], X[1]]),
    "one of two chunks": (
        lambda x: x.chunk(2, -1)[0].neg_(),
        [[-1.0, None, 3.0, 4.0], [-5.0, -6.0, None, 8.0]],
    ),
    "remove": (remove, [X[0], [None, 6.0, None, 8.0]]),
    "masked_fill_": (
        lambda x: x[:, 1:].masked_fill_(on([1, 0, 0], [0, 1, 0]), 9.0),
        [[1.0, 9.0, 3.0, 4.0], [5.0, 6.0, 9.0, 8.0]],
    ),
}
every_write = pytest.mark.parametrize("name", WRITES)


@every_write
@pytest.mark.parametrize("made", ["masked", "computed", "shared"])
def test_views_write_to_what_they_are_views_of(name: str, made: str) -> None:
    write, expected = WRITES[name]
    x = poisoned(X)
    if made == "computed":  # its mask is that of x, which must not change
        x = x * 1
    product, power, whole = x * 1, x.exp(), x[:]
    if made == "shared":
        x = mg.masked(x.get_data(), x.mask)
        whole = x[:]
    write(x)
    assert_entries(x, expected)
    assert_entries(whole, expected)
    assert_entries(product, X)
    assert torch.equal(power.mask, product.mask)


@every_write
@pytest.mark.compiled(of="file")
def test_each_write_is_compiled_into_one_graph(name: str) -> None:
    write, expected = WRITES[name]
    data, mask = torch.tensor([[1.0, nan, 3.0, 4.0], [5.0, 6.0, nan, 8.0]]), on([1, 0, 1, 1], [1, 1, 0, 1])
    x = mg.masked(data, mask)
    torch.compile(write, backend="aot_eager", fullgraph=True)(x)
    assert_entries(x, expected)


def test_the_data_and_the_mask_that_were_passed_are_written() -> None:
    data, mask = torch.tensor([1.0, nan, 3.0]), on(1, 0, 1)
    x = mg.masked(data, mask)
    x[1] = 2.0
    x[2] = mg.unspecified
    assert data.tolist() == [1.0, 2.0, 3.0]
    assert mask.tolist() == [True, True, False]


def test_a_mask_that_two_tensors_have_is_written_for_neither() -> None:
    mask = on(1, 0)
    x, y = mg.masked(torch.zeros(2), mask), mg.masked(torch.zeros(2), mask)
    z = mg.masked(torch.zeros(2), x.mask)
    read = x.mask
    x[1] = 1.0
    assert_entries(x, [0.0, 1.0])
    assert read.tolist() == [True, False]
    for other in (y, z):
        assert_entries(other, [0.0, None])
    y[0] = mg.unspecified
    assert_entries(y, [None, None])
    assert_entries(z, [0.0, None])
    assert mask.tolist() == [True, False]


def test_a_leaf_stays_a_leaf() -> None:
    w = mg.masked(torch.tensor([1.0, -2.0, nan], requires_grad=True), on(1, 1, 0))
    (w * w).sum().backward()
    gradient = w.grad
    with torch.no_grad():
        w.clamp_(0, 10)
        w -= 0.1 * w.grad
        w[0] = 3.0
    assert w.requires_grad
    assert w.is_leaf
    assert_entries(w.detach(), [3.0, 0.4, None])
    assert_entries(gradient, [2.0, -4.0, None])
    w.grad.zero_()
    (w * w).sum().backward()
    assert_entries(w.grad, [6.0, 0.8, None])
    w.grad.mul_(0.5)
    assert_entries(w.grad, [3.0, 0.4, None])


def test_a_sparse_leaf_stays_a_leaf() -> None:
    w = mg.masked(torch.tensor([1.0, -2.0, nan]), on(1, 1, 0)).to_sparse().detach().requires_grad_()
    with torch.no_grad():
        w.clamp_(0, 10)
        with pytest.raises(RuntimeError, match="would replace a leaf that requires grad"):
            w *= mg.masked(torch.ones(3), on(1, 0, 0)).to_sparse()
    assert w.requires_grad
    assert_entries(w.detach().to_dense(), [1.0, 0.0, None])


def first_and_second(write: Callable[[Any], Any], x: torch.Tensor, wrap: Callable[[Any], Any]) -> list[Any]:
    """The derivatives of a sum of cubes after a write through a view."""
    leaf = x.clone().requires_grad_()
    y = wrap(leaf * 1.0)
    write(y)
    (first,) = torch.autograd.grad((y**3).sum(), leaf, create_graph=True)
    (second,) = torch.autograd.grad((first**2).sum(), leaf)
    return [first.tolist(), second.tolist()]


@pytest.mark.parametrize(
    "write",
    [
        lambda y: y[:, 0].exp_(),
        lambda y: y[1].mul_(y[0].clone()),
        lambda y: y.t()[1].sin_(),
        lambda y: y.mul_(y.clone()),
        lambda y: y[0].fill_(2.0),
        lambda y: y.__setitem__((0, 1), y[1, 1].clone() ** 2),
    ],
)
def test_derivatives_through_written_views(write: Callable[[Any], Any]) -> None:
    x = torch.tensor([[0.5, 1.0, 1.5], [2.0, 0.3, 0.7]], dtype=torch.float64)
    whole = torch.ones(2, 3, dtype=torch.bool)
    expected = first_and_second(write, x, lambda t: t)
    assert first_and_second(write, x, lambda t: mg.masked(t, whole)) == expected


def test_what_a_graph_kept_is_not_overwritten_in_silence() -> None:
    leaf = torch.tensor([1.0, 2.0, nan], requires_grad=True)
    x = mg.masked(leaf * 2, on(1, 1, 0))
    y = (x * x).sum()
    x[0] = 5.0
    (gradient,) = torch.autograd.grad(y, leaf)  # it keeps copies of its own
    assert gradient.tolist() == [8.0, 16.0, 0.0]
    z = leaf * 2
    total = z.pow(2).sum()
    mg.masked(z, on(1, 1, 0))[0] = 5.0
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        total.backward()


def test_a_mask_that_had_to_be_copied_cannot_be_written_through_a_view() -> None:
    x = mg.masked(torch.zeros(2, 2), on(1, 0)[:, None])
    view = x.view(4)
    view[0] = 1.0
    with pytest.raises(RuntimeError, match=r"would not see it.*x\.clone\(\)"):
        view[2] = 1.0
    assert_entries(x, [[1.0, 0.0], [None, None]])


def test_thousands_of_views_of_views() -> None:
    x = mg.masked(torch.zeros(5000), torch.zeros(5000, dtype=torch.bool))
    view = x
    for _ in range(4990):
        view = view[1:]
    view[0] = 1.0
    assert x.mask.nonzero().tolist() == [[4990]]
    x[4991] = 2.0
    assert view.tolist() == [1.0, 2.0, *[None] * 8]


def through_views(a: Tensor, b: Tensor) -> Tensor:
    """A view of a clone, written through the clone and through another view."""
    x, y = mg.masked(a, on([1], [0])), mg.masked(b, on([1, 1, 0], [1, 0, 1]))
    z = y.clone()
    view = z.unsqueeze(0)
    z.add_(torch.stack(x.unbind(0)))
    view[0, 1, 1] = 2.0
    return z.filled(0.0) * view.filled(0.0)[0]


def test_views_are_written_under_transformations() -> None:
    a, b = torch.tensor([[3.0], [nan]]), torch.tensor([[1.0, 2.0, nan], [4.0, nan, 5.0]])
    expected = torch.tensor([[16.0, 25.0, 0.0], [0.0, 4.0, 0.0]])
    assert torch.equal(through_views(a, b), expected)
    assert torch.equal(torch.vmap(through_views)(a[None], b[None])[0], expected)
    ones = torch.ones_like(a), torch.ones_like(b)
    found, along = torch.func.jvp(through_views, (a, b), ones)
    assert torch.equal(found, expected)
    assert torch.equal(along, torch.tensor([[16.0, 20.0, 0.0], [0.0, 0.0, 0.0]]))
    slopes = torch.func.grad(lambda *both: through_views(*both).sum(), (0, 1))(a, b)
    assert torch.equal(slopes[0], torch.tensor([[18.0], [0.0]]))
    assert torch.equal(slopes[1], torch.tensor([[8.0, 10.0, 0.0], [0.0, 0.0, 0.0]]))
    compiled = torch.compile(through_views, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(a, b), expected)


def test_what_cannot_be_followed_under_transformations_is_refused() -> None:
    mask = on([1, 0], [1, 1])

    def function(values: Tensor) -> Tensor:
        x = mg.masked(values, mask) * 2  # has the mask of another
        view = x.t()
        view[1] = 1.0
        return x.filled(0.0)

    values = torch.ones(2, 2)
    assert torch.equal(function(values), torch.tensor([[2.0, 1.0], [2.0, 1.0]]))
    with pytest.raises(RuntimeError, match=r"would not see it.*x\.clone\(\)"):
        torch.func.jvp(function, (values,), (values,))


#: How a function of tensors is run.
WAYS = {
    "plainly": lambda run, *given: run(*given),
    "vectorised": lambda run, *given: [part[0] for part in torch.vmap(run)(*[x[None] for x in given])],
    "compiled": lambda run, *given: torch.compile(run, backend="eager")(*given),
}
ALL_WAYS = pytest.mark.parametrize("way", WAYS)


@ALL_WAYS
@pytest.mark.filterwarnings("ignore:There is a performance drop")  # vmap about fill_
@pytest.mark.parametrize("name", ["sum", "any", "amax"])
def test_what_a_dimension_of_one_was_reduced_to_has_a_mask_of_its_own(way, name):
    mask = on([1], [0], [1])

    def run(x, mask):
        y = mg.masked(x.clone(), mask.clone())
        reduced = getattr(y, name)(1)
        y.zero_()
        return reduced.mask, y.mask

    reduced, written = WAYS[way](run, torch.randn(3, 1), mask)
    assert reduced.tolist() == [True, False, True]
    assert written.all()


def test_what_a_repeating_mask_was_reduced_to_has_a_mask_of_its_own():
    x = mg.from_lengths(torch.ones(2, 3, 4), torch.tensor([1, 3]))
    x.sum(2).fill_(2.0)
    assert x.num_specified() == 16


@ALL_WAYS
def test_a_conjugate_sees_what_is_written(way):
    def run(x, mask):
        y = mg.masked(x.clone(), mask.clone())
        conjugate = y.conj()
        y.masked_fill_(torch.ones_like(mask), 1.5)
        return (conjugate.mask,)

    (found,) = WAYS[way](run, torch.randn(3, dtype=torch.complex64), on(1, 0, 1))
    assert found.all()


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_a_mask_that_was_read_of_a_result_is_not_written_through_another_tensor(layout: torch.layout) -> None:
    x = mg.from_lengths(torch.randn(3, 4), torch.tensor([2, 0, 4]), layout=layout)
    for read in (lambda: x.mean(1), lambda: x.mean(1, keepdim=True), (x * 2).to_dense):
        result = read()
        before = result.mask.clone()
        other = mg.masked(torch.zeros(result.shape), result.mask)
        other[2] = mg.unspecified
        assert not other.mask[2].any()
        assert torch.equal(result.mask, before)
        assert torch.equal(read().mask, before)
