"""Sees every call that uses a parameter inside ``vmap``, and keeps the gradient per sample that it gives.

A model runs under ``torch.vmap``, one sample at a time as far as it can tell, so that no two samples can be mistaken
for each other. It is given one copy of its parameters per sample, all of them the same memory; the gradient of the
copies is the gradient per sample. A few functions (see :mod:`~maskgrad.gradients.per_sample_rules`) are intercepted
before that: they run once, on the whole batch, with the parameter itself, and a recorder in the graph keeps the factors
of the gradient during the backward pass.
"""

from __future__ import annotations

import abc
import types
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch as functorch
from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter
from torch.overrides import TorchFunctionMode

from maskgrad.errors import CoupledSamplesError
from maskgrad.gradients.per_sample_gradients import Full, SampleGradients

__all__ = ["LayerCall", "NotBatchedError", "NotByRuleError", "PerSampleMode", "Rule"]

Rule = Callable[..., Tensor]


class NotByRuleError(Exception):
    """A call with a parameter that no rule covers; it takes the general way."""


class NotBatchedError(RuntimeError):
    """What the model does can only be done sample by sample."""


class LayerCall(abc.ABC):
    """One call of a function with a parameter, on the whole batch."""

    def __init__(self, mode: PerSampleMode, weight: Tensor, bias: Tensor | None = None) -> None:
        self.mode = mode
        self.weight = mode.name(weight)
        self.bias = None if bias is None else mode.name(bias)

    @classmethod
    def rule(cls, mode: PerSampleMode, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """The function on one sample's operand ``input``, to be called under ``vmap``."""
        return cls(mode, *args, **kwargs).on(input)

    @abc.abstractmethod
    def run(self, x: Tensor) -> Tensor:
        """The function on ``x``, (B, *shape of one sample's operand), without a graph; the result is written to."""

    @abc.abstractmethod
    def keep(self, x: Tensor, cotangent: Tensor) -> None:
        """Hand the parameters' gradients, in factors, to the mode."""

    def on(self, x: Tensor) -> Tensor:
        """The function on one sample's operand, to be called under ``vmap``."""
        if type(x) not in _PLAIN:
            raise NotByRuleError
        return self.mode.on_all_samples(self._recorded, x)

    def constant(self, name: str | None) -> Any:
        """A parameter itself, without its graph."""
        return None if name is None else self.mode.parameters[name].detach()

    def _recorded(self, batch: Tensor) -> Tensor:
        y = self.run(batch)
        if y._is_view():  # the recorder works in place, which it cannot on a view
            y = y.clone()
        found: Tensor = _GradientRecorder.apply(y, batch.detach(), self.mode.anchor, self)  # type: ignore[no-untyped-call]
        return found


class _GradientRecorder(torch.autograd.Function):
    """The identity, which keeps the gradient. In place: the result may be written to as if it were not there."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, x: Tensor, _: Tensor, call: LayerCall) -> Tensor:
        ctx.mark_dirty(y)
        ctx.save_for_backward(x)
        ctx.call = call
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None, Tensor, None]:
        (x,) = ctx.saved_tensors
        ctx.call.keep(x, cotangent)
        return cotangent, None, ctx.call.mode.anchor.detach(), None


class PerSampleMode(TorchFunctionMode):
    """Sees the functions that one sample's forward pass calls, and applies ``rules`` to those with a parameter.

    With ``create_graph`` there are no rules: they keep numbers, which cannot be differentiated again.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        batch: int,
        rules: Mapping[Any, Rule],
        create_graph: bool = False,
    ) -> None:
        super().__init__()
        self.parameters = parameters
        self.create_graph = create_graph
        self.copies = {
            name: p.expand(batch, *p.shape)
            if create_graph
            else p.detach().expand(batch, *p.shape).requires_grad_()
            for name, p in parameters.items()
        }
        device = next(iter(parameters.values())).device
        self.numbers = torch.arange(batch, device=device)
        #: an input of every recorder, so that backward visits it
        self.anchor = torch.zeros((), device=device, requires_grad=True)
        self._level = 0
        self.kept: dict[str, list[SampleGradients]] = defaultdict(list)
        self._rules = {} if create_graph else rules
        self._names = {id(p): name for name, p in parameters.items()}
        self._in_vmap: Mapping[str, Tensor] = {}

    def sample(self, copies: Mapping[str, Tensor], number: Tensor) -> AbstractContextManager[Any]:
        """For the forward pass of one sample, with its copies of the parameters and its number."""
        self._names = {id(p): name for name, p in self.parameters.items()}
        self._names |= {id(copy): name for name, copy in copies.items()}
        self._in_vmap, self._level = copies, functorch.maybe_get_level(number)
        return self

    def on_all_samples(self, function: Callable[..., Tensor], *operands: Tensor | None) -> Tensor:
        """Call ``function`` once, outside of ``vmap``, on operands with all samples in their first dimension.

        The result, (B, ...), is one sample's again. This is what the ``vmap`` method of an ``autograd.Function`` is
        for; the way through one costs as much as a small layer. NotByRuleError inside a transformation of the model's.
        """
        interpreter = retrieve_current_functorch_interpreter()
        if interpreter.level() != self._level:
            raise NotByRuleError
        with interpreter.lower():
            found = function(*[None if x is None else self._all_samples(x) for x in operands])
        one: Tensor = functorch._add_batch_dim(found, 0, self._level)
        return one

    def _all_samples(self, x: Tensor) -> Tensor:
        if functorch.is_batchedtensor(x) and functorch.maybe_get_level(x) == self._level:
            return functorch.get_unwrapped(x).movedim(functorch.maybe_get_bdim(x), 0)
        return x.expand(len(self.numbers), *x.shape)

    def name(self, parameter: Any) -> str:
        """The name of a parameter; NotByRuleError for any other tensor."""
        try:
            return self._names[id(parameter)]
        except KeyError:
            raise NotByRuleError from None

    def keep(self, name: str, part: SampleGradients) -> None:
        """Add ``part`` to the gradients of the parameter ``name``."""
        self.kept[name].append(part)

    def backward(self, loss: Tensor) -> None:
        """Backward from the sum of all samples' losses, which completes ``kept``."""
        if self.create_graph:
            copies = list(self.copies.values())
            unseen = _reaches(loss, self.parameters.values(), without=copies)
            found = (None, *torch.autograd.grad(loss, copies, create_graph=True, allow_unused=True))
        else:
            originals = list(self.parameters.values())
            found = torch.autograd.grad(
                loss, [self.anchor, *self.copies.values(), *originals], allow_unused=True
            )
            unseen = any(gradient is not None for gradient in found[1 + len(self.copies) :])
        if unseen:
            raise NotBatchedError(
                "a parameter is used through a reference outside of the module, which vmap cannot see"
            )
        for name, gradient in zip(self.copies, found[1:], strict=False):
            if gradient is not None:
                self.keep(name, Full(gradient))

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.nn.functional.batch_norm and kwargs.get("training", args[5] if args[5:] else False):
            raise CoupledSamplesError(
                "the model normalises over the batch (batch_norm with training=True): a sample has no gradient of its "
                "own. Use GroupNorm, LayerNorm or InstanceNorm, or model.eval()"
            )
        if func == _READ_REQUIRES_GRAD:
            return func(*args) or _is_in_graph(args[0])
        if func in _HOOKS:
            raise NotBatchedError(f"Tensor.{func.__name__} is meant for the gradient of one sample")
        unfused = func is _FUSED_LOSS
        if unfused:
            # Its chunked form computes gradients in the forward pass, and silently gives zeros under vmap (torch 2.13).
            kwargs = {**kwargs, "options": None}
        # A MaskedTensor, or whatever else is no plain tensor, implements functions by itself.
        plain = all(kind in _PLAIN for kind in types)
        rule = self._rules.get(func) if plain else None
        concerns = unfused or self._concerns(args) or self._concerns(kwargs.values())
        if not concerns and func is not _ATTENTION:
            return func(*args, **kwargs)
        if rule is not None:
            try:
                return rule(self, *args, **kwargs)
            except NotByRuleError:
                pass
        args = tuple(self._with_copies(a) for a in args)
        kwargs = {name: self._with_copies(a) for name, a in kwargs.items()}
        body = _body(func) if plain else None
        if body is None:
            return func(*args, **kwargs)
        with self:
            return body(*args, **kwargs)

    def _concerns(self, args: Any) -> bool:
        names = self._names
        return any(
            id(a) in names or (isinstance(a, (list, tuple)) and any(id(e) in names for e in a)) for a in args
        )

    def _with_copies(self, arg: Any) -> Any:
        """A parameter reached by another way than the module's attribute is exchanged for the sample's copy."""
        if isinstance(arg, (list, tuple)) and type(arg) in (list, tuple):
            return type(arg)(self._with_copies(a) for a in arg)
        name = self._names.get(id(arg))
        return arg if name is None else self._in_vmap[name]


_READ_REQUIRES_GRAD = Tensor.requires_grad.__get__  # type: ignore[attr-defined]
_HOOKS = (Tensor.register_hook, Tensor.retain_grad)
_PLAIN = (Tensor, torch.nn.Parameter)
_ATTENTION = torch.nn.functional.scaled_dot_product_attention
_FUSED_LOSS = getattr(torch.nn.functional, "linear_cross_entropy", None)


def _reaches(loss: Tensor, leaves: Iterable[Tensor], without: Iterable[Tensor]) -> bool:
    """Whether the graph of ``loss`` leads to one of ``leaves`` without passing the nodes of ``without``."""
    wanted = {id(leaf) for leaf in leaves}
    seen: set[Any] = {x.grad_fn for x in without}
    waiting: list[Any] = [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if id(getattr(node, "variable", None)) in wanted:
            return True
        waiting.extend(following for following, _ in node.next_functions)
    return False


def _is_in_graph(x: Tensor) -> bool:
    """Whether ``x`` requires a gradient; under ``vmap`` ``x.requires_grad`` is False, and models skip their hooks."""
    inner = x
    while functorch.is_functorch_wrapped_tensor(inner):
        inner = functorch.get_unwrapped(inner)
    return inner.requires_grad


_BODIES: dict[Any, Any] = {}


def _body(func: Any) -> Any:
    """A function of ``torch.nn.functional`` written in Python, without its check for ``__torch_function__``.

    So the functions that it calls are seen (attention calls ``linear``). None: not such a function.
    """
    if not isinstance(func, types.FunctionType) or func.__module__ != "torch.nn.functional":
        return None
    if func not in _BODIES:
        checks = [f"has_torch_function{suffix}" for suffix in ("", "_unary", "_variadic")]
        names = {**func.__globals__, **dict.fromkeys(checks, lambda *_: False)}
        body = types.FunctionType(func.__code__, names, func.__name__, func.__defaults__, func.__closure__)
        body.__kwdefaults__ = func.__kwdefaults__
        _BODIES[func] = body
    return _BODIES[func]
