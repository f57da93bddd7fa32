"""Rules of operations for jagged entries, and operations that use the padded form.

Nothing else is padded implicitly: an operation whose record has no padded form (``Operation.padded``)
raises an error that suggests ``to_dense()``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from maskgrad.semantics.dimensions import as_dim
from maskgrad.semantics.entries import Entries
from maskgrad.semantics.facts import Operation
from maskgrad.semantics.jagged import (
    attention,
    convolutions,
    features,
    indexing,
    losses,
    products,
    recurrence,
    views,
)
from maskgrad.semantics.jagged.frames import in_one_frame
from maskgrad.semantics.jagged.rows import Call, elementwise, from_padded, is_jagged
from maskgrad.semantics.jagged.sequences import over_sequences, within_sequences
from maskgrad.semantics.registry import OPERATIONS
from maskgrad.semantics.stored import conversion, norms
from maskgrad.semantics.stored import registry as stored
from maskgrad.semantics.stored.entries import StoredEntries, exploded, from_places

if TYPE_CHECKING:
    from maskgrad.semantics.jagged.rows import Jagged

__all__ = ["beside_other_layouts", "rule_for", "runs_on"]

Body = Callable[..., Any]

#: Operations that move entries; results remain prefixes only if they move along the ragged dimension.
SORTED = frozenset(("sort", "argsort"))

#: Reductions of all entries that do not depend on their positions, in addition to those with a scalar result.
WITHOUT_PLACES = frozenset(("amax", "amin", "aminmax", "max", "min", "quantile", "nanquantile"))

#: Elementwise, though in another family.
PER_ENTRY = frozenset(("nn.functional.dropout", "nn.functional.alpha_dropout", "native_dropout"))


def keeping_rows(call: Call) -> Any:
    """The padded form's result, and the rows of it, if it has the shape of the first operand."""
    model: Any = call.first()[0]
    result = call.on_padded()
    if not is_jagged(model) or (call.operation.name in SORTED and not _within_sequences(call, model)):
        return result
    return _with_rows(result, model)


def _within_sequences(call: Call, x: Jagged) -> bool:
    """Return whether entries are moved along the ragged dimension only; a flattened one contains all sequences."""
    if x.pattern.is_flat:
        return False
    dim = call.bound("input dim").get("dim", -1)
    return isinstance(dim, int) and as_dim(dim, len(x.shape)) == x.pattern.at[-1]


def _with_rows(result: Any, model: Jagged) -> Any:
    if isinstance(result, Entries):
        return from_padded(result.values, model.pattern) if result.values.shape == model.shape else result
    if isinstance(result, (tuple, list)):
        parts = [_with_rows(part, model) for part in result]
        return tuple(parts) if type(result) is tuple else type(result)(parts)
    return result


def beside_other_layouts(rule: Body) -> Body:
    """A rule for stored entries, with jagged operands as lists of coordinates."""

    def body(function: Body, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return rule(function, _listed(args), {k: _listed(v) for k, v in kwargs.items()})

    return body


def _listed(x: Any) -> Any:
    if is_jagged(x):
        return from_places(*exploded(x))
    return type(x)([_listed(part) for part in x]) if type(x) in (list, tuple) else x


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
    if family == "metadata" and name not in stored.UNKNOWN_TO_STORED:
        return conversion.ask(name)
    if family == "conversion" or name in ("clone", "detach", "detach_copy", "is_same_size", "zero_", "copy_"):
        return _without_strides(conversion.RULES.get(name, conversion.convert))
    if name in conversion.RULES:
        return conversion.RULES[name]
    return operation.body if family == "differentiation" else None


def _without_strides(convert: Body) -> Body:
    """Drop memory formats, as rows have a different rank from the whole shape."""

    def body(function: Body, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return convert(function, args, {k: v for k, v in kwargs.items() if k != "memory_format"})

    return body


def _first_that_knows(operation: Operation) -> Body:
    """The result of the first rule that returns one, else that of the padded form."""
    rules = _rules(operation)
    last = ON_PADDED.get(operation.name, keeping_rows if operation.padded == "rows" else Call.on_padded)

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
    reduces = name in stored.REDUCTIONS and name in features.ALONG and features.ALONG[name].reduces
    is_number = operation.number is not None and operation.number.dim is not None
    rules = (
        (pairwise, name in ("max", "min")),
        (features.along, name in features.ALONG),
        (indexing.read, name in indexing.DIVIDED | indexing.OF_SEQUENCES),
        (indexing.gathered, name in indexing.GATHERED),
        (within_sequences, name in norms.NORMALIZED),
        (over_sequences, reduces),
        (features.over_everything, name in WITHOUT_PLACES or is_number),
    )
    return tuple([rule for rule, serves in rules if serves])


def pairwise(call: Call) -> Any:
    """``torch.max`` of two tensors; it may also reduce one."""
    second = call.args[1] if len(call.args) > 1 else call.kwargs.get("other")
    if not isinstance(second, (Tensor, StoredEntries, Entries)):
        return None
    return elementwise(call.operation)(call.function, call.args, call.kwargs)


#: Rules that find the rows in the result of the padded form.
ON_PADDED: dict[str, Callable[[Call], Any]] = {
    **convolutions.RULES,
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu"), recurrence.recurrence),
}

SPECIAL: dict[str, Callable[[Call], Any]] = {
    **features.RULES,
    **products.RULES,
    **dict.fromkeys((*views.RULES, *views.BY_SHAPE), views.rearranged),
    **dict.fromkeys(("nn.functional.cross_entropy", "nn.functional.nll_loss"), losses.by_class),
    "nn.functional.scaled_dot_product_attention": attention.scaled_dot_product_attention,
    "nn.functional.multi_head_attention_forward": attention.multi_head_attention_forward,
    "cat": views.cat,
    "stack": views.stack,
    "where": views.where,
    "masked_fill": views.masked_fill,
    "masked_select": indexing.masked_select,
    "__getitem__": indexing.getitem,
    "take": indexing.take,
}


def _aligned_rule(operation: Operation) -> Body | None:
    rule = _rule_for(operation)
    return None if rule is None else in_one_frame(operation, rule)


_KNOWN = {operation.name: _aligned_rule(operation) for operation in OPERATIONS}


def rule_for(operation: Operation) -> Body | None:
    """The rule for calls with a jagged operand, or None."""
    return _KNOWN[operation.name]
