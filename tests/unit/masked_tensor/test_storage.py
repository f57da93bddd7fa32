"""Sparse tensors of torch in and out: merging, trust, gradients in their own layout, second derivatives refused."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import maskgrad as mg
from maskgrad.patterns import algebra
from tests.poison import leaf, on, poisoned

D = torch.float64
DENSE = [[1.0, 0.0], [2.0, 3.0]]

MAKERS: dict[str, Callable[[Tensor], Tensor]] = {
    "coo": Tensor.to_sparse,
    "csr": Tensor.to_sparse_csr,
    "csc": Tensor.to_sparse_csc,
    "bsr": lambda t: t.to_sparse_bsr((1, 1)),
    "bsc": lambda t: t.to_sparse_bsc((1, 1)),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_sparse_leaf_gets_its_gradient_in_its_own_layout_again_and_again(
    make: Callable[[Tensor], Tensor],
) -> None:
    t = make(torch.tensor(DENSE, dtype=D)).requires_grad_()
    for _ in range(3):
        (mg.from_sparse(t) ** 2).sum().backward()
    assert t.grad is not None
    assert t.grad.layout == t.layout
    assert t.grad._nnz() == t._nnz()
    assert t.grad.to_dense().tolist() == [[6, 0], [12, 18]]
    (again,) = torch.autograd.grad((mg.from_sparse(t) ** 3).sum(), t)
    assert again.layout == t.layout
    assert again.to_dense().tolist() == [[3, 0], [12, 27]]
    assert t.grad.to_dense().tolist() == [[6, 0], [12, 18]]
    t.grad = None
    (mg.from_sparse(t) + mg.from_sparse(t)).sum().backward()  # twice in one graph
    assert t.grad.to_dense().tolist() == [[2, 0], [2, 2]]
    twice = (mg.from_sparse(t) * mg.from_sparse(t)).sum()
    assert torch.autograd.grad(twice, t)[0].to_dense().tolist() == [[2, 0], [4, 6]]


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_second_derivative_through_torch_is_refused_and_through_the_values_right(
    make: Callable[[Tensor], Tensor],
) -> None:
    t = make(torch.tensor(DENSE, dtype=D)).requires_grad_()
    with pytest.raises(RuntimeError, match=r"create_graph=True is not supported.*requires_grad_"):
        torch.autograd.grad((mg.from_sparse(t) ** 3).sum(), t, create_graph=True)
    x = mg.from_sparse(t.detach()).requires_grad_()
    (first,) = torch.autograd.grad((x**3).sum(), x._values, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x._values)
    assert second.reshape(-1).tolist() == [6 * v for v in x._values.reshape(-1).tolist()]


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_memory_is_shared_with_the_tensor_read(make: Callable[[Tensor], Tensor]) -> None:
    t = make(torch.tensor(DENSE, dtype=D))
    x = mg.from_sparse(t)
    x._values.mul_(2)
    assert t.to_dense().tolist() == [[2, 0], [4, 6]]


def test_duplicates_are_added_up_halves_in_float32() -> None:
    t = torch.sparse_coo_tensor(
        torch.zeros(1, 4096, dtype=torch.int64), torch.ones(4096, dtype=torch.half), (2,)
    )
    x = mg.from_sparse(t)
    assert x.tolist() == [4096.0, None]
    assert x.dtype == torch.half


def test_the_gradient_of_a_merged_leaf_is_that_of_each_duplicate() -> None:
    values = leaf(1, 2, 3)
    t = torch.sparse_coo_tensor(torch.tensor([[1, 0, 1]]), values, (3,))
    (mg.from_sparse(t) ** 2).sum().backward()
    assert values.grad is not None
    assert values.grad.tolist() == [8, 4, 8]


def test_a_flag_that_lies_is_not_believed() -> None:
    t = torch.sparse_coo_tensor(torch.tensor([[1, 0, 1]]), torch.ones(3), (3,), is_coalesced=True)
    assert mg.from_sparse(t).tolist() == [1.0, 2.0, None]


def test_a_stored_zero_and_a_cancelled_sum_stay_specified() -> None:
    t = torch.sparse_coo_tensor(torch.tensor([[0, 1, 1]]), torch.tensor([0.0, 1.0, -1.0]), (3,))
    x = mg.from_sparse(t)
    assert x.tolist() == [0.0, 0.0, None]
    assert x.mean().item() == 0
    assert x.to_sparse_tensor()._nnz() == 2


def test_indices_out_of_range_are_named() -> None:
    t = torch.sparse_coo_tensor(torch.tensor([[0, 7]]), torch.ones(2), (3,), check_invariants=False)
    with pytest.raises(IndexError, match="between 0 and 2 in dimension 0, found index 7"):
        mg.from_sparse(t)


def _compressed(pointers: list[int], positions: list[int]) -> Tensor:
    return torch.sparse_csr_tensor(
        torch.tensor(pointers),
        torch.tensor(positions),
        torch.ones(len(positions)),
        (2, 3),
        check_invariants=False,
    )


@pytest.mark.parametrize(
    ("t", "kind", "words"),
    [
        (
            _compressed([0, 2, 1], [0, 1]),
            ValueError,
            "must ascend from 0 to the number of stored positions, 2",
        ),
        (_compressed([1, 2, 2], [0, 1]), ValueError, "must ascend"),
        (_compressed([0, 2, 3], [1, 0, 0]), ValueError, "must ascend strictly within each line"),
        (_compressed([0, 2, 3], [1, 1, 0]), ValueError, "ascend strictly"),
        (_compressed([0, 1, 2], [1, 3]), IndexError, "between 0 and 2, found index 3"),
        (_compressed([0, 1, 2], [1, -1]), IndexError, "found index -1"),
    ],
)
def test_contradictory_indices_are_refused(t: Tensor, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        mg.from_sparse(t)
    mg.from_sparse(t, check_invariants=False)  # trusted: looked at by nobody


@pytest.mark.parametrize("bad", [torch.ones(2), 3, None])
def test_only_sparse_tensors_are_read(bad: object) -> None:
    with pytest.raises(TypeError, match=r"must be a sparse torch.Tensor.*use mg.masked"):
        mg.from_sparse(bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_copies_pickles_and_pytrees(make: Callable[[Tensor], Tensor]) -> None:
    x = mg.from_sparse(make(torch.tensor(DENSE)))
    x.sum(0)  # what a pattern remembers is not copied
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    leaves, spec = torch.utils._pytree.tree_flatten(x)
    for again in (
        copy.copy(x), copy.deepcopy(x), torch.load(file), torch.utils._pytree.tree_unflatten(leaves, spec),
    ):  # fmt: skip
        assert again.layout == x.layout
        assert torch.equal(again, x)
        assert again.tolist() == x.tolist()


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_masked_leaf_accumulates_in_its_own_pattern(make: Callable[[Tensor], Tensor]) -> None:
    x = mg.from_sparse(make(torch.tensor(DENSE))).requires_grad_()
    for _ in range(2):
        (x @ torch.ones(2, 1)).sum().backward()
    assert x.grad is not None
    assert x.grad.layout == x.layout
    assert algebra.equal(x.grad._pattern, x._pattern)
    assert x.grad.tolist() == [[2.0, None], [2.0, 2.0]]


def test_gradients_may_be_sent_into_stored_results_in_any_storage() -> None:
    for gradient in (
        torch.tensor([[1.0, 9.0], [2.0, 0.5]]),
        mg.masked(torch.tensor([[1.0, 9.0], [2.0, 0.5]]), on([1, 0], [1, 1])),
        mg.masked(torch.tensor([[1.0, 9.0], [2.0, 0.5]]), on([1, 0], [1, 1])).to_sparse(),
        mg.from_sparse(torch.tensor([[1.0, 0.0], [2.0, 0.5]]).to_sparse_csr()),
    ):
        x = mg.from_sparse(torch.tensor(DENSE).to_sparse_csr()).requires_grad_()
        (x * 2).backward(gradient)
        assert x.grad.tolist() == [[2.0, None], [4.0, 1.0]]
        (found,) = torch.autograd.grad(x * 2, x, gradient)  # type: ignore[arg-type]
        assert found.tolist() == [[2.0, None], [4.0, 1.0]]
    part = mg.masked(torch.ones(2, 2), on([0, 1], [0, 1])).to_sparse()
    assert torch.autograd.grad(x * 2, x, part)[0].tolist() == [[0.0, None], [0.0, 2.0]]  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="must have shape"):
        (x * 2).backward(torch.ones(3))


def test_iteration_and_reading_single_entries() -> None:
    x = poisoned([[1.0, None], [None, None]]).to_sparse(layout=torch.sparse_csr)
    assert [row.tolist() for row in x] == [[1.0, None], [None, None]]
    assert x[0, 0].item() == 1
    with pytest.raises(mg.UnspecifiedValueError):
        x[0, 1].item()


def test_an_unspecified_number_leaves_nothing_specified() -> None:
    x = poisoned([[1.0, None], [None, 2.0]]).to_sparse()
    nothing = mg.masked(torch.tensor(3.0), torch.tensor(False))
    something = mg.masked(torch.tensor(3.0), torch.tensor(True))
    assert (x * nothing).tolist() == [[None, None], [None, None]]
    assert (nothing - x * x).tolist() == [[None, None], [None, None]]
    assert (x * something).tolist() == [[3.0, None], [None, 6.0]]


def test_in_place_operations_rebind() -> None:
    x = poisoned([[1.0, None], [None, 2.0]]).to_sparse(layout=torch.sparse_csr)
    x += 1
    x.mul_(torch.tensor([[2.0, 2.0], [2.0, 3.0]]))
    assert x.layout == torch.sparse_csr
    assert x.tolist() == [[4.0, None], [None, 9.0]]
    x.t_()
    assert x.layout == torch.sparse_csc


def test_hybrid_tensors_of_different_ranks_are_not_taken_for_one_pattern() -> None:
    rows = mg.from_sparse(torch.sparse_coo_tensor([[0, 2]], torch.ones(2, 3), (3, 3)))
    cubes = mg.from_sparse(torch.sparse_coo_tensor([[0, 2]], torch.ones(2, 3, 3), (3, 3, 3)))
    assert (rows + cubes).tolist() == (rows.to_dense() + cubes.to_dense()).tolist()
