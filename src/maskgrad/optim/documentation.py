"""The documentation of an optimizer: sections derived from its constructor and its rule."""

from __future__ import annotations

import inspect
import re
import textwrap
from typing import Any

__all__ = ["arguments_of", "documentation_of", "entry"]

SECTIONS = ("Args", "State", "Raises", "Dense equivalent", "Example", "Source")
SCOPE = """\
Only entries that the gradient specifies are updated; parameter and state of all others are unchanged, bit for bit.
Duplicate indices are merged first. Gradients may be dense, sparse COO (whole rows or single entries) or, through
:func:`maskgrad.attach_gradient`, CSR, CSC, BSR, BSC or masked, and may differ from step to step. Half-precision values
are computed in float32, and rounded once when they are stored."""
ARGUMENTS = {
    "params": "iterable of parameters or named parameters, or of dicts that define parameter groups; floating-point "
    "or complex, any shape.",
    "lr": "learning rate, a number or a tensor with one element.",
    "betas": "decay rates of the first and second moment, each at least 0 and less than 1.",
    "eps": "added to the denominator, for numerical stability.",
    "weight_decay": "L2 penalty, on specified entries.",
    "decoupled_weight_decay": "decay the parameter itself, as AdamW does, and not through the gradient.",
    "amsgrad": "divide by the largest second moment so far.",
    "maximize": "maximize the objective instead of minimizing it.",
    "foreach": "for dense gradients, use PyTorch's foreach implementation; None: PyTorch's choice.",
    "fused": "for dense gradients, use PyTorch's fused implementation; None: on a CPU. Gradients of rows always take a "
    "fused kernel.",
    "capturable": "keep the step count on the parameter's device, as PyTorch does; CUDA graphs are not supported.",
    "differentiable": "as in PyTorch, for dense gradients; a step with any other gradient raises an error.",
    "bias_correction": '``"steps"``: count the steps of the parameter, as PyTorch does; ``"row"``: count those of each '
    "row of the first dimension, so that the first step of a row has the usual length of a first step, however late it "
    'comes. It needs one number for each row, and ``unspecified="skip"``.',
    "unspecified": '``"skip"``: entries without a gradient are skipped; ``"zero"``: their gradient is zero, and the '
    "updates that they miss are applied at their next step or read.",
}
RAISES = """
    TypeError: a parameter is sparse, or neither floating-point nor complex, or a hyperparameter is not a number.
    ValueError: a hyperparameter is out of range, NaN or infinite, or an option is not available."""


def documentation_of(kind: Any) -> str:
    """The docstring of an optimizer, completed: arguments in the constructor's order, states, errors."""
    head, *found = re.split(rf"\n\n({'|'.join(SECTIONS)}):", inspect.cleandoc(kind.__doc__))
    own = dict(zip(found[::2], found[1::2], strict=True))
    described = {**ARGUMENTS, "state": _about_state(kind), **arguments_of(own.get("Args", ""))}
    names = inspect.signature(kind).parameters
    own["Args"] = "".join(entry(f"{name}: {described[name]}") for name in names)
    own["State"] = entry(_states(kind), 4) + own.get("State", "")
    own.setdefault("Raises", RAISES)
    if kind._torch is not None:
        own.setdefault("Dense equivalent", f" ``torch.optim.{kind._torch.__name__}``, to float32 rounding.")
    sections = (f"{name}:{own[name]}" for name in SECTIONS)
    return "\n\n".join((head, SCOPE, *sections)) + "\n"


def arguments_of(text: str) -> dict[str, str]:
    """The descriptions of the arguments in the section ``Args`` of ``text``, a docstring without common indentation."""
    found = re.findall(r"^    (\w+): (.*(?:\n        .*)*)", text, re.MULTILINE)
    return {name: " ".join(about.split()) for name, about in found}


def entry(text: str, indent: int = 8) -> str:
    """Format an entry of a section; lines after the first begin at ``indent``."""
    return "\n" + textwrap.fill(
        text, 112, initial_indent=" " * 4, subsequent_indent=" " * indent, break_on_hyphens=False
    )


def _about_state(kind: Any) -> str:
    statistics = [f'``"{state.name}"``' for state in kind._rule.states if state.statistic]
    if not statistics:
        return 'must be ``"full"``.'
    return (
        f'``"full"``: one value of each state for each entry; ``"row"``: one value of {" and ".join(statistics)} for '
        "each row of the first dimension, of the mean of squares over the row's specified entries."
    )


def _states(kind: Any) -> str:
    rule = kind._rule
    names = [*(("step",) if rule.counts_steps else ()), *rule.scalars]
    states = [f'``"{name}"``' for name in names]
    for state in rule.states:
        needed = f"; with ``{state.needs}``" if state.needs else ""
        states.append(f'``"{state.name}"`` ({state.about}{needed})')
    text = ", ".join(states)
    if kind._torch is not None:
        text += (
            f", as in ``torch.optim.{kind._torch.__name__}``; state dicts can be exchanged in both directions"
        )
    return f"{text}."
