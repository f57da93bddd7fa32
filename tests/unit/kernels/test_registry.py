"""Every registered operator keeps the promises of its schema."""

from __future__ import annotations

import pytest
import torch

from maskgrad.kernels import KERNELS
from tests.unit.kernels import (
    samples_batch_normalization,
    samples_extrema,
    samples_lookup,
    samples_losses,
    samples_normalization,
    samples_norms,
    samples_prod,
    samples_segments,
    samples_softmax,
    samples_updates,
    samples_variance,
)

OPS = torch.ops.maskgrad


def samples():
    """Operator -> arguments, keyword arguments."""
    values = torch.randn(6, 5, 4, requires_grad=True)
    mask = torch.rand(6, 5, 4) < 0.5
    indices = torch.tensor([3, 1, 3, 0])
    rows = torch.randn(4, 2, requires_grad=True)
    entries, pointers, order = (
        torch.randn(7, requires_grad=True),
        torch.tensor([0, 2, 3, 7]),
        torch.randperm(7),
    )
    vectors = torch.randn(7, 2, requires_grad=True)
    return [
        ("masked_sum", (values, mask, [0, 2], False), {}),
        ("masked_sum", (values.detach().half(), mask, [1], True, torch.float32), {}),
        ("masked_sum", (torch.arange(120).view(6, 5, 4), mask, [-1], True), {}),
        ("masked_mean", (values, mask, [1], False), {}),
        ("masked_mean", (values, mask, [0, 1, 2], True, torch.float64), {}),
        ("masked_count", (mask, [0], False), {}),
        ("masked_expand", (torch.randn(6, 1, 4, requires_grad=True), mask, torch.float32), {}),
        ("masked_expand", (torch.randn(1, 4), mask, torch.bfloat16), {}),
        ("masked_filling", (values, mask, 1.0), {}),
        ("masked_filling", (values.detach().bfloat16().permute(2, 0, 1), mask.permute(2, 0, 1), 0), {}),
        ("masked_filling", (torch.arange(6), torch.rand(6) < 0.5, 7), {}),
        ("sort_rows", (indices, 5), {}),
        ("segment_sum", (entries, pointers, None), {}),
        ("segment_sum", (vectors, pointers, order, torch.float64), {}),
        ("segment_expand", (torch.randn(3, requires_grad=True), pointers, order, 7), {}),
        ("segment_expand", (torch.randn(3, 2), pointers, None, 7), {}),
        ("segment_extremum", (entries, pointers, order, True), {}),
        ("segment_extremum", (vectors, pointers, None, False), {}),
        ("segment_softmax", (entries, pointers, None, False), {}),
        ("segment_softmax", (entries, pointers, order, True), {}),
        (
            "segment_softmax_backward",
            (entries, entries.detach().exp().requires_grad_(), pointers, order, False),
            {},
        ),
        ("segment_softmax_backward", (vectors, vectors.detach(), pointers, None, True), {}),
        *[("merge_rows", (indices, rows, 5, reduce), {}) for reduce in ("sum", "mean", "amax", "amin")],
        *samples_extrema.samples(),
        *samples_lookup.samples(),
        *samples_losses.samples(),
        *samples_batch_normalization.samples(),
        *samples_variance.samples(),
        *samples_normalization.samples(),
        *samples_norms.samples(),
        *samples_prod.samples(),
        *samples_segments.samples(),
        *samples_softmax.samples(),
        *samples_updates.samples(),
    ]


@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf"
)  # opcheck's own, since 2.15
@pytest.mark.parametrize("number", range(len(samples())))
def test_opcheck(number):
    name, args, kwargs = samples()[number]
    op = getattr(OPS, name).default
    if name == "merge_rows":
        # The last of opcheck's tests adds up all results, and cannot add float32 to the int64 that comes first.
        differentiable = ("test_schema", "test_autograd_registration", "test_faketensor")
        torch.library.opcheck(op, args, kwargs, test_utils=differentiable)
        args = tuple(a.detach() if isinstance(a, torch.Tensor) else a for a in args)
    torch.library.opcheck(op, args, kwargs)


def test_every_kernel_has_a_reference_a_compiled_body_and_a_sample():
    for name, kernel in KERNELS.items():
        assert kernel.name == name
        assert callable(kernel.reference)
        assert callable(kernel.backend("cpu"))
    assert set(KERNELS) == {name for name, _, _ in samples()}


def test_every_operator_runs_where_there_is_no_compiled_body():
    for name, args, kwargs in samples():
        moved = [a.detach().to("meta") if isinstance(a, torch.Tensor) else a for a in args]
        options = {k: v.to("meta") if isinstance(v, torch.Tensor) else v for k, v in kwargs.items()}
        if name in ("merge_rows", "sort_rows"):  # the number of rows is not known without data
            continue
        getattr(OPS, name)(*moved, **options)
