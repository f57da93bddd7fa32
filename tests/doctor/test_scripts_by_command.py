"""``maskgrad doctor`` on programs that a client's audit found misjudged: exit status 1 if wrong, 0 if right."""

from __future__ import annotations

import sys

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from typer.testing import CliRunner, Result

import maskgrad as mg
from maskgrad.cli.main import app

TRAIN = "tests.doctor.scripts.train"
#: program of the corpus, and options of the command; by other ways they are all judged in ``test_scripts.py``
AUDITED: dict[str, list[str]] = {
    "losses.held_out_targets_have_a_mask_of_their_own": [],
    "losses.ids_of_numpy_see_the_next_token": ["--causal"],
    "losses.flat_logits_see_the_next_token": ["--causal"],
    "losses.selected_by_loss_mask": [],
    "losses.selected_by_special_tokens_mask": [],
    "losses.divided_by_the_number_of_columns": [],
    "time_first.future_of_a_transformer": ["--causal"],
    "time_first.encoder_layer_with_its_mask_and_a_mean": [],
    "training.compiled_step_of_a_compiled_model": [],
    "training.distributed_of_one_rank": [],
    "masks.true_in_the_padding": [],
    "masks.lengths_in_a_list": [],
    "masks.extended_mask_and_a_mean": [],
    "masks.additive_rows_of_minus_infinity": ["--quick"],
    "masks.mask_of_columns": ["--quick"],
    "encoder_decoder.second_table_has_padding_of_its_own": [],
    "encoder_decoder.teacher_is_read_as_a_slice": [],
}


def doctor(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["doctor", *arguments])


@pytest.mark.corpus(keep=6)
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", AUDITED)
def test_the_command_judges_an_audited_program_rightly(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # a run of all tests has imported it to look for doctests, and Python warns of a module that is run a second time
    monkeypatch.delitem(sys.modules, TRAIN, raising=False)
    try:
        wrong, right = (doctor(*AUDITED[name], "-m", TRAIN, name, which) for which in ("wrong", "right"))
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    allowed = (0, 2) if "selected_by" in name else (0,)  # nothing is padded there
    assert wrong.exit_code == 1, wrong.output
    assert right.exit_code in allowed, right.output


class Translator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(20, 8), nn.Linear(8, 20)
        self.transformer = nn.Transformer(8, 2, 1, 1, 16, dropout=0.0, batch_first=True)

    def forward(self, src: Tensor, trg: Tensor, src_mask: Tensor, tgt_mask: Tensor) -> Tensor:
        nothing = torch.zeros(trg.shape, dtype=torch.bool)
        read = self.table(src), self.table(trg), src_mask, tgt_mask
        return self.head(self.transformer(*read, tgt_key_padding_mask=nothing))  # type: ignore[no-any-return]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_masks_of_attention_are_no_data_with_padding() -> None:
    torch.manual_seed(0)
    model, masks = Translator(), (torch.zeros(6, 6) > 0, torch.full((6, 6), float("-inf")).triu(1))
    with mg.doctor.watch() as watched:
        for _ in range(3):
            src, trg = torch.randint(1, 20, (3, 6)), torch.randint(1, 20, (3, 7))
            logits = model(src, trg[:, :-1], *masks)
            F.cross_entropy(logits.flatten(0, 1), trg[:, 1:].flatten()).backward()
    assert watched.report.findings == [], watched.report
