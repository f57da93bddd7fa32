"""Convolutions that keep the lengths of padded sequences, or fill holes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import nn

from maskgrad.masked_tensor import MaskedTensor
from maskgrad.masked_tensor.dispatch import dispatch
from maskgrad.nn import functional
from maskgrad.nn.functional import Rule, check_rule

__all__ = ["Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d"]

DOC = r"""

    .. math:: y_o = b + \sum_t w_t\, x_{{s o - p + d t}} \quad \text{{over the products whose factors are specified}}

    Args:
        specified: ``"center"`` (default): with half a window of padding, a padded {kind} keeps its size, and the result
            is that of the {kind} alone. ``"sequence"``: the result of each {kind} alone, for any stride and padding;
            jagged sequences stay jagged. ``"any"``, as torch's module, or ``"all"``: see
            :func:`maskgrad.nn.functional.{function}`.
        args, kwargs: the arguments of ``torch.nn.{name}``.

    Gradient:
        The other factor, for each product in a specified entry.

    Raises:
        ValueError: ``specified`` is unknown. PyTorch's errors are raised, too.

    Dense equivalent: ``torch.nn.{name}``, on each {kind} separately.

    Example:
        >>> x = mg.masked(torch.ones(6), torch.tensor([1, 1, 1, 0, 0, 0]).bool()).reshape({shape})
        >>> layer = mg.nn.{name}(1, 1, 3, padding=1)
        >>> layer(x).flatten(0, -2)[0].mask
        tensor([ True,  True,  True, False, False, False])

    Source: as :func:`maskgrad.nn.functional.{function}`.
    """


class _Choosing(nn.Module):
    """Base of the three classes: ``specified``, and a convolution that supports it."""

    function: ClassVar[Callable[..., Any]]
    _plain: ClassVar[Callable[..., Any]]
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
        if specified == "sequence" and self.padding_mode != "zeros":
            raise ValueError(
                f'specified="sequence" needs padding_mode="zeros", found {self.padding_mode!r}; '
                'write specified="center", or convolve each sequence alone with torch.nn\'s module'
            )
        self.specified = specified

    def _conv_forward(self, input: Any, weight: Any, bias: Any) -> Any:
        mode, widths = self.padding_mode, self._reversed_padding_repeated_twice
        options = (self.stride, self.padding, self.dilation, self.groups)
        if mode != "zeros":
            input = F.pad(input, widths, mode=mode)
            options = (self.stride, 0, self.dilation, self.groups)
        return type(self).function(input, weight, bias, *options, specified=self.specified)

    def extra_repr(self) -> str:
        """PyTorch's, and ``specified``."""
        return f"{super().extra_repr()}, specified={self.specified!r}"

    def __init_subclass__(cls, kind: str = "", **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if kind:  # one of the three
            name = cls.__name__
            shape = "1, " * (int(name[4]) + 1) + "6"
            function = getattr(functional, name.lower())
            cls.function, cls._plain = staticmethod(function), staticmethod(getattr(F, name.lower()))
            about = DOC.format(name=name, kind=kind, function=name.lower(), shape=shape)
            cls.__doc__ = f"{cls.__doc__}{about}"


class Conv1d(_Choosing, nn.Conv1d, kind="sequence"):
    """``torch.nn.Conv1d``, with a choice of the specified entries of the result."""


class Conv2d(_Choosing, nn.Conv2d, kind="image"):
    """``torch.nn.Conv2d``, with a choice of the specified entries of the result."""


class Conv3d(_Choosing, nn.Conv3d, kind="volume"):
    """``torch.nn.Conv3d``, with a choice of the specified entries of the result."""


class ConvTranspose1d(nn.ConvTranspose1d):
    r"""``torch.nn.ConvTranspose1d``, for each padded sequence separately.

    .. math:: y_o = b + \sum_{t,i:\; s i - p + d t = o} w_t\, x_i

    Args:
        specified: ``"sequence"`` (default): the result of each sequence separately; jagged sequences stay jagged, and
            an empty one has none. ``"any"``, as torch's module: entries with at least one product, and gaps.
        args, kwargs: the arguments of ``torch.nn.ConvTranspose1d``.

    Gradient:
        The other factor, for each product in a specified entry.

    Raises:
        ValueError: ``specified`` is unknown. PyTorch's errors are raised, too.
        UndefinedOnMaskedError: ``"sequence"`` of a mask with holes (in eager mode on the CPU).

    Dense equivalent: ``torch.nn.ConvTranspose1d``, on each sequence separately.

    Example:
        >>> x = mg.from_lengths(torch.ones(1, 1, 3), torch.tensor([2]), dim=2)
        >>> mg.nn.ConvTranspose1d(1, 1, 3, stride=2)(x).mask[0, 0]
        tensor([ True,  True,  True,  True,  True, False, False])

    Source: Zeiler and others 2010, "Deconvolutional networks".
    """

    def __init__(self, *args: Any, specified: Rule = "sequence", **kwargs: Any) -> None:
        check_rule(specified, ("any", "sequence"))
        super().__init__(*args, **kwargs)
        self.specified = specified

    def forward(self, input: Any, output_size: list[int] | None = None) -> Any:
        """As in PyTorch, with ``specified``."""
        if not isinstance(input, MaskedTensor):
            return super().forward(input, output_size)
        geometry: tuple[Any, ...] = (self.stride, self.padding, self.kernel_size)
        more = self._output_padding(input, output_size, *geometry, 1, self.dilation)  # type: ignore[call-arg]
        options = (self.stride, self.padding, more, self.groups, self.dilation)
        arguments = (input, self.weight, self.bias, *options)
        return dispatch(F.conv_transpose1d, arguments, {"specified": self.specified})

    def extra_repr(self) -> str:
        """PyTorch's, and ``specified``."""
        return f"{super().extra_repr()}, specified={self.specified!r}"  # type: ignore[no-untyped-call]
