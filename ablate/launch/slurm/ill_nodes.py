"""Nodes that kill trials are left out of what still waits in the queue."""

from __future__ import annotations

import logging

from ablate.config.schema import ClusterConfig
from ablate.launch.slurm.scheduler import run_slurm
from ablate.rundir import StudyDir, incidents

__all__ = ["ill_nodes", "leave_out_ill_nodes"]

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
    """Called when a death has become known; each node is left out once."""
    for node in ill_nodes(study, cluster):
        if not incidents.exclude_node(study.path, node):
            continue
        log.warning("node %s killed trials, and is left out from now on", node)
        for array in sorted({s.job_id for s in study.submissions()}):
            run_slurm(["scontrol", "update", f"JobId={array}", f"ExcNodeList={node}"])
