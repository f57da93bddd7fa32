"""Full backward hooks of modules see MaskedTensors, and may return them.

``torch.nn.Module`` looks for tensors among the inputs and outputs of a module by their type, and would pass over a
MaskedTensor: a hook registered with ``register_full_backward_hook`` or ``register_full_backward_pre_hook`` was never
called. Here its values take its place for as long as torch looks. Tensors in lists or dicts are left out, as torch
leaves them out, but not without a warning; so are inputs passed by keyword, of which a hook learns nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

from maskgrad.masked_tensor.autograd import as_values
from maskgrad.masked_tensor.tensor import MaskedTensor
from maskgrad.patterns import Pattern

__all__ = ["install"]

Patterns = dict[int, Pattern]

#: What torch says of a module that returns a MaskedTensor, and what is no longer true.
UNTRUE = r"For backward hooks to be called, module output should be .*maskgrad\.masked_tensor\.tensor\.MaskedTensor"


def _unwrapped(args: tuple[Any, ...]) -> tuple[tuple[Any, ...], Patterns]:
    """Values in the place of MaskedTensors, and the patterns to put these together again."""
    patterns = {i: a._pattern for i, a in enumerate(args) if isinstance(a, MaskedTensor)}
    return tuple([a._values if isinstance(a, MaskedTensor) else a for a in args]), patterns


def _wrapped(parts: tuple[Any, ...], patterns: Patterns) -> tuple[Any, ...]:
    return tuple(
        [
            MaskedTensor(part, patterns[i]) if i in patterns and part is not None else part
            for i, part in enumerate(parts)
        ]
    )


def _returned(found: Any, given: tuple[Any, ...], patterns: Patterns) -> tuple[Any, ...]:
    """What a hook returned in the place of ``given``, as plain gradients."""
    if not isinstance(found, (tuple, list)) or len(found) != len(given):
        what = f"a {type(found).__name__} of {len(found)}" if isinstance(found, (tuple, list)) else "one"
        what = f"{what} {type(found).__name__}" if what == "one" else what
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
        return None if found is None else _returned(found, grad_input, inputs)

    return full


def _pre_with_patterns(hook: Callable[..., Any], outputs: Patterns) -> Callable[..., Any]:
    def pre(module: Any, grad_output: tuple[Any, ...]) -> Any:
        found = hook(module, _wrapped(grad_output, outputs))
        return None if found is None else _returned(found, grad_output, outputs)

    return pre


#: what torch does, for inputs and for outputs
_of_torch: dict[str, Callable[..., Any]] = {}


def _warn_of_hidden(module: Any, parts: tuple[Any, ...], what: str) -> None:
    """Say that a MaskedTensor stands where hooks cannot see it."""
    for part in parts:
        if isinstance(part, (list, tuple, dict)) and any(
            _is_masked(x) for x in tree_leaves(part, _is_masked)
        ):
            warnings.warn(
                f"backward hooks of {type(module).__name__} do not see the MaskedTensors inside a "
                f"{type(part).__name__} among its {what}; only what is passed by itself, by position, is seen",
                stacklevel=5,
            )


def _is_masked(x: object) -> bool:
    """Where to stop in nested containers."""
    return isinstance(x, MaskedTensor)


def _setup_input_hook(self: Any, args: Any) -> Any:
    plain, self.maskgrad_inputs = _unwrapped(args)
    _warn_of_hidden(self.module, args, "inputs")
    _silence()
    if not self.maskgrad_inputs:
        return _of_torch["inputs"](self, args)
    return _wrapped(_of_torch["inputs"](self, plain), self.maskgrad_inputs)


def _setup_output_hook(self: Any, result: Any) -> Any:
    inputs: Patterns = self.maskgrad_inputs
    several = isinstance(result, tuple)
    plain, outputs = _unwrapped(result if several else (result,))
    _warn_of_hidden(
        self.module, plain if several else (), "results"
    )  # of one list or dict torch warns itself
    if not inputs and not outputs:
        return _of_torch["outputs"](self, result)
    self.user_hooks = [_with_patterns(hook, inputs, outputs) for hook in self.user_hooks]
    self.user_pre_hooks = [_pre_with_patterns(hook, outputs) for hook in self.user_pre_hooks]
    parts = _wrapped(_of_torch["outputs"](self, plain), outputs)
    if not several:
        return parts[0]
    return parts if type(result) is tuple else type(result)(*parts)


def _silence() -> None:
    # At every call, for filters may have been added or forgotten since (catch_warnings); one entry, whatever happens.
    first = warnings.filters[0] if warnings.filters else None
    if first is None or getattr(first[1], "pattern", None) != UNTRUE:
        warnings.filterwarnings("ignore", message=UNTRUE, category=UserWarning)


def install() -> None:
    """Let torch's backward hooks of modules look into MaskedTensors."""
    from torch.utils.hooks import BackwardHook

    _of_torch.update(inputs=BackwardHook.setup_input_hook, outputs=BackwardHook.setup_output_hook)
    BackwardHook.setup_input_hook = _setup_input_hook  # type: ignore[method-assign]
    BackwardHook.setup_output_hook = _setup_output_hook  # type: ignore[method-assign]
