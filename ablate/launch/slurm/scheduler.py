"""What SLURM says of jobs: one batched question, seldom, and never an exception.

squeue is asked first; of what it no longer knows, `sacct -D` is asked once how it ended. Neither
may answer (no accounting, slurmctld or slurmdbd down): then jobs are unknown, which does not mean
lost.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from ablate.launch.slurm.states import UNFINISHED

__all__ = ["JobInfo", "Scheduler", "base_id", "run_slurm"]

QUERY_SECONDS = 10.0
"""A command that asks SLURM is run this often at most."""
BACK_OFF_SECONDS = 300.0
TIMEOUT_SECONDS = 15.0

SQUEUE = ("JobArrayID", "State", "Reason", "NodeList", "exit_code", "StartTime", "EndTime",
          "TimeLimit", "RestartCnt")  # fmt: skip
SACCT = ("JobID", "State", "Reason", "NodeList", "ExitCode", "Start", "End", "TimelimitRaw")


@dataclass(frozen=True, kw_only=True)
class JobInfo:
    """One task of an array, or one job, as SLURM knows it."""

    job_id: str
    state: str
    """SLURM's own word: RUNNING, PENDING, NODE_FAIL, ..."""
    reason: str | None = None
    node: str | None = None
    exit_code: str | None = None
    """`code:signal`."""
    start: float | None = None
    """Seconds since the epoch."""
    end: float | None = None
    """When it ended, or will be ended."""
    time_limit: float | None = None
    """Seconds."""
    restarts: int = 0

    @property
    def active(self) -> bool:
        """Whether SLURM still has it waiting or running."""
        return self.state in UNFINISHED


class Scheduler:
    """One a process: it remembers answers, and asks again no sooner than the interval allows."""

    def __init__(self, interval: float = QUERY_SECONDS) -> None:
        self._interval = self._pause = interval
        self._next = 0.0
        self._known: dict[str, JobInfo] = {}
        self._answered = True
        self._wanted: set[str] = set()
        """Jobs that somebody has asked for since the last question."""

    def jobs(self, job_ids: Collection[str]) -> dict[str, JobInfo]:
        """What is known of these jobs now; one that is missing is unknown, which is not lost."""
        self._wanted.update(job_ids)
        if time.monotonic() >= self._next:
            known = self._known
            open_ids = [i for i in self._wanted if i not in known or known[i].active]
            self._wanted.clear()
            if open_ids:
                self._ask(open_ids)
        return {i: self._known[i] for i in job_ids if i in self._known}

    def answered(self) -> bool:
        """Whether SLURM answered when it was last asked; True as long as nobody has asked."""
        return self._answered

    def cancel(self, job_ids: Collection[str]) -> None:
        """One scancel for all; what has ended already is left alone."""
        for part in _batches(sorted(set(job_ids))):
            run_slurm(["scancel", *part])
        self._next = 0.0

    def _ask(self, ids: list[str]) -> None:
        asked, listed = 1, _squeue(ids)
        if listed is None:
            self._answered = False
            self._pause = min(2 * self._pause, BACK_OFF_SECONDS)
            self._next = time.monotonic() + self._pause
            return
        self._answered, self._pause = True, self._interval
        for id in ids:
            self._known.pop(id, None)
        self._known.update(listed)
        gone = [id for id in ids if id not in listed]
        if gone:
            asked += 1
            # Accounts that call a job active which the controller has not are those of a job that
            # it has forgotten; nothing will ever close them.
            kept = {k: v for k, v in (_sacct(gone) or {}).items() if not v.active}
            self._known.update({k: v for k, v in kept.items() if k in set(gone)})
        self._next = time.monotonic() + asked * self._interval


def base_id(job_id: str) -> str:
    """The array's number: 12 of 12_3."""
    return job_id.partition("_")[0]


def run_slurm(words: Sequence[str], timeout: float = TIMEOUT_SECONDS) -> str | None:
    """Standard output of a SLURM command; None where it fails, hangs or is not there."""
    environment = {**os.environ, "SLURM_TIME_FORMAT": "%s"}
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=timeout, env=environment, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode and "Invalid job id specified" in done.stderr:
        return ""  # an answer: it knows none of them
    return None if done.returncode else done.stdout


def _squeue(ids: Iterable[str]) -> dict[str, JobInfo] | None:
    columns = ",".join(f"{name}:|" for name in SQUEUE)
    arrays = ",".join(sorted({base_id(id) for id in ids}))
    out = run_slurm(["squeue", "-h", "-r", "-a", "-t", "all", "-j", arrays, "-O", columns])
    if out is None:
        return None
    rows = (line.split("|") for line in out.splitlines())
    return {r[0]: _info(r[:8], restarts=_int(r[8])) for r in rows if len(r) > len(SQUEUE)}


def _sacct(ids: Iterable[str]) -> dict[str, JobInfo] | None:
    """The newest incarnation of each; the earlier ones are counted as restarts.

    Left out is what nobody cancelled (scancel is `CANCELLED by <user>`): a controller that has lost
    its state closes the accounts of all jobs in this way, and the trials are not to be given up.
    """
    arrays = ",".join(sorted({base_id(id) for id in ids}))
    words = ["sacct", "-D", "-n", "-X", "-P", "-j", arrays, "-o", ",".join(SACCT)]
    out = run_slurm(words)
    if out is None:
        return None
    found: dict[str, JobInfo] = {}
    for row in (line.split("|") for line in out.splitlines()):
        if len(row) == len(SACCT) and row[1] != "CANCELLED":
            before = found.get(row[0])
            restarts = before.restarts + 1 if before else 0
            limit = str(60 * _int(row[7])) if row[7].isdigit() else ""
            found[row[0]] = _info([*row[:7], limit], restarts=restarts)
    return found


def _info(row: Sequence[str], *, restarts: int) -> JobInfo:
    id, state, reason, node, exit_code, start, end, limit = row
    return JobInfo(
        job_id=id,
        state=(state.split() or ["UNKNOWN"])[0],  # "CANCELLED by 0"
        reason=None if reason in ("", "None", "(null)") else reason,
        node=None if node in ("", "None assigned", "(null)") else node,
        exit_code=_code(exit_code),
        start=_seconds(start),
        end=_seconds(end),
        time_limit=_duration(limit),
        restarts=restarts,
    )


def _code(text: str) -> str | None:
    """`code:signal`; squeue writes the status of wait(2) instead."""
    if text.isdigit():
        return f"{int(text) >> 8}:{int(text) & 127}"
    return text or None


def _seconds(text: str) -> float | None:
    return float(text) if text.isdigit() and int(text) else None


def _duration(text: str) -> float | None:
    """Seconds of 90, 1:30:00, 2-00:00:00; None for UNLIMITED and the like."""
    days, _, clock = text.rpartition("-")
    parts = clock.split(":")
    if not all(p.isdigit() for p in parts) or (days and not days.isdigit()):
        return None
    seconds = 0
    for part in parts:
        seconds = 60 * seconds + int(part)
    return float(seconds + 86400 * int(days or 0))


def _int(text: str) -> int:
    return int(text) if text.isdigit() else 0


def _batches(items: list[str], size: int = 500) -> Iterable[list[str]]:
    return (items[i : i + size] for i in range(0, len(items), size))
