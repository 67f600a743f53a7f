"""One start of a trial: who runs it, its lease, its logs, its checkpoints."""

from __future__ import annotations

import os
import shutil
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablate.rundir import names
from ablate.rundir.files import append_line, fsync_dir, read_json, write_json
from ablate.rundir.state import State

if TYPE_CHECKING:
    from ablate.rundir.trial import TrialDir

__all__ = ["Attempt"]


class Attempt:
    """`attempts/<n>/`: one start of a trial. Only the process that made the folder writes into
    it.
    """

    def __init__(self, trial: TrialDir, number: int) -> None:
        self.trial, self.number = trial, number
        self.path = trial.path / names.ATTEMPTS / str(number)

    def __repr__(self) -> str:
        return f"Attempt({self.trial.id}, {self.number})"

    @property
    def log_path(self) -> Path:
        return self.path / names.LOG

    @property
    def checkpoints_path(self) -> Path:
        return self.path / names.CHECKPOINTS

    def start(self, job_id: str | None = None) -> None:
        pid = os.getpid()
        record = {
            "host": socket.gethostname(),
            "pid": pid,
            "process_started": _process_started(pid),
            "job_id": job_id,
            "time": time.time(),
            "resumed": None,
        }
        write_json(self.path / names.ATTEMPT, record)
        self.heartbeat()

    def record(self) -> dict[str, Any]:
        path = self.path / names.ATTEMPT
        return read_json(path) if path.exists() else {}

    def resumed_from(self, attempt: int, step: int) -> None:
        """Notes that this attempt continues `attempt` after `step`."""
        write_json(
            self.path / names.ATTEMPT,
            {**self.record(), "resumed": {"attempt": attempt, "step": step}},
        )

    def has_begun(self) -> bool:
        """Whether it resumed from somewhere or wrote a row."""
        metrics = self.path / names.METRICS
        return bool(self.record().get("resumed")) or (
            metrics.exists() and metrics.stat().st_size > 0
        )

    def heartbeat(self) -> None:
        (self.path / names.LEASE).touch()

    def is_current(self) -> bool:
        """Whether it was neither fenced off by a newer attempt nor set aside."""
        newer = self.path.parent / str(self.number + 1)
        return self.path.exists() and not newer.exists()

    def own_state(self) -> State | None:
        """How this attempt ended; None while it runs, or where it was killed."""
        path = self.path / names.STATE
        return State.from_dict(read_json(path)) if path.exists() else None

    def is_alive(self) -> bool:
        """Whether it has not ended and its process lives.

        That is asked of this machine where it ran here, else of the lease's age.
        """
        if self.own_state() is not None:
            return False
        record = self.record()
        if record.get("host") == socket.gethostname() and record.get("pid"):
            started = _process_started(record["pid"])
            if started is not None or record.get("process_started") is not None:
                return started is not None and started == record.get("process_started")
        lease = self.path / names.LEASE
        try:
            touched = (lease if lease.exists() else self.path).stat().st_mtime
        except FileNotFoundError:
            return False
        return time.time() - touched < names.LEASE_SECONDS

    def release(self, state: State) -> bool:
        """Writes the trial's final or interim state, unless a newer attempt has taken over."""
        if not self.is_current():
            return False
        state = state.replace(attempt=self.number)
        if state.status != "running":
            write_json(self.path / names.STATE, state.to_dict())
        self.trial.write_state(state)
        return True

    # ---- logs

    def open_log(self, name: str) -> int:
        """A descriptor for `append_line`: metrics.jsonl or events.jsonl."""
        return os.open(self.path / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def append(self, name: str, row: dict[str, Any]) -> None:
        fd = self.open_log(name)
        try:
            append_line(fd, row)
        finally:
            os.close(fd)

    # ---- checkpoints

    def checkpoint_steps(self) -> list[int]:
        """Steps of the complete checkpoints, ascending."""
        try:
            found = [names.checkpoint_step(p.name) for p in self.checkpoints_path.iterdir()]
        except FileNotFoundError:
            return []
        return sorted(s for s in found if s is not None)

    def checkpoint_path(self, step: int) -> Path:
        return self.checkpoints_path / names.checkpoint_name(step)

    def begin_checkpoint(self, step: int) -> Path:
        """An empty folder to write into; `commit_checkpoint` makes it count."""
        temporary = self.checkpoints_path / f".{names.checkpoint_name(step)}.tmp"
        shutil.rmtree(temporary, ignore_errors=True)
        self.checkpoints_path.mkdir(exist_ok=True)  # no parents: the attempt may be set aside
        temporary.mkdir()
        return temporary

    def commit_checkpoint(self, step: int) -> Path:
        """Renames the folder into place: complete or absent, never half."""
        temporary = self.checkpoints_path / f".{names.checkpoint_name(step)}.tmp"
        target = self.checkpoint_path(step)
        for file in temporary.iterdir():
            fd = os.open(file, os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)
        shutil.rmtree(target, ignore_errors=True)
        os.rename(temporary, target)
        fsync_dir(self.checkpoints_path)
        return target

    def prune_checkpoints(self, keep: int) -> None:
        """Deletes all but the newest `keep` (-1 keeps all)."""
        if keep >= 0:
            for step in self.checkpoint_steps()[: -keep or None]:
                shutil.rmtree(self.checkpoint_path(step), ignore_errors=True)


def _process_started(pid: int) -> str | None:
    """When process `pid` of this machine started (clock ticks since boot), None if it is gone.

    The start time tells a process from a later one that got the same number.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] == "Z" else fields[19]
