"""Real A/A studies of a tiny model: nothing differs but what must not matter.

`seeds`     arms are the same configuration on disjoint seeds (one pool of trials, dealt out)
`rounding`  the same seeds, and a nuisance that changes rounding alone: attention in separate
            products, and gradients added up from micro-batches of two sequences

    python -m benchmarks.aa --runs FOLDER              trains what is missing (minutes), then judges
    python -m benchmarks.aa --runs FOLDER --report     judges what is there
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ablate.analysis.effects import effects
from ablate.analysis.rule import Rule
from ablate.config.fingerprint import trial_id
from ablate.rundir import TrialDir

STUDIES, ARMS, SEEDS, STEPS = 40, 3, 3, 60
BASE = (
    "model=gpt2",
    "size=tiny",
    "dropout=none",
    "model.init_std=0.07",
    "model.max_sequence_length=64",
    "optim.lr=4e-3",
    "data=kjv",
    f"train.steps={STEPS}",
    "train.validation_tokens=32768",
    "train.checkpoint_every=0",
    "train.keep_final=false",
)
NUISANCES = {"math": "model.attention_backend=math", "micro": "train.micro_batch_size=2"}
METRIC = "val/bpb"
ALLOWED = 6


def cells() -> list[tuple[str, int, tuple[str, ...]]]:
    """(arm, seed, overrides) of every trial: the pool, then the nuisances on its first seeds."""
    pool = [("base", s, ()) for s in range(STUDIES * ARMS * SEEDS)]
    return pool + [
        (name, s, (override,))
        for s in range(STUDIES * SEEDS)
        for name, override in NUISANCES.items()
    ]


def train(root: Path, workers: int) -> None:
    """Trains what has not ended."""
    from ablate.config.compose import Composer
    from ablate.launch.local import run_missing
    from ablate.launch.pool import Pool
    from ablate.plan import resolve

    composer, trials = Composer(), []
    for name, seed, overrides in cells():
        words = [*BASE, *overrides, f"seed={seed}", f"runs_dir={root}", "study=aa"]
        config = resolve(composer.compose(words))
        trial = TrialDir(root / "trials" / trial_id(name, config))
        trial.create(config, STEPS)
        trials.append(trial)
    with Pool() as pool:
        pool.gpus()
        run_missing(trials, pool, workers=workers)


def finals(root: Path) -> dict[str, float]:
    """The final value of each `<arm>-s<seed>`; not a number where it diverged."""
    out = {}
    for path in sorted((root / "trials").iterdir()):
        trial, name = TrialDir(path), path.name.rpartition("-")[0]
        if trial.state().status == "done":
            out[name] = float((trial.summary() or {})[METRIC])
        elif trial.state().status == "diverged":
            out[name] = float("nan")
    return out


def study_of(kind: str, number: int, final: dict[str, float]) -> pd.DataFrame | None:
    """The values of one study; None where a trial is missing."""
    rows: list[dict[str, Any]] = []
    for i, arm in enumerate(["base", *NUISANCES]):
        for k in range(SEEDS):
            if kind == "seeds":
                seed = (number * ARMS + i) * SEEDS + k
                name = f"base-s{seed}"  # of the pool, under another arm's name
            else:
                seed = number * SEEDS + k
                name = f"{arm}-s{seed}"
            if name not in final:
                return None
            rows.append({"arm": arm, "seed": seed, "value": final[name]})
    return pd.DataFrame(rows)


def judge_all(kind: str, final: dict[str, float], correction: str, smallest: float) -> str:
    """One line: how many studies have a false better or worse."""
    references = {"base": None, **dict.fromkeys(NUISANCES, "base")}
    rule = Rule(metric=METRIC, smallest_effect=smallest, correction=correction)
    made = [study_of(kind, n, final) for n in range(STUDIES)]
    judged = [effects(s, references, rule) for s in made if s is not None]
    wrong = sum(_any(t["verdict"]) for t, _ in judged)
    said = "pass" if wrong <= ALLOWED and len(judged) == STUDIES else "FAIL"
    sigma = np.median([f.sigma for _, f in judged]) if judged else np.nan
    return (
        f"{kind:<9} {correction:<8} {smallest:<8g} {wrong:>3} of {len(judged)}   "
        f"(allowed {ALLOWED})  {said}   noise sd {sigma:.2g}"
    )


def _any(verdicts: Iterable[str]) -> bool:
    return bool(set(verdicts) & {"better", "worse"})


def table(root: Path) -> list[str]:
    final = finals(root)
    lines = [f"{len(final)} trials of {STEPS} steps; studies of {ARMS} arms x {SEEDS} seeds", ""]
    lines += ["kind      rule     smallest  with a false better or worse"]
    return lines + [
        judge_all(kind, final, correction, smallest)
        for kind in ("seeds", "rounding")
        for correction in ("holm", "dunnett")
        for smallest in (0.0, 0.005)
    ]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--report", action="store_true", help="train nothing")
    options = parser.parse_args(argv)
    if not options.report:
        train(options.runs, options.workers)
    print("\n".join(table(options.runs)))


if __name__ == "__main__":
    main()
