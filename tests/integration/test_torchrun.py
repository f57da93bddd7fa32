"""The program of docs/distributed.md, started with torchrun as its page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_program_of_the_documentation(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "distributed.md").read_text(encoding="utf-8")
    found = re.search(r"```python\n(# train\.py\n.*?)```", page, re.DOTALL)
    assert found is not None
    (tmp_path / "train.py").write_text(found[1], encoding="utf-8")
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
        "--log-dir", str(tmp_path), "train.py",
    ]  # fmt: skip
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "PYTHONWARNINGS": "default",
    }
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("last loss")]
    assert len(lines) == 1  # rank 0 speaks
    assert float(lines[0].split()[-1]) < 0.05
