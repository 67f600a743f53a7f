"""The labelled curves, and one row that is not a number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ablate.spikes import RULES, detect
from benchmarks.spike_curves import curves_in, labels, load, name_of, synthetic
from benchmarks.spike_detectors import DETECTORS, ours, touching


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
    for path in curves_in(folder / "interventions"):
        curve, run = load(path), name_of(path)
        spans = [(int(m["start"]), int(m["end"])) for m in marks if m["run"] == run]
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
