"""``maskgrad doctor`` under torchrun: ranks hand their reports to rank 0, which alone prints and decides."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from maskgrad.doctor import Report

__all__ = ["Ranks"]

#: for how long rank 0 waits for the reports of others, which have made the same steps
PATIENCE_S = 60.0
#: the same once torchrun ends all ranks because one has failed: what they have to say comes now
GRACE_S = 2.0


class Ranks:
    """This process among those that torchrun has started on this machine; alone where it has started none."""

    def __init__(self) -> None:
        self.rank = int(os.environ.get("RANK", "0"))
        self.size = int(os.environ.get("WORLD_SIZE", "1"))
        self._local = int(os.environ.get("LOCAL_WORLD_SIZE", str(self.size)))
        self._running = self._ends = False

    def hand_over(self, report: Report, *, failed: bool) -> None:
        """Give the report to rank 0."""
        _write(self._folder() / f"{self.rank}.json", {"failed": failed, **report.as_dict()})

    @contextlib.contextmanager
    def spared(self) -> Iterator[None]:
        """On rank 0: if another rank fails, torchrun ends this one too; the program ends then, the report does not."""
        if self.rank or self.size == 1:
            yield
            return
        before = signal.signal(signal.SIGTERM, self._end)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)

    def _end(self, number: int, frame: object) -> None:  # noqa: ARG002
        """The first time the program ends, or the waiting; the second time the process."""
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._ends = True
        if self._running:
            raise SystemExit(128 + number)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """While the program runs."""
        self._running = True
        try:
            yield
        finally:
            self._running = False

    def collected(self, report: Report, *, failed: bool) -> tuple[Report, bool]:
        """On rank 0: the report of all ranks, and whether the program failed on one of them."""
        from maskgrad.doctor import Note, Report
        from maskgrad.doctor.ranks import united

        folder, others = self._folder(), range(1, self._local)
        patience_s = 5.0 if failed else PATIENCE_S  # what is left after a failure ends soon, or not by itself
        until = time.monotonic() + patience_s
        while not all((folder / f"{rank}.json").exists() for rank in others) and time.monotonic() < until:
            time.sleep(0.05)
            if self._ends:
                until = min(until, time.monotonic() + GRACE_S)
                self._ends = False
        reports, silent = {0: report}, []
        for rank in range(1, self.size):
            try:
                plain: dict[str, Any] = json.loads((folder / f"{rank}.json").read_text(encoding="utf-8"))
            except FileNotFoundError:
                silent.append(rank)
                continue
            failed |= plain["failed"]
            reports[rank] = Report.from_dict(plain)
        shutil.rmtree(folder, ignore_errors=True)
        whole = united(reports)
        if silent:
            whole.note(
                Note(
                    "ranks",
                    f"no report came from rank {', '.join(map(str, silent))}: they run on other machines, or did not "
                    f"end within {patience_s:.0f} s, or before this rank was told to end",
                )
            )
        return whole, failed

    def _folder(self) -> Path:
        """One for each run of torchrun, and each time that it starts its processes anew; of this user alone."""
        names = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT")
        run = "-".join(os.environ.get(name, "") for name in names)
        run = "".join(letter if letter.isalnum() else "-" for letter in run)
        owner = os.getuid() if hasattr(os, "getuid") else 0
        folder = Path(tempfile.gettempdir()) / f"maskgrad-doctor-{owner}-{run}-{os.getppid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        if hasattr(os, "getuid") and folder.stat().st_uid != owner:
            raise PermissionError(f"{folder} belongs to another user; set TMPDIR to a folder of your own")
        return folder


def _write(path: Path, content: dict[str, Any]) -> None:
    """At once: whoever sees the file sees all of it."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(content), encoding="utf-8")
    part.replace(path)
