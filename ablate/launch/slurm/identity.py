"""Which SLURM job this process is, from its environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["END", "SlurmJob", "this_job"]

END = "ABLATE_JOB_END"


@dataclass(frozen=True, kw_only=True)
class SlurmJob:
    job_id: str
    """`<array>_<index>`, or the number of a plain job."""
    raw_id: str
    """The number that scontrol takes for exactly this task."""
    restart: int
    node: str
    step: str | None
    end: float | None
    """When its time limit ends (seconds since the epoch); None where ablate did not submit it."""

    def record(self) -> dict[str, Any]:
        """As attempt.json keeps it, beside the job's id."""
        return {"restart": self.restart, "node": self.node, "step_id": self.step, "end": self.end}

    def made(self, record: Mapping[str, Any]) -> bool:
        """Whether attempt.json is of this job, and of this incarnation of it."""
        return (record.get("job_id"), record.get("restart")) == (self.job_id, self.restart)


def this_job(environment: Mapping[str, str] | None = None) -> SlurmJob | None:
    """None outside of a SLURM job."""
    env = os.environ if environment is None else environment
    raw = env.get("SLURM_JOB_ID")
    if not raw:
        return None
    array, index = env.get("SLURM_ARRAY_JOB_ID"), env.get("SLURM_ARRAY_TASK_ID")
    step = env.get("SLURM_STEP_ID")
    return SlurmJob(
        job_id=f"{array}_{index}" if array and index else raw,
        raw_id=raw,
        restart=int(env.get("SLURM_RESTART_COUNT") or 0),
        node=env.get("SLURMD_NODENAME", ""),
        step=f"{raw}.{step}" if step is not None else None,
        end=float(env[END]) if env.get(END) else None,
    )
