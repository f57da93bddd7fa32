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
    metric_updates,
)
from maskgrad.masked_tensor.package_patches.refusals import REFUSALS
from maskgrad.masked_tensor.torch_patches.after_import import after_import
from maskgrad.masked_tensor.torch_patches.patch import Patch

__all__ = ["PACKAGE_PATCHES", "apply_all"]

_TESTS = "tests/ecosystem"

PACKAGE_PATCHES: tuple[Patch, ...] = (
    *REFUSALS,
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
    Patch(
        target="transformers.integrations.moe.ExpertsInterface.get_interface",
        reason="looks tokens up by indices computed from them, which are unspecified where the tokens are",
        without="mixtures of experts refuse MaskedTensors; give inputs_embeds=x.filled(0.) and attention_mask",
        test=f"{_TESTS}/test_transformers.py::test_architectures",
        needs={"transformers.integrations.moe.ExpertsInterface.get_interface": "self"},
        install=expert_rows.install,
        after="transformers.integrations.moe",
    ),
    *(
        Patch(
            target=f"{module}.load_balancing_loss_func",
            reason="divides by the number of all tokens",
            without="the auxiliary loss of experts counts unspecified tokens; give inputs_embeds=x.filled(0.) and "
            "attention_mask",
            test=f"{_TESTS}/test_transformers.py::test_balance_of_experts",
            needs={f"{module}.load_balancing_loss_func": "gate_logits num_experts top_k attention_mask"},
            install=expert_rows.balance(f"{module}.load_balancing_loss_func"),
            after=module,
        )
        for module in (f"transformers.models.{name}.modeling_{name}" for name in expert_rows.MIXTURES)
    ),
    Patch(
        target="torchmetrics.metric.Metric._wrap_update",
        reason="metrics divide by the number of all entries",
        without="metrics of torchmetrics count unspecified entries; use mg.metrics.wrap(metric)",
        test=f"{_TESTS}/test_torchmetrics.py::test_metrics_that_are_not_wrapped_refuse",
        needs={"torchmetrics.metric.Metric._wrap_update": "self update"},
        install=metric_updates.guard_torchmetrics,
        after="torchmetrics.metric",
    ),
    Patch(
        target="ignite.metrics.metric.Metric.__init_subclass__",
        reason="metrics divide by the number of all entries, and weigh batches by it",
        without="metrics of ignite count unspecified entries; use mg.metrics.wrap(metric)",
        test=f"{_TESTS}/test_ignite.py::test_metrics_that_are_not_wrapped_refuse",
        needs={"ignite.metrics.metric.Metric.update": "self output"},
        install=metric_updates.guard_ignite,
        after="ignite.metrics.metric",
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
