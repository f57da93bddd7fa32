"""The table of everything that maskgrad replaces or extends inside PyTorch.

PyTorch calls ``__torch_function__`` nearly everywhere, and has registries for most of the rest (``torch.library``,
pytrees, safe globals, collation, hooks of optimizers, dataclasses). The table has the rest, where MaskedTensors
would silently get wrong results, or none. ``maskgrad info`` prints it with the state of each patch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from maskgrad.masked_tensor.torch_patches import (
    autograd_functions,
    comparison,
    data_parallel,
    distributions,
    dynamo,
    function_transforms,
    modules,
)
from maskgrad.masked_tensor.torch_patches.patch import Patch, after_import, apply, exchange

__all__ = ["PATCHES", "apply_all"]

_UNIT = "tests/unit/masked_tensor/torch_patches"
_OPERATORS = "tests/conformance/test_operators.py"
_DYNAMO = "torch._dynamo"
_BUILTIN = "variables.builtin.BuiltinVariable"
_OBJECT = "variables.user_defined.UserDefinedObjectVariable"
_VMAP = "torch._functorch.vmap"


def _replaced(
    *functions: tuple[str, str, Callable[..., Any]], also: tuple[str, ...] = (), **facts: Any
) -> Patch:
    """Replace functions or methods: each is a path, its parameters, and ``function(original, …)``.

    ``also`` lists other paths that the functions need.
    """

    def install() -> None:
        for path, _, function in functions:
            exchange(path, function, everywhere=False)

    needs = {path: parameters for path, parameters, _ in functions} | dict.fromkeys(also)
    return Patch(target=functions[0][0], needs=needs, install=install, **facts)


def _dynamo(target: str, install: Callable[[], None], needs: dict[str, str | None], **facts: Any) -> Patch:
    """Patch Dynamo; paths are relative to it."""
    return Patch(
        target=f"{_DYNAMO}.{target}",
        install=install,
        needs={f"{_DYNAMO}.{path}": parameters for path, parameters in needs.items()},
        without="code with MaskedTensors inside of torch.compile runs uncompiled, and fullgraph=True refuses it",
        after=_DYNAMO,
        **facts,
    )


PATCHES: tuple[Patch, ...] = (
    _replaced(
        ("torch.testing._comparison.originate_pairs", "actual expected", comparison.originate_pairs),
        reason="takes tensors only, or looks into dataclasses",
        without="torch.testing.assert_close refuses MaskedTensors; compare x.mask, then x.filled(0.)",
        test=f"{_UNIT}/test_comparison.py",
    ),
    _replaced(
        (
            "torch.distributed.utils._sync_params_and_buffers",
            "process_group module_states broadcast_bucket_size src",
            data_parallel.send,
        ),
        (
            "torch.nn.parallel.distributed.DistributedDataParallel._assign_modules_buffers",
            "self",
            data_parallel.assign_buffers,
        ),
        reason="cannot send a buffer that is a MaskedTensor",
        without="DistributedDataParallel refuses buffers that are MaskedTensors; register values and mask",
        test="tests/unit/distributed/test_masked_data_parallel.py::test_buffers",
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
        reason='saves rows of a plain table that still wait for the steps of an optimizer with unspecified="zero"',
        without='with unspecified="zero" and tables that are not of mg.nn, call optimizer.flush() before '
        "model.state_dict()",
        test=f"{_UNIT}/test_state_dicts.py::test_the_state_of_a_model_is_complete",
    ),
    _replaced(
        (
            "torch.nn.Module._load_from_state_dict",
            "self state_dict prefix local_metadata strict missing_keys unexpected_keys error_msgs",
            modules.load_from_state_dict,
        ),
        reason="with assign=True replaces a parameter by another, which has no mask of mg.train_only",
        without="call mg.train_only again after load_state_dict(assign=True)",
        test=f"{_UNIT}/test_state_dicts.py::test_what_is_assigned_is_trained_where_the_parameter_was",
    ),
    _replaced(
        ("torch.nn.Module._apply", "self fn recurse", modules.convert),
        ("torch.nn.Parameter.__deepcopy__", "self memo", modules.copy_parameter),
        ("torch.nn.Parameter.__reduce_ex__", "self proto", modules.reduce_parameter),
        reason="drops the mask of mg.train_only and rows that still wait for steps, in copies and in conversions that "
        "swap or overwrite parameters",
        without="call optimizer.flush() before a model is copied, saved whole or converted, and mg.train_only after it",
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
            f"{_VMAP}._process_batched_inputs",
            "in_dims args func",
            function_transforms.process_batched_inputs,
        ),
        reason="looks for the dimension of samples in offsets and indices, where a size may fit by chance",
        without="torch.vmap does not refuse jagged and sparse MaskedTensors; map over x.to_dense()",
        test=f"{_UNIT}/test_function_transforms.py::test_other_layouts_are_refused_as_arguments",
    ),
    _replaced(
        (
            f"{_VMAP}._unwrap_batched",
            "batched_outputs out_dims vmap_level batch_size func",
            function_transforms.unwrap_batched,
        ),
        also=(
            "torch._C._functorch.is_batchedtensor",
            "torch._C._functorch.maybe_get_level",
            "torch._C._functorch._add_batch_dim",
        ),
        reason="gives a mask that is the same for all samples no dimension of samples where out_dims requests it",
        without="MaskedTensors returned through torch.vmap may have masks of another shape than their values; return "
        "values and mask as plain tensors",
        test=f"{_UNIT}/test_function_transforms.py::test_sparse_layouts_are_refused_as_results_only",
    ),
    Patch(
        target="torch.distributions.distribution.Distribution._validate_sample",
        reason="takes tensors only, by type",
        without="distributions refuse MaskedTensors as values; make them with validate_args=False",
        test=f"{_UNIT}/test_distributions.py::test_log_probabilities",
        needs={"torch.distributions.distribution.Distribution._validate_sample": "self value"},
        install=distributions.install,
    ),
    _replaced(
        ("torch._guards.GuardsSet.add", "self guard", dynamo.guard_without_ours),
        reason="checks in each call of a compiled function that 300 functions and tables of maskgrad are as they were",
        without="calls of compiled functions with MaskedTensors take 20 to 40 µs longer",
        test=f"{_UNIT}/test_dynamo.py::test_functions_of_ours_are_not_guarded",
    ),
    _dynamo(
        "variables.builtin.BUILTIN_TO_TENSOR_RFN_MAP",
        dynamo.multiply_matrices,
        {
            "variables.builtin.BUILTIN_TO_TENSOR_RFN_MAP": None,
            f"{_BUILTIN}._binops": "",
            f"{_BUILTIN}._binop_handlers.cache_clear": None,
        },
        reason="traces tensor @ masked with its operands exchanged, silently, and masked @ masked not at all",
        test=f"{_OPERATORS}::test_floats",
    ),
    _dynamo(
        f"{_BUILTIN}.call_invert",
        dynamo.invert,
        {_BUILTIN: None, _OBJECT: None},
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
        reason="calls a method of the number in number **= masked, and in 2.12 in number < masked",
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
        reason="lacks some functions that call __torch_function__ (torch.fill, torch.normal, F.hardswish)",
        test="tests/conformance/test_compiled.py",
    ),
    _dynamo(
        "trace_rules.check_file",
        dynamo.start_nowhere_within,
        {
            "trace_rules.check_file": "filename is_inlined_call",
            "trace_rules.SkipResult": "skipped reason",
            "convert_frame.CatchErrorsWrapper.__call__": "self frame cache_entry frame_state",
            "types.ConvertFrameReturn": None,
        },
        reason="compiles our frames one by one behind a broken graph, and takes the graph of one method for another's",
        test=f"{_UNIT}/test_broken_graphs.py",
    ),
)


def apply_all() -> None:
    """Apply the table, Dynamo's part after the import of Dynamo, and warn once about patches that cannot be applied."""
    _apply([patch for patch in PATCHES if not patch.after])
    after_import(_DYNAMO, _complete_dynamo)


def _complete_dynamo() -> None:
    patches = [patch for patch in PATCHES if patch.after]
    _apply(patches)
    if any(patch.is_off for patch in patches):
        dynamo.do_not_trace(
            f"maskgrad does not know Dynamo of PyTorch {torch.__version__}; see `maskgrad info`"
        )


def _apply(patches: list[Patch]) -> None:
    hint = ". `python -m maskgrad info` lists the patches; a newer maskgrad may support this PyTorch"
    apply(patches, f"PyTorch {torch.__version__}", hint)
