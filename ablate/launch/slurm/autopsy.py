"""Why an attempt ended without a word: the class of its death."""

from __future__ import annotations

from pathlib import Path

from ablate.launch.slurm.identity import this_job
from ablate.launch.slurm.scheduler import run_slurm
from ablate.rundir import Attempt

__all__ = ["cause_of_death", "incarnations"]

CLASSES = {
    "NODE_FAIL": ("node", "its node failed"),
    "BOOT_FAIL": ("node", "its node failed"),
    "PREEMPTED": ("preempted", "preempted without a warning"),
    "REQUEUED": ("preempted", "requeued without a warning"),
    "TIMEOUT": ("time_limit", "killed at its time limit"),
    "DEADLINE": ("time_limit", "killed at its deadline"),
    "OUT_OF_MEMORY": ("oom", "killed for want of memory"),
    "CANCELLED": ("cancelled", "cancelled with scancel"),
}

NEAR_SECONDS = 30.0


def cause_of_death(attempt: Attempt) -> tuple[str, str, bool]:
    """(outcome, reason, whether the node is to blame).

    From SLURM's accounting; without that, from the lease's last renewal. Called by the attempt
    that follows, or by its job.
    """
    record, here = attempt.record(), this_job()
    job = record.get("job_id")
    node = record.get("node") or record.get("host") or "which node is not known"
    restart = int(record.get("restart") or 0)
    if here is not None and here.made(record):
        if out_of_memory():
            return "oom", f"killed for want of memory ({node})", False
        return "node", f"its process was killed ({node})", True
    states = incarnations(job) if job and record.get("node") else []
    if restart < len(states) and states[restart] in CLASSES:
        outcome, reason = CLASSES[states[restart]]
        return outcome, f"{reason} ({node})", outcome == "node"
    end, beat = record.get("end"), -attempt.lease_age(0.0)
    if end and beat >= float(end) - NEAR_SECONDS:
        return "time_limit", f"killed at its time limit ({node})", False
    silent = "; SLURM kept no record" if job and not states else ""
    return "node", f"its process is gone ({node}{silent})", False


def out_of_memory() -> bool:
    """Whether the kernel has killed a process of this job's control group for want of memory."""
    try:
        path = Path("/proc/self/cgroup").read_text().strip().rpartition("::")[2].lstrip("/")
        folder = Path("/sys/fs/cgroup") / path
        for group in (folder, *folder.parents):
            events = group / "memory.events"
            if "job_" in str(group) and events.exists():
                counts = dict(line.split() for line in events.read_text().splitlines())
                if int(counts.get("oom_kill", 0)):
                    return True
    except (OSError, ValueError):
        pass
    return False


def incarnations(job_id: str) -> list[str]:
    """SLURM's word for the end of every incarnation of a job, oldest first; empty where it keeps
    no accounts.
    """
    out = run_slurm(["sacct", "-D", "-n", "-X", "-P", "-j", job_id, "-o", "JobID,State"])
    rows = [line.split("|") for line in (out or "").splitlines()]
    return [row[1].split()[0] for row in rows if len(row) == 2 and row[0] == job_id and row[1]]
