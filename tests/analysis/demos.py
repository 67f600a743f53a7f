"""Synthetic studies of each design, such that every table of the report has something to say."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import studies

from ablate.rundir import StudyDir

FACTORS = {"norm": -0.02, "rope": -0.03, "qk": 0.004}
INTERACTION = 0.015
RATES = (5e-4, 1e-3, 2e-3, 4e-3)


def with_levels(
    study: StudyDir,
    levels: Mapping[str, Mapping[str, str]],
    factors: Mapping[str, list[str]],
    **arms: Mapping[str, Any],
) -> StudyDir:
    manifest = study.manifest()
    for arm in manifest["arms"]:
        arm["levels"] = dict(levels[arm["name"]])
        arm.update({key: values[arm["name"]] for key, values in arms.items()})
    study.write_manifest(manifest | {"factors": dict(factors)})
    return study


def factorial(path: Path) -> StudyDir:
    rng = np.random.default_rng(0)
    block = rng.normal(0, 0.02, 4)
    values: dict[str, dict[int, float]] = {}
    levels, diffs = {}, {}
    for bits in itertools.product([0, 1], repeat=3):
        on = [n for n, b in zip(FACTORS, bits, strict=True) if b]
        arm = "+".join(on) or "base"
        mean = 2.0 + sum(FACTORS[n] for n in on) + INTERACTION * bits[0] * bits[1]
        values[arm] = {s: mean + block[s] + rng.normal(0, 0.003) for s in range(4)}
        levels[arm] = {n: n if n in on else "baseline" for n in FACTORS}
        diffs[arm] = {f"model.{n}": [False, True] for n in on}
    study = studies.write_study(path, values, diffs=diffs, design="factorial", steps=120)
    return with_levels(study, levels, {n: [n] for n in FACTORS})


def bracket(path: Path) -> StudyDir:
    rng = np.random.default_rng(1)
    best = {"base": 1e-3, "rope": 2e-3, "swiglu": 1e-3}
    values: dict[str, dict[tuple[int, float], float | str]] = {
        arm: {
            (s, r): 2.0
            - 0.05 * (arm == "rope")
            + 0.1 * abs(np.log2(r / lr)) ** 1.5
            + 0.003 * rng.normal()
            for s in range(3)
            for r in RATES
        }
        for arm, lr in best.items()
    }
    for s in range(3):
        values["base"][s, 4e-3] = "diverged"
    return studies.write_study(path, values, steps=120)


def ladder(path: Path) -> StudyDir:
    truth = {"base": 0.0, "+norm": -0.02, "+rope": -0.03, "full": -0.04}
    info = {
        "kind": "ladder",
        "orders": [["base", "+norm", "full"], ["base", "+rope", "full"]],
        "steps": [["norm", "rope"], ["rope", "norm"]],
    }
    return studies.write_study(
        path,
        studies.values(truth, range(4)),
        references={"base": None, "+norm": "base", "+rope": "base", "full": "+norm"},
        design="ladder",
        steps=120,
        manifest_extra={"design_info": info},
    )


def sizes(path: Path) -> StudyDir:
    rng = np.random.default_rng(2)
    values: dict[str, dict[int, float]] = {}
    diffs, levels, references, parameters = {}, {}, {}, {}
    for variant, k in itertools.product(("base", "rope"), range(4)):
        millions = 4**k
        arm, n = f"{variant}-{millions}m", millions * 1_000_000
        amplitude = 8.0 if variant == "base" else 7.5
        values[arm] = {s: 1.5 + amplitude * n**-0.2 + rng.normal(0, 0.003) for s in range(3)}
        diffs[arm] = {"model.rope": [False, True]} if variant == "rope" else {}
        diffs[arm] |= {"model.d_model": [64, 64 * 2**k]} if k else {}
        levels[arm] = {"position": variant, "size": f"{millions}m"}
        references[arm] = f"base-{millions}m" if variant == "rope" else "base-1m" if k else None
        parameters[arm] = n
    study = studies.write_study(
        path,
        values,
        diffs=diffs,
        references=references,
        design="grid",
        steps=60,
        summary=lambda arm, seed: {
            "parameters": parameters[arm],
            "peak_memory": 1e3 * parameters[arm],
            "flops": 6e3 * parameters[arm],
            "seconds": parameters[arm] / 1e5,
        },
    )
    factors = {"position": ["base", "rope"], "size": ["1m", "4m", "16m", "64m"]}
    return with_levels(study, levels, factors, parameters=parameters)


def claimed(path: Path) -> StudyDir:
    stated = {
        "source": "an article", "statement": "2 % fewer bits", "metric": "val/bpb", "of": "rope",
        "against": "base", "relative": -0.02, "absolute": None, "direction": "lower",
        "rates": "best", "margin": 0.004, "untestable": None, "nearest": None,
    }  # fmt: skip
    unworthy = {
        **stated, "statement": "learns three times as fast", "metric": "seconds", "relative": None,
        "absolute": 5.0, "direction": "no_worse", "margin": None,
        "untestable": "no speed of learning is defined", "nearest": "trains as fast",
    }  # fmt: skip
    return studies.write_study(
        path,
        studies.values({"base": 0.0, "rope": -0.04}, range(4)),
        manifest_extra={"claim": [stated, unworthy]},
    )


DEMOS = {
    "factorial": factorial,
    "bracket": bracket,
    "ladder": ladder,
    "sizes": sizes,
    "claimed": claimed,
}
