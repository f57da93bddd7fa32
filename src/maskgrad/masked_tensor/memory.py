"""What PyTorch's modules, checkpoints and processes ask of a tensor: ``data``, ``share_memory_``, being a parameter."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from maskgrad.masked_tensor.creation import masked
from maskgrad.masked_tensor.tensor import MaskedTensor
from maskgrad.masked_tensor.writing import writable_mask
from maskgrad.patterns import BooleanPattern, Pattern
from maskgrad.patterns.boolean import is_expanded

__all__ = ["AS_PARAMETER", "install"]

AS_PARAMETER = (
    "a MaskedTensor cannot be a torch.nn.Parameter, which must be a torch.Tensor. Keep the values as a parameter and "
    "the mask as a buffer, self.weight = nn.Parameter(x.filled(0.)) and self.register_buffer('mask', x.mask), and "
    "write mg.masked(self.weight, self.mask) in forward()"
)
AS_BUFFER = (
    "a MaskedTensor cannot be a torch.nn.Buffer, which must be a torch.Tensor; "
    "write self.register_buffer(name, x), which takes it"
)


def _get_data(self: MaskedTensor) -> MaskedTensor:
    """The same entries outside of the graph, in the same memory; autograd does not notice what is written to them."""
    return MaskedTensor(self._values.data, _at_home(self._pattern))


def _set_data(self: MaskedTensor, other: MaskedTensor | Tensor) -> None:
    if not isinstance(other, (Tensor, MaskedTensor)):
        raise TypeError(f"x.data must be set to a tensor, found {type(other).__name__}")
    source = other if isinstance(other, MaskedTensor) else masked(other)
    self._values.data = source._values.detach()
    self._pattern = _at_home(source._pattern)


def _at_home(pattern: Pattern) -> Pattern:
    """The same entries, for another name of the same memory."""
    if isinstance(pattern, BooleanPattern):
        return pattern.alias(pattern.mask)
    return pattern


def share_memory_(self: MaskedTensor) -> MaskedTensor:
    """Move values and mask to shared memory, where other processes see what is written; returns this tensor."""
    for tensor in (self._values, *_written(self, own=True)):
        tensor.share_memory_()
    return self


def is_shared(self: MaskedTensor) -> bool:
    """Whether values and mask are in shared memory; a mask that cannot be written counts for nothing."""
    return all(tensor.is_shared() for tensor in (self._values, *_written(self, own=False)))


def _written(x: MaskedTensor, own: bool) -> tuple[Tensor, ...]:
    """The tensors of the pattern that writes can reach, on request in memory that nobody else reads."""
    pattern = x._pattern
    if not isinstance(pattern, BooleanPattern):
        return pattern.tensors()
    if is_expanded(pattern.mask):
        return ()
    return (writable_mask(x) if own else pattern.mask,)


def _refused(name: str, words: str) -> property:
    """An attribute that only parameters and buffers have, and that PyTorch sets on what is to become one."""

    def read(self: MaskedTensor) -> Any:
        raise AttributeError(f"MaskedTensor has no attribute {name!r}", name=name, obj=self)

    def write(self: MaskedTensor, value: Any) -> None:
        raise TypeError(words)

    return property(read, write)


def install() -> None:
    """Put these on MaskedTensor."""
    for method in (share_memory_, is_shared):
        setattr(MaskedTensor, method.__name__, method)
    MaskedTensor.data = property(_get_data, _set_data, doc=_get_data.__doc__)  # type: ignore[attr-defined]
    MaskedTensor._is_param = _refused("_is_param", AS_PARAMETER)  # type: ignore[attr-defined]
    MaskedTensor.persistent = _refused("persistent", AS_BUFFER)  # type: ignore[attr-defined]
