"""The ledger of claims: every study that carries one, from disk or from a stored file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ablate.analysis.comparable import check_comparable
from ablate.analysis.frames import load
from ablate.analysis.judgement import plain
from ablate.analysis.rule import at_look, read_rule
from ablate.analysis.tables.claims import COLUMNS, judge_claims
from ablate.errors import StudyError
from ablate.rundir import StudyDir

__all__ = ["LEDGER", "Claimed", "ledger", "read_claimed", "read_stored", "store"]

LEDGER = ["study", *COLUMNS, "trials", "seconds", "exploratory"]
KEPT = ["id", "arm", "seed", "lr", "status", "step", "steps", "seconds", "device", "torch"]
"""Columns of a trial that are stored beside the metrics."""
MANIFEST = ("study", "question", "created", "revision", "baseline", "claim", "decide",
            "decide_hash", "history", "code", "environment", "sweep", "budget")  # fmt: skip
SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class Claimed:
    """A study with claims: what of it the ledger needs."""

    manifest: Mapping[str, Any]
    trials: pd.DataFrame
    problem: str = ""
    """Why its arms cannot be compared; empty where they can."""


def read_claimed(studies: Sequence[StudyDir]) -> list[Claimed]:
    """Those of the studies that carry claims, in the order given; curves are not opened."""
    found = []
    for study in studies:
        manifest = study.manifest()
        claims = manifest.get("claim")
        if not isinstance(claims, list):
            continue
        frames, problem = load(study.path, curves=False), ""
        try:
            check_comparable(frames, [(c["of"], c["against"]) for c in claims])
        except StudyError as error:
            problem = str(error)
        found.append(Claimed(manifest=manifest, trials=frames.trials, problem=problem))
    return found


def ledger(claimed: Sequence[Claimed]) -> pd.DataFrame:
    """One row a claim, with the columns LEDGER; `trials` and `seconds` are the whole study's."""
    tables = []
    for one in claimed:
        rule, exploratory = read_rule(one.manifest)
        rule, reasons, _ = at_look(rule, one.manifest, one.trials)
        trials = one.trials.iloc[:0] if one.problem else one.trials
        table = judge_claims(trials, one.manifest["claim"], rule)
        if one.problem:
            table["note"] = one.problem
        seconds = pd.to_numeric(one.trials.get("seconds", pd.Series(dtype=float)))
        table.insert(0, "study", str(one.manifest.get("study")))
        table["trials"] = len(one.trials)
        table["seconds"] = float(seconds.sum())
        table["exploratory"] = "; ".join([*exploratory, *reasons])
        tables.append(table)
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=LEDGER)


def store(claimed: Sequence[Claimed]) -> str:
    """JSON of what the ledger is computed from: each trial's numbers, and the frozen claims.

    Raises:
        StudyError: for a study whose arms cannot be compared.
    """
    studies = []
    for one in claimed:
        if one.problem:
            raise StudyError(one.problem)
        metrics = {str(c["metric"]) for c in one.manifest["claim"]}
        metrics.add(str((one.manifest.get("decide") or {}).get("metric")))
        columns = [c for c in (*KEPT, *sorted(metrics)) if c in one.trials]
        rows = one.trials[list(dict.fromkeys(columns))].to_dict("records")
        studies.append(
            {
                "manifest": {k: one.manifest[k] for k in MANIFEST if k in one.manifest},
                "trials": [{str(k): _short(v) for k, v in row.items()} for row in rows],
            }
        )
    return json.dumps({"schema": SCHEMA, "studies": studies}, indent=1) + "\n"


def _short(value: Any) -> Any:
    value = plain(value)
    return float(f"{value:.9g}") if isinstance(value, float) else value


def read_stored(path: Path) -> list[Claimed]:
    """What `store` wrote.

    Raises:
        StudyError: for a file that holds no stored studies.
    """
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        if stored["schema"] != SCHEMA:
            raise StudyError(
                f"{path} has schema {stored['schema']}, and this ablate reads {SCHEMA}."
            )
        return [
            Claimed(manifest=s["manifest"], trials=_frame(s["trials"])) for s in stored["studies"]
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StudyError(
            f"{path} is no stored ledger ({error}). `ablate claims --save FILE` writes one."
        ) from None


def _frame(rows: list[dict[str, Any]]) -> pd.DataFrame:
    frame = pd.DataFrame.from_records(rows)
    for column in frame:
        if frame[column].isna().any() and column not in ("status", "device", "torch"):
            frame[column] = pd.to_numeric(frame[column]).astype(float)
    if "lr" not in frame:
        frame["lr"] = np.nan
    return frame
