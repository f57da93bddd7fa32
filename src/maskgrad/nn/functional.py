"""Functions of ``torch.nn.functional`` with a choice of the specified entries of the result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias, get_args

import torch.nn.functional as F

from maskgrad.instead import missing_attribute
from maskgrad.masked_tensor import MaskedTensor
from maskgrad.masked_tensor.dispatch import dispatch

__all__ = ["conv1d", "conv2d", "conv3d"]

Rule: TypeAlias = Literal["any", "center", "all", "sequence"]

DOC = r"""``torch.nn.functional.{name}``, with a choice of the specified entries of the result.

    .. math:: y_o = b + \sum_t w_t\, x_{{s o - p + d t}} \quad \text{{over the products whose factors are specified}}

    Args:
        input: floating point, shape (N, C_in, {sizes}), or without N.
        weight: floating point, shape (C_out, C_in / groups, {taps}).
        bias: floating point, shape (C_out,); None: none.
        stride: s, the distance between windows, in entries; an integer, or one for each dimension.
        padding: p, the number of zeros on both sides; likewise, or ``"same"`` or ``"valid"``.
        dilation: d, the distance between entries of a window; likewise.
        groups: the number of blocks of channels.
        specified: the specified entries of the result:

            - ``"any"``: those with at least one product, as in PyTorch's own function on a MaskedTensor. Holes are
              filled, and a padded sequence grows by half a window.
            - ``"center"``: those for which also the centre of the window (the first of two) is specified
              in any channel of the group. With half a window of padding, a padded sequence keeps its length, and the
              result is that of the sequence alone. A centre outside the data is not required.
            - ``"all"``: those whose products are all specified. Without padding, the result of a padded sequence is
              that of the sequence alone.
            - ``"sequence"``: those of each padded sequence alone, as many as PyTorch's formula gives for its own
              length{own_size}. Sequences that PyTorch refuses (empty, or shorter than the window) have none. The
              mask must be one of padded sequences, the same in all channels.

    Returns:
        MaskedTensor (N, C_out, {sizes}); a plain tensor if no operand is masked. {jagged}

    Gradient:
        The other factor, for each product in a specified entry.

    Raises:
        ValueError: ``specified`` is unknown. PyTorch's errors are raised, too.
        UndefinedOnMaskedError: ``"sequence"`` of a mask with holes (in eager mode on the CPU).

    Dense equivalent: ``F.{name}``, for each sequence separately (see ``specified``).

    Example:
        >>> x = mg.masked(torch.arange(6.), torch.tensor([1, 1, 1, 0, 0, 0]).bool()).reshape({shape})
        >>> w = torch.ones({kernel})
        >>> mg.nn.functional.{name}(x, w, padding={padding}).flatten()
        masked([1., 3., 3., 2., --, --])
        >>> mg.nn.functional.{name}(x, w, padding={padding}, specified="center").flatten()
        masked([1., 3., 3., --, --, --])
        >>> mg.nn.functional.{name}(x, w, padding={padding}, specified="all").flatten()
        masked([1., 3., --, --, --, --])
        >>> mg.nn.functional.{name}(x, w, specified="sequence").flatten()
        masked([3., --, --, --])

    Source: Liu and others 2018, "Image inpainting for irregular holes using partial convolutions" (``"any"``); Graham
    and van der Maaten 2017, "Submanifold sparse convolutional networks" (``"center"``).
    """


def check_rule(specified: object, rules: tuple[str, ...] = get_args(Rule)) -> None:
    """Raise a ValueError unless ``specified`` is one of the rules."""
    if specified not in rules:
        names = f"{', '.join(map(repr, rules[:-1]))} or {rules[-1]!r}"
        raise ValueError(f"specified must be {names}, found {specified!r}; for example specified='all'")


def _convolution(dims: int) -> Callable[..., Any]:
    name = f"conv{dims}d"
    function = getattr(F, name)

    def conv(
        input: Any,
        weight: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        *,
        specified: Rule = "any",
    ) -> Any:
        check_rule(specified)
        arguments = (input, weight, bias, stride, padding, dilation, groups)
        if not any(isinstance(x, MaskedTensor) for x in arguments[:3]):
            return function(*arguments)
        return dispatch(function, arguments, {"specified": specified})

    ones = "1, " * (dims - 1)
    conv.__name__ = conv.__qualname__ = name
    conv.__doc__ = DOC.format(
        name=name,
        own_size="" if dims == 1 else ", and likewise along each dimension",
        jagged='``"sequence"`` of jagged sequences (N, C_in, L) is jagged.' if dims == 1 else "",
        sizes=("L", "H, W", "D, H, W")[dims - 1],
        taps=("k", "k_H, k_W", "k_D, k_H, k_W")[dims - 1],
        shape=f"1, 1, {ones}6",
        kernel=f"1, 1, {ones}3",
        padding=f"({ones.replace('1', '0')}1)" if dims > 1 else "1",
    )
    return conv


conv1d, conv2d, conv3d = (_convolution(dims) for dims in (1, 2, 3))


def __getattr__(name: str) -> object:
    raise missing_attribute(__name__, name)
