"""A schedule of the user's own, and what it must be called with."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING

from ablate.config.imports import load_object
from ablate.config.schema import ScheduleConfig
from ablate.config.typed import require
from ablate.errors import ConfigError
from ablate.train.stages import Rate

if TYPE_CHECKING:
    from ablate.train.schedule import Horizon

__all__ = ["own_shape"]


def own_shape(path: str) -> Callable[[ScheduleConfig, Horizon], Rate]:
    """The function of the user's own.

    Raises:
        ConfigError: it does not take (config, horizon).
    """
    shape = load_object("schedule.name", path)
    remedy = (
        "Write it as mine(config, horizon), which returns a function from the step (1, 2, ...) to "
        "the learning rate; horizon has peak, steps and warmup (docs/training.md)"
    )
    try:
        inspect.signature(shape).bind(None, None)
    except TypeError as error:
        reason = f"cannot be called with (config, horizon): {error}"
        raise ConfigError("schedule.name", path, reason, remedy) from error

    def checked(config: ScheduleConfig, horizon: Horizon) -> Rate:
        rate = shape(config, horizon)
        require(callable(rate), "schedule.name", path, f"returned {rate!r}, no function", remedy)
        return rate

    return checked
