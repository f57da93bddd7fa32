"""opacus and torch.func: the gradient of each sample's loss, layer by layer, beside ``mg.per_sample_grad``."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import opacus
import torch
from opacus.grad_sample import GradSampleModule
from opacus.layers import DPGRU, DPLSTM, DPRNN
from torch import Tensor, nn
from torch.nn import functional as F

import maskgrad as mg
from tests.peers.suite import Case, Suite

Loss = Callable[[Any, Any], Tensor]
Make = Callable[[], nn.Module]

BATCHES = (1, 2, 5)
LOSSES: dict[str, Loss] = {
    "mse": F.mse_loss,
    "summed mse": partial(F.mse_loss, reduction="sum"),
    "huber": partial(F.huber_loss, delta=0.3),
    "l1": F.l1_loss,
}


class Last(nn.Module):
    """The outputs of a recurrent layer, without its states."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        """Of all positions."""
        out: Tensor = self.layer(x)[0]
        return out


class Bag(nn.Module):
    """Mean or sum of the rows of each bag, ids (B, n); opacus wants them flat, with offsets."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.table, self.flat = nn.EmbeddingBag(9, 3, mode=mode), False

    def forward(self, ids: Tensor) -> Tensor:
        """One bag for each sample."""
        offsets = torch.arange(len(ids)) * ids.shape[1]
        out: Tensor = self.table(ids.flatten(), offsets) if self.flat else self.table(ids)
        return out


def _net(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers)


#: For each line the shape of a sample; (): ids of nine rows follow.
FLOATS: dict[str, tuple[Make, tuple[int, ...]]] = {
    "Linear": (lambda: nn.Linear(4, 3), (4,)),
    "Linear without bias": (lambda: nn.Linear(4, 3, bias=False), (4,)),
    "Linear over time": (lambda: nn.Linear(4, 3), (5, 4)),
    "Linear over two dimensions": (lambda: nn.Linear(4, 3), (2, 5, 4)),
    "Conv1d": (lambda: nn.Conv1d(2, 4, 3), (2, 7)),
    "Conv1d stride": (lambda: nn.Conv1d(2, 4, 3, stride=2, padding=1), (2, 7)),
    "Conv1d dilation": (lambda: nn.Conv1d(2, 4, 3, dilation=2, bias=False), (2, 9)),
    "Conv1d groups": (lambda: nn.Conv1d(4, 4, 2, groups=2), (4, 6)),
    "Conv1d same": (lambda: nn.Conv1d(2, 3, 3, padding="same"), (2, 6)),
    "Conv1d circular": (lambda: nn.Conv1d(2, 3, 3, padding=1, padding_mode="circular"), (2, 6)),
    "Conv2d": (lambda: nn.Conv2d(2, 3, 3), (2, 5, 6)),
    "Conv2d stride": (lambda: nn.Conv2d(2, 3, (2, 3), stride=(2, 1), padding=1), (2, 5, 6)),
    "Conv2d dilation": (lambda: nn.Conv2d(2, 3, 2, dilation=2), (2, 5, 6)),
    "Conv2d depthwise": (lambda: nn.Conv2d(3, 6, 2, groups=3), (3, 4, 4)),
    "Conv2d reflected": (lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"), (2, 5, 5)),
    "Conv3d": (lambda: nn.Conv3d(2, 3, 2), (2, 3, 4, 3)),
    "Conv3d stride": (lambda: nn.Conv3d(2, 2, 2, stride=2, padding=1), (2, 3, 4, 3)),
    "LayerNorm": (lambda: nn.LayerNorm(4), (4,)),
    "LayerNorm over time": (lambda: nn.LayerNorm(4), (5, 4)),
    "LayerNorm of two dimensions": (lambda: nn.LayerNorm((5, 4)), (5, 4)),
    "LayerNorm without bias": (lambda: nn.LayerNorm(4, bias=False), (5, 4)),
    "RMSNorm": (lambda: nn.RMSNorm(4), (5, 4)),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), (4, 5)),
    "GroupNorm of images": (lambda: nn.GroupNorm(2, 4), (4, 3, 3)),
    "InstanceNorm1d": (lambda: nn.InstanceNorm1d(3, affine=True), (3, 5)),
    "InstanceNorm2d": (lambda: nn.InstanceNorm2d(3, affine=True), (3, 4, 4)),
    "InstanceNorm3d": (lambda: nn.InstanceNorm3d(2, affine=True), (2, 3, 2, 2)),
    "perceptron": (lambda: _net(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3), nn.GELU(), nn.Linear(3, 2)), (4,)),
    "convolutional network": (
        lambda: _net(
            nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(16, 3)
        ),
        (1, 6, 6),
    ),
    "network over time": (
        lambda: _net(nn.Linear(3, 4), nn.LayerNorm(4), nn.SiLU(), nn.Linear(4, 4), nn.RMSNorm(4)),
        (6, 3),
    ),
}  # fmt: skip
IDS: dict[str, tuple[Make, tuple[int, ...]]] = {
    "Embedding": (lambda: nn.Embedding(9, 3), (5,)),
    "Embedding with padding": (lambda: nn.Embedding(9, 3, padding_idx=0), (5,)),
    "Embedding of one id": (lambda: nn.Embedding(9, 3), ()),
    "EmbeddingBag sum": (lambda: Bag("sum"), (4,)),
    "EmbeddingBag mean": (lambda: Bag("mean"), (4,)),
    "Embedding and Linear": (lambda: _net(nn.Embedding(9, 3), nn.Linear(3, 2)), (5,)),
}
RECURRENT: dict[str, tuple[type[nn.Module], type[nn.Module], dict[str, Any]]] = {
    "RNN": (DPRNN, nn.RNN, {}),
    "GRU": (DPGRU, nn.GRU, {}),
    "LSTM": (DPLSTM, nn.LSTM, {}),
    "LSTM of two layers": (DPLSTM, nn.LSTM, {"num_layers": 2}),
    "LSTM both ways": (DPLSTM, nn.LSTM, {"bidirectional": True}),
    "GRU without bias": (DPGRU, nn.GRU, {"bias": False}),
}


def _in_order(found: dict[str, Tensor]) -> tuple[Tensor, ...]:
    return tuple(found[name].to_dense() for name in sorted(found))


def _by_opacus(model: nn.Module, loss: Loss, x: Tensor, targets: Tensor, summed: bool) -> Any:
    model = copy.deepcopy(model)
    wrapped = GradSampleModule(model, loss_reduction="sum" if summed else "mean")
    loss(wrapped(x), targets).backward()
    own = {name.replace("_module.", ""): p.grad_sample for name, p in wrapped.named_parameters()}
    if isinstance(model, Last):  # its parameters have PyTorch's names in its state only
        names = {p.data_ptr(): f"layer.{name}" for name, p in model.layer.state_dict().items()}
        own = {names[p.data_ptr()]: own[name] for name, p in model.named_parameters()}
    return _in_order(own)


def _by_func(model: nn.Module, loss: Loss, x: Tensor, targets: Tensor) -> Any:
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def of_sample(p: Any, one: Tensor, target: Tensor) -> Tensor:
        return loss(torch.func.functional_call(model, p, (one[None],)), target[None])

    return _in_order(
        torch.func.vmap(torch.func.grad(of_sample), in_dims=(None, 0, 0))(parameters, x, targets)
    )


def _one_by_one(model: nn.Module, loss: Loss, x: Tensor, targets: Tensor, mask: Tensor) -> Any:
    """torch.func of each sample alone, with only those of its targets that are there."""

    def of_sample(p: Any, one: Tensor, target: Tensor, there: Tensor) -> Tensor:
        out = torch.func.functional_call(model, p, (one[None],))[0]
        return loss(out[there], target[there])

    parameters = {name: p.detach() for name, p in model.named_parameters()}
    each = [torch.func.grad(of_sample)(parameters, *row) for row in zip(x, targets, mask, strict=True)]
    return _in_order({name: torch.stack([one[name] for one in each]) for name in parameters})


def _ours(model: nn.Module, loss: Loss, x: Tensor, targets: Any) -> Any:
    return _in_order(mg.per_sample_grad(model, loss, x, targets))


def _quiet(run: Callable[..., Any], *given: Any) -> Callable[[], Any]:
    def quietly() -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return run(*given)

    return quietly


def _models() -> Iterator[tuple[str, nn.Module, nn.Module, Tensor, bool]]:
    """Label, the peer's model, ours, a batch of samples, and whether torch.func takes the model."""
    for batch in BATCHES:
        torch.manual_seed(batch)
        for name, (make, shape) in FLOATS.items():
            model = make().double()
            yield f"{name} {batch}", model, model, torch.randn(batch, *shape, dtype=torch.float64), True
        for name, (make, shape) in IDS.items():
            model = make().double()
            peer = copy.deepcopy(model)
            if isinstance(peer, Bag):
                peer.flat = True
            yield f"{name} {batch}", peer, model, torch.randint(9, (batch, *shape)), True
        for name, (theirs, ours, options) in RECURRENT.items():
            peer = Last(theirs(3, 4, batch_first=True, **options)).double()
            own = Last(ours(3, 4, batch_first=True, **options)).double()
            own.layer.load_state_dict(peer.layer.state_dict())
            yield f"{name} {batch}", peer, own, torch.randn(batch, 6, 3, dtype=torch.float64), False


def cases() -> Iterator[Case]:
    """Each layer and loss, by opacus and by torch.func; and with holes among the targets, sample by sample."""
    for label, peer, model, x, func in _models():
        with torch.no_grad():
            like = model(x)
        targets = torch.randn(like.shape, dtype=like.dtype)
        mask = torch.rand(like.shape) < 0.6
        mask.view(len(x), -1)[:, 0] = True
        holed = mg.masked(torch.where(mask, targets, float("nan")), mask)
        for name, loss in LOSSES.items():
            given = (model, loss, x, targets)
            ours = _quiet(_ours, *given)
            yield Case(
                f"opacus {name} {label}", _quiet(_by_opacus, peer, loss, x, targets, "summed" in name), ours
            )
            if func:
                yield Case(f"func {name} {label}", _quiet(_by_func, *given), ours)
            alone = _quiet(_one_by_one, *given, mask)
            yield Case(f"holes {name} {label}", alone, _quiet(_ours, model, loss, x, holed))


SUITE = Suite("opacus and torch.func", opacus.__version__, cases)
