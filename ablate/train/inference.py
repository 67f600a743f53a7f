"""How the trained model reads with bounded and preheated caches, measured once.

It needs the final weights, so what was measured is noted in the attempt's record before they may
go: a trial that is killed after its last step, wherever, comes to the same numbers.
"""

from __future__ import annotations

import torch

from ablate.data import stream_tokens
from ablate.errors import StudyError
from ablate.rundir import Attempt, TrialDir
from ablate.train.checkpoint import read_train
from ablate.train.long_context import measure_cache
from ablate.train.preheating import measure_preheating
from ablate.train.run import Run

__all__ = ["measure_inference"]


def measure_inference(run: Run, attempt: Attempt) -> dict[str, float]:
    """`cache/...` and `preheat/...` of the summary; those of an earlier attempt, where it noted
    them.
    """
    for earlier in attempt.trial.attempts():
        if (noted := earlier.record().get("inference")) is not None:
            return noted
    _require_weights(attempt.trial)
    config, found = run.config.cache, {}
    if config.name != "none":
        ids = torch.from_numpy(stream_tokens(run.data, config))[None].to(run.device)
        with run.precision.reading():
            found |= measure_cache(run.model, ids, config)
    if config.preheat:
        with run.precision.reading():
            found |= measure_preheating(run.model, run.data, config)
    attempt.note(inference=found)
    return found


def _require_weights(trial: TrialDir) -> None:
    """Raises StudyError where they went after a measurement that cannot be read any more."""
    damage, newest = trial.record_damage(), trial.newest_checkpoint()
    if damage is None or newest is None:
        return
    holder, step = newest
    if not read_train(holder.checkpoint_path(step), step)["has_model"]:
        raise StudyError(
            f"{damage} It held what was measured with the final weights, which are gone "
            "(train.keep_final=false): `ablate train` with force=true starts the trial afresh."
        )
