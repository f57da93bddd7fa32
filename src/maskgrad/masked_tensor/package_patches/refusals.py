"""Functions of other people's packages that refuse MaskedTensors: which, why, and what to write instead."""

from __future__ import annotations

from collections.abc import Iterator

from maskgrad.masked_tensor.torch_patches.patch import Patch, refuse

__all__ = ["REFUSALS"]


def _refusals(
    functions: str, reason: str, remedy: str, test: str, within: str = "", only_with: str = ""
) -> Iterator[Patch]:
    """A record for each ``module:name`` of ``functions``, relative to ``within``; exchanged when that is imported."""
    for found in functions.split():
        module, _, name = f"{within}{found}".partition(":")
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


def _of_graphs(functions: str, reason: str, remedy: str, test: str) -> Iterator[Patch]:
    return _refusals(
        functions, reason, remedy, f"test_torch_geometric_refusals.py::{test}", "torch_geometric."
    )


_TABLE = "a table has columns of its own for what is missing, and would keep an object or lose the mask"
_TO_PANDAS = "Write mg.interop.to_pandas(x), or x.tolist() for a column and x.item() for a number."
_COLUMN = "a column has its own way to say what is missing"
_TO_POLARS = "Write mg.interop.to_polars(x), or pl.Series(x), whose nulls are what is unspecified."
_IN_A_LIST = "Give values and mask in a list, [x.filled(0.), x.mask], and put them together with mg.masked."
_STATE = "a state is kept of the last position, which is padding in sequences that end before"

#: One for each function; ``table.py`` applies them.
REFUSALS: tuple[Patch, ...] = (
    *_of_graphs(
        "data.storage:BaseStorage.__setitem__",
        "a graph leaves what is no tensor as it is, in subgraphs and batches, too",
        "Store values and mask, Data(x=x.filled(0.), x_mask=x.mask), and put them together with mg.masked(data.x, "
        "data.x_mask) in the model.",
        "test_graphs_refuse",
    ),
    *_of_graphs(
        "nn.conv.message_passing:MessagePassing.__call__",
        "messages are collected from tensors only",
        "Use torch_geometric.utils.scatter(x[source], target, reduce=…), which knows MaskedTensors, or x.filled(0.).",
        "test_message_passing_refuses",
    ),
    *_of_graphs(
        "utils._coalesce:coalesce utils._sort_edge_index:sort_edge_index utils.undirected:to_undirected",
        "it would take the attributes of edges for something else, and give back the edges alone",
        _IN_A_LIST,
        "test_edges_refuse",
    ),
    *_of_graphs(
        "utils.undirected:is_undirected",
        "it compares attributes that are tensors, and others not at all",
        _IN_A_LIST,
        "test_edges_refuse",
    ),
    *_of_graphs(
        "utils._scatter:scatter_argmax",
        "it does not ask which rows are specified",
        "Use torch_geometric.utils.scatter(x, index, reduce='max') and compare, or x.filled(float('-inf')).",
        "test_edges_refuse",
    ),
    *_of_graphs(
        "utils.num_nodes:maybe_num_nodes utils._degree:degree utils._one_hot:one_hot",
        "nodes are counted or looked up, and an index that is unspecified is no node",
        "Keep the indices that are specified: index.compressed(), or edge_index[:, keep] of the plain edge_index.",
        "test_counting_refuses",
    ),
    *_of_graphs(
        "utils._to_dense_batch:to_dense_batch",
        "padding for absent nodes and unspecified entries would look the same",
        "Give values and mask one by one, and put them together: mg.masked(to_dense_batch(x.filled(0.), batch)[0], "
        "to_dense_batch(x.mask, batch)[0]).",
        "test_dense_batches_refuse",
    ),
    *_of_graphs(
        "utils._segment:segment",
        "it divides by the length of each segment",
        "Give an index in the place of ptr, index = torch.repeat_interleave(ptr.diff()), and use "
        "torch_geometric.utils.scatter(x, index, reduce=…).",
        "test_segments_refuse",
    ),
    *_of_graphs(
        "nn.norm.layer_norm:LayerNorm.__call__",
        "it divides by the number of all entries of a graph",
        "Use torch.nn.LayerNorm for each node, torch_geometric.nn.GraphNorm, or x.filled(0.).",
        "test_norms_refuse",
    ),
    *_of_graphs(
        "nn.norm.instance_norm:InstanceNorm.__call__ nn.norm.graph_size_norm:GraphSizeNorm.__call__",
        "it divides by the number of all nodes of a graph",
        "Use torch_geometric.nn.GraphNorm, which divides by what is specified, or x.filled(0.).",
        "test_norms_refuse",
    ),
    *_of_graphs(
        "nn.aggr.variance_preserving:VariancePreservingAggregation.__call__ "
        "nn.aggr.scaler:DegreeScalerAggregation.__call__ nn.aggr.fused:FusedAggregation.__call__ "
        "nn.aggr.equilibrium:EquilibriumAggregation.__call__",
        "it scales by the number of all rows",
        "Use the aggregations mean, max, min, sum, mul, var and std, or x.filled(0.).",
        "test_aggregations_refuse",
    ),
    *_of_graphs(
        "nn.aggr.quantile:QuantileAggregation.__call__",
        "it finds the middle by the number of all rows",
        "Use the aggregations mean, max, min, sum, mul, var and std, or mg.functional.median for each graph.",
        "test_aggregations_refuse",
    ),
    *_of_graphs(
        "nn.pool.select.topk:topk nn.pool.edge_pool:EdgePooling.__call__ "
        "nn.pool.cluster_pool:ClusterPooling.__call__",
        "it chooses among all nodes, and counts those that are unspecified",
        "Pool the nodes that are there: x.filled(0.)[keep] and torch_geometric.utils.subgraph(keep, edge_index, "
        "relabel_nodes=True)[0], with keep = x.mask.any(-1).",
        "test_choosing_nodes_refuses",
    ),
    *_of_graphs(
        "nn.dense.dense_sage_conv:DenseSAGEConv.__call__ nn.dense.dense_gcn_conv:DenseGCNConv.__call__ "
        "nn.dense.dense_graph_conv:DenseGraphConv.__call__",
        "it divides by the number of all neighbours",
        "Divide by those that are there: adj @ x / (adj @ x.mask.to(adj.dtype)), or give x.filled(0.).",
        "test_dense_layers_refuse",
    ),
    *_refusals(
        "indexing:_LocationIndexer.__setitem__ indexing:_ScalarAccessIndexer.__setitem__ algorithms:isin "
        "groupby.grouper:get_grouper",
        _TABLE,
        _TO_PANDAS,
        "test_pandas.py::test_masked_tensors_refuse",
        "pandas.core.",
    ),
    *_refusals(
        "frame:DataFrame._align_for_op generic:NDFrame._inplace_method",
        _TABLE,
        _TO_PANDAS,
        "test_pandas.py::test_arithmetic_refuses",
        "pandas.core.",
    ),
    *_refusals(
        "series.series:Series._arithmetic series.series:Series._comp dataframe.frame:DataFrame._comp "
        "dataframe.frame:_prepare_other_arg",
        _COLUMN,
        _TO_POLARS,
        "test_polars.py::test_arithmetic_refuses",
        "polars.",
    ),
    *_refusals(
        ".base:TensorDictBase._convert_to_tensor ._td:TensorDict.where :NonTensorData.__init__",
        "it would be kept as an object of Python, which indexing, stacking and moving leave as it is",
        "Store its parts, TensorDict(mg.interop.to_tensors({'x': x}), batch_size=…), and read "
        "mg.interop.from_tensors(td).",
        "test_tensordict.py::test_masked_tensors_refuse",
        "tensordict",
    ),
    *_refusals(
        "safetensors.torch:save_file safetensors.torch:save",
        "a file holds plain tensors",
        "Save mg.interop.to_tensors(tensors), and read mg.interop.from_tensors(load_file(path)).",
        "test_safetensors.py::test_masked_tensors_refuse",
    ),
    *_refusals(
        "_backward:backward _jac:jac",
        "each entry is an objective, and unspecified ones would count as objectives with a gradient of zero",
        "Give the specified ones, losses.compressed().",
        "test_torchjd.py::test_masked_objectives_refuse",
        "torchjd.autojac.",
    ),
    *_refusals(
        "grad_sample_module:GradSampleModule.capture_activations_hook grad_sample_module_fast_gradient_clipping:"
        "GradSampleModuleFastGradientClipping.capture_activations_hook",
        "the rules of Opacus compute with inputs as plain tensors",
        "Use mg.per_sample_grad, or give the layers x.filled(0.) and mask the losses.",
        "test_opacus.py::test_masked_inputs_refuse",
        "opacus.grad_sample.",
    ),
    *_refusals(
        "torch.utils.tensorboard._convert_np:make_np",
        "a summary has no place for what is unspecified",
        "Write a number, x.mean(), the specified entries, x.compressed(), or x.filled(value).",
        "test_tensorboard.py::test_masked_tensors_refuse",
    ),
    *_refusals(
        "transformers.generation.utils:GenerationMixin.generate",
        "the tokens that it appends are the same for all sequences, wherever these end",
        "Pad on the left, and call generate(inputs_embeds=x.filled(0.), attention_mask=x.mask.any(-1).long()); one "
        "sequence at a time for models that read no attention mask, as RWKV.",
        "test_transformers.py::test_generating",
    ),
    *_refusals(
        "transformers.cache_utils:Cache.update_conv_state transformers.cache_utils:Cache.update_recurrent_state",
        _STATE,
        "Call the model with use_cache=False.",
        "test_transformers.py::test_states",
    ),
    *_refusals(
        "transformers.models.rwkv.modeling_rwkv:RwkvSelfAttention.extract_key_value",
        _STATE,
        "Call the model with use_cache=False.",
        "test_transformers.py::test_states",
        only_with="state",
    ),
)
