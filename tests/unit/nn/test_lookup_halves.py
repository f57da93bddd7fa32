"""Half-precision tables: PyTorch cannot add up two sparse gradients of theirs on a CPU, so they are float32."""

import copy
from collections.abc import Callable

import pytest
import torch

import maskgrad as mg

HALVES = [torch.float16, torch.bfloat16]
TABLES: dict[str, Callable[..., torch.nn.Module]] = {
    "Embedding": mg.nn.Embedding,
    "EmbeddingBag": lambda *args, **kwargs: mg.nn.EmbeddingBag(*args, mode="sum", **kwargs),
}
ROWS = torch.tensor([[1, 2, 1]])


@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("dtype", HALVES)
def test_gradients_of_several_uses_and_passes_add_up(dtype: torch.dtype, name: str, copied: bool) -> None:
    table = TABLES[name](5, 3, dtype=dtype)
    table = copy.deepcopy(table) if copied else table
    outputs = [table(ROWS) + table(ROWS), table(ROWS)]
    for output in outputs:
        output.sum().backward()
    gradient = table.weight.grad
    assert isinstance(gradient, torch.Tensor)
    assert gradient.dtype == torch.float32
    assert gradient.to_dense()[:, 0].tolist() == [0, 6, 3, 0, 0]
    before = table.weight.detach().clone()
    mg.optim.SGD(table.parameters(), lr=0.5).step()
    moved = (before - table.weight).detach().float()
    torch.testing.assert_close(moved[:, 0], torch.tensor([0, 3, 1.5, 0, 0]), atol=0.02, rtol=0)


@pytest.mark.parametrize("name", TABLES)
def test_other_dtypes_before_and_after(name: str) -> None:
    table = TABLES[name](5, 3)
    table(ROWS).sum().backward()
    for convert, expected in (
        (table.half, torch.float32),
        (table.double, torch.float64),
        (table.bfloat16, torch.float32),
        (table.float, torch.float32),
    ):
        convert()
        assert table.weight.grad is not None
        table(ROWS).sum().backward()
        assert table.weight.grad.dtype == expected  # type: ignore[union-attr]
        table.weight.grad = None
        table(ROWS).sum().backward()
        assert table.weight.grad.dtype == expected  # type: ignore[union-attr]


def test_dense_gradients_stay_in_half_precision() -> None:
    table = mg.nn.Embedding(5, 3, sparse=False, dtype=torch.float16)
    table(ROWS).sum().backward()
    assert table.weight.grad is not None
    assert table.weight.grad.dtype == torch.float16
