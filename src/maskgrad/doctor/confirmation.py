"""Whether a difference that twins saw, or could not see, is one: the step as a whole."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from maskgrad.doctor.batches import Key, fields, replaced
from maskgrad.doctor.case import Examination, PerturbedInput, run_perturbed
from maskgrad.doctor.comparison import Difference, compare
from maskgrad.doctor.inferred import same_part
from maskgrad.doctor.modes import Guarded
from maskgrad.doctor.padding import Padding
from maskgrad.doctor.runner import Outcome
from maskgrad.doctor.twins import Twins
from maskgrad.doctor.variants import other_contents

__all__ = ["Whole", "as_a_whole"]


@dataclass
class Whole:
    """What the step as it is gives with other contents in its batch."""

    difference: Difference
    #: the other batch; None if only the tables look up others
    batch: Any = None
    #: why the step fails on that batch, so that nothing can be confirmed
    failure: str = ""


def as_a_whole(case: Examination, hidden: PerturbedInput, kind: str, seed: int, mode: Twins) -> Whole | None:
    """What the step as it is gives with only the padding rewritten; None if it cannot be rewritten there.

    A program that tests ids for padding keeps its ids, and its tables look up others. Labels of -100 and NaN say
    themselves that they are padding: rewritten, they would be none.
    """
    batch = case.runner.batch if hidden.batch is None else hidden.batch
    inside, new, rest = fields(batch), dict[Key, Any](), list[Padding]()
    looked_up = list[tuple[Tensor, Tensor]]()
    for padding in hidden.paddings:
        held = inside[padding.key]
        is_label = padding.source.startswith(("labels", "ignore_index")) or padding.source == "NaN"
        if is_label or not isinstance(held, Tensor):
            rest.append(padding)
            continue
        other = other_contents(held.detach(), padding.entries(held), kind, seed)
        if other is None:
            continue
        if held.is_floating_point() and mode.saw_sentinels:
            return None
        if mode.saw_sentinels or padding.is_marked:
            looked_up.append((held, other))
        else:
            new[padding.key] = other.requires_grad_(held.requires_grad)
    if not new and not looked_up:
        return None
    try:
        before = case.runner.run(Guarded(), batch, after=Outcome.cloned)
        with _other_rows(case.runner.roots, looked_up) as served:
            after = case.runner.run(Guarded(), replaced(batch, new), after=Outcome.cloned)
    except Exception as error:  # such as ids that a table does not have
        return Whole(Difference(), failure=f"the step fails on changed data ({_raised(error)})")
    if len(served) < len(looked_up) or (
        kind == "large" and after.has_nan()
    ):  # what only overflows is no fault
        return None
    whole = Whole(compare(before, after, count=case.count), replaced(batch, new) if new else None)
    if whole.difference or not rest:
        return whole
    # what was not rewritten may be what the twins saw
    return whole if mode.not_followed and not run_perturbed(case, rest, kind, seed, batch)[0] else None


def _raised(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


@contextlib.contextmanager
def _other_rows(roots: Iterable[nn.Module], ids: Sequence[tuple[Tensor, Tensor]]) -> Iterator[set[int]]:
    """Let tables look up other ids for a while; yields which pairs of ids they met."""
    served: set[int] = set()

    def look_up(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given: Any = args[0] if args else kwargs.get("input")
        for number, (own, other) in enumerate(ids if isinstance(given, Tensor) else ()):
            found = same_part(given, own, other)
            if found is not None:
                served.add(number)
                return ((found[0], *args[1:]), kwargs) if args else (args, {**kwargs, "input": found[0]})
        return None

    tables = [
        module for root in roots for module in root.modules() if isinstance(module, nn.Embedding) and ids
    ]
    with contextlib.ExitStack() as hooks:
        for module in tables:
            hooks.enter_context(module.register_forward_pre_hook(look_up, with_kwargs=True))
        yield served
