"""`ablate spikes PATH --follow`: events of a run while it goes on."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import numpy as np

from ablate.cli.spike_records import Records
from ablate.cli.spike_view import line
from ablate.errors import DataError
from ablate.rundir.state import ENDED
from ablate.spikes import Detector, Event
from ablate.spikes.read import Table

__all__ = ["follow"]

POLL = 1.0
"""Seconds between two looks."""


def follow(
    read: Callable[[], Records],
    *,
    as_json: bool,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Prints each event when it is seen and when it ends, until the trial has ended (a file: for
    ever).

    A record that became shorter was resumed from a checkpoint: what came after that is read again.
    A line that was printed before says nothing new: what is learnt of an event after its end
    (its residual offset) is in the JSON alone.
    """
    detector, fed, before = Detector(), 0, None
    said: set[str] = set()
    while True:
        try:
            records = read()
        except DataError:
            records = Records(tables={})  # not a row yet
        over = bool(records.trials) and all(
            t.live_state().status in ENDED for t in records.trials.values()
        )
        for table in records.tables.values():
            if before is not None and not _continues(before, table, fed):
                detector, fed = Detector(), 0
            for i in range(fed, len(table.steps)):
                signals = {k: float(v[i]) for k, v in table.signals.items()}
                for event in detector.update(
                    int(table.steps[i]), float(table.losses[i]), **signals
                ):
                    _say(event, as_json, said)
            fed, before = len(table.steps), table
        if over:
            for event in detector.finish():
                _say(event, as_json, said)
            return
        sleep(POLL)


def _continues(before: Table, now: Table, fed: int) -> bool:
    """Whether the rows that were seen are still there, as far as the last of them tells."""
    last = slice(fed - 1, fed)
    same = np.array_equal(now.losses[last], before.losses[last], equal_nan=True)
    return len(now.steps) >= fed and same


def _say(event: Event, as_json: bool, said: set[str]) -> None:
    told = json.dumps(event.to_dict()) if as_json else line(event)
    if told not in said:
        said.add(told)
        print(told, flush=True)
