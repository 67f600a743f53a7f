"""What cannot fit a device is refused, with what dominates and what would help."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ablate.errors import PlanError
from ablate.plan.memory import Memory, memory_of

if TYPE_CHECKING:
    from ablate.plan.study_plan import PlannedArm

__all__ = ["gib", "offered", "refuse_too_large", "too_large"]

UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
MOST_GPUS = 1024
"""More are not proposed."""


def refuse_too_large(arms: Iterable[PlannedArm]) -> None:
    """Raises PlanError for the first arm that `cluster.gpu_memory` cannot hold; where that is
    null, nothing is known, and nothing is refused.
    """
    for arm in arms:
        offer, memory = offered(arm.config), arm.memory
        if offer is None:
            continue
        if memory.device == "cuda" and memory.peak > offer:
            raise PlanError(f"Arm {arm.name} {too_large(arm.config, memory, offer)}")


def offered(config: Mapping[str, Any]) -> int | None:
    """Bytes of GPU memory that a process of the trial may use; trials that share a GPU share it."""
    cluster = config["cluster"]
    text = cluster.get("gpu_memory")
    if text is None:
        return None
    sharing = max(1, cluster["pack"] // max(1, cluster["gpus"]))
    return int(text[:-1]) * UNITS[text[-1]] // sharing


def too_large(
    config: Mapping[str, Any], memory: Memory, offer: int, where: str | None = None
) -> str:
    """The sentences about it, after the arm's name."""
    cluster = config["cluster"]
    if where is None:
        sharing = max(1, cluster["pack"] // max(1, cluster["gpus"]))
        where = f"cluster.gpu_memory={cluster['gpu_memory']} offers {gib(offer)}"
        where += f" to each of {sharing} trials on it" if sharing > 1 else ""
    each = f"in each of {memory.processes} processes" if memory.processes > 1 else "at its peak"
    parts = ", ".join(f"{what} {gib(size)}" for what, size in memory.largest())
    words = _remedy(config, memory, offer)
    help = (
        f"It would fit with {' '.join(words)}"
        if words
        else f"Nothing that the plan knows of makes it fit, up to {MOST_GPUS} GPUs: take a smaller "
        "model or a shorter sequence"
    )
    return f"needs {gib(memory.peak)} {each}, and {where}. Most of it: {parts}. {help}."


def gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 / 10 else f"{size / 2**20:.1f} MiB"


def _remedy(config: Mapping[str, Any], memory: Memory, offer: int) -> list[str]:
    """Overrides that make it fit, the cheapest first; none where none do."""
    for words, changed, processes in _remedies(config, memory.processes):
        if memory_of(changed, processes=processes, device=memory.device).peak <= offer:
            return words
    return []


def _remedies(
    config: Mapping[str, Any], processes: int
) -> Iterator[tuple[list[str], dict[str, Any], int]]:
    """Ever more of them together: chunks of logits, micro-batches, checkpointing, GPUs."""
    words: list[str] = []
    changed = {
        name: dict(part) if isinstance(part, Mapping) else part for name, part in config.items()
    }
    if not changed["loss"]["chunk"]:
        changed["loss"]["chunk"] = 1024
        words = [*words, "loss.chunk=1024"]
        yield words, changed, processes
    train = changed["train"]
    rows = train["micro_batch_size"] or train["batch_size"]
    while rows > processes and rows % 2 == 0 and (rows // 2) % processes == 0:
        rows //= 2
        train["micro_batch_size"] = rows
        yield [*words, f"train.micro_batch_size={rows}"], changed, processes
    if train["micro_batch_size"] != config["train"]["micro_batch_size"]:
        words = [*words, f"train.micro_batch_size={rows}"]
    if train["activation_checkpointing"] != "whole_layer":
        train["activation_checkpointing"] = "whole_layer"
        words = [*words, "train.activation_checkpointing=whole_layer"]
        yield words, changed, processes
    if config["parallel"]["name"] != "fsdp":
        words = [*words, "parallel=fsdp"]
        changed["parallel"] = {**changed["parallel"], "name": "fsdp"}
        if processes > 1:
            yield words, changed, processes
    gpus = processes
    while gpus < MOST_GPUS:
        gpus *= 2
        if train["batch_size"] % gpus:
            return
        train["micro_batch_size"] = None if rows > train["batch_size"] else max(rows, gpus)
        few, nodes = min(gpus, 8), max(1, gpus // 8)
        over = [w for w in words if not w.startswith("train.micro")]
        over += [f"train.micro_batch_size={train['micro_batch_size']}"]
        over += [f"cluster.gpus={few}"] + ([f"cluster.nodes={nodes}"] if nodes > 1 else [])
        yield over, changed, gpus
