"""torch_geometric: what would count or lose unspecified entries refuses, and says what to write instead."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch_geometric import nn, utils
from torch_geometric.data import Data

import maskgrad as mg
from maskgrad.errors import UnsupportedOperationError
from tests.ecosystem.graphs import EDGES, GRAPHS, INDEX, ROWS, absent_nodes
from tests.ecosystem.rows import refused
from tests.ecosystem.truth import garbage


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


@refused(
    "torch_geometric",
    "`coalesce`, `sort_edge_index`, `to_undirected`, `is_undirected` with masked attributes",
    "`[x.filled(0.), x.mask]` instead of `x`",
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


@refused(
    "torch_geometric",
    "`LayerNorm` over graphs, `InstanceNorm`, `GraphSizeNorm`",
    "`GraphNorm`, `torch.nn.LayerNorm`",
)
def test_norms_refuse() -> None:
    x, _, _ = garbage(7, 5)
    with pytest.raises(UnsupportedOperationError, match=r"torch\.nn\.LayerNorm"):
        nn.LayerNorm(5)(x, INDEX)
    for norm in (nn.InstanceNorm(5), nn.GraphSizeNorm()):
        with pytest.raises(UnsupportedOperationError, match="GraphNorm, which divides"):
            norm(x, INDEX)


@refused(
    "torch_geometric",
    "masked indices in `degree`, `one_hot`, `softmax`, `add_self_loops` and other functions that count nodes",
    "`edge_index[:, keep]`, `index.compressed()`",
)
def test_counting_refuses() -> None:
    index = mg.masked(torch.where(ROWS, GRAPHS, 10**9), ROWS)
    edges = mg.masked(torch.where(ROWS, INDEX, 10**9).expand(2, 7), ROWS[None])
    calls: list[Any] = [
        lambda: utils.degree(index),
        lambda: utils.degree(index, 2),
        lambda: utils.one_hot(index),
        lambda: utils.softmax(torch.ones(7, 5), index),
        lambda: utils.unbatch(torch.ones(7, 5), index),
        lambda: utils.add_self_loops(edges),
        lambda: utils.contains_isolated_nodes(edges),
        lambda: utils.dropout_node(edges),
    ]
    for call in calls:
        with pytest.raises(
            UnsupportedOperationError, match=r"index\.compressed\(\), or edge_index\[:, keep\]"
        ):
            call()
    assert utils.degree(index.compressed()).tolist() == [2, 3]


@refused(
    "torch_geometric",
    "`to_dense_batch`, and the aggregations that use it: `LSTMAggregation`, `MLPAggregation`, …",
    "`mg.masked(to_dense_batch(x.filled(0.), batch)[0], to_dense_batch(x.mask, batch)[0])`",
)
def test_dense_batches_refuse() -> None:
    x, values, mask = garbage(7, 5)
    for call in (
        utils.to_dense_batch,
        nn.aggr.MLPAggregation(5, 3, 4, num_layers=1),
        nn.aggr.LSTMAggregation(5, 3),
    ):
        with pytest.raises(
            UnsupportedOperationError, match=r"mg\.masked\(to_dense_batch\(x\.filled\(0\.\), batch\)\[0\]"
        ):
            call(x, GRAPHS)
    dense = mg.masked(utils.to_dense_batch(x.filled(0.0), GRAPHS)[0], utils.to_dense_batch(x.mask, GRAPHS)[0])
    assert torch.equal(dense.mask[0, :3], mask[:3])
    assert torch.equal(dense.mask[1], mask[3:])
    assert not dense.mask[0, 3].any()
    assert torch.equal(dense.filled(0.0)[1], values[3:])


@refused(
    "torch_geometric",
    "`segment`, `softmax` and aggregations with `ptr`",
    "`index = torch.repeat_interleave(ptr.diff())` instead",
)
def test_segments_refuse() -> None:
    x, values, mask = garbage(7, 5)
    ptr = torch.tensor([0, 3, 7])
    calls: list[Any] = [
        lambda: utils.segment(x, ptr),
        lambda: utils.softmax(x, ptr=ptr),
        lambda: nn.aggr.MeanAggregation()(x, ptr=ptr),
    ]
    for call in calls:
        with pytest.raises(
            UnsupportedOperationError, match=r"index = torch\.repeat_interleave\(ptr\.diff\(\)\)"
        ):
            call()
    found = nn.aggr.MeanAggregation()(x, torch.repeat_interleave(ptr.diff()))
    counts = torch.stack([mask[:3].sum(0), mask[3:].sum(0)])
    assert torch.equal(found.mask, counts > 0)
    sums = torch.stack([values[:3].sum(0), values[3:].sum(0)])
    torch.testing.assert_close(found.filled(0.0), sums / counts.clamp(min=1))


@refused(
    "torch_geometric",
    "`TopKPooling`, `SAGPooling`, `EdgePooling`, `ClusterPooling`",
    "`x.filled(0.)[keep]` and `utils.subgraph(keep, edge_index, relabel_nodes=True)`",
)
def test_choosing_nodes_refuses() -> None:
    x, values = absent_nodes()
    edges = torch.tensor([[0, 1, 3, 4, 6], [1, 3, 4, 6, 0]])
    for call in (
        lambda: nn.TopKPooling(5)(x, edges),
        lambda: nn.TopKPooling(5, min_score=0.1)(x, edges),
        lambda: nn.EdgePooling(5)(x, edges, GRAPHS),
        lambda: nn.ClusterPooling(5)(x, edges, GRAPHS),
    ):
        with pytest.raises(UnsupportedOperationError, match=r"utils\.subgraph\(keep, edge_index"):
            call()
    keep = x.mask.any(-1)
    kept = utils.subgraph(keep, edges, relabel_nodes=True)[0]
    assert kept.tolist() == [[0, 1, 2, 3, 4], [1, 2, 3, 4, 0]]
    assert torch.equal(x.filled(0.0)[keep], values[ROWS])


@refused(
    "torch_geometric",
    "`DenseSAGEConv`, `DenseGCNConv`, `DenseGraphConv`",
    "`adj @ x / (adj @ x.mask.to(adj.dtype))`",
)
def test_dense_layers_refuse() -> None:
    x, values = absent_nodes()
    adj = (torch.rand(7, 7) < 0.5).float()
    adj[:, 0] = 1
    for make in (nn.DenseSAGEConv, nn.DenseGCNConv, nn.DenseGraphConv):
        with pytest.raises(UnsupportedOperationError, match=r"adj @ x / \(adj @ x\.mask"):
            make(5, 2)(x[None], adj[None])
    found = adj @ x / (adj @ x.mask.to(adj.dtype))
    kept = adj[:, ROWS]
    torch.testing.assert_close(found.filled(torch.nan), kept @ values[ROWS] / kept.sum(1, keepdim=True))


@refused(
    "torch_geometric",
    "`MedianAggregation`, `QuantileAggregation`, `VariancePreservingAggregation`, `MultiAggregation`, "
    "`DegreeScalerAggregation`, `EquilibriumAggregation`",
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
        nn.aggr.EquilibriumAggregation(5, 3, [4]),
    ):
        with pytest.raises(UnsupportedOperationError, match="by the number of all rows"):
            aggregation(x, INDEX)
