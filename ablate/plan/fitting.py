"""What cannot fit a device is refused, with what dominates and what would help."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ablate.config.schema import ClusterConfig, TrialConfig
from ablate.config.typed import build
from ablate.errors import ConfigError, PlanError
from ablate.plan.canonical import flat, section, typed
from ablate.plan.memory import Memory, memory_of

if TYPE_CHECKING:
    from ablate.plan.study_plan import PlannedArm

__all__ = ["gib", "offered", "refuse_too_large", "too_large"]

UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
MOST_GPUS = 1024
"""More are not proposed."""
ALONE = ("loss.chunk", "train.activation_checkpointing")
"""Changes that no other one is built on."""
OF_A_NODE = 8
"""GPUs that a proposal takes a node to have, where the configuration does not tell."""


def refuse_too_large(arms: Iterable[PlannedArm]) -> None:
    """Raises PlanError for the first arm that `cluster.gpu_memory` cannot hold; where that is
    null, nothing is known, and nothing is refused.
    """
    for arm in arms:
        if (offer := offered(arm.config)) is None:
            continue
        memory = arm.memory
        if memory.device == "cuda" and memory.peak > offer:
            raise PlanError(f"Arm {arm.name} {too_large(arm.config, memory)}")


def offered(config: Mapping[str, Any]) -> int | None:
    """Bytes of GPU memory that a process of the trial may use; trials that share a GPU share it."""
    cluster = build(ClusterConfig, config.get("cluster") or {}, "cluster")
    if cluster.gpu_memory is None:
        return None
    number, unit = cluster.gpu_memory[:-1], cluster.gpu_memory[-1]
    return int(number) * UNITS[unit] // _sharing(cluster)


def _packed(cluster: ClusterConfig, pack: int) -> dict[str, int]:
    """The fields of fewer trials in an allocation, which bound those of a stack."""
    stack = {"cluster.stack": pack} if (cluster.stack or 1) > pack else {}
    return {"cluster.pack": pack, **stack}


def _sharing(cluster: ClusterConfig) -> int:
    return max(1, cluster.pack // max(1, cluster.gpus))


def too_large(
    config: Mapping[str, Any], memory: Memory, here: int | None = None, where: str = ""
) -> str:
    """The sentences about it, after the arm's name.

    Args:
        config: of the arm.
        memory: that it needs.
        here: bytes of this machine's device; None: `cluster.gpu_memory` is what there is.
        where: what is said of this machine.
    """
    trial = typed(config)
    if here is None:
        sharing = _sharing(trial.cluster)
        where = f"cluster.gpu_memory={trial.cluster.gpu_memory} offers {gib(offered(config) or 0)}"
        where += f" to each of {sharing} trials on it" if sharing > 1 else ""
    each = f"in each of {memory.processes} processes" if memory.processes > 1 else "at its peak"
    parts = ", ".join(f"{what} {gib(size)}" for what, size in memory.largest())
    help = _help(config, trial, memory, here)
    return f"needs {gib(memory.peak)} {each}, and {where}. Most of it: {parts}. {help}."


def gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 / 10 else f"{size / 2**20:.1f} MiB"


def _help(config: Mapping[str, Any], trial: TrialConfig, memory: Memory, here: int | None) -> str:
    """The overrides that make it fit, the cheapest first, or that none do."""
    own = dict(flat(section(trial)))

    def fits(changes: Mapping[str, Any], processes: int) -> bool:
        changed = _applied(config, changes)
        if not _accepted(changed, processes):
            return False
        room = offered(changed) if here is None else here
        return memory_of(changed, processes=processes, device=memory.device).peak <= (room or 0)

    for changes, processes in _remedies(config, trial, memory):
        if fits(changes, processes):
            for field in ALONE:  # a change that came first may be needless beside those after it
                fewer = {k: v for k, v in changes.items() if k != field}
                changes = fewer if fewer and fits(fewer, processes) else changes
            words = [_word(field, value) for field, value in changes.items() if own[field] != value]
            said = f"It would fit with {' '.join(words)}"
            if processes > memory.processes and trial.cluster.name != "slurm":
                said += f", in {processes} processes, which cluster=slurm or torchrun starts"
            return said
    most = f", up to {MOST_GPUS} GPUs" if memory.device == "cuda" else ""
    return (
        f"Nothing that the plan knows of makes it fit{most}: take a smaller model or shorter "
        "sequences"
    )


def _remedies(
    config: Mapping[str, Any], trial: TrialConfig, memory: Memory
) -> Iterator[tuple[dict[str, Any], int]]:
    """Those of `_more`, each also with gradients that are divided at every micro-batch.

    Yields:
        Fields of the configuration to their new values, and the processes that share it then.
    """
    none: tuple[dict[str, Any], int] = ({}, memory.processes)
    for changes, processes in itertools.chain([none], _more(config, trial, memory)):
        if changes:
            yield changes, processes
        name = changes.get("parallel.name", trial.parallel.name)
        rows = changes.get("train.micro_batch_size", trial.train.micro_batch_size)
        if name in ("fsdp", "hsdp") and rows is not None and rows < trial.train.batch_size:
            yield {**changes, "parallel.grad_sync_mode": "micro_batch"}, processes


def _more(
    config: Mapping[str, Any], trial: TrialConfig, memory: Memory
) -> Iterator[tuple[dict[str, Any], int]]:
    """Ever more of them together: chunks of logits, micro-batches, checkpointing, fewer trials on
    a GPU, weights that are divided, more GPUs.
    """
    train, cluster, processes = trial.train, trial.cluster, memory.processes
    changes: dict[str, Any] = {}
    if not trial.loss.chunk:
        changes = {"loss.chunk": 1024}
        yield changes, processes
    rows = train.micro_batch_size or train.batch_size
    for size in reversed(_micro_batches(train.batch_size, processes)):
        if size < rows:
            rows = size
            changes = {**changes, "train.micro_batch_size": rows}
            yield changes, processes
    if train.activation_checkpointing != "whole_layer":
        changes = {**changes, "train.activation_checkpointing": "whole_layer"}
        yield changes, processes
    if memory.device == "cuda" and _sharing(cluster) > 1:
        pack = max(1, cluster.gpus)
        changes = {**changes, **_packed(cluster, pack)}
        yield changes, processes
    if trial.parallel.name != "fsdp":
        fsdp = {**changes, "parallel.name": "fsdp"}
        if _accepted(_applied(config, {"parallel.name": "fsdp"}), processes):
            changes = fsdp
        elif trial.parallel.name == "none":  # muon, fp16, ... divide batches alone
            changes = {**changes, "parallel.name": "ddp"}
        if processes > 1:
            yield changes, processes
    if memory.device == "cpu":
        return
    if cluster.pack > 1:
        changes = {**changes, **_packed(cluster, 1)}
    node = cluster.gpus if cluster.nodes > 1 else max(OF_A_NODE, cluster.gpus)
    for gpus in range(processes + 1, MOST_GPUS + 1):
        if train.batch_size % gpus or (gpus > node and gpus % node):
            continue
        place = {"cluster.gpus": min(gpus, node), "cluster.nodes": max(1, gpus // node)}
        # A pass takes as many rows of every process; fewer than before, where that is possible.
        size = next(n for n in _micro_batches(train.batch_size, gpus) if n >= rows)
        yield {**changes, "train.micro_batch_size": size, **place}, gpus


def _micro_batches(batch_size: int, processes: int) -> list[int]:
    """Sizes into which the batch can be cut, and each of which the processes can share."""
    sizes = range(processes, batch_size + 1, processes)
    return [size for size in sizes if batch_size % size == 0]


def _applied(config: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    changed = dict(config)
    for field, value in changes.items():
        part, _, name = field.partition(".")
        changed[part] = {**changed.get(part, {}), name: value}
    return changed


def _accepted(config: Mapping[str, Any], processes: int) -> bool:
    """Whether so many processes may train it so."""
    try:
        trial = typed(config)
        trial.parallel.check(trial.train, processes)
    except ConfigError:
        return False
    return True


def _word(field: str, value: Any) -> str:
    return f"{field.removesuffix('.name')}={value}"
