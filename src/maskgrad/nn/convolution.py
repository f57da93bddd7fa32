"""Convolutions that keep the lengths of padded sequences, or close holes, as they are told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import nn

from maskgrad.nn import functional
from maskgrad.nn.functional import Rule, check_rule

__all__ = ["Conv1d", "Conv2d", "Conv3d"]


class _Choosing(nn.Module):
    """What the three classes share: a rule, and a convolution that knows it."""

    function: ClassVar[Callable[..., Any]]
    specified: Rule
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: Any
    groups: int
    padding_mode: Any
    _reversed_padding_repeated_twice: list[int]

    def __init__(self, *args: Any, specified: Rule = "center", **kwargs: Any) -> None:
        check_rule(specified)
        super().__init__(*args, **kwargs)
        self.specified = specified

    def _conv_forward(self, input: Any, weight: Any, bias: Any) -> Any:
        padding = self.padding
        if self.padding_mode != "zeros":
            input = F.pad(input, self._reversed_padding_repeated_twice, mode=self.padding_mode)
            padding = 0
        options = (self.stride, padding, self.dilation, self.groups)
        return type(self).function(input, weight, bias, *options, specified=self.specified)

    def extra_repr(self) -> str:
        """That of PyTorch, and the rule."""
        return f"{super().extra_repr()}, specified={self.specified!r}"


class Conv1d(_Choosing, nn.Conv1d):
    r"""``torch.nn.Conv1d``, with a choice of which entries of the result are specified.

    .. math:: y_o = b + \sum_t w_t\, x_{s o - p + d t} \quad \text{over the products whose factors are specified}

    Args:
        specified: ``"center"`` (default): with half a window of padding, a padded sequence keeps its length, and gives
            the numbers that it gives alone. ``"any"``, as torch's module, or ``"all"``: see
            :func:`maskgrad.nn.functional.conv1d`.
        args, kwargs: those of ``torch.nn.Conv1d``.

    Gradient:
        The other factor, for each product in an entry that is specified.

    Raises:
        ValueError: ``specified`` is something else. What PyTorch raises is raised, too.

    Dense equivalent: ``torch.nn.Conv1d``, on each sequence alone.

    Example:
        >>> x = mg.masked(torch.ones(6), torch.tensor([1, 1, 1, 0, 0, 0]).bool()).reshape(1, 1, 6)
        >>> layer = mg.nn.Conv1d(1, 1, 3, padding=1)
        >>> layer(x)[0, 0].mask
        tensor([ True,  True,  True, False, False, False])

    Source: as :func:`maskgrad.nn.functional.conv1d`.
    """

    function = staticmethod(functional.conv1d)


class Conv2d(_Choosing, nn.Conv2d):
    r"""``torch.nn.Conv2d``, with a choice of which entries of the result are specified.

    .. math:: y_o = b + \sum_t w_t\, x_{s o - p + d t} \quad \text{over the products whose factors are specified}

    Args:
        specified: ``"center"`` (default): with half a window of padding, a padded image keeps its size, and gives
            the numbers that it gives alone. ``"any"``, as torch's module, or ``"all"``: see
            :func:`maskgrad.nn.functional.conv2d`.
        args, kwargs: those of ``torch.nn.Conv2d``.

    Gradient:
        The other factor, for each product in an entry that is specified.

    Raises:
        ValueError: ``specified`` is something else. What PyTorch raises is raised, too.

    Dense equivalent: ``torch.nn.Conv2d``, on each image alone.

    Example:
        >>> x = mg.masked(torch.ones(6), torch.tensor([1, 1, 1, 0, 0, 0]).bool()).reshape(1, 1, 1, 6)
        >>> layer = mg.nn.Conv2d(1, 1, 3, padding=1)
        >>> layer(x)[0, 0, 0].mask
        tensor([ True,  True,  True, False, False, False])

    Source: as :func:`maskgrad.nn.functional.conv2d`.
    """

    function = staticmethod(functional.conv2d)


class Conv3d(_Choosing, nn.Conv3d):
    r"""``torch.nn.Conv3d``, with a choice of which entries of the result are specified.

    .. math:: y_o = b + \sum_t w_t\, x_{s o - p + d t} \quad \text{over the products whose factors are specified}

    Args:
        specified: ``"center"`` (default): with half a window of padding, a padded volume keeps its size, and gives
            the numbers that it gives alone. ``"any"``, as torch's module, or ``"all"``: see
            :func:`maskgrad.nn.functional.conv3d`.
        args, kwargs: those of ``torch.nn.Conv3d``.

    Gradient:
        The other factor, for each product in an entry that is specified.

    Raises:
        ValueError: ``specified`` is something else. What PyTorch raises is raised, too.

    Dense equivalent: ``torch.nn.Conv3d``, on each volume alone.

    Example:
        >>> x = mg.masked(torch.ones(6), torch.tensor([1, 1, 1, 0, 0, 0]).bool()).reshape(1, 1, 1, 1, 6)
        >>> layer = mg.nn.Conv3d(1, 1, 3, padding=1)
        >>> layer(x)[0, 0, 0, 0].mask
        tensor([ True,  True,  True, False, False, False])

    Source: as :func:`maskgrad.nn.functional.conv3d`.
    """

    function = staticmethod(functional.conv3d)
