"""Groups of stored entries against loops over places, and what a pattern remembers of them."""

from __future__ import annotations

import copy
import itertools
import pickle

import pytest
import torch
from torch.utils import _pytree as pytree

import maskgrad as mg
from maskgrad.kernels import use_kernels
from maskgrad.semantics.stored.entries import StoredEntries
from maskgrad.semantics.stored.groups import group_of

SHAPE = (5, 6)


def masked(shape=SHAPE, dtype=torch.float64):
    mask = torch.rand(shape) < 0.5
    mask[2], mask[:, 3] = False, False
    return torch.randn(shape, dtype=dtype), mask


def matrices():
    """Layout -> a matrix of that layout, and the plain values and mask it was made of."""
    found = {}
    values, mask = masked()
    for layout in (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc):
        found[str(layout)] = (mg.masked(values, mask).to_sparse(layout), values, mask)
    values, blocks = masked((4, 6))
    blocks = (torch.rand(2, 3) < 0.6).repeat_interleave(2, 0).repeat_interleave(2, 1)
    for layout in (torch.sparse_bsr, torch.sparse_bsc):
        found[str(layout)] = (mg.masked(values, blocks).to_sparse(layout, blocksize=(2, 2)), values, blocks)
    return found


@pytest.fixture(params=["reference", "cpu"], autouse=True)
def _both_bodies(request):
    with use_kernels(request.param):
        yield


@pytest.mark.parametrize("layout", list(matrices()))
@pytest.mark.parametrize("dims", [(0,), (1,), (0, 1), (1, 0)])
def test_groups_hold_the_entries_of_each_line(layout, dims):
    x, _, mask = matrices()[layout]
    groups = group_of(x._pattern, dims)
    coordinates = x._pattern.coordinates().T.tolist()
    kept = [d for d in range(2) if d not in dims]
    expected = {}
    for place, at in enumerate(coordinates):
        expected.setdefault(tuple(at[d] for d in kept), []).append(place)
    assert [tuple(at) for at in groups.coordinates.T.tolist()] == sorted(expected)
    order = range(len(coordinates)) if groups.order is None else groups.order.tolist()
    found = [[order[i] for i in range(a, b)] for a, b in itertools.pairwise(groups.pointers.tolist())]
    assert [sorted(entries) for entries in found] == [expected[key] for key in sorted(expected)]
    assert groups.count().tolist() == [len(expected[key]) for key in sorted(expected)]
    assert sum(groups.count().tolist()) == int(mask.sum())
    assert torch.equal(groups.index, groups.expand(torch.arange(groups.number)))


def test_groups_of_nothing():
    x = mg.masked(torch.zeros(SHAPE), torch.zeros(SHAPE, dtype=torch.bool))
    for layout in (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc):
        for dims in ((0,), (1,), (0, 1)):
            assert group_of(x.to_sparse(layout)._pattern, dims).number == 0


@pytest.mark.parametrize("layout", list(matrices()))
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize(
    "name", ["sum", "mean", "softmax", "log_softmax", "amax", "var", "logsumexp", "prod"]
)
def test_first_and_second_derivatives_agree_with_the_boolean_layout(layout, dim, name):
    options = {"correction": 0} if name == "var" else {}  # that of one entry is NaN otherwise, as in torch
    x, values, mask = matrices()[layout]
    stored = values[tuple(x._pattern.coordinates())].reshape(x._values.shape)

    def sparse(entries):
        y = getattr(mg.MaskedTensor(entries, x._pattern) ** 2, name)(dim, **options)
        return y._values.sin().sum()

    def dense(values):
        y = getattr(mg.masked(values, mask) ** 2, name)(dim, **options)
        return y.sin().sum()

    results = []
    for f, plain in ((sparse, stored), (dense, values)):
        leaf = plain.clone().requires_grad_()
        value = f(leaf)
        (slope,) = torch.autograd.grad(value, leaf, create_graph=True)
        (bend,) = torch.autograd.grad(slope.square().sum(), leaf)
        results.append([value, slope, bend])
    at = tuple(x._pattern.coordinates())
    torch.testing.assert_close(results[0][0], results[1][0])
    for ours, theirs in zip(results[0][1:], results[1][1:], strict=True):
        torch.testing.assert_close(x._pattern.flattened(ours), theirs[at])


def test_a_pattern_remembers_its_groups_and_results_fit_together():
    x = matrices()["torch.sparse_csr"][0]
    assert group_of(x._pattern, (1,)) is group_of(x._pattern, (1,))
    assert group_of(x._pattern, (1,)) is not group_of(x._pattern, (0,))
    assert x.mean(1)._pattern is x.sum(1)._pattern
    assert x.mean(1)._pattern is not x.mean(1, keepdim=True)._pattern
    assert (x.mean(1) - x.mean(1)).filled(7.0).eq(0).any()


def test_the_memory_is_not_copied_stored_or_flattened():
    x = matrices()["torch.sparse_coo"][0]
    before = len(pickle.dumps(x._pattern))
    x.mean(0), x.softmax(1)
    assert len(pickle.dumps(x._pattern)) == before
    for twin in (
        pickle.loads(pickle.dumps(x._pattern)),
        copy.deepcopy(x._pattern),
        copy.copy(x._pattern),
        x._pattern.rebuilt(x._pattern.tensors()),
    ):
        assert not hasattr(twin, "_memory")
        assert twin.facts() == x._pattern.facts()
        assert torch.equal(twin.indices, x._pattern.indices)
    assert len(pytree.tree_leaves(x)) == 2


def test_nothing_is_remembered_of_transformed_tensors_or_in_inference_mode():
    x, _, _ = matrices()["torch.sparse_coo"]
    with torch.inference_mode():
        x.mean(0)
    assert not hasattr(x._pattern, "_memory")
    batch = torch.stack([x._values, 2 * x._values])
    mapped = torch.vmap(lambda v: mg.MaskedTensor(v, x._pattern).mean(0)._values)(batch)
    torch.testing.assert_close(mapped[0], x.mean(0)._values)
    fresh = mg.MaskedTensor(x._values, x._pattern.rebuilt(x._pattern.tensors()))
    torch.func.grad(lambda v: mg.MaskedTensor(v, fresh._pattern).softmax(1)._values.sum())(x._values)
    assert not hasattr(fresh._pattern, "_memory")
    group_of(x._pattern, (0,))
    with torch.inference_mode():
        x.mean(0)
    leaf = x._values.clone().requires_grad_()
    mg.MaskedTensor(leaf, x._pattern).mean(0)._values.sum().backward()
    assert leaf.grad.isfinite().all()


def test_entries_that_are_vectors():
    indices = torch.tensor([[0, 1, 1, 3], [2, 0, 2, 1]])
    values = torch.randn(4, 3, requires_grad=True)
    x = mg.from_sparse(torch.sparse_coo_tensor(indices, values.detach(), (4, 3, 3), is_coalesced=True))
    stored = StoredEntries(values, x._pattern)
    for dim, lines in ((1, [[0], [1, 2], [3]]), (0, [[1], [3], [0, 2]])):
        soft = mg.MaskedTensor(stored.values, x._pattern).softmax(dim)._values
        expected = torch.empty_like(soft)
        for line in lines:
            expected[line] = torch.softmax(values[line], 0)
        torch.testing.assert_close(soft, expected)
