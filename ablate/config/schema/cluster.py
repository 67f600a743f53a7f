"""Where trials run and what they ask for there: no part of their identity."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any, Literal

from ablate.config.typed import check_types, require

__all__ = ["ClusterConfig", "minutes"]

OURS = {
    "array": "ablate makes the arrays",
    "signal": "cluster.grace",
    "output": "the logs lie in the trial's attempts",
    "error": "the logs lie in the trial's attempts",
    "open-mode": "the logs lie in the trial's attempts",
    "dependency": "ablate chains its jobs",
    "job-name": "the study's name",
    "time": "cluster.time",
    "nodes": "cluster.nodes",
    "ntasks": "ablate starts one task a GPU",
    "ntasks-per-node": "ablate starts one task a GPU",
    "gpus-per-node": "cluster.gpus",
    "cpus-per-task": "cluster.cpus",
    "mem": "cluster.memory",
    "partition": "cluster.partition",
    "account": "cluster.account",
    "qos": "cluster.qos",
    "constraint": "cluster.constraint",
}
"""sbatch options that must not come from cluster.sbatch -> who sets them."""

_UNITS = {"m": 1, "min": 1, "h": 60, "d": 1440}


@dataclass(frozen=True, kw_only=True)
class ClusterConfig:
    name: Literal["local", "slurm", "debug"] = "local"
    workers: int | None = None
    """local: trials at once; null: CPU cores // train.threads (or one a GPU)."""
    pack: int = 1
    """slurm: trials that share one allocation, one process each."""

    stack: int | None = None
    """Trials that share a graph, trained as one batch of models in one process; 1: none, nor those
    that began so; null: none, but what began so goes on so.
    """

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    setup: list[str] = field(default_factory=list)
    """Shell lines before the trial starts: module load, source activate, ..."""
    environment: dict[str, Any] = field(default_factory=dict)
    """Variables of the job."""
    sbatch: dict[str, Any] = field(default_factory=dict)
    """Further sbatch options by their long names; true for one without a value."""
    python: str | None = None
    """The interpreter on the nodes (any shell command); null: the one that launches."""

    nodes: int = 1
    gpus: int = 0
    """Of a node, for the whole allocation."""
    gpu_memory: str | None = None
    """Of one GPU: 80G, 24G. What cannot fit it is refused; null: unknown, and nothing is."""
    cpus: int = 1
    """Cores of a node, for the whole allocation."""
    memory: str | None = None
    """Of a node: 8G, 500M; null leaves it to the partition."""
    time: str = "1h"
    """The limit: 90m, 2h, 1d, 1:30:00 or 2-00:00:00."""

    grace: int = 90
    """Seconds before the limit at which a trial saves and stops."""
    max_retries: int = 3
    """Attempts without progress that the infrastructure may cost a trial."""
    bad_node_after: int = 3
    """A node on which so many jobs died is asked for no more; 0: never."""
    canary: int = 3
    """So many equal failures before anything is done hold the rest back; 0: never."""
    max_queued: int | None = None
    """Tasks in the queue at once; null: what SLURM allows."""
    parallel: int | None = None
    """Tasks of one array that run at once; null: all."""
    heal: bool = True
    """A small job after the arrays submits again what the infrastructure lost."""

    max_gpu_hours: float | None = None
    """What the study may use in all; a trial without a GPU counts as one. null: no limit."""
    notify: str | None = None
    """Called once when the study ends or stalls: a shell command (finds STUDY and STATE in its
    environment) or an http(s) address.
    """

    def __post_init__(self) -> None:
        check_types(self, "cluster")
        v = self.max_gpu_hours
        require(v is None or 0 < v < math.inf, "cluster.max_gpu_hours", v, "must be positive")
        v = self.notify
        require(v is None or bool(v.strip()), "cluster.notify", v, "must be a command, or null")
        for name in ("workers", "max_queued", "parallel", "stack"):
            v = getattr(self, name)
            require(v is None or v >= 1, f"cluster.{name}", v, "must be at least 1, or null")
        for name in ("pack", "nodes", "cpus"):
            v = getattr(self, name)
            require(v >= 1, f"cluster.{name}", v, "must be at least 1")
        reason = "needs worker processes, and cluster=debug runs one trial after the other in this"
        stack = self.stack or 1
        require(self.name != "debug" or stack == 1, "cluster.stack", stack, reason)
        reason = f"is more than the trials of a job (cluster.pack={self.pack})"
        fits = self.name != "slurm" or stack <= self.pack
        require(fits, "cluster.stack", stack, reason, "Raise cluster.pack to a multiple of it")
        for name in ("gpus", "max_retries", "bad_node_after", "canary"):
            v = getattr(self, name)
            require(v >= 0, f"cluster.{name}", v, "must be 0 or more")
        for name in ("partition", "account", "qos", "constraint"):
            v = getattr(self, name)
            ok = v is None or bool(v.strip() and not re.search(r"[\n#]", v))
            require(ok, f"cluster.{name}", v, "must be a name, or null")
        remedy = 'Write "90m", "2h", "1d" or "1:30:00", in quotes'
        require(bool(minutes(self.time)), "cluster.time", self.time, "is no time limit", remedy)
        enough = 60 * (minutes(self.time) or 0) > self.grace >= 10
        reason = "must be 10 seconds or more, and less than cluster.time"
        require(enough, "cluster.grace", self.grace, reason)
        ok = self.memory is None or bool(re.fullmatch(r"\d+[KMGT]", self.memory))
        require(ok, "cluster.memory", self.memory, "is no amount of memory", "Write 500M or 8G")
        ok = self.gpu_memory is None or bool(re.fullmatch(r"[1-9]\d*[KMGT]", self.gpu_memory))
        reason = "is no amount of memory"
        require(ok, "cluster.gpu_memory", self.gpu_memory, reason, "Write 24G or 80G")
        self._check_mappings()

    def _check_mappings(self) -> None:
        for key, value in self.environment.items():
            ok = bool(re.fullmatch(r"[A-Za-z_]\w*", str(key))) and not isinstance(
                value, list | dict | type(None)
            )
            reason = "must be a variable with a text or a number"
            require(ok, f"cluster.environment.{key}", value, reason)
        for key, value in self.sbatch.items():
            field_ = f"cluster.sbatch.{key}"
            plain = bool(re.fullmatch(r"[a-z][a-z0-9-]*", str(key).replace("_", "-")))
            require(plain, field_, value, "is no long option of sbatch", "Write exclusive: true")
            owner = OURS.get(str(key).replace("_", "-"))
            require(owner is None, field_, value, f"is not set here ({owner})")
            scalar = not isinstance(value, list | dict | type(None)) and "\n" not in str(value)
            require(scalar, field_, value, "must be a text, a number or true")

    @property
    def tasks_per_node(self) -> int:
        """Processes that SLURM starts on a node: one a GPU, unless trials share the allocation."""
        return 1 if self.pack > 1 else max(1, self.gpus)

    @property
    def processes(self) -> int:
        return self.nodes * self.tasks_per_node

    @property
    def minutes(self) -> int:
        """The time limit."""
        found = minutes(self.time)
        assert found is not None  # checked above
        return found


def minutes(text: str) -> int | None:
    """Whole minutes (rounded up) of 90m, 2h, 1d, 1:30:00 or 2-00:00:00; None for anything else.

    A number alone has no unit, so it is refused; so is what YAML makes of 1:30:00 without quotes.
    """
    unit = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(m|min|h|d)\s*", text)
    if unit:
        return -int(-float(unit[1]) * _UNITS[unit[2]] // 1) or None
    clock = re.fullmatch(r"(?:(\d+)-)?(\d+):([0-5]?\d):([0-5]?\d)", text.strip())
    if not clock:
        return None
    days, hours, mins, seconds = (int(part or 0) for part in clock.groups())
    return days * 1440 + hours * 60 + mins + (seconds > 0) or None
