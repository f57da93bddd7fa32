"""Modules: backward hooks on MaskedTensors, containers of parameters, saving, copying and conversion.

A module finds tensors in its inputs and outputs by type. It would ignore a MaskedTensor, and never call hooks of
``register_full_backward_hook`` or ``register_full_backward_pre_hook``. Here its values replace it meanwhile.
Tensors in lists or dicts are ignored as in torch, but with a warning; so are inputs passed by keyword.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from maskgrad.masked_tensor.autograd import AS_PARAMETER, as_values
from maskgrad.masked_tensor.tensor import MaskedTensor
from maskgrad.masked_tensor.torch_patches.pytrees import holds_masked
from maskgrad.patterns import Pattern

__all__ = [
    "after_replacing",
    "before_saving",
    "convert",
    "copy_parameter",
    "load_from_state_dict",
    "reduce_parameter",
    "save_to_state_dict",
    "set_item",
    "set_up_inputs",
    "set_up_outputs",
]

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


def _returned(found: Any, given: tuple[Any, ...], patterns: Patterns) -> tuple[Any, ...] | None:
    """Return what a hook returned instead of ``given``, as plain gradients."""
    if found is None:
        return None
    if not isinstance(found, (tuple, list)) or len(found) != len(given):
        kind = type(found).__name__
        what = f"a {kind} of {len(found)}" if isinstance(found, (tuple, list)) else f"a {kind}"
        raise TypeError(
            f"a backward hook of a module must return None or a tuple of {len(given)} gradients, found {what}"
        )
    return tuple(
        [_plain(new, old, patterns.get(i), i) for i, (new, old) in enumerate(zip(found, given, strict=True))]
    )


def _plain(new: Any, old: Any, pattern: Pattern | None, position: int) -> Any:
    if new is None:
        return None
    if not isinstance(new, (Tensor, MaskedTensor)):
        raise TypeError(
            f"a backward hook of a module must return tensors or None, found {type(new).__name__} at {position}"
        )
    if pattern is None:
        if isinstance(new, MaskedTensor):
            raise TypeError(
                f"a backward hook of a module returned a MaskedTensor as gradient {position}, which belongs to a plain "
                "tensor; return its .filled(0.)"
            )
        return new
    return new if old is None else as_values(new, pattern, old)


def _with_patterns(hook: Callable[..., Any], inputs: Patterns, outputs: Patterns) -> Callable[..., Any]:
    def full(module: Any, grad_input: tuple[Any, ...], grad_output: tuple[Any, ...]) -> Any:
        found = hook(module, _wrapped(grad_input, inputs), _wrapped(grad_output, outputs))
        return _returned(found, grad_input, inputs)

    return full


def _pre_with_patterns(hook: Callable[..., Any], outputs: Patterns) -> Callable[..., Any]:
    def pre(module: Any, grad_output: tuple[Any, ...]) -> Any:
        return _returned(hook(module, _wrapped(grad_output, outputs)), grad_output, outputs)

    return pre


def _warn_of_hidden(module: Any, parts: tuple[Any, ...], what: str) -> None:
    """Warn about MaskedTensors that hooks do not get."""
    for part in parts:
        if isinstance(part, (list, tuple, dict)) and holds_masked(part):
            warnings.warn(
                f"backward hooks of {type(module).__name__} do not see the MaskedTensors inside a "
                f"{type(part).__name__} among its {what}; only positional arguments that are MaskedTensors are seen",
                stacklevel=6,
            )


def set_up_inputs(setup: Callable[..., Any], self: Any, args: Any) -> Any:
    """Replace ``BackwardHook.setup_input_hook``."""
    plain, self.maskgrad_inputs = _unwrapped(args)
    _warn_of_hidden(self.module, args, "inputs")
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
    # torch itself warns about one list or dict
    _warn_of_hidden(self.module, plain if several else (), "results")
    if not inputs and not outputs:
        return setup(self, result)
    self.user_hooks = [_with_patterns(hook, inputs, outputs) for hook in self.user_hooks]
    self.user_pre_hooks = [_pre_with_patterns(hook, outputs) for hook in self.user_pre_hooks]
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


def _complete(param: Tensor) -> None:
    for complete in _COMPLETE:
        complete(param)


def _handed_over(param: Tensor) -> list[Callable[[Tensor], None]]:
    return [give for handed_over in _HANDED_OVER if (give := handed_over(param)) is not None]


def _replaced_in(self: nn.Module, replace: Callable[[], Any]) -> Any:
    """Call ``replace``, and give the new parameters of a module what the old ones had."""
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
    for param in self._parameters.values():
        if param is not None:
            _complete(param)
    save(self, *args, **kwargs)


def load_from_state_dict(load: Callable[..., None], self: nn.Module, *args: Any, **kwargs: Any) -> None:
    """Replace ``Module._load_from_state_dict``: with ``assign=True`` parameters are replaced."""
    _replaced_in(self, lambda: load(self, *args, **kwargs))


def convert(apply: Callable[..., Any], self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Replace ``Module._apply``, which changes dtype, device and memory of parameters, or replaces them."""
    for param in self._parameters.values():
        if param is not None:
            _complete(param)
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
