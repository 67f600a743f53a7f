"""The spike detector against the rules in use, on labelled curves and on planted events.

    python -m benchmarks.spikes --curves FOLDER        # every bar; minutes
    python -m benchmarks.spikes --quick                # 56 planted events a cell instead of 406

The folder has `public/` and `interventions/` with labels (step, loss, ... as CSV); without it only
the synthetic backgrounds are used, and the table says so. Everything is seeded.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ablate.spikes import RULES, Detector, compare, detect
from benchmarks.spike_curves import (
    Array,
    backgrounds,
    bump,
    find_curves,
    labels,
    load,
    local_sigma,
    spike,
    synthetic,
)

ROWS, AT = 1400, 900
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


def planted(
    folder: Path | None, count: int, seed: int, plant: Callable[[Array, float], tuple[int, int]]
) -> dict[str, dict[str, float]]:
    """Recall, delay and false alarms of every detector on one kind of event."""
    found = {name: ([], [], [0]) for name in DETECTORS}
    rows = 0
    for _, loss in backgrounds(folder, ROWS, count, seed):
        start, end = plant(loss, local_sigma(loss, AT))
        rows += len(loss)
        for name, detector in DETECTORS.items():
            alarms = detector(loss)
            hits = touching(alarms, start, end)
            hit, delay, false = found[name]
            hit.append(bool(hits))
            if hits:
                delay.append(max(0, min(a[1] for a in hits) - start))
            # What lies after a planted event that never ends is not a false alarm.
            false[0] += sum(a not in hits and a[1] < AT for a in alarms)
    return {
        name: {
            "recall": float(np.mean(hit)),
            "delay": float(np.median(delay)) if delay else float("nan"),
            "false_alarms": 1000 * false[0] / (rows * AT / ROWS),
        }
        for name, (hit, delay, false) in found.items()
    }


def add(loss: Array, at: int, shape: Array) -> tuple[int, int]:
    end = min(len(loss), at + len(shape))
    loss[at:end] += shape[: end - at]
    return at, end - 1


def masked(loss: Array, sigma: float, rng: np.random.Generator) -> tuple[int, int]:
    add(loss, AT, spike(60 * sigma))
    at = AT + int(rng.integers(40, 121))
    add(loss, at, spike(10 * sigma))
    return at, at + 10


def planted_cells(folder: Path | None, count: int) -> dict[str, Any]:
    rng = np.random.default_rng(7)
    rest = ROWS - AT
    return {
        "sharp 10 sigma": planted(folder, count, 1, lambda x, s: add(x, AT, spike(10 * s))),
        "slow 20 sigma, tau 40": planted(
            folder, count, 2, lambda x, s: add(x, AT, spike(20 * s, 40, 160))
        ),
        "broad 5 sigma x 240": planted(folder, count, 3, lambda x, s: add(x, AT, bump(5 * s))),
        "shift + 3 sigma": planted(folder, count, 4, lambda x, s: add(x, AT, np.full(rest, 3 * s))),
        "ramp .03 sigma a row": planted(
            folder,
            count,
            5,
            lambda x, s: add(x, AT, np.arange(rest, dtype=np.float64) * (0.03 * s)),
        ),
        "10 sigma 40-120 rows after 60 sigma": planted(
            folder, count, 6, lambda x, s: masked(x, s, rng)
        ),
        "blip of one row promoted": planted(
            folder, count, 8, lambda x, s: add(x, AT, np.array([10 * s]))
        ),
    }


def early(folder: Path | None, count: int) -> dict[str, float]:
    """Recall of a 12-sigma spike in rows 30 to 95 of a run."""
    rng = np.random.default_rng(9)
    hits = dict.fromkeys(DETECTORS, 0)
    for _, loss in backgrounds(folder, 300, count, 9, start=True):
        at = int(rng.integers(30, 96))
        sigma = local_sigma(loss, at, 24, 8)
        add(loss, at, spike(12 * sigma))
        for name, detector in DETECTORS.items():
            hits[name] += bool(touching(detector(loss), at, at + 10))
    return {name: n / count for name, n in hits.items()}


def pairs(folder: Path | None, count: int) -> dict[str, float]:
    """A small event in one of two arms with the same data order, alone and paired."""
    rng = np.random.default_rng(11)
    if folder is not None:
        a, b = (load(folder / "public" / f"modded_{n}_opt.csv").loss for n in ("adam", "muon"))
    else:
        a = synthetic("white", 5100, rng)
        b = a + rng.normal(0, 0.003, 5100)
    out: dict[str, list[float]] = {}
    for kind, shape in (("spike .05", np.full(3, 0.05)), ("shift .02", np.full(400, 0.02))):
        alone, together, delays = [], [], []
        for i in range(count):
            first = int(rng.integers(500, len(a) - 1001))
            x, y = a[first : first + 1000].copy(), b[first : first + 1000].copy()
            mine, other = (x, y) if i % 2 else (y, x)
            start, end = add(mine, 600, shape)
            steps = np.arange(1000)
            alone.append(bool(touching(ours(mine), start, end)))
            events = compare({"mine": (steps, mine), "other": (steps, other)}).events["mine"]
            hits = [e for e in events if e.is_alert and e.cause == "arm"
                    and e.start <= end + 3 and (e.end or e.start) >= start - 2]  # fmt: skip
            together.append(bool(hits))
            delays += [min(e.detect or e.start for e in hits) - start] if hits else []
        out[f"{kind} alone"] = [float(np.mean(alone))]
        out[f"{kind} paired"] = [float(np.mean(together))]
        out[f"{kind} paired delay"] = [float(np.median(delays)) if delays else float("nan")]
    return {k: v[0] for k, v in out.items()}


def mixtral(folder: Path) -> dict[str, tuple[int, int, int]]:
    """(clear spikes found, clear spikes, false alarms) on the Mixtral curve."""
    name = "megatron_mixtral8x7b_a100"
    curve = load(folder / "public" / f"{name}.csv")
    marks = [m for m in labels(folder / "public" / "labels.csv") if m["curve"] == name]
    rows = {int(s): i for i, s in enumerate(curve.steps)}
    spans = [(rows[int(m["start"])], rows[int(m["end"])], m) for m in marks]
    finite = np.where(np.isfinite(curve.loss), curve.loss, np.nan)
    out = {}
    for who, detector in DETECTORS.items():
        if who == "ours":
            alarms = ours(curve.loss, curve.steps)
        else:
            alarms = [a for a in detector(finite) if np.isfinite(curve.loss[a[0]])]
        clear = [s for s in spans if s[2]["kind"] == "spike" and s[2]["confidence"] == "clear"]
        hit = sum(bool(touching(alarms, s[0], s[1])) for s in clear)
        known = [a for s in spans for a in touching(alarms, s[0], s[1])]
        out[who] = (hit, len(clear), sum(a not in known for a in alarms))
    return out


def interventions(folder: Path) -> dict[str, dict[str, Any]]:
    """Events found of those labelled, false alarms and delays on the runs with interventions."""
    marks = labels(folder / "interventions" / "labels.csv")
    out: dict[str, dict[str, Any]] = {
        name: {"found": 0, "of": 0, "false": 0, "delays": []} for name in ["ours + lr", *DETECTORS]
    }
    for path in sorted((folder / "interventions").glob("*.csv")):
        if path.stem == "labels":
            continue
        curve = load(path)
        spans = [(int(m["start"]), int(m["end"])) for m in marks if m["run"] == path.stem]
        for who, total in out.items():
            if who == "ours + lr":
                alarms = ours(curve.loss, curve.steps, **curve.signals)
            else:
                alarms = DETECTORS[who](curve.loss)
            known = []
            for start, end in spans:
                hits = touching(alarms, start, end)
                known += hits
                total["of"] += 1
                total["found"] += bool(hits)
                total["delays"] += [min(a[1] for a in hits) - start] if hits else []
            total["false"] += sum(a not in known for a in alarms)
    return out


def one_nan() -> dict[str, int]:
    """Rows or events that one NaN row causes in the 400 rows from it on."""
    loss = synthetic("white", 800, np.random.default_rng(3))
    loss[400] = np.nan
    flags = {name: int(rule(loss)[400:].sum()) for name, rule in RULES.items()}
    return {"ours": len(detect(np.arange(800), loss)), **flags}


def cost(rows: int = 60_000) -> dict[str, float]:
    """Microseconds of CPU time a row: online, and a whole array at once."""
    loss = synthetic("white", rows, np.random.default_rng(5))
    values, best = loss.tolist(), []
    for _ in range(3):
        detector, begun = Detector(), time.process_time()
        for i, value in enumerate(values):
            detector.update(i, value)
        best.append((time.process_time() - begun) / rows * 1e6)
    begun = time.process_time()
    detect(np.arange(rows), loss)
    return {"online": min(best), "offline": (time.process_time() - begun) / rows * 1e6}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--curves", help="folder of labelled curves (or ABLATE_CURVES)")
    parser.add_argument("--quick", action="store_true", help="56 planted events a cell")
    parser.add_argument("--json", action="store_true", help="the figures as JSON")
    options = parser.parse_args()
    folder = find_curves(options.curves)
    count = 56 if options.quick else 406
    figures: dict[str, Any] = {"curves": folder is not None, "count": count}
    if folder is not None:
        figures["mixtral"] = mixtral(folder)
        figures["interventions"] = interventions(folder)
    figures["planted"] = planted_cells(folder, count)
    figures["early"] = early(folder, count)
    figures["pairs"] = pairs(folder, count)
    figures["nan"] = one_nan()
    figures["cost"] = cost()
    print(json.dumps(figures, indent=2) if options.json else table(figures))


def table(figures: dict[str, Any]) -> str:
    """The figures as Markdown, one line a set, the reference rules beside ours."""
    names = list(DETECTORS)
    lines = [
        "| set | bar | " + " | ".join(names) + " |",
        "|---|---|" + "---|" * len(names),
    ]

    def line(title: str, bar: str, cells: list[str]) -> None:
        lines.append(f"| {title} | {bar} | " + " | ".join(cells) + " |")

    if figures["curves"]:
        m = figures["mixtral"]
        line("Mixtral, 10 clear spikes (false alarms)", "9 (0)",
             [f"{m[n][0]} ({m[n][2]})" for n in names])  # fmt: skip
        runs = figures["interventions"]
        for title, keys in (
            ("interventions, loss alone: found (false), delay median/longest", names),
            ("the same with the recorded learning rate", ["ours + lr"]),
        ):
            cells = [_runs(runs[n]) for n in keys]
            line(title, "13 (0), 0/15", cells + [""] * (len(names) - len(cells)))
    else:
        lines.append("| labelled curves | not found: synthetic backgrounds only |" + " |" * 6)
    bars = {
        "sharp 10 sigma": "", "slow 20 sigma, tau 40": "", "broad 5 sigma x 240": ">= .90/70",
        "shift + 3 sigma": ">= .90/20", "ramp .03 sigma a row": ">= .95/140",
        "10 sigma 40-120 rows after 60 sigma": ">= .95", "blip of one row promoted": "<= .10",
    }  # fmt: skip
    for title, cell in figures["planted"].items():
        line(f"{title} (n = {figures['count']}): recall/delay", bars[title],
             [f"{cell[n]['recall']:.2f}/{cell[n]['delay']:.0f}" for n in names])  # fmt: skip
    cells = figures["planted"].values()
    line("false alarms per 1,000 rows", "<= .25",
         [f"{np.mean([c[n]['false_alarms'] for c in cells]):.2f}" for n in names])  # fmt: skip
    line("12 sigma in rows 30-95", ">= .5", [f"{figures['early'][n]:.2f}" for n in names])
    for title, value in figures["pairs"].items():
        line(f"pair: {title}", "", [f"{value:.2f}"] + [""] * (len(names) - 1))
    line("one NaN: events, or rows flagged", "1", [str(figures["nan"][n]) for n in names])
    for title, value in figures["cost"].items():
        bar = "<= 25" if title == "online" else "<= 6"
        line(f"cost {title}, us/row", bar, [f"{value:.1f}"] + [""] * (len(names) - 1))
    return "\n".join(lines)


def _runs(total: dict[str, Any]) -> str:
    delays = total["delays"] or [0]
    return (f"{total['found']}/{total['of']} ({total['false']}), "
            f"{np.median(delays):.0f}/{max(delays)}")  # fmt: skip


if __name__ == "__main__":
    main()
