"""Remedies that depend on the kind of the finding only: pasted into a program that draws it, which is then right."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from maskgrad import doctor
from maskgrad.doctor.findings import _OF_DIVISIONS, _OF_KINDS
from tests.doctor.pairs import lasting
from tests.doctor.programs_examined import written

MASK = lasting(5, 3, 2)
SEQ_IDX = torch.tensor([[0, 0, 0, 1, 1], [0, 0, 1, 1, 1]])


@dataclass(frozen=True)
class Drawn:
    """A program of ``batch`` with a leak.

    Attributes:
        kind: the kind of the finding.
        number: which of its remedies is tried.
        body: the step; ``LINE`` stands for the wrong line, and for what replaces it.
        line: the wrong line.
        use: what replaces it; ``REMEDY`` stands for the remedy.
        layers: what is made before the step.
        batch: its tensors.
        options: options of the examination.
        remedies: the lines that have to be printed, if they are not those of the kind.
    """

    kind: str
    number: int
    body: str
    line: str
    use: str = "REMEDY"
    layers: str = ""
    batch: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    remedies: tuple[str, ...] = ()


_generator = torch.Generator().manual_seed(1)


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=_generator)


def labelled(*shape: int) -> torch.Tensor:
    return torch.randint(1, 9, shape, generator=_generator)


def features(**more: Any) -> dict[str, Any]:
    return {"x": numbers(3, 5, 4), "mask": MASK, **more}


def tokens(**more: Any) -> dict[str, Any]:
    ids = labelled(2, 5)
    return {"input_ids": ids, "labels": ids.roll(-1, 1), "seq_idx": SEQ_IDX, **more}


NAN = numbers(3, 5, 4).masked_fill(~MASK[..., None], torch.nan)
NEXT = "return F.cross_entropy(head(y).transpose(1, 2), batch['labels'])"
TABLE = "table, head = nn.Embedding(9, 4), nn.Linear(4, 9)"
PARTS = {"x": numbers(4, 5, 4), "mask": lasting(5, 3, 2, 1), "y": numbers(4, 5)}
WITHOUT_A_TOKEN = features(mask=MASK & torch.tensor([[True], [True], [False]]))
WEIGHTS = "weights = scores.masked_fill(mask == 0, float('-inf')).softmax(-1)"
CAUSAL: dict[str, Any] = {
    "batch": {"x": numbers(2, 5, 4), "y": numbers(2, 5), "weights": torch.ones(2, 5)},
    "options": {"causal": True},
}

DRAWN = [
    Drawn(
        "nan-under-mask",
        0,
        "prediction, target = net(batch['x']), batch['target']\nLINE\nreturn y",
        "y = F.mse_loss(prediction, target)",
        "REMEDY\ny = F.mse_loss(prediction, target)",
        batch={"x": numbers(3, 5, 4), "target": NAN},
    ),
    Drawn(
        "nan-under-mask",
        1,
        "mask = batch['mask']\nx = net(batch['x']).square() * mask[..., None]\nLINE\n"
        "return y.masked_fill(mask[..., None] == 0, 0.0).sum()",
        "y = x.sqrt()",
        "REMEDY\ny = x.sqrt()",
        batch=features(),
    ),
    *(
        Drawn(
            "padding-length",
            number,
            "mask = batch['mask']\nx = net(batch['x']).masked_fill(mask[..., None] == 0, 0.0)\nLINE\n"
            "return y.square().sum()",
            "y = x.sum(1) / x.shape[1]",
            "y = REMEDY",
            batch=features(),
            options={"quick": False},
        )
        for number in (0, 1)
    ),
    Drawn(
        "denominator",
        0,
        "parts = [slice(0, 2), slice(2, 4)]\n"
        "def losses_of(part):\n"
        "    error = net(batch['x'][part]).sum(-1) - batch['y'][part]\n"
        "    return error.square()\n"
        "LINE\nreturn loss",
        "means = [losses_of(part)[batch['mask'][part]].mean() / len(parts) for part in parts]\n"
        "[mean.backward() for mean in means]\nloss = sum(means).detach()",
        "REMEDY\nfor part in parts:\n    accumulator.backward(losses_of(part), mask=batch['mask'][part])\n"
        "loss = accumulator.finish()",
        "model = net",
        PARTS,
    ),
    Drawn(
        "denominator",
        1,
        "total = torch.zeros(())\ntokens_of_the_whole_batch = batch['mask'].sum()\nfor part in range(0, 4, 2):\n"
        "    rows = slice(part, part + 2)\n    losses = (net(batch['x'][rows]).sum(-1) - batch['y'][rows]).square()\n"
        "    loss_sum = losses[batch['mask'][rows]].sum()\n    LINE\n    total = total + loss\nreturn total",
        "loss = loss_sum / batch['mask'][rows].sum() / 2",
        batch=PARTS,
    ),
    Drawn(
        "empty-row",
        0,
        "x, mask = net(batch['x']), batch['mask']\nscores = x.sum(-1)\nLINE\n"
        "return ((weights[..., None] * x).sum(1) - 1).square().sum()",
        WEIGHTS,
        "weights = REMEDY",
        batch=WITHOUT_A_TOKEN,
    ),
    Drawn(
        "empty-row",
        1,
        "x, mask = net(batch['x']), batch['mask']\nscores, full = x.sum(-1), mask.any(1)\nLINE\n"
        "return ((weights[..., None] * x).sum(1) - 1)[full].square().sum()",
        WEIGHTS,
        "REMEDY\n" + WEIGHTS,
        batch=WITHOUT_A_TOKEN,
    ),
    Drawn(
        "empty-row",
        0,
        "x, mask = net(batch['x']), batch['mask']\ncount = mask.sum(1, keepdim=True)\nLINE\n"
        "return (y - 1).square().sum()",
        "y = x.masked_fill(mask[..., None] == 0, 0.0).sum(1) / count",
        "REMEDY\ny = x.masked_fill(mask[..., None] == 0, 0.0).sum(1) / count",
        batch=WITHOUT_A_TOKEN,
        remedies=_OF_DIVISIONS,
    ),
    Drawn(
        "document-leak",
        0,
        "q = k = v = table(batch['input_ids'])\nseq_idx, mask = batch['seq_idx'], torch.ones(2, 5, 5).bool()\n"
        "LINE\ny = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)\n" + NEXT,
        "pass",
        layers=TABLE,
        batch=tokens(labels=labelled(2, 5)),
    ),
    Drawn(
        "document-leak",
        1,
        "x, seq_idx = table(batch['input_ids']), batch['seq_idx']\nbefore = F.pad(x, (0, 0, 1, 0))[:, :-1]\nLINE\n"
        "y = x + before\n" + NEXT,
        "pass",
        "REMEDY\nbefore = before.masked_fill(first[..., None], 0.0)",
        TABLE,
        tokens(labels=labelled(2, 5)),
    ),
    Drawn(
        "document-alone",
        0,
        "ids, lengths = batch['input_ids'], batch['seq_idx'].unique_consecutive(return_counts=True)[1]\n"
        "LINE\ny = table(ids) + places(positions)\n" + NEXT,
        "positions = torch.arange(ids.shape[1])",
        layers=TABLE + "\nplaces = nn.Embedding(9, 4)",
        batch={"input_ids": labelled(1, 5), "labels": labelled(1, 5), "seq_idx": SEQ_IDX[:1]},
    ),
    Drawn(
        "document-alone",
        1,
        "labels, y = batch['labels'], table(batch['input_ids'])\n"
        "losses = F.cross_entropy(head(y).mT, labels, reduction='none')\n"
        "LINE\nreturn loss",
        "loss = losses.sum() / labels.numel()",
        layers=TABLE,
        batch=tokens(labels=torch.tensor([[1, 2, -100, 4, 5], [3, -100, 2, 1, 1]])),
    ),
    Drawn(
        "future-leak",
        0,
        "q = k = v = net(batch['x'])\nLINE\nreturn ((y.sum(-1) - batch['y']) ** 2 * batch['weights']).sum()",
        "y = F.scaled_dot_product_attention(q, k, v)",
        "y = REMEDY",
        **CAUSAL,
    ),
    Drawn(
        "future-leak",
        1,
        "x = net(batch['x']).mT\nLINE\nreturn ((y.sum(1) - batch['y']) ** 2 * batch['weights']).sum()",
        "y = F.conv1d(x, weight, padding=1)",
        "y = REMEDY",
        "width, weight = 3, torch.randn(2, 4, 3)",
        **CAUSAL,
    ),
    Drawn(
        "order",
        0,
        "order = batch['rank'].argsort()\noutputs = net(batch['x'][order]).sum(1)\nLINE\n"
        "return F.mse_loss(outputs, batch['y'])",
        "pass",
        batch={"x": numbers(4, 4), "y": numbers(4), "rank": torch.tensor([30, 10, 40, 20])},
    ),
    Drawn(  # a sum of a contiguous row is added up in an order that its length decides
        "batch-bits",
        0,
        "def step(batch):\n"
        "    x = mg.masked(net(batch['x']), batch['mask'][..., None])\n"
        "    return x.transpose(1, 2).contiguous().mean(2).square().sum()\n"
        "LINE\nreturn loss",
        "loss = step(batch)",
        batch={"x": numbers(64, 500, 4), "mask": torch.arange(500) < torch.arange(12, 460, 7)[:, None]},
        options={"experiments": "batch-bits"},
    ),
]


def program(path: Path, drawn: Drawn, line: str) -> Any:
    body = re.sub("^( *)LINE$", lambda at: textwrap.indent(line, at[1]), drawn.body, flags=re.MULTILINE)
    return written(path, drawn.layers, body)


def examined(made: Any, drawn: Drawn) -> doctor.Report:
    return doctor.examine(made.step, drawn.batch, model=getattr(made, "model", None), **drawn.options)


@pytest.mark.every
@pytest.mark.parametrize("drawn", DRAWN, ids=lambda drawn: f"{drawn.kind}-{drawn.number}")
def test_a_remedy_of_a_kind_can_be_pasted(drawn: Drawn, tmp_path: Path) -> None:
    report = examined(program(tmp_path / "wrong.py", drawn, drawn.line), drawn)
    found = [finding for finding in report.findings if finding.kind == drawn.kind]
    assert found, report
    printed = found[0].remedy.splitlines()
    expected = drawn.remedies or _OF_KINDS[drawn.kind]
    assert [line.removesuffix("   # without maskgrad") for line in printed] == list(expected)
    right = program(tmp_path / "right.py", drawn, drawn.use.replace("REMEDY", printed[drawn.number]))
    report = examined(right, drawn)
    assert report.findings == [], report


def test_every_remedy_of_a_kind_is_pasted() -> None:
    """But one, of any operation of a leak, elsewhere."""
    tried = {(drawn.kind, drawn.number) for drawn in DRAWN if not drawn.remedies}
    known = {(kind, number) for kind, lines in _OF_KINDS.items() for number in range(len(lines))}
    assert known - tried == {("padding-leak", 0)}
