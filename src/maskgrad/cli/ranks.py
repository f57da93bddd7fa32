"""The processes of torchrun: each hands its report to rank 0, which writes one."""

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
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from maskgrad.doctor import Report

__all__ = ["Ranks"]

#: how long rank 0 waits for the reports of other ranks, which have run the same steps
PATIENCE_S = 60.0
#: the same after torchrun ends all ranks because one has failed: their reports come soon
GRACE_S = 2.0


class Ranks:
    """The processes started by torchrun on this machine; only this one without torchrun."""

    def __init__(self) -> None:
        self.rank = int(os.environ.get("RANK", "0"))
        self.size = int(os.environ.get("WORLD_SIZE", "1"))
        self._local = int(os.environ.get("LOCAL_WORLD_SIZE", str(self.size)))
        self._running = self._ends = False

    def hand_over(self, report: Report) -> None:
        """Pass the report to rank 0."""
        path = self._folder() / f"{self.rank}.json"
        part = path.with_suffix(".part")  # readers see complete files only
        part.write_text(report.to_json(), encoding="utf-8")
        part.replace(path)

    @contextlib.contextmanager
    def spared(self) -> Iterator[None]:
        """On rank 0: if another rank fails, torchrun ends this one, too; end the program then, but not the report."""
        if self.rank or self.size == 1:
            yield
            return
        before = signal.signal(signal.SIGTERM, self._end)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)

    def _end(self, number: int, frame: object) -> None:  # noqa: ARG002
        """End the program or the wait the first time, the process the second time."""
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._ends = True
        if self._running:
            raise SystemExit(128 + number)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Context in which the program runs."""
        self._running = True
        try:
            yield
        finally:
            self._running = False

    def collected(self, report: Report, *, failed: bool) -> Report:
        """On rank 0: the report of all ranks; others end soon, or never, if the program has ``failed`` here."""
        from maskgrad.doctor import Note, Report
        from maskgrad.doctor.ranks import united

        folder, others = self._folder(), range(1, self._local)
        patience_s = 5.0 if failed else PATIENCE_S
        until = time.monotonic() + patience_s
        while not all((folder / f"{rank}.json").exists() for rank in others) and time.monotonic() < until:
            time.sleep(0.05)
            if self._ends:
                until = min(until, time.monotonic() + GRACE_S)
                self._ends = False
        reports, silent = {0: report}, []
        for rank in range(1, self.size):
            try:
                text = (folder / f"{rank}.json").read_text(encoding="utf-8")
            except FileNotFoundError:
                silent.append(rank)
                continue
            reports[rank] = Report.from_dict(json.loads(text))
        shutil.rmtree(folder, ignore_errors=True)
        whole = united(reports)
        if silent:
            whole.note(
                Note(
                    "ranks",
                    f"no report came from rank {', '.join(map(str, silent))}: they run on other machines, or did not "
                    f"end within {patience_s:.0f} s, or before this rank had to end",
                )
            )
        return whole

    def _folder(self) -> Path:
        """One folder for each run of torchrun, and for each restart of its processes; private to this user."""
        names = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT")
        run = "-".join(os.environ.get(name, "") for name in names)
        run = "".join(letter if letter.isalnum() else "-" for letter in run)
        owner = os.getuid() if hasattr(os, "getuid") else 0
        folder = Path(tempfile.gettempdir()) / f"maskgrad-doctor-{owner}-{run}-{os.getppid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        if hasattr(os, "getuid") and folder.stat().st_uid != owner:
            raise PermissionError(f"{folder} belongs to another user; set TMPDIR to a folder of your own")
        return folder
