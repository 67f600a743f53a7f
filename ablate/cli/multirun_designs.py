"""Designs inside a plain multirun: what is swept on the command line are factors, and a design
makes arms of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ablate.config.compose import Composer
from ablate.errors import AblateError, ConfigError, show
from ablate.plan import Plan, difference, plan_written, single_trial
from ablate.plan.planning import sweep_section

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

__all__ = ["DesignedRun", "jobs_of", "plan_multirun", "read_overrides", "swept_values"]


@dataclass(kw_only=True)
class DesignedRun:
    """A command line, sorted by what a sweep makes of it."""

    sweep: str | None = None
    """The file of sweeps/ that is named, if any."""
    of_sweep: list[str] = field(default_factory=list)
    """Overrides of the `sweep:` section, `design=...` among them."""
    base: list[str] = field(default_factory=list)
    """Overrides of every arm."""
    factors: dict[str, list[str | None]] = field(default_factory=dict)
    seeds: list[int] | None = None
    rates: list[float] | None = None


def plan_multirun(parsed: Sequence[Override], study: str) -> tuple[Plan, list[list[str]]]:
    """The plan, and for each of its trials the overrides of Hydra's job.

    Args:
        parsed: the command line without Hydra's own overrides.
        study: the name of the study, unless the overrides name it.

    Raises:
        ConfigError: for an override that cannot be a factor.
        PlanError: for what would not be an honest comparison.
    """
    composer = Composer()
    given = read_overrides(parsed, composer)
    first = [f"sweep={given.sweep}"] if given.sweep else []
    written, notes = sweep_section([*first, *given.of_sweep, *given.base], composer)
    section = _section(written or {}, given)
    plan = plan_written(section, given.sweep or study, first, given.base, composer, notes)
    return plan, jobs_of(plan, first)


def read_overrides(parsed: Sequence[Override], composer: Composer) -> DesignedRun:
    """What is swept becomes a factor, but for seeds and learning rates, which every arm tries."""
    given = DesignedRun()
    for override in parsed:
        key, line = override.key_or_group, override.input_line or ""
        root, swept = key.partition(".")[0], override.is_sweep_override()
        if root in ("sweep", "design"):
            if swept:
                remedy = "A list is [1,2]; two sweeps or designs are two studies"
                raise ConfigError(key, _text(line), "cannot itself be swept", remedy)
            if key == "sweep":
                given.sweep = str(override.value()) if override.value() is not None else None
            else:
                plain = override.is_add() or override.is_force_add() or key == "design"
                given.of_sweep.append(line if plain else f"++{line}")
        elif key == "seed":
            given.seeds = [_number(int, key, v) for v in swept_values(override, composer)]
        elif key == "optim.lr" and swept:
            given.rates = [_number(float, key, v) for v in swept_values(override, composer)]
        elif swept:
            name = key.rpartition(".")[2]
            levels = [
                None if v == "null" and key in composer.groups() else f"{_key(override)}={v}"
                for v in swept_values(override, composer)
            ]
            given.factors[key if name in given.factors else name] = levels
        else:
            given.base.append(line)
    return given


def swept_values(override: Override, composer: Composer) -> list[str]:
    """The values of one override as they would be typed; one where it is not swept.

    Raises:
        ConfigError: for an interval, which has no end of values.
    """
    from hydra.core.override_parser.types import Glob

    if not override.is_sweep_override():
        return [override.get_value_element_as_str()]
    value = override.value()
    if isinstance(value, Glob):
        return value.filter(composer.choices(override.key_or_group))
    if not override.is_discrete_sweep():
        reason = "has endlessly many values, and a design needs levels"
        raise ConfigError(override.key_or_group, _text(override.input_line or ""), reason,
                          "List them: a,b,c")  # fmt: skip
    return list(override.sweep_string_iterator())


def _section(written: Mapping[str, Any], given: DesignedRun) -> dict[str, Any]:
    """The `sweep:` section, with what the command line says in its place."""
    section = dict(written)
    if given.factors:
        section["factors"] = {**(section.get("factors") or {}), **given.factors}
    if given.seeds is not None:
        section["seeds"] = given.seeds
    if given.rates is not None:
        section["lr"] = given.rates
    if not section.get("question"):
        names = " and ".join(section.get("factors") or {}) or "nothing"
        section["question"] = f"What does changing {names} do?"
    return section


def jobs_of(plan: Plan, first: Sequence[str]) -> list[list[str]]:
    """For each trial the overrides that compose to its very configuration.

    What matching, budget and bracket decided is spelled out as values.
    """
    jobs = []
    for trial in plan.trials:
        arm = plan.arm(trial.arm)
        lines = _last_of_each(
            [*first, *plan.base, *arm.overrides, f"seed={trial.seed}", f"study={plan.study}"]
        )
        made = single_trial(lines, of_sweep=True).trial.config
        lines += [f"{k}={_value(v)}" for k, (_, v) in difference(made, trial.config).items()]
        if single_trial(lines, of_sweep=True).trial.fingerprint != trial.fingerprint:
            raise AblateError(
                f"Trial {trial.id} cannot be written as overrides, so Hydra cannot run it. "
                "Run the sweep with `ablate launch`."
            )
        jobs.append(lines)
    return jobs


def _last_of_each(lines: Sequence[str]) -> list[str]:
    """Without what a later override of the same key replaces: Hydra takes a group once."""
    last = {line.partition("=")[0]: i for i, line in enumerate(lines)}
    return [line for i, line in enumerate(lines) if last[line.partition("=")[0]] == i]


def _value(value: Any) -> str:
    """In Hydra's grammar."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, list):
        return "[" + ",".join(_value(v) for v in value) + "]"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{k}:{_value(v)}" for k, v in value.items()) + "}"
    return show(value)


def _key(override: Override) -> str:
    return override.get_key_element()


def _text(line: str) -> str:
    return line.partition("=")[2]


def _number(kind: type, key: str, text: str) -> Any:
    try:
        return kind(text)
    except ValueError:
        raise ConfigError(key, text, "is no number") from None
