"""What a trial does about its own spikes, by name. The interface is `Observe` in `response.py`."""

from __future__ import annotations

from ablate.config.imports import is_import_path, load_object, users_own
from ablate.config.schema import SpikesConfig
from ablate.train.alarms import LowerRate, Rewind, Stop
from ablate.train.outliers import ClipUpdate, SkipBatch, SkipStep
from ablate.train.response import Observe, Seen, Silent

__all__ = ["RESPONSES", "Observe", "Seen", "build_response"]

RESPONSES: dict[str, type[Observe]] = {
    "observe": Silent,
    "skip_step": SkipStep,
    "skip_batch": SkipBatch,
    "rewind": Rewind,
    "lower_lr": LowerRate,
    "clip_update": ClipUpdate,
    "stop": Stop,
}


def build_response(config: SpikesConfig, steps: int) -> Observe:
    """The response that `config` names, for a trial of `steps` steps."""
    if is_import_path(config.name):
        kind = load_object("spikes.name", config.name)
        with users_own("spikes.name", config.name):
            return kind(config, steps)
    return RESPONSES[config.name](config, steps)
