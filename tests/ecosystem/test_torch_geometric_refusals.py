"""torch_geometric: what would count or lose unspecified entries refuses, and says what to write instead."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch_geometric import nn, utils
from torch_geometric.data import Data

import maskgrad as mg
from tests.ecosystem.graphs import EDGES, GRAPHS, INDEX, ROWS, absent_nodes
from tests.ecosystem.truth import assert_refused, garbage

MASKED_INDEX = mg.masked(torch.where(ROWS, GRAPHS, 10**9), ROWS)
MASKED_EDGES = mg.masked(torch.where(ROWS, INDEX, 10**9).expand(2, 7), ROWS[None])
POINTERS = torch.tensor([0, 3, 7])
BETWEEN = torch.tensor([[0, 1, 3, 4, 6], [1, 3, 4, 6, 0]])
#: The words of a refusal, and calls with attributes of the seven nodes, of which some values are absent.
REFUSED: dict[str, list[Callable[[Any], Any]]] = {
    r"Data\(x=x\.filled\(0\.\), x_mask=x\.mask\)": [lambda x: Data(x=x, edge_index=EDGES)],
    "subgraphs and batches": [lambda x: setattr(Data(edge_index=EDGES), "edge_attr", x)],
    r"torch_geometric\.utils\.scatter\(x\[source\]": [
        lambda x: nn.GCNConv(5, 2)(x, EDGES),
        lambda x: nn.GATConv(5, 2)(x, EDGES),
    ],
    r"\[x\.filled\(0\.\), x\.mask\]": [
        lambda x: utils.coalesce(EDGES, x[:4]),
        lambda x: utils.sort_edge_index(EDGES, x[:4]),
        lambda x: utils.to_undirected(EDGES, x[:4]),
        lambda x: utils.is_undirected(EDGES, x[:4]),
    ],
    r"x\.filled\(float\('-inf'\)\)": [lambda x: utils._scatter.scatter_argmax(x[:, 0], GRAPHS)],
    r"torch\.nn\.LayerNorm": [lambda x: nn.LayerNorm(5)(x, INDEX)],
    "GraphNorm, which divides": [
        lambda x: nn.InstanceNorm(5)(x, INDEX),
        lambda x: nn.GraphSizeNorm()(x, INDEX),
    ],
    r"index\.compressed\(\), or edge_index\[:, keep\]": [
        lambda _: utils.degree(MASKED_INDEX),
        lambda _: utils.one_hot(MASKED_INDEX),
        lambda _: utils.softmax(torch.ones(7, 5), MASKED_INDEX),
        lambda _: utils.unbatch(torch.ones(7, 5), MASKED_INDEX),
        lambda _: utils.add_self_loops(MASKED_EDGES),
        lambda _: utils.dropout_node(MASKED_EDGES),
    ],
    r"mg\.masked\(to_dense_batch\(x\.filled\(0\.\), batch\)\[0\]": [
        lambda x: utils.to_dense_batch(x, GRAPHS),
        lambda x: nn.aggr.MLPAggregation(5, 3, 4, num_layers=1)(x, GRAPHS),
        lambda x: nn.aggr.LSTMAggregation(5, 3)(x, GRAPHS),
    ],
    r"index = torch\.repeat_interleave\(ptr\.diff\(\)\)": [
        lambda x: utils.segment(x, POINTERS),
        lambda x: utils.softmax(x, ptr=POINTERS),
        lambda x: nn.aggr.MeanAggregation()(x, ptr=POINTERS),
    ],
    r"utils\.subgraph\(keep, edge_index": [
        lambda _: nn.TopKPooling(5)(absent_nodes()[0], BETWEEN),
        lambda _: nn.EdgePooling(5)(absent_nodes()[0], BETWEEN, GRAPHS),
        lambda _: nn.ClusterPooling(5)(absent_nodes()[0], BETWEEN, GRAPHS),
    ],
    r"adj @ x / \(adj @ x\.mask": [
        lambda _: nn.DenseSAGEConv(5, 2)(absent_nodes()[0][None], torch.ones(1, 7, 7)),
        lambda _: nn.DenseGCNConv(5, 2)(absent_nodes()[0][None], torch.ones(1, 7, 7)),
        lambda _: nn.DenseGraphConv(5, 2)(absent_nodes()[0][None], torch.ones(1, 7, 7)),
    ],
    r"scatter\(src\[keep\], index\[keep\]\)": [lambda x: utils.scatter(x, MASKED_INDEX)],
    r"mg\.functional\.median": [lambda x: nn.aggr.MedianAggregation()(x, INDEX)],
    "by the number of all rows": [
        lambda x: nn.aggr.VariancePreservingAggregation()(x, INDEX),
        lambda x: nn.aggr.MultiAggregation(["mean", "std"])(x, INDEX),
        lambda x: nn.aggr.EquilibriumAggregation(5, 3, [4])(x, INDEX),
    ],
}


@pytest.mark.parametrize("words", REFUSED)
def test_refused(words: str) -> None:
    for call in REFUSED[words]:
        assert_refused(words, functools.partial(call, garbage(7, 5)[0]))


def test_indices_of_scatter_fit() -> None:
    with pytest.raises(ValueError, match="index must have an entry for each"):
        utils.scatter(garbage(7, 5)[0], INDEX[:3])
