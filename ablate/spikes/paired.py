"""Trials with the same data order share their noise; their difference shows what is one arm's own.

On public pairs of runs the noise of the difference is 15 to 28 times smaller. An excursion that
every arm shows on one batch is the data's, one that a single arm shows is the arm's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from ablate.spikes.detector import detect
from ablate.spikes.events import Event
from ablate.spikes.robust import LARGEST, MAD_TO_SIGMA
from ablate.spikes.scores import last_writes

__all__ = ["Comparison", "compare"]

PAIRED = 0.5
"""Correlation of one-step differences from which runs count as having seen the same batches."""
SHARED = 0.5
"""Share of an event's height that most other arms must show for the event to be the data's."""
MOST = 0.5
"""More than this share of the other arms must show it: one may have been given another batch."""
LEAST, LEAST_OF_EQUALS, EQUAL = 0.1, 0.25, 1 / 30
"""Height of an arm's own event in units of the noise of its loss, at least; and of arms that were
all but equal so far, whose difference strays by less than `EQUAL` of that noise (arms that differ
stray by 1/28 to 1/15): any difference is many of *its* sigmas.
"""
NEAR = 3
SOON, LATER = 16, 64
"""Rows of a difference. Where the others merely learn faster it grows evenly, so that it is several
times as high in the last quarter as in the first.
"""
BLOCK, SPAN = 64, 6

Record = tuple[Sequence[int] | NDArray[np.int64], Sequence[float] | NDArray[np.float64]]
Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The events of every run, with their cause where the runs are paired."""

    events: dict[str, list[Event]]
    correlation: float | None
    """Median over the pairs; None for a single run or too few common steps."""

    @property
    def paired(self) -> bool:
        return self.correlation is not None and self.correlation >= PAIRED


def compare(runs: Mapping[str, Record], own: Mapping[str, list[Event]] | None = None) -> Comparison:
    """Detects in each run, and between them where they saw the same batches.

    Args:
        runs: name -> (steps, losses), as recorded.
        own: the events of each run alone, if they are known already.
    """
    events = {k: list(own[k]) if own else detect(s, x) for k, (s, x) in runs.items()}
    longest = max((len(s) for s, _ in runs.values()), default=0)
    runs = {k: r for k, r in runs.items() if 2 * len(r[0]) >= longest}  # one that broke off
    if not runs:
        return Comparison(events=events, correlation=None)
    steps, table = _common(runs)
    correlation = _correlation(table) if len(runs) > 1 and len(steps) >= 32 else None
    found = Comparison(events=events, correlation=correlation)
    if not found.paired:
        return found
    for i, (name, (at, _)) in enumerate(runs.items()):
        others = np.delete(table, i, axis=0)
        difference = table[i] - np.median(others, axis=0)
        noise, apart = _noise(table[i]), detect(steps, difference)
        apart = [large for e in apart if (large := _large(e, noise)) is not None]
        mine = [_caused(e, steps, table[i] - others, apart) for e in events[name]]
        rows = {int(s): r for r, s in enumerate(np.asarray(at).tolist())}
        new = [e for e in apart if _sudden(e, steps, difference)]
        new = [e for e in new if not any(_covers(m, e) for m in mine)]
        new = [e for e in new if not _has_twin(e, steps, table[i], others)]
        mine += [_moved(e, rows) for e in new]
        mine += [_moved(e, rows) for e in _plateau(steps, table[i], others)]
        events[name] = sorted(mine, key=lambda e: (e.start_row, e.detector))
    return found


def _common(runs: Mapping[str, Record]) -> tuple[NDArray[np.int64], Array]:
    """The steps that all runs recorded with a finite loss, and the losses [run, step]."""
    records = []
    for at, losses in runs.values():
        steps, x = last_writes(at, losses)
        keep = np.abs(x) < LARGEST / 2  # their differences too
        records.append((steps[keep], x[keep]))
    common = records[0][0]
    for steps, _ in records[1:]:
        common = np.intersect1d(common, steps)
    return common, np.stack([x[np.searchsorted(steps, common)] for steps, x in records])


def _correlation(table: Array) -> float:
    """Median over pairs of the correlation of one-step differences, outliers cut at 5 MAD."""
    moves = np.diff(table, axis=1)
    spread = np.median(np.abs(moves), axis=1, keepdims=True)
    moves = np.clip(moves, -5 * spread, 5 * spread)
    values = []
    for a, b in combinations(moves, 2):
        both = a.std() > 0 and b.std() > 0
        values.append(float(np.corrcoef(a, b)[0, 1]) if both else 0.0)
    return float(np.median(values))


def _noise(loss: Array) -> float:
    """Standard deviation of a loss about its trend."""
    return MAD_TO_SIGMA * float(np.median(np.abs(np.diff(loss)))) / np.sqrt(2)


def _caused(
    event: Event, steps: NDArray[np.int64], differences: Array, apart: Sequence[Event]
) -> Event:
    """`event` with its cause: data, arm, or None where the arms neither agree nor differ.

    How much of it another arm shows is read off the difference, where the noise is small.
    """
    if event.detector == "record" or event.peak is None or not event.height:
        return event
    first, peak = np.searchsorted(steps, [event.start, event.peak])
    before = differences[:, max(0, first - 16) : first]
    if before.shape[1] >= 4 and peak < len(steps):
        alone = differences[:, peak] - np.median(before, axis=1)
        if (alone <= (1 - SHARED) * event.height).mean() > MOST:
            return replace(event, cause="data")
    own = any(_meet(event, e) for e in apart)
    return replace(event, cause="arm" if own else None)


def _large(event: Event, noise: float) -> Event | None:
    """An event of the difference, its sigma no smaller than differences of unequal arms have."""
    height, sigma = event.height or 0.0, event.sigma or 0.0
    equal = height < sigma * EQUAL * noise
    if height < (LEAST_OF_EQUALS if equal else LEAST) * noise:
        return None
    return replace(event, sigma=height / (EQUAL * noise)) if equal else event


def _sudden(event: Event, steps: NDArray[np.int64], difference: Array) -> bool:
    """Whether an event of the difference sets in as an event does, not as learning apart."""
    first = int(np.searchsorted(steps, event.start))
    before, after = difference[max(0, first - 16) : first], difference[first : first + LATER]
    if event.detector == "record" or len(before) < 4 or len(after) < 2 * SOON:
        return True
    level = np.median(before)
    soon, later = np.median(after[:SOON]) - level, np.median(after[-SOON:]) - level
    highest = np.median(sliding_window_view(after[:SOON], 3), axis=1).max() - level
    return bool(soon >= 0.5 * later or highest >= later)


def _has_twin(event: Event, steps: NDArray[np.int64], mine: Array, others: Array) -> bool:
    """Whether another run was this one, bit for bit, up to the end of an event of the difference.

    Such a run did nothing alone; where no record shows anything by itself, the rest have moved
    (after they answered a spike, say).
    """
    end = event.start if event.end is None else event.end
    rows = slice(0, int(np.searchsorted(steps, end)) + 1)
    return bool((others[:, rows] == mine[rows]).all(axis=1).any())


def _meet(a: Event, b: Event) -> bool:
    """Whether two events overlap, give or take three steps."""
    if "record" in (a.detector, b.detector):
        return False
    end_a = a.start if a.end is None else a.end
    end_b = b.start if b.end is None else b.end
    return a.start <= end_b + NEAR and b.start <= end_a + NEAR


def _covers(known: Event, apart: Event) -> bool:
    """Whether an event of the difference adds nothing to what is known.

    It is the arm's own event, or what is left of one that the data caused: arms do not answer a
    batch by exactly the same height.
    """
    if known.cause == "arm":
        return _meet(known, apart)
    if known.cause != "data" or apart.end is None:
        return False
    end = known.start if known.end is None else known.end
    inside = known.start - NEAR <= apart.start and apart.end <= end + NEAR
    return inside and (apart.height or 0.0) < (known.height or 0.0)


def _moved(event: Event, rows: Mapping[int, int]) -> Event:
    """An event of a difference, with the row numbers of the run itself."""

    def row(step: int | None) -> int | None:
        return None if step is None else rows.get(step)

    return replace(
        event,
        cause="arm",
        start_row=rows[event.start],
        detect_row=row(event.detect),
        peak_row=row(event.peak),
        end_row=row(event.end),
    )


def _plateau(steps: NDArray[np.int64], loss: Array, others: Array) -> list[Event]:
    """A run that stays where it is while the others learn: no row of it is unusual.

    Over 6 blocks of 64 rows it falls by less than a tenth of what the others fall, lies above
    them, and they fall by more than 8 of its own block medians' standard errors.
    """
    count = len(loss) // BLOCK
    if count < SPAN:
        return []
    mine = np.median(loss[: count * BLOCK].reshape(count, BLOCK), axis=1)
    theirs = np.median(np.median(others, axis=0)[: count * BLOCK].reshape(count, BLOCK), axis=1)
    noise = _noise(loss)
    error = 1.25 * noise / np.sqrt(BLOCK)
    fall, usual = mine[: 1 - SPAN] - mine[SPAN - 1 :], theirs[: 1 - SPAN] - theirs[SPAN - 1 :]
    stuck = (fall < 0.1 * usual) & (usual > 8 * error) & (mine[SPAN - 1 :] > theirs[SPAN - 1 :])
    if not stuck.any():
        return []
    first = int(np.argmax(stuck))
    last = first
    while last + 1 < len(stuck) and stuck[last + 1]:
        last += 1
    start, detected = first * BLOCK, (first + SPAN) * BLOCK - 1
    end = (last + SPAN) * BLOCK - 1
    above = mine[last + SPAN - 1] - theirs[last + SPAN - 1]
    still = last + 1 == len(stuck)
    return [
        Event(
            kind="plateau", start=int(steps[start]), start_row=start, detect=int(steps[detected]),
            detect_row=detected, peak=int(steps[end]), peak_row=end, end=int(steps[end]),
            end_row=end, height=float(above), sigma=float(above / noise) if noise else None,
            recovery="unrecovered" if still else "slow", detector="drift", closed=True,
        )
    ]  # fmt: skip
