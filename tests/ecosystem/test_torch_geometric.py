"""torch_geometric: pooling and aggregations by deletion, graphs with values and masks as attributes of their own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric import nn, utils
from torch_geometric.data import Batch, Data

import maskgrad as mg
from maskgrad.errors import UnsupportedOperationError
from tests.ecosystem.graphs import EDGES, GRAPHS, INDEX, ROWS, absent_nodes
from tests.ecosystem.rows import one_line, works
from tests.ecosystem.truth import garbage


def truth_of_scatter(values: Tensor, mask: Tensor, reduce: str) -> tuple[Tensor, Tensor]:
    """Column by column on the rows that are specified there."""
    result, specified = torch.zeros(4, values.shape[1]), torch.zeros(4, values.shape[1], dtype=torch.bool)
    for column in range(values.shape[1]):
        keep = mask[:, column]
        result[:, column] = utils.scatter(values[keep, column], INDEX[keep], 0, 4, reduce)
        for group in range(4):
            rows = group == INDEX
            specified[group, column] = bool((rows & keep).any()) or not rows.any()
    return result, specified


@works(
    "torch_geometric",
    "`utils.scatter`: sum, mean, min, max, mul; a group without rows is unspecified",
)
@pytest.mark.parametrize("reduce", ["sum", "mean", "min", "max", "mul", "any"])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_scatter(reduce: str, dim: int) -> None:
    x, values, mask = garbage(7, 5, density=0.5)
    result, specified = truth_of_scatter(values, mask, reduce)
    found = utils.scatter(x if dim == 0 else x.T, INDEX, dim, 4, reduce)
    found = found if dim == 0 else found.T
    assert torch.equal(found.mask, specified)
    torch.testing.assert_close(found.filled(0.0), torch.where(specified, result, 0.0))


@works("torch_geometric", "gradients through `scatter`")
@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
def test_gradients_of_scatter(reduce: str) -> None:
    x, values, mask = garbage(7, 5, requires_grad=True)
    utils.scatter(x, INDEX, 0, 4, reduce).filled(0.0).square().sum().backward()
    plain = values.requires_grad_()
    result, specified = truth_of_scatter(plain, mask, reduce)
    torch.where(specified, result, 0.0).square().sum().backward()
    torch.testing.assert_close(x._values.grad, plain.grad)


def test_scatter_asks_for_indices_that_fit() -> None:
    x, _, _ = garbage(7, 5)
    with pytest.raises(ValueError, match="index must have an entry for each"):
        utils.scatter(x, INDEX[:3])
    with pytest.raises(UnsupportedOperationError, match=r"scatter\(src\[keep\], index\[keep\]\)"):
        utils.scatter(x, mg.masked(INDEX, INDEX > 0))


@works(
    "torch_geometric",
    "`global_add_pool`, `global_mean_pool`, `global_max_pool`, aggregations, `utils.softmax`",
)
def test_pooling() -> None:
    x, values, mask = garbage(7, 5)
    for pool, reduce in [
        (nn.global_add_pool, "sum"),
        (nn.global_mean_pool, "mean"),
        (nn.global_max_pool, "max"),
    ]:
        result, specified = truth_of_scatter(values, mask, reduce)
        found = pool(x, INDEX)
        assert torch.equal(found.mask, specified)
        torch.testing.assert_close(found.filled(0.0), torch.where(specified, result, 0.0))
    variance = nn.aggr.VarAggregation()(x, INDEX)
    weights = utils.softmax(x, INDEX)
    for column in range(5):
        keep = mask[:, column]
        truth = nn.aggr.VarAggregation()(values[keep, column, None], INDEX[keep], dim_size=4)[:, 0]
        some = variance.mask[:, column]
        torch.testing.assert_close(variance.filled(0.0)[some, column], truth[some])
        torch.testing.assert_close(
            weights.filled(0.0)[keep, column], utils.softmax(values[keep, column], INDEX[keep], num_nodes=4)
        )


@works("torch_geometric", "`GraphNorm`, `MeanSubtractionNorm`, `BatchNorm`")
@pytest.mark.parametrize("batched", [True, False])
def test_norms(batched: bool) -> None:
    x, values, mask = garbage(7, 5)
    batch = INDEX if batched else None
    for make in (nn.GraphNorm, nn.MeanSubtractionNorm, nn.BatchNorm):
        graphs = (batch,) if make is not nn.BatchNorm else ()
        found = make(5)(x, *graphs) if make is not nn.MeanSubtractionNorm else make()(x, *graphs)
        assert torch.equal(found.mask, mask)
        for column in range(5):
            keep = mask[:, column]
            left = values[keep, column, None]
            kept = (INDEX[keep],) if graphs and batched else ()
            if make is nn.BatchNorm and len(left) < 2:
                continue
            truth = (make(1) if make is not nn.MeanSubtractionNorm else make())(left, *kept)
            torch.testing.assert_close(found.filled(0.0)[keep, column], truth[:, 0], rtol=1e-4, atol=1e-4)


@one_line(
    "torch_geometric",
    "`Data`, `Batch`, `subgraph`",
    "`Data(x=x.filled(0.), x_mask=x.mask)`, and `mg.masked(data.x, data.x_mask)` in the model",
)
def test_graphs_with_two_attributes() -> None:
    x, values, mask = garbage(4, 3)
    data = Data(x=x.filled(0.0), x_mask=x.mask, edge_index=EDGES)
    part = data.subgraph(torch.tensor([1, 3]))
    assert torch.equal(mg.masked(part.x, part.x_mask).filled(0.0), values[[1, 3]])
    assert torch.equal(part.x_mask, mask[[1, 3]])
    batch = Batch.from_data_list([data, part])
    pooled = nn.global_add_pool(mg.masked(batch.x, batch.x_mask), batch.batch)
    torch.testing.assert_close(pooled[1].filled(0.0), values[[1, 3]].sum(0))


@works("torch_geometric", "message passing with `scatter`")
def test_messages_by_hand() -> None:
    x, values, mask = garbage(4, 3)
    found = utils.scatter(x[EDGES[0]], EDGES[1], 0, 4, "mean")
    assert torch.equal(found.mask, mask.roll(1, 0))
    torch.testing.assert_close(found.filled(0.0), values.roll(1, 0))


@works(
    "torch_geometric",
    "`PairNorm`, `DiffGroupNorm`, `HeteroLayerNorm`, `Linear`, `HeteroLinear` of missing nodes",
)
@pytest.mark.parametrize(
    ("make", "graphs"),
    [
        (nn.PairNorm, True),
        (lambda: nn.PairNorm(scale_individually=True), True),
        (lambda: nn.DiffGroupNorm(5, 2), False),
        (lambda: nn.HeteroLayerNorm(5, 2), True),
        (lambda: nn.Linear(5, 3), False),
        (lambda: nn.HeteroLinear(5, 3, 2), True),
    ],
)
def test_layers_of_absent_nodes(make: Any, graphs: bool) -> None:
    x, values = absent_nodes()
    layer = make()
    found = layer(x, *(GRAPHS,) * graphs)
    torch.testing.assert_close(found.filled(torch.nan)[ROWS], layer(values[ROWS], *(GRAPHS[ROWS],) * graphs))
    assert not found.mask[~ROWS].any()


@works(
    "torch_geometric",
    "`SoftmaxAggregation`, `PowerMeanAggregation`, `AttentionalAggregation`, `DeepSetsAggregation`, `Set2Set` of "
    "absent nodes",
)
@pytest.mark.parametrize(
    "make",
    [
        nn.aggr.SoftmaxAggregation,
        nn.aggr.PowerMeanAggregation,
        lambda: nn.aggr.AttentionalAggregation(torch.nn.Linear(5, 1)),
        lambda: nn.aggr.DeepSetsAggregation(torch.nn.Linear(5, 3)),
        lambda: nn.aggr.Set2Set(5, 2),
    ],
)
def test_aggregations_of_absent_nodes(make: Any) -> None:
    x, values = absent_nodes()
    aggregation = make()
    found = aggregation(x, GRAPHS)
    torch.testing.assert_close(found.filled(torch.nan), aggregation(values[ROWS], GRAPHS[ROWS]))


@works("torch_geometric", "`add_self_loops`, `get_laplacian`, `unbatch`, `subgraph` with masked weights")
def test_weights_of_edges() -> None:
    """0→1: 1, 1→1: absent, 1→2: 3, 2→2: 4, 2→0: absent; by hand."""
    edges = torch.tensor([[0, 1, 1, 2, 2], [1, 1, 2, 2, 0]])
    weights = mg.masked(
        torch.tensor([1.0, torch.nan, 3.0, 4.0, torch.inf]), torch.tensor([1, 0, 1, 1, 0]) > 0
    )
    own = [1, None, 3, 4, None]
    for fill, loops in (
        ("mean", [None, 1, 3.5]),
        ("add", [None, 1, 7]),
        ("max", [None, 1, 4]),
        (2.0, [2, 2, 2]),
    ):
        assert utils.add_self_loops(edges, weights, fill)[1].tolist() == own + loops
    assert utils.add_remaining_self_loops(edges, weights, 2.0)[1].tolist() == [1, 3, None, 2, None, 4]
    assert utils.get_self_loop_attr(edges, weights).tolist() == [0, None, 4]
    assert utils.remove_self_loops(edges, weights)[1].tolist() == [1, 3, None]
    between = edges[:, [0, 2, 4]]
    laplacian = utils.get_laplacian(between, weights[torch.tensor([0, 2, 4])])[1]
    assert laplacian.tolist() == [-1, -3, None, 1, 3, None]
    assert utils.subgraph([1, 2], edges, weights)[1].tolist() == [None, 3, 4]
    assert [part.tolist() for part in utils.unbatch(weights, torch.tensor([0, 0, 1, 1, 1]))] == [
        own[:2],
        own[2:],
    ]


@works("torch_geometric", "`DenseGINConv`, `DenseGATConv` of missing nodes")
def test_dense_layers_of_absent_nodes() -> None:
    x, values = absent_nodes()
    adj = (torch.rand(7, 7) < 0.5).float()
    for layer in (nn.DenseGINConv(torch.nn.Linear(5, 2)), nn.DenseGATConv(5, 2)):
        found = layer(x[None], adj[None])
        truth = layer(values[None, ROWS], adj[None, ROWS][:, :, ROWS])
        torch.testing.assert_close(found.filled(torch.nan)[:, ROWS], truth)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
@pytest.mark.parametrize("make", [lambda: nn.GCNConv(5, 2), lambda: nn.LayerNorm(5), lambda: nn.GraphNorm(5)])
def test_layers_of_plain_tensors_become_torchscript(make: Any) -> None:
    """What is exchanged for MaskedTensors is not what TorchScript compiles."""
    layer, x, edges = make(), torch.randn(7, 5), torch.tensor([[0, 1, 2], [1, 2, 3]])
    second = edges if isinstance(layer, nn.GCNConv) else GRAPHS
    torch.testing.assert_close(torch.jit.script(layer)(x, second), layer(x, second))
