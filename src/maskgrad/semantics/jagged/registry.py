"""Rules of operations for jagged entries, and operations that use the padded form.

Nothing else is padded implicitly: an operation whose record has no padded form (``Operation.padded``)
raises an error that suggests ``to_dense()``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from maskgrad.semantics.dimensions import as_dim
from maskgrad.semantics.entries import Entries
from maskgrad.semantics.facts import Operation
from maskgrad.semantics.jagged import (
    attention,
    features,
    indexing,
    losses,
    over_time,
    products,
    views,
)
from maskgrad.semantics.jagged.frames import in_one_frame
from maskgrad.semantics.jagged.rows import Call, elementwise, from_padded, is_jagged
from maskgrad.semantics.registry import OPERATIONS
from maskgrad.semantics.stored import conversion
from maskgrad.semantics.stored import registry as stored
from maskgrad.semantics.stored.entries import attach, is_masked
from maskgrad.semantics.stored.reductions import NORMALIZED, REDUCTIONS

__all__ = ["rule_for", "runs_on"]

Body = Callable[..., Any]

#: Reductions of all entries that do not depend on their positions, in addition to those with a scalar result.
WITHOUT_PLACES = frozenset(("amax", "amin", "aminmax", "max", "min", "quantile", "nanquantile"))

#: Elementwise, though in another family.
PER_ENTRY = frozenset(("nn.functional.dropout", "nn.functional.alpha_dropout", "native_dropout"))


def keeping_rows(call: Call) -> Any:
    """The padded form's result, and the rows of it, if it has the shape of the first operand."""
    model: Any = call.first()[0]
    result = call.on_padded()
    if not is_jagged(model):
        return result
    if call.operation.name in ("sort", "argsort"):  # entries move, and must not leave their sequence
        dim = call.bound("input dim").get("dim", -1)
        if model.pattern.is_flat or as_dim(dim, len(model.shape)) != model.pattern.at[-1]:
            return result

    def kept(part: Any) -> Any:
        fits = isinstance(part, Entries) and part.values.shape == model.shape
        return from_padded(part.values, model.pattern) if fits else part

    return attach(result, kept)


def runs_on(operation: Operation) -> str:
    """Entry of the coverage table: "rows", "Boolean mask" (the padded form is made for it), or "refused"."""
    if rule_for(operation) is None:
        return "refused"
    return "Boolean mask" if operation.padded and not _rules(operation) else "rows"


def _rule_for(operation: Operation) -> Body | None:
    name, family = operation.name, operation.family
    if (family == "elementwise" and not operation.padded) or name in PER_ENTRY:
        return elementwise(operation)
    if operation.by_position or operation.padded:
        return _first_that_knows(operation)
    of_any = family in ("metadata", "conversion", "differentiation") or name in conversion.RULES
    return stored.rule_for(operation) if of_any else None


def _first_that_knows(operation: Operation) -> Body:
    """The result of the first rule that returns one, else that of the padded form."""
    rules = _rules(operation)
    last = over_time.RULES.get(operation.name, keeping_rows if operation.padded == "rows" else Call.on_padded)

    def body(function: Body, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        call = Call(operation, function, args, kwargs)
        for rule in rules:
            found = rule(call)
            if found is not None:
                return found
        return last(call)

    return body


def _rules(operation: Operation) -> tuple[Callable[[Call], Any], ...]:
    """The rules for an operation, the most special first."""
    name = operation.name
    if operation.by_position:
        return (losses.by_position,)
    if name in SPECIAL:
        return (SPECIAL[name],)
    is_number = operation.number is not None and operation.number.dim is not None
    rules = (
        (pairwise, name in ("max", "min")),
        (features.along, name in features.ALONG),
        (indexing.read, name in indexing.DIVIDED or name == "index_select"),
        (indexing.gathered, name in indexing.GATHERED),
        (features.within_sequences, name in NORMALIZED),
        (features.over_sequences, name in REDUCTIONS and name in features.ALONG),
        (features.over_everything, name in WITHOUT_PLACES or is_number),
    )
    return tuple([rule for rule, serves in rules if serves])


def pairwise(call: Call) -> Any:
    """``torch.max`` of two tensors; it may also reduce one."""
    second = call.args[1] if len(call.args) > 1 else call.kwargs.get("other")
    if not isinstance(second, Tensor) and not is_masked(second):
        return None
    return elementwise(call.operation)(call.function, call.args, call.kwargs)


SPECIAL: dict[str, Callable[[Call], Any]] = {
    **features.RULES,
    **products.RULES,
    **dict.fromkeys(views.RULES, views.rearranged),
    **dict.fromkeys(("nn.functional.cross_entropy", "nn.functional.nll_loss"), losses.by_class),
    "nn.functional.scaled_dot_product_attention": attention.scaled_dot_product_attention,
    "nn.functional.multi_head_attention_forward": attention.multi_head_attention_forward,
    "cat": views.cat,
    "stack": views.stack,
    "where": views.where,
    "masked_fill": views.masked_fill,
    "__getitem__": indexing.getitem,
}


_KNOWN = {
    operation.name: rule and in_one_frame(operation, rule)
    for operation in OPERATIONS
    for rule in (_rule_for(operation),)
}


def rule_for(operation: Operation) -> Body | None:
    """The rule for calls with a jagged operand, or None."""
    return _KNOWN[operation.name]
