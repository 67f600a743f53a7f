"""Arms to trials: every arm at every seed and learning rate, in the order in which they run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ablate.config.fingerprint import fingerprint, trial_id
from ablate.errors import PlanError
from ablate.plan.study_plan import PlannedArm, PlannedTrial
from ablate.plan.sweep import SweepConfig

__all__ = ["trial_of", "trials_of"]

LONGEST_ID = 255
"""Bytes of a name that a file system takes."""


def trials_of(arms: Sequence[PlannedArm], sweep: SweepConfig) -> list[PlannedTrial]:
    """The pilot, then seed by seed, so that a study cut short has whole blocks."""
    cells = [(arms[0], seed) for seed in sweep.pilot_seeds]
    cells += [(arm, seed) for seed in sweep.seed_list for arm in arms]
    cells = list({(arm.name, seed): (arm, seed) for arm, seed in cells}.values())
    return [
        trial_of(arm.name, {**arm.config, "seed": seed}, rate, varied=len(rates) > 1)
        for arm, seed in cells
        for rates in [sweep.rates_of(arm.name)]
        for rate in rates or [None]
    ]


def trial_of(arm: str, config: dict[str, Any], rate: float | None, *, varied: bool) -> PlannedTrial:
    """A trial at this peak rate (None: the configuration's own); `varied`: of several rates."""
    if rate is not None:
        config = {**config, "optim": {**config["optim"], "lr": rate}}
    lr = rate if varied else None
    id = trial_id(arm, config, lr=lr)
    if len(id.encode()) > LONGEST_ID:
        raise PlanError(
            f"Arm {arm}: its trials would be called {id[:40]}... ({len(id.encode())} bytes), and a "
            f"folder's name has at most {LONGEST_ID}. Give the factors and their levels shorter "
            "names."
        )
    return PlannedTrial(
        id=id,
        arm=arm,
        seed=config["seed"],
        lr=lr,
        config=config,
        fingerprint=fingerprint(config),
    )
