"""Models over several devices: MaskedTensors move inside forward, through DataParallel, and from stage to stage."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

import maskgrad as mg
from tests.ranks import run_on_ranks

BATCH, WIDTH = 8, 4


def incomplete() -> tuple[Tensor, Tensor]:
    """Data with garbage under the mask, the last sample unspecified as a whole."""
    data = torch.randn(BATCH, WIDTH)
    mask = torch.rand(BATCH, WIDTH) > 0.4
    mask[-1] = False
    garbage = torch.tensor([float("nan"), float("inf"), -float("inf"), 1e38]).repeat(BATCH, 1)
    return torch.where(mask, data, garbage), mask


class First(nn.Module):
    """What stands on one device: plain tensors in, plain tensors out, which every transport knows."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, 5)

    def forward(self, data: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        y: Any = torch.relu(self.linear(mg.masked(data, mask)))
        return y.filled(0.0).contiguous(), y.mask.contiguous()


class Second(nn.Module):
    """What stands on the other: the mean of each column over the samples that have it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 2)

    def forward(self, data: Tensor, mask: Tensor) -> Tensor:
        scores: Any = self.linear(mg.masked(data, mask))
        return cast(Tensor, scores.mean(1).filled(0.0))


class OnTwoDevices(nn.Module):
    """Two layers on two devices; a MaskedTensor is carried over inside ``forward``."""

    def __init__(self, devices: tuple[str, str]) -> None:
        super().__init__()
        self.devices = devices
        self.first, self.second = nn.Linear(WIDTH, 5).to(devices[0]), nn.Linear(5, 2).to(devices[1])

    def forward(self, x: Any) -> Any:
        hidden = torch.relu(self.first(x.to(self.devices[0])))
        return self.second(hidden.to(self.devices[1], non_blocking=True))


def trained_on(devices: tuple[str, str]) -> list[Tensor]:
    torch.manual_seed(1)
    data, mask = incomplete()
    data.requires_grad_()
    model = OnTwoDevices(devices)
    loss = model(mg.masked(data, mask)).square().mean()
    assert loss.device.type == devices[1].partition(":")[0]
    loss.backward()
    assert data.grad is not None
    assert torch.equal(data.grad[~mask], torch.zeros(int((~mask).sum())))
    return [
        loss.detach().cpu(),
        data.grad,
        *(cast(Tensor, p.grad).cpu() for p in model.parameters()),
    ]


def test_a_masked_tensor_moves_inside_forward() -> None:
    x = mg.masked(*incomplete())
    shadow = OnTwoDevices(("cpu", "meta"))(x)
    expected = OnTwoDevices(("cpu", "cpu"))(x)
    assert shadow.device.type == shadow.mask.device.type == "meta"
    assert shadow.shape == expected.shape
    assert all(bool(g.isfinite().all()) for g in trained_on(("cpu", "cpu")))


@pytest.mark.gpu
@pytest.mark.parametrize("devices", [("cpu", "cuda:0"), ("cuda:0", "cpu")])
def test_results_do_not_depend_on_the_devices(devices: tuple[str, str]) -> None:
    for found, expected in zip(trained_on(devices), trained_on(("cpu", "cpu")), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


class MaskedMeans(nn.Module):
    """Takes data and mask as plain tensors, which DataParallel cuts along the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, 3)

    def forward(self, data: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        y: Any = self.linear(mg.masked(data, mask)).mean(1)
        return y.filled(0.0), y.mask


def data_parallel_as_alone(device: str) -> None:
    data, mask = (t.to(device) for t in incomplete())
    model = MaskedMeans().to(device)
    results = []
    for each in (model, nn.DataParallel(model)):
        model.zero_grad()
        y = mg.masked(*each(data, mask))
        y.square().mean().backward()
        results.append([y.filled(-1.0), y.mask, model.linear.weight.grad])
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected)


def test_data_parallel_does_not_break() -> None:
    data_parallel_as_alone("cpu")
    # Where there is no GPU it hands its arguments on, whatever they are.
    x = mg.masked(*incomplete())
    linear = nn.Linear(WIDTH, 2)
    found, expected = nn.DataParallel(linear)(x), linear(x)
    assert torch.equal(found.mask, expected.mask)
    assert torch.equal(found.filled(0.0), expected.filled(0.0))


@pytest.mark.gpu
def test_data_parallel_on_gpus() -> None:
    data_parallel_as_alone("cuda")


def stages() -> tuple[First, Second]:
    torch.manual_seed(5)
    return First(), Second()


def loss_of(scores: Tensor, targets: Tensor) -> Tensor:
    return (scores - targets).square().sum()


def in_one_process() -> tuple[Tensor, list[list[Tensor]]]:
    torch.manual_seed(2)
    data, mask = incomplete()
    first, second = stages()
    loss = loss_of(second(*first(data, mask)), torch.ones(BATCH))
    loss.backward()
    return loss.detach(), [[cast(Tensor, p.grad) for p in stage.parameters()] for stage in (first, second)]


def by_messages(rank: int, world_size: int) -> tuple[Any, list[Tensor]]:
    """Values and mask go to the next rank, the gradient of the values comes back."""
    torch.manual_seed(2)
    data, mask = incomplete()
    stage = stages()[rank]
    loss = None
    if rank == 0:
        values, known = stage(data, mask)
        torch.distributed.send(values.detach(), 1)
        torch.distributed.send(known, 1)
        grad = torch.empty_like(values)
        torch.distributed.recv(grad, 1)
        values.backward(grad)
    else:
        values, known = torch.empty(BATCH, 5), torch.empty(BATCH, 5, dtype=torch.bool)
        torch.distributed.recv(values, 0)
        torch.distributed.recv(known, 0)
        loss = loss_of(stage(values.requires_grad_(), known), torch.ones(BATCH))
        loss.backward()
        assert values.grad is not None
        assert torch.equal(values.grad[~known], torch.zeros(int((~known).sum())))
        torch.distributed.send(values.grad, 0)
        loss = loss.detach()
    return loss, [cast(Tensor, p.grad) for p in stage.parameters()]


def by_schedule(rank: int, world_size: int) -> tuple[Any, list[Tensor]]:
    """torch.distributed.pipelining: values and mask are two tensors."""
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    module = stages()[rank]
    torch.manual_seed(2)
    data, mask = incomplete()
    stage = PipelineStage(module, rank, world_size, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, 2, loss_fn=loss_of, scale_grads=False)
    losses: list[Tensor] = []
    if rank == 0:
        schedule.step(data, mask)
    else:
        schedule.step(target=torch.ones(BATCH), losses=losses)
    loss = torch.stack(losses).sum().detach() if losses else None
    return loss, [cast(Tensor, p.grad) for p in module.parameters()]


TWO_TENSORS = pytest.param(
    by_schedule,
    marks=pytest.mark.skipif(
        torch.__version__.startswith("2.12."),
        reason="the schedules of PyTorch 2.12 want a gradient for every tensor, masks included",
    ),
)


@pytest.mark.parametrize("program", [by_messages, TWO_TENSORS])
def test_a_pipeline_over_ranks_carries_values_and_mask(program: Any) -> None:
    expected_loss, expected = in_one_process()
    answers = run_on_ranks(program, 2)
    torch.testing.assert_close(answers[1][0], expected_loss)
    for (_, found), wanted in zip(answers, expected, strict=True):
        for grad, reference in zip(found, wanted, strict=True):
            torch.testing.assert_close(grad, reference)
