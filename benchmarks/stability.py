"""Beside sweeps/stability: text with planted documents, and how wide the range of rates is.

python -m benchmarks.stability plant FOLDER       # text for sweep=stability/planted
python -m benchmarks.stability chain FOLDER       # text on which log Z drifts (docs/stability.md)
python -m benchmarks.stability table STUDY ...    # loss by arm and rate, LR sensitivity, spikes
"""

from __future__ import annotations

import argparse
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import sem, t

from ablate.errors import AblateError
from ablate.rundir import StudyDir

WORDS = (
    "the of and to in that he shall unto for his a lord they be is him not them it with all thou "
    "thy was which my me said but ye their have thee from as are when this out were by you up"
)
TOLERANCE = 0.1
"""Nats over the best loss of any arm within which a rate counts as usable."""


def plant(folder: Path, documents: int = 600, every: int = 100) -> None:
    """Documents of random words; of `every` so many one is noise and one an n-gram repeated."""
    draw, words = random.Random(0), WORDS.split()
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(documents):
        text = " ".join(draw.choices(words, weights=range(len(words), 0, -1), k=200))
        if i % every == every // 3:
            text = "".join(draw.choices("#%&@!~^*=+{}[]<>|;:?/", k=256))
        elif i % every == 2 * every // 3:
            text = "ha" * 128
        (folder / f"{i:04}.txt").write_text(text)


def chain(folder: Path, documents: int = 40, length: int = 25_000) -> None:
    """A Markov chain over the 94 printable characters, each followed by one of four and each
    equally frequent in the long run: most are in no batch of a few, whatever they are.
    """
    rng = np.random.default_rng(0)
    symbols = [chr(c) for c in range(33, 127)]
    next_of = np.stack([rng.permutation(len(symbols)) for _ in range(4)], 1)
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(documents):
        at, text = int(rng.integers(len(symbols))), []
        for choice in rng.integers(0, 4, size=length):
            text.append(symbols[at])
            at = int(next_of[at, choice])
        (folder / f"{i:02}.txt").write_text("".join(text))


def table(study: StudyDir) -> str:
    """Markdown: held-out loss by arm and rate, the usable range of rates, and LR sensitivity.

    Sensitivity is Wortsman et al.'s (arXiv 2309.14322): the mean over the rates of
    min(loss, loss at initialisation) minus the best of them; a diverged run has the latter. With
    several seeds: means, and 95 % intervals of the sensitivity and of its difference from the first
    arm's, seed by seed.
    """
    manifest = study.manifest()
    found: dict[str, dict[int, dict[float, dict[str, Any]]]] = {}
    for entry in manifest["trials"]:
        trial = study.trial(entry["id"])
        rows = list(trial.stitched())
        if not rows or trial.live_state().status not in ("done", "diverged"):
            continue
        figures = _figures(rows, trial.summary() or {})
        # Without a bracket the manifest names no rate: every trial of the arm has its own one.
        rate = trial.config()["optim"]["lr"] if entry["lr"] is None else entry["lr"]
        found.setdefault(entry["arm"], {}).setdefault(entry["seed"], {})[rate] = figures
    if not found:
        raise AblateError(f"No trial of {study.name} has come to its end: launch it first.")
    rates = sorted({lr for arm in found.values() for seed in arm.values() for lr in seed})
    losses = {
        arm: [_mean([s[lr]["loss"] for s in seeds.values() if lr in s]) for lr in rates]
        for arm, seeds in found.items()
    }
    best = min(m for means in losses.values() for m in means if math.isfinite(m))
    lines = [
        "| arm | "
        + " | ".join(f"{lr:g}" for lr in rates)
        + " | usable | sensitivity | against the first |"
    ]
    lines += ["|---|" + "---|" * (len(rates) + 3)]
    first: dict[int, float] = {}
    for arm, seeds in found.items():
        cells = [_cell([s[lr] for s in seeds.values() if lr in s]) for lr in rates]
        usable = sum(m <= best + TOLERANCE for m in losses[arm])
        values = {seed: _sensitivity(by_rate) for seed, by_rate in seeds.items()}
        first = first or values
        apart = [v - first[seed] for seed, v in values.items() if seed in first]
        difference = "" if values is first else _interval(apart, "+.3f")
        whole = (
            f"{usable} of {len(rates)} | {_interval(list(values.values()), '.3f')} | {difference}"
        )
        lines.append(f"| {arm} | " + " | ".join(cells) + f" | {whole} |")
    return "\n".join(lines)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def _sensitivity(by_rate: dict[float, dict[str, Any]]) -> float:
    losses = [min(f["loss"], f["first"]) for f in by_rate.values()]
    return _mean(losses) - min(losses)


def _interval(values: list[float], form: str) -> str:
    """Mean, and its 95 % interval by Student's t where there are several values."""
    if len(values) < 2:
        return format(_mean(values), form)
    half = float(t.ppf(0.975, len(values) - 1)) * float(sem(values))
    low, high = _mean(values) - half, _mean(values) + half
    return f"{_mean(values):{form}} [{low:{form}}, {high:{form}}]"


def _figures(rows: list[dict[str, Any]], summary: dict[str, Any]) -> dict[str, Any]:
    losses = [r["train/loss"] for r in rows if math.isfinite(r["train/loss"])]
    logits = [v for r in rows for k, v in r.items() if k.startswith("model/attention_logit_max/")]
    log_z = [r["model/log_z_rms"] for r in rows if "model/log_z_rms" in r]
    return {
        "first": losses[0],
        "loss": summary.get("val/loss", losses[0]),
        "done": "val/loss" in summary,
        "logit": max(logits, default=math.nan),
        "log_z": max(log_z, default=math.nan),
        "log_z_end": log_z[-1] if log_z else math.nan,
        "alerts": summary.get("spikes/alerts", math.nan),
    }


def _cell(seeds: list[dict[str, Any]]) -> str:
    """Loss; largest attention logit; rms of log Z at its largest and at the end; alarms of all."""
    if not seeds:
        return ""
    lost = sum(not f["done"] for f in seeds)
    loss = f"{_mean([f['loss'] for f in seeds]):.3f}"
    if lost:
        loss = "diverged" if lost == len(seeds) else f"{loss}, {lost} diverged"
    logit, log_z, end = (_mean([f[k] for f in seeds]) for k in ("logit", "log_z", "log_z_end"))
    alerts = sum(f["alerts"] for f in seeds)
    return f"{loss} (a {logit:,.0f}, z {log_z:.1f} to {end:.1f}, s {alerts:.0f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("plant", "chain", "table"))
    parser.add_argument("paths", nargs="+", type=Path)
    options = parser.parse_args()
    for path in options.paths:
        if options.what != "table":
            {"plant": plant, "chain": chain}[options.what](path)
        else:
            print(f"\n{path.name}\n\n{table(StudyDir(path))}")


if __name__ == "__main__":
    main()
