"""``unspecified="zero"``: a missing gradient counts as zero, whenever its row is brought up to date."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler

from maskgrad import attach_gradient
from tests.unit.optim.beside import assert_close, assert_states_close, beside_dense
from tests.unit.optim.kinds import FULL
from tests.unit.optim.optimizers import Case
from tests.unit.optim.suite.states import filed

SCHEDULES: dict[str, Callable[[Any], Any] | None] = {
    "constant": None,
    "warm-up from almost nothing": partial(lr_scheduler.LinearLR, start_factor=1e-3, total_iters=100),
    "cosine, to 0 and back": partial(lr_scheduler.CosineAnnealingLR, T_max=60),
}
SCALES = (1e-5, 1e-8, 1e-10, 1e-13)


def exactness(case: Case) -> float:
    """PyTorch keeps the step sizes of ASGD in float32, whatever the parameter is."""
    return 1e-7 if case.keeps_singles else 1e-9


def signed(scale: float, dtype: torch.dtype, steps: int = 8) -> list[Tensor]:
    """No two entries are equal, and none is zero."""
    generator = torch.Generator().manual_seed(0)
    numbers = torch.rand(steps, 2, 6, 2, generator=generator, dtype=torch.float64)
    return [*(scale * (0.5 + numbers[:, 0]) * (numbers[:, 1] - 0.5).sign()).to(dtype)]


def assert_as_near_as_rounding(got: Tensor, expected: Tensor) -> None:
    """The whole step is small: its own size is what an error is measured by."""
    size = expected.abs().max()
    assert size > 0
    torch.testing.assert_close(got / size, expected / size, rtol=0, atol=20_000 * torch.finfo(got.dtype).eps)


class Behind:
    @pytest.mark.forms(per=lambda case: case.ours)
    @pytest.mark.parametrize("schedule", SCHEDULES)
    def test_it_equals_the_dense_optimizer_after_gaps(self, case: Case, schedule: str) -> None:
        """Whatever the learning rates, and if each continues from the states of the other."""

        def meanwhile(step: int, p: nn.Parameter, lazy: Any, eager: Any) -> None:
            if step in (90, 130):  # turns float32 numbers among the states into float64
                mine, theirs = filed(lazy.state_dict()), filed(eager.state_dict())
                lazy.load_state_dict(theirs if step == 90 else mine)
                eager.load_state_dict(mine if step == 90 else theirs)

        options: dict[str, Any] = {"schedule": SCHEDULES[schedule], "meanwhile": meanwhile}
        p, q, lazy, eager = beside_dense(case.ours, case.theirs, case.options, **options)
        lazy.flush()
        assert_close(p, q, exactness(case))
        assert_states_close(lazy, p, eager, q, exactness(case))

    def test_in_float32_it_is_as_exact_as_the_dense_optimizer(self, case: Case) -> None:
        """A sign, or a ratio of two small numbers, can turn rounding into steps: the dense one shows how much."""
        run = partial(beside_dense, case.ours, case.theirs, case.options, dtype=torch.float32)
        (p, exact, lazy, _), (_, q, _, _) = run(), run(precise=torch.float32)
        lazy.flush()
        error, unavoidable = (p - exact).abs().max(), (q - exact).abs().max()
        assert error <= 3 * unavoidable + 1e-6 * exact.abs().max()

    def test_one_value_per_row(self, row_case: Case) -> None:
        p, q = (nn.Parameter(torch.linspace(-1, 1, 24, dtype=torch.float64).view(4, 3, 2)) for _ in range(2))
        lazy, eager = row_case.mine([p], unspecified="zero", state="row"), row_case.mine([q], state="row")
        for step in range(30):
            pieces = torch.tensor([[step % 3, step % 2], [step % 3, 1]])
            values = torch.sin(torch.arange(4, dtype=torch.float64) + step).view(2, 2)
            p.grad = torch.sparse_coo_tensor(pieces, values, p.shape, check_invariants=True)
            q.grad = p.grad.to_dense()
            lazy.step()
            eager.step()
        lazy.flush()
        assert_close(p, q, 1e-9)

    def test_epsilon_is_where_it_is_in_pytorch(self, case: Case) -> None:
        """Gradients as small as it show whether it is added before or after a bias correction or a root."""
        for scale in SCALES:
            for dtype in (torch.float32, torch.float64):
                gradients = signed(scale, dtype)
                expected = _run(case.reference, gradients)
                for kind in ("dense", "rows", "coo", "masked"):
                    got = _run(case.mine, [*map(FULL[kind], gradients)])
                    assert_as_near_as_rounding(got, expected)
            # in the first step all rows have a gradient, then one; the closed forms follow
            for number, gradient in enumerate(gradients[1:]):
                gradient[torch.arange(6) != number % 3] = 0
            sparse = [torch.sparse_coo_tensor(torch.arange(6)[None], gradients[0], check_invariants=True)]
            sparse += [gradient.to_sparse(1) for gradient in gradients[1:]]
            got = _run(lambda params: case.mine(params, unspecified="zero"), sparse)
            assert_as_near_as_rounding(got, _run(case.reference, gradients))


def _run(make: Callable[[Any], Any], gradients: list[Any]) -> Tensor:
    """From zeros."""
    dtype = gradients[0].dtype
    p = nn.Parameter(torch.zeros(6, 2, dtype=dtype))
    optimizer = make([p])
    for gradient in gradients:
        attach_gradient(p, gradient)
        optimizer.step()
    if hasattr(optimizer, "flush"):
        optimizer.flush()
    return p.detach()
