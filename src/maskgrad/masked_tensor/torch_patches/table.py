"""Everything that maskgrad replaces, completes or registers inside PyTorch, in one table.

PyTorch asks ``__torch_function__`` nearly everywhere, and offers registries for most of the rest (``torch.library``,
pytrees, hooks of optimizers). What stands here are the places where it does neither, and a MaskedTensor would get a
wrong result without a word, or an error that names nothing. ``maskgrad info`` prints the table with what took hold.
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
    pytrees,
)
from maskgrad.masked_tensor.torch_patches.patch import Patch, after_import, apply, exchange

__all__ = ["PATCHES", "apply_all"]

_UNIT = "tests/unit/masked_tensor/torch_patches"
_DISTRIBUTED = "tests/unit/distributed"
_OPERATORS = "tests/conformance/test_operators.py"
_DDP = "torch.nn.parallel.distributed"
_FSDP = "torch.distributed.fsdp._fully_shard._fsdp_state"
_SHARDED = (
    "layers of fully_shard do not train behind MaskedTensors; give them and take from them x.filled(0.)"
)
_DYNAMO = "torch._dynamo"
_BUILTIN = "variables.builtin.BuiltinVariable"
_OBJECT = "variables.user_defined.UserDefinedObjectVariable"


def _exchanged(target: str, parameters: str, function: Callable[..., Any], **facts: Any) -> Patch:
    """The function or method ``target``, which takes ``parameters``, is ``function(original, …)``."""
    install = functools.partial(exchange, target, function, everywhere=False)
    return Patch(target=target, needs={target: parameters}, install=install, **facts)


def _dynamo(target: str, install: Callable[[], None], needs: dict[str, str | None], **facts: Any) -> Patch:
    """Something in Dynamo; paths begin there."""
    return Patch(
        target=f"{_DYNAMO}.{target}",
        install=install,
        needs={f"{_DYNAMO}.{path}": parameters for path, parameters in needs.items()},
        without="code with MaskedTensors inside of torch.compile runs uncompiled, and fullgraph=True refuses it",
        after=_DYNAMO,
        **facts,
    )


PATCHES: tuple[Patch, ...] = (
    Patch(
        target=f"{_FSDP}.FSDPState",
        reason="looks for tensors by type: behind masked inputs and outputs sharded parameters get no gradient",
        without=_SHARDED,
        test=f"{_DISTRIBUTED}/test_masked_fully_shard.py::test_as_one_process",
        needs={
            f"{_FSDP}.FSDPState._pre_forward": "self module args kwargs",
            f"{_FSDP}.FSDPState._post_forward": "self module input output",
        }
        | (
            {f"{_FSDP}.FSDPState._cast_output_dtype": "self output"}
            if data_parallel.CASTS_OUTPUTS_APART
            else {}
        ),
        install=data_parallel.look_into_fully_shard,
        after=_FSDP,
    ),
    Patch(
        target="torch.distributed.utils._apply_to_tensors",
        reason="looks for tensors by type, for FullyShardedDataParallel",
        without=_SHARDED,
        test=f"{_DISTRIBUTED}/test_masked_fully_shard.py::test_fully_sharded_data_parallel",
        needs={"torch.distributed.utils._apply_to_tensors": "fn container"},
        install=data_parallel.look_into_containers,
        after="torch.distributed.utils",
    ),
    Patch(
        target=f"{_DDP}._find_tensors",
        reason="finds no tensor in masked outputs: with find_unused_parameters=True all parameters count as unused",
        without="with find_unused_parameters=True, return x.filled(0.) and x.mask from the module",
        test=f"{_DISTRIBUTED}/test_masked_data_parallel.py::test_unused_parameters",
        needs={f"{_DDP}._find_tensors": "obj"},
        install=data_parallel.find_in_outputs,
        after=_DDP,
    ),
    Patch(
        target="torch.distributed.utils._sync_params_and_buffers",
        reason="cannot send a buffer that is a MaskedTensor",
        without="DistributedDataParallel refuses buffers that are MaskedTensors; register values and mask",
        test=f"{_DISTRIBUTED}/test_masked_data_parallel.py::test_buffers",
        needs={
            "torch.distributed.utils._sync_params_and_buffers": "process_group module_states broadcast_bucket_size src",
            f"{_DDP}.DistributedDataParallel._assign_modules_buffers": "self",
        },
        install=data_parallel.send_buffers,
        after=_DDP,
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
        install=modules.replace_full_hooks,
    ),
    _exchanged(
        "torch.nn.Module._get_backward_hooks",
        "self",
        modules.watch_legacy_hooks,
        reason="hooks of register_backward_hook take a MaskedTensor apart down to an error about 0-dim tensors",
        without="register_backward_hook on a module that returns MaskedTensors fails with an obscure error; use "
        "register_full_backward_hook",
        test=f"{_UNIT}/test_legacy_backward_hooks.py::test_masked_results_are_refused",
    ),
    *(
        _exchanged(
            f"torch.nn.{container}.__setitem__",
            parameters,
            modules.set_item,
            reason="keeps a MaskedTensor as an attribute that is no parameter: it is never trained nor saved",
            without=f"a MaskedTensor in a {container} is no parameter; keep its values and its mask",
            test=f"{_UNIT}/test_parameter_containers.py",
        )
        for container, parameters in (
            ("ParameterList", "self idx param"),
            ("ParameterDict", "self key value"),
        )
    ),
    _exchanged(
        "torch.nn.Module._save_to_state_dict",
        "self destination prefix keep_vars",
        modules.save_to_state_dict,
        reason='saves rows of a plain table that still wait for the steps of an optimizer with unspecified="zero"',
        without='with unspecified="zero" and tables that are not of mg.nn, call optimizer.flush() before '
        "model.state_dict()",
        test=f"{_UNIT}/test_state_dicts.py",
    ),
    _exchanged(
        "torch.nn.Module._load_from_state_dict",
        "self state_dict prefix local_metadata strict missing_keys unexpected_keys error_msgs",
        modules.load_from_state_dict,
        reason="with assign=True puts another parameter in place, on which no mask of mg.train_only hangs",
        without="call mg.train_only again after load_state_dict(assign=True)",
        test=f"{_UNIT}/test_state_dicts.py",
    ),
    _exchanged(
        "torch._functorch.eager_transforms._jvp_with_argnums",
        "func primals tangents argnums",
        function_transforms.jvp_with_patterns,
        reason="gives a mask a tangent of zeros: in results of jvp and jacfwd nothing would be specified",
        without="tangents that torch.func.jvp and jacfwd return as MaskedTensors have nothing specified; return "
        "x.filled(0.) from the function",
        test=f"{_UNIT}/test_function_transforms.py::test_tangents_have_the_pattern_of_results",
    ),
    _exchanged(
        "torch._functorch.vmap._process_batched_inputs",
        "in_dims args func",
        function_transforms.process_batched_inputs,
        reason="looks for the dimension of samples in offsets and indices",
        without="torch.vmap cannot map over the features of a jagged MaskedTensor; map over x.to_dense()",
        test=f"{_UNIT}/test_function_transforms.py::test_samples_among_the_features_of_a_jagged_tensor",
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
        install=lambda: exchange(
            "torch._functorch.vmap._unwrap_batched", function_transforms.unwrap_batched, everywhere=False
        ),
    ),
    Patch(
        target="torch.utils._pytree.register_pytree_node",
        how="registered",
        reason="knows a MaskedTensor for one leaf, which is no tensor",
        without="torch.func, torch.export and checkpoints do not look into MaskedTensors; hand over values and mask",
        test=f"{_UNIT}/test_pytrees.py::test_the_leaves_are_values_and_mask",
        needs={"torch.utils._pytree.register_pytree_node": "cls flatten_fn unflatten_fn"},
        install=pytrees.register_pytree,
    ),
    Patch(
        target="torch.distributions.distribution.Distribution._validate_sample",
        reason="takes tensors only, by type",
        without="distributions refuse MaskedTensors as values; make them with validate_args=False",
        test=f"{_UNIT}/test_distributions.py::test_log_probabilities",
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
        install=pytrees.register_files,
    ),
    Patch(
        target="torch.utils.data._utils.collate.default_collate_fn_map",
        how="registered",
        reason="refuses to make a batch of MaskedTensors",
        without="a DataLoader does not stack MaskedTensors; pass it collate_fn=torch.stack",
        test=f"{_UNIT}/test_collation.py::test_samples_are_stacked",
        needs={"torch.utils.data._utils.collate.default_collate_fn_map": None},
        install=pytrees.register_collation,
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
    _dynamo(
        "variables.builtin.BUILTIN_TO_TENSOR_RFN_MAP",
        dynamo.multiply_matrices,
        {
            "variables.builtin.BUILTIN_TO_TENSOR_RFN_MAP": None,
            f"{_BUILTIN}._binops": "",
            f"{_BUILTIN}._binop_handlers.cache_clear": None,
        },
        how="completed",
        reason="traces tensor @ masked with its operands exchanged, silently, and masked @ masked not at all",
        test=f"{_OPERATORS}::test_floats",
    ),
    _dynamo(
        f"{_BUILTIN}.call_invert",
        dynamo.invert,
        {_BUILTIN: None, _OBJECT: None},
        how="completed",
        reason="cannot trace ~masked",
        versions="2.12 and 2.13",
        test=f"{_OPERATORS}::test_unary",
        known=dynamo.knows_invert,
    ),
    _dynamo(
        f"{_BUILTIN}._handle_insert_op_in_graph",
        dynamo.keep_in_place,
        {
            f"{_BUILTIN}._handle_insert_op_in_graph": "self tx args kwargs",
            f"{_BUILTIN}.call_function_handler_cache": None,
            "variables.builtin.IN_PLACE_DESUGARING_MAP": None,
            _OBJECT: None,
            "variables.tensor.TensorVariable": None,
        },
        reason="turns masked += tensor into a new object, which other names of the tensor do not see",
        test=f"{_OPERATORS}::test_floats_in_place",
    ),
    _dynamo(
        f"{_BUILTIN}._binop_handlers",
        dynamo.numbers_on_the_left,
        {
            f"{_BUILTIN}._binop_handlers": "",
            "variables.builtin.IN_PLACE_DESUGARING_MAP": None,
            _OBJECT: None,
            "variables.constant.ConstantVariable": None,
        },
        reason="asks the number in number **= masked, and in 2.12 in number < masked, which cannot answer",
        versions="2.12 and 2.13",
        test=f"{_OPERATORS}::test_floats_in_place",
        known=lambda: dynamo.is_since("2.14"),
    ),
    _dynamo(
        "variables.misc.AutogradFunctionVariable.call_apply",
        dynamo.refuse_in_functions,
        {
            "variables.misc.AutogradFunctionVariable.call_apply": "self tx args kwargs",
            "exc.unimplemented": None,
        },
        reason="does not call Function.apply, so that a MaskedTensor would lose its gradient in compiled code",
        test=f"{_UNIT}/test_autograd_functions.py::test_compiled_functions_refuse_too",
    ),
    _dynamo(
        "variables.user_defined.UserDefinedClassVariable.call_function",
        dynamo.report_errors,
        {
            "variables.user_defined.UserDefinedClassVariable.call_function": "self tx args kwargs",
            "exc.unimplemented": None,
        },
        reason="cannot trace the constructors of our errors, and reports that instead of what they say",
        versions="2.12 to 2.14",
        test=f"{_OPERATORS}::test_refusals_are_told_in_full",
        known=lambda: dynamo.is_since("2.15"),
    ),
    _dynamo(
        "variables.torch_function._flatten_vts",
        dynamo.find_in_tuples,
        {"variables.torch_function._flatten_vts": "vts", "variables.lists.TupleVariable": None},
        reason="finds Tensor-likes in lists of operands, but not in tuples",
        test=f"{_OPERATORS}::test_tuples_and_lists_of_operands",
    ),
    _dynamo(
        "variables.torch.get_overridable_functions",
        dynamo.ask_for_more_functions,
        {"variables.torch.get_overridable_functions": ""},
        how="completed",
        reason="lacks some functions that ask Tensor-likes (torch.fill, torch.normal, F.hardswish)",
        test="tests/conformance/test_compiled.py",
    ),
    _dynamo(
        "trace_rules.check_file",
        dynamo.start_nowhere_within,
        {"trace_rules.check_file": "filename is_inlined_call", "trace_rules.SkipResult": "skipped reason"},
        how="completed",
        reason="compiles our frames one by one behind a broken graph, and takes the graph of one method for another's",
        test=f"{_UNIT}/test_broken_graphs.py",
    ),
)


def apply_all() -> None:
    """Apply what can be applied, now or after the import of what is imported late, and warn once of what cannot."""
    by_module: dict[str, list[Patch]] = {}
    for patch in PATCHES:
        by_module.setdefault(patch.after, []).append(patch)
    _apply(by_module.pop("", []))
    for module, patches in by_module.items():
        after_import(module, functools.partial(_apply, patches))


def _apply(patches: list[Patch]) -> None:
    hint = ". `python -m maskgrad info` lists what is patched; a newer maskgrad may know this PyTorch"
    apply(patches, f"PyTorch {torch.__version__}", hint)
    if any(patch.is_off and patch.after == _DYNAMO for patch in patches):
        dynamo.do_not_trace(
            f"maskgrad does not know Dynamo of PyTorch {torch.__version__}; see `maskgrad info`"
        )
