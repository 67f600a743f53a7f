"""Training one trial. Start reading at `loop.py`.

Lazy, so that `ablate.train.schedule` can be had without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ablate.train.trial import Result, run_trial

__all__ = ["Result", "run_trial"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ablate.train import trial

    return getattr(trial, name)
