"""How the steps of an arm will be computed: the kernel of its attention, compiled or not.

Another road to the same function, so it is no difference between arms; but it costs or saves hours,
and what no machine could do is refused before it is queued. Without torch: what only the machine
knows is said as a condition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ablate.config.schema import TrialConfig
from ablate.errors import ConfigError, PlanError
from ablate.model.config import ModelConfig
from ablate.model.kernels import choose_all, refuse, summary, training_case

if TYPE_CHECKING:
    from ablate.plan.study_plan import PlannedArm

__all__ = ["attention", "check_roads", "road_lines"]

NAMES = {"cpu": "a CPU", "cuda": "CUDA", "mps": "MPS"}
MOST_NAMED = 4


def attention(config: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Kind of device to kernel to the reason; a kernel that is refused there is called refused.

    Raises:
        ConfigError: where it is refused on every kind of device that the trial may run on.
    """
    trial, model = _typed(config)
    found: dict[str, dict[str, str]] = {}
    refusals: list[ConfigError] = []
    for device in _devices(config):
        case = training_case(trial, model, device)
        try:
            refuse(model, case)
        except ConfigError as error:
            refusals.append(error)
            found[device] = {"refused": error.reason}
            continue
        found[device] = summary(choose_all(model, case))
    if len(refusals) == len(found):
        raise refusals[-1]
    return found


def check_roads(arms: Sequence[PlannedArm]) -> None:
    """Raises PlanError, with the arm's name, for what no machine could compute so."""
    for arm in arms:
        try:
            _ = arm.attention
        except ConfigError as error:
            raise PlanError(f"Arm {arm.name}: {error}") from error


def road_lines(arms: Sequence[PlannedArm]) -> list[str]:
    """For the foot of a plan; arms that are computed alike share a line."""
    alike: dict[str, list[str]] = {}
    for arm in arms:
        devices = arm.attention.items()
        told = "; ".join(f"on {NAMES[device]} {_said(kernels)}" for device, kernels in devices)
        alike.setdefault(told, []).append(arm.name)
    if len(alike) == 1:
        return [f"Attention: {next(iter(alike))}."]
    return [f"Attention of {_listed(names)}: {told}." for told, names in alike.items()]


def _said(kernels: Mapping[str, str]) -> str:
    return ", ".join(f"{kernel} ({reason})" for kernel, reason in kernels.items())


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= MOST_NAMED else f"{len(names)} arms"


def _typed(config: Mapping[str, Any]) -> tuple[TrialConfig, ModelConfig]:
    return TrialConfig.from_mapping(config), ModelConfig.from_mapping(config["model"])


def _devices(config: Mapping[str, Any]) -> tuple[str, ...]:
    name = config["train"]["device"]
    return ("cpu", "cuda") if name == "auto" else (name.partition(":")[0],)
