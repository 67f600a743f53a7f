"""Whether a model has the tokens that the tokenizer will make."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ablate.config.schema import DataConfig
from ablate.errors import ConfigError, PlanError

if TYPE_CHECKING:
    from ablate.plan.study_plan import PlannedArm

__all__ = ["check_vocabularies", "check_vocabulary"]


def check_vocabularies(arms: Iterable[PlannedArm]) -> None:
    """Raises PlanError, with the arm's name in front."""
    for arm in arms:
        try:
            check_vocabulary(arm.config)
        except ConfigError as error:
            raise PlanError(f"Arm {arm.name}: {error}") from error


def check_vocabulary(config: Mapping[str, Any]) -> None:
    """Of text that is certainly tokenised; what lies at a data.path may be tokens already.

    Raises:
        ConfigError: naming the model's field.
    """
    data = DataConfig(**config["data"])
    if data.path is None:
        data.check_vocabulary(config["model"])
