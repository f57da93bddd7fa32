"""Gradients as small as epsilon, where it shows whether it is added before or after a bias correction or a root."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import maskgrad as mg
from maskgrad.optim.optimizer import MaskedOptimizer
from tests.unit.optim.optimizers import OPTIONS, WITH_ROW_STATE

SPARSE_ADAM = (mg.optim.SparseAdam, torch.optim.SparseAdam, {"lr": 1.0, "betas": (0.7, 0.95)})
CASES: dict[str, Any] = {
    # With bounds of norms, steps of LAMB cancel each other to the last digit.
    **{case: triple for case, triple in OPTIONS.items() if not triple[2].get("norm_bounds")},
    "sparse adam": SPARSE_ADAM,
    "sparse adam, usual betas": (*SPARSE_ADAM[:2], {"lr": 1.0}),
    "sparse adam, maximize": (*SPARSE_ADAM[:2], {"lr": 1.0, "maximize": True, "eps": 1e-4}),
}
every_case = pytest.mark.parametrize(("ours", "theirs", "options"), CASES.values(), ids=CASES.keys())
SHAPE = (6, 2)
STEPS = 8
SCALES = (1e-5, 1e-8, 1e-10, 1e-13)
KINDS: dict[str, Callable[[Tensor], Any]] = {
    "dense": Tensor.clone,
    "rows": lambda g: g.to_sparse(1),
    "entries": Tensor.to_sparse,
    "masked": lambda g: mg.masked(g.clone(), torch.ones_like(g, dtype=torch.bool)),
}


def signed(scale: float, dtype: torch.dtype) -> list[Tensor]:
    """No two entries are equal, and none is zero."""
    generator = torch.Generator().manual_seed(0)
    return [
        (scale * (0.5 + torch.rand(SHAPE, generator=generator, dtype=torch.float64))
         * torch.randn(SHAPE, generator=generator, dtype=torch.float64).sign()).to(dtype)
        for _ in range(STEPS)
    ]  # fmt: skip


def run(optimizer: Any, param: Tensor, gradients: list[Any]) -> Tensor:
    for gradient in gradients:
        mg.attach_gradient(param, None)
        if isinstance(gradient, mg.MaskedTensor):
            mg.attach_gradient(param, gradient)
        else:
            param.grad = gradient
        optimizer.step()
    return param.detach()


def reference(theirs: Any, options: dict[str, Any], gradients: list[Tensor]) -> Tensor:
    q = nn.Parameter(torch.zeros(SHAPE, dtype=gradients[0].dtype))
    if theirs is torch.optim.SparseAdam:
        gradients = [gradient.to_sparse(1) for gradient in gradients]
    return run(theirs([q], **options), q, gradients)


def assert_as_near_as_rounding(got: Tensor, expected: Tensor) -> None:
    """The whole step is small: its own size is what an error is measured by."""
    size = expected.abs().max()
    assert size > 0
    rounding = 20_000 * torch.finfo(got.dtype).eps
    torch.testing.assert_close(got / size, expected / size, rtol=0, atol=rounding)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@every_case
def test_epsilon_is_where_it_is_in_pytorch(
    ours: Callable[..., MaskedOptimizer], theirs: Any, options: dict[str, Any], dtype: torch.dtype
) -> None:
    for scale in SCALES:
        gradients = signed(scale, dtype)
        expected = reference(theirs, options, gradients)
        for as_kind in KINDS.values():
            p = nn.Parameter(torch.zeros(SHAPE, dtype=dtype))
            assert_as_near_as_rounding(run(ours([p], **options), p, [*map(as_kind, gradients)]), expected)


@every_case
def test_epsilon_of_rows_that_are_behind(
    ours: Callable[..., MaskedOptimizer], theirs: Any, options: dict[str, Any]
) -> None:
    """In the first step all rows have a gradient, then one of them, which is stepped alone; the closed forms follow."""
    for scale in SCALES:
        gradients = signed(scale, torch.float64)
        for number, gradient in enumerate(gradients[1:]):
            gradient[torch.arange(len(gradient)) != number % 3] = 0
        p, q = (nn.Parameter(torch.zeros(SHAPE, dtype=torch.float64)) for _ in range(2))
        mine = ours([{"params": [p], "unspecified": "zero"}], **options)
        whole = [torch.sparse_coo_tensor(torch.arange(6)[None], gradient) for gradient in gradients]
        expected = run(theirs([q], **options), q, whole if theirs is torch.optim.SparseAdam else gradients)
        got = run(mine, p, [whole[0], *(gradient.to_sparse(1) for gradient in gradients[1:])])
        mine.flush()
        assert_as_near_as_rounding(got, expected)


@every_case
def test_epsilon_of_states_per_row(
    ours: Callable[..., MaskedOptimizer], theirs: Any, options: dict[str, Any]
) -> None:
    """Entries of a row that have equal squares have one state."""
    if ours.__name__ not in (*WITH_ROW_STATE, "SparseAdam") or options.get("centered"):
        return
    for scale in SCALES:
        gradients = [gradient[:, :1] * torch.tensor([1.0, -1.0]) for gradient in signed(scale, torch.float64)]
        expected = reference(theirs, options, gradients)
        for kind in ("dense", "rows", "masked"):
            p = nn.Parameter(torch.zeros(SHAPE, dtype=torch.float64))
            mine = ours([{"params": [p], "state": "row"}], **options)
            assert_as_near_as_rounding(run(mine, p, [*map(KINDS[kind], gradients)]), expected)


@every_case
def test_epsilon_of_functional_forms(
    ours: Callable[..., MaskedOptimizer], theirs: Any, options: dict[str, Any]
) -> None:
    function = getattr(mg.optim.functional, f"{ours.__name__.lower()}_", None)
    if function is None:  # SparseAdam
        return
    for scale in SCALES:
        gradients = signed(scale, torch.float64)
        p = nn.Parameter(torch.zeros(SHAPE, dtype=torch.float64))
        model = ours([p], **options)
        group, names = model.param_groups[0], inspect.signature(function).parameters
        states = model._states(p, model._read_group(group))
        declared = model._read_group(group).states()
        given: dict[str, Any] = {s.argument or s.name: t for s, t in zip(declared, states, strict=False)}
        given |= {name: model.state[p][name] for name in model._rule.scalars}
        given |= {name: group[name] for name in names if name in group and name not in given}
        given |= {"started": torch.zeros(SHAPE, dtype=torch.bool)} if options.get("dampening") else {}
        for step, gradient in enumerate(gradients, 1):
            given |= {"step": step} if "step" in names else {}
            function(p, gradient, **given)
        assert_as_near_as_rounding(p.detach(), reference(theirs, options, gradients))


def test_three_steps_of_sparse_adam() -> None:
    p = nn.Parameter(torch.zeros(1))
    optimizer = mg.optim.SparseAdam([p], lr=1.0)
    for _ in range(3):
        p.grad = torch.sparse_coo_tensor([[0]], torch.tensor([1e-8]), (1,), check_invariants=True)
        optimizer.step()
    m, v, expected = 0.0, 0.0, 0.0
    for t in (1, 2, 3):
        m, v = 0.9 * m + 0.1 * 1e-8, 0.999 * v + 0.001 * 1e-16
        expected -= (1 - 0.999**t) ** 0.5 / (1 - 0.9**t) * m / (v**0.5 + 1e-8)
    assert p.item() == pytest.approx(expected, rel=1e-5) == pytest.approx(-0.12535, rel=1e-4)


def test_sparse_adam_in_half_precision() -> None:
    """Computed in single precision, and rounded once."""
    for scale in (1e-2, 1e-8):
        gradients = signed(scale, torch.bfloat16)
        expected = reference(
            torch.optim.SparseAdam, {"lr": 1.0}, [gradient.float() for gradient in gradients]
        )
        p = nn.Parameter(torch.zeros(SHAPE, dtype=torch.bfloat16))
        got = run(mg.optim.SparseAdam([p], lr=1.0), p, [gradient.to_sparse(1) for gradient in gradients])
        torch.testing.assert_close(got.float(), expected, rtol=0, atol=0.03 * float(expected.abs().max()))
