"""One trial without a sweep (`ablate train ...`): its arm is named after what was overridden."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ablate.config.compose import Composer
from ablate.config.fingerprint import NESTED, TOP_LEVEL
from ablate.design import BASELINE, slug
from ablate.errors import ConfigError
from ablate.plan.canonical import resolve
from ablate.plan.fitting import refuse_too_large
from ablate.plan.sizing import costs
from ablate.plan.study_plan import PlannedArm, PlannedTrial
from ablate.plan.trials import trial_of
from ablate.plan.vocabulary import check_vocabulary
from ablate.plan.without_effect import (
    refuse_repeated_groups,
    refuse_without_effect,
    without_effect,
)

__all__ = ["DEFAULT_STUDY", "SingleTrial", "arm_name", "single_trial"]

DEFAULT_STUDY = "train"
LONGEST_NAME = 80

NOT_OF_AN_ARM = {
    *TOP_LEVEL,
    "seed",
    "optim.lr",
    "data.path",
    "data.validation_path",
    "evaluate.shifted_data",
    "hydra",
    *(f"{section}.{name}" for section, names in NESTED.items() for name in names),
}
"""Keys that say which trial, how it runs or who watches; the fingerprint tells data apart."""


@dataclass(frozen=True, kw_only=True)
class SingleTrial:
    study: str
    arm: PlannedArm
    trial: PlannedTrial
    without_effect: dict[str, str] = field(default_factory=dict)
    """Overrides that all trials of the multirun have, and this one never reads; and why."""


def single_trial(
    overrides: Sequence[str],
    *,
    cwd: Path | None = None,
    common: Collection[str] = (),
    of_sweep: bool = False,
) -> SingleTrial:
    """The trial of `ablate train` with these overrides.

    Args:
        overrides: Hydra's grammar.
        cwd: where the user's own conf/ is looked for.
        common: overrides that every trial of the study has; they are left out of the arm's name.
        of_sweep: whether it is a trial that a sweep has planned; `sweep=NAME` may be named then.

    Raises:
        ConfigError: naming the field.
    """
    for override in () if of_sweep else overrides:
        key = _key(override)
        if key.split(".")[0] == "sweep":
            value = override.partition("=")[2]
            remedy = "Use `ablate plan` and `ablate launch` with a sweep"
            raise ConfigError(key, value, "a single trial has no sweep", remedy)
    composer = Composer(cwd)
    if not of_sweep:
        refuse_repeated_groups(overrides, composer)
    config = resolve(composer.compose(list(overrides)))
    inert = {} if of_sweep else without_effect(config, overrides, composer)
    refuse_without_effect({line: why for line, why in inert.items() if line not in common})
    check_vocabulary(config)
    study = config["study"] or DEFAULT_STUDY
    config["study"] = study
    name = arm_name(overrides, common=common)
    given = any(_key(o) == "optim.lr" for o in overrides if o not in common)
    lr = config["optim"]["lr"] if given else None
    parameters, flops = costs(config)
    own = tuple(o for o in overrides if _is_of_arm(_key(o)))
    arm = PlannedArm(
        name=name,
        levels={_key(o): o.partition("=")[2] for o in own if o not in common},
        overrides=own,
        reference=None,
        config=config,
        diff={},
        change={},
        parameters=parameters,
        flops_per_token=flops,
    )
    refuse_too_large([arm])
    trial = trial_of(name, config, lr, varied=given)
    return SingleTrial(study=study, arm=arm, trial=trial, without_effect=inert)


def arm_name(overrides: Sequence[str], *, common: Collection[str] = ()) -> str:
    """`<key>-<value>` of the arm's overrides, joined by `+`, in the order of keys; or `baseline`.

    >>> arm_name(["seed=3", "position=rope", "model.norm_after=true"])
    'norm_after-true+position-rope'
    """
    last: dict[str, str] = {}
    for override in overrides:
        if override not in common and _is_of_arm(_key(override)):
            last[_key(override)] = override.partition("=")[2]
    parts = [
        slug(f"{key.rpartition('.')[2]}-{_bare(value)}") for key, value in sorted(last.items())
    ]
    name = "+".join(parts)
    if len(name) > LONGEST_NAME:
        digest = hashlib.sha256(name.encode()).hexdigest()[:8]
        name = f"{name[: LONGEST_NAME - 9]}-{digest}"
    return name or BASELINE


def _key(override: str) -> str:
    return override.partition("=")[0].lstrip("+~")


def _bare(value: str) -> str:
    return re.sub(r"['\"\[\]{}]", "", value)


def _is_of_arm(key: str) -> bool:
    return key not in NOT_OF_AN_ARM and key.split(".")[0] not in NOT_OF_AN_ARM
