"""Messages end with the line to write instead, and the line works."""

import importlib
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import maskgrad as mg
from tests.poison import nan, on

X = mg.masked(torch.tensor([1.0, nan, 4.0]), on(1, 0, 1))
SQUARE, ONES = mg.from_nan(torch.tensor([[1.0, nan], [2.0, 3.0]])), torch.ones(2, 2)


@torch.library.custom_op("maskgrad_tests::twice", mutates_args=())
def twice(t: Tensor) -> Tensor:
    return t * 2


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: X.numpy(), r"x\.to_numpy\(\).*x\.filled\(float\('nan'\)\)\.numpy\(\)"),  # noqa: PLW0108
        (lambda: np.asarray(X), r"x\.filled\(float\('nan'\)\)\.numpy\(\).*x\.to_numpy\(\)"),
        (lambda: X.untyped_storage(), r"x\.get_data\(\)\.untyped_storage\(\)"),  # noqa: PLW0108
        (lambda: X.apply_(abs), r"mg\.masked\(x\.filled\(0\)\.apply_\(function\), x\.mask\)"),
        (lambda: X.set_(torch.ones(3)), r"x\.data = y"),
        (lambda: torch.distributed.all_reduce(X), r"mg\.distributed\.all_reduce\(x\)"),
        (
            lambda: torch.distributed.broadcast(X, 0),
            r"distributed\.broadcast of x\.filled\(0\) and of x\.mask",
        ),
        (lambda: twice(X), r"mg\.Function"),
        (lambda: mg.MaskedTensor(torch.ones(3), on(1, 0, 1)), r"mg\.masked\(data, mask\)"),
        (
            lambda: mg.masked([[1.0], [2.0, 3.0]]),
            r"mg\.from_sequences\(\[torch\.as_tensor\(s\) for s in data\]\)",
        ),
        (lambda: mg.masked([torch.ones(2), torch.ones(2)]), r"torch\.stack\(data\)"),
        (lambda: mg.sparse.coalesce(X.to_sparse()), "nothing to merge"),
        *[
            (call, "Write ")
            for call in (
                lambda: torch.sparse.mm(SQUARE, ONES),
                lambda: SQUARE.smm(ONES),
                lambda: torch.sparse.sampled_addmm(SQUARE, ONES, ONES),
                lambda: SQUARE.sparse_mask(SQUARE),
            )
        ],
        (
            lambda: torch.sparse.spsolve(SQUARE.to_sparse(), ONES),
            r"^torch\.sparse\.spsolve is undefined.*x\.filled",
        ),
        (
            lambda: torch.sparse.spdiags(SQUARE.to_sparse(), torch.tensor([0, 1]), (2, 2)),
            r"^torch\.sparse\.spdiags.*mg\.masked\(torch\.sparse\.spdiags",
        ),
    ],
)
def test_the_remedy_is_named(call: Any, words: str) -> None:
    with pytest.raises((TypeError, ValueError, AttributeError), match=words):
        call()


def test_numpy_sees_no_garbage() -> None:
    found = X.to_numpy()
    assert found.mask.tolist() == [False, True, False]
    assert np.isnan(found.data).tolist() == [False, True, False]  # for those who ignore the mask
    counts = mg.masked(torch.tensor([1, 1 << 40, 3]), on(1, 0, 1)).to_numpy()
    assert counts.data.tolist() == [1, 0, 3]


@pytest.mark.filterwarnings("ignore")
def test_a_tensor_of_torch_masked_is_no_gradient() -> None:
    gradient = torch.masked.masked_tensor(torch.ones(3), on(1, 0, 1))
    with pytest.raises(TypeError, match=r"mg\.from_torch_masked"):
        mg.attach_gradient(torch.nn.Parameter(torch.zeros(3)), gradient)


def test_modules_that_are_quantized_refuse() -> None:
    quantization = importlib.import_module("torch.ao.quantization")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = quantization.quantize_dynamic(nn.Sequential(nn.Linear(2, 3)), {nn.Linear})
    with pytest.raises(
        mg.UnsupportedOperationError, match=r"give the module x\.filled\(0\) and x\.mask apart"
    ):
        model(SQUARE)
