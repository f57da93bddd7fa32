"""Other people's packages that would be wrong without a word on a MaskedTensor, in one table.

Most packages call PyTorch, which asks us. What stands here are functions that look at types, or take pytrees apart, and
then do something else. Each is touched after its package has been imported, by whomever; none is imported for it.
"""

from __future__ import annotations

import warnings

from maskgrad.errors import TorchPatchWarning
from maskgrad.masked_tensor.package_patches import (
    einops_backend,
    expert_rows,
    graph_scatter,
    image_transforms,
)
from maskgrad.masked_tensor.package_patches.refusing import refuse
from maskgrad.masked_tensor.torch_patches.after_import import after_import
from maskgrad.masked_tensor.torch_patches.patch import Patch

__all__ = ["PACKAGE_PATCHES", "apply_all"]

_TESTS = "tests/ecosystem"


def _refusal(path: str, reason: str, remedy: str, test: str) -> Patch:
    *owners, _ = path.split(".")
    return Patch(
        target=path,
        reason=reason,
        without=f"{path} may be wrong on a MaskedTensor: {reason}. {remedy}",
        test=f"{_TESTS}/{test}",
        needs={path: None},
        install=refuse(path, reason, remedy),
        after=".".join(name for name in owners if not name[0].isupper()),
    )


_EDGES = "it would take the attributes of edges for something else, and give back the edges alone"
_ONE_BY_ONE = "Give values and mask in a list, [x.filled(0.), x.mask], and put them together with mg.masked."

PACKAGE_PATCHES: tuple[Patch, ...] = (
    Patch(
        target="einops._backends.AbstractBackend",
        how="registered",
        reason="einops knows no MaskedTensor",
        without="einops refuses MaskedTensors; use x.reshape, x.permute and reductions along dimensions",
        test=f"{_TESTS}/test_einops.py::test_rearranging",
        needs={
            "einops._backends.AbstractBackend": None,
            "einops._backends.TorchBackend.is_appropriate_type": "self tensor",
        },
        install=einops_backend.install,
        after="einops._backends",
    ),
    Patch(
        target="torch_geometric.utils._scatter.scatter",
        reason="divides by the number of all rows, and starts from zeros",
        without="pooling and aggregations of torch_geometric count unspecified entries; use mg.functional",
        test=f"{_TESTS}/test_torch_geometric.py::test_scatter",
        needs={"torch_geometric.utils._scatter.scatter": "src index dim dim_size reduce"},
        install=graph_scatter.install,
        after="torch_geometric.utils._scatter",
    ),
    _refusal(
        "torch_geometric.data.storage.BaseStorage.__setitem__",
        "a graph leaves what is no tensor as it is, in subgraphs and batches, too",
        "Store values and mask, Data(x=x.filled(0.), x_mask=x.mask), and put them together with mg.masked(data.x, "
        "data.x_mask) in the model.",
        "test_torch_geometric.py::test_graphs_refuse",
    ),
    _refusal(
        "torch_geometric.nn.conv.message_passing.MessagePassing.__call__",
        "messages are collected from tensors only",
        "Use torch_geometric.utils.scatter(x[source], target, reduce=…), which knows MaskedTensors, or x.filled(0.).",
        "test_torch_geometric.py::test_message_passing_refuses",
    ),
    _refusal(
        "torch_geometric.utils._coalesce.coalesce",
        _EDGES,
        _ONE_BY_ONE,
        "test_torch_geometric.py::test_edges_refuse",
    ),
    _refusal(
        "torch_geometric.utils._sort_edge_index.sort_edge_index",
        _EDGES,
        _ONE_BY_ONE,
        "test_torch_geometric.py::test_edges_refuse",
    ),
    _refusal(
        "torch_geometric.utils.undirected.to_undirected",
        _EDGES,
        _ONE_BY_ONE,
        "test_torch_geometric.py::test_edges_refuse",
    ),
    _refusal(
        "torch_geometric.nn.norm.layer_norm.LayerNorm.__call__",
        "it divides by the number of all entries of a graph",
        "Use torch.nn.LayerNorm for each node, torch_geometric.nn.GraphNorm, or x.filled(0.).",
        "test_torch_geometric.py::test_norms_refuse",
    ),
    _refusal(
        "torch_geometric.nn.norm.instance_norm.InstanceNorm.__call__",
        "it divides by the number of all nodes of a graph",
        "Use torch_geometric.nn.GraphNorm, which divides by what is specified, or x.filled(0.).",
        "test_torch_geometric.py::test_norms_refuse",
    ),
    *(
        _refusal(
            f"torch_geometric.nn.aggr.{module}.{name}.__call__",
            "it scales by the number of all rows",
            "Use the aggregations mean, max, min, sum, mul, var and std, or x.filled(0.).",
            "test_torch_geometric.py::test_aggregations_refuse",
        )
        for module, name in (
            ("variance_preserving", "VariancePreservingAggregation"),
            ("scaler", "DegreeScalerAggregation"),
            ("fused", "FusedAggregation"),
        )
    ),
    _refusal(
        "torch_geometric.utils._scatter.scatter_argmax",
        "it does not ask which rows are specified",
        "Use torch_geometric.utils.scatter(x, index, reduce='max') and compare, or x.filled(float('-inf')).",
        "test_torch_geometric.py::test_edges_refuse",
    ),
    _refusal(
        "torch_geometric.utils.undirected.is_undirected",
        "it compares attributes that are tensors, and others not at all",
        _ONE_BY_ONE,
        "test_torch_geometric.py::test_edges_refuse",
    ),
    _refusal(
        "torch_geometric.nn.aggr.quantile.QuantileAggregation.__call__",
        "it finds the middle by the number of all rows",
        "Use the aggregations mean, max, min, sum, mul, var and std, or mg.functional.median for each graph.",
        "test_torch_geometric.py::test_aggregations_refuse",
    ),
    _refusal(
        "tensordict.base.TensorDictBase._convert_to_tensor",
        "it would be kept as an object of Python, which indexing, stacking and moving leave as it is",
        "Store its parts, TensorDict(mg.interop.to_tensors({'x': x}), batch_size=…), and read "
        "mg.interop.from_tensors(td).",
        "test_tensordict.py::test_masked_tensors_refuse",
    ),
    _refusal(
        "safetensors.torch.save_file",
        "a file holds plain tensors",
        "Save mg.interop.to_tensors(tensors), and read mg.interop.from_tensors(load_file(path)).",
        "test_safetensors.py::test_masked_tensors_refuse",
    ),
    _refusal(
        "safetensors.torch.save",
        "a file holds plain tensors",
        "Save mg.interop.to_tensors(tensors), and read mg.interop.from_tensors(load(data)).",
        "test_safetensors.py::test_masked_tensors_refuse",
    ),
    *(
        _refusal(
            f"torchjd.autojac.{module}.{module[1:]}",
            "each entry is an objective, and unspecified ones would count as objectives with a gradient of zero",
            "Give the specified ones, losses.compressed().",
            "test_torchjd.py::test_masked_objectives_refuse",
        )
        for module in ("_backward", "_jac")
    ),
    *(
        _refusal(
            f"opacus.grad_sample.{module}.{name}.capture_activations_hook",
            "the rules of Opacus compute with inputs as plain tensors",
            "Use mg.per_sample_grad, or give the layers x.filled(0.) and mask the losses.",
            "test_opacus.py::test_masked_inputs_refuse",
        )
        for module, name in (
            ("grad_sample_module", "GradSampleModule"),
            ("grad_sample_module_fast_gradient_clipping", "GradSampleModuleFastGradientClipping"),
        )
    ),
    _refusal(
        "torch.utils.tensorboard._convert_np.make_np",
        "a summary has no place for what is unspecified",
        "Write a number, x.mean(), the specified entries, x.compressed(), or x.filled(value).",
        "test_tensorboard.py::test_masked_tensors_refuse",
    ),
    Patch(
        target="transformers.integrations.moe.ExpertsInterface.get_interface",
        reason="looks tokens up by indices computed from them, which are unspecified where the tokens are",
        without="mixtures of experts refuse MaskedTensors; give inputs_embeds=x.filled(0.) and attention_mask",
        test=f"{_TESTS}/test_transformers.py::test_architectures",
        needs={"transformers.integrations.moe.ExpertsInterface.get_interface": "self"},
        install=expert_rows.install,
        after="transformers.integrations.moe",
    ),
    _refusal(
        "transformers.generation.utils.GenerationMixin.generate",
        "the tokens that it appends are the same for all sequences, wherever these end",
        "Pad on the left, and call generate(inputs_embeds=x.filled(0.), attention_mask=x.mask.any(-1).long()).",
        "test_transformers.py::test_generating",
    ),
    Patch(
        target="torchvision.transforms.v2.Transform",
        reason="transforms the values of a MaskedTensor and not its mask",
        without="transforms of torchvision move the values of a MaskedTensor and not its mask; transform "
        "tv_tensors.Image(x.filled(0.)) and tv_tensors.Mask(x.mask) together",
        test=f"{_TESTS}/test_torchvision.py::test_flips_and_crops",
        needs={
            "torchvision.transforms.v2.functional._utils._KERNEL_REGISTRY": None,
            "torchvision.transforms.v2.functional._utils.is_pure_tensor": "inpt",
            "torchvision.transforms.v2._transform.Transform.make_params": "self flat_inputs",
            "torchvision.transforms.v2._transform.Transform.check_inputs": "self flat_inputs",
            "torchvision.transforms.v2._transform.Transform.transform": "self inpt params",
            "torchvision.transforms.v2._transform.Transform._needs_transform_list": "self flat_inputs",
            "torchvision.transforms.v2._transform._RandomApplyTransform.forward": "self inputs",
        },
        install=image_transforms.install,
        after="torchvision.transforms.v2",
    ),
)


def apply_all() -> None:
    """Apply each when its module has been imported; warn of one that is not as expected."""
    for patch in PACKAGE_PATCHES:
        after_import(patch.after, lambda patch=patch: _apply(patch))  # type: ignore[misc]


def _apply(patch: Patch) -> None:
    patch.apply()
    if patch.is_off:
        warnings.warn(
            f"{patch.after.partition('.')[0]} is not as this maskgrad expects it: {patch.state}: {patch.without}",
            TorchPatchWarning,
            stacklevel=2,
        )
