"""Everything that maskgrad replaces, completes or registers inside PyTorch, in one table.

PyTorch asks ``__torch_function__`` nearly everywhere, and offers registries for most of the rest (``torch.library``,
pytrees, hooks of optimizers). What stands here are the places where it does neither, and a MaskedTensor would get a
wrong result without a word, or an error that names nothing. ``maskgrad info`` prints the table with what took hold.
"""

from __future__ import annotations

import warnings

import torch

from maskgrad.errors import TorchPatchWarning
from maskgrad.masked_tensor.torch_patches import (
    autograd_functions,
    collation,
    distributions,
    dynamo,
    function_transforms,
    legacy_backward_hooks,
    loading,
    module_hooks,
    parameter_containers,
    pytrees,
    state_dicts,
)
from maskgrad.masked_tensor.torch_patches.after_import import after_import
from maskgrad.masked_tensor.torch_patches.distributed_table import DISTRIBUTED_PATCHES
from maskgrad.masked_tensor.torch_patches.patch import Patch

__all__ = ["PATCHES", "apply_all"]

_UNIT = "tests/unit/masked_tensor/torch_patches"
_OPERATORS = "tests/conformance/test_operators.py"
_BUILTINS = "torch._dynamo.variables.builtin"
_USER_DEFINED = "torch._dynamo.variables.user_defined"
_COMPILED = "code with MaskedTensors inside of torch.compile runs uncompiled, and fullgraph=True refuses it"

PATCHES: tuple[Patch, ...] = (
    *DISTRIBUTED_PATCHES,
    Patch(
        target="torch.autograd.Function.apply",
        reason="takes a MaskedTensor for a constant: right values and no gradient",
        without="a MaskedTensor given to a torch.autograd.Function loses its gradient; derive the function from "
        "maskgrad.Function",
        test=f"{_UNIT}/test_autograd_functions.py::test_masked_tensors_are_refused",
        needs={"torch.autograd.Function.apply": None},
        install=autograd_functions.install,
    ),
    Patch(
        target="torch.utils.hooks.BackwardHook",
        reason="looks for tensors by type, so that full backward hooks of modules are never called",
        without="full backward hooks of modules do not see MaskedTensors; register hooks on x.filled(0.) instead",
        test=f"{_UNIT}/test_module_hooks.py::TestBackwardHooks::test_see_gradients_with_their_patterns",
        needs={
            "torch.utils.hooks.BackwardHook.__init__": "self module user_hooks user_pre_hooks",
            "torch.utils.hooks.BackwardHook.setup_input_hook": "self args",
            "torch.utils.hooks.BackwardHook.setup_output_hook": "self args",
        },
        install=module_hooks.install,
    ),
    Patch(
        target="torch.nn.Module._get_backward_hooks",
        reason="hooks of register_backward_hook take a MaskedTensor apart down to an error about 0-dim tensors",
        without="register_backward_hook on a module that returns MaskedTensors fails with an obscure error; use "
        "register_full_backward_hook",
        test=f"{_UNIT}/test_legacy_backward_hooks.py::test_masked_results_are_refused",
        needs={"torch.nn.Module._get_backward_hooks": "self"},
        install=legacy_backward_hooks.install,
    ),
    Patch(
        target="torch.nn.ParameterList.__setitem__",
        reason="keeps a MaskedTensor as an attribute that is no parameter: it is never trained nor saved",
        without="a MaskedTensor in a ParameterList or ParameterDict is no parameter; keep its values and its mask",
        test=f"{_UNIT}/test_parameter_containers.py",
        needs={
            "torch.nn.ParameterList.__setitem__": "self idx param",
            "torch.nn.ParameterDict.__setitem__": "self key value",
        },
        install=parameter_containers.install,
    ),
    Patch(
        target="torch.nn.Module._save_to_state_dict",
        reason='saves rows of a plain table that still wait for the steps of an optimizer with unspecified="zero"',
        without='with unspecified="zero" and tables that are not of mg.nn, call optimizer.flush() before '
        "model.state_dict()",
        test=f"{_UNIT}/test_state_dicts.py",
        needs={"torch.nn.Module._save_to_state_dict": "self destination prefix keep_vars"},
        install=state_dicts.install_saving,
    ),
    Patch(
        target="torch.nn.Module._load_from_state_dict",
        reason="with assign=True puts another parameter in place, on which no mask of mg.train_only hangs",
        without="call mg.train_only again after load_state_dict(assign=True)",
        test=f"{_UNIT}/test_state_dicts.py",
        needs={
            "torch.nn.Module._load_from_state_dict": "self state_dict prefix local_metadata strict "
            "missing_keys unexpected_keys error_msgs"
        },
        install=state_dicts.install_loading,
    ),
    Patch(
        target="torch._functorch.eager_transforms._jvp_with_argnums",
        reason="gives a mask a tangent of zeros: in results of jvp and jacfwd nothing would be specified",
        without="tangents that torch.func.jvp and jacfwd return as MaskedTensors have nothing specified; return "
        "x.filled(0.) from the function",
        test=f"{_UNIT}/test_function_transforms.py::test_tangents_have_the_pattern_of_results",
        needs={"torch._functorch.eager_transforms._jvp_with_argnums": "func primals tangents argnums"},
        install=function_transforms.install_tangents,
    ),
    Patch(
        target="torch._functorch.vmap._process_batched_inputs",
        reason="looks for the dimension of samples in offsets and indices",
        without="torch.vmap cannot map over the features of a jagged MaskedTensor; map over x.to_dense()",
        test=f"{_UNIT}/test_function_transforms.py::test_samples_among_the_features_of_a_jagged_tensor",
        needs={"torch._functorch.vmap._process_batched_inputs": "in_dims args func"},
        install=function_transforms.install_arguments,
    ),
    Patch(
        target="torch._functorch.vmap._unwrap_batched",
        reason="gives a mask that is the same for all samples no dimension of samples where out_dims asks for it",
        without="MaskedTensors returned through torch.vmap may have masks of another shape than their values; return "
        "values and mask as plain tensors",
        test=f"{_UNIT}/test_function_transforms.py::test_results_and_masks_share_the_dimension_of_samples",
        needs={
            "torch._functorch.vmap._unwrap_batched": "batched_outputs out_dims vmap_level batch_size func",
            "torch._C._functorch.is_batchedtensor": None,
            "torch._C._functorch.maybe_get_level": None,
            "torch._C._functorch._add_batch_dim": None,
        },
        install=function_transforms.install_batches,
    ),
    Patch(
        target="torch.utils._pytree.register_pytree_node",
        how="registered",
        reason="knows a MaskedTensor for one leaf, which is no tensor",
        without="torch.func, torch.export and checkpoints do not look into MaskedTensors; hand over values and mask",
        test=f"{_UNIT}/test_pytrees.py::test_the_leaves_are_values_and_mask",
        needs={"torch.utils._pytree.register_pytree_node": "cls flatten_fn unflatten_fn"},
        install=pytrees.install,
    ),
    Patch(
        target="torch.distributions.distribution.Distribution._validate_sample",
        reason="takes tensors only, by type",
        without="distributions refuse MaskedTensors as values; make them with validate_args=False",
        test="tests/unit/masked_tensor/torch_patches/test_distributions.py::test_log_probabilities",
        needs={"torch.distributions.distribution.Distribution._validate_sample": "self value"},
        install=distributions.install,
        after="torch.distributions",
    ),
    Patch(
        target="torch.serialization.add_safe_globals",
        how="registered",
        reason="refuses to load a MaskedTensor with weights_only=True",
        without="torch.load(weights_only=True) refuses files with MaskedTensors; save values and mask",
        test="tests/unit/masked_tensor/test_serialization.py::test_there_and_back",
        needs={"torch.serialization.add_safe_globals": "safe_globals"},
        install=loading.install,
    ),
    Patch(
        target="torch.utils.data._utils.collate.default_collate_fn_map",
        how="registered",
        reason="refuses to make a batch of MaskedTensors",
        without="a DataLoader does not stack MaskedTensors; pass it collate_fn=torch.stack",
        test=f"{_UNIT}/test_collation.py::test_samples_are_stacked",
        needs={"torch.utils.data._utils.collate.default_collate_fn_map": None},
        install=collation.install,
    ),
    Patch(
        target="torch._decomp.decompositions.one_layer_lstm",
        how="replaced while exporting",
        reason="traces the final states of an LSTM with one dimension too many",
        without="maskgrad.onnx.export does not work; torch.export is absent",
        versions="2.12",
        test="tests/unit/export/test_translation.py::test_pytorch_has_its_own_back",
        needs={"torch.export.export": None},
        # export/translation.py puts it there for as long as it traces, where it is needed
        install=lambda: None,
    ),
    Patch(
        target=f"{_BUILTINS}.BUILTIN_TO_TENSOR_RFN_MAP",
        how="completed",
        reason="traces tensor @ masked with its operands exchanged, silently, and masked @ masked not at all",
        without=_COMPILED,
        test=f"{_OPERATORS}::test_floats",
        needs={
            f"{_BUILTINS}.BUILTIN_TO_TENSOR_RFN_MAP": None,
            f"{_BUILTINS}.BuiltinVariable._binops": "",
            f"{_BUILTINS}.BuiltinVariable._binop_handlers.cache_clear": None,
        },
        install=dynamo.multiply_matrices,
        after="torch._dynamo",
    ),
    Patch(
        target=f"{_BUILTINS}.BuiltinVariable.call_invert",
        how="completed",
        reason="cannot trace ~masked",
        without=_COMPILED,
        versions="2.12 and 2.13",
        test=f"{_OPERATORS}::test_unary",
        needs={f"{_BUILTINS}.BuiltinVariable": None, f"{_USER_DEFINED}.UserDefinedObjectVariable": None},
        install=dynamo.invert,
        after="torch._dynamo",
        known=dynamo.knows_invert,
    ),
    Patch(
        target=f"{_BUILTINS}.BuiltinVariable._handle_insert_op_in_graph",
        reason="turns masked += tensor into a new object, which other names of the tensor do not see",
        without=_COMPILED,
        test=f"{_OPERATORS}::test_floats_in_place",
        needs={
            f"{_BUILTINS}.BuiltinVariable._handle_insert_op_in_graph": "self tx args kwargs",
            f"{_BUILTINS}.BuiltinVariable.call_function_handler_cache": None,
            f"{_BUILTINS}.IN_PLACE_DESUGARING_MAP": None,
            f"{_USER_DEFINED}.UserDefinedObjectVariable": None,
            "torch._dynamo.variables.tensor.TensorVariable": None,
        },
        install=dynamo.keep_in_place,
        after="torch._dynamo",
    ),
    Patch(
        target=f"{_BUILTINS}.BuiltinVariable._binop_handlers",
        reason="asks the number in number **= masked, and in 2.12 in number < masked, which cannot answer",
        without=_COMPILED,
        versions="2.12 and 2.13",
        test=f"{_OPERATORS}::test_floats_in_place",
        needs={
            f"{_BUILTINS}.BuiltinVariable._binop_handlers": "",
            f"{_BUILTINS}.IN_PLACE_DESUGARING_MAP": None,
            f"{_USER_DEFINED}.UserDefinedObjectVariable": None,
            "torch._dynamo.variables.constant.ConstantVariable": None,
        },
        install=dynamo.numbers_on_the_left,
        after="torch._dynamo",
        known=lambda: dynamo.is_since("2.14"),
    ),
    Patch(
        target="torch._dynamo.variables.misc.AutogradFunctionVariable.call_apply",
        reason="does not call Function.apply, so that a MaskedTensor would lose its gradient in compiled code",
        without=_COMPILED,
        test=f"{_UNIT}/test_autograd_functions.py::test_compiled_functions_refuse_too",
        needs={
            "torch._dynamo.variables.misc.AutogradFunctionVariable.call_apply": "self tx args kwargs",
            "torch._dynamo.exc.unimplemented": None,
        },
        install=dynamo.refuse_in_functions,
        after="torch._dynamo",
    ),
    Patch(
        target=f"{_USER_DEFINED}.UserDefinedClassVariable.call_function",
        reason="cannot trace the constructors of our errors, and reports that instead of what they say",
        without=_COMPILED,
        versions="2.12 to 2.14",
        test=f"{_OPERATORS}::test_refusals_are_told_in_full",
        needs={
            f"{_USER_DEFINED}.UserDefinedClassVariable.call_function": "self tx args kwargs",
            "torch._dynamo.exc.unimplemented": None,
        },
        install=dynamo.tell_refusals,
        after="torch._dynamo",
        known=lambda: dynamo.is_since("2.15"),
    ),
    Patch(
        target="torch._dynamo.variables.torch_function._flatten_vts",
        reason="finds Tensor-likes in lists of operands, but not in tuples",
        without=_COMPILED,
        test=f"{_OPERATORS}::test_tuples_and_lists_of_operands",
        needs={
            "torch._dynamo.variables.torch_function._flatten_vts": "vts",
            "torch._dynamo.variables.lists.TupleVariable": None,
        },
        install=dynamo.find_in_tuples,
        after="torch._dynamo",
    ),
    Patch(
        target="torch._dynamo.variables.torch.get_overridable_functions",
        how="completed",
        reason="lacks some functions that ask Tensor-likes (torch.fill, torch.normal, F.hardswish)",
        without=_COMPILED,
        test="tests/conformance/test_compiled.py",
        needs={"torch._dynamo.variables.torch.get_overridable_functions": ""},
        install=dynamo.ask_for_more_functions,
        after="torch._dynamo",
    ),
    Patch(
        target="torch._dynamo.trace_rules.check_file",
        how="completed",
        reason="compiles our frames one by one behind a broken graph, and takes the graph of one method for another's",
        without=_COMPILED,
        test=f"{_UNIT}/test_broken_graphs.py",
        needs={
            "torch._dynamo.trace_rules.check_file": "filename is_inlined_call",
            "torch._dynamo.trace_rules.SkipResult": "skipped reason",
        },
        install=dynamo.start_nowhere_within,
        after="torch._dynamo",
    ),
)


def apply_all() -> None:
    """Apply what can be applied, now or after the import of what is imported late, and warn once of what cannot."""
    late: dict[str, list[Patch]] = {}
    now: list[Patch] = []
    for patch in PATCHES:
        (late.setdefault(patch.after, []) if patch.after else now).append(patch)
    _apply(now)
    for module, patches in late.items():
        after_import(module, lambda patches=patches: _complete(patches))  # type: ignore[misc]


def _complete(patches: list[Patch]) -> None:
    _apply(patches)
    if any(patch.is_off and patch.after == "torch._dynamo" for patch in patches):
        dynamo.do_not_trace(
            f"maskgrad does not know Dynamo of PyTorch {torch.__version__}; see `maskgrad info`"
        )


def _apply(patches: list[Patch]) -> None:
    for patch in patches:
        patch.apply()
    off = [patch for patch in patches if patch.is_off]
    if off:
        found = "; ".join(f"{patch.state}: {patch.without}" for patch in off)
        warnings.warn(
            f"PyTorch {torch.__version__} is not as this maskgrad expects it: {found}. `python -m maskgrad info` lists "
            "what is patched; a newer maskgrad may know this PyTorch",
            TorchPatchWarning,
            stacklevel=3,
        )
