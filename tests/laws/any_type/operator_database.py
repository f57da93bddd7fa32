"""The entries of PyTorch's operator database, and their samples."""

from __future__ import annotations

import functools
import itertools
import numbers
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_utils import SEED
from torch.testing._utils import wrapper_set_seed
from torch.utils._pytree import tree_map_only

from maskgrad.masked_tensor.dispatch import binding_of
from tests.defaults import chosen_dtype
from tests.laws.any_type.comparison import HALVES
from tests.laws.any_type.exclusions import NOT_ASKED, NOT_IN, OUTSIDE, OUTSIDE_BY_NAME
from tests.laws.any_type.own_samples import own_samples
from tests.laws.any_type.samples import LOOKED_AT, UNUSED_SAMPLES, Effort, Sample

__all__ = ["ENTRIES", "Entry", "differentiable", "entry_named", "registered_entries", "samples_of", "takes"]

#: The names of Python's operators begin with an underscore and are public.
DUNDER = "__"

#: Dtype of the tests of an entry: the first of these that it supports.
DTYPES = (torch.float32, torch.int64, torch.complex64, torch.bool)

#: Families and operations tested in double precision, because they amplify rounding: normalisation divides by
#: deviations as small as the root of eps; chains of matrices, covariances and distances by products subtract
#: large numbers.
PRECISE = (
    "attention", "normalization", "nn.functional.ctc_loss", "linalg.multi_dot", "linalg.matrix_power", "cov",
    "corrcoef", "cdist", "logcumsumexp",
)  # fmt: skip

#: Operations that sort entries, with an undefined order of ties.
ORDERS = ("sort", "argsort", "msort", "topk", "kthvalue")

#: Operations or families whose functions in torch round in between: they call each other, sum in half precision
#: (convolutions, on processors with instructions for it, in an order that depends on the layout), or
#: take derivatives of products of all entries.
STEPWISE = ("contractions", "convolutions", "chains", "linear_algebra", "pooling", "cumprod")
#: … and with --dtype, which has more samples.
STEPWISE_IF_ASKED = (*STEPWISE, "interpolation", "trapezoid", "trapz")

#: Computed by torch in half precision step by step, with cancellation, so up to two thirds of a result is rounding;
#: here it is computed in float32 and rounded once, as torch would in float32.
CANCELLING = ("nn.functional.binary_cross_entropy_with_logits",)
#: … whose steps overflow in float16, tested with --dtype only.
OVERFLOWING = ("nn.functional.soft_margin_loss", "nn.functional.poisson_nll_loss")

#: Conversions of results that cannot be compared directly; shape and mask are kept.
READABLE: dict[str, Callable[[Any], Any]] = {
    # they have no values yet
    **dict.fromkeys(
        ("empty_like", "new_empty", "new_empty_strided"),
        lambda result: torch.logical_and(result, torch.tensor(False)).to(result.dtype),
    ),
    # torch cannot read uint64
    "hash_tensor": lambda result: result.view(torch.int64),
}


@dataclass(frozen=True, eq=False)
class Entry:
    """One entry of the database, possibly in another dtype or form.

    Attributes:
        info: PyTorch's description.
        of: the dtype of its samples, if not its own.
        form: one of :data:`FORMS`.
    """

    info: Any
    of: torch.dtype | None = None
    form: str = "as it comes"

    @property
    def name(self) -> str:
        """Name in the database."""
        return str(self.info.name)

    @property
    def variant(self) -> str:
        """Variant among entries of that name."""
        return str(self.info.variant_test_name)

    @property
    def id(self) -> str:
        """Name and variant combined."""
        return f"{self.name}-{self.variant}" if self.variant else self.name

    @property
    def function(self) -> Callable[..., Any]:
        """PyTorch's function."""
        return self.readable(by_name(self.info.op))

    @property
    def reference(self) -> Callable[..., Any]:
        """The reference for plain tensors: the function, with a corrected gradient where torch's is wrong."""
        if self.dtype in HALVES and self.name in (*CANCELLING, *(OVERFLOWING if self.asked else ())):
            return in_float32(self.function)
        return MENDED.get(self.name, self.function)

    @functools.cached_property
    def dtype(self) -> torch.dtype:
        """Dtype of its samples."""
        if self.of is not None:
            return self.of
        known = self.info.dtypes
        if self.amplifies:
            return torch.float64
        return next((dtype for dtype in DTYPES if dtype in known), next(iter(known), torch.float32))

    @property
    def tolerant(self) -> bool:
        """Return whether larger errors are expected: torch rounds half precision after each of several steps."""
        halves = self.dtype in HALVES
        return self.amplifies or (
            halves
            and bool(
                {self.operation.family, self.operation.name}
                & set(STEPWISE_IF_ASKED if self.asked else STEPWISE)
            )
        )

    @property
    def asked(self) -> bool:
        """Whether ``--dtype`` asks for its dtype."""
        return self.of is not None and self.of == chosen_dtype(None)

    @property
    def amplifies(self) -> bool:
        """Return whether it makes rounding errors larger."""
        return self.operation is not None and bool(
            {self.operation.family, self.operation.name} & set(PRECISE)
        )

    @property
    def outside(self) -> str | None:
        """Reason why the entry is excluded, if any."""
        if self.name in OUTSIDE_BY_NAME:
            return OUTSIDE_BY_NAME[self.name]
        if self.name.startswith(DUNDER):
            return None
        return next((reason for start, reason in OUTSIDE.items() if self.id.startswith(start)), None)

    @functools.cached_property
    def operation(self) -> Any:
        """The record of this entry, or None."""
        if self.outside:
            return None
        named: Any = torch
        for part in self.name.split("."):
            named = getattr(named, part, None)
        method = getattr(torch.Tensor, self.name, None)
        getter = getattr(method, "__get__", None)  # x.T, x.mH, …
        info = self.info
        spellings = (
            info.op, info.method_variant, info.operator_variant, named, method, getter, info.inplace_variant,
        )  # fmt: skip
        bindings = (binding_of(spelling) for spelling in spellings if spelling is not None)
        return next((binding.operation for binding in bindings if binding), None)

    @property
    def other_spellings(self) -> dict[str, Callable[..., Any]]:
        """The entry's further spellings that return a new tensor."""
        found = {"method": self.info.method_variant, "operator": self.info.operator_variant}
        return {kind: self.readable(by_name(f)) for kind, f in found.items() if f is not None}

    def readable(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, followed by a conversion of its result."""
        after = READABLE.get(self.name)
        return (lambda *args, **kwargs: after(function(*args, **kwargs))) if after else function

    @property
    def in_place_spellings(self) -> dict[str, Callable[..., Any]]:
        """Registered functions that write to their first operand."""
        found = {
            "in place": self.info.inplace_variant,
            "in-place operator": self.info.inplace_operator_variant,
        }
        return {kind: by_name(f) for kind, f in found.items() if f is not None and binding_of(f)}


def differentiable(entry: Entry) -> bool:
    """Return whether PyTorch has a derivative of the entry in its dtype."""
    if entry.dtype not in entry.info.backward_dtypes:
        return False
    return bool(entry.info.supports_autograd) and (entry.dtype.is_floating_point or entry.dtype.is_complex)


def by_name(function: Callable[..., Any]) -> Callable[..., Any]:
    """A method of ``torch.Tensor``, called on the first argument by name, for any type."""
    name = getattr(function, "__name__", "")
    code = getattr(function, "__code__", None)
    # lambda x: wrapper_set_seed(torch.Tensor.normal_, x)
    if code is not None and {"wrapper_set_seed", "Tensor"} <= {*code.co_names}:
        return functools.partial(wrapper_set_seed, by_name(getattr(torch.Tensor, code.co_names[-1])))
    if getattr(torch.Tensor, name, None) is not function:
        return function

    def method(first: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(first, (numbers.Number, list, tuple)):
            raise TypeError(f"{name} is a method of tensors, not of {type(first).__name__}")
        # Python 2's __rdiv__ is a name of torch.Tensor only
        result = (
            getattr(first, name)(*args, **kwargs)
            if hasattr(first, name)
            else function(first, *args, **kwargs)
        )
        if result is NotImplemented:
            raise TypeError(f"{name} is not implemented for these operands")
        return result

    return method


def as_strided_scatter(x: torch.Tensor, src: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Torch 2.13 passes the gradient of kept entries to overwritten ones, as gradcheck reports."""
    written = torch.as_strided_scatter(torch.zeros_like(x), torch.ones_like(src), *args, **kwargs)
    return torch.where(written.bool().detach(), torch.as_strided_scatter(x.detach(), src, *args, **kwargs), x)


def in_float32(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` in half precision, computed in float32 and rounded once."""

    def rounded_once(*args: Any, **kwargs: Any) -> Any:
        dtype = function(*args, **kwargs).dtype
        args, kwargs = tree_map_only(
            torch.Tensor, lambda t: t.float() if t.dtype in HALVES else t, (args, kwargs)
        )
        return function(*args, **kwargs).to(dtype)

    return rounded_once


#: Functions whose gradient in torch is not their derivative.
MENDED: dict[str, Callable[..., Any]] = {"as_strided_scatter": as_strided_scatter}


def takes(info: Any, dtype: torch.dtype | None) -> bool:
    """Whether torch takes the dtype, and nothing is to be said against a test."""
    excluded, _ = NOT_IN.get(info.name, ((), ""))
    return dtype in info.dtypes and dtype not in excluded


def asked_for(info: Any) -> torch.dtype | None:
    """The dtype of ``--dtype``, where torch takes it, and nothing is to be said against a test."""
    dtype, (excluded, _) = chosen_dtype(None), NOT_ASKED.get(info.name, ((), ""))
    return dtype if takes(info, dtype) and dtype not in excluded else None


ENTRIES = [Entry(info, asked_for(info)) for info in op_db]


def entry_named(id: str) -> Entry:
    """Return the entry with this name and variant."""
    return next(entry for entry in ENTRIES if entry.id == id)


def registered_entries() -> list[Entry]:
    """Every entry with a record."""
    return [entry for entry in ENTRIES if entry.operation is not None]


def drawn_samples(info: Any, dtype: torch.dtype) -> Iterator[Sample]:
    """Samples of ``info.sample_inputs``, seeded as there, without its search of the stack for a unittest.

    That search costs more than most laws, and ``torch.manual_seed`` records the whole stack without a GPU.
    """
    drawn = iter(info.sample_inputs_func(info, "cpu", dtype, False))
    while True:
        seed_for_samples()
        with torch.device("cpu"):
            sample = next(drawn, None)
        if sample is None:
            return
        yield Sample(*moved(((sample.input, *sample.args), dict(sample.kwargs))))


def moved(arguments: Any) -> Any:
    """To the device on which the tests compute, if that is another one."""
    device = torch.get_default_device()
    return (
        arguments if device.type == "cpu" else tree_map_only(torch.Tensor, lambda x: x.to(device), arguments)
    )


def seed_for_samples() -> None:
    """Seed as PyTorch does before each sample, on the CPU."""
    torch.default_generator.manual_seed(SEED)
    random.seed(SEED)
    np.random.seed(SEED)  # noqa: NPY002  (PyTorch's samples are drawn from the global state)


def has_equals(tensor: torch.Tensor) -> bool:
    return len(tensor.unique()) < tensor.numel()


def accepted(entry: Entry, sample: Sample) -> bool:
    """Return whether torch accepts the sample."""
    try:
        entry.function(*sample.args, **sample.kwargs)
    except Exception:
        return False
    return True


def samples_of(
    entry: Entry, effort: Effort, dtype: torch.dtype | None = None, looked_at: int = LOOKED_AT
) -> list[Sample]:
    """Samples, the same in every run: the first few, some of the next sixty, and those that the database lacks."""
    count = effort.samples
    drawn = drawn_samples(entry.info, dtype or entry.dtype)
    samples = list(itertools.islice(drawn, looked_at))
    if not any(
        leaf.numel() for sample in samples for leaf in sample.tensors()
    ):  # unfold begins with empty batches
        samples += itertools.islice(drawn, 2 * LOOKED_AT)
    usable = [s for s in samples if not any(unused(s) for _, unused in UNUSED_SAMPLES)]
    if torch.get_default_device().type != "cpu":  # where PyTorch may lack the operator
        usable = [sample for sample in usable if accepted(entry, sample)]
    if entry.name in ORDERS and entry.of is not None:
        usable = [s for s in usable if not has_equals(s.tensors()[0])]
    if entry.form != "as it comes":
        usable = [
            formed for sample in usable if (formed := sample.in_form(entry.form)) and accepted(entry, formed)
        ]
    if len(usable) > count:
        first, rest = usable[: count // 2], usable[count // 2 :]
        spread = count - len(first)
        usable = first + [rest[i * len(rest) // spread] for i in range(spread)]
    usable = usable[::2] if effort.thinned else usable
    own = effort.own and entry.form == "as it comes"
    return [*usable, *(own_samples(entry.id, dtype or entry.dtype) if own else ())]
