"""What can be found wrong before anything is written: the data, the device, names that must be
importable.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ablate.config.schema import TrialConfig
from ablate.data import Data, open_data

__all__ = ["check_data", "check_training"]


def check_data(config: Mapping[str, Any], *, progress: bool = False) -> Data:
    """Prepares the trial's data if it was not yet, and checks that they fit its model.

    Raises:
        DataError, ConfigError: naming what is wrong and the remedy.
    """
    typed = TrialConfig.from_mapping(config)
    data = open_data(typed.data, eos_token_id=typed.model["eos_token_id"], progress=progress)
    length = typed.train.sequence_length or typed.model["max_sequence_length"]
    data.check(typed.model["vocab_size"], length)
    return data


def check_training(config: Mapping[str, Any]) -> None:
    """Checks the device. Imports torch."""
    from ablate.train.run import choose_device

    choose_device(TrialConfig.from_mapping(config).train.device)
