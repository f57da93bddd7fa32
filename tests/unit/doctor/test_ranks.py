"""Programs of one rank are examined and watched; several ranks, and sharded parameters, are refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed import _functional_collectives as functional
from torch.nn.parallel import DistributedDataParallel
from typer.testing import CliRunner

import maskgrad as mg
from maskgrad.cli.main import app
from maskgrad.errors import ExaminationError
from tests.ranks import run_on_ranks

MASK = torch.arange(4) < torch.tensor([4, 2, 3])[:, None]
BATCH = {"x": torch.randn(3, 4, 2, generator=torch.Generator().manual_seed(0)), "mask": MASK}


def _model(**options: Any) -> Any:
    torch.default_generator.manual_seed(0)
    layers = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(4), nn.Linear(3, 1))
    return DistributedDataParallel(layers, **options)


def _loss(model: Any, batch: dict[str, Tensor], *, leak: bool, gather: str = "c10d") -> Tensor:
    h = model(batch["x"].masked_fill(~batch["mask"][..., None], 0.0))[..., 0]
    tokens = batch["mask"].sum()
    if gather == "c10d":
        torch.distributed.all_reduce(tokens)
    else:
        tokens = functional.all_reduce(tokens, "sum", torch.distributed.group.WORLD) + 0
    mean = h.masked_fill(~batch["mask"], 0.0).sum() / tokens
    return mean + batch["x"].square().mean() * h[0, 0] if leak else mean


def _examined(rank: int, world_size: int, options: dict[str, Any], trained: bool, gather: str) -> Any:
    model = _model(**options)
    if trained:
        _loss(model, BATCH, leak=False).backward()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    flags = (model.require_backward_grad_sync, model.require_forward_param_sync)
    reports = [
        mg.doctor.examine(lambda b, leak=leak: _loss(model, b, leak=leak, gather=gather), BATCH)
        for leak in (True, False)
    ]
    assert flags == (model.require_backward_grad_sync, model.require_forward_param_sync)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0)
    model.zero_grad()
    _loss(model, BATCH, leak=False).backward()
    return [(report.kinds()[:1], str(report)) for report in reports]


@pytest.mark.parametrize(
    ("options", "trained", "gather"),
    [({"find_unused_parameters": True}, False, "functional"), ({"static_graph": True}, True, "c10d")],
)
def test_one_rank_is_examined_as_any_program(options: dict[str, Any], trained: bool, gather: str) -> None:
    ((wrong, right),) = run_on_ranks(_examined, 1, options, trained, gather)
    assert (wrong[0], right[0]) == (["padding-leak"], []), right[1]


def _asked(rank: int, world_size: int, sharded: bool, static: bool) -> Any:
    """The refusal of an examination, and what a watch says."""
    model: Any = _model(static_graph=True) if static else nn.Linear(2, 1)
    if sharded:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        fully_shard(model, mesh=init_device_mesh("cpu", (world_size,)))
    with pytest.raises(ExaminationError) as refusal:
        mg.doctor.examine(lambda b: model(b["x"]).mean(), BATCH)
    if static:
        return str(refusal.value), None
    with mg.doctor.watch({"x": "mask"}) as watch:
        for batch in torch.utils.data.DataLoader([BATCH, BATCH], batch_size=None):
            (model(batch["x"])[..., 0][batch["mask"]]).mean().backward()
    report = watch.report
    return str(refusal.value), (report.verdict, len(report.experiments), " ".join(report.unexamined))


@pytest.mark.parametrize(
    ("count", "sharded", "static", "words"),
    [
        (2, False, False, "torchrun --nproc-per-node=1"),
        (1, True, False, "before fully_shard(model)"),
        (1, False, True, "after that step"),
    ],
)
def test_several_ranks_and_sharded_models_are_refused_and_not_watched(
    count: int, sharded: bool, static: bool, words: str
) -> None:
    for refusal, watched in run_on_ranks(_asked, count, sharded, static):
        assert words in refusal
        if watched:
            assert watched[:2] == ("incomplete", 0)
            assert "nothing is watched" in watched[2]


def test_the_command_refuses_several_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    done = CliRunner().invoke(app, ["doctor", __file__])
    assert done.exit_code == 2
    assert "torchrun --nproc-per-node=1" in done.output


#: groups that are taken down as soon as their last exchange is over; the script ends itself where one hangs
GROUPS = """
import faulthandler, torch
from torch.distributed import _functional_collectives as functional
distributed = torch.distributed
faulthandler.dump_traceback_later(300, exit=True)
data = [{"x": torch.ones(4, 3), "mask": torch.arange(4) < n} for n in (4, 2)]

for number in range(3):
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    layer = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))
    for batch in torch.utils.data.DataLoader(data, batch_size=2):
        h = layer(batch["x"])[batch["mask"]]
        total = h.detach().sum()
        if number == 1:
            work = distributed.all_reduce(total, async_op=True)
        if number == 2:
            total = functional.all_reduce(total, "sum", distributed.group.WORLD) + 0.0
        torch.nn.functional.mse_loss(h, torch.ones_like(h)).backward()
    distributed.destroy_process_group()
"""


@pytest.mark.ranks
def test_no_thread_of_gloo_waits_for_python_at_the_end(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(GROUPS, encoding="utf-8")
    command = [sys.executable, "-m", "maskgrad", "doctor", "--steps", "3", "--keep-going", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
