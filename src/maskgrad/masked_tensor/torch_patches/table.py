"""The table of everything that maskgrad replaces or extends inside PyTorch.

PyTorch calls ``__torch_function__`` nearly everywhere, and has registries for most of the rest (``torch.library``,
pytrees, safe globals, collation, hooks of optimizers, dataclasses). The table has the rest, where MaskedTensors
would silently get wrong results, or none. ``maskgrad info`` prints it with the state of each patch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from maskgrad.masked_tensor.torch_patches import (
    autograd_functions,
    data_parallel,
    distributions,
    dynamo,
    function_transforms,
    modules,
)
from maskgrad.masked_tensor.torch_patches.patch import Patch, after_import, apply, exchange, refuse

__all__ = ["PATCHES", "apply_all"]

_UNIT = "tests/unit/masked_tensor/torch_patches"
_DYNAMO = "torch._dynamo"


def _replaced(*functions: tuple[str, str, Callable[..., Any]], **facts: Any) -> Patch:
    """Replace functions or methods: each is a path, its parameters, and ``function(original, …)``."""

    def install() -> None:
        for path, _, function in functions:
            exchange(path, function, everywhere=False)

    needs = {path: parameters for path, parameters, _ in functions}
    return Patch(target=functions[0][0], needs=needs, install=install, **facts)


def _refused(*paths: str, reason: str, remedy: str, **facts: Any) -> Patch:
    """Let functions raise an error for MaskedTensors."""

    def install() -> None:
        for path in paths:
            refuse(path, reason, remedy)()

    return Patch(target=paths[0], needs=dict.fromkeys(paths), install=install, reason=reason, **facts)


PATCHES: list[Patch] = [
    _refused(
        "torch.testing.assert_close",
        reason="it compares tensors, or looks into dataclasses",
        remedy="Compare the masks first, x.mask, then the values, x.filled(0.).",
        without="torch.testing.assert_close refuses MaskedTensors; compare x.mask, then x.filled(0.)",
        test=f"{_UNIT}/test_table.py::test_assert_close_is_refused_with_what_to_compare",
    ),
    _replaced(
        (
            "torch.nn.parallel.distributed.DistributedDataParallel._assign_modules_buffers",
            "self",
            data_parallel.assign_buffers,
        ),
        reason="cannot send a buffer that is a MaskedTensor",
        without="DistributedDataParallel refuses buffers that are MaskedTensors; register values and mask",
        test="tests/unit/distributed/test_masked_data_parallel.py::test_masked_buffers_are_refused",
    ),
    Patch(
        target="torch.autograd.Function.apply",
        reason="takes a MaskedTensor for a constant: right values and no gradient",
        without="a MaskedTensor given to a torch.autograd.Function loses its gradient; derive the function from "
        "maskgrad.Function",
        test=f"{_UNIT}/test_autograd_functions.py::test_masked_tensors_are_refused",
        needs={"torch.autograd.Function.apply": None},
        install=autograd_functions.install,
    ),
    _replaced(
        ("torch.utils.hooks.BackwardHook.setup_input_hook", "self args", modules.set_up_inputs),
        ("torch.utils.hooks.BackwardHook.setup_output_hook", "self args", modules.set_up_outputs),
        reason="looks for tensors by type: full backward hooks of modules are never called",
        without="full backward hooks of modules do not see MaskedTensors; register hooks on x.filled(0.) instead",
        test=f"{_UNIT}/test_module_hooks.py::TestBackwardHooks::test_see_gradients_with_their_patterns",
    ),
    _replaced(
        ("torch.nn.ParameterList.__setitem__", "self idx param", modules.set_item),
        ("torch.nn.ParameterDict.__setitem__", "self key value", modules.set_item),
        reason="keeps a MaskedTensor as an attribute that is no parameter: it is neither trained nor saved",
        without="a MaskedTensor in a ParameterList or ParameterDict is no parameter; keep its values and its mask",
        test=f"{_UNIT}/test_parameter_containers.py",
    ),
    _replaced(
        (
            "torch.nn.Module._save_to_state_dict",
            "self destination prefix keep_vars",
            modules.save_to_state_dict,
        ),
        (
            "torch.nn.Module._load_from_state_dict",
            "self state_dict prefix local_metadata strict missing_keys unexpected_keys error_msgs",
            modules.load_from_state_dict,
        ),
        ("torch.nn.Module._apply", "self fn recurse", modules.convert),
        ("torch.nn.Parameter.__deepcopy__", "self memo", modules.copy_parameter),
        ("torch.nn.Parameter.__reduce_ex__", "self proto", modules.reduce_parameter),
        reason="saves, copies, converts and replaces parameters without the mask of mg.train_only, and without the "
        "steps that rows still wait for",
        without="call optimizer.flush() before a model is saved, loaded, copied or converted, and mg.train_only again "
        "after it and after load_state_dict(assign=True)",
        test=f"{_UNIT}/test_conversions.py",
    ),
    _replaced(
        (
            "torch._functorch.eager_transforms._jvp_with_argnums",
            "func primals tangents argnums",
            function_transforms.jvp_with_patterns,
        ),
        reason="gives a mask a tangent of zeros: in results of jvp and jacfwd nothing would be specified",
        without="tangents that torch.func.jvp and jacfwd return as MaskedTensors have nothing specified; return "
        "x.filled(0.) from the function",
        test=f"{_UNIT}/test_function_transforms.py::test_tangents_have_the_pattern_of_results",
    ),
    _replaced(
        (
            "torch._functorch.vmap._process_batched_inputs",
            "in_dims args func",
            function_transforms.process_batched_inputs,
        ),
        (
            "torch._functorch.vmap._unwrap_batched",
            "batched_outputs out_dims vmap_level batch_size func",
            function_transforms.unwrap_batched,
        ),
        reason="takes offsets and indices for samples, and gives a mask that is the same for all no such "
        "dimension where out_dims requests it",
        without="torch.vmap does not refuse jagged and sparse MaskedTensors, and masks that it returns may differ in "
        "shape from their values; pass x.to_dense(), and return values and mask as plain tensors",
        test=f"{_UNIT}/test_function_transforms.py",
    ),
    _replaced(
        ("torch.distributions.Distribution._validate_sample", "self value", distributions.validate_sample),
        reason="takes tensors only, by type",
        without="distributions refuse MaskedTensors as values; make them with validate_args=False",
        test=f"{_UNIT}/test_distributions.py::test_log_probabilities_are_specified_where_the_parameters_are",
    ),
    _refused(
        *[f"torch.distributions.{name}.__init__" for name in distributions.JOINT],
        reason="its parameters form one vector, and unspecified ones would be dropped from it",
        remedy="Use the fully specified rows, parameters[rows], or x.filled(value).",
        without="distributions of vectors drop unspecified parameters; pass the fully specified rows",
        test=f"{_UNIT}/test_distributions.py::test_parameters_that_belong_together_are_refused",
    ),
    Patch(
        target=_DYNAMO,
        reason="knows operators, arguments, guards and frames of tensors, not of Tensor-likes: it exchanges those of "
        "tensor @ masked, makes a new object of masked += tensor, and takes the graph of one method for another's",
        without="code with MaskedTensors inside of torch.compile runs uncompiled, and fullgraph=True refuses it",
        test="tests/conformance/test_operators.py",
        needs=dynamo.NEEDS,
        install=dynamo.install,
        after=_DYNAMO,
    ),
]


def apply_all(rows: list[Patch] | None = None) -> None:
    """Apply the table, or rows of it, each after the import of its module; warn once of what cannot be applied."""
    for module in dict.fromkeys(patch.after for patch in rows or PATCHES):
        patches = [patch for patch in rows or PATCHES if patch.after == module]
        after_import(module or "torch", functools.partial(_apply, patches))


def _apply(patches: list[Patch]) -> None:
    hint = ". `python -m maskgrad info` lists the patches; a newer maskgrad may support this PyTorch"
    version = f"PyTorch {torch.__version__}"
    apply(patches, version, hint)
    if any(patch.after == _DYNAMO and patch.is_off for patch in patches):
        dynamo.do_not_trace(f"maskgrad does not know Dynamo of {version}; see `maskgrad info`")
