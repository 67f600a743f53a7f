"""Nodes that kill trials are left out of what still waits in the queue."""

from __future__ import annotations

import logging

from ablate.config.schema import ClusterConfig
from ablate.launch.slurm.scheduler import run_slurm
from ablate.rundir import StudyDir, incidents

__all__ = ["ill_nodes", "leave_out_ill_nodes", "leave_out_of_requeued"]

log = logging.getLogger("ablate")

SHARE = 4
"""At most one node in so many is left out: where many nodes kill, it is not the nodes."""


def ill_nodes(study: StudyDir, cluster: ClusterConfig) -> list[str]:
    """What new submissions must exclude."""
    found = incidents.bad_nodes(study.path, cluster.bad_node_after)
    if not found:
        return []
    where = ["-p", cluster.partition] if cluster.partition else []
    out = run_slurm(["sinfo", "-h", "-N", "-o", "%N", *where])
    nodes = len(set((out or "").split()))
    return found[: 0 if nodes < 2 else max(1, nodes // SHARE)]


def leave_out_ill_nodes(study: StudyDir, cluster: ClusterConfig) -> None:
    """Called when a death has become known; the queue is told of each node once."""
    found = ill_nodes(study, cluster)
    new = [node for node in found if incidents.exclude_node(study.path, node)]
    if new:
        log.warning("left out from now on, for killing trials: %s", ", ".join(new))
        for array in sorted({s.job_id for s in study.submissions()}):
            _exclude(array, found)


def leave_out_of_requeued(job: str, study: StudyDir, cluster: ClusterConfig) -> None:
    """For a job that ran when the others were told, and waits now."""
    if found := ill_nodes(study, cluster):
        _exclude(job, found)


def _exclude(job: str, nodes: list[str]) -> None:
    """All of them: SLURM replaces the list that was there."""
    run_slurm(["scontrol", "update", f"JobId={job}", f"ExcNodeList={','.join(nodes)}"])
