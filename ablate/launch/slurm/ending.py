"""Why a job was told to stop, and who starts it again: decided from what SLURM says, by one pure
function.

| SLURM says                                   | the trial is            | again by        |
|----------------------------------------------|-------------------------|-----------------|
| a higher restart count                       | preempted               | SLURM, already  |
| a time of preemption                         | preempted               | us, if it runs  |
| it is ending, not near its limit             | cancelled (scancel)     | nobody          |
| running, near its end time                   | at its time limit       | us              |
| running                                      | told to stop by a signal| us              |
| nothing (slurmctld is down)                  | by the clock            | us, when it answers |
"""

from __future__ import annotations

import subprocess
import time
from dataclasses import dataclass

__all__ = ["Ending", "Facts", "ask", "judge", "requeue"]

EARLY_SECONDS = 60.0
"""SLURM's warning comes up to so much before the time that was asked for."""

SILENT_SECONDS = 120.0
"""So long a controller that does not answer is asked again to requeue a job."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """`scontrol show job`."""

    state: str
    restarts: int
    requeue: bool
    """Whether the job may be requeued at all."""
    end: float | None
    """When SLURM will end it (seconds since the epoch), or did."""
    preempted: float | None
    """When SLURM chose it for preemption."""


@dataclass(frozen=True, kw_only=True)
class Ending:
    status: str
    outcome: str
    reason: str
    requeue: bool = False
    """Whether we must ask for the requeue."""
    goes_on: bool = False
    """Whether the job starts again."""


def judge(
    facts: Facts | None, *, signal: str, restart: int, now: float, end: float | None, grace: float
) -> Ending:
    """What the stop of this incarnation was.

    Args:
        facts: what SLURM says now; None where it does not answer.
        signal: the reason that the process was given, such as `stopped by SIGUSR2`.
        restart: this incarnation's restart count.
        now: seconds since the epoch.
        end: the end of the time limit as it was known at the start.
        grace: seconds before the end of the limit at which SLURM warns.
    """
    limit = None if facts is None else facts.end
    limit = end if limit is None or (facts and facts.preempted) else limit
    near = limit is not None and now >= limit - grace - EARLY_SECONDS
    if facts is None:
        return _limit(True) if near else _told(signal, True)
    if facts.restarts > restart:
        return Ending(
            status="preempted",
            outcome="preempted",
            reason="preempted; SLURM starts it again",
            goes_on=True,
        )
    running = facts.state in ("RUNNING", "SUSPENDED", "STOPPED", "SIGNALING")
    again = running and facts.requeue
    if facts.preempted is not None or facts.state == "PREEMPTED":
        how = "preempted" if again else "preempted for good; launch the study again"
        return Ending(
            status="preempted", outcome="preempted", reason=how, requeue=again, goes_on=again
        )
    if facts.state == "CANCELLED" or (facts.state == "COMPLETING" and not near):
        return Ending(status="cancelled", outcome="cancelled", reason="cancelled with scancel")
    return _limit(again) if near else _told(signal, again)


def _limit(again: bool) -> Ending:
    reason = "at its time limit" + ("" if again else "; launch the study again")
    return Ending(
        status="preempted", outcome="time_limit", reason=reason, requeue=again, goes_on=again
    )


def _told(signal: str, again: bool) -> Ending:
    reason = signal + ("" if again else "; launch the study again")
    return Ending(
        status="preempted", outcome="preempted", reason=reason, requeue=again, goes_on=again
    )


def ask(raw_id: str) -> Facts | None:
    """What SLURM says of a job, or None. The command is shielded from signals to the whole job."""
    for pause in (0.0, 0.5, 1.0):
        time.sleep(pause)
        done = _shielded("scontrol", "show", "job", "-o", raw_id)
        if done is not None and done.returncode == 0 and "JobState=" in done.stdout:
            return _parse(done.stdout)
    return None


def requeue(raw_id: str, patience: float = SILENT_SECONDS) -> bool:
    """Asks SLURM, once, to start this job again; whether it will.

    A controller that does not answer is asked again; one that refuses is not.
    """
    deadline = time.monotonic() + patience
    while True:
        done = _shielded("scontrol", "requeue", raw_id)
        if done is not None and done.returncode == 0:
            return True
        silent = done is None or done.returncode < 0 or "contact" in done.stderr.lower()
        if not silent or time.monotonic() > deadline:
            return False
        time.sleep(2.0)


def _parse(text: str) -> Facts:
    words = dict(w.split("=", 1) for w in text.split() if "=" in w)
    return Facts(
        state=words["JobState"],
        restarts=int(words.get("Restarts", 0)),
        requeue=words.get("Requeue", "1") == "1",
        end=_time(words.get("EndTime")),
        preempted=_time(words.get("PreemptTime")),
    )


def _time(text: str | None) -> float | None:
    try:
        return time.mktime(time.strptime(text or "", "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return None


def _shielded(*words: str) -> subprocess.CompletedProcess[str] | None:
    # SLURM signals every process of a step; the shell passes "ignored" on to the command.
    script = [
        "sh",
        "-c",
        "trap '' TERM INT USR1 USR2 HUP; unset SLURM_TIME_FORMAT; exec \"$@\"",
        "-",
    ]
    try:
        return subprocess.run(
            [*script, *words], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
