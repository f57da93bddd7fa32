"""Mixtures of experts refuse MaskedTensors, as they look tokens up by indices, and balance experts over all rows."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from maskgrad.errors import UnsupportedOperationError
from maskgrad.integrations.integration import exchanged
from maskgrad.masked_tensor.torch_patches.pytrees import holds_masked

__all__ = ["EXPERTS"]


def _refused(get_interface: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[..., Any]:
    """The forward pass of experts, in which ``get_interface`` finds the implementation of each call."""
    experts_forward = get_interface(*args, **kwargs)

    @functools.wraps(experts_forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if holds_masked((args, kwargs)):
            raise UnsupportedOperationError(
                type(self).__name__,
                "a mixture of experts looks tokens up by indices, and balances its experts over all rows",
                "Call the model with inputs_embeds=x.filled(0.), attention_mask=x.mask.any(-1).long().",
            )
        return experts_forward(self, *args, **kwargs)

    return forward


EXPERTS = exchanged(
    "transformers.integrations.moe",
    "ExpertsInterface.get_interface",
    "self",
    _refused,
    reason="the auxiliary loss of a mixture of experts divides by the number of all tokens",
    without="the auxiliary loss of experts counts unspecified tokens; give inputs_embeds=x.filled(0.) and "
    "attention_mask",
    test="test_transformers.py::test_experts_refuse",
)
