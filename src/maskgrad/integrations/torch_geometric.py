"""torch_geometric: ``scatter`` of the specified entries, and errors where rows are counted or selected.

``scatter``, on which its pooling, aggregations and norms are based, divides by counts of all rows. Here only the
specified entries are scattered, with the index of their row. A group without specified entries is
unspecified; for one without any row the result is that of torch_geometric.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from maskgrad.errors import UnsupportedOperationError
from maskgrad.integrations.integration import Integration, exchanged, refusals
from maskgrad.masked_tensor.tensor import MaskedTensor, of_entries
from maskgrad.masked_tensor.torch_patches.patch import Patch

__all__ = ["INTEGRATION"]


def _scatter(
    original: Callable[..., Any],
    src: Any,
    index: Any,
    dim: int = 0,
    dim_size: Any = None,
    reduce: str = "sum",
) -> Any:
    """``torch_geometric.utils.scatter`` of the specified entries."""
    if isinstance(index, MaskedTensor) and bool(index.mask.all()):  # zeros made from a MaskedTensor
        index = index._dense()[0]
    if not (isinstance(src, MaskedTensor) or isinstance(index, MaskedTensor)):
        return original(src, index, dim, dim_size, reduce)
    if isinstance(index, MaskedTensor) or index.dim() != 1:
        found = f"{type(index).__name__} with {index.dim()} dimensions"
        raise UnsupportedOperationError(
            "torch_geometric.utils.scatter",
            f"index must be a plain tensor with one dimension, found a {found}",
            "Leave out what goes nowhere: scatter(src[keep], index[keep]).",
        )
    values, mask = src._dense()
    dim = dim + values.dim() if dim < 0 else dim
    if not 0 <= dim < values.dim() or index.numel() != values.shape[dim]:
        raise ValueError(
            f"index must have an entry for each of the {tuple(values.shape)} along dimension {dim}, found "
            f"{index.numel()}"
        )
    if dim_size is None:
        dim_size = int(index.max()) + 1 if index.numel() else 0
    shape = (*values.shape[:dim], int(dim_size), *values.shape[dim + 1 :])
    places = torch.arange(torch.Size(shape).numel(), device=values.device).view(shape)
    places = places.index_select(dim, index)
    result = original(values[mask], places[mask], 0, torch.Size(shape).numel(), reduce).view(shape)
    specified = torch.zeros(shape, dtype=torch.bool, device=values.device)
    never = torch.bincount(index, minlength=shape[dim]) == 0
    specified.index_fill_(dim, torch.arange(shape[dim], device=index.device)[never], True)
    specified.view(-1)[places[mask]] = True
    return of_entries(result, specified)


def _refused(functions: str, reason: str, remedy: str) -> Iterator[Patch]:
    return refusals(
        functions, reason, remedy, "test_torch_geometric_refusals.py::test_refused", "torch_geometric."
    )


INTEGRATION = Integration(
    "torch_geometric",
    without="wrong in silence",
    patches=(
        exchanged(
            "torch_geometric.utils._scatter",
            "scatter",
            "src index dim dim_size reduce",
            _scatter,
            reason="divides by the number of all rows, and starts from zeros",
            without="pooling and aggregations of torch_geometric count unspecified entries; use mg.functional",
            test="test_torch_geometric.py::test_scatter",
        ),
        *_refused(
            "data.storage:BaseStorage.__setitem__",
            "a graph leaves what is no tensor as it is, in subgraphs and batches, too",
            "Store values and mask, Data(x=x.filled(0.), x_mask=x.mask), and put them together with mg.masked(data.x, "
            "data.x_mask) in the model.",
        ),
        *_refused(
            "nn.conv.message_passing:MessagePassing.__call__",
            "messages are collected from tensors only",
            "Use torch_geometric.utils.scatter(x[source], target, reduce=…), made for MaskedTensors, or x.filled(0.).",
        ),
        *_refused(
            "utils._coalesce:coalesce utils._sort_edge_index:sort_edge_index utils.undirected:to_undirected "
            "utils.undirected:is_undirected",
            "it would leave out the attributes of edges, or take them for something else",
            "Give values and mask in a list, [x.filled(0.), x.mask], and put them together with mg.masked.",
        ),
        *_refused(
            "utils._scatter:scatter_argmax",
            "it does not ask which rows are specified",
            "Use torch_geometric.utils.scatter(x, index, reduce='max') and compare, or x.filled(float('-inf')).",
        ),
        *_refused(
            "utils.num_nodes:maybe_num_nodes utils._degree:degree utils._one_hot:one_hot",
            "nodes are counted or looked up, and an index that is unspecified is no node",
            "Keep the indices that are specified: index.compressed(), or edge_index[:, keep] of the plain edge_index.",
        ),
        *_refused(
            "utils._to_dense_batch:to_dense_batch",
            "padding for absent nodes and unspecified entries would look the same",
            "Give values and mask one by one, and put them together: mg.masked(to_dense_batch(x.filled(0.), batch)[0], "
            "to_dense_batch(x.mask, batch)[0]).",
        ),
        *_refused(
            "utils._segment:segment",
            "it divides by the length of each segment",
            "Give an index in the place of ptr, index = torch.repeat_interleave(ptr.diff()), and use "
            "torch_geometric.utils.scatter(x, index, reduce=…).",
        ),
        *_refused(
            "nn.norm.layer_norm:LayerNorm.__call__ nn.norm.instance_norm:InstanceNorm.__call__ "
            "nn.norm.graph_size_norm:GraphSizeNorm.__call__",
            "it divides by the number of all nodes or entries of a graph",
            "Use torch_geometric.nn.GraphNorm, which divides by what is specified, or torch.nn.LayerNorm.",
        ),
        *_refused(
            "nn.aggr.variance_preserving:VariancePreservingAggregation.__call__ "
            "nn.aggr.scaler:DegreeScalerAggregation.__call__ nn.aggr.fused:FusedAggregation.__call__ "
            "nn.aggr.equilibrium:EquilibriumAggregation.__call__ nn.aggr.quantile:QuantileAggregation.__call__",
            "it scales, or finds the middle, by the number of all rows",
            "Use the aggregations mean, max, min, sum, mul, var and std, or mg.functional.median for each graph.",
        ),
        *_refused(
            "nn.pool.select.topk:topk nn.pool.edge_pool:EdgePooling.__call__ "
            "nn.pool.cluster_pool:ClusterPooling.__call__",
            "it chooses among all nodes, and counts those that are unspecified",
            "Pool the nodes that are there: x.filled(0.)[keep] and torch_geometric.utils.subgraph(keep, edge_index, "
            "relabel_nodes=True)[0], with keep = x.mask.any(-1).",
        ),
        *_refused(
            "nn.dense.dense_sage_conv:DenseSAGEConv.__call__ nn.dense.dense_gcn_conv:DenseGCNConv.__call__ "
            "nn.dense.dense_graph_conv:DenseGraphConv.__call__",
            "it divides by the number of all neighbours",
            "Divide by those that are there: adj @ x / (adj @ x.mask.to(adj.dtype)), or give x.filled(0.).",
        ),
    ),
)
