"""Definition of a kernel: a reference in ordinary PyTorch, and its compiled implementations."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, ParamSpec, TypeVar

import torch
from torch import Tensor

from maskgrad.kernels import compiled
from maskgrad.kernels.derivatives import through
from maskgrad.kernels.selection import (
    Supported,
    forced_body,
    is_small,
    selected,
    uninterrupted,
)
from maskgrad.mode import mode

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
        least: number of values from which the loops run; asked once, when the kernel is called.
        in_graphs: number of values from which graphs of torch.compile for the CPU call the operator, because it beats
            the formulas that Inductor fuses (which reads Boolean masks one by one, at 3 ns each); None: never.
        fuses: whether PyTorch's compiler fuses the reference into one pass or two, which runs on CUDA devices.
        leading: which argument decides dtype and size.
        numbers: a function of all arguments that returns the number of values instead.
        check: raises an error unless the arguments fit together.
        when: returns whether the compiled implementations support the arguments; None: always.
        writes: whether arguments are written to; no gradient is recorded then.
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
        least: int,
        in_graphs: int | None,
        fuses: bool,
        leading: int,
        numbers: Callable[..., int] | None,
        check: Callable[..., None] | None,
        when: Callable[..., bool] | None,
    ) -> None:
        functools.update_wrapper(self, reference)
        self.name = reference.__name__
        self.reference = reference
        self.schema = schema
        self.dtypes = dtypes
        self.least = least
        self.in_graphs = in_graphs
        self.fuses = fuses
        self.leading = leading
        self.numbers = numbers
        self.check = check
        self.when = when
        self.writes = "!)" in schema
        self.fake: Callable[..., Any] | None = None
        self.save: Callable[..., None] | None = None
        self.backward: Callable[..., Any] | None = None
        file = Path(inspect.unwrap(reference).__code__.co_filename)
        self.has_loops = file.with_name("cpu.py").exists()
        parameters = [
            p for p in inspect.signature(reference).parameters.values() if p.kind is not p.KEYWORD_ONLY
        ]
        self._names = tuple(p.name for p in parameters)
        self._tensors = _places(schema, "Tensor", "Optional[Tensor]")
        self._others = tuple([i for i in self._tensors if i != leading])
        self._dim = self._names.index("dim") if "dim" in self._names else len(self._names)
        self._bodies: dict[str, Callable[..., Any]] = {}
        self._functions: dict[str, Callable[..., Any]] = {}
        self._defaults = {p.name: p.default for p in parameters if p.default is not p.empty}

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Return the result of the selected implementation."""
        given: tuple[Any, ...] = args
        options: dict[str, Any] = kwargs
        if len(given) < len(self._names):
            given, options = self._in_order(given, options)
        if self.check is not None:
            self.check(*given)
        if self.writes and torch.is_grad_enabled():
            with torch.no_grad():
                return self(*given, **options)
        body = self.compiled if self.is_compiled_for(*given, *options.values()) else self.reference
        return body(*given, **options)

    def _in_order(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the positional arguments, as operators and implementations take them, and the keyword-only ones."""
        found, rest = list(args), dict(kwargs)
        for name in self._names[len(args) :]:
            if name in rest:
                found.append(rest.pop(name))
            elif name in self._defaults:
                found.append(self._defaults[name])
            else:
                raise TypeError(f"{self.name}() is missing the argument {name!r}")
        return tuple(found), rest

    def is_small(self, values: Tensor) -> bool:
        """Return whether these are too few for a compiled implementation."""
        return is_small(values.numel(), self.least)

    def body_for(self, *args: Any) -> str:
        """Return which body runs on these arguments."""
        leading, number = args[self.leading], None if self.numbers is None else self.numbers(*args)
        few = is_small(leading.numel() if number is None else number, self.least)
        if few or (self.when is not None and not self.when(*args)):
            return "reference"
        others = [args[i] for i in self._others if i < len(args)]
        if len(args) > len(self._names):  # given by name
            others += [x for x in args[len(self._names) :] if isinstance(x, Tensor)]
        body, _ = selected(self, leading, *others, number=number)
        trivial = body != "reference" and self.is_trivial(args) and mode() != "graph"
        return "reference" if trivial else body

    def fast(self, *args: Any) -> R | None:
        """Return the result of a compiled implementation, None where the reference would run."""
        if self.check is not None:
            self.check(*args)
        return self.compiled(*args) if self.body_for(*args) != "reference" else None

    def is_compiled_for(self, *args: Any) -> bool:
        """Return whether a compiled implementation runs on these arguments."""
        return self.body_for(*args) != "reference"

    def compiled(self, *args: Any, **kwargs: Any) -> R:
        """Run the compiled implementation for the tensors' device.

        Eager autograd records one ``torch.autograd.Function``. The operator is for graphs of torch.compile.
        """
        operator = self.writes or mode() == "graph"
        recorded = False
        if not operator and torch.is_grad_enabled():
            for i in self._tensors:
                recorded = recorded or (args[i] is not None and args[i].requires_grad)
        if operator:
            return getattr(torch.ops.maskgrad, self.name)(*args, **kwargs)  # type: ignore[no-any-return]
        if recorded and self.backward is None:
            return self.reference(*args, **kwargs)
        body = "compiled" if args[self._tensors[0]].is_cuda or forced_body() == "compiled" else "cpu"
        run = self._recorded(body) if recorded else self.backend(body)
        return run(*args, **kwargs)  # type: ignore[no-any-return]

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
            # in C: the method of torch.autograd.Function checks the arguments for transforms first
            found = self._functions[name] = vars(torch._C._FunctionBase)["apply"].__get__(None, function)
        return found

    def backend(self, body: str) -> Callable[..., Any]:
        """Return a compiled implementation: ``"cpu"``, which imports Numba, or ``"compiled"``."""
        if body not in self._bodies:
            if body == "cpu":
                self._bodies[body] = self._loops()
            else:
                self._bodies[body] = functools.partial(compiled.run, self.name, self.reference)
        return self._bodies[body]

    def _loops(self) -> Callable[..., Any]:
        return backend_of(f"{self.reference.__module__}.cpu", self.name)

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
        """Whether graphs call it as an operator of ``torch.library``, or it writes to arguments."""
        return self.in_graphs is not None or self.writes or (self.fake is not None and not self.has_loops)

    def define(self) -> None:
        """Define the operator; the package does so when it is imported."""
        if not self.is_operator:
            return
        qualified = f"maskgrad::{self.name}"
        torch.library.define(qualified, self.schema)
        torch.library.impl(qualified, "default", self.reference)
        if self.has_loops:
            torch.library.impl(qualified, "cpu", self._as_operator())
        torch.library.register_fake(
            qualified, _writes_only if self.schema.endswith("-> ()") else self.fake or self.reference
        )
        if self.backward is not None:
            torch.library.register_autograd(qualified, self.backward, setup_context=self.save)

    def _as_operator(self) -> Callable[..., Any]:
        """The loops as PyTorch calls it, perhaps directly, with unsupported arguments."""
        arguments = torch._C.parse_schema(f"{self.name}{self.schema}").arguments
        written = [(i, a.name) for i, a in enumerate(arguments) if a.alias_info and a.alias_info.is_write]

        def body(*args: Any, **kwargs: Any) -> Any:
            if args[self.leading].dtype not in self.dtypes or self.is_trivial(args):
                return _without_base(self.reference(*args, **kwargs))
            result = self._loops()(*args, **kwargs)
            # PyTorch does not see writes of loops, and must, as saved tensors may be written.
            for i, name in written:
                tensors = args[i] if i < len(args) else kwargs.get(name)
                if tensors is not None:
                    torch.autograd.graph.increment_version(
                        tensors if isinstance(tensors, list) else [tensors]
                    )
            return _without_base(result)

        return body


def _places(schema: str, *kinds: str) -> tuple[int, ...]:
    """Return which of the positional arguments are of these kinds; a look at each in each call takes 0.1 us."""
    found = [str(a.type) for a in torch._C.parse_schema(f"kernel{schema}").arguments if not a.kwarg_only]
    return tuple([i for i, kind in enumerate(found) if kind in kinds])


def kernel(
    schema: str,
    dtypes: frozenset[torch.dtype],
    *,
    least: int = LEAST,
    in_graphs: int | None = None,
    fuses: bool = False,
    leading: int = 0,
    numbers: Callable[..., int] | None = None,
    check: Callable[..., None] | None = None,
    when: Callable[..., bool] | None = None,
) -> Callable[[Callable[P, R]], Kernel[P, R]]:
    """Make a kernel from its reference: see :class:`Kernel`."""

    def made(reference: Callable[P, R]) -> Kernel[P, R]:
        record = Kernel(reference, schema, dtypes, least, in_graphs, fuses, leading, numbers, check, when)
        KERNELS[record.name] = record
        return record

    return made


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


def _writes_only(*_: Any, **__: Any) -> None:
    """The fake implementation for an operator without results."""
