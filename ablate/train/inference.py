"""How the trained model reads with bounded and preheated caches, measured once.

It needs the final weights, so what was measured is noted in the attempt's record before they may
go: a trial that is killed after its last step, wherever, comes to the same numbers.
"""

from __future__ import annotations

import torch

from ablate.data import stream_tokens
from ablate.rundir import Attempt
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
    config, found = run.config.cache, {}
    if config.name != "none":
        ids = torch.from_numpy(stream_tokens(run.data, config))[None].to(run.device)
        found |= measure_cache(run.model, ids, config)
    if config.preheat:
        found |= measure_preheating(run.model, run.data, config)
    attempt.note(inference=found)
    return found
