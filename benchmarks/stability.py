"""Beside sweeps/stability: text with planted documents, and how wide the range of rates is.

python -m benchmarks.stability plant FOLDER       # text for sweep=stability/planted
python -m benchmarks.stability table STUDY ...    # loss by arm and rate, LR sensitivity, spikes
"""

from __future__ import annotations

import argparse
import math
import random
from pathlib import Path
from typing import Any

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


def table(study: StudyDir) -> str:
    """Markdown: final loss by arm and rate; the width of the usable range; LR sensitivity.

    Sensitivity is Wortsman et al.'s (arXiv 2309.14322): the mean over the rates of
    min(loss, loss at initialisation) minus the best of them; a diverged run has the latter.
    """
    manifest = study.manifest()
    found: dict[str, dict[float, dict[str, Any]]] = {}
    for entry in manifest["trials"]:
        trial = study.trial(entry["id"])
        rows = list(trial.stitched())
        if not rows or trial.live_state().status not in ("done", "diverged"):
            continue
        found.setdefault(entry["arm"], {})[entry["lr"]] = _figures(rows, trial.summary() or {})
    rates = sorted({lr for arm in found.values() for lr in arm})
    best = min(f["loss"] for arm in found.values() for f in arm.values())
    lines = ["| arm | " + " | ".join(f"{lr:g}" for lr in rates) + " | usable | sensitivity |"]
    lines += ["|---|" + "---|" * (len(rates) + 2)]
    for arm, by_rate in found.items():
        cells = [_cell(by_rate.get(lr)) for lr in rates]
        losses = [min(f["loss"], f["first"]) for f in by_rate.values()]
        usable = sum(f["loss"] <= best + TOLERANCE for f in by_rate.values())
        sensitivity = sum(losses) / len(losses) - min(losses)
        whole = f"{usable} of {len(by_rate)} | {sensitivity:.3f}"
        lines.append(f"| {arm} | " + " | ".join(cells) + f" | {whole} |")
    return "\n".join(lines)


def _figures(rows: list[dict[str, Any]], summary: dict[str, Any]) -> dict[str, Any]:
    losses = [r["train/loss"] for r in rows if math.isfinite(r["train/loss"])]
    logits = [v for r in rows for k, v in r.items() if k.startswith("model/attention_logit_max/")]
    log_z = [r["model/log_z_rms"] for r in rows if "model/log_z_rms" in r]
    return {
        "first": losses[0],
        "loss": summary.get("val/loss", losses[0]),
        "done": "val/loss" in summary,
        "logit": max(logits, default=math.nan),
        "log_z": log_z[-1] if log_z else math.nan,
        "alerts": summary.get("spikes/alerts", math.nan),
    }


def _cell(f: dict[str, Any] | None) -> str:
    """Loss, largest attention logit, rms of log Z at the end, alarms."""
    if f is None:
        return ""
    loss = f"{f['loss']:.3f}" if f["done"] else "diverged"
    return f"{loss} (a {f['logit']:.0f}, z {f['log_z']:.1f}, s {f['alerts']:.0f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("plant", "table"))
    parser.add_argument("paths", nargs="+", type=Path)
    options = parser.parse_args()
    for path in options.paths:
        if options.what == "plant":
            plant(path)
        else:
            print(f"\n{path.name}\n\n{table(StudyDir(path))}")


if __name__ == "__main__":
    main()
