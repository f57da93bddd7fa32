"""Packages whose functions refuse MaskedTensors, with the line to write instead; nothing else of them is adapted."""

from __future__ import annotations

from maskgrad.integrations.integration import Integration, Without, refusals

__all__ = ["REFUSING"]

#: Package, its behaviour without the patches, ``module:name`` of its functions, reason, remedy, and the test in
#: ``tests/ecosystem/test_<package>.py`` that fails without them.
_TABLE: tuple[tuple[str, Without, str, str, str, str], ...] = (
    (
        "accelerate",
        "wrong in silence",
        (
            "accelerate.utils.operations:slice_tensors accelerate.utils.operations:listify "
            "accelerate.utils.operations:get_data_structure"
        ),
        "accelerate leaves what is no torch.Tensor as it is",
        "Write x[tensor_slice] or x.tolist(), or give the parts of x, mg.interop.to_tensors({'x': x}).",
        "test_what_leaves_masked_tensors_alone_refuses",
    ),
    (
        "opacus",
        "wrong in silence",
        (
            "opacus.grad_sample.grad_sample_module:GradSampleModule.capture_activations_hook "
            "opacus.grad_sample.grad_sample_module_fast_gradient_clipping:GradSampleModuleFastGradientClipping.capture_activations_hook"
        ),
        "the rules of Opacus compute with inputs as plain tensors",
        "Use mg.per_sample_grad, or pass x.filled(0.) to the layers and mask the losses.",
        "test_masked_inputs_refuse",
    ),
    (
        "pandas",
        "keeps an object",
        (
            "pandas.core.indexing:_LocationIndexer.__setitem__ pandas.core.indexing:_ScalarAccessIndexer.__setitem__ "
            "pandas.core.algorithms:isin pandas.core.groupby.grouper:get_grouper"
        ),
        "a table has columns of its own for what is missing, and would keep an object or lose the mask",
        "Write mg.interop.to_pandas(x), or x.tolist() for a column and x.item() for a number.",
        "test_masked_tensors_refuse",
    ),
    (
        "pandas",
        "keeps an object",
        "pandas.core.frame:DataFrame._align_for_op pandas.core.generic:NDFrame._inplace_method",
        "a table has columns of its own for what is missing, and would keep an object or lose the mask",
        "Write mg.interop.to_pandas(x), or x.tolist() for a column and x.item() for a number.",
        "test_arithmetic_refuses",
    ),
    (
        "polars",
        "keeps an object",
        (
            "polars.series.series:Series._arithmetic polars.series.series:Series._comp "
            "polars.dataframe.frame:DataFrame._comp polars.dataframe.frame:_prepare_other_arg"
        ),
        "a column has its own way to say what is missing",
        "Write pl.from_arrow(mg.interop.to_arrow(x)), or pl.Series(x), whose nulls are what is unspecified.",
        "test_arithmetic_refuses",
    ),
    (
        "safetensors",
        "raises",
        "safetensors.torch:save_file safetensors.torch:save",
        "a file holds plain tensors",
        "Save mg.interop.to_tensors(tensors), and read mg.interop.from_tensors(load_file(path)).",
        "test_masked_tensors_refuse",
    ),
    (
        "skorch",
        "raises",
        "skorch.utils:to_tensor",
        "skorch converts arrays and plain tensors",
        (
            "Give the net plain tensors, and mask them in the module, mg.masked(x, x != padding), and in get_loss, "
            "mg.masked(y, y != -100); or write net.module_(x) for a prediction."
        ),
        "test_masked_tensors_refuse",
    ),
    (
        "tensorboard",
        "raises",
        "torch.utils.tensorboard._convert_np:make_np",
        "a summary has no place for what is unspecified",
        "Write a number, x.mean(), the specified entries, x.compressed(), or x.filled(value).",
        "test_masked_tensors_refuse",
    ),
    (
        "tensordict",
        "keeps an object",
        (
            "tensordict.base:TensorDictBase._convert_to_tensor tensordict._td:TensorDict.where "
            "tensordict:NonTensorData.__init__"
        ),
        "it would be kept as an object of Python, which indexing, stacking and moving leave as it is",
        (
            "Store its parts, TensorDict(mg.interop.to_tensors({'x': x}), batch_size=…), and read "
            "mg.interop.from_tensors(td)."
        ),
        "test_masked_tensors_refuse",
    ),
    (
        "timm",
        "wrong in silence",
        "timm.utils.metrics:accuracy",
        "it divides by the number of all samples",
        "Write accuracy(*mg.align(output, target)).",
        "test_accuracy_refuses",
    ),
    (
        "torchjd",
        "wrong in silence",
        "torchjd.autojac._backward:backward torchjd.autojac._jac:jac",
        "each entry is an objective, and unspecified ones would count as objectives with a gradient of zero",
        "Pass the specified ones, losses.compressed().",
        "test_masked_objectives_refuse",
    ),
    (
        "torchvision",
        "wrong in silence",
        "torchvision.transforms.v2:Transform.__call__",
        "it takes samples apart, and would transform the values and not the mask",
        "Write image, mask = transform(tv_tensors.Image(x.filled(0.)), tv_tensors.Mask(x.mask)).",
        "test_masked_images_refuse",
    ),
)

#: The records, by package.
REFUSING = {
    package: Integration(
        package,
        without,
        tuple(
            patch
            for name, _, functions, reason, remedy, test in _TABLE
            if name == package
            for patch in refusals(functions, reason, remedy, f"test_{package}.py::{test}")
        ),
    )
    for package, without, *_ in _TABLE
}
