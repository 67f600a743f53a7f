"""One trial's folder: its state, its attempts, its stitched record."""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from ablate.errors import StudyError, TrialHeldError
from ablate.rundir import names
from ablate.rundir.files import (
    append_line,
    fsync_dir,
    read_json,
    read_jsonl,
    write_atomic,
    write_json,
)
from ablate.rundir.state import ENDED, State

__all__ = ["Attempt", "TrialDir"]


class TrialDir:
    """`trials/<id>/`. Reading is free; writing the state needs the current attempt."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.id = path.name

    @property
    def metrics_path(self) -> Path:
        return self.path / names.STITCHED

    @property
    def events_path(self) -> Path:
        return self.path / names.EVENTS

    @property
    def summary_path(self) -> Path:
        return self.path / names.SUMMARY

    # ---- configuration

    def create(self, config: dict[str, Any], steps: int) -> None:
        """Writes config.yaml and a pending state; does nothing where they exist already."""
        self.path.mkdir(parents=True, exist_ok=True)
        if not (self.path / names.CONFIG).exists():
            write_atomic(self.path / names.CONFIG, yaml.safe_dump(config, sort_keys=False))
        if not (self.path / names.STATE).exists():
            write_json(self.path / names.STATE, State(steps=steps).to_dict())

    def config(self) -> dict[str, Any]:
        path = self.path / names.CONFIG
        try:
            return yaml.load(
                path.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader)
            )
        except FileNotFoundError:
            raise StudyError(f"{path} is missing; launch the study again to write it.") from None
        except yaml.YAMLError as error:
            raise StudyError(f"{path} is damaged: {error}") from None

    # ---- state

    def state(self) -> State:
        path = self.path / names.STATE
        return State.from_dict(read_json(path)) if path.exists() else State()

    def write_state(self, state: State) -> None:
        write_json(self.path / names.STATE, state.to_dict())

    def live_state(self) -> State:
        """The state as it really is: a running trial whose process is gone counts as preempted."""
        state = self.state()
        if state.status == "running":
            attempt = self.newest_attempt()
            if attempt is None or not attempt.is_alive():
                return state.replace(
                    status="preempted", outcome="node", reason="its process is gone"
                )
        return state

    def summary(self) -> dict[str, Any] | None:
        return read_json(self.summary_path) if self.summary_path.exists() else None

    # ---- attempts

    def attempts(self) -> list[Attempt]:
        """Oldest first."""
        try:
            numbers = sorted(
                int(p.name) for p in (self.path / names.ATTEMPTS).iterdir() if p.name.isdigit()
            )
        except FileNotFoundError:
            return []
        return [Attempt(self, n) for n in numbers]

    def newest_attempt(self) -> Attempt | None:
        attempts = self.attempts()
        return attempts[-1] if attempts else None

    def acquire(self, *, job_id: str | None = None) -> Attempt:
        """Takes the trial's lease as the next attempt; `mkdir` decides between two who try at once.

        Raises:
            TrialHeldError: while another attempt is alive, or where another process was quicker.
        """
        newest = self.newest_attempt()
        if newest is not None and newest.is_alive() and self.state().status not in ENDED:
            who = newest.record()
            raise TrialHeldError(
                f"Trial {self.id} is being run by process {who.get('pid')} on {who.get('host')} "
                f"(attempt {newest.number}). Wait for it, or end that process first."
            )
        number = 1 if newest is None else newest.number + 1
        attempt = Attempt(self, number)
        attempt.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            attempt.path.mkdir()
        except FileExistsError:
            raise TrialHeldError(
                f"Trial {self.id} was just taken by another process as attempt {number}."
            ) from None
        attempt.start(job_id)
        state = self.state()
        self.write_state(
            state.replace(
                status="running",
                outcome=None,
                reason=None,
                attempt=number,
                job_id=job_id,
                host=socket.gethostname(),
                pid=os.getpid(),
                heartbeat=time.time(),
                started=state.started or time.time(),
                ended=None,
            )
        )
        return attempt

    def newest_checkpoint(self) -> tuple[Attempt, int] | None:
        """The newest complete checkpoint: of the last attempt that has one, its highest step."""
        for attempt in reversed(self.attempts()):
            steps = attempt.checkpoint_steps()
            if steps:
                return attempt, steps[-1]
        return None

    def set_aside(self) -> None:
        """Moves everything that earlier attempts wrote to `aside-<k>/` (for `force=true`)."""
        if not (self.path / names.ATTEMPTS).exists():
            return
        k = 1
        while (self.path / f"aside-{k}").exists():
            k += 1
        aside = self.path / f"aside-{k}"
        aside.mkdir()
        moved = (names.ATTEMPTS, names.STATE, names.SUMMARY, names.STITCHED, names.EVENTS)
        for name in moved:
            if (self.path / name).exists():
                os.replace(self.path / name, aside / name)

    # ---- the stitched record

    def lineage(self) -> list[tuple[Attempt, int, float]]:
        """(attempt, first step excluded, last step included), oldest first, of the record that
        counts.

        The rows of an attempt count up to the step at which the attempt that continued it resumed.
        """
        by_number = {a.number: a for a in self.attempts()}
        pieces: list[tuple[Attempt, int, float]] = []
        attempt, end = (by_number[max(by_number)] if by_number else None), float("inf")
        while attempt is not None:
            resumed = attempt.record().get("resumed") or {}
            start = int(resumed.get("step", 0))
            pieces.append((attempt, start, end))
            attempt, end = by_number.get(int(resumed.get("attempt", 0))), start
        return pieces[::-1]

    def stitched(self, name: str = names.METRICS) -> Iterator[dict[str, Any]]:
        """Rows of metrics.jsonl (or events.jsonl), each step once, in order of steps."""
        for attempt, start, end in self.lineage():
            for row in read_jsonl(attempt.path / name):
                if start < row.get("step", 0) <= end or (row.get("step", 0) == start == 0):
                    yield row


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

    def heartbeat(self) -> None:
        (self.path / names.LEASE).touch()

    def is_current(self) -> bool:
        """Whether no newer attempt has fenced this one off."""
        return not (self.path.parent / str(self.number + 1)).exists()

    def is_alive(self) -> bool:
        """Whether its process lives: asked of this machine where it ran here, else of the
        lease's age.
        """
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
        self.trial.write_state(state.replace(attempt=self.number))
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
        temporary.mkdir(parents=True)
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
