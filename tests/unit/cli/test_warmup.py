from __future__ import annotations

import pytest
import torch
from typer.testing import CliRunner

import maskgrad as mg
from maskgrad.cli import warmup
from maskgrad.cli.main import app
from maskgrad.kernels.kernel import KERNELS


@pytest.mark.parametrize("dtype", [getattr(torch, name) for name in warmup.Dtype.__members__])
def test_every_program_runs(dtype: torch.dtype) -> None:
    """On the references: what is compiled is tested elsewhere, and would take minutes here."""
    with mg.use_kernels("reference"):
        assert len([work() for work in warmup.programs(dtype)]) > 50


def test_it_says_what_it_compiles_and_how_much(monkeypatch: pytest.MonkeyPatch) -> None:
    forced: list[tuple[torch.dtype, dict[str, str]]] = []
    with_loops = {name for name, kernel in KERNELS.items() if kernel.has_loops}
    monkeypatch.setattr(
        warmup, "programs", lambda dtype: [lambda: forced.append((dtype, mg.kernels_in_use("cpu")))]
    )
    done = CliRunner().invoke(app, ["warmup", "--dtype", "float32", "--dtype", "bfloat16"])
    assert done.exit_code == 0, done.output
    assert "compiling for bfloat16" in done.output
    assert "0 loops were compiled in 0 s; the others were cached already" in done.output
    assert [dtype for dtype, _ in forced] == [torch.float32, torch.bfloat16]
    for _, kernels in forced:
        assert {name for name, body in kernels.items() if body == "cpu"} == with_loops
    done = CliRunner().invoke(app, ["warmup", "--dtype", "float8"])
    assert done.exit_code == 2
    words = "'float8' is not one of 'float32', 'float64', 'bfloat16', 'float16'"
    assert words in " ".join(done.output.replace("│", " ").split())
