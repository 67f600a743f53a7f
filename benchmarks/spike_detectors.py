"""What is compared: our detector and the reference rules, all as lists of alarms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ablate.spikes import RULES, detect
from benchmarks.spike_curves import Array

Alarms = list[tuple[int, int, int]]
"""(first row, row of the alarm, last row) of each."""


def ours(loss: Array, steps: NDArray[np.int64] | None = None, **signals: Array) -> Alarms:
    at = np.arange(len(loss)) if steps is None else steps
    return [
        (e.start_row, e.detect_row or e.start_row, e.end_row or e.start_row)
        for e in detect(at, loss, **signals)
        if e.is_alert
    ]


def of_rule(rule: Callable[[Array], Any]) -> Callable[[Array], Alarms]:
    """Episodes of a reference rule: alarms that are at most 10 rows apart."""

    def alarms(loss: Array) -> Alarms:
        rows = np.flatnonzero(rule(loss))
        parts = np.split(rows, np.flatnonzero(np.diff(rows) > 10) + 1) if len(rows) else []
        return [(int(p[0]), int(p[0]), int(p[-1])) for p in parts]

    return alarms


DETECTORS = {"ours": ours, **{name: of_rule(rule) for name, rule in RULES.items()}}


def touching(alarms: Alarms, start: int, end: int) -> Alarms:
    return [a for a in alarms if a[0] <= end + 3 and a[2] >= start - 2]
