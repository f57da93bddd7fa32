"""Functions of other people's packages that refuse MaskedTensors: which, why, and what to write instead."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from maskgrad.masked_tensor.package_patches.refusing import refuse
from maskgrad.masked_tensor.torch_patches.patch import Patch

__all__ = ["REFUSALS"]


def _refusals(
    module: str, names: str, reason: str, remedy: str, test: str, only_with: str = ""
) -> Iterator[Patch]:
    """A record for each of ``names`` in ``module``, after whose import they are exchanged."""
    for name in names.split():
        path = f"{module}.{name}"
        yield Patch(
            target=path,
            reason=reason,
            without=f"{path} may be wrong on a MaskedTensor: {reason}. {remedy}",
            test=f"tests/ecosystem/{test}",
            needs={path: None},
            install=refuse(path, reason, remedy, only_with),
            after=module,
        )


def _of_graphs(modules: str, reason: str, remedy: str, test: str) -> Iterator[Patch]:
    """Of ``module:name`` in torch_geometric."""
    for found in modules.split():
        module, _, name = found.partition(":")
        yield from _refusals(
            f"torch_geometric.{module}", name, reason, remedy, f"test_torch_geometric.py::{test}"
        )


_PANDAS = "a table has columns of its own for what is missing, and would keep an object or lose the mask"
_TO_PANDAS = "Write mg.interop.to_pandas(x), or x.tolist() for a column and x.item() for a number."
_TO_POLARS = "Write mg.interop.to_polars(x), or pl.Series(x), whose nulls are what is unspecified."

_GRAPHS: Iterator[Patch] = chain(
    _of_graphs(
        "data.storage:BaseStorage.__setitem__",
        "a graph leaves what is no tensor as it is, in subgraphs and batches, too",
        "Store values and mask, Data(x=x.filled(0.), x_mask=x.mask), and put them together with mg.masked(data.x, "
        "data.x_mask) in the model.",
        "test_graphs_refuse",
    ),
    _of_graphs(
        "nn.conv.message_passing:MessagePassing.__call__",
        "messages are collected from tensors only",
        "Use torch_geometric.utils.scatter(x[source], target, reduce=…), which knows MaskedTensors, or x.filled(0.).",
        "test_message_passing_refuses",
    ),
    _of_graphs(
        "utils._coalesce:coalesce utils._sort_edge_index:sort_edge_index utils.undirected:to_undirected",
        "it would take the attributes of edges for something else, and give back the edges alone",
        "Give values and mask in a list, [x.filled(0.), x.mask], and put them together with mg.masked.",
        "test_edges_refuse",
    ),
    _of_graphs(
        "utils.undirected:is_undirected",
        "it compares attributes that are tensors, and others not at all",
        "Give values and mask in a list, [x.filled(0.), x.mask], and put them together with mg.masked.",
        "test_edges_refuse",
    ),
    _of_graphs(
        "utils._scatter:scatter_argmax",
        "it does not ask which rows are specified",
        "Use torch_geometric.utils.scatter(x, index, reduce='max') and compare, or x.filled(float('-inf')).",
        "test_edges_refuse",
    ),
    _of_graphs(
        "utils.num_nodes:maybe_num_nodes utils._degree:degree utils._one_hot:one_hot",
        "nodes are counted or looked up, and an index that is unspecified is no node",
        "Keep the indices that are specified: index.compressed(), or edge_index[:, keep] of the plain edge_index.",
        "test_counting_refuses",
    ),
    _of_graphs(
        "utils._to_dense_batch:to_dense_batch",
        "the places that it makes for absent nodes would not be told from unspecified ones",
        "Give values and mask one by one, and put them together: mg.masked(to_dense_batch(x.filled(0.), batch)[0], "
        "to_dense_batch(x.mask, batch)[0]).",
        "test_dense_batches_refuse",
    ),
    _of_graphs(
        "utils._segment:segment",
        "it divides by the length of each segment",
        "Give an index in the place of ptr, index = torch.repeat_interleave(ptr.diff()), and use "
        "torch_geometric.utils.scatter(x, index, reduce=…).",
        "test_segments_refuse",
    ),
    _of_graphs(
        "nn.norm.layer_norm:LayerNorm.__call__",
        "it divides by the number of all entries of a graph",
        "Use torch.nn.LayerNorm for each node, torch_geometric.nn.GraphNorm, or x.filled(0.).",
        "test_norms_refuse",
    ),
    _of_graphs(
        "nn.norm.instance_norm:InstanceNorm.__call__ nn.norm.graph_size_norm:GraphSizeNorm.__call__",
        "it divides by the number of all nodes of a graph",
        "Use torch_geometric.nn.GraphNorm, which divides by what is specified, or x.filled(0.).",
        "test_norms_refuse",
    ),
    _of_graphs(
        "nn.aggr.variance_preserving:VariancePreservingAggregation.__call__ "
        "nn.aggr.scaler:DegreeScalerAggregation.__call__ nn.aggr.fused:FusedAggregation.__call__ "
        "nn.aggr.equilibrium:EquilibriumAggregation.__call__",
        "it scales by the number of all rows",
        "Use the aggregations mean, max, min, sum, mul, var and std, or x.filled(0.).",
        "test_aggregations_refuse",
    ),
    _of_graphs(
        "nn.aggr.quantile:QuantileAggregation.__call__",
        "it finds the middle by the number of all rows",
        "Use the aggregations mean, max, min, sum, mul, var and std, or mg.functional.median for each graph.",
        "test_aggregations_refuse",
    ),
    _of_graphs(
        "nn.pool.select.topk:topk nn.pool.edge_pool:EdgePooling.__call__ "
        "nn.pool.cluster_pool:ClusterPooling.__call__",
        "it chooses among all nodes, and counts those that are unspecified",
        "Pool the nodes that are there: x.filled(0.)[keep] and torch_geometric.utils.subgraph(keep, edge_index, "
        "relabel_nodes=True)[0], with keep = x.mask.any(-1).",
        "test_choosing_nodes_refuses",
    ),
    _of_graphs(
        "nn.dense.dense_sage_conv:DenseSAGEConv.__call__ nn.dense.dense_gcn_conv:DenseGCNConv.__call__ "
        "nn.dense.dense_graph_conv:DenseGraphConv.__call__",
        "it divides by the number of all neighbours",
        "Divide by those that are there: adj @ x / (adj @ x.mask.to(adj.dtype)), or give x.filled(0.).",
        "test_dense_layers_refuse",
    ),
)

#: One for each function; ``table.py`` applies them.
REFUSALS: tuple[Patch, ...] = (
    *_GRAPHS,
    *_refusals(
        "pandas.core.indexing",
        "_LocationIndexer.__setitem__ _ScalarAccessIndexer.__setitem__",
        _PANDAS,
        _TO_PANDAS,
        "test_pandas.py::test_masked_tensors_refuse",
    ),
    *_refusals(
        "pandas.core.algorithms", "isin", _PANDAS, _TO_PANDAS, "test_pandas.py::test_masked_tensors_refuse"
    ),
    *_refusals(
        "pandas.core.frame",
        "DataFrame._align_for_op",
        _PANDAS,
        _TO_PANDAS,
        "test_pandas.py::test_arithmetic_refuses",
    ),
    *_refusals(
        "pandas.core.generic",
        "NDFrame._inplace_method",
        _PANDAS,
        _TO_PANDAS,
        "test_pandas.py::test_arithmetic_refuses",
    ),
    *_refusals(
        "pandas.core.groupby.grouper",
        "get_grouper",
        _PANDAS,
        _TO_PANDAS,
        "test_pandas.py::test_masked_tensors_refuse",
    ),
    *_refusals(
        "polars.series.series",
        "Series._arithmetic Series._comp",
        "a column has its own way to say what is missing",
        _TO_POLARS,
        "test_polars.py::test_arithmetic_refuses",
    ),
    *_refusals(
        "polars.dataframe.frame",
        "DataFrame._comp _prepare_other_arg",
        "a column has its own way to say what is missing",
        _TO_POLARS,
        "test_polars.py::test_arithmetic_refuses",
    ),
    *(
        patch
        for module, name in (
            ("tensordict.base", "TensorDictBase._convert_to_tensor"),
            ("tensordict._td", "TensorDict.where"),
            ("tensordict", "NonTensorData.__init__"),
        )
        for patch in _refusals(
            module,
            name,
            "it would be kept as an object of Python, which indexing, stacking and moving leave as it is",
            "Store its parts, TensorDict(mg.interop.to_tensors({'x': x}), batch_size=…), and read "
            "mg.interop.from_tensors(td).",
            "test_tensordict.py::test_masked_tensors_refuse",
        )
    ),
    *_refusals(
        "safetensors.torch",
        "save_file save",
        "a file holds plain tensors",
        "Save mg.interop.to_tensors(tensors), and read mg.interop.from_tensors(load_file(path)).",
        "test_safetensors.py::test_masked_tensors_refuse",
    ),
    *(
        patch
        for module in ("_backward", "_jac")
        for patch in _refusals(
            f"torchjd.autojac.{module}",
            module[1:],
            "each entry is an objective, and unspecified ones would count as objectives with a gradient of zero",
            "Give the specified ones, losses.compressed().",
            "test_torchjd.py::test_masked_objectives_refuse",
        )
    ),
    *(
        patch
        for module, name in (
            ("grad_sample_module", "GradSampleModule"),
            ("grad_sample_module_fast_gradient_clipping", "GradSampleModuleFastGradientClipping"),
        )
        for patch in _refusals(
            f"opacus.grad_sample.{module}",
            f"{name}.capture_activations_hook",
            "the rules of Opacus compute with inputs as plain tensors",
            "Use mg.per_sample_grad, or give the layers x.filled(0.) and mask the losses.",
            "test_opacus.py::test_masked_inputs_refuse",
        )
    ),
    *_refusals(
        "torch.utils.tensorboard._convert_np",
        "make_np",
        "a summary has no place for what is unspecified",
        "Write a number, x.mean(), the specified entries, x.compressed(), or x.filled(value).",
        "test_tensorboard.py::test_masked_tensors_refuse",
    ),
    *_refusals(
        "transformers.generation.utils",
        "GenerationMixin.generate",
        "the tokens that it appends are the same for all sequences, wherever these end",
        "Pad on the left, and call generate(inputs_embeds=x.filled(0.), attention_mask=x.mask.any(-1).long()); one "
        "sequence at a time for models that read no attention mask, as RWKV.",
        "test_transformers.py::test_generating",
    ),
    *_refusals(
        "transformers.cache_utils",
        "Cache.update_conv_state Cache.update_recurrent_state",
        "a state is kept of the last position, which is padding in sequences that end before",
        "Call the model with use_cache=False.",
        "test_transformers.py::test_states",
    ),
    *_refusals(
        "transformers.models.rwkv.modeling_rwkv",
        "RwkvSelfAttention.extract_key_value",
        "a state is kept of the last position, which is padding in sequences that end before",
        "Call the model with use_cache=False.",
        "test_transformers.py::test_states",
        only_with="state",
    ),
)
