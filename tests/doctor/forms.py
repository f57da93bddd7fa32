"""Programs of all kinds of data and forms of masks.

Kinds of data x forms x side of the padding x a telling and a meaningless name x wrong or right. Each program pools
hidden states over positions: the right one those that are no padding, the wrong one all, at the line with ``# leak``.
"""

from __future__ import annotations

import inspect
import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tests.doctor.scripts.script import Script, classes, report_of

__all__ = ["GOALS", "Form", "counts", "forms", "verdict_of"]

WIDTH, HIDDEN = 3, 6
LENGTHS = torch.tensor([7, 5, 4, 2])
HEIGHTS, WIDTHS = torch.tensor([6, 4, 5, 3]), torch.tensor([5, 5, 4, 3])
NEVER = float("-inf")


def _last(real: Tensor) -> Tensor:
    return real[..., None]


def _time_first(real: Tensor) -> Tensor:
    return real.T[..., None]


def _second(real: Tensor) -> Tensor:
    return real[:, None]


@dataclass(frozen=True)
class Kind:
    """Data of one shape: how it is made from the mask (B, T) or (B, H, W), and read by a layer.

    Attributes:
        name: telling name of the tensor.
        layer: what reads them.
        laid: the mask as it lies on hidden states.
        dims: the dimensions of positions of hidden states.
        width: how many features stand where the mask has 1; of ids and series there are none.
    """

    name: str
    layer: Callable[[], nn.Module]
    laid: Callable[[Tensor], Tensor]
    dims: tuple[int, ...]
    width: int = 0

    def made(self, real: Tensor) -> Tensor:
        """The data of a mask, zero in the padding."""
        real = self.laid(real)
        if self.width:
            return torch.randn([self.width if size == 1 else size for size in real.shape]) * real
        real = real.squeeze(-1)
        return (torch.randint(1, 20, real.shape) if self.layer is _table else torch.randn(real.shape)) * real


class _Unsqueezed(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x[..., None])


def _table() -> nn.Module:
    return nn.Embedding(20, HIDDEN)


def _features() -> nn.Module:
    return nn.Linear(WIDTH, HIDDEN)


KINDS = {
    "ids": Kind("input_ids", _table, _last, (1,)),
    "ids time first": Kind("src", _table, _time_first, (0,)),
    "series": Kind("values", lambda: _Unsqueezed(1, HIDDEN), _last, (1,)),
    "features": Kind("features", _features, _last, (1,), WIDTH),
    "features time first": Kind("frames", _features, _time_first, (0,), WIDTH),
    "channels first": Kind("mel", lambda: nn.Conv1d(WIDTH, HIDDEN, 1), _second, (2,), WIDTH),
    "images": Kind("pixel_values", lambda: nn.Conv2d(WIDTH, HIDDEN, 1), _second, (2, 3), WIDTH),
}

#: of a form: a telling name, the value for a mask (True = real), and the mask read back from the value
_Made = tuple[str, Callable[[Tensor], Any], Callable[[Any, int], Tensor]]


def _additive(value: float, *dims: int) -> Callable[[Tensor], Tensor]:
    def made(real: Tensor) -> Tensor:
        for dim in dims:
            real = real.unsqueeze(dim)
        return torch.zeros(real.shape).masked_fill(~real, value)

    return made


def _of_lengths(lengths: Any, size: int) -> Tensor:
    return torch.arange(size) < torch.as_tensor(lengths)[:, None]


FORMS: dict[str, _Made] = {
    "boolean": ("attention_mask", lambda real: real, lambda z, _: z),
    "true in the padding": ("padding_mask", lambda real: ~real, lambda z, _: ~z),
    "integers": ("attention_mask", lambda real: real.long(), lambda z, _: z != 0),
    "one in the padding": ("is_pad", lambda real: (~real).long(), lambda z, _: z == 0),
    "floats": ("mask", lambda real: real.float(), lambda z, _: z > 0),
    "minus infinity": ("mask", _additive(NEVER), lambda z, _: z == 0),
    "minus 1e9": ("mask", _additive(-1e9), lambda z, _: z == 0),
    "time first": ("mask", lambda real: real.T, lambda z, _: z.T),
    "time first, true in the padding": ("pad_mask", lambda real: ~real.T, lambda z, _: ~z.T),
    "(B, 1, T)": ("mask", lambda real: real[:, None], lambda z, _: z[:, 0]),
    "(B, 1, 1, T)": ("attention_mask", lambda real: real[:, None, None], lambda z, _: z[:, 0, 0]),
    "(B, 1, 1, T), minus infinity": ("attention_mask", _additive(NEVER, 1, 1), lambda z, _: z[:, 0, 0] == 0),
    "(B, 1, 1, T), minus 1e4": ("attention_mask", _additive(-1e4, 1, 1), lambda z, _: z[:, 0, 0] == 0),
    "(B, T, 1)": ("mask", lambda real: real[..., None], lambda z, _: z[..., 0]),
    "(B, T, 1), floats": ("mask", lambda real: real[..., None].float(), lambda z, _: z[..., 0] > 0),
    "pairs": ("attn_mask", lambda real: real[:, None].repeat(1, real.shape[1], 1), lambda z, _: z[:, 0]),
    "lengths": ("lengths", lambda real: real.sum(1), _of_lengths),
    "list of lengths": ("lengths", lambda real: real.sum(1).tolist(), _of_lengths),
    "array of lengths": ("lengths", lambda real: real.sum(1).numpy(), _of_lengths),
}
#: forms that images do not have
_OF_ROWS = ("time first", "time first, true in the padding", "pairs", "(B, 1, 1, T)")


@dataclass(frozen=True)
class Form:
    """One program."""

    kind: str
    form: str
    side: str
    telling: bool
    wrong: bool

    def __str__(self) -> str:
        named = "telling" if self.telling else "meaningless"
        return f"{self.kind} | {self.form} | {self.side} | {named} | {'wrong' if self.wrong else 'right'}"

    def script(self) -> Script:
        torch.manual_seed(0)
        kind, (name, made, read) = KINDS[self.kind], FORMS[self.form]
        data, told = (kind.name, name) if self.telling else ("x", "z")
        real = _real(images=self.kind == "images")
        if self.side == "left":
            real = real.flip(tuple(range(1, real.ndim)))
        layer, head, size = kind.layer(), nn.Linear(HIDDEN, 5), real.shape[1]

        def forward(x: Tensor, z: Any) -> Tensor:
            hidden, seen = layer(x), kind.laid(read(z, size))
            total = (hidden * seen).sum(kind.dims)
            if self.wrong:
                total = hidden.sum(kind.dims)  # leak
            pooled: Tensor = head(total / seen.sum(kind.dims))
            return pooled

        named = [inspect.Parameter(key, inspect.Parameter.POSITIONAL_OR_KEYWORD) for key in (data, told)]
        forward.__signature__ = inspect.Signature(named)  # type: ignore[attr-defined]
        return Script({data: kind.made(real), told: made(real), "y": classes()}, forward)


def _real(*, images: bool) -> Tensor:
    if not images:
        return torch.arange(7) < LENGTHS[:, None]
    rows, columns = torch.arange(6) < HEIGHTS[:, None], torch.arange(5) < WIDTHS[:, None]
    return rows[:, :, None] & columns[:, None, :]


def forms() -> list[Form]:
    """All programs: lengths are of rows that begin with what is real, and images have no axis of time."""
    return [
        Form(kind, form, side, telling, wrong)
        for kind, form, side in itertools.product(KINDS, FORMS, ("right", "left"))
        if not ("lengths" in form and (side == "left" or kind == "images"))
        and not (kind == "images" and form.startswith(_OF_ROWS))
        for telling, wrong in itertools.product((True, False), (True, False))
    ]


_FILE, _FIRST = inspect.getsourcefile(Form), inspect.getsourcelines(Form.script)
_LEAK = _FIRST[1] + next(n for n, line in enumerate(_FIRST[0]) if line.endswith("# leak\n"))


def verdict_of(form: Form, way: str) -> str:
    """In a word: right, incomplete, missed, another line, or alarm."""
    report = report_of(form.script(), way, steps=1)  # what a tensor is, is decided in the first
    if report.verdict != "found":
        return "incomplete" if report.verdict == "incomplete" else "missed" if form.wrong else "right"
    if not form.wrong:
        return "alarm"
    first = report.findings[0]
    return "right" if (first.file, first.line) == (_FILE, _LEAK) else "another line"


def counts(judged: dict[Form, str]) -> dict[str, float]:
    """What the goals are about."""
    tally, found = Counter(judged.values()), Counter(v for form, v in judged.items() if form.wrong)
    plain = [verdict for form, verdict in judged.items() if not form.telling]
    return {
        "missed": tally["missed"],
        "alarm": tally["alarm"],
        "incomplete under a meaningless name": plain.count("incomplete") / max(len(plain), 1),
        "incomplete under a telling name": (tally["incomplete"] - plain.count("incomplete"))
        / max(len(judged) - len(plain), 1),
        "found at another line": found["another line"] / max(found["right"] + found["another line"], 1),
    }


#: the largest counts and shares that the tests let pass
GOALS = {
    "missed": 0,
    "alarm": 0,
    "incomplete under a meaningless name": 1 / 3,
    "incomplete under a telling name": 1 / 3,
    "found at another line": 0.05,
}
