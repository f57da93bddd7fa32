"""What counts as a difference, and which line is named for it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import maskgrad as mg


def batch() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "x": torch.randn(4, 5, 3, generator=generator),
        "mask": torch.arange(5) < torch.tensor([[5], [2], [3], [4]]),
    }


def masked_mean(h: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, h, 0.0).sum() / mask.sum()


def test_numbers_that_overflow_in_the_padding_are_no_fault() -> None:
    """The gradient of an exponential is infinite there, and times zero it is NaN."""
    layer = nn.Linear(3, 1)
    report = mg.doctor.examine(lambda b: masked_mean(layer(b["x"]).squeeze(-1).exp(), b["mask"]), batch())
    assert report.ok, str(report)


def test_a_strided_convolution_is_real_where_its_whole_window_is() -> None:
    conv = nn.Conv1d(3, 2, 2, stride=2)

    def step(b: dict[str, Tensor]) -> Tensor:
        halved = conv(b["x"].mT[..., :4])
        whole = b["mask"][:, 1:4:2]
        return (halved * whole[:, None]).sum() + halved.mean()

    finding = mg.doctor.examine(step, batch(), quick=True).findings[0]
    assert finding.operation == "mean"


def test_a_nan_that_the_program_computes_is_named_where_it_is_computed() -> None:
    """The product that hands it on is another line; a NaN that was put there stays the line that takes it up."""
    layer, given = nn.Linear(3, 4), batch()
    given["mask"][3] = False

    def step(b: dict[str, Tensor]) -> Tensor:
        h = layer(b["x"])
        scores = (h @ h.mT).masked_fill(~b["mask"][:, None], -torch.inf)
        weights = scores.softmax(-1)
        return masked_mean((weights @ h).square(), b["mask"][..., None].expand(4, 5, 4))

    finding = mg.doctor.examine(step, given).findings[0]
    assert (finding.kind, finding.code) == ("empty-row", "weights = scores.softmax(-1)")


@pytest.mark.parametrize("pad", [0, 50])
def test_the_largest_of_ids_is_searched_among_real_ones_and_the_id_of_padding(pad: int) -> None:
    """Where a text ends at its largest id, only the id of padding can stand in the padding, and no other one."""
    torch.manual_seed(0)
    table, mask = nn.Embedding(60, 4), torch.arange(8) < torch.tensor([8, 5, 3])[:, None]
    ends = torch.tensor([[49], [41], [45]])
    ids = torch.randint(1, 40, (3, 8)).scatter(1, mask.sum(1, keepdim=True) - 1, ends).where(mask, pad)

    def step(b: dict[str, Tensor]) -> Tensor:
        end = b["ids"].to(torch.int).argmax(-1)
        return table(b["ids"])[torch.arange(3), end].square().mean()

    report = mg.doctor.examine(step, {"ids": ids, "mask": mask}, experiments=["padding-leak"])
    assert report.kinds() == (["padding-leak"] if pad else []), "the id of padding is the largest: it is read"


def test_ids_of_another_document_are_searched_as_they_are() -> None:
    torch.manual_seed(0)
    head, x = nn.Linear(1, 1), torch.randn(1, 6, 1)
    batch = {"ids": torch.tensor([[3, 7, 4, 5, 9, 6]]), "x": x, "seq_idx": torch.tensor([[0, 0, 0, 1, 1, 1]]),
             "labels": torch.tensor([[1, 2, 3, 1, 2, 3]])}  # fmt: skip

    def step(b: dict[str, Tensor]) -> Tensor:
        counted = b["labels"] != -100
        loss = (head(b["x"])[..., 0] - b["labels"] - b["ids"].argmax(-1)[:, None]).square()
        return loss.where(counted, 0.0).sum() / counted.sum()

    assert "document-leak" in mg.doctor.examine(step, batch, experiments=["document-leak"]).kinds()
