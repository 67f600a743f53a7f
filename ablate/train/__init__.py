"""Training one trial. Start reading at `loop.py`."""

from ablate.train.trial import Result, run_trial

__all__ = ["Result", "run_trial"]
