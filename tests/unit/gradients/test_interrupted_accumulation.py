"""A step that is interrupted between two micro-batches goes on from a file, with the same bits."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import maskgrad as mg


class Net(nn.Module):
    """Sparse, dense, double and half parameters; one gets masked gradients."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(7, 3, sparse=True)
        self.narrow = nn.Parameter(torch.randn(3, 3).to(torch.bfloat16))
        self.head = nn.Linear(3, 2, dtype=torch.float64)
        self.gate = nn.Parameter(torch.ones(3))
        mask = torch.tensor([True, False, True])
        self.gate.register_post_accumulate_grad_hook(lambda p: mg.attach_gradient(p, mg.masked(p.grad, mask)))

    def forward(self, words: Tensor) -> Tensor:
        x = self.table(words) * self.gate
        return self.head(torch.tanh(x @ self.narrow.float()).double())


def backward(net: Net, accumulator: mg.GradientAccumulator, number: int) -> None:
    """Micro-batch ``number``; the third lacks a loss that the others have."""
    draw = torch.Generator().manual_seed(number)
    words = torch.randint(0, 7, (number + 2,), generator=draw)
    losses: dict[str, Any] = {"main": net(words)[:, 0].square()}
    counts: dict[str, Any] = {"main": len(words)}
    if number != 2:
        losses["aux"], counts["aux"] = net(words).exp().mean(1) / 3, 0.3 + number
    accumulator.backward(losses, counts)


def finished(stops: tuple[int, ...], path: Path) -> tuple[Any, dict[str, Any]]:
    """A step that goes on in a new network, with what a file holds, after the micro-batches ``stops``."""
    accumulator = mg.GradientAccumulator(net := Net())
    for number in range(5):
        backward(net, accumulator, number)
        if number in stops:
            torch.save(accumulator.state_dict(), path)
            accumulator = mg.GradientAccumulator(net := Net())
            accumulator.load_state_dict(torch.load(path, weights_only=True))
    return accumulator.finish(), {name: p.grad for name, p in net.named_parameters()}


def test_a_step_that_is_interrupted_ends_with_the_same_bits(tmp_path: Path) -> None:
    means, wanted = finished((), tmp_path / "window.pt")
    found, gradients = finished((0, 3), tmp_path / "window.pt")
    assert found == means  # in float64, in which all digits of the totals count
    assert set(gradients) == set(wanted)
    for name, gradient in wanted.items():
        assert type(gradients[name]) is type(gradient), name
        assert torch.equal(gradients[name].to_dense(), gradient.to_dense()), name


def test_a_state_dict_is_not_changed_by_later_micro_batches() -> None:
    net = nn.Linear(2, 1)
    accumulator = mg.GradientAccumulator(net)
    accumulator.backward(net(torch.ones(3, 2)), count=3)
    for _ in range(3):
        state = accumulator.state_dict()
        accumulator.backward(net(2 * torch.ones(3, 2)), count=3)
        accumulator.finish()
        torch.testing.assert_close(net.weight.grad, torch.full((1, 2), 1.5))
        net.zero_grad()
        accumulator.load_state_dict(state)


def interrupted(net: nn.Module, **options: Any) -> dict[str, Any]:
    accumulator = mg.GradientAccumulator(net, **options)
    accumulator.backward(net(torch.ones(3, 2).to(next(net.parameters()).dtype)), count=3)
    return accumulator.state_dict()


def test_other_parameters_are_refused() -> None:
    net = nn.Linear(2, 1)
    state = interrupted(net)
    for other, words in (
        (nn.Linear(3, 1), r"other parameters: 'weight' of shape \(1, 2\).*this accumulator has 'weight' of"),
        (nn.Linear(2, 1, bias=False), r"'bias' of shape \(1,\).*has nothing more"),
        (nn.Linear(2, 1).double(), r"float32.*float64"),
    ):
        with pytest.raises(ValueError, match=words):
            mg.GradientAccumulator(other).load_state_dict(state)
        assert all(p.grad is None for p in other.parameters())
    with pytest.raises(ValueError, match=r"other mean: token-mean, and this .* seq-mean-token-mean"):
        mg.GradientAccumulator(net, mean="seq-mean-token-mean").load_state_dict(state)


def test_another_scale_is_refused_and_leaves_the_parameters_as_they_were() -> None:
    net = nn.Linear(2, 1).bfloat16()
    scaler, fresh = (mg.amp.GradScaler("cpu", init_scale=scale) for scale in (8.0, 4.0))
    state = interrupted(net, scaler=scaler)
    net.zero_grad()
    other = mg.GradientAccumulator(net, scaler=fresh)
    with pytest.raises(
        ValueError, match=r"scale of 8\.0, and the scaler has 4\.0; call scaler\.load_state_dict"
    ):
        other.load_state_dict(state)
    assert net.weight.grad is None
    fresh.load_state_dict(scaler.state_dict())
    other.load_state_dict(state)
    other.finish()
    assert net.weight.grad.tolist() == [[8.0, 8.0]]


def test_a_state_is_loaded_between_two_steps() -> None:
    net = nn.Linear(2, 1)
    accumulator = mg.GradientAccumulator(net)
    accumulator.load_state_dict(accumulator.state_dict())  # of nothing
    assert net.weight.grad is None
    state = interrupted(net)
    net.weight.grad = torch.ones(1, 2)
    with pytest.raises(RuntimeError, match=r"\.grad from before"):
        accumulator.load_state_dict(state)
    net.zero_grad()
    accumulator.load_state_dict(state)
    with pytest.raises(RuntimeError, match=r"in the middle of a step; call reset\(\) first"):
        accumulator.load_state_dict(state)


def test_pickling_and_copying_are_refused() -> None:
    accumulator = mg.GradientAccumulator([nn.Parameter(torch.ones(1))])
    for call in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match=r"cannot be pickled or copied.*save accumulator\.state_dict\(\)"):
            call(accumulator)


def test_a_program_may_end_in_the_middle() -> None:
    program = (
        "import torch, maskgrad as mg\n"
        "net = torch.nn.Linear(2, 1).half()\n"
        "accumulator = mg.GradientAccumulator(net)\n"
        "accumulator.backward(net(torch.ones(3, 2).half()), count=3)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
