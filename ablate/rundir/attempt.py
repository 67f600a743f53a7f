"""One start of a trial: who runs it, its lease, its logs, its checkpoints."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablate.errors import StudyError
from ablate.rundir import names
from ablate.rundir.attempt_record import read_record, told_by_logs
from ablate.rundir.files import append_lines, free_name, fsync_dir, open_file, write_json
from ablate.rundir.process import is_stopped, machine, process_started
from ablate.rundir.state import State, read_state

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
        self._own: dict[str, Any] | None = None
        """What this process has written of itself."""

    def __repr__(self) -> str:
        return f"Attempt({self.trial.id}, {self.number})"

    @property
    def log_path(self) -> Path:
        return self.path / names.LOG

    @property
    def checkpoints_path(self) -> Path:
        return self.path / names.CHECKPOINTS

    def start(self, job_id: str | None = None, **job: Any) -> None:
        """Writes who runs it; `job` is what the scheduler calls it: restart, node, step, ..."""
        pid = os.getpid()
        record = {
            **job,
            "host": socket.gethostname(),
            "machine": machine(),
            "pid": pid,
            "process_started": process_started(pid),
            "job_id": job_id,
            "time": time.time(),
            "resumed": None,
        }
        write_json(self.path / names.ATTEMPT, record)
        self._own = record
        self.heartbeat()

    def record(self) -> dict[str, Any]:
        """attempt.json; where it is damaged, what its logs tell (no process, no job)."""
        try:
            return read_record(self.path)
        except StudyError:
            folders = {a.number: a.path for a in self.trial.attempts() if a.number < self.number}
            return told_by_logs(self.path, folders)

    def damage(self) -> str | None:
        """What is wrong with attempt.json."""
        try:
            read_record(self.path)
        except StudyError as error:
            return str(error)
        return None

    def mend(self) -> str | None:
        """Writes a damaged attempt.json anew; the old one stays beside it. Call it of an attempt
        that has ended.

        Returns:
            What was done; None where nothing was wrong.
        """
        damage = self.damage()
        if damage is None:
            return None
        path, record = self.path / names.ATTEMPT, self.record()
        kept = free_name(path.with_name(f"{names.ATTEMPT}.damaged"))
        with contextlib.suppress(FileNotFoundError):
            os.rename(path, kept)
        write_json(path, {**record, "mended": damage})
        resumed = record.get("resumed")
        began = f"after step {resumed['step']}" if resumed else "at the start"
        unsealed = ", and summary.json has no seal" if self.trial.summary_path.exists() else ""
        return f"{damage} That was done: it began {began}{unsealed}. The old file: {kept.name}."

    def resumed_from(self, attempt: int, step: int) -> None:
        """Notes that this attempt continues `attempt` after `step`."""
        self.note(resumed={"attempt": attempt, "step": step})

    def note(self, **facts: Any) -> None:
        """Adds to what is known of this attempt."""
        record = {**(self.record() if self._own is None else self._own), **facts}
        write_json(self.path / names.ATTEMPT, record)
        if self._own is not None:
            self._own = record

    def has_begun(self) -> bool:
        """Whether it resumed from somewhere or wrote a row."""
        metrics = self.path / names.METRICS
        return bool(self.record().get("resumed")) or (
            metrics.exists() and metrics.stat().st_size > 0
        )

    def heartbeat(self) -> None:
        (self.path / names.LEASE).touch()

    def is_current(self) -> bool:
        """Whether it was neither fenced off by a newer attempt nor set aside.

        The folder is listed: over NFS that asks the server, where a look at one name that was not
        there before may be answered from a cache.
        """
        try:
            numbers = [int(name) for name in os.listdir(self.path.parent) if name.isdigit()]
        except FileNotFoundError:
            return False
        return max(numbers, default=0) == self.number

    def own_state(self) -> State | None:
        """How this attempt ended; None while it runs, or where it was killed. One whose file is
        damaged has ended too, and counts as failed.
        """
        path = self.path / names.STATE
        try:
            return read_state(path) if path.exists() else None
        except StudyError as error:
            said = str(error).strip()
            end = State(status="failed", outcome="code", reason=said, damage=said)
            return end.replace(attempt=self.number)

    def is_alive(self, now: float | None = None) -> bool:
        """Whether it has not ended and its process lives.

        That is asked of this machine where it ran here, else of the lease's age. A process that
        is stopped (SIGSTOP, a suspended job) does not renew its lease, and loses it.

        Args:
            now: the file server's time, where clocks may differ; else this machine's.
        """
        if self.own_state() is not None:
            return False
        record = self.record()  # where it names no process, the lease alone tells
        same = record.get("host") == socket.gethostname() and record.get("machine") == machine()
        if same and record.get("pid"):
            started = process_started(record["pid"])
            known = started is not None or record.get("process_started") is not None
            if known and started != record.get("process_started"):
                return False
            if known and not is_stopped(record["pid"]):
                return True
        return self.lease_age(now) < names.LEASE_SECONDS

    def lease_age(self, now: float | None = None) -> float:
        """Seconds since the lease was renewed; infinite where there is none."""
        try:
            # Opened, not looked at: over NFS that asks the server for the time of change.
            with open_file(self.path / names.LEASE) as file:
                touched = os.fstat(file.fileno()).st_mtime
        except (FileNotFoundError, StudyError):
            try:
                touched = self.path.stat().st_mtime
            except FileNotFoundError:
                return float("inf")
        age = (time.time() if now is None else now) - touched
        return age if age > -names.AHEAD_SECONDS else float("inf")

    def redate(self, now: float) -> None:
        """A lease that lies in the future counts from `now` on.

        The clock that dated it has been put back since. Whoever lives renews it; whoever does not
        would hold the trial until that time.

        Args:
            now: by the clock that dates these files, see `time_of`.
        """
        path = self.path / names.LEASE
        if -names.AHEAD_SECONDS < self.lease_age(now) < -names.LEASE_SECONDS:
            os.utime(path if path.exists() else self.path, (now, now))

    def precedes(self, job_id: str | None, restart: int) -> bool:
        """Whether it is an earlier incarnation of a job that the scheduler has started again.

        The scheduler holds it for dead; where it is not (only the node's daemon died), a newer
        attempt fences it off.
        """
        record = self.record()
        same = job_id is not None and record.get("job_id") == job_id
        return same and int(record.get("restart") or 0) < restart

    def conclude(self, state: State) -> None:
        """Writes how it ended on its behalf, where its process died without a word."""
        if self.own_state() is None:
            write_json(self.path / names.STATE, state.replace(attempt=self.number).to_dict())

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
        """A descriptor for `append_lines`: metrics.jsonl or events.jsonl."""
        return os.open(self.path / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def append(self, name: str, row: dict[str, Any]) -> None:
        fd = self.open_log(name)
        try:
            append_lines(fd, [row])
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
