"""What cannot fit a device is refused, with what dominates and what would help."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ablate.config.schema import ClusterConfig
from ablate.errors import ConfigError, PlanError
from ablate.plan.canonical import flat, section, typed
from ablate.plan.memory import Memory, memory_of

if TYPE_CHECKING:
    from ablate.plan.study_plan import PlannedArm

__all__ = ["gib", "offered", "refuse_too_large", "too_large"]

UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
MOST_GPUS = 1024
"""More are not proposed."""
OF_A_NODE = 8
"""GPUs that a proposal takes a node to have."""


def refuse_too_large(arms: Iterable[PlannedArm]) -> None:
    """Raises PlanError for the first arm that `cluster.gpu_memory` cannot hold; where that is
    null, nothing is known, and nothing is refused.
    """
    for arm in arms:
        if (offer := offered(arm.config)) is None:
            continue
        memory = arm.memory
        if memory.device == "cuda" and memory.peak > offer:
            raise PlanError(f"Arm {arm.name} {too_large(arm.config, memory, offer)}")


def offered(config: Mapping[str, Any]) -> int | None:
    """Bytes of GPU memory that a process of the trial may use; trials that share a GPU share it."""
    cluster = typed(config).cluster
    if cluster.gpu_memory is None:
        return None
    number, unit = cluster.gpu_memory[:-1], cluster.gpu_memory[-1]
    return int(number) * UNITS[unit] // _sharing(cluster)


def _sharing(cluster: ClusterConfig) -> int:
    return max(1, cluster.pack // max(1, cluster.gpus))


def too_large(
    config: Mapping[str, Any], memory: Memory, offer: int, where: str | None = None
) -> str:
    """The sentences about it, after the arm's name."""
    if where is None:
        cluster = typed(config).cluster
        sharing = _sharing(cluster)
        where = f"cluster.gpu_memory={cluster.gpu_memory} offers {gib(offer)}"
        where += f" to each of {sharing} trials on it" if sharing > 1 else ""
    each = f"in each of {memory.processes} processes" if memory.processes > 1 else "at its peak"
    parts = ", ".join(f"{what} {gib(size)}" for what, size in memory.largest())
    words = _remedy(config, memory, offer)
    most = f", up to {MOST_GPUS} GPUs" if memory.device == "cuda" else ""
    help = (
        f"It would fit with {' '.join(words)}"
        if words
        else f"Nothing that the plan knows of makes it fit{most}: take a smaller model or shorter "
        "sequences"
    )
    return f"needs {gib(memory.peak)} {each}, and {where}. Most of it: {parts}. {help}."


def gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 / 10 else f"{size / 2**20:.1f} MiB"


def _remedy(config: Mapping[str, Any], memory: Memory, offer: int) -> list[str]:
    """Overrides that make it fit, the cheapest first; none where none do."""
    own = dict(flat(section(typed(config))))
    for changes, processes in _remedies(config, memory):
        changed = _applied(config, changes)
        if not _accepted(changed, processes):
            continue
        if memory_of(changed, processes=processes, device=memory.device).peak <= offer:
            return [_word(field, value) for field, value in changes.items() if own[field] != value]
    return []


def _remedies(config: Mapping[str, Any], memory: Memory) -> Iterator[tuple[dict[str, Any], int]]:
    """Ever more of them together: chunks of logits, micro-batches, checkpointing, GPUs.

    Yields:
        Fields of the configuration to their new values, and the processes that share it then.
    """
    trial, processes = typed(config), memory.processes
    train, cluster = trial.train, trial.cluster
    changes: dict[str, Any] = {}
    if not trial.loss.chunk:
        changes = {"loss.chunk": 1024}
        yield changes, processes
    rows = train.micro_batch_size or train.batch_size
    while rows > processes and rows % 2 == 0 and (rows // 2) % processes == 0:
        rows //= 2
        changes = {**changes, "train.micro_batch_size": rows}
        yield changes, processes
    if train.activation_checkpointing != "whole_layer":
        changes = {**changes, "train.activation_checkpointing": "whole_layer"}
        yield changes, processes
    if trial.parallel.name != "fsdp":
        changes = {**changes, "parallel.name": "fsdp"}
        if processes > 1:
            yield changes, processes
    if memory.device == "cpu":
        return
    if cluster.pack > 1:  # each on GPUs of its own, which are whole then
        changes = {**changes, "cluster.pack": 1, "cluster.stack": 1}
    gpus = processes
    while 2 * gpus <= MOST_GPUS and train.batch_size % (2 * gpus) == 0:
        gpus *= 2
        few, nodes = min(gpus, OF_A_NODE), max(1, gpus // OF_A_NODE)
        if few * nodes != gpus:
            continue
        # A pass takes as many rows of every process; fewer than before, where that is possible.
        sizes = (n for n in range(gpus, train.batch_size + 1, gpus) if train.batch_size % n == 0)
        size = next(n for n in sizes if n >= rows)
        place = {"cluster.gpus": few, "cluster.nodes": nodes}
        yield {**changes, "train.micro_batch_size": size, **place}, gpus


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
