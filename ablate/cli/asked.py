"""What `plan` and `launch` are asked for: a sweep, or a study that was frozen before."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ablate.config.compose import Composer
from ablate.config.options import locate
from ablate.config.overrides import parse_override
from ablate.config.sweep_file import sweep_of_file
from ablate.errors import ConfigError, PlanError, StudyError
from ablate.plan import Plan, frozen_plan, plan_sweep, refuse_too_large, resolve
from ablate.rundir import StudyDir, find_study

__all__ = ["asked_plan"]

WHERE = {"cluster": "cluster", "resources": "cluster", "site": "cluster", "track": "track"}
"""What says where a trial runs and who watches, not what it is, and the section that it fills."""


def asked_plan(words: Sequence[str]) -> Plan:
    """The plan of `sweep=NAME ...`, or of `STUDY ...`, where overrides only say where it runs.

    Raises:
        ConfigError: for an override that would change what is frozen.
    """
    names = [word for word in words if "=" not in word and not word.startswith(("~", "+"))]
    if names and any(word.startswith("sweep=") for word in words):
        raise PlanError(
            f"{names[0]!r} is no override (KEY=VALUE). Beside sweep=NAME every word is one; a "
            "study that was frozen is named alone."
        )
    if len(names) != 1:
        return plan_sweep(words)
    overrides = [word for word in words if word != names[0]]
    runs_dir, kept = "runs", []
    for line in overrides:
        override = parse_override(line)
        root = override.key.split("/")[0].split(".")[0]
        if root == "runs_dir":
            runs_dir = str(override.value)
        elif root in WHERE:
            kept.append(line)
        else:
            raise ConfigError(
                override.key,
                override.value,
                f"the study {names[0]} is frozen, and this would change what it is",
                "Here only cluster, resources, site, track and runs_dir can be said; `ablate "
                "extend` adds seeds and arms",
            )
    plan = frozen_plan(_study(names[0], runs_dir))
    return _placed(plan, kept) if kept else plan


def _study(word: str, runs_dir: str) -> StudyDir:
    try:
        return find_study(word, runs_dir)
    except StudyError as error:
        cwd = Path.cwd()
        name = sweep_of_file(word, cwd)
        if locate("sweep", name, cwd) is None:
            raise
        said = f"{error} There is a sweep of that name: write sweep={name}."
        raise StudyError(said) from None


def _placed(plan: Plan, overrides: Sequence[str]) -> Plan:
    """The plan with these sections in every trial; the fingerprints do not see them."""
    placed: dict[str, Any] = resolve(Composer().compose(overrides))
    roots = (parse_override(o).key.split("/")[0].split(".")[0] for o in overrides)
    where = {WHERE[root]: placed[WHERE[root]] for root in roots}
    arms = [dataclasses.replace(a, config={**a.config, **where}) for a in plan.arms]
    trials = [dataclasses.replace(t, config={**t.config, **where}) for t in plan.trials]
    refuse_too_large(arms)
    return dataclasses.replace(plan, arms=arms, trials=trials)
