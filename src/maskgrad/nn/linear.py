"""A linear layer with a choice of the specified sums."""

from __future__ import annotations

from typing import Any

from torch import nn

from maskgrad.nn.functional import ALL_OR_ANY, Rule, check_rule, linear

__all__ = ["Linear"]


class Linear(nn.Linear):
    r"""``torch.nn.Linear``, with a choice of the specified entries of the result.

    .. math:: y_o = b_o + \sum_i w_{oi}\, x_i \quad \text{over the products whose factors are specified}

    Args:
        specified: ``"any"`` (default), as torch's layer: a sum over the specified features. ``"all"``: a row
            with a missing feature has no result. See :func:`maskgrad.nn.functional.linear`.
        args, kwargs: the arguments of ``torch.nn.Linear``.

    Gradient:
        The other factor, for each product in a specified entry.

    Raises:
        ValueError: ``specified`` is unknown. PyTorch's errors are raised, too.

    Dense equivalent: ``torch.nn.Linear``, on the complete rows.

    Example:
        >>> pair = mg.from_nan(torch.tensor([[1., 2.], [1., float("nan")]]))
        >>> mg.nn.Linear(2, 3, specified="all")(pair).mask.any(1)
        tensor([ True, False])
        >>> torch.nn.Linear(2, 3)(pair).mask.any(1)
        tensor([True, True])

    Source: as :func:`maskgrad.nn.functional.linear`.
    """

    specified: Rule

    def __init__(self, *args: Any, specified: Rule = "any", **kwargs: Any) -> None:
        check_rule(specified, ALL_OR_ANY)
        super().__init__(*args, **kwargs)
        self.specified = specified

    def forward(self, input: Any) -> Any:
        """Apply the layer to ``input`` (..., in_features)."""
        return linear(input, self.weight, self.bias, specified=self.specified)

    def extra_repr(self) -> str:
        """PyTorch's, and ``specified``."""
        return f"{super().extra_repr()}, specified={self.specified!r}"
