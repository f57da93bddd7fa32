"""Tables read with masked ids: what they would be with the unspecified ids deleted, in every form of the gradient."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import maskgrad as mg
from maskgrad.errors import UnsupportedLayoutError
from tests.poison import on

HEIGHT, WIDTH = 6, 3
MASK = on([1, 1, 0, 1], [0, 0, 0, 0], [1, 0, 0, 0])
#: garbage under the mask names no row
IDS = torch.tensor([[1, 2, -9, 2], [10**9] * 4, [3, 99, -1, 6]])
FORMS: dict[str, dict[str, Any]] = {"sparse": {}, "dense": {"sparse": False}}
FORM = pytest.mark.parametrize("form", FORMS)


def masked(layout: torch.layout) -> tuple[Any, Tensor]:
    """Ids on a layout, and their mask."""
    if layout is torch.jagged:
        lengths = MASK.sum(1)
        mask = torch.arange(4) < lengths[:, None]
        return mg.from_lengths(
            torch.tensor([[1, 2, 2, -9], [-7] * 4, [3, 99, -1, 6]]), lengths, layout=layout
        ), mask
    return mg.masked(IDS, MASK), MASK


def plain(kind: Any, table: Any, **options: Any) -> Any:
    """PyTorch's own table with the same rows and a dense gradient."""
    own = kind(HEIGHT, WIDTH, dtype=torch.float64, **options)
    own.load_state_dict(table.state_dict())
    return own


def compare(table: Any, own: Any) -> None:
    """Weights and gradients; the gradient lists no row but those of ``own``."""
    torch.testing.assert_close(table.weight, own.weight)
    found, wanted = table.weight.grad, own.weight.grad
    torch.testing.assert_close(found.to_dense(), wanted)
    named = set(wanted.any(1).nonzero()[:, 0].tolist())
    if found.layout is torch.sparse_coo:
        assert set(found._indices()[0].tolist()) == named


@FORM
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
@pytest.mark.parametrize("options", [{}, {"padding_idx": 2}, {"padding_idx": -3, "max_norm": 0.5}], ids=str)
def test_masked_rows_are_looked_up_as_their_entries_alone(
    form: str, layout: torch.layout, options: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    table = mg.nn.Embedding(HEIGHT, WIDTH, dtype=torch.float64, **options, **FORMS[form])
    own = plain(nn.Embedding, table, **options)
    x, mask = masked(layout)
    y, expected = table(x), own(torch.tensor([1, 2, 2, 3]))
    assert y.layout is layout
    assert torch.equal(y.mask, mask[..., None].expand(3, 4, WIDTH))
    torch.testing.assert_close(y.compressed().view(-1, WIDTH), expected)
    factors = torch.arange(1.0, 5.0, dtype=torch.float64)[:, None]
    (y.compressed().view(-1, WIDTH) * factors).sum().backward()
    (expected * factors).sum().backward()
    compare(table, own)


@FORM
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("padding", [None, 2])
def test_a_masked_bag_has_its_entries_alone(
    form: str, layout: torch.layout, mode: str, padding: int | None
) -> None:
    torch.manual_seed(0)
    options: dict[str, Any] = {"mode": mode, "padding_idx": padding}
    table = mg.nn.EmbeddingBag(HEIGHT, WIDTH, dtype=torch.float64, **options, **FORMS[form])
    own = plain(nn.EmbeddingBag, table, **options)
    y = table(masked(layout)[0])
    expected = own(torch.tensor([1, 2, 2, 3]), torch.tensor([0, 3]))
    assert y.mask[:, 0].tolist() == [True, False, True]
    torch.testing.assert_close(y.compressed().view(2, WIDTH), expected)
    y.square().sum().backward()
    expected.square().sum().backward()
    compare(table, own)


@FORM
def test_bags_with_offsets_and_masked_weights(form: str) -> None:
    torch.manual_seed(0)
    table = mg.nn.EmbeddingBag(HEIGHT, WIDTH, mode="sum", dtype=torch.float64, **FORMS[form])
    own = plain(nn.EmbeddingBag, table, mode="sum")
    weights = torch.tensor([2.0, float("nan"), 3.0, 4.0, 5.0], dtype=torch.float64)
    x = mg.masked(torch.tensor([1, 4, -9, 2, 3]), on(1, 1, 0, 1, 1))
    y = table(x, torch.tensor([0, 1, 3]), mg.masked(weights, on(1, 0, 1, 1, 1)))
    expected = own(torch.tensor([1, 2, 3]), torch.tensor([0, 1]), torch.tensor([2.0, 4.0, 5.0]).double())
    assert y.mask[:, 0].tolist() == [True, False, True]
    torch.testing.assert_close(y.compressed().view(2, WIDTH), expected)
    y.square().sum().backward()
    expected.square().sum().backward()
    compare(table, own)


@FORM
@pytest.mark.parametrize("kind", ["Embedding", "EmbeddingBag"])
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
def test_rows_that_wait_are_up_to_date_when_they_are_read(form: str, kind: str, layout: torch.layout) -> None:
    torch.manual_seed(0)
    table = getattr(mg.nn, kind)(HEIGHT, WIDTH, dtype=torch.float64, **FORMS[form])
    own = plain(getattr(nn, kind), table)
    settings: dict[str, Any] = {"lr": 0.1, "weight_decay": 0.1}
    lazy = mg.optim.Adam(table.parameters(), **settings, unspecified="zero")
    dense = torch.optim.Adam(own.parameters(), **settings)
    for ids in (masked(layout)[0], torch.tensor([[4, 5], [0, 0]]), masked(layout)[0]):
        deleted = ids if isinstance(ids, Tensor) else torch.tensor([[1, 2, 2], [3, 3, 3]])
        y, expected = table(ids), own(deleted)
        if isinstance(ids, mg.MaskedTensor):  # rows 1, 2, 2 and 3 alone
            found = y.compressed().view(-1, WIDTH)
            own_rows = expected if kind == "EmbeddingBag" else torch.cat([expected[0], expected[1, :1]])
            torch.testing.assert_close(found, own_rows)
            y, expected = found, own_rows
        y.square().sum().backward()
        expected.square().sum().backward()
        for optimizer in (lazy, dense):
            optimizer.step()
            optimizer.zero_grad()
    table.flush()
    torch.testing.assert_close(table.weight, own.weight)


@pytest.mark.compiled(keep=2)
@FORM
@pytest.mark.parametrize("kind", ["Embedding", "EmbeddingBag"])
@pytest.mark.parametrize("padding", [None, 2])
def test_one_graph_serves_all_masks(form: str, kind: str, padding: int | None) -> None:
    torch.manual_seed(0)
    table = getattr(mg.nn, kind)(HEIGHT, WIDTH, dtype=torch.float64, padding_idx=padding, **FORMS[form])
    own = plain(getattr(nn, kind), table, padding_idx=padding)
    compiled = torch.compile(table, fullgraph=True, backend="aot_eager")
    compiled(mg.masked(IDS, MASK)).sum().backward()
    with mg.assert_no_recompile():
        for mask in (MASK.flip(0), torch.zeros_like(MASK), MASK):
            mg.attach_gradient(table.weight, None)
            table.weight.grad = own.weight.grad = None
            ids = IDS.flip(0) if mask is not MASK else IDS
            y = compiled(mg.masked(ids, mask))
            y.square().sum().backward()
            deleted = [row[kept] for row, kept in zip(ids, mask, strict=True)]
            outputs = [own(row[None])[0].reshape(-1) for row in deleted if len(row)]
            torch.testing.assert_close(y.compressed(), torch.cat(outputs or [y.compressed()]))
            (own.weight.sum() * 0 + sum(row.square().sum() for row in outputs)).backward()
            compare(table, own)


def test_layouts_without_rows_are_refused() -> None:
    for table in (mg.nn.Embedding(6, 3), mg.nn.EmbeddingBag(6, 3)):
        with pytest.raises(
            UnsupportedLayoutError, match=r"torch.sparse_coo. Convert explicitly with x.to_dense"
        ):
            table(mg.masked(IDS, MASK).to_sparse())


def test_vmap_says_why_it_cannot_list_rows() -> None:
    table = nn.Embedding(HEIGHT, WIDTH, sparse=True)
    with pytest.raises(RuntimeError, match=r"sparse=True is not supported under .*vmap.*use sparse=False"):
        torch.vmap(lambda i, m: table(mg.masked(i, m)).filled(0.0))(IDS, MASK)
