"""One sample's forward pass under ``torch.vmap`` of ``torch.func.grad``.

What a transformation would get wrong is refused, so that the loop over the samples takes its turn. Rows looked up in a
table with ``sparse=True`` get a hook that keeps their gradient: a transformation knows only dense gradients.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch as functorch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from maskgrad.errors import CoupledSamplesError
from maskgrad.masked_tensor import MaskedTensor, masked
from maskgrad.masked_tensor.dispatch import dispatch

__all__ = ["Looked", "NotBatchedError", "OneSample", "at_level", "call_with"]


class NotBatchedError(RuntimeError):
    """The model can only be run sample by sample."""


Looked = tuple[Tensor, Tensor, Tensor]
"""Rows that one sample looked up in a sparse table; which count (neither padding nor masked); gradient (*rows, D)."""


class OneSample(TorchFunctionMode):
    """Intercepts functions in one sample's forward pass: refuses some, and looks rows of ``tables`` up.

    ``tables`` has their names by the parameter's ``id``; ``anchor`` is a zero that is differentiated and added to rows.
    """

    def __init__(self, tables: Mapping[int, str], anchor: Tensor | None) -> None:
        super().__init__()
        self._tables, self._anchor = tables, anchor
        self._level = functorch.maybe_current_level()
        self.looked: dict[str, list[Looked]] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _REFUSED:
            raise NotBatchedError(_REFUSED[func])
        if func is F.batch_norm and kwargs.get("training", args[5] if args[5:] else False):
            raise CoupledSamplesError(
                "the model normalises over the batch (batch_norm with training=True): a sample has no gradient of its "
                "own. Use GroupNorm, LayerNorm or InstanceNorm, or model.eval()"
            )
        if func is _FUSED_LOSS:
            # Its chunked form computes gradients in the forward pass, and silently gives zeros under vmap (torch 2.13).
            kwargs = {**kwargs, "options": None}
        if func is F.embedding and self._tables:
            weight = kwargs.get("weight", args[1] if args[1:] else None)
            if id(weight) in self._tables:
                return self._look_up(self._tables[id(weight)], *args, **kwargs)
        if MaskedTensor in types:  # implemented with functions on plain tensors, which are intercepted
            with self:
                return dispatch(func, args, kwargs)
        return func(*args, **kwargs)

    def _look_up(
        self,
        name: str,
        input: Any,
        weight: Tensor,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,  # noqa: ARG002
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
    ) -> Any:
        """Return rows of a table whose gradient is kept; its own gradient is not formed."""
        if functorch.maybe_current_level() != self._level or max_norm is not None:
            raise NotBatchedError(
                "a sparse table is looked up with max_norm, or inside a transformation of the model"
            )
        if scale_grad_by_freq or not sparse:
            raise NotBatchedError("a sparse table is looked up with sparse=False or scale_grad_by_freq=True")
        known = input.mask if isinstance(input, MaskedTensor) else None
        at = input if known is None else input.filled(0)
        counted = torch.ones_like(at, dtype=torch.bool) if known is None else known
        if padding_idx is not None:
            counted = counted & (at != padding_idx % len(weight))
        assert self._anchor is not None
        rows = F.embedding(at, weight.detach()) + self._anchor
        kept = self.looked.setdefault(name, [])
        rows.register_hook(lambda gradient: kept.append((at, counted, gradient)))
        return rows if known is None else masked(rows, known.unsqueeze(-1))


_FUSED_LOSS = getattr(F, "linear_cross_entropy", None)
_RECURRENT = (
    torch.lstm, torch.lstm_cell, torch.gru, torch.gru_cell, torch.rnn_tanh, torch.rnn_tanh_cell, torch.rnn_relu,
    torch.rnn_relu_cell,
)  # fmt: skip
_HOOKS = (Tensor.register_hook, Tensor.retain_grad)
#: functions that only the loop over the samples gets right, and why
_REFUSED: dict[Any, str] = {
    **dict.fromkeys(_RECURRENT, "the model has recurrent layers, which torch.vmap does not support"),
    **{func: f"Tensor.{func.__name__} is meant for the gradient of one sample" for func in _HOOKS},
    torch._pack_padded_sequence: "the model packs its sequences, which have different lengths",
}


def call_with(copies: Mapping[int, Tensor], model: torch.nn.Module, inputs: Any) -> Any:
    """Call a model with ``copies`` of its parameters by their ``id``, and of its buffers, which it may write to."""
    copies = {id(buffer): buffer.clone() for buffer in model.buffers()} | dict(copies)
    state = {
        f"{prefix}.{name}" if prefix else name: copies[id(tensor)]
        for prefix, module in model.named_modules()
        for name, tensor in (*module._parameters.items(), *module._buffers.items())
        if id(tensor) in copies
    }
    # A named tuple is one argument, as it is a type of its own.
    args = () if isinstance(inputs, dict) else inputs if type(inputs) is tuple else (inputs,)
    kwargs = inputs if isinstance(inputs, dict) else {}
    # Not tied by name, with which a module with several names gets back a wrong tensor.
    return torch.func.functional_call(model, state, args, kwargs, tie_weights=False)


def at_level(x: Tensor, level: int) -> Tensor:
    """Return ``x`` without the wrappers of transformations above ``level``, ended ones included."""
    while functorch.is_functorch_wrapped_tensor(x) and not 0 < functorch.maybe_get_level(x) <= level:
        x = functorch.get_unwrapped(x)
    return x
