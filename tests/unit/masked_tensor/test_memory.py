"""What modules, checkpoints and processes ask of a tensor."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import maskgrad as mg
from tests.poison import assert_entries, on, poisoned

X = [[1.0, None], [3.0, 4.0]]


class TestCopy:
    @pytest.mark.parametrize(
        ("source", "expected"),
        [
            (lambda: torch.tensor([5.0, 6.0]), [[5.0, 6.0]] * 2),
            (lambda: 5, [[5.0] * 2] * 2),
            (lambda: poisoned([[5], [None]], torch.int64), [[5.0] * 2, [None] * 2]),
            (lambda: poisoned([None, 7.0], torch.float64), [[None, 7.0]] * 2),
        ],
    )
    def test_entries_and_mask(self, source: Any, expected: list[Any]) -> None:
        x = poisoned(X)
        row, given = x[0], source()
        assert x.copy_(given, non_blocking=True) is x
        assert_entries(x, expected)
        assert_entries(row, expected[0])

    @pytest.mark.parametrize(
        "dtype", [torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.complex128]
    )
    @pytest.mark.parametrize("number", [-1.7, 1e300, 2**53 + 1, True, 0.3])
    def test_a_number_is_rounded_once(self, dtype: torch.dtype, number: float) -> None:
        x = mg.masked(torch.zeros(2, dtype=dtype), on(1, 0))
        x.copy_(number)
        expected = torch.zeros(2, dtype=dtype).copy_(number)
        assert torch.equal(x.filled(0), expected)
        assert x.mask.all()

    def test_what_cannot_be_written_is_refused_and_nothing_changes(self) -> None:
        plain, x = torch.zeros(2, 2), poisoned(X)
        with pytest.raises(RuntimeError, match=r"it cannot store which .* \.filled\(value\)"):
            plain.copy_(x)
        with pytest.raises(RuntimeError, match="expanded size"):
            x.copy_(torch.ones(3))
        assert not plain.any()
        assert_entries(x, X)
        leaf = mg.masked(torch.zeros(2, requires_grad=True), on(1, 0))
        with pytest.raises(RuntimeError, match="a leaf"):
            leaf.copy_(torch.ones(2))
        with torch.no_grad():
            leaf.copy_(torch.ones(2))
        assert_entries(leaf.detach(), [1.0, 1.0])

    def test_a_sparse_tensor_is_copied_within_its_layout(self) -> None:
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


@pytest.mark.parametrize("layout", ["strided", "sparse_coo", "sparse_csr"])
@pytest.mark.parametrize("assign", [False, True])
def test_a_checkpoint_with_a_masked_buffer(layout: str, assign: bool, tmp_path: Any) -> None:
    def stored(entries: list[Any]) -> Any:
        x = poisoned(entries)
        return x if layout == "strided" else x.to_sparse(layout=getattr(torch, layout))

    torch.save(WithBuffer(stored(X)).state_dict(), tmp_path / "it.pt")
    model = WithBuffer(stored([[None, 7.0], [8.0, None]]))
    model.load_state_dict(torch.load(tmp_path / "it.pt", weights_only=True), assign=assign)
    assert_entries(model.seen.to_dense(), X)


def test_data_is_the_same_memory_outside_of_the_graph() -> None:
    leaf = torch.tensor([1.0, 2.0], requires_grad=True)
    x = mg.masked(leaf, on(1, 0))
    assert not x.data.requires_grad
    x.data[1] = 5.0
    x.data.mul_(2)
    assert_entries(x.detach(), [2.0, 10.0])
    x.data = mg.masked(torch.tensor([7.0, 8.0]), on(0, 1))
    assert x.is_leaf
    assert leaf.tolist() == [7.0, 8.0]
    assert_entries(x.detach(), [None, 8.0])
    x.data = torch.tensor([9.0, 9.0])
    assert_entries(x.detach(), [9.0, 9.0])
    with pytest.raises(TypeError, match=r"data must be a strided torch.Tensor, found list"):
        x.data = [1.0]
    s = poisoned(X).to_sparse()
    s.data.zero_()
    assert_entries(s.to_dense(), [[0.0, None], [0.0, 0.0]])


@pytest.mark.parametrize("initialise", [lambda x: nn.init.constant_(x, 2.0), nn.init.ones_, nn.init.zeros_])
def test_constants_are_written_everywhere(initialise: Any) -> None:
    assert initialise(poisoned(X)).mask.all()


CONTAINERS = {
    "Parameter": (nn.Parameter, r"nn\.Parameter\(x\.filled\(0\.\)\) and self\.register_buffer\('mask', x\.mask\)"),
    "Buffer": (nn.Buffer, r"self\.register_buffer\(name, x\)"),
    "ParameterList": (lambda x: nn.ParameterList([x]), r"nn\.Parameter\(x\.filled"),
    "ParameterDict": (lambda x: nn.ParameterDict({"a": x}), r"nn\.Parameter\(x\.filled"),
}  # fmt: skip


@pytest.mark.parametrize("name", CONTAINERS)
def test_a_masked_tensor_is_no_parameter(name: str) -> None:
    make, words = CONTAINERS[name]
    for x in (poisoned(X), poisoned(X).to_sparse()):
        assert not hasattr(x, "_is_param")
        assert not hasattr(x, "persistent")
        with pytest.raises(TypeError, match=words):
            make(x)


def test_the_remedy_for_a_parameter() -> None:
    class Pruned(nn.Module):
        def __init__(self, x: Any) -> None:
            super().__init__()
            self.weight = nn.Parameter(x.filled(0.0))
            self.register_buffer("mask", x.mask)

        def forward(self) -> Any:
            return mg.masked(self.weight, self.mask)

    model = Pruned(poisoned(X))
    model().sum().backward()
    assert model.weight.grad.tolist() == [[1.0, 0.0], [1.0, 1.0]]


def test_memory_of_several_processes_is_refused() -> None:
    with pytest.raises(AttributeError, match=r"x\.mask\.share_memory_\(\), and mg\.masked\(values, mask\)"):
        WithBuffer(poisoned(X)).share_memory()
