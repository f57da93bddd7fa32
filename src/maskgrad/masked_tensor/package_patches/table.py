"""Other people's packages that would be wrong without a word on a MaskedTensor, in one table.

Most packages call PyTorch, which asks us. What stands here are functions that look at types, or take pytrees apart, and
then do something else. Each is touched after its package has been imported, by whomever; none is imported for it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from maskgrad.masked_tensor.package_patches import adapters
from maskgrad.masked_tensor.package_patches.refusals import REFUSALS
from maskgrad.masked_tensor.torch_patches.patch import Patch, after_import, apply, exchange

__all__ = ["PACKAGE_PATCHES", "apply_all"]

_TESTS = "tests/ecosystem"
#: Models of transformers that have a copy of the loss that balances experts.
_MIXTURES = """
    dbrx deepseek_v4 ernie4_5_moe ernie4_5_vl_moe flex_olmo flint glm4v_moe glm5_next gpt_oss granitemoe granitemoe_swa
    granitemoehybrid granitemoeshared jamba jetmoe laguna lara_mini mellum minimax minimax_m2 minimax_m3_vl mixtral
    olmoe phimoe qwen2_moe qwen3_5_moe qwen3_moe qwen3_next qwen3_omni_moe qwen3_vl_moe qwen4_exp
"""


def _exchanged(
    module: str,
    name: str,
    parameters: str,
    function: Callable[..., Any],
    reason: str,
    without: str,
    test: str,
) -> Patch:
    """``module.name``, which takes ``parameters``, is ``function(original, …)`` once the module is imported."""
    path = f"{module}.{name}"
    install = functools.partial(exchange, path, function)
    return Patch(path, reason, without, f"{_TESTS}/{test}", {path: parameters}, install, after=module)


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
        install=adapters.register_einops,
        after="einops._backends",
    ),
    _exchanged(
        "torch_geometric.utils._scatter",
        "scatter",
        "src index dim dim_size reduce",
        adapters.scatter,
        reason="divides by the number of all rows, and starts from zeros",
        without="pooling and aggregations of torch_geometric count unspecified entries; use mg.functional",
        test="test_torch_geometric.py::test_scatter",
    ),
    _exchanged(
        "transformers.integrations.moe",
        "ExpertsInterface.get_interface",
        "self",
        adapters.route_to_experts,
        reason="looks tokens up by indices computed from them, which are unspecified where the tokens are",
        without="mixtures of experts refuse MaskedTensors; give inputs_embeds=x.filled(0.) and attention_mask",
        test="test_transformers.py::test_architectures",
    ),
    *(
        _exchanged(
            f"transformers.models.{name}.modeling_{name}",
            "load_balancing_loss_func",
            "gate_logits num_experts top_k attention_mask",
            adapters.balance_experts,
            reason="divides by the number of all tokens",
            without="the auxiliary loss of experts counts unspecified tokens; give inputs_embeds=x.filled(0.) and "
            "attention_mask",
            test="test_transformers.py::test_balance_of_experts",
        )
        for name in _MIXTURES.split()
    ),
    _exchanged(
        "torchmetrics.metric",
        "Metric._wrap_update",
        "self update",
        adapters.guard_torchmetrics,
        reason="metrics divide by the number of all entries",
        without="metrics of torchmetrics count unspecified entries; use mg.metrics.wrap(metric)",
        test="test_torchmetrics.py::test_metrics_that_are_not_wrapped_refuse",
    ),
    Patch(
        target="ignite.metrics.metric.Metric.__init_subclass__",
        reason="metrics divide by the number of all entries, and weigh batches by it",
        without="metrics of ignite count unspecified entries; use mg.metrics.wrap(metric)",
        test=f"{_TESTS}/test_ignite.py::test_metrics_that_are_not_wrapped_refuse",
        needs={"ignite.metrics.metric.Metric.update": "self output"},
        install=adapters.guard_ignite,
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
        install=adapters.transform_images,
        after="torchvision.transforms.v2",
    ),
)


def apply_all() -> None:
    """Apply each when its module has been imported; warn of one that is not as expected."""
    for patch in PACKAGE_PATCHES:
        package = patch.after.partition(".")[0]
        after_import(patch.after, functools.partial(apply, [patch], package))
