"""How the steps of an arm will be computed: the kernel of its attention, compiled or not.

The function is the same, so it is no difference between arms; but it costs or saves hours, and what
no machine could do is refused before it is queued. Without torch: what only the machine knows is
said as a condition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ablate.config.schema import TrialConfig
from ablate.errors import ConfigError, PlanError
from ablate.model.compile_rule import decide
from ablate.model.config import ModelConfig
from ablate.model.kernel_case import training_case
from ablate.model.kernels import choose_all, refuse, summary
from ablate.plan.canonical import typed

if TYPE_CHECKING:
    from ablate.plan.study_plan import PlannedArm

__all__ = ["attention", "check_kernels", "compiled", "kernel_lines"]

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


def compiled(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Kind of device to whether the steps are compiled there, and why."""
    trial, model = _typed(config)
    decisions = {device: decide(trial, model, device) for device in _devices(config)}
    return {k: {"compiled": d.compiled, "reason": d.reason} for k, d in decisions.items()}


def check_kernels(arms: Sequence[PlannedArm]) -> None:
    """Raises PlanError, with the arm's name, for what no machine could compute so."""
    for arm in arms:
        try:
            _ = arm.attention
        except ConfigError as error:
            raise PlanError(f"Arm {arm.name}: {error}") from error


def kernel_lines(arms: Sequence[PlannedArm]) -> list[str]:
    """For the foot of a plan; arms that are computed alike share a line."""
    kernels = {arm.name: _each_device(arm.attention, _said) for arm in arms}
    lines = _alike("Attention", kernels)
    if any(arm.config["train"]["compile"] for arm in arms):
        steps = {arm.name: _each_device(arm.compiled, _told) for arm in arms}
        lines += _alike("Steps", steps)
    return lines


def _alike(what: str, told: Mapping[str, str]) -> list[str]:
    """A line for each text, with the arms that it is true of."""
    arms: dict[str, list[str]] = {}
    for name, text in told.items():
        arms.setdefault(text, []).append(name)
    if len(arms) == 1:
        return [f"{what}: {next(iter(arms))}."]
    return [f"{what} of {_listed(names)}: {text}." for text, names in arms.items()]


def _each_device(found: Mapping[str, Any], say: Callable[[Any], str]) -> str:
    return "; ".join(f"on {NAMES[device]} {say(value)}" for device, value in found.items())


def _told(decision: Mapping[str, Any]) -> str:
    return f"{'compiled' if decision['compiled'] else 'not compiled'} ({decision['reason']})"


def _said(kernels: Mapping[str, str]) -> str:
    return ", ".join(f"{kernel} ({reason})" for kernel, reason in kernels.items())


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= MOST_NAMED else f"{len(names)} arms"


def _typed(config: Mapping[str, Any]) -> tuple[TrialConfig, ModelConfig]:
    # The model apart: a trial's section of that name is a mapping, whose fields it does not know.
    return typed(config), ModelConfig.from_mapping(config["model"])


def _devices(config: Mapping[str, Any]) -> tuple[str, ...]:
    name = config["train"]["device"]
    return ("cpu", "cuda") if name == "auto" else (name.partition(":")[0],)
