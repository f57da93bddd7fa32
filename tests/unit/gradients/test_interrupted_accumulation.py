"""A step that is interrupted between two micro-batches goes on in another process, with the same bits."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import maskgrad as mg
from tests.ranks import exit_code_of

MICRO_BATCHES = 5


class Net(nn.Module):
    """Sparse, dense and half parameters; one gets masked gradients."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(7, 3, sparse=True)
        self.narrow = nn.Parameter(torch.randn(3, 3).to(torch.bfloat16))
        self.head = nn.Linear(3, 2)
        self.gate = nn.Parameter(torch.ones(3))
        mask = torch.tensor([True, False, True])
        self.gate.register_post_accumulate_grad_hook(lambda p: mg.attach_gradient(p, mg.masked(p.grad, mask)))

    def forward(self, words: Tensor) -> Tensor:
        x = self.table(words) * self.gate
        return self.head(torch.tanh(x @ self.narrow.float()))


def network() -> tuple[Net, mg.GradientAccumulator]:
    net = Net()
    return net, mg.GradientAccumulator(net)


def backward(net: Net, accumulator: mg.GradientAccumulator, number: int) -> None:
    """Micro-batch ``number``; the third lacks a loss that the others have."""
    draw = torch.Generator().manual_seed(number)
    words = torch.randint(0, 7, (number + 2,), generator=draw)
    losses: dict[str, Any] = {"main": net(words)[:, 0].square()}
    counts: dict[str, Any] = {"main": len(words)}
    if number != 2:
        losses["aux"], counts["aux"] = net(words).exp().mean(1) / 3, 0.3 + number
    accumulator.backward(losses, counts)


def go_on(path: str, stop: int | None) -> None:
    """The rest of a step; after micro-batch ``stop`` the process is gone."""
    net, accumulator = network()
    first = 0
    if os.path.exists(path):
        accumulator.load_state_dict(torch.load(path, weights_only=True))
        first = torch.load(path + ".place", weights_only=True)
    for number in range(first, MICRO_BATCHES):
        backward(net, accumulator, number)
        if number == stop:
            torch.save(accumulator.state_dict(), path)
            torch.save(number + 1, path + ".place")
            os._exit(7)
    means = accumulator.finish()
    torch.save([means, {n: p.grad for n, p in net.named_parameters()}], path + ".result")


def test_processes_that_are_killed_in_the_middle(tmp_path: Path) -> None:
    net, accumulator = network()
    for number in range(MICRO_BATCHES):
        backward(net, accumulator, number)
    means = accumulator.finish()
    wanted = {name: p.grad for name, p in net.named_parameters()}

    path = str(tmp_path / "window.pt")
    for stop, status in ((0, 7), (3, 7), (None, 0)):
        assert exit_code_of(go_on, path, stop) == status
    found, gradients = torch.load(path + ".result", weights_only=False)
    assert {name: mean.item() for name, mean in found.items()} == {n: m.item() for n, m in means.items()}
    assert set(gradients) == set(wanted)
    for name, gradient in wanted.items():
        assert type(gradients[name]) is type(gradient), name
        assert torch.equal(gradients[name].to_dense(), gradient.to_dense()), name


def interrupted(**options: Any) -> tuple[nn.Linear, dict[str, Any]]:
    net = nn.Linear(2, 1)
    accumulator = mg.GradientAccumulator(net, **options)
    accumulator.backward(net(torch.ones(3, 2)), count=3)
    return net, accumulator.state_dict()


def test_a_state_is_not_changed_by_what_follows() -> None:
    net = nn.Linear(2, 1)
    accumulator = mg.GradientAccumulator(net)
    accumulator.backward(net(torch.ones(3, 2)), count=3)
    state = accumulator.state_dict()
    before = copy.deepcopy(state)
    accumulator.backward(net(torch.ones(3, 2)), count=3)
    accumulator.finish()
    net.zero_grad()
    accumulator.load_state_dict(state)
    accumulator.backward(net(2 * torch.ones(3, 2)), count=3)
    accumulator.finish()
    torch.testing.assert_close(net.weight.grad, torch.full((1, 2), 1.5))
    assert state["gradients"][None][0][0].equal(before["gradients"][None][0][0])


def test_a_state_between_two_steps_is_empty() -> None:
    net = nn.Linear(2, 1)
    accumulator = mg.GradientAccumulator(net)
    state = accumulator.state_dict()
    accumulator.load_state_dict(state)
    assert net.weight.grad is None
    with pytest.raises(RuntimeError, match="without a backward"):
        accumulator.finish()


def test_other_parameters_are_refused() -> None:
    net, state = interrupted()
    for other, words in (
        (
            nn.Linear(3, 1),
            r"other parameters: 'weight' of shape \(1, 2\).*and this accumulator has 'weight' of",
        ),
        (nn.Linear(2, 1, bias=False), r"'bias' of shape \(1,\).*has nothing more"),
        (nn.Linear(2, 1).double(), r"float32.*float64"),
        (nn.Sequential(nn.Linear(2, 1)), r"'weight' of.*, and this accumulator has '0\.weight'"),
    ):
        with pytest.raises(ValueError, match=words):
            mg.GradientAccumulator(other).load_state_dict(state)
        assert all(p.grad is None for p in other.parameters())
    with pytest.raises(ValueError, match="other mean: entry, and this accumulator has sequence"):
        mg.GradientAccumulator(net, mean="sequence").load_state_dict(state)


def test_another_scale_is_refused() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    _, state = interrupted(scaler=scaler)
    other = nn.Linear(2, 1)
    fresh = torch.amp.GradScaler("cpu", init_scale=4.0)
    accumulator = mg.GradientAccumulator(other, scaler=fresh)
    with pytest.raises(
        ValueError, match=r"loss scale of 8\.0, and the scaler has 4\.0; call scaler\.load_state"
    ):
        accumulator.load_state_dict(state)
    fresh.load_state_dict(scaler.state_dict())
    accumulator = mg.GradientAccumulator(other, scaler=torch.amp.GradScaler("cpu", init_scale=8.0))
    accumulator.load_state_dict(state)
    accumulator.finish()
    torch.testing.assert_close(other.weight.grad, torch.full((1, 2), 8.0))


def test_a_state_in_the_middle_of_a_step_is_refused() -> None:
    net, state = interrupted()
    accumulator = mg.GradientAccumulator(net)
    net.weight.grad = torch.ones_like(net.weight)
    with pytest.raises(RuntimeError, match=r"\.grad from before"):
        accumulator.load_state_dict(state)
    net.zero_grad()
    accumulator.load_state_dict(state)
    with pytest.raises(RuntimeError, match=r"in the middle of a step; call reset\(\) first"):
        accumulator.load_state_dict(state)
    accumulator.reset()
    accumulator.load_state_dict(state)
    net.weight.grad.zero_()
    with pytest.raises(RuntimeError, match="were changed"):
        accumulator.state_dict()


def test_pickling_and_copying_are_refused() -> None:
    accumulator = mg.GradientAccumulator([nn.Parameter(torch.ones(1))])
    for call in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match=r"cannot be pickled or copied.*save accumulator\.state_dict\(\)"):
            call(accumulator)


@pytest.mark.parametrize("count", [0.37, 2.5e5, torch.tensor(1.25), torch.tensor([3.0])])
def test_any_denominator(count: Any) -> None:
    w = nn.Parameter(torch.ones(2))
    accumulator = mg.GradientAccumulator([w])
    accumulator.backward(w * torch.tensor([2.0, 3.0]), count=count)
    accumulator.backward((w * torch.tensor([5.0, 7.0])).sum() / 1.5, count=1.5)
    assert accumulator.finish().item() == pytest.approx(17 / (float(count) + 1.5))
    torch.testing.assert_close(w.grad, torch.tensor([7.0, 10.0]) / (float(count) + 1.5))


def test_means_with_class_weights() -> None:
    torch.manual_seed(0)
    net, x, y = nn.Linear(3, 4), torch.randn(7, 3), torch.tensor([0, 1, 2, 3, -100, 1, 1])
    weights = torch.tensor([0.1, 2.0, 0.7, 0.3])
    whole = nn.functional.cross_entropy(net(x), y, weight=weights)
    (wanted,) = torch.autograd.grad(whole, net.weight)
    accumulator = mg.GradientAccumulator(net)
    for some, labels in zip(x.split([4, 1, 2]), y.split([4, 1, 2]), strict=True):
        mean = nn.functional.cross_entropy(net(some), labels, weight=weights)
        accumulator.backward(mean, count=weights[labels[labels != -100]].sum())
    torch.testing.assert_close(accumulator.finish(), whole.detach())
    torch.testing.assert_close(net.weight.grad, wanted)


def test_totals_keep_all_digits(tmp_path: Path) -> None:
    """Rounding a total to six digits would pass unseen where gradients alone are compared."""
    third = torch.tensor([1e5 / 3], dtype=torch.float64)
    means = []
    for is_interrupted in (False, True):
        net = nn.Linear(1, 1, bias=False, dtype=torch.float64)
        accumulator = mg.GradientAccumulator(net)
        accumulator.backward(net(torch.zeros(1, 1, dtype=torch.float64))[0] + third, count=0.7)
        if is_interrupted:
            torch.save(accumulator.state_dict(), tmp_path / "window.pt")
            net = nn.Linear(1, 1, bias=False, dtype=torch.float64)
            accumulator = mg.GradientAccumulator(net)
            accumulator.load_state_dict(torch.load(tmp_path / "window.pt", weights_only=True))
        means.append(accumulator.finish())
    assert means[1].item() == means[0].item() == pytest.approx(third.item() / 0.7, rel=1e-12)


def test_a_program_may_end_in_the_middle() -> None:
    program = (
        "import torch, maskgrad as mg\n"
        "net = torch.nn.Linear(2, 1).half()\n"
        "accumulator = mg.GradientAccumulator(net)\n"
        "accumulator.backward(net(torch.ones(3, 2).half()), count=3)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_another_scale_leaves_the_dtypes_of_gradients_alone() -> None:
    net = nn.Linear(2, 1).half()
    accumulator = mg.GradientAccumulator(net, scaler=mg.amp.GradScaler("cpu", init_scale=8.0))
    accumulator.backward(net(torch.ones(3, 2).half()), count=3)
    state = accumulator.state_dict()
    accumulator.reset()
    other = mg.GradientAccumulator(net, scaler=mg.amp.GradScaler("cpu", init_scale=4.0))
    with pytest.raises(ValueError, match=r"loss scale of 8\.0"):
        other.load_state_dict(state)
    net(torch.ones(3, 2).half()).sum().backward()
    assert net.weight.grad.dtype is torch.float16
