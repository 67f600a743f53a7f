"""How much SLURM takes at once: the size of an array, and jobs in the queue for one user."""

from __future__ import annotations

import getpass
import re
from dataclasses import dataclass

from ablate.config.schema import ClusterConfig
from ablate.launch.slurm.scheduler import run_slurm

__all__ = ["DEFAULT_ARRAY", "Limits", "read_limits"]

DEFAULT_ARRAY = 1001
"""SLURM's own default for MaxArraySize."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    array: int
    """Tasks of one array."""
    free: int | None
    """Tasks that this user may still put into the queue; None: any number."""


def read_limits(cluster: ClusterConfig) -> Limits | None:
    """From `scontrol show config` and the controller's own copy of the user's limits.

    None where the controller does not answer.
    """
    config = run_slurm(["scontrol", "show", "config"])
    if config is None:
        return None
    sizes = re.search(r"^MaxArraySize\s*=\s*(\d+)", config, re.MULTILINE)
    array = max(1, int(sizes[1]) if sizes else DEFAULT_ARRAY)
    enforced = re.search(r"^AccountingStorageEnforce\s*=.*(limits|safe|qos)", config, re.MULTILINE)
    found = [] if cluster.max_queued is None else [cluster.max_queued - _queued(None)]
    if enforced:
        found += [most - _queued(qos) for most, qos in _submit_limits(cluster)]
    return Limits(array=array, free=max(0, min(found)) if found else None)


def _submit_limits(cluster: ClusterConfig) -> list[tuple[int, str | None]]:
    """MaxSubmitJobs of the user's associations, and MaxSubmitJobsPU of the QOS that is used."""
    user = getpass.getuser()
    shown = run_slurm(["scontrol", "show", "assoc_mgr", f"users={user}", "flags=assoc"]) or ""
    limits: list[tuple[int, str | None]] = []
    for record in re.split(r"(?=^ClusterName=)", shown, flags=re.MULTILINE):
        account = re.search(r"Account=(\S+) UserName=(\S+)\(", record)
        if account and account[2] == user and cluster.account in (None, account[1]):
            limits += [(int(n), None) for n in re.findall(r"\bMaxSubmitJobs=(\d+)", record)]
    if cluster.qos:
        limits += [(most, cluster.qos) for most in _qos_limits(cluster.qos)]
    return limits


def _qos_limits(qos: str) -> list[int]:
    """MaxSubmitJobsPU. The controller shows it only while the user has jobs in that QOS, so the
    accounts are asked first, which need not answer.
    """
    words = ["-n", "-P", "show", "qos", qos, "format=MaxSubmitPU"]
    told = run_slurm(["sacctmgr", *words])
    if told is None:
        shown = run_slurm(["scontrol", "show", "assoc_mgr", f"qos={qos}", "flags=qos"]) or ""
        return [int(n) for n in re.findall(r"\bMaxSubmitJobsPU=(\d+)", shown)]
    return [int(line) for line in told.split() if line.isdigit()]


def _queued(qos: str | None) -> int:
    """Tasks of this user in the queue, waiting or running."""
    only = ["-q", qos] if qos else []
    out = run_slurm(["squeue", "-h", "-r", "-u", getpass.getuser(), "-o", "%i", *only])
    return len((out or "").split())
