"""What a plan prints of the memory that its trials need."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ablate.plan import gib

if TYPE_CHECKING:
    from ablate.plan import Plan

__all__ = ["memory_line"]


def memory_line(plan: Plan) -> str:
    """Of the arm that needs most."""
    arm = max(plan.arms, key=lambda arm: arm.memory.peak)
    memory, has = arm.memory, arm.config["cluster"].get("gpu_memory")
    what = "GPU" if memory.device == "cuda" else "process on the CPU"
    of = f", of {memory.processes} that share a trial" if memory.processes > 1 else ""
    parts = ", ".join(f"{name} {gib(size)}" for name, size in memory.largest())
    limit = f"; cluster.gpu_memory={has}" if has else ""
    if memory.device == "cuda" and not has:
        limit = "; with cluster.gpu_memory=80G what cannot fit would be refused"
    return f"Memory of a {what}{of}: {gib(memory.peak)} at its peak in {arm.name} ({parts}){limit}."
