"""torch_geometric: pooling and aggregations by deletion, graphs with values and masks as attributes of their own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch_geometric import nn, utils
from torch_geometric.data import Batch, Data

import maskgrad as mg
from maskgrad.errors import UnsupportedOperationError
from tests.ecosystem.rows import one_line, refused, works
from tests.ecosystem.truth import garbage

INDEX = torch.tensor([0, 0, 2, 2, 2, 3, 0])
EDGES = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])


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
    "`utils.scatter`: sum, mean, min, max, mul; a group that lost all its rows is unspecified",
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


@refused("torch_geometric", "a MaskedTensor in `Data`", "`Data(x=x.filled(0.), x_mask=x.mask)`")
def test_graphs_refuse() -> None:
    x, _, _ = garbage(4, 3)
    with pytest.raises(UnsupportedOperationError, match=r"Data\(x=x\.filled\(0\.\), x_mask=x\.mask\)"):
        Data(x=x, edge_index=EDGES)
    data = Data(edge_index=EDGES)
    with pytest.raises(UnsupportedOperationError, match="subgraphs and batches"):
        data.edge_attr = x


@refused(
    "torch_geometric",
    "`GCNConv` and all message passing",
    "`utils.scatter(x[source], target, reduce=…)`, or `x.filled(0.)`",
)
def test_message_passing_refuses() -> None:
    x, _, _ = garbage(4, 3)
    for layer in (nn.GCNConv(3, 2), nn.SAGEConv(3, 2), nn.GATConv(3, 2), nn.TransformerConv(3, 2)):
        with pytest.raises(UnsupportedOperationError, match=r"torch_geometric\.utils\.scatter\(x\[source\]"):
            layer(x, EDGES)


@works("torch_geometric", "message passing written with `scatter`")
def test_messages_by_hand() -> None:
    x, values, mask = garbage(4, 3)
    found = utils.scatter(x[EDGES[0]], EDGES[1], 0, 4, "mean")
    assert torch.equal(found.mask, mask.roll(1, 0))
    torch.testing.assert_close(found.filled(0.0), values.roll(1, 0))


@refused(
    "torch_geometric",
    "`coalesce`, `sort_edge_index`, `to_undirected`, `is_undirected` with masked attributes",
    "`[x.filled(0.), x.mask]` in the place of `x`",
)
def test_edges_refuse() -> None:
    x, values, mask = garbage(4, 3)
    for function in (utils.coalesce, utils.sort_edge_index, utils.to_undirected):
        with pytest.raises(UnsupportedOperationError, match=r"\[x\.filled\(0\.\), x\.mask\]"):
            function(EDGES, x)
    with pytest.raises(UnsupportedOperationError, match=r"\[x\.filled\(0\.\), x\.mask\]"):
        utils.is_undirected(EDGES, x)
    with pytest.raises(UnsupportedOperationError, match=r"x\.filled\(float\('-inf'\)\)"):
        utils._scatter.scatter_argmax(x[:, 0], torch.zeros(4, dtype=torch.int64))
    _, (moved, moved_mask) = utils.sort_edge_index(EDGES, [x.filled(0.0), x.mask], sort_by_row=False)
    order = EDGES[1].argsort()
    assert torch.equal(moved, values[order])
    assert torch.equal(moved_mask, mask[order])


@refused("torch_geometric", "`LayerNorm` over graphs, `InstanceNorm`", "`GraphNorm`, `torch.nn.LayerNorm`")
def test_norms_refuse() -> None:
    x, _, _ = garbage(7, 5)
    with pytest.raises(UnsupportedOperationError, match=r"torch\.nn\.LayerNorm"):
        nn.LayerNorm(5)(x, INDEX)
    with pytest.raises(UnsupportedOperationError, match="GraphNorm, which divides"):
        nn.InstanceNorm(5)(x, INDEX)


@refused(
    "torch_geometric",
    "`MedianAggregation`, `QuantileAggregation`, `VariancePreservingAggregation`, `MultiAggregation`, "
    "`DegreeScalerAggregation`",
    "`mean`, `max`, `min`, `sum`, or `mg.functional.median` for each graph",
)
def test_aggregations_refuse() -> None:
    x, _, _ = garbage(7, 5)
    with pytest.raises(UnsupportedOperationError, match=r"mg\.functional\.median"):
        nn.aggr.MedianAggregation()(x, INDEX)
    for aggregation in (
        nn.aggr.VariancePreservingAggregation(),
        nn.aggr.MultiAggregation(["mean", "std"]),
        nn.aggr.DegreeScalerAggregation("sum", "identity", torch.tensor([0, 1, 1, 1])),
    ):
        with pytest.raises(UnsupportedOperationError, match="by the number of all rows"):
            aggregation(x, INDEX)
