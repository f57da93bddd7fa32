"""What modules, checkpoints and processes ask of a tensor."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn

import maskgrad as mg
from maskgrad.masked_tensor import tensor as masked_tensor
from tests.poison import assert_entries, on, poisoned
from tests.unit.patterns.suite.copies import filed

X = [[1.0, None], [3.0, 4.0]]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64, torch.complex128])
@pytest.mark.parametrize("number", [1e300, 2**53 + 1, 0.3])
def test_a_number_is_rounded_once(dtype: torch.dtype, number: float) -> None:
    x = mg.masked(torch.zeros(2, dtype=dtype), on(1, 0))
    x.copy_(number)
    assert torch.equal(x.filled(0), torch.zeros(2, dtype=dtype).copy_(number))
    assert x.mask.all()


@pytest.mark.parametrize("initialise", [lambda x: nn.init.constant_(x, 2.0), nn.init.ones_, nn.init.zeros_])
def test_constants_are_written_everywhere(initialise: Any) -> None:
    assert initialise(poisoned(X)).mask.all()


def test_a_plain_tensor_takes_no_copy() -> None:
    plain = torch.zeros(2, 2)
    with pytest.raises(RuntimeError, match=r"it cannot store which .* \.filled\(value\)"):
        plain.copy_(poisoned(X))
    assert not plain.any()


def test_a_sparse_tensor_is_copied_within_its_layout() -> None:
    x = poisoned(X).to_sparse()
    values = x._values
    x.copy_(x * 2)
    assert x._values is values
    assert_entries(x.to_dense(), [[2.0, None], [6.0, 8.0]])
    x.copy_(poisoned([[None, 1.0], [None, None]]).to_sparse())
    assert_entries(x.to_dense(), [[None, 1.0], [None, None]])
    x.zero_()
    assert_entries(x.to_dense(), [[None, 0.0], [None, None]])
    for target, source in ((x, poisoned(X)), (poisoned(X), x), (x, x.to_sparse(layout=torch.sparse_csr))):
        with pytest.raises(TypeError, match=r"one layout and shape.*to_dense"):
            target.copy_(source)


class WithBuffer(nn.Module):
    def __init__(self, x: Any) -> None:
        super().__init__()
        self.register_buffer("seen", x)


@pytest.mark.parametrize("layout", [torch.strided, torch.sparse_coo])
@pytest.mark.parametrize("assign", [False, True])
def test_a_checkpoint_with_a_masked_buffer(layout: torch.layout, assign: bool, tmp_path: Any) -> None:
    saved, model = (
        WithBuffer(poisoned(entries) if layout == torch.strided else poisoned(entries).to_sparse())
        for entries in (X, [[None, 7.0], [8.0, None]])
    )
    torch.save(saved.state_dict(), tmp_path / "it.pt")
    model.load_state_dict(torch.load(tmp_path / "it.pt", weights_only=True), assign=assign)
    assert_entries(model.seen.to_dense(), X)
    with pytest.raises(AttributeError, match=r"x\.mask\.share_memory_\(\), and mg\.masked\(values, mask\)"):
        model.share_memory()


def test_data_is_the_same_memory_outside_of_the_graph() -> None:
    leaf = torch.tensor([1.0, 2.0], requires_grad=True)
    x = mg.masked(leaf, on(1, 0))
    x.data[1] = 5.0
    x.data.mul_(2)
    assert_entries(x.detach(), [2.0, 10.0])
    for data, entries in (
        (mg.masked(torch.tensor([7.0, 8.0]), on(0, 1)), [None, 8.0]),
        (torch.ones(2), [1, 1]),
    ):
        x.data = data
        assert x.is_leaf
        assert_entries(x.detach(), entries)
    assert leaf.tolist() == [1.0, 1.0]
    with pytest.raises(TypeError, match=r"data must be a strided torch.Tensor, found list"):
        x.data = [1.0]
    s = poisoned(X).to_sparse()
    s.data.zero_()
    assert_entries(s.to_dense(), [[0.0, None], [0.0, 0.0]])


def test_the_value_that_removes_entries_survives() -> None:
    assert pickle.loads(pickle.dumps(mg.unspecified)) is mg.unspecified
    assert copy.deepcopy(mg.unspecified) is mg.unspecified
    assert repr(mg.unspecified) == "maskgrad.unspecified"


class Damaged:
    def __init__(self, *parts: Any) -> None:
        self.parts = parts

    def __reduce__(self) -> tuple[Any, ...]:
        return masked_tensor.rebuild, self.parts


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ((torch.zeros(2), torch.ones(2)), "mask must be a Boolean torch.Tensor, .*found torch.float32"),
        ((torch.zeros(2), torch.ones(3).bool()), "mask must have as many dimensions"),
        (([1.0], on(1)), "values of a stored MaskedTensor must be a strided tensor, found list"),
    ],
)
def test_damaged_files_are_refused(parts: Any, words: str) -> None:
    for load in (lambda x: pickle.loads(pickle.dumps(x)), filed):
        with pytest.raises((TypeError, ValueError), match=words):
            load(Damaged(*parts))
