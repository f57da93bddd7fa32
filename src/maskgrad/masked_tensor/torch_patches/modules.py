"""Modules: backward hooks on MaskedTensors, containers of parameters, saving, copying and conversion.

A module finds tensors in its inputs and outputs by type. It would ignore a MaskedTensor, and never call hooks of
``register_full_backward_hook`` or ``register_full_backward_pre_hook``. Here its values replace it meanwhile.
Tensors in lists or dicts are ignored as in torch; so are inputs passed by keyword.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from maskgrad.masked_tensor.autograd import AS_PARAMETER, as_values
from maskgrad.masked_tensor.tensor import MaskedTensor
from maskgrad.patterns import Pattern

__all__ = [
    "after_replacing", "before_saving", "convert", "copy_parameter", "load_from_state_dict",
    "reduce_parameter", "save_to_state_dict", "set_item", "set_up_inputs", "set_up_outputs",
]  # fmt: skip

Patterns = dict[int, Pattern]

#: Warning of torch for a module that returns a MaskedTensor, which is not true here.
UNTRUE = r"For backward hooks to be called, module output should be .*maskgrad\.masked_tensor\.tensor\.MaskedTensor"

_COMPLETE: list[Callable[[Tensor], None]] = []
_HANDED_OVER: list[Callable[[Tensor], Callable[[Tensor], None] | None]] = []


def _unwrapped(args: tuple[Any, ...]) -> tuple[tuple[Any, ...], Patterns]:
    """Replace MaskedTensors by their values; return also their patterns."""
    patterns = {i: a._pattern for i, a in enumerate(args) if isinstance(a, MaskedTensor)}
    return tuple([a._values if isinstance(a, MaskedTensor) else a for a in args]), patterns


def _wrapped(parts: tuple[Any, ...], patterns: Patterns) -> tuple[Any, ...]:
    masked = [i in patterns and part is not None for i, part in enumerate(parts)]
    return tuple([MaskedTensor(part, patterns[i]) if masked[i] else part for i, part in enumerate(parts)])


def _with_patterns(hook: Callable[..., Any], *kinds: Patterns) -> Callable[..., Any]:
    """A hook of gradients of inputs and of results, or of results only; what it returns replaces the first."""

    def called(module: Any, *gradients: tuple[Any, ...]) -> Any:
        found = hook(module, *[_wrapped(*pair) for pair in zip(gradients, kinds, strict=True)])
        if not isinstance(found, (tuple, list)):
            return found  # None, or what torch refuses
        plain = list(found)
        for i, new in enumerate(found):
            pattern = kinds[0].get(i)
            if pattern is None and isinstance(new, MaskedTensor):
                raise TypeError(
                    f"a backward hook of a module returned a MaskedTensor as gradient {i}, which belongs to a plain "
                    "tensor; return its .filled(0.)"
                )
            old = None if pattern is None else gradients[0][i]
            if pattern is not None and old is not None and isinstance(new, (Tensor, MaskedTensor)):
                plain[i] = as_values(new, pattern, old)
        return tuple(plain)

    return called


def set_up_inputs(setup: Callable[..., Any], self: Any, args: Any) -> Any:
    """Replace ``BackwardHook.setup_input_hook``."""
    plain, self.maskgrad_inputs = _unwrapped(args)
    # At every call, as filters may have been added or removed since (catch_warnings); at most one entry.
    first = warnings.filters[0] if warnings.filters else None
    if first is None or getattr(first[1], "pattern", None) != UNTRUE:
        warnings.filterwarnings("ignore", message=UNTRUE, category=UserWarning)
    if not self.maskgrad_inputs:
        return setup(self, args)
    return _wrapped(setup(self, plain), self.maskgrad_inputs)


def set_up_outputs(setup: Callable[..., Any], self: Any, result: Any) -> Any:
    """Replace ``BackwardHook.setup_output_hook``."""
    inputs: Patterns = self.maskgrad_inputs
    several = isinstance(result, tuple)
    plain, outputs = _unwrapped(result if several else (result,))
    if not inputs and not outputs:
        return setup(self, result)
    self.user_hooks = [_with_patterns(hook, inputs, outputs) for hook in self.user_hooks]
    self.user_pre_hooks = [_with_patterns(hook, outputs) for hook in self.user_pre_hooks]
    parts = _wrapped(setup(self, plain), outputs)
    if not several:
        return parts[0]
    return parts if type(result) is tuple else type(result)(*parts)


def set_item(assign: Callable[..., None], self: Any, key: Any, value: Any) -> None:
    """Replace ``__setitem__`` of ``ParameterList`` and ``ParameterDict``, which do not train anything but tensors."""
    if isinstance(value, MaskedTensor):
        raise TypeError(AS_PARAMETER)
    assign(self, key, value)


def before_saving(complete: Callable[[Tensor], None]) -> None:
    """Call ``complete`` with each parameter before it is saved, copied or converted."""
    _COMPLETE.append(complete)


def after_replacing(handed_over: Callable[[Tensor], Callable[[Tensor], None] | None]) -> None:
    """Call ``handed_over`` with each parameter before it is replaced, and what it returns with the new one.

    Parameters are replaced by ``load_state_dict(assign=True)``, copies, and conversions of modules, which by
    ``torch.utils.swap_tensors`` keep the object and exchange its attributes.
    """
    _HANDED_OVER.append(handed_over)


def _complete(*params: Tensor | None) -> None:
    for param in params:
        if param is not None:
            for complete in _COMPLETE:
                complete(param)


def _handed_over(param: Tensor) -> list[Callable[[Tensor], None]]:
    return [give for handed_over in _HANDED_OVER if (give := handed_over(param)) is not None]


def _replaced_in(self: nn.Module, replace: Callable[[], Any]) -> Any:
    """Apply pending updates, call ``replace``, and give the new parameters of a module what the old ones had."""
    _complete(*self._parameters.values())
    before = {name: _handed_over(param) for name, param in self._parameters.items() if param is not None}
    result = replace()
    for name, held in before.items():
        new = self._parameters.get(name)
        if new is not None:
            for give in held:
                give(new)
    return result


def save_to_state_dict(save: Callable[..., None], self: nn.Module, *args: Any, **kwargs: Any) -> None:
    """Replace ``Module._save_to_state_dict``: torch has hooks for a given module, and parameters do not know theirs."""
    _complete(*self._parameters.values())
    save(self, *args, **kwargs)


def load_from_state_dict(load: Callable[..., None], self: nn.Module, *args: Any, **kwargs: Any) -> None:
    """Replace ``Module._load_from_state_dict``: pending updates are not of what is loaded, which may be assigned."""
    _replaced_in(self, lambda: load(self, *args, **kwargs))


def convert(apply: Callable[..., Any], self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Replace ``Module._apply``, which changes dtype, device and memory of parameters, or replaces them."""
    return _replaced_in(self, lambda: apply(self, *args, **kwargs))


def copy_parameter(copy: Callable[..., Any], self: nn.Parameter, memo: dict[int, Any]) -> Any:
    """Replace ``Parameter.__deepcopy__``."""
    if id(self) in memo:
        return memo[id(self)]
    _complete(self)
    result = copy(self, memo)
    for give in _handed_over(self):
        give(result)
    return result


def reduce_parameter(reduce: Callable[..., Any], self: nn.Parameter, protocol: Any) -> Any:
    """Replace ``Parameter.__reduce_ex__``, which ``pickle``, ``copy.copy`` and ``torch.save`` call."""
    _complete(self)
    return reduce(self, protocol)
