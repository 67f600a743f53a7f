"""A trial whose model reads later tokens is refused before its first step.

Its losses would be those of copying what is to be predicted, and a report would call it better. The
options of `conf/` are tested once for all (`tests/contract`); modules of the user's own here.
"""

from __future__ import annotations

import logging

from ablate.config.schema import TrialConfig
from ablate.errors import ConfigError
from ablate.model import ModelConfig
from ablate.model.causality import Leak, find_leak, leaking_fields

__all__ = ["REMEDY", "leak_or_reason", "require_causal"]

REMEDY = (
    "Mend it, so that what it makes of a position depends on no later one; or take it as it is "
    "with train.check_causality=false, and compare its losses with no causal model's"
)

log = logging.getLogger(__name__)


def require_causal(config: TrialConfig, model: ModelConfig) -> None:
    """Tests a small copy of a model with modules of the user's own; others cost nothing.

    The copy has weights of its own, and the state of every generator stays as it is: the bits of
    the trial are what they would have been. Where the test cannot run, the log says why.

    Raises:
        ConfigError: for a model that reads later tokens, unless train.check_causality is off.
    """
    own = model.own_modules
    if not own or not config.train.check_causality:
        return
    length = config.train.sequence_length or model.max_sequence_length
    leak, untested = leak_or_reason(model, length)
    if untested is not None:
        named = ", ".join(f"model.{name}={path}" for name, path in own.items())
        log.warning("Not tested for reading later tokens: %s (%s).", named, untested)
    if leak is None:
        return
    name, *more = leaking_fields(model, length)
    also = "".join(f", and so may model.{other}={own[other]}" for other in more)
    reason = f"reads later tokens{also}: {leak}"
    raise ConfigError(f"model.{name}", own[name], reason, REMEDY)


def leak_or_reason(model: ModelConfig, length: int) -> tuple[Leak | None, str | None]:
    """The leak of a model that reads later tokens, and why that could not be tested."""
    try:
        return find_leak(model, length), None
    except Exception as error:  # classes of the user's own raise what they like
        return None, " ".join(f"{type(error).__name__}: {error}".split())
