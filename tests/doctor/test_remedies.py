"""Each remedy that the doctor prints, pasted into the program that draws it: right, and nothing is found any more.

A program reads ``x`` (3, 5, 4), with numbers in the padding, and ``mask`` (3, 5), Boolean or of 0 and 1. The right
result is that of the program as it was, of each sample alone and without its padding.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from maskgrad import doctor
from tests.doctor.pairs import lasting
from tests.doctor.programs_examined import written


@dataclass(frozen=True)
class Drawn:
    """A program of which the line draws a remedy.

    Attributes:
        line: the leaking one.
        before: what makes its inputs.
        layers: what it calls.
        after: how the loss follows, by default of the result ``y``: a sum over samples.
        count: how many remedies are printed.
        right: the right loss, if it is not the sum of those of each sample alone.
        left: whether rows are padded on the left.
    """

    line: str
    before: str = ""
    layers: str = ""
    after: str = "return y.square().sum()"
    count: int = 2
    right: str = ""
    left: bool = False


#: of results for each position
ROWS = "return y.masked_fill((mask == 0)[..., None], 0.0).pow(3).sum()"
LAST = "return y[1].square().sum()"
SCORES = "scores = x @ x.mT"
HEADS = "q = k = v = x.unflatten(-1, ({heads}, -1)).transpose(1, 2); scores = q @ k.mT"
OF_HEADS = "return ((y @ v).transpose(1, 2).flatten(2) * (mask != 0)[..., None]).square().sum()"
LAYER = "2, 8, dropout=0.0, batch_first=True"

DRAWN: dict[str, Drawn] = {
    "mean": Drawn("y = x.mean(1)"),
    "mean of series": Drawn("y = x.mean(1)", "x = x.sum(-1)"),
    "mean of channels first": Drawn("y = x.mean(2)", "x = x.mT"),
    "mean of time first": Drawn("y = x.mean(0)", "x = x.transpose(0, 1)"),
    "mean over positions and channels": Drawn("y = x.mean((1, 2))"),
    "sum": Drawn("y = x.sum(1)"),
    "largest": Drawn("y = x.amax(1)"),
    "max": Drawn("y = x.max(1).values"),
    "smallest": Drawn("y = x.amin(1)"),
    "argmax": Drawn("y = x.gather(1, x.argmax(1, keepdim=True))", count=1),
    "topk": Drawn("y = x.topk(2, 1).values", count=1),
    "sort": Drawn("y = x.sort(1, descending=True).values[:, 0]", count=1),
    "standard deviation": Drawn("y = x.std(1)", count=1),
    "variance": Drawn("y = x.var(1)", count=1),
    "variance of channels first": Drawn("y = x.var(2, keepdim=True)", "x = x.mT", count=1),
    "norm": Drawn("y = x.norm(dim=1)"),
    "running sum": Drawn("y = x.cumsum(1)", after=ROWS, count=1, left=True),
    "last position": Drawn("y = x[:, -1]", count=1),
    "last position of time first": Drawn("y = x[-1]", "x = x.transpose(0, 1)", count=1),
    "softmax of one row of scores": Drawn("y = scores.softmax(-1)", "scores = x.sum(-1)"),
    "softmax of attention": Drawn("y = scores.softmax(-1)", SCORES, after="y = y @ x; " + ROWS),
    "softmax of two heads": Drawn("y = scores.softmax(-1)", HEADS.format(heads=2), after=OF_HEADS),
    "softmax of as many heads as samples": Drawn(
        "y = scores.softmax(-1)", "x = x[..., :3]; " + HEADS.format(heads=3), after=OF_HEADS
    ),
    "logsumexp": Drawn("y = scores.logsumexp(1)", "scores = x"),
    "attention": Drawn(
        "y = F.scaled_dot_product_attention(q, k, v)",
        HEADS.format(heads=2),
        after="y = y.transpose(1, 2).flatten(2); " + ROWS,
    ),
    "attention without heads": Drawn(
        "y = F.scaled_dot_product_attention(q, k, v)", "q = k = v = x", after=ROWS
    ),
    "MultiheadAttention": Drawn(
        "y = attention(q, k, v)",
        "q = k = v = x",
        "attention = nn.MultiheadAttention(4, 2, batch_first=True)",
        "y = y[0]; " + ROWS,
        count=1,
    ),
    "TransformerEncoderLayer": Drawn(
        "y = layer(x)", layers=f"layer = nn.TransformerEncoderLayer(4, {LAYER})", after=ROWS, count=1
    ),
    "TransformerEncoder": Drawn(
        "y = encoder(x)",
        layers=f"encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, {LAYER}), 2)",
        after=ROWS,
        count=1,
    ),
    "TransformerDecoderLayer": Drawn(
        "y = layer(x, memory)",
        "memory, x = x, torch.ones(len(x), 3, 4)",
        f"layer = nn.TransformerDecoderLayer(4, {LAYER})",
        count=1,
    ),
    "Transformer": Drawn(
        "y = transformer(src, tgt)",
        "src, tgt = x, torch.ones(len(x), 3, 4)",
        f"transformer = nn.Transformer(4, 2, 1, 1, {LAYER.removeprefix('2, ')})",
        "return (y * torch.arange(4)).square().sum()",  # a layer norm comes last: its squares are constant
        count=1,
    ),
    "GRU": Drawn("y = rnn(x)", layers="rnn = nn.GRU(4, 3, batch_first=True)", after=LAST),
    "LSTM": Drawn(
        "y = rnn(x)", layers="rnn = nn.LSTM(4, 3, batch_first=True)", after="return y[1][0].square().sum()"
    ),
    "GRU of time first": Drawn(
        "y = rnn(x)", "x = x.transpose(0, 1)", "rnn = nn.GRU(4, 3)", after=LAST, count=1
    ),
    "recurrence by hand": Drawn(
        "new = (x[:, t] + state).tanh()",
        "state = torch.zeros_like(x[:, 0])\nfor t in range(x.shape[1]):",
        after="    state = new\nreturn state.square().sum()",
        count=1,
    ),
    "convolution": Drawn(
        "y = conv(x)", "x = x.mT", "conv = nn.Conv1d(4, 4, 3, padding=1)", "y = y.mT; " + ROWS, count=1
    ),
    "largest of a window": Drawn(
        "y = F.max_pool1d(x, 3, 1, 1)", "x = x.mT", after="y = y.mT; " + ROWS, count=1
    ),
    "product of matrices": Drawn(
        "y = torch.bmm(weights, x)", "weights = torch.ones(len(x), 2, x.shape[1])", count=1
    ),
    "batch norm": Drawn(
        "y = norm(x)",
        "x = x.mT",
        "norm = nn.BatchNorm1d(4)",
        "y = y.mT; " + ROWS,
        right="return norm(x.mT[mask]).pow(3).sum()",
    ),
    "cross entropy of rows": Drawn(
        "y = F.cross_entropy(logits, labels)",
        "logits, labels = x.flatten(0, 1), batch['labels'].flatten()",
        after="return y",
        right="return F.cross_entropy(x[mask], batch['labels'][mask])",
    ),
    "cross entropy of classes first": Drawn(
        "y = F.cross_entropy(logits, labels)",
        "logits, labels = x.mT, batch['labels']",
        after="return y",
        right="return F.cross_entropy(x[mask], batch['labels'][mask])",
    ),
    **{
        f"{name} of {of}": Drawn(
            f"y = F.{name}(prediction, target)",
            f"prediction, target = x{last}, batch['target']{last}",
            after="return y",
            right=f"return F.{name}(prediction[mask], target[mask])",
        )
        for name, of, last in (
            ("mse_loss", "features", ""),
            ("mse_loss", "series", "[..., 0]"),
            ("smooth_l1_loss", "features", ""),
            ("huber_loss", "series", "[..., 0]"),
            ("binary_cross_entropy_with_logits", "series", "[..., 0]"),
        )
    },
    "CTC": Drawn(
        "y = F.ctc_loss(log_probs, targets, torch.full((3,), 5), target_lengths)",
        "log_probs = x.transpose(0, 1).log_softmax(-1)\n"
        "targets, target_lengths = torch.tensor([[1], [2], [3]]), torch.ones(3, dtype=torch.long)",
        after="return y",
        count=1,
        right="return F.ctc_loss(log_probs, targets, mask.sum(1), target_lengths)",
    ),
    "median": Drawn("y = x.median(1).values", after="return mg.masked(y).filled(0.).square().sum()", count=1),
}


def batch_of(left: bool) -> dict[str, Tensor]:
    torch.manual_seed(1)
    mask, labels, target = lasting(5, 3, 2), torch.randint(0, 4, (3, 5)), torch.rand(3, 5, 4)
    return {
        "x": torch.randn(3, 5, 4),
        "mask": mask.flip(1) if left else mask,
        "labels": labels,
        "target": target,
    }


def program(path: Path, drawn: Drawn, line: str, after: str) -> ModuleType:
    line = textwrap.indent(line, "    ") if drawn.before.endswith(":") else line
    parts = 'mask = batch["mask"]', 'x = net(batch["x"]).tanh()', drawn.before, line, after
    return written(path, drawn.layers, "\n".join(parts))


def pasted(remedy: str, line: str) -> Iterator[str]:
    """The lines of a program for each remedy: in place of the line, or before or after it."""
    target = line.partition(" = ")[0]
    for code in remedy.splitlines():
        if "# before this line" in code:
            yield f"{code}\n{line}"
        elif "# after the step" in code:
            yield f"{line}\n{code}\nnew = state"
        else:
            yield f"{target} = {code}"


@pytest.mark.every
@pytest.mark.parametrize("name", DRAWN)
def test_a_remedy_can_be_pasted(name: str, tmp_path: Path) -> None:
    drawn = DRAWN[name]
    batch = batch_of(drawn.left)
    wrong = program(tmp_path / "wrong.py", drawn, drawn.line, drawn.after)
    found = doctor.examine(wrong.step, batch, quick=True).findings
    assert [(finding.kind, finding.code) for finding in found] == [("padding-leak", drawn.line)]
    if drawn.right:
        right = program(tmp_path / "right.py", drawn, drawn.right, "").step(batch)
    else:
        right = expected(wrong, batch)
    lines = list(pasted(found[0].remedy, drawn.line))
    assert len(lines) == drawn.count, found[0].remedy
    for number, line in enumerate(lines):
        mended = program(tmp_path / f"right{number}.py", drawn, line, drawn.after)
        for dtype in (torch.bool, torch.int64):
            given = batch | {"mask": batch["mask"].to(dtype)}
            torch.testing.assert_close(
                mended.step(given), right, msg=lambda text, line=line: f"{line}: {text}"
            )
            report = doctor.examine(mended.step, given, quick=True)
            assert report.ok, f"{line}\n{report}"


def expected(program: Any, batch: dict[str, Tensor]) -> Tensor:
    rows = zip(batch["x"], batch["mask"], strict=True)
    alone = ({"x": x[real][None], "mask": real[real][None]} for x, real in rows)
    return sum(map(program.step, alone))
