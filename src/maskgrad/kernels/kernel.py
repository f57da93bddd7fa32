"""Definition of a kernel: a reference in ordinary PyTorch, and its compiled implementations."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

import torch
from torch import Tensor

from maskgrad.kernels import compiled
from maskgrad.kernels.derivatives import through
from maskgrad.kernels.selection import LARGE, Supported, selected, uninterrupted

#: the dtypes whose sums are taken in float32
HALVES = (torch.float16, torch.bfloat16)
FLOATS = frozenset((torch.float16, torch.bfloat16, torch.float32, torch.float64))
REDUCIBLE = FLOATS | {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool}
#: Number of values from which loops run, if a kernel does not say another one. Of whole training steps, a small
#: autoencoder (64 x 200) takes 1.3 times as long with 16,384; with 4,096 none takes less time.
LEAST = 8_192

P = ParamSpec("P")
R = TypeVar("R")

#: By name; each is registered where its reference is defined.
KERNELS: dict[str, Kernel[..., Any]] = {}


class Kernel(Supported, Generic[P, R]):
    """Calling it checks the arguments and selects an implementation, once.

    The loops for CPUs are the function of this name in ``cpu.py`` next to the reference.

    Attributes:
        name: of the operator, and of the functions that implement it.
        reference: the implementation in ordinary PyTorch: differentiable, exportable, for any device.
        schema: arguments and results, in PyTorch's schema language.
        dtypes: those that the compiled implementations support.
        least: number of values from which the loops run, asked once, when the kernel is called; None: there are none.
        in_graphs: number of values from which graphs of torch.compile for the CPU call the operator, because it beats
            the formulas that Inductor fuses (which reads Boolean masks one by one, at 3 ns each); None: never.
        fuses: whether PyTorch's compiler fuses the reference into one pass or two, which runs on CUDA devices.
        leading: which argument decides dtype and size.
        numbers: a function of all arguments that returns the number of values instead.
        check: raises an error unless the arguments fit together.
        fake: the implementation for tensors without data, if the reference would return other strides.
        save: saves what the derivative needs in the forward pass (``setup_context``).
        backward: the derivative, written with kernels, so that derivatives of any order exist.
        has_loops: whether there is an implementation for CPUs.
    """

    def __init__(
        self,
        reference: Callable[P, R],
        schema: str,
        dtypes: frozenset[torch.dtype],
        least: int | None,
        in_graphs: int | None,
        fuses: bool,
        leading: int,
        numbers: Callable[..., int] | None,
        check: Callable[..., None] | None,
    ) -> None:
        functools.update_wrapper(self, reference)
        self.name = reference.__name__
        self.reference: Callable[..., R] = reference
        self.schema = schema
        self.dtypes = dtypes
        self.least = least
        self.in_graphs = in_graphs
        self.fuses = fuses
        self.leading = leading
        self.numbers = numbers
        self.check = check
        self.fake: Callable[..., Any] | None = None
        self.save: Callable[..., None] | None = None
        self.backward: Callable[..., Any] | None = None
        self.has_loops = least is not None
        parameters = inspect.signature(reference).parameters.values()
        self._names = tuple(p.name for p in parameters)
        kinds = [str(a.type) for a in torch._C.parse_schema(f"kernel{schema}").arguments]
        self._tensors = tuple([i for i, kind in enumerate(kinds) if kind in ("Tensor", "Optional[Tensor]")])
        self._others = tuple([i for i in self._tensors if i != leading])
        self._dim = self._names.index("dim") if "dim" in self._names else len(self._names)
        self._bodies: dict[str, Callable[..., Any]] = {}
        self._functions: dict[str, Callable[..., Any]] = {}
        self._defaults = {p.name: p.default for p in parameters if p.default is not p.empty}

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Return the result of the selected implementation."""
        given: tuple[Any, ...] = args
        if kwargs or len(given) < len(self._names):
            given = self._in_order(given, kwargs)
        if self.check is not None:
            self.check(*given)
        body = self.body_for(*given)
        return self.reference(*given) if body == "reference" else self.run(body, given)

    def _in_order(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """Return all arguments by position, as operators and implementations take them."""
        found = {**self._defaults, **dict(zip(self._names, args, strict=False)), **kwargs}
        if len(found) != len(self._names):
            inspect.signature(self.reference).bind(*args, **kwargs)  # says which is missing, or unknown
        return tuple([found[name] for name in self._names])

    def body_for(self, *args: Any) -> str:
        """Return which body runs on these arguments: "reference", "cpu", "compiled", or "operator" in a graph."""
        number = None if self.numbers is None else self.numbers(*args)
        body, _ = selected(self, args[self.leading], *[args[i] for i in self._others], number=number)
        return "reference" if body in ("cpu", "compiled") and self.is_trivial(args) else body

    def fast(self, *args: Any) -> R | None:
        """Return the result of a compiled implementation, None where the reference would run."""
        body = self.body_for(*args)
        return None if body == "reference" else self.run(body, args)

    def run(self, body: str, args: tuple[Any, ...]) -> R:
        """Run a compiled implementation: eager autograd records one ``torch.autograd.Function``."""
        if body == "operator":
            return getattr(torch.ops.maskgrad, self.name)(*args)  # type: ignore[no-any-return]
        if torch.is_grad_enabled():
            for i in self._tensors:
                if args[i] is not None and args[i].requires_grad:
                    return self._recorded(body)(*args)  # type: ignore[no-any-return]
        return (self._bodies.get(body) or self.backend(body))(*args)  # type: ignore[no-any-return]

    def _recorded(self, name: str) -> Callable[..., Any]:
        """Return ``apply`` of the ``torch.autograd.Function`` for a body."""
        found = self._functions.get(name)
        if found is None:
            body, save, derivative = self.backend(name), self.save, self.backward
            assert save is not None
            assert derivative is not None

            def forward(ctx: Any, *args: Any) -> Any:
                output = _without_base(body(*args))
                save(ctx, args, output)
                ctx.set_materialize_grads(False)  # no zeros for results that have none
                return output

            def backward(ctx: Any, *grads: Tensor | None) -> Any:
                for grad in grads:
                    if grad is not None:
                        return derivative(ctx, *grads)
                return (None,) * len(self._names)

            members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
            function = type(self.name, (torch.autograd.Function,), members)
            found = self._functions[name] = apply_of(function)
        return found

    def backend(self, body: str) -> Callable[..., Any]:
        """Return a compiled implementation: ``"cpu"``, which imports Numba, or ``"compiled"``."""
        if body not in self._bodies:
            if body == "cpu":
                self._bodies[body] = backend_of(f"{self.reference.__module__}.cpu", self.name)
            else:
                self._bodies[body] = functools.partial(compiled.run, self.name, self.reference)
        return self._bodies[body]

    def is_trivial(self, args: tuple[Any, ...]) -> bool:
        """Return whether there is no value, a scalar, or no dimension to reduce: only the reference handles these."""
        first = args[self.leading]
        return not first.numel() or not first.ndim or (self._dim < len(args) and args[self._dim] in ((), []))

    def derive(self, save: Callable[..., None], backward: Callable[..., Any]) -> None:
        """Set the functions ``save`` and ``backward`` of the derivative."""
        self.save, self.backward = save, backward

    def derive_through_reference(self) -> None:
        """Let PyTorch differentiate the reference: for kernels whose derivative is rarely needed."""
        self.derive(**through(self.reference))

    @property
    def is_operator(self) -> bool:
        """Whether graphs call it as an operator of ``torch.library``."""
        return self.in_graphs is not None or (self.fake is not None and not self.has_loops)

    def define(self) -> None:
        """Define the operator; the package does so when it is imported."""
        if not self.is_operator:
            return
        qualified = f"maskgrad::{self.name}"
        torch.library.define(qualified, self.schema)
        torch.library.impl(qualified, "default", self.reference)
        if self.has_loops:
            torch.library.impl(qualified, "cpu", self._as_operator)
        torch.library.register_fake(qualified, self.fake or self.reference)
        if self.backward is not None:
            torch.library.register_autograd(qualified, self.backward, setup_context=self.save)

    def _as_operator(self, *args: Any) -> Any:
        """The loops as PyTorch calls them, perhaps directly, with unsupported arguments."""
        given = self._in_order(args, {})
        plain = given[self.leading].dtype not in self.dtypes or self.is_trivial(given)
        return _without_base((self.reference if plain else self.backend("cpu"))(*given))


def kernel(
    schema: str,
    dtypes: frozenset[torch.dtype],
    *,
    least: int | None = LEAST,
    in_graphs: int | None = None,
    fuses: bool = False,
    leading: int = 0,
    numbers: Callable[..., int] | None = None,
    check: Callable[..., None] | None = None,
) -> Callable[[Callable[P, R]], Kernel[P, R]]:
    """Make a kernel from its reference: see :class:`Kernel`."""

    def made(reference: Callable[P, R]) -> Kernel[P, R]:
        record = Kernel(reference, schema, dtypes, least, in_graphs, fuses, leading, numbers, check)
        KERNELS[record.name] = record
        return record

    return made


def explain(kernel: str, values: Tensor, *others: Tensor | None) -> str:
    """Return why ``kernel`` would run its reference on these tensors; empty if a compiled implementation runs."""
    return selected(KERNELS[kernel], values, *others)[1]


def kernels_in_use(device: str | torch.device = "cpu") -> dict[str, str]:
    """Return which implementation each kernel runs for a large tensor on ``device``; imports its compiler to find out.

    The tensor is float32.
    """
    place = torch.device(device)
    if place.type == "cuda" and not torch.cuda.is_available():
        raise RuntimeError(
            f"kernels_in_use(): device is {str(device)!r}, but PyTorch finds no CUDA device; pass 'cpu', "
            "or run on a machine with a GPU and a CUDA build of PyTorch"
        )
    sample = torch.empty(1, dtype=torch.float32, device=place).expand(LARGE)
    return {name: selected(kernel, sample)[0] for name, kernel in KERNELS.items()}


def apply_of(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """``function.apply`` for eager code, in C: the method inspects the signature, and looks for transforms."""
    found: Callable[..., Any] = vars(torch._C._FunctionBase)["apply"].__get__(None, function)
    return found


@functools.cache
def backend_of(module: str, name: str) -> Callable[..., Any]:
    """Return the attribute ``name`` of a module with compiled implementations; imports their compiler."""
    with uninterrupted():
        found = importlib.import_module(module)
    return getattr(found, name)  # type: ignore[no-any-return]


def _without_base(result: Any) -> Any:
    """Return results that are not views: PyTorch refuses writes to views made inside an operator with a gradient."""
    if isinstance(result, Tensor):
        if not result._is_view():
            return result
        storage = result.untyped_storage()
        return result.new_empty(0).set_(storage, result.storage_offset(), result.shape, result.stride())
    return tuple(map(_without_base, result)) if isinstance(result, tuple) else result


def like(argument: int) -> Callable[..., Tensor]:
    """The implementation for tensors without data of a kernel whose result has the strides of an argument."""
    return lambda *args: torch.empty_like(args[argument])
