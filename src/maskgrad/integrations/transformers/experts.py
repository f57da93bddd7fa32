"""Mixtures of experts: specified tokens are routed as plain rows, and only they count in the auxiliary loss.

A router indexes tokens with indices computed from the tokens: those of unspecified ones are unspecified,
too. Each model has its own copy of the loss that balances experts, found by its name and arguments in the module of the
model's class, when a model is made or, for models that exist already, when this is installed.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch

from maskgrad.errors import UnsupportedOperationError
from maskgrad.integrations.integration import exchanged
from maskgrad.masked_tensor.tensor import MaskedTensor, of_entries
from maskgrad.masked_tensor.torch_patches.patch import Patch, exchange
from maskgrad.masked_tensor.torch_patches.pytrees import holds_masked, is_masked

__all__ = ["EXPERTS"]

_LOSS = "load_balancing_loss_func"
_ARGUMENTS = ["gate_logits", "num_experts", "top_k", "attention_mask"]


def _route_to_experts(get_interface: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[..., Any]:
    """Return the dictionary in which classes of experts look up the implementation of each call."""
    return by_rows(get_interface(*args, **kwargs))


def by_rows(experts_forward: Callable[..., Any]) -> Callable[..., Any]:
    """Return a forward pass of experts for the specified tokens only."""

    @functools.wraps(experts_forward)
    def forward(self: Any, hidden_states: Any, *args: Any, **kwargs: Any) -> Any:
        given = [hidden_states, *args, *kwargs.values()]
        dense = [x._dense() for x in given if isinstance(x, MaskedTensor)]
        if not dense:
            return experts_forward(self, hidden_states, *args, **kwargs)
        masks = [mask.flatten(1) for _, mask in dense]
        there = torch.stack([mask.all(1) for mask in masks]).all(0)
        if any(bool((mask.any(1) & ~there).any()) for mask in masks) or hidden_states.dim() != 2:
            raise UnsupportedOperationError(
                type(self).__name__,
                "a token is partially specified, but experts need whole tokens",
                "Mask whole tokens, mg.masked(embeddings, mask[..., None]), or pass x.filled(0.).",
            )

        def rows(x: Any) -> Any:
            if isinstance(x, MaskedTensor):
                return x._dense()[0][there]
            return x[there] if isinstance(x, torch.Tensor) and x.shape[:1] == there.shape else x

        named = {name: rows(x) for name, x in kwargs.items()}
        found = experts_forward(self, rows(hidden_states), *map(rows, args), **named)
        values = found.new_zeros(len(there), *found.shape[1:])
        values = values.index_put((there.nonzero(as_tuple=True)[0],), found)
        return of_entries(values, there[:, None].expand(values.shape))

    return forward


def _balance(
    original: Callable[..., Any],
    gate_logits: Any,
    num_experts: Any = None,
    top_k: Any = 2,
    attention_mask: Any = None,
) -> Any:
    """Divide by the number of specified tokens, instead of the number of all rows."""
    if holds_masked(gate_logits):
        dense = [x._dense() if is_masked(x) else (x, x.new_ones(x.shape)) for x in gate_logits]
        there = torch.stack([mask.bool().flatten(1).all(1) for _, mask in dense]).all(0)
        gate_logits = tuple(values[there] for values, _ in dense)
        if attention_mask is not None:
            attention_mask = torch.as_tensor(attention_mask).reshape(-1)[there][None]
    return original(gate_logits, num_experts, top_k, attention_mask)


def _balance_all() -> Callable[[], None]:
    undone: dict[str, Callable[[], None]] = {}

    def adapt(modules: Iterable[str]) -> None:
        for name in modules:
            loss = vars(sys.modules[name]).get(_LOSS) if name in sys.modules else None
            if (
                name not in undone
                and loss is not None
                and list(inspect.signature(loss).parameters) == _ARGUMENTS
            ):
                undone[name] = exchange(f"{name}.{_LOSS}", _balance, everywhere=False)

    def init(original: Callable[..., None], self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        adapt(kind.__module__ for kind in type(self).__mro__)

    adapt([name for name in list(sys.modules) if name.startswith("transformers.models.")])
    put_back = exchange("transformers.modeling_utils.PreTrainedModel.__init__", init, everywhere=False)

    def undo() -> None:
        put_back()
        for one in undone.values():
            one()

    return undo


EXPERTS = (
    exchanged(
        "transformers.integrations.moe",
        "ExpertsInterface.get_interface",
        "self",
        _route_to_experts,
        reason="looks tokens up by indices computed from them, which are unspecified where the tokens are",
        without="mixtures of experts refuse MaskedTensors; give inputs_embeds=x.filled(0.) and attention_mask",
        test="test_transformers.py::test_architectures",
    ),
    Patch(
        target=f"transformers.models.*.{_LOSS}",
        reason="divides by the number of all tokens",
        without="the auxiliary loss of experts counts unspecified tokens; give inputs_embeds=x.filled(0.) and "
        "attention_mask",
        test="tests/ecosystem/test_transformers.py::test_balance_of_experts",
        needs={"transformers.modeling_utils.PreTrainedModel.__init__": "self config"},
        install=_balance_all,
        after="transformers.modeling_utils",
    ),
)
