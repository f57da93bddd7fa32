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


def test_the_remedies_work() -> None:
    assert np.isnan(X.filled(nan).numpy()).tolist() == [False, True, False]
    assert mg.masked(X.filled(0).apply_(lambda v: v + 1), X.mask).tolist() == [2.0, None, 5.0]
    rows = [[1.0], [2.0, 3.0]]
    assert mg.from_sequences([torch.as_tensor(s) for s in rows]).tolist() == [[1.0, None], [2.0, 3.0]]


def test_numpy_sees_no_garbage() -> None:
    found = X.to_numpy()
    assert found.mask.tolist() == [False, True, False]
    assert np.isnan(found.data).tolist() == [False, True, False]  # for those who ignore the mask
    counts = mg.masked(torch.tensor([1, 1 << 40, 3]), on(1, 0, 1)).to_numpy()
    assert counts.data.tolist() == [1, 0, 3]


@pytest.mark.filterwarnings("ignore")
def test_a_tensor_of_torch_masked_is_no_gradient() -> None:
    gradient = torch.masked.masked_tensor(torch.ones(3), on(1, 0, 1))
    param = torch.nn.Parameter(torch.zeros(3))
    with pytest.raises(TypeError, match=r"mg\.from_torch_masked"):
        mg.attach_gradient(param, gradient)
    mg.attach_gradient(param, mg.from_torch_masked(gradient))
    mg.optim.SGD([param], lr=1.0).step()
    assert param.tolist() == [-1.0, 0.0, -1.0]


#: A function for sparse tensors, the ordinary one, and its result.
SPARSE: dict[str, tuple[Any, Any, Any]] = {
    "mm": (lambda x: torch.sparse.mm(x, ONES), lambda x: x @ ONES, [[1, 1], [5, 5]]),
    "mm amax": (
        lambda x: torch.sparse.mm(x, ONES, "amax"),
        lambda x: (x.unsqueeze(-1) * ONES.unsqueeze(-3)).amax(-2),
        [[1, 1], [3, 3]],
    ),
    "smm": (lambda x: x.smm(ONES), lambda x: x @ ONES, [[1, 1], [5, 5]]),
    "sum": (lambda x: torch.sparse.sum(x, 1), lambda x: x.sum(1), [1, 5]),
    "softmax": (lambda x: torch.sparse.softmax(x, 0), lambda x: x.softmax(0)[:, 1], [None, 1]),
    "addmm": (
        lambda x: torch.sparse.addmm(ONES, x, ONES),
        lambda x: torch.addmm(ONES, x, ONES),
        [[2, 2], [6, 6]],
    ),
    "sampled_addmm": (
        lambda x: torch.sparse.sampled_addmm(x, ONES, ONES),
        lambda x: (ONES @ ONES) * torch.ones_like(x) + x,
        [[3, None], [4, 5]],
    ),
    "sparse_mask": (
        lambda x: x.sparse_mask(x),
        lambda x: x * torch.ones_like(mg.from_sparse(torch.eye(2).to_sparse())),
        [[1, None], [None, 3]],
    ),
    "is_nonzero": (lambda x: x[1, 1].is_nonzero(), lambda x: x[1, 1], 3),
}


@pytest.mark.parametrize("name", SPARSE)
def test_functions_for_sparse_tensors_name_the_ordinary_ones(name: str) -> None:
    call, instead, expected = SPARSE[name]
    with pytest.raises((mg.UnsupportedOperationError, AttributeError), match="Write "):
        call(SQUARE)
    assert instead(SQUARE).tolist() == expected


def test_modules_that_are_quantized_refuse() -> None:
    quantization = importlib.import_module("torch.ao.quantization")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = quantization.quantize_dynamic(nn.Sequential(nn.Linear(2, 3)), {nn.Linear})
    with pytest.raises(
        mg.UnsupportedOperationError, match=r"give the module x\.filled\(0\) and x\.mask apart"
    ):
        model(SQUARE)
