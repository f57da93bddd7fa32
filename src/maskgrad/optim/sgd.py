"""SGD with momentum for dense, sparse and masked gradients."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from maskgrad.optim import rules
from maskgrad.optim.engine import Update
from maskgrad.optim.fused import fused_sgd
from maskgrad.optim.gradients import Dense, Gradient
from maskgrad.optim.hyperparameters import StateOption, UnspecifiedOption, finite, non_negative
from maskgrad.optim.numbers import Numbers, State, shared_numbers
from maskgrad.optim.optimizer import MaskedOptimizer

__all__ = ["SGD"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SGDNumbers(Numbers):
    """SGD's hyperparameters as plain numbers."""

    lr: float
    momentum: float
    dampening: float
    weight_decay: float
    nesterov: bool

    counts_steps: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.nesterov and (self.momentum == 0 or self.dampening != 0):
            raise ValueError(
                f"nesterov=True needs momentum > 0 and dampening = 0, got momentum={self.momentum} and "
                f"dampening={self.dampening}"
            )

    def states(self) -> tuple[State, ...]:
        """The momentum, if there is any. The marker of buffers that have started comes and goes: see :class:`SGD`."""
        return (State("momentum_buffer"),) if self.momentum != 0 else ()

    def update(self, step: float = 0.0, **scalars: Tensor) -> Update:
        """The update, the same at each step."""
        names = ("lr", "momentum", "dampening", "weight_decay", "nesterov", "maximize")
        numbers: dict[str, Any] = {name: getattr(self, name) for name in names}

        return Update(partial(rules.sgd_, **numbers), fused_sgd(numbers))


class SGD(MaskedOptimizer):
    r"""SGD whose step costs what its gradient specifies, and which touches nothing else.

    .. math::
        g \leftarrow g + \lambda p, \qquad b \leftarrow \mu b + (1 - \tau) g, \qquad p \leftarrow p - \mathrm{lr}\; b

    for specified entries only: momentum and ``weight_decay`` never reach another entry, and parameter and
    state of the others stay bit for bit. Duplicates are merged first. Gradients may be dense, COO (whole rows
    or single entries, merged or not) or, through :func:`maskgrad.attach_gradient`, CSR, CSC, BSR, BSC or
    MaskedTensor, and may change from step to step.

    An entry's first buffer is its gradient, without dampening, at whatever step it is first specified.

    Args:
        params: parameters or groups, as in PyTorch; floating-point or complex, any shape.
        lr: learning rate, a number or a tensor with one element.
        momentum: factor of the buffer.
        dampening: what is taken off the gradient before it enters the buffer.
        weight_decay: L2 penalty on specified entries.
        nesterov: look ahead; needs momentum and no dampening.
        maximize: ascend instead.
        foreach: of dense gradients, all parameters with each operation, as in PyTorch; None: the faster way.
        differentiable: must be False.
        fused: of dense gradients, PyTorch's fused step; None: on a CPU. Row gradients always take a fused kernel.
        unspecified: ``"skip"``: entries without a gradient are left alone; ``"zero"``: their gradient is zero, and
            they get what a dense step gives them when they are next stepped or read.
        state: ``"full"``: one buffer value for each entry; momentum of rows is not to be had.

    State:
        ``"momentum_buffer"``, as in ``torch.optim.SGD``; state dicts can be exchanged in mid-run, both ways.
        It starts with zeros, which without dampening is the same as starting with the gradient. With
        dampening, ``"momentum_started"`` (Boolean, PyTorch ignores it) marks the entries that have a buffer
        until a dense gradient has reached all; a state without it, as PyTorch's is, counts as started
        everywhere. A sparse buffer, which PyTorch keeps after sparse gradients, becomes a dense one at the
        next step. Halves are computed in float32 and rounded once when stored.

    Raises:
        TypeError: a parameter is sparse itself or not floating-point, a number is none.
        ValueError: a number is negative, NaN or infinite; nesterov without momentum or with dampening; an
            option is not available.

    Dense equivalent: ``torch.optim.SGD``, to float32 rounding.

    Example:
        >>> p = torch.nn.Parameter(torch.ones(3))
        >>> optimizer = mg.optim.SGD([p], lr=0.5, weight_decay=0.5)
        >>> p.grad = torch.sparse_coo_tensor([[1]], [1.0], (3,), check_invariants=True)
        >>> optimizer.step()
        >>> p.data
        tensor([1.0000, 0.2500, 1.0000])

    Source: Sutskever et al., "On the importance of initialization and momentum in deep learning", ICML 2013;
    ``torch.optim.SGD``.
    """

    _torch = torch.optim.SGD
    _state_names = frozenset()
    _optional_state_names = frozenset({"momentum_buffer", "momentum_started"})
    _late_options = MappingProxyType({"momentum": 0, "dampening": 0, "weight_decay": 0, "nesterov": False})
    _no_row_state = "SGD has no second moment, of which one value per row could do"

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float | Tensor = 0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        differentiable: bool = False,
        fused: bool | None = None,
        unspecified: UnspecifiedOption = "skip",
        state: StateOption = "full",
    ) -> None:
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
            "maximize": maximize,
            "foreach": foreach,
            "differentiable": differentiable,
            "fused": fused,
            "unspecified": unspecified,
            "state": state,
        }
        super().__init__(params, defaults)

    @staticmethod
    def _numbers(group: dict[str, Any]) -> SGDNumbers:
        return SGDNumbers(
            lr=non_negative("lr", group["lr"]),
            momentum=non_negative("momentum", group["momentum"]),
            dampening=finite("dampening", group["dampening"]),
            weight_decay=non_negative("weight_decay", group["weight_decay"]),
            nesterov=bool(group["nesterov"]),
            **shared_numbers(group),
        )

    def _finish(self, param: Tensor, gradient: Gradient) -> None:
        if isinstance(gradient, Dense) and param in self.state:
            self.state[param].pop("momentum_started", None)

    def _numbers_now(self, param: Tensor, numbers: Numbers) -> Numbers:
        fresh = self.state.get(param, {}).get("momentum_buffer") is None
        if numbers.zeros and fresh and isinstance(numbers, SGDNumbers) and numbers.dampening != 0:
            return replace(numbers, dampening=0.0)
        return numbers

    def _prepare_state(self, param: Tensor, numbers: Numbers) -> list[Tensor]:
        """A dense buffer, and a marker where one is needed, from nothing, from ours, or from PyTorch's state."""
        # Where a missing gradient is a zero, all entries start together: see _numbers_now.
        dampened = isinstance(numbers, SGDNumbers) and numbers.dampening != 0 and not numbers.zeros
        state = self.state[param]
        buffer: Tensor | None = state.get("momentum_buffer")
        if buffer is None:
            if dampened:
                state["momentum_started"] = _nothing_started(param)
        elif buffer.layout is not torch.strided:
            state["momentum_buffer"] = buffer.to_dense()
            if dampened:
                state["momentum_started"] = _nothing_started(param)
                state["momentum_started"][tuple(buffer.coalesce().indices())] = True
        marker: Tensor | None = state.get("momentum_started")
        if buffer is not None and marker is not None and marker.dtype is not torch.bool:
            # It was loaded (PyTorch casts state to the parameter's dtype), perhaps after steps of
            # torch.optim.SGD, which does not keep it: an entry with a buffer has started, whatever the marker
            # says.
            state["momentum_started"] = (marker != 0) | (state["momentum_buffer"] != 0)
        return [state["momentum_started"]] if "momentum_started" in state else []


def _nothing_started(param: Tensor) -> Tensor:
    """A marker for the entries of ``param``; the parts of a complex number start one by one."""
    parts = torch.view_as_real(param.detach()) if param.is_complex() else param
    return torch.zeros_like(parts, dtype=torch.bool, requires_grad=False)
