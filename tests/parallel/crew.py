"""Runs trials in several processes, and looks at what came out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ablate.config.fingerprint import trial_id
from ablate.rundir import TrialDir

sys.path.insert(0, str(Path(__file__).parents[1] / "train"))

from tiny import Server

__all__ = ["STEPS", "Config", "Crew", "Rows", "largest_differences", "make_trial", "said"]

STEPS = 20
Config = dict[str, Any]
Rows = list[dict[str, Any]]


class Crew(Server):
    """Runs trials in several processes."""

    def __init__(self) -> None:
        super().__init__(Path(__file__).with_name("forked_ranks.py"))

    def run(
        self,
        trial: TrialDir,
        processes: int,
        fault: Config | None = None,
        timeout: float = 100,
        moment: float = 20,
    ) -> list[int]:
        """Exit codes of the processes of one attempt; -9 where one was killed.

        Args:
            moment: seconds that the others have left when the first has ended.
        """
        request = {"trial": str(trial.path), "world": processes, "fault": fault, "moment": moment}
        return self.ask(patience=timeout + 60, timeout=timeout, **request)


def make_trial(folder: Path, config: Config) -> TrialDir:
    trial = TrialDir(folder / "study" / "trials" / trial_id("arm", config))
    trial.create(config, config["train"]["steps"])
    return trial


def said(trial: TrialDir) -> str:
    """What the processes of a trial have printed and logged."""
    files = [*trial.path.parent.glob("*.out"), *trial.path.glob("attempts/*/log*")]
    return "\n".join(f"--- {f.name}\n{f.read_text()}" for f in sorted(files))


def largest_differences(rows: Rows, expected: Rows) -> dict[str, float]:
    """By column, relative to the value that was expected (of a measurement near 0: to 0.1); real
    tokens a second as a share of all, which no clock changes.
    """
    rows, expected = ([_unclocked(row) for row in each] for each in (rows, expected))
    assert [sorted(r) for r in rows] == [sorted(r) for r in expected]
    found: dict[str, float] = {}
    for row, other in zip(rows, expected, strict=True):
        for key in row.keys() - {"tokens_per_second"}:
            if key.startswith("time/"):
                continue
            least = 0.1 if key.startswith("model/") else 1e-12
            difference = abs(row[key] - other[key]) / max(abs(other[key]), least)
            found[key] = max(found.get(key, 0.0), difference)
    return found


def _unclocked(row: dict[str, Any]) -> dict[str, Any]:
    real = "batching/real_tokens_per_second"
    return {**row, real: row[real] / row["tokens_per_second"]} if real in row else row
