"""``maskgrad doctor``: exit codes and messages."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from rich.console import Console
from rich.progress import Progress
from typer.testing import CliRunner

from maskgrad.cli.doctor import _LINE, _WORDS, _given, _page, _shown, as_options
from maskgrad.cli.main import app
from maskgrad.doctor import Finding, Report
from tests.project_file import ROOT

#: Programs in processes of their own: the light run tries two.
SOME = pytest.mark.processes(of="file", keep=2)

SCRIPT = """
import os, signal, sys, torch
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in jobs that a shell runs in the background
layer = torch.nn.Linear(3, 1)
data = [{"x": torch.ones(4, 3), "mask": torch.arange(4) < n, "other": torch.ones(5) > 0,
         "count": torch.tensor([n, 1, 3, 2])} for n in (4, 2, 3, 1)]
for number, batch in enumerate(torch.utils.data.DataLoader(data * 9, batch_size=2)):
    h = layer(batch["x"])
    if "--unpadded" in sys.argv:
        print("batch", number)
        torch.nn.functional.mse_loss(layer(torch.ones(2, 3)), torch.ones(2, 1)).backward()
        continue
    if "--right" in sys.argv:
        h = h[batch["mask"]]
    if "--exit" in sys.argv:
        sys.exit("the script's last words")
    print("batch", number)
    if "--fail" in sys.argv:
        raise RuntimeError("the script's own")
    if "--interrupt" in sys.argv:
        raise KeyboardInterrupt
    if "--idle" in sys.argv:
        continue
    h.square().mean().backward()
    if number == 5 and "--later" in sys.argv:
        {"exit": lambda: sys.exit(3), "interrupt": lambda: signal.raise_signal(signal.SIGINT),
         "fail": lambda: 1 / 0, "leave": lambda: os._exit(3)}[sys.argv[-1]]()
print("the last line")
"""


LEAK, LINE = "1 finding", "h.square().mean().backward()"

#: options, arguments of the script, exit status, words of the output; a report is written iff the script ran
CASES: list[tuple[list[str], list[str], int, str]] = [
    ([], [], 1, LINE),
    (["--quick"], [], 1, LEAK),
    (["--keep-going"], [], 1, LEAK),
    (["--padding", "x=mask"], [], 1, LEAK),
    (["--padding", "x=mask", "--steps", "1"], ["--right"], 0, "0 findings"),
    ([], ["--right"], 0, "0 findings"),
    # nothing can be said
    ([], ["--idle"], 2, "steps: no backward pass"),
    (["--padding", "absent=mask"], ["--right"], 2, "padding: none was recognised"),
    ([], ["--fail"], 2, "the program ended with RuntimeError: the script's own after 0 of 2 steps"),
    ([], ["--exit"], 2, "the script's last words"),
    ([], ["--exit"], 2, "the program ended with exit status 1 after 0 of 2 steps"),
    ([], ["--interrupt"], 2, "the program was interrupted after 0 of 2 steps"),
    # after the examined steps it says how the script ended, and the verdict counts
    *[
        (["--keep-going"], [*right, "--later", how], status, f"the program {words}, after the examined steps")
        for right, status in (([], 1), (["--right"], 0))
        for how, words in (
            ("exit", "ended with exit status 3"),
            ("interrupt", "was interrupted"),
            ("fail", "ended with ZeroDivisionError: division by zero"),
        )
    ],
]
#: arguments, and words of the refusal; no report is written
REFUSED: list[tuple[list[str], str]] = [
    (["--padding", "x=other", "train.py"], "a mask of shape (2, 5) does not fit"),
    (["--padding", "x=count", "train.py"], "found the entry 4; use"),
    (["--padding", "x=nothing", "train.py"], "expected a Boolean tensor, the key of one"),
    *[(["--padding", x, "train.py"], f"expected KEY=MASK, found '{x}'") for x in ("x", "=mask", "x=")],
    *[(["--steps", x, "train.py"], "Invalid value for '--steps'") for x in ("0", "few")],
    ([], "Missing argument"),
    (["absent.py"], "there is no file 'absent.py'"),
    (["."], "there is no file '.'"),
    (["-m", "package.absent"], "there is no module 'package.absent'"),
    (["data.json"], "expected a script, found 'data.json'; for example: maskgrad doctor train.py"),
    (["train.ipynb"], "for example: with mg.doctor.watch() as watched: in the cell that trains"),
    (["--html", ".", "train.py"], "is a directory"),
    (["--html", "other.py", "train.py"], "'other.py' is the name of a script; write for example report.json"),
]


@pytest.mark.parametrize(("options", "arguments", "status", "words"), CASES)
def test_a_script_that_runs(
    tmp_path: Path, options: list[str], arguments: list[str], status: int, words: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT, encoding="utf-8")
    out = [tmp_path / "made" / "report.json", tmp_path / "report.html"]
    files = ["--json", str(out[0]), "--html", str(out[1])]
    done = CliRunner().invoke(app, ["doctor", *files, *options, str(script), *arguments])
    assert done.exit_code == status, done.output
    assert words in done.output
    assert status == 0 or "0 findings" not in done.output
    progress = "step 1 of 2: padding-leak, different values"
    assert progress not in done.stdout
    assert progress in done.stderr or status == 2 or "1" in options or "--quick" in options
    report = json.loads(out[0].read_text(encoding="utf-8"))
    assert report["ok"] is (status == 0)
    assert ("not all was examined" in out[1].read_text(encoding="utf-8")) == (
        report["verdict"] == "incomplete"
    )


@pytest.mark.parametrize(
    ("options", "argument", "steps", "ends"),
    [
        ([], "--right", 2, False),
        (["--keep-going"], "--right", 18, True),
        # nothing is recognised: later batches may be padded, but not for ever
        (["--padding", "absent=mask"], "--unpadded", 8, False),
        (["--padding", "absent=mask", "--steps", "3"], "--unpadded", 12, False),
        (["--padding", "absent=mask", "--keep-going"], "--unpadded", 18, True),
    ],
)
def test_the_script_is_stopped_when_enough_is_seen(
    tmp_path: Path, options: list[str], argument: str, steps: int, ends: bool
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT, encoding="utf-8")
    lines = CliRunner().invoke(app, ["doctor", *options, str(script), argument]).output.splitlines()
    assert [line for line in lines if line.startswith("batch")] == [f"batch {n}" for n in range(steps)]
    assert ("the last line" in lines) == ends


@pytest.mark.parametrize(
    ("option", "written"),
    [
        ("padding={'ids': 0}", "--padding ids==0"),
        ("padding={0: -1}", "--padding 0==-1"),
        ("padding={'ids': 'mask'}", "--padding ids=mask"),
        ("padding={'a.ids': '~pad'}", "--padding a.ids=~pad"),
        ("padding={'x': mask}", "--padding x=mask"),
    ],
)
def test_remedies_are_written_as_options(option: str, written: str) -> None:
    assert as_options(f"nothing; add {option}\nnothing") == f"nothing; add {written}\nnothing"
    if "{'x'" not in option:
        assert _given([written.removeprefix("--padding ")]) == eval(option.removeprefix("padding="))


def test_the_readme_shows_what_the_command_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "`maskgrad doctor train.py`" in text
    lines = text.split("```text\n")[1].split("```")[0]
    monkeypatch.chdir(ROOT / "docs" / "programs")
    done = CliRunner().invoke(app, ["doctor", "train.py"])
    assert done.exit_code == 1, done.output
    assert lines in done.output


def in_a_process(*arguments: str) -> subprocess.CompletedProcess[str]:
    command, environment = [sys.executable, *arguments], {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=600)


@SOME
def test_a_process_that_ends_itself_reports_first(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT, encoding="utf-8")
    done = in_a_process(
        "-m", "maskgrad", "doctor", "--keep-going", str(script), "--right", "--later", "leave"
    )
    assert done.returncode == 0, done.stderr
    assert "the program called os._exit(3), after the examined steps" in done.stdout


def test_a_module_runs_as_python_runs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "train.py").write_text(
        "from . import __name__ as parent\n" + SCRIPT + "print(parent, __name__, sys.argv[1:])\n",
        encoding="utf-8",
    )
    monkeypatch.chdir(tmp_path)
    arguments = ["doctor", "--keep-going", "-m", "package.train", "--right", "--json", "its own"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert "package __main__ ['--right', '--json', 'its own']" in done.output


@pytest.mark.parametrize(("arguments", "words"), REFUSED)
def test_mistakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SCRIPT, encoding="utf-8")
    for name in ("train.ipynb", "other.py", "data.json"):
        Path(name).write_text("open('ran', 'w')", encoding="utf-8")
    done = CliRunner().invoke(app, ["doctor", "--json", "report.json", *arguments])
    assert done.exit_code == 2, done.output
    assert words in " ".join(done.output.replace("│", " ").split())  # a box around lines of a terminal
    assert not any(word in done.output for word in ("finding", "Traceback"))
    assert not Path("ran").exists()
    assert not Path("report.json").exists()


@SOME
def test_a_script_that_fails_says_what_it_says_without_us_and_then_what_was_seen(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        SCRIPT.replace('if "--fail" in sys.argv:', 'if batch["mask"].sum() == 4:'), encoding="utf-8"
    )
    alone, ours = (
        in_a_process(str(script)),
        in_a_process("-m", "maskgrad", "doctor", "--keep-going", str(script)),
    )
    assert alone.returncode == ours.returncode == 1  # a failure of the script, and a finding
    assert "the script's own" in alone.stderr
    assert [line for line in ours.stderr.splitlines(keepends=True) if "maskgrad doctor:" not in line] == [
        *alone.stderr.splitlines(keepends=True)
    ]
    # in the step before it failed
    assert "the program ended with RuntimeError" in ours.stdout
    assert "padding-leak" in ours.stdout
    assert "h.square().mean().backward()" in ours.stdout


def test_a_page_shows_the_lines_around_the_findings(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("x = 1\ny = 2\n" + "z = 3\n" * 20, encoding="utf-8")
    text = re.sub("<[^>]+>", "", _page(Report([Finding("denominator", "…", str(script), 2, "y = 2")])))
    assert re.findall(r"^[ ❱]*(\d+) [xyz] = ", text, re.MULTILINE) == [*"1234567"]


@SOME
def test_a_terminal_s_line_starts_no_thread_and_leaves_the_program_s_output_alone() -> None:
    out, before = io.StringIO(), (threading.enumerate(), sys.stdout, sys.stderr)
    with Progress(_WORDS, **_LINE | {"console": Console(file=out, force_terminal=True)}) as line:
        _shown(line)("step 1 of 2: [padding-leak]")
        assert (threading.enumerate(), sys.stdout, sys.stderr) == before
    assert "maskgrad doctor: step 1 of 2: [padding-leak]" in out.getvalue()


RANKS = """
import sys, torch, torch.distributed as dist
from torch.nn import functional as F
torch.manual_seed(0)
model = torch.nn.Linear(4, 5)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
if "--group" in sys.argv:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
lengths = (5, 3, 2, 5, 1, 4, 2, 3) * 2
data = [{"x": torch.randn(5, 4), "labels": torch.where(torch.arange(5) < n, n % 5, -100)} for n in lengths]
for batch in torch.utils.data.DataLoader(data, batch_size=8):
    optimizer.zero_grad()
    losses = F.cross_entropy(model(batch["x"]).mT, batch["labels"], reduction="none")
    counts = (batch["labels"] != -100).sum(1)
    loss = (losses.sum(1) / counts).mean() if "--right" in sys.argv else losses.sum() / counts.sum()  # here
    loss.backward()
    optimizer.step()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the step is run again in forked processes")
@SOME
@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (["--wrong"], 1, ["denominator at", "# here", "on 4 ranks, samples in order, div is the first"]),
        (["--right"], 0, ["ranks (on 4 ranks, samples dealt in turn): nothing changed"]),
        (
            ["--group"],
            2,
            ["ranks: the script uses torch.distributed; add mg.doctor.examine(step, batch, ranks=4)"],
        ),
        (["--right", "--quick"], 2, ["ranks: no step was run on ranks; add a step after the first"]),
    ],
)
def test_a_script_is_tried_on_ranks(tmp_path: Path, options: list[str], code: int, says: list[str]) -> None:
    script = tmp_path / "train.py"
    script.write_text(RANKS)
    option, *quick = options
    done = in_a_process("-m", "maskgrad", "doctor", "--ranks", "4", *quick, str(script), option)
    assert done.returncode == code, done.stdout + done.stderr
    for words in says:
        assert words in done.stdout
