"""One trial's folder: its state, its attempts, its stitched record."""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import yaml

from ablate.errors import StudyError, TrialEndedError, TrialHeldError
from ablate.rundir import names
from ablate.rundir.files import (
    append_line,
    fsync_dir,
    last_row,
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
            dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
            text = yaml.dump(config, Dumper=dumper, sort_keys=False, allow_unicode=True)
            write_atomic(self.path / names.CONFIG, text)
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
        """The state as it really is.

        A running trial whose process is gone counts as preempted. Where state.json is older than
        the newest attempt (an attempt that had been fenced off was the last to write it), that
        attempt's own copy counts.
        """
        newest = self.newest_attempt()
        alive = newest is not None and newest.is_alive()
        state = self._state_with(newest)
        if state.status == "running" and not alive:
            return state.replace(status="preempted", outcome="node", reason="its process is gone")
        return state

    def _state_with(self, newest: Attempt | None) -> State:
        state = self.state()
        if newest is None or (newest.number == state.attempt and state.status != "running"):
            return state
        running = state.replace(status="running", attempt=newest.number)
        return newest.own_state() or running

    def latest_row(self) -> dict[str, Any] | None:
        """The newest row of metrics.jsonl, read from the file's end."""
        for attempt in reversed(self.attempts()):
            row = last_row(attempt.path / names.METRICS)
            if row is not None:
                return row
        return None

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

    def acquire(self, *, job_id: str | None = None, again: Collection[str] = ()) -> Attempt:
        """Takes the trial's lease as the next attempt; `mkdir` decides between two who try at once.

        Args:
            job_id: the scheduler's number, if any.
            again: ended statuses (such as "failed") that are to be run again.

        Raises:
            TrialHeldError: while another attempt is alive, or where another process was quicker.
            TrialEndedError: where the trial has ended, and not as one of `again`.
        """
        # The order matters: an attempt that was not alive can end no more, so a state read after
        # that is final; and nobody can have become attempt `number` unless the `mkdir` fails.
        newest = self.newest_attempt()
        alive = newest is not None and newest.is_alive()
        state = self._state_with(newest)
        if state.status in ENDED and state.status not in again:
            raise TrialEndedError(f"Trial {self.id} has ended: {state.status}.")
        if newest is not None and alive:
            who = newest.record()
            raise TrialHeldError(
                f"Trial {self.id} is being run by process {who.get('pid')} on {who.get('host')} "
                f"(attempt {newest.number}). Wait for it, or end that process first."
            )
        number = 1 + (self._last_set_aside() if newest is None else newest.number)
        attempt = Attempt(self, number)
        attempt.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            attempt.path.mkdir()
        except FileExistsError:
            raise TrialHeldError(
                f"Trial {self.id} was just taken by another process as attempt {number}."
            ) from None
        now = time.time()
        attempt.start(job_id)
        attempt.release(
            state.replace(
                status="running",
                outcome=None,
                reason=None,
                job_id=job_id,
                host=socket.gethostname(),
                pid=os.getpid(),
                heartbeat=now,
                started=state.started or now,
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
        """Moves everything that earlier attempts wrote to `aside-<k>/` (for `force=true`).

        Their numbers are not given out again, so an old attempt that wakes up finds no folder.

        Raises:
            TrialHeldError: while the trial is being run.
        """
        newest = self.newest_attempt()
        if newest is None:
            return
        state = self.live_state()
        if state.status == "running":
            raise TrialHeldError(
                f"Trial {self.id} is being run by process {state.pid} on {state.host}, so it "
                "cannot be started afresh. End that process first."
            )
        aside = self.path / f"aside-{len(self._aside()) + 1}"
        try:
            aside.mkdir()
        except FileExistsError:
            raise TrialHeldError(
                f"Trial {self.id} is just being set aside by another process."
            ) from None
        moved = (names.ATTEMPTS, names.STATE, names.SUMMARY, names.STITCHED, names.EVENTS)
        for name in moved:
            if (self.path / name).exists():
                os.replace(self.path / name, aside / name)
        self.write_state(State(steps=state.steps))

    def _aside(self) -> list[Path]:
        return [p for p in self.path.glob("aside-*") if p.is_dir()]

    def _last_set_aside(self) -> int:
        """The highest attempt number below the folders set aside, or 0."""
        old = (p.name for aside in self._aside() for p in (aside / names.ATTEMPTS).glob("*"))
        return max((int(name) for name in old if name.isdigit()), default=0)

    # ---- the stitched record

    def lineage(self) -> list[tuple[Attempt, int, float]]:
        """(attempt, first step excluded, last step included), oldest first, of the record that
        counts.

        The rows of an attempt count up to the step at which the attempt that continued it resumed.
        """
        attempts = self.attempts()
        by_number = {a.number: a for a in attempts}
        # The newest attempt may not have come so far as to say where it resumes.
        begun = [a for a in attempts if a.has_begun()]
        pieces: list[tuple[Attempt, int, float]] = []
        attempt, end = (begun[-1] if begun else None), float("inf")
        while attempt is not None:
            resumed = attempt.record().get("resumed") or {}
            start, number = int(resumed.get("step", 0)), int(resumed.get("attempt", 0))
            pieces.append((attempt, start, end))
            attempt, end = (by_number.get(number) if number < attempt.number else None), start
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
