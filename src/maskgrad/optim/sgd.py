"""SGD with momentum for dense, sparse and masked gradients."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from maskgrad.gradients.gradient import Gradient
from maskgrad.kernels.updates import formulas
from maskgrad.optim.hyperparameters import finite
from maskgrad.optim.lazy.linear import LinearStep
from maskgrad.optim.optimizer import MaskedOptimizer, StateOption, UnspecifiedOption
from maskgrad.optim.rule import Fused, Hyperparameters, Numbers, Rule, State, signed

__all__ = ["SGD"]


def _closed_form(n: Numbers, states: int) -> LinearStep | None:
    if states > 1:  # the marker of started buffers decides per entry
        return None
    lr, decay, momentum = n["lr"], n["weight_decay"], n["momentum"]
    if states == 0:
        return LinearStep(((1 - lr * decay, 0.0), (0.0, 1.0)))
    pushed = (1 - n["dampening"]) * decay
    if n["nesterov"]:
        top = (1 - lr * (decay + momentum * pushed), -lr * momentum * momentum)
    else:
        top = (1 - lr * pushed, -lr * momentum)
    return LinearStep((top, (pushed, momentum)), factors=(1.0,), buffer=0)


def _check(n: Numbers, row: bool) -> None:
    if n["nesterov"] and (n["momentum"] == 0 or n["dampening"] != 0):
        raise ValueError(
            f"nesterov=True needs momentum > 0 and dampening = 0, got momentum={n['momentum']} and "
            f"dampening={n['dampening']}"
        )


def _fused(n: Numbers, row: bool) -> Fused:
    numbers = signed(n, "lr", "momentum", "dampening", "weight_decay", "nesterov")
    return Fused("sgd", numbers, lambda states: [*states] or [None])


class SGD(MaskedOptimizer, torch.optim.SGD):
    r"""Implements SGD, optionally with momentum, for dense, sparse and masked gradients.

    .. math::
        g \leftarrow g + \lambda p, \qquad b \leftarrow \mu b + (1 - \tau) g, \qquad p \leftarrow p - \mathrm{lr}\; b

    The first buffer of an entry is its gradient, without dampening, in the step in which it is first specified.

    Args:
        momentum: momentum factor.
        dampening: dampening for momentum.
        nesterov: use Nesterov momentum; needs momentum and no dampening.

    State:
        With dampening, ``"momentum_started"`` (Boolean; PyTorch ignores it) marks the entries with a buffer, until
        a dense gradient has reached all. In a state without it, such as PyTorch's, all entries have one. A sparse
        buffer, which PyTorch keeps after sparse gradients, becomes dense at the next step.

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

    _rule = Rule(
        formulas.sgd_,
        states=(State("momentum_buffer", "the buffer, zeros at first", needs="momentum"),),
        limits={"dampening": finite},
        counts_steps=False,
        markers=frozenset({"momentum_started"}),
        check=_check,
        fused=_fused,
        closed_form=_closed_form,
    )
    _torch = torch.optim.SGD
    _late_options = ("momentum", "dampening", "weight_decay", "nesterov")

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
        super().__init__(params, locals())

    def _finish(self, param: Tensor, gradient: Gradient) -> None:
        if gradient.rows is None and gradient.mask is None and param in self.state:
            self.state[param].pop("momentum_started", None)

    def _numbers_now(self, param: Tensor, numbers: Hyperparameters) -> Hyperparameters:
        fresh = self.state.get(param, {}).get("momentum_buffer") is None
        if numbers.zeros and fresh and numbers.numbers["dampening"] != 0:
            return replace(numbers, numbers={**numbers.numbers, "dampening": 0.0})
        return numbers

    def _prepare_state(self, param: Tensor, numbers: Hyperparameters) -> list[Tensor]:
        """Return a dense buffer, and a marker if needed, from no state, our own, or PyTorch's."""
        # Where a missing gradient is a zero, all entries start together: see _numbers_now.
        dampened = numbers.numbers["dampening"] != 0 and not numbers.zeros
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
            # Loaded (PyTorch casts state to the parameter's dtype), perhaps after steps of
            # torch.optim.SGD, which does not keep it: an entry with a buffer has started, whatever the marker
            # says.
            state["momentum_started"] = (marker != 0) | (state["momentum_buffer"] != 0)
        return [state["momentum_started"]] if "momentum_started" in state else []


def _nothing_started(param: Tensor) -> Tensor:
    """A marker for the entries of ``param``; the parts of a complex number start separately."""
    parts = torch.view_as_real(param.detach()) if param.is_complex() else param
    return torch.zeros_like(parts, dtype=torch.bool, requires_grad=False)
