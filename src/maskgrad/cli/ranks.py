"""The processes of torchrun: each hands its report to rank 0, which writes one."""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from maskgrad.doctor import Note, Report
from maskgrad.doctor.ranks import united

__all__ = ["Ranks"]

#: how long rank 0 waits for the reports of other ranks, which have run the same steps; and if the program failed here
PATIENCE_S, FAILED_S = 60.0, 5.0
#: the same after torchrun ends all ranks because one has failed: their reports come soon
GRACE_S = 2.0


class Ranks:
    """The processes started by torchrun on this machine; only this one without torchrun."""

    def __init__(self) -> None:
        self.rank = int(os.environ.get("RANK", "0"))
        self.size = int(os.environ.get("WORLD_SIZE", "1"))
        self._local = int(os.environ.get("LOCAL_WORLD_SIZE", str(self.size)))
        self._until = float("inf")

    def hand_over(self, report: Report) -> None:
        """Pass the report to rank 0."""
        path = self._folder() / f"{self.rank}.pickle"
        part = path.with_suffix(".part")  # readers see complete files only
        part.write_bytes(pickle.dumps(report))
        part.replace(path)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """The program runs: if another rank fails, torchrun ends rank 0, too; that ends the program, not the report."""
        if self.rank or self.size == 1:
            yield
            return
        signal.signal(signal.SIGTERM, self._end_program)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, self._end_wait)

    def _end_program(self, number: int, frame: object) -> None:  # noqa: ARG002
        raise SystemExit(128 + number)

    def _end_wait(self, number: int, frame: object) -> None:  # noqa: ARG002
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._until = time.monotonic() + GRACE_S

    def collected(self, report: Report, *, failed: bool) -> Report:
        """On rank 0: the report of all ranks; others end soon, or never, if the program has ``failed`` here."""
        patience_s = FAILED_S if failed else PATIENCE_S
        folder, self._until = self._folder(), min(self._until, time.monotonic() + patience_s)
        files = {rank: folder / f"{rank}.pickle" for rank in range(1, self.size)}
        here = list(files.values())[: self._local - 1]
        while not all(map(Path.exists, here)) and time.monotonic() < self._until:
            time.sleep(0.05)
        came = {rank: pickle.loads(file.read_bytes()) for rank, file in files.items() if file.exists()}  # noqa: S301
        shutil.rmtree(folder, ignore_errors=True)
        whole = united({0: report, **came})
        silent = files.keys() - came.keys()
        if silent:
            why = (
                f"no report came from rank {', '.join(map(str, sorted(silent)))}: they run on other machines, or did "
                f"not end within {patience_s:.0f} s, or before this rank had to end"
            )
            whole.note(Note("ranks", why))
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
