"""The spike detector against the rules in use, on labelled curves and on planted events.

    python -m benchmarks.spikes                        # every bar; minutes
    python -m benchmarks.spikes --quick                # 56 planted events a cell instead of 406
    python -m benchmarks.spikes --seed 1               # other planted events
    python -m benchmarks.spikes --ours                 # without the reference rules: a fifth of it

The folder has `public/` and `interventions/` with labels (step, loss, ... as CSV); without it only
the synthetic backgrounds are used, and the table says so. Everything is seeded.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import numpy as np

from ablate.spikes import Detector, detect
from benchmarks.spike_curves import find_curves, synthetic
from benchmarks.spike_detectors import DETECTORS
from benchmarks.spike_labelled import interventions, mixtral, one_nan
from benchmarks.spike_planted import early, pairs, planted_cells
from benchmarks.spike_stop import stopped

OFFLINE = 10_000_000


def cost(rows: int = 60_000) -> dict[str, float]:
    """CPU time: microseconds a row online, and seconds for a whole array."""
    loss = synthetic("white", rows, np.random.default_rng(5))
    values, best = loss.tolist(), []
    for _ in range(3):
        detector, begun = Detector(), time.process_time()
        for i, value in enumerate(values):
            detector.update(i, value)
        best.append((time.process_time() - begun) / rows * 1e6)
    begun = time.process_time()
    detect(np.arange(OFFLINE), synthetic("white", OFFLINE, np.random.default_rng(6)))
    seconds = time.process_time() - begun
    return {"online, us a row": min(best), "10^7 rows offline, s": seconds * 1e7 / OFFLINE}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--curves", help="another folder of labelled curves (or ABLATE_CURVES)")
    parser.add_argument("--quick", action="store_true", help="56 planted events a cell")
    parser.add_argument("--ours", action="store_true", help="without the reference rules")
    parser.add_argument("--json", action="store_true", help="the figures as JSON")
    parser.add_argument("--seed", type=int, default=0, help="of the planted events")
    options = parser.parse_args()
    if options.ours:
        for name in set(DETECTORS) - {"ours"}:
            del DETECTORS[name]
    folder = find_curves(options.curves)
    count = 56 if options.quick else 406
    figures: dict[str, Any] = {"count": count, "seed": options.seed}
    figures["mixtral"] = mixtral(folder)
    figures["interventions"] = interventions(folder)
    figures["planted"] = planted_cells(folder, count, options.seed)
    figures["early"] = early(folder, count, options.seed)
    figures["pairs"] = pairs(folder, count, options.seed)
    figures["stop"] = stopped(folder, count, options.seed)
    figures["nan"] = one_nan()
    figures["cost"] = cost()
    print(json.dumps(figures, indent=2) if options.json else table(figures))


STOP = {
    "curves": "labelled curves that it would have ended",
    "recoveries": "planted recoveries that it ended",
    "divergences": "planted divergences that it ended",
    "delay": "median delay on these",
}


def table(figures: dict[str, Any]) -> str:
    """The figures as Markdown, one line a set, the reference rules beside ours."""
    names = list(DETECTORS)
    lines = [
        "| set | bar | " + " | ".join(names) + " |",
        "|---|---|" + "---|" * len(names),
    ]

    def line(title: str, bar: str, cells: list[str]) -> None:
        lines.append(f"| {title} | {bar} | " + " | ".join(cells) + " |")

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
    bars = {
        "sharp 10 sigma": "", "slow 20 sigma, tau 40": "", "broad 5 sigma x 240": ">= .90/70",
        "shift + 3 sigma": ">= .90/20", "ramp .03 sigma a row": ">= .95/140",
        "small 1 sigma x 100": "", "10 sigma 40-120 rows after 60 sigma": ">= .95",
        "blip of one row promoted": "<= .10",
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
    for what, said in figures["stop"].items():
        value = f"{said[0]} of {said[1]}" if isinstance(said, tuple | list) else f"{said:.0f} rows"
        line(f"spikes=stop: {STOP[what]}", "", [value] + [""] * (len(names) - 1))
    for title, value in figures["cost"].items():
        bar = "<= 25" if title.startswith("online") else "<= 60"
        line(f"cost {title}", bar, [f"{value:.1f}"] + [""] * (len(names) - 1))
    return "\n".join(lines)


def _runs(total: dict[str, Any]) -> str:
    delays = total["delays"] or [0]
    return (f"{total['found']}/{total['of']} ({total['false']}), "
            f"{np.median(delays):.0f}/{max(delays)}")  # fmt: skip


if __name__ == "__main__":
    main()
