"""torch.distributed.checkpoint: states that one optimizer saved and the other loads, and masked tensors in files."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import maskgrad as mg
from tests.peers.suite import Case, Suite

STEPS = 6
#: Optimizers of PyTorch, and arguments that give them all of their states.
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 0.1, "momentum": 0.9},
    "Adam": {"amsgrad": True},
    "AdamW": {"weight_decay": 0.1},
    "Adagrad": {"lr_decay": 0.1},
    "Adadelta": {},
    "Adamax": {},
    "NAdam": {},
    "RAdam": {},
    "RMSprop": {"momentum": 0.9, "centered": True},
    "Rprop": {},
    "ASGD": {"t0": 2},
}


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def _optimizer(kind: Any, name: str, model: nn.Module) -> Any:
    return getattr(kind, name)(model.parameters(), **OPTIMIZERS[name])


def _train(model: nn.Module, optimizer: Any, steps: range) -> None:
    for seed in steps:
        x = torch.randn(5, 3, generator=torch.Generator().manual_seed(seed))
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


def trained(name: str, first: Any, then: Any, at: int) -> list[Tensor]:
    """The parameters after all steps; those from ``at`` on by ``then``, which reads what ``first`` has saved."""
    model = _model()
    optimizer = _optimizer(first, name, model)
    _train(model, optimizer, range(at))
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # there is no process group
        parts = get_state_dict(model, optimizer)
        dcp.save({"model": parts[0], "optim": parts[1]}, checkpoint_id=folder)
        model = _model()
        optimizer = _optimizer(then, name, model)
        parts = get_state_dict(model, optimizer)
        state = {"model": parts[0], "optim": parts[1]}
        # What PyTorch saved has no option `unspecified`: ours keeps what it was made with.
        dcp.load(state, checkpoint_id=folder, planner=DefaultLoadPlanner(allow_partial_load=True))
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])
    _train(model, optimizer, range(at, STEPS))
    return [param.detach() for param in model.parameters()]


def _saved(x: Any) -> Any:
    """A tensor that was written to a checkpoint and read from it, data and mask under names of their own."""
    masked = isinstance(x, mg.MaskedTensor)
    state = {"data": x.get_data(), "mask": x.mask} if masked else {"data": x}
    empty = {name: torch.zeros_like(part) for name, part in state.items()}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(state, checkpoint_id=folder)
        dcp.load(empty, checkpoint_id=folder)
    return mg.masked(empty["data"], empty["mask"]) if masked else empty["data"]


def cases() -> Iterator[Case]:
    """Each optimizer on both ways, after no, some and many steps; tensors of each dtype."""
    for name in OPTIMIZERS:
        for at in (1, 3, 5):
            whole = partial(trained, name, torch.optim, torch.optim, at)
            for label, first, then in (
                ("to ours", torch.optim, mg.optim),
                ("to torch", mg.optim, torch.optim),
                ("ours to ours", mg.optim, mg.optim),
            ):
                yield Case(
                    f"{name} after {at} steps, {label}", whole, partial(trained, name, first, then, at)
                )
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.complex64):
        data = torch.arange(12).reshape(3, 4).to(dtype)
        yield Case(f"a tensor of {dtype}", partial(_saved, data), partial(_saved, mg.masked(data)))


SUITE = Suite("torch.distributed.checkpoint", torch.__version__, cases)
