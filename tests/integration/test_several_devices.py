"""Models over several devices: MaskedTensors move inside forward, and through DataParallel."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

import maskgrad as mg

BATCH, WIDTH = 8, 4


def incomplete() -> tuple[Tensor, Tensor]:
    """Data with garbage under the mask, the last sample unspecified as a whole."""
    torch.manual_seed(2)
    mask = torch.rand(BATCH, WIDTH) > 0.4
    mask[-1] = False
    garbage = torch.tensor([float("nan"), float("inf"), -float("inf"), 1e38]).repeat(BATCH, 1)
    return torch.where(mask, torch.randn(BATCH, WIDTH), garbage), mask


class OnTwoDevices(nn.Module):
    """Two layers on two devices; a MaskedTensor is carried over inside ``forward``."""

    def __init__(self, devices: tuple[str, str]) -> None:
        super().__init__()
        self.devices = devices
        self.first, self.second = nn.Linear(WIDTH, 5).to(devices[0]), nn.Linear(5, 2).to(devices[1])

    def forward(self, x: Any) -> Any:
        hidden = torch.relu(self.first(x.to(self.devices[0])))
        return self.second(hidden.to(self.devices[1], non_blocking=True))


def test_a_masked_tensor_moves_inside_forward() -> None:
    x = mg.masked(*incomplete())
    shadow, expected = OnTwoDevices(("cpu", "meta"))(x), OnTwoDevices(("cpu", "cpu"))(x)
    assert shadow.device.type == shadow.mask.device.type == "meta"
    assert shadow.shape == expected.shape


def trained_on(devices: tuple[str, str]) -> list[Tensor]:
    data, mask = incomplete()
    data.requires_grad_()
    model = OnTwoDevices(devices)
    loss = model(mg.masked(data, mask)).square().mean()
    assert loss.device.type == devices[1].partition(":")[0]
    loss.backward()
    return [loss.detach().cpu(), *(cast(Tensor, leaf.grad).cpu() for leaf in (data, *model.parameters()))]


@pytest.mark.gpu
@pytest.mark.parametrize("devices", [("cpu", "cuda:0"), ("cuda:0", "cpu")])
def test_results_do_not_depend_on_the_devices(devices: tuple[str, str]) -> None:
    for found, expected in zip(trained_on(devices), trained_on(("cpu", "cpu")), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


class Means(nn.Module):
    """Takes values and mask as plain tensors, which DataParallel cuts along the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, 3)

    def forward(self, values: Tensor, mask: Tensor) -> Tensor:
        y: Any = self.linear(mg.masked(values, mask))
        return cast(Tensor, y.mean(1).filled(0.0))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_data_parallel_does_not_break(device: str) -> None:
    values, mask = (t.to(device) for t in incomplete())
    model = Means().to(device)
    results = []
    for each in (model, nn.DataParallel(model)):
        model.zero_grad()
        y = each(values, mask)
        y.square().mean().backward()
        results.append([y, model.linear.weight.grad])
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected)
