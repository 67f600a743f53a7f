"""What a launch is about to ask of SLURM: trials by what they need, and the sum of it."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ablate.config.schema import ClusterConfig
from ablate.errors import StudyError
from ablate.launch.stacks import Stacks

__all__ = ["Request", "ResourceClass", "check_slurm", "describe"]


@dataclass(frozen=True, kw_only=True)
class ResourceClass:
    """Trials that ask for the same; one array (or several, where arrays are limited)."""

    cluster: ClusterConfig
    trials: list[str]
    stacks: Stacks = dataclasses.field(default_factory=Stacks)

    @functools.cached_property
    def tasks(self) -> list[list[str]]:
        """Trials of each task of the array; those of a stack share one, unless it is too small."""
        k, tasks, open_ = self.cluster.pack, list[list[str]](), list[list[str]]()
        for group in self.stacks.groups(self.trials):
            for part in (group[i : i + k] for i in range(0, len(group), k)):
                task = next((t for t in open_ if len(t) + len(part) <= k), None)
                if task is None:
                    tasks.append(task := [])
                    open_.append(task)
                task += part
                open_ = [t for t in open_ if len(t) < k]
        return tasks

    def lines(self, largest_array: int) -> list[str]:
        c, n = self.cluster, len(self.tasks)
        arrays = math.ceil(n / largest_array)
        packed = f", {c.pack} in each" if c.pack > 1 else ""
        nodes = f"{c.nodes} nodes of " if c.nodes > 1 else ""
        what = [f"{nodes}{c.cpus} CPU" + "s" * (c.cpus > 1)]
        what += [f"{c.gpus} GPU" + "s" * (c.gpus > 1)] * bool(c.gpus)
        what += [c.memory] if c.memory else []
        where = [f"partition {c.partition}" if c.partition else "the default partition"]
        for key in ("account", "qos", "constraint"):
            where += [f"{key} {getattr(c, key)}"] if getattr(c, key) else []
        return [
            f"{_count(len(self.trials), 'trial')} as {_count(n, 'task')}{packed} in "
            f"{_count(arrays, 'array')}: each {', '.join(what)} for at most {c.time}; "
            f"{', '.join(where)}"
        ]


@dataclass(frozen=True, kw_only=True)
class Request:
    classes: list[ResourceClass]
    array: int
    """Largest array that SLURM takes."""
    free: int | None
    """Tasks that fit into the queue now; None: all."""
    queued: list[str]
    """Trials that earlier submissions have in the queue already."""

    @property
    def trials(self) -> int:
        return sum(len(c.trials) for c in self.classes)

    @property
    def tasks(self) -> int:
        return sum(len(c.tasks) for c in self.classes)

    @property
    def gpu_hours(self) -> float:
        """At most: every task to its time limit."""
        return sum(
            len(c.tasks) * c.cluster.gpus * c.cluster.nodes * c.cluster.minutes / 60
            for c in self.classes
        )

    @property
    def cpu_hours(self) -> float:
        return sum(
            len(c.tasks) * c.cluster.cpus * c.cluster.nodes * c.cluster.minutes / 60
            for c in self.classes
        )

    def text(self) -> str:
        """For people, before anything is asked for."""
        lines = [line for c in self.classes for line in c.lines(self.array)]
        if self.queued:
            lines.append(f"{_count(len(self.queued), 'trial')} in the queue already")
        total = f"{_count(self.trials, 'trial')}, {_count(self.tasks, 'task')}: at most "
        lines.append(
            f"{total}{self.gpu_hours:,.0f} GPU-hours and {self.cpu_hours:,.0f} CPU-hours, "
            "if every task runs to its time limit"
        )
        if self.free is not None and self.free < self.tasks:
            lines.append(
                f"SLURM takes {self.free} of the tasks now; a small job feeds it the others"
            )
        return "\n".join(lines)


def describe(clusters: Mapping[str, ClusterConfig], array: int, free: int | None = None,
             queued: Sequence[str] = ()) -> Request:  # fmt: skip
    """Trials by what they ask for, in the order of their first trials.

    Args:
        clusters: trial id -> what it asks for.
        array: the largest array.
        free: tasks that the queue still takes.
        queued: trials to leave out, for they are in the queue.
    """
    classes: dict[str, ResourceClass] = {}
    keys: dict[int, str] = {}  # by identity: most trials share one object
    left_out = set(queued)
    for name, cluster in clusters.items():
        if id(cluster) not in keys:
            keys[id(cluster)] = json.dumps(dataclasses.asdict(cluster), sort_keys=True)
        if name not in left_out:
            found = ResourceClass(cluster=cluster, trials=[])
            classes.setdefault(keys[id(cluster)], found).trials.append(name)
    return Request(classes=list(classes.values()), array=array, free=free, queued=list(queued))


def check_slurm() -> None:
    """Raises StudyError where this machine has no SLURM."""
    missing = [name for name in ("sbatch", "srun", "squeue", "scontrol") if not shutil.which(name)]
    if missing:
        raise StudyError(
            f"cluster=slurm needs SLURM's commands, and {', '.join(missing)} cannot be found here. "
            "Launch on a login node, or with cluster=local."
        )


def _count(n: int, noun: str) -> str:
    return f"{n:,} {noun}" + ("" if n == 1 else "s")
