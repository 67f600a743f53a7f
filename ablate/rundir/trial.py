"""One trial's folder: its configuration, its state, its attempts, its stitched record."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from ablate.errors import StudyError, TrialEndedError, TrialHeldError
from ablate.rundir import names
from ablate.rundir.attempt import Attempt
from ablate.rundir.configuration import read_config, write_config
from ablate.rundir.files import (
    has_content,
    last_row,
    no_folder,
    read_json,
    read_jsonl,
    time_of,
    write_json,
)
from ablate.rundir.state import ENDED, State, read_state

__all__ = ["TrialDir"]


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

    @property
    def cancel_path(self) -> Path:
        """While this file is there, the trial is to end as cancelled."""
        return self.path / names.CANCEL

    def cancel_asked(self) -> bool:
        """Asked of the folder: over NFS a look at a name that was not there may be cached."""
        return names.CANCEL in os.listdir(self.path)

    @property
    def study_path(self) -> Path:
        return self.path.parents[1]

    # ---- configuration

    def create(self, config: dict[str, Any], steps: int) -> None:
        """Writes config.yaml and a pending state; does nothing where they exist already."""
        self.path.mkdir(parents=True, exist_ok=True)
        if not has_content(self.path / names.CONFIG):
            write_config(self.path / names.CONFIG, config)
        if not has_content(self.path / names.STATE):
            state = State(steps=steps).to_dict()
            write_json(self.path / names.STATE, state, durable=False)

    def config(self) -> dict[str, Any]:
        """Raises StudyError where config.yaml is missing or damaged."""
        return read_config(self.path / names.CONFIG, self.config_remedy)

    def config_remedy(self) -> str:
        """What to do about a damaged config.yaml."""
        path = self.study_path / names.MANIFEST
        command = read_json(path).get("command") if path.exists() else None
        what = f"`{command}`" if command else "The command that made the study, given again,"
        return f"{what} writes it, and runs the trial where it has not ended."

    # ---- state

    def state(self) -> State:
        """Where state.json is damaged, what the newest attempt left (see `State.damage`)."""
        path, remedy = self.path / names.STATE, f"{names.retry_of(self.study_path)} mends it."
        try:
            return read_state(path, remedy) if path.exists() else State()
        except StudyError as error:
            return self._state_of_attempts(str(error))

    def _state_of_attempts(self, damage: str) -> State:
        newest, steps = self.newest_attempt(), 0
        with contextlib.suppress(StudyError, KeyError, TypeError):
            steps = int(self.config()["train"]["steps"])
        if newest is None:
            return State(steps=steps, damage=damage)
        own = newest.own_state()
        state = own or State(status="running", attempt=newest.number)
        return state.replace(steps=steps or state.steps, damage=damage)

    def write_state(self, state: State) -> None:
        write_json(self.path / names.STATE, state.to_dict())

    def live_state(self, now: float | None = None) -> State:
        """The state as it really is; `now` as for `Attempt.is_alive`.

        A running trial whose process is gone counts as preempted. Where state.json is older than
        the newest attempt (an attempt that had been fenced off was the last to write it), that
        attempt's own copy counts.
        """
        newest = self.newest_attempt()
        alive = newest is not None and newest.is_alive(now)
        state = self._state_with(newest)
        if state.status == "running" and not alive:
            return state.replace(status="preempted", outcome="node", reason="its process is gone")
        return state

    def _state_with(self, newest: Attempt | None) -> State:
        state = self.state()
        if newest is None or (newest.number == state.attempt and state.status != "running"):
            return state
        own = newest.own_state() or state.replace(status="running", attempt=newest.number)
        return own.replace(damage=own.damage or state.damage)

    def latest_row(self) -> dict[str, Any] | None:
        """The newest row of metrics.jsonl, read from the file's end."""
        for attempt in reversed(self.attempts()):
            row = last_row(attempt.path / names.METRICS)
            if row is not None:
                return row
        return None

    def summary(self) -> dict[str, Any] | None:
        """Raises StudyError where it is damaged."""
        path, remedy = self.summary_path, f"{names.retry_of(self.study_path)} writes it anew."
        return read_json(path, remedy) if path.exists() else None

    # ---- attempts

    def record_damage(self) -> str | None:
        """What is wrong with attempt.json; where they resumed is known all the same."""
        if attempts := self.attempts():
            return " ".join(d for a in attempts if (d := a.damage())) or None
        return no_folder(self.path, self.path / names.ATTEMPTS)

    def attempts(self) -> list[Attempt]:
        """Oldest first."""
        try:
            found = os.listdir(self.path / names.ATTEMPTS)
            numbers = sorted(int(name) for name in found if name.isdigit())
        except (FileNotFoundError, NotADirectoryError):
            return []
        return [Attempt(self, n) for n in numbers]

    def newest_attempt(self) -> Attempt | None:
        attempts = self.attempts()
        return attempts[-1] if attempts else None

    def acquire(
        self, *, job_id: str | None = None, again: Collection[str] = (), **job: Any
    ) -> Attempt:
        """Takes the trial's lease as the next attempt; `mkdir` decides between two who try at once.

        Args:
            job_id: the scheduler's number, if any.
            job: what else attempt.json keeps of the scheduler's: restart, node, step, ...
            again: ended statuses (such as "failed") that are to be run again.

        Raises:
            TrialHeldError: while another attempt is alive, or where another process was quicker.
            TrialEndedError: where the trial has ended, and not as one of `again`.
            StudyError: where its folder is gone.
        """
        # The order matters: an attempt that was not alive can end no more, so a state read after
        # that is final; and nobody can have become attempt `number` unless the `mkdir` fails.
        newest, alive = self.newest_attempt(), False
        if newest is not None and not newest.precedes(job_id, int(job.get("restart") or 0)):
            alive = newest.is_alive(clock := time_of(self.path))
            newest.redate(clock)
        state = self._state_with(newest)
        if state.status in ENDED and state.status not in again:
            raise TrialEndedError(f"Trial {self.id} has ended: {state.status}.")
        if newest is not None and alive:
            who = {"pid": state.pid, "host": state.host} | newest.record()
            raise TrialHeldError(
                f"Trial {self.id} is being run by process {who['pid']} on {who['host']} "
                f"(attempt {newest.number}). Wait for it, or end that process first."
            )
        number = 1 + (self._last_set_aside() if newest is None else newest.number)
        attempt = Attempt(self, number)
        if (wrong := no_folder(self.path, self.path / names.ATTEMPTS)) is not None:
            raise StudyError(wrong)
        try:
            attempt.path.parent.mkdir(exist_ok=True)  # no parents: who deleted them meant it
            attempt.path.mkdir()
        except FileNotFoundError:
            raise StudyError(f"{self.path} is missing. {self.config_remedy()}") from None
        except FileExistsError:
            raise TrialHeldError(
                f"Trial {self.id} was just taken by another process as attempt {number}."
            ) from None
        now = time.time()
        running = state.replace(
            status="running",
            outcome=None,
            reason=None,
            job_id=job_id,
            host=job.get("node") or socket.gethostname(),
            pid=os.getpid(),
            heartbeat=now,
            started=state.started or now,
            ended=None,
        )
        try:
            attempt.start(job_id, **job)
            attempt.release(running)
        except OSError:  # a full disk: an attempt that never was must not look like one that runs
            shutil.rmtree(attempt.path, ignore_errors=True)
            raise
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
        Killed on the way, this is finished when it is called again.

        Raises:
            TrialHeldError: while the trial is being run.
        """
        moved = (names.ATTEMPTS, names.SUMMARY, names.STITCHED, names.EVENTS, names.STATE)
        state = self.live_state()
        if state.attempt == 0 and not any((self.path / name).exists() for name in moved[:-1]):
            return
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
                step = row.get("step", 0)
                if isinstance(step, int) and (start < step <= end or step == start == 0):
                    yield row
