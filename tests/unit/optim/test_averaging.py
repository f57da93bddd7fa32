"""Lazy averages against PyTorch's dense ones: the same numbers, however rows come and go."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import maskgrad as mg
from maskgrad.optim import ExponentialMovingAverage
from tests.unit.optim.kinds import coo, every_kind

nan = float("nan")


class Reference:
    """The average as it is defined, of copies of whole parameters."""

    def __init__(self, params: list[Tensor], decay: float) -> None:
        self.params, self.decay = params, decay
        self.averages: list[Tensor] = []

    def update(self, decay: float | None = None) -> None:
        d = self.decay if decay is None else decay
        now = [p.detach().to(torch.promote_types(p.dtype, torch.float64)) for p in self.params]
        if not self.averages:
            self.averages = [w.clone() for w in now]
        self.averages = [d * a + (1 - d) * w for a, w in zip(self.averages, now, strict=True)]

    def check(self, ema: ExponentialMovingAverage) -> None:
        for ours, wanted in zip(ema.averages(), self.averages, strict=True):
            torch.testing.assert_close(ours, wanted.to(ours.dtype))


def rows_of(step: int, size: int = 20, count: int = 3) -> Tensor:
    return torch.randint(size, (count,), generator=torch.Generator().manual_seed(step))


@pytest.mark.parametrize("decay", [0.0, 0.3, 0.9, 0.999, 1.0])
@pytest.mark.parametrize("library", [mg.optim, torch.optim], ids=["mg", "torch"])
def test_of_dense_gradients_it_is_torchs_average(decay: float, library: Any) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = library.Adam(net.parameters(), lr=0.1)
    theirs = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(decay))
    ours = ExponentialMovingAverage(net.parameters(), decay)
    for step in range(10):
        optimizer.zero_grad()
        net(torch.randn(5, 3, generator=torch.Generator().manual_seed(step))).square().mean().backward()
        optimizer.step()
        theirs.update_parameters(net)
        ours.update()
    for mine, wanted in zip(ours.averages(), theirs.module.parameters(), strict=True):
        assert torch.equal(mine, wanted)
    assert ours.num_updates == int(theirs.n_averaged)


OPTIMIZERS: dict[str, Any] = {
    "mg SGD": lambda p: mg.optim.SGD(p, lr=0.5, momentum=0.9, weight_decay=0.1),
    "mg Adagrad": lambda p: mg.optim.Adagrad(p, lr=0.5),
    "mg SGD zero": lambda p: mg.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.1, unspecified="zero"),
    "mg AdamW zero": lambda p: mg.optim.AdamW(p, lr=0.05, unspecified="zero"),
    "SparseAdam": lambda p: torch.optim.SparseAdam(p, lr=0.5),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.5),
    "SGD": lambda p: torch.optim.SGD(p, lr=0.5),
    "SGD with momentum": lambda p: torch.optim.SGD(p, lr=0.5, momentum=0.9),
}


@pytest.mark.parametrize("build", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
@pytest.mark.parametrize("decay", [0.0, 0.5, 0.99])
def test_rows_that_come_and_go(build: Any, decay: float) -> None:
    torch.manual_seed(0)
    table = nn.Embedding(20, 2, sparse=True, dtype=torch.float64)
    optimizer = build(list(table.parameters()))
    ema, reference = ExponentialMovingAverage(table.parameters(), decay), Reference([table.weight], decay)
    for step in range(40):
        optimizer.zero_grad()
        (table(rows_of(step)) ** 2).sum().backward()
        optimizer.step()
        if step % 11 == 3:
            optimizer.zero_grad()  # as many do, right after the step
        ema.update()
        if hasattr(optimizer, "flush"):
            optimizer.flush()
        reference.update()
        if step % 7 == 5:
            reference.check(ema)
        if step % 9 == 8:  # an iteration without a step, as after an overflow
            ema.update()
            reference.update()
    reference.check(ema)


@every_kind
def test_gradients_of_every_layout_alternating_with_dense_ones(kind: Any) -> None:
    p = nn.Parameter(torch.ones(6, 4))
    optimizer = mg.optim.SGD([p], lr=0.1)
    ema, reference = ExponentialMovingAverage([p], 0.7), Reference([p], 0.7)
    for step in range(12):
        optimizer.zero_grad()
        if step % 5 == 4:
            p.grad = torch.ones(6, 4)
        elif step % 5 != 2:
            dense = torch.zeros(6, 4)
            dense[rows_of(step, 6, 2), rows_of(step + 100, 4, 2)] = 1.0
            mg.attach_gradient(p, kind(dense))
        optimizer.step()
        ema.update()
        reference.update()
        if step == 6:
            reference.check(ema)
    reference.check(ema)


def test_several_steps_between_updates_and_several_optimizers() -> None:
    p = nn.Parameter(torch.ones(6, 1))
    optimizers = [mg.optim.SGD([p], lr=0.1), torch.optim.Adagrad([p], lr=0.1)]
    ema, reference = ExponentialMovingAverage([p], 0.7), Reference([p], 0.7)
    for step in range(15):
        for optimizer in optimizers:
            p.grad = coo([rows_of(step, 6, 2).tolist()], [[1.0], [2.0]], (6, 1))
            optimizer.step()
        if step % 3 == 2:
            ema.update()
            reference.update()
    reference.check(ema)


@pytest.mark.parametrize("build", [mg.optim.SGD, torch.optim.LBFGS])
def test_a_closure_moves_what_its_gradient_says(build: Any) -> None:
    p = nn.Parameter(torch.arange(6.0).view(6, 1))
    optimizer = build([p], lr=0.1)
    ema, reference = ExponentialMovingAverage([p], 0.7), Reference([p], 0.7)
    for step in range(5):

        def closure(step: int = step) -> Tensor:
            optimizer.zero_grad()
            rows = nn.functional.embedding(rows_of(step, 6, 2), p, sparse=build is mg.optim.SGD)
            loss = rows.square().sum()
            loss.backward()
            return loss

        optimizer.step(closure)
        ema.update()
        reference.update()
    reference.check(ema)


def test_a_decay_that_warms_up() -> None:
    table = nn.Embedding(10, 2, sparse=True)
    optimizer = mg.optim.SGD(table.parameters(), lr=0.1)
    ema, reference = ExponentialMovingAverage(table.parameters()), Reference([table.weight], 0.999)
    assert ema.decay == 0.999
    for step in range(30):
        optimizer.zero_grad()
        table(rows_of(step, 10)).sum().backward()
        optimizer.step()
        decay = 0.0 if step == 4 else min(0.99, (1 + step) / (10 + step))
        ema.update(decay)
        reference.update(decay)
    reference.check(ema)


def test_a_row_at_rest_for_long() -> None:
    p = nn.Parameter(torch.zeros(2, 1, dtype=torch.float64))
    optimizer, ema = mg.optim.SGD([p], lr=1.0), ExponentialMovingAverage([p], 0.999)
    ema.update()
    p.grad = coo([[0]], [[-1.0]], (2, 1), torch.float64)
    optimizer.step()
    for _ in range(5000):
        ema.update()
    assert ema.averages()[0][0].item() == pytest.approx(1 - 0.999**5000, rel=1e-12)
    assert ema.averages()[0][1].item() == 0.0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.complex64])
def test_other_dtypes(dtype: torch.dtype) -> None:
    p = nn.Parameter(torch.ones(5, 2, dtype=dtype))
    optimizer = mg.optim.SGD([p], lr=0.125)
    ema, reference = ExponentialMovingAverage([p], 0.99), Reference([p], 0.99)
    for step in range(20):
        p.grad = coo([[step % 4, 1]], torch.ones(2, 2), (5, 2), dtype)
        optimizer.step()
        ema.update()
        reference.update()
    assert ema.averages()[0].dtype == torch.promote_types(dtype, torch.float32)
    reference.check(ema)
    before = p.detach().clone()
    with ema.applied():
        assert p.dtype == dtype
        torch.testing.assert_close(p.detach(), reference.averages[0].to(dtype))
    assert torch.equal(p.detach(), before)


def test_scalars_empty_parameters_views_and_unmerged_entries() -> None:
    z, e = nn.Parameter(torch.tensor(1.0)), nn.Parameter(torch.ones(0, 2))
    t = nn.Parameter(torch.ones(3, 4).t())
    params = [z, e, t]
    optimizer = mg.optim.SGD(params, lr=0.1)
    ema, reference = ExponentialMovingAverage(params, 0.5), Reference(params, 0.5)
    for step in range(6):
        z.grad, e.grad = torch.tensor(1.0), torch.ones(0, 2)
        t.grad = coo([[step % 4, 0, 0], [0, 1, 1]], [1.0, 2.0, 3.0], (4, 3))
        optimizer.step()
        ema.update()
        reference.update()
    reference.check(ema)


def test_buffers_are_averaged_at_each_update() -> None:
    net = nn.BatchNorm1d(2)
    buffers = [b for b in net.buffers() if b.is_floating_point()]
    ema, reference = ExponentialMovingAverage([*net.parameters(), *buffers], 0.5), Reference(buffers, 0.5)
    for step in range(4):
        net(torch.randn(5, 2, generator=torch.Generator().manual_seed(step)))
        ema.update()
        reference.update()
    for mine, wanted in zip(ema.averages()[2:], reference.averages, strict=True):
        torch.testing.assert_close(mine, wanted.float())


def test_changes_by_hand_after_a_flush() -> None:
    p = nn.Parameter(torch.ones(3, 1))
    optimizer, ema = mg.optim.SGD([p], lr=0.5), ExponentialMovingAverage([p], 0.5)
    reference = Reference([p], 0.5)
    for step in range(6):
        p.grad = coo([[step % 2]], [[1.0]], (3, 1))
        optimizer.step()
        if step == 3:
            ema.flush()
            p.data[2] = 9.0
        ema.update()
        reference.update()
    reference.check(ema)


def test_with_a_scaler_that_skips_and_with_frozen_entries() -> None:
    p = nn.Parameter(torch.ones(4, 2))
    mg.train_only(p, torch.tensor([[True], [False], [True], [True]]))
    optimizer, ema = mg.optim.SGD([p], lr=0.5), ExponentialMovingAverage([p], 0.5)
    reference, scaler = Reference([p], 0.5), mg.amp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(torch.zeros(()))
    for step in range(6):
        values = torch.full((3, 2), nan if step == 2 else 1.0)
        p.grad = coo([[step % 4, 1, 0]], values, (4, 2))
        scaler.step(optimizer)
        scaler.update()
        ema.update()
        reference.update()
    reference.check(ema)
    assert ema.averages()[0][1].tolist() == [1.0, 1.0]


def test_averages_are_applied_for_a_while() -> None:
    table = nn.Embedding(3, 1, sparse=True)
    optimizer, ema = (
        mg.optim.SGD(table.parameters(), lr=1.0),
        ExponentialMovingAverage(table.parameters(), 0.5),
    )
    table.weight.data.fill_(1.0)
    for row in range(3):
        optimizer.zero_grad()
        table(torch.tensor([row])).sum().backward()
        optimizer.step()
        ema.update()
    pointer = table.weight.data_ptr()
    with ema.applied():
        assert table.weight.flatten().tolist() == [0.0, 0.25, 0.5]
        assert table.weight.data_ptr() == pointer
        assert ema.averages()[0].flatten().tolist() == [0.0, 0.25, 0.5]
        for refused in (ema.update, optimizer.step, ema.copy_to, ema.applied().__enter__):
            with pytest.raises(RuntimeError, match="while the parameters hold their averages"):
                refused()
    assert table.weight.flatten().tolist() == [0.0] * 3
    with pytest.raises(KeyError, match="stop"), ema.applied():
        raise KeyError("stop")
    assert table.weight.flatten().tolist() == [0.0] * 3
    other = nn.Embedding(3, 1)
    ema.copy_to(other.parameters())
    assert other.weight.flatten().tolist() == [0.0, 0.25, 0.5]
    ema.copy_to()
    assert table.weight.flatten().tolist() == [0.0, 0.25, 0.5]
    assert ema.average_of(table.weight) is ema.averages()[0]


@pytest.mark.parametrize("how", ["state dict", "pickle", "deepcopy"])
def test_training_goes_on_from_a_copy(how: str) -> None:
    torch.manual_seed(0)
    table = nn.Embedding(6, 2, sparse=True)
    ema = ExponentialMovingAverage(table.parameters(), 0.9)
    reference = Reference([table.weight], 0.9)

    def train(table: Any, ema: ExponentialMovingAverage, steps: range) -> None:
        optimizer = mg.optim.SGD(table.parameters(), lr=0.1)
        for step in steps:
            optimizer.zero_grad()
            table(rows_of(step, 6)).sum().backward()
            optimizer.step()
            ema.update()
            reference.params = [table.weight]
            reference.update()

    train(table, ema, range(5))
    if how == "state dict":
        other = copy.deepcopy(table)
        again = ExponentialMovingAverage(other.parameters(), 0.1)
        again.update()
        again.load_state_dict(copy.deepcopy(ema.state_dict()))
        assert (again.decay, again.num_updates) == (0.9, 5)
    else:
        through = copy.deepcopy if how == "deepcopy" else lambda x: pickle.loads(pickle.dumps(x))
        other, again = through((table, ema))
        assert again._tracker.averages[0].param is other.weight
    train(other, again, range(5, 12))
    reference.check(again)


def test_masked_leaves() -> None:
    x = mg.from_sparse(torch.eye(3).to_sparse()).requires_grad_()
    optimizer, ema = mg.optim.SGD([x], lr=0.5), ExponentialMovingAverage([x], 0.5)
    for _ in range(2):
        optimizer.zero_grad()
        x.sum().backward()
        optimizer.step()
        ema.update()
    assert ema.average_of(x).tolist() == [0.25] * 3


def test_what_is_refused() -> None:
    p = nn.Parameter(torch.ones(2))
    for params, decay, error, words in (
        ([], 0.9, ValueError, "params is empty"),
        ([p, p], 0.9, ValueError, "contains a tensor twice"),
        ([p, 3.0], 0.9, TypeError, "tensor 1 is float"),
        ([torch.eye(2).to_sparse()], 0.9, TypeError, r"tensor 0 is torch\.sparse_coo"),
        ([torch.ones(2).long()], 0.9, TypeError, r"dtype torch\.int64, which cannot be averaged"),
        ([p], 1.1, ValueError, "decay must be between 0 and 1, got 1.1"),
        ([p], -0.1, ValueError, "decay must be between 0 and 1"),
        ([p], nan, ValueError, "decay must be finite"),
        ([p], "fast", TypeError, "decay must be a number"),
    ):
        with pytest.raises(error, match=words):
            ExponentialMovingAverage(params, decay)  # type: ignore[arg-type]
    ema = ExponentialMovingAverage([p], 0.9)
    ema.update()
    state = ema.state_dict()
    with pytest.raises(ValueError, match="decay must be between"):
        ema.update(2.0)
    with pytest.raises(KeyError, match="not one of the averaged tensors"):
        ema.average_of(torch.ones(2))
    for spoiled, error, words in (
        ({"averages": [torch.ones(3)]}, ValueError, r"tensor 0 has shape \(3,\), but \(2,\) is expected"),
        ({"averages": []}, ValueError, "contains 0 tensors, but 1 are expected"),
        ({"decay": 3.0}, ValueError, "decay must be between"),
    ):
        with pytest.raises(error, match=words):
            ema.load_state_dict({**state, **spoiled})
        with pytest.raises(error, match=words):
            ema.load_state_dict({**state, "num_updates": 9, **spoiled})
    assert (ema.decay, ema.num_updates) == (0.9, 1)
    with pytest.raises(ValueError, match="params contains 2 tensors, but 1 are expected"):
        ema.copy_to([p, p])
    assert math.isclose(ema.averages()[0][0].item(), 1.0)
    assert repr(ema) == "ExponentialMovingAverage(decay=0.9, num_updates=1, parameters=1)"
