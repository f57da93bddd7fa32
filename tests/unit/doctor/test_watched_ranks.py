"""Training on ranks while it is watched: it exchanges what it would exchange, and twins exchange nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed import _functional_collectives as functional
from torch.nn.parallel import DistributedDataParallel

import maskgrad as mg
from maskgrad.cli.ranks import Ranks
from maskgrad.doctor import Finding, Report, Skipped
from tests.ranks import run_on_ranks

MASK = torch.arange(4) < torch.tensor([4, 2, 3])[:, None]


def _training(rank: int, world_size: int, watched: bool, options: dict[str, Any], gather: str) -> Any:
    torch.default_generator.manual_seed(0)
    pooled, idle = nn.Linear(2, 1), nn.Linear(2, 1)
    model = DistributedDataParallel(nn.ModuleDict({"pooled": pooled, "idle": idle}), **options)
    model.module.forward = lambda x, mask: _forward(pooled, idle, x, mask, leak=rank == 1)  # type: ignore[assignment]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(rank)
    found = []

    def step() -> None:
        x = torch.randn(3, 4, 2, generator=generator)
        optimizer.zero_grad()
        loss = model(x=x, mask=MASK)
        if gather == "c10d":
            total = loss.detach().clone()
            torch.distributed.all_reduce(total)
        else:
            total = functional.all_reduce(loss.detach(), "sum", torch.distributed.group.WORLD) + 0.0
        loss.backward()
        optimizer.step()
        found.append([float(total), *(p.detach().clone() for p in model.parameters())])

    if watched:
        with mg.doctor.watch({"x": "mask"}, steps=2) as watch:
            for _ in range(3):
                step()
        return found, watch.report
    for _ in range(3):
        step()
    return found, None


def _forward(pooled: nn.Linear, idle: nn.Linear, x: Tensor, mask: Tensor, *, leak: bool) -> Tensor:
    h = x if leak else x.masked_fill(~mask[..., None], 0.0)
    return pooled(h.sum(1)).mean() + idle(x[:, 0]).mean()  # type: ignore[no-any-return]


@pytest.mark.parametrize("gather", ["c10d", "functional"])
@pytest.mark.parametrize("options", [{}, {"gradient_as_bucket_view": True}])
def test_a_leak_on_one_rank_is_seen_there_and_no_number_changes(options: dict[str, Any], gather: str) -> None:
    plain = run_on_ranks(_training, 2, False, options, gather)
    seen = run_on_ranks(_training, 2, True, options, gather)
    for (expected, _), (numbers, _) in zip(plain, seen, strict=True):
        for one, other in zip(expected, numbers, strict=True):
            for a, b in zip(one, other, strict=True):
                torch.testing.assert_close(b, a, rtol=0, atol=0)
    right, wrong = (report for _, report in seen)
    assert (right.unexamined, right.ok) == ([], True)
    assert [made.name for made in right.experiments] == ["padding-leak"] * 2 + ["padding-length"] * 2
    assert wrong.kinds() == ["padding-leak"]
    assert wrong.findings[0].code.startswith("return pooled(h.sum(1))")
    assert wrong.findings[0].affected["loss"]


def _with_a_statistic_of_padding(rank: int, world_size: int) -> tuple[list[str], list[str]]:
    model = nn.Linear(2, 1)
    x = torch.randn(3, 4, 2, generator=torch.Generator().manual_seed(rank))
    with mg.doctor.watch({"x": "mask"}, steps=1) as watch:
        for batch in torch.utils.data.DataLoader([{"x": x, "mask": MASK}], batch_size=None):  # type: ignore[arg-type]
            h = model(batch["x"])
            total = functional.all_reduce(h.detach().sum(), "sum", torch.distributed.group.WORLD)
            (h[batch["mask"]].mean() * total).backward()
    return watch.report.kinds(), watch.report.unexamined


def test_what_depends_on_padding_and_is_exchanged_leaves_the_report_incomplete() -> None:
    for kinds, unexamined in run_on_ranks(_with_a_statistic_of_padding, 2):
        assert kinds == []
        assert "sent to other ranks" in " ".join(unexamined)


SCRIPT = """
import os, sys, torch
from torch.nn.parallel import DistributedDataParallel
torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
layer = DistributedDataParallel(torch.nn.Linear(3, 1))
data = [{"x": torch.ones(4, 3), "mask": torch.arange(4) < n} for n in (4, 2, 3, 1)]
for batch in torch.utils.data.DataLoader(data, batch_size=2):
    h = layer(batch["x"])
    if rank != 1 or "--leak" not in sys.argv:
        h = h[batch["mask"]]
    h.square().mean().backward()
    if rank == 1 and "--fail" in sys.argv:
        raise RuntimeError("the script's own")
torch.distributed.destroy_process_group()
"""


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        ([], 0, ["0 findings"]),
        (["--leak"], 1, ["on rank 1: ", "h.square().mean().backward()"]),
        (["--fail"], 2, ["the script's own"]),
    ],
)
def test_the_command_under_torchrun_prints_one_report(
    tmp_path: Path, arguments: list[str], status: int, words: list[str]
) -> None:
    script, out = tmp_path / "train.py", tmp_path / "report.json"
    script.write_text(SCRIPT, encoding="utf-8")
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        "--module",
    ]
    done = subprocess.run(
        [*torchrun, "maskgrad", "doctor", "--json", str(out), str(script), *arguments],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
        env={**os.environ, "TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1"},
    )
    assert (done.returncode == 0) == (status == 0), done.stderr
    assert f"exitcode  : {status}" in done.stderr or status == 0, done.stderr
    assert done.stdout.count("maskgrad doctor") == 1, done.stdout
    for word in words:
        assert word in done.stdout + done.stderr
    assert out.exists()
    assert list(tmp_path.glob("maskgrad-doctor-*")) == []


#: five groups, each taken down as soon as its last all-reduce is over; the script ends itself where one hangs
GROUPS = """
import contextlib, faulthandler, os, torch
import maskgrad as mg
from torch.distributed import _functional_collectives as functional
distributed = torch.distributed
faulthandler.dump_traceback_later(600, exit=True)
store = distributed.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
data = [{"x": torch.ones(4, 3), "mask": torch.arange(4) < n} for n in (4, 2)]

def exchanged(_, bucket):
    return distributed.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda done: done.value()[0])

def train(number):
    distributed.init_process_group(
        "gloo", store=distributed.PrefixStore(str(number), store), rank=int(os.environ["RANK"]), world_size=2
    )
    layer = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))
    if number == 0:
        layer.register_comm_hook(None, exchanged)
    with mg.distributed.global_losses() if number == 1 else contextlib.nullcontext():
        for batch in torch.utils.data.DataLoader(data, batch_size=2):
            h = layer(batch["x"])[batch["mask"]]
            total = h.detach().sum()
            if number == 2:
                work = distributed.all_reduce(total, async_op=True)
            if number == 3:
                total = functional.all_reduce(total, "sum", distributed.group.WORLD) + 0.0
            torch.nn.functional.mse_loss(h, torch.ones_like(h)).backward()
    distributed.destroy_process_group()

for number in range(5):
    train(number)
"""
BUSY = "import time; until = time.monotonic() + 600\nwhile time.monotonic() < until: pass"


@pytest.mark.ranks(per="elsewhere")  # it keeps all cores busy
def test_no_thread_of_gloo_waits_for_python_at_the_end(tmp_path: Path) -> None:
    """PyTorch without the doctor hangs here in the first groups, on a busy machine."""
    script = tmp_path / "train.py"
    script.write_text(GROUPS, encoding="utf-8")
    options = ["--standalone", "--nproc-per-node=2", "--module"]
    # the last steps are not watched
    doctor = ["maskgrad", "doctor", "--steps", "3", str(script)]
    busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(2)]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", *options, *doctor],
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
            env={**os.environ, "TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1"},
        )
    finally:
        for process in busy:
            process.kill()
            process.wait()
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("padding-leak (") == 3, done.stdout


def test_what_another_rank_skipped_is_skipped_by_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("RANK", "1")
    skipped = Skipped("padding-leak", "the program failed")
    Ranks().hand_over(Report([Finding("padding-leak", "seen")], skipped=[skipped]))
    monkeypatch.setenv("RANK", "0")
    report = Ranks().collected(Report(), failed=False)
    assert [finding.message for finding in report.findings] == ["on rank 1: seen"]
    assert report.notes == []
    assert [found.why for found in report.skipped] == ["on rank 1: the program failed"]
    assert list(tmp_path.iterdir()) == []


def _watched_sharded(rank: int, world_size: int) -> str:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model: Any = nn.Linear(2, 1)
    fully_shard(model, mesh=init_device_mesh("cpu", (world_size,)))
    with mg.doctor.watch({"x": "mask"}) as watch:
        model(torch.ones(3, 4, 2)).mean().backward()
    assert not watch.report.ok
    assert watch.report.experiments == []
    return " ".join(watch.report.unexamined)


def test_a_model_that_is_sharded_is_not_watched_and_that_is_said() -> None:
    assert all("nothing is watched" in text for text in run_on_ranks(_watched_sharded, 2))


def test_rank_0_stops_the_program_and_then_the_wait_when_it_is_told_to_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before, ranks = signal.getsignal(signal.SIGTERM), Ranks()
    try:
        with pytest.raises(SystemExit), ranks.running():
            signal.raise_signal(signal.SIGTERM)
        timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM))
        timer.start()
        start = time.monotonic()
        report = ranks.collected(Report(), failed=False)
        timer.join()
        assert time.monotonic() - start < 20  # and not a minute
        # the next time the process ends at once
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)
    assert "no report came from rank 1" in report.notes[0].message
    assert list(tmp_path.iterdir()) == []
