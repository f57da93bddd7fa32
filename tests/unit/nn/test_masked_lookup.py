"""Tables read with masked ids: what they would be with the unspecified ids deleted, in every form of the gradient.

Training, rows that wait and graphs: tests/pairs.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import maskgrad as mg
from maskgrad.errors import UnsupportedLayoutError
from tests.poison import nan, on

MASK = on([1, 1, 0, 1], [0, 0, 0, 0], [1, 0, 0, 0])
#: garbage under the mask names no row
IDS = mg.masked(torch.tensor([[1, 2, -9, 2], [10**9] * 4, [3, 99, -1, 6]]), MASK)
JAGGED = mg.from_lengths(
    torch.tensor([[1, 2, 2, -9], [-7] * 4, [3, 99, -1, 6]]), MASK.sum(1), layout=torch.jagged
)
SHORT, ROWS = on([1, 1, 1, 0], [0, 0, 0, 0], [1, 0, 0, 0]), torch.tensor([1, 2, 2, 3])
LAYOUT = pytest.mark.parametrize(("ids", "mask"), [(IDS, MASK), (JAGGED, SHORT)], ids=["strided", "jagged"])
FORM = pytest.mark.parametrize("form", [{}, {"sparse": False}], ids=["sparse", "dense"])


def tables(kind: str, form: dict[str, Any], options: dict[str, Any]) -> tuple[Any, Any]:
    """Ours, and PyTorch's with the same rows and a dense gradient."""
    table = getattr(mg.nn, kind)(6, 3, dtype=torch.float64, **options, **form)
    own = getattr(nn, kind)(6, 3, dtype=torch.float64, **options)
    own.load_state_dict(table.state_dict())
    return table, own


def compare(table: Any, own: Any, y: Any, expected: Tensor) -> None:
    """The rows of the entries, weights and gradients; the gradient lists no row but those of ``own``."""
    found = y.compressed().view(expected.shape)
    torch.testing.assert_close(found, expected)
    for rows in (found, expected):
        (rows.square() * torch.arange(1.0, len(rows) + 1)[:, None]).sum().backward()
    torch.testing.assert_close(table.weight, own.weight)
    grad = table.weight.grad
    torch.testing.assert_close(grad.to_dense(), own.weight.grad)
    if grad.layout is torch.sparse_coo:
        assert {*grad._indices()[0].tolist()} == {*own.weight.grad.any(1).nonzero()[:, 0].tolist()}


@FORM
@LAYOUT
@pytest.mark.parametrize("options", [{}, {"padding_idx": 2}, {"padding_idx": -3, "max_norm": 0.5}], ids=str)
def test_masked_rows_are_looked_up_as_their_entries_alone(
    form: dict[str, Any], ids: mg.MaskedTensor, mask: Tensor, options: dict[str, Any]
) -> None:
    table, own = tables("Embedding", form, options)
    y = table(ids)
    assert y.layout is ids.layout
    assert torch.equal(y.mask, mask[..., None].expand(3, 4, 3))
    compare(table, own, y, own(ROWS))


@FORM
@LAYOUT
@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("padding", [None, 2])
def test_a_masked_bag_has_its_entries_alone(
    form: dict[str, Any], ids: mg.MaskedTensor, mask: Tensor, mode: str, padding: int | None
) -> None:
    table, own = tables("EmbeddingBag", form, {"mode": mode, "padding_idx": padding})
    y = table(ids)
    assert torch.equal(y.mask[:, 0], mask.any(1))
    compare(table, own, y, own(ROWS, torch.tensor([0, 3])))


@FORM
def test_bags_with_offsets_and_masked_weights(form: dict[str, Any]) -> None:
    table, own = tables("EmbeddingBag", form, {"mode": "sum"})
    weights = mg.masked(torch.tensor([2.0, nan, 3.0, 4.0, 5.0]).double(), on(1, 0, 1, 1, 1))
    y = table(mg.masked(torch.tensor([1, 4, -9, 2, 3]), on(1, 1, 0, 1, 1)), torch.tensor([0, 1, 3]), weights)
    assert y.mask[:, 0].tolist() == [True, False, True]
    expected = own(torch.tensor([1, 2, 3]), torch.tensor([0, 1]), torch.tensor([2.0, 4.0, 5.0]).double())
    compare(table, own, y, expected)


def test_layouts_without_rows_are_refused_and_vmap_says_why_it_cannot_list_rows() -> None:
    words = r"torch.sparse_coo. Convert explicitly with x.to_dense"
    for table in (mg.nn.Embedding(6, 3), mg.nn.EmbeddingBag(6, 3)):
        with pytest.raises(UnsupportedLayoutError, match=words):
            table(IDS.to_sparse())
    own = nn.Embedding(6, 3, sparse=True)
    with pytest.raises(RuntimeError, match=r"sparse=True is not supported under .*vmap.*use sparse=False"):
        torch.vmap(lambda i, m: own(mg.masked(i, m)).filled(0.0))(IDS.filled(0), MASK)
