"""What `chaos.py` checks when all is over, and its table."""

from __future__ import annotations

import struct
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pyarrow.parquet as parquet

from ablate.rundir import StudyDir, TrialDir

TIMED = ("tokens_per_second", "seconds", "time", "peak_memory", "data_share")
"""Columns that depend on the clock."""


@dataclass
class Verdict:
    trials: int
    violations: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    faults: Counter[str] = field(default_factory=Counter)
    missed: list[str] = field(default_factory=list)
    """Kinds of faults that struck nobody before the end."""

    def note(self, what: str, figure: Any) -> None:
        self.figures[what] = figure

    def table(self) -> str:
        rows = [(f"fault: {kind}", n) for kind, n in sorted(self.faults.items())]
        rows += [(f"fault: {kind}", 0) for kind in self.missed]
        rows += list(self.figures.items())
        rows += [("violations", len(self.violations))]
        width = max(len(name) for name, _ in rows)
        lines = [f"{name.ljust(width)}  {value}" for name, value in rows]
        return "\n".join([*lines, *(f"VIOLATION {v}" for v in self.violations[:40])])


def judge(study: StudyDir, undisturbed: StudyDir, steps: int, cancelled: list[str]) -> Verdict:
    """Every trial done, none lost, none twice, every curve the undisturbed one."""
    trials = study.trials()
    verdict = Verdict(len(trials))
    expected = [t.id for t in undisturbed.trials()]
    if [t.id for t in trials] != expected:
        verdict.violations.append("the two studies do not have the same trials")
    identical, attempts, resumed = 0, Counter[int](), 0
    outcomes: Counter[str] = Counter()
    for trial in trials:
        for complaint in _complaints(trial, steps):
            verdict.violations.append(f"{trial.id}: {complaint}")
        attempts[len(trial.attempts())] += 1
        resumed += len(trial.lineage()) > 1
        for attempt in trial.attempts():
            own = attempt.own_state()
            outcomes[(own.outcome or own.status) if own else "without a word"] += 1
        if trial.metrics_path.exists():
            same = _curve(trial) == _curve(undisturbed.trial(trial.id))
            identical += same
            if not same:
                verdict.violations.append(f"{trial.id}: its curve is another one")
    statuses = Counter(t.state().status for t in trials)
    verdict.note("trials", len(trials))
    verdict.note("done", statuses["done"])
    verdict.note("cancelled meanwhile, done after one retry", len(cancelled))
    verdict.note("lost", len(trials) - sum(t.metrics_path.exists() for t in trials))
    verdict.note("curves bit-identical", identical)
    verdict.note("attempts of a trial: trials", dict(sorted(attempts.items())))
    verdict.note("trials whose record comes from several attempts", resumed)
    verdict.note("how attempts ended", dict(outcomes.most_common()))
    return verdict


def _complaints(trial: TrialDir, steps: int) -> list[str]:
    state, found = trial.state(), []
    if state.status != "done":
        return [f"{state.status} at step {state.step}: {state.reason}"]
    attempts = trial.attempts()
    own = [a.own_state() for a in attempts]
    finished = [a.number for a, s in zip(attempts, own, strict=True) if s and s.status == "done"]
    if finished != [attempts[-1].number] or state.attempt != attempts[-1].number:
        found.append(f"attempts {finished} say done; {state.attempt} of {len(attempts)} counts")
    if [a.number for a in attempts] != list(range(1, len(attempts) + 1)):
        found.append(f"attempts are numbered {[a.number for a in attempts]}")
    table = parquet.read_table(trial.metrics_path)
    if table["step"].to_pylist() != list(range(1, steps + 1)):
        found.append(f"its record has {table.num_rows} rows, not each of {steps} steps once")
    if [r["step"] for r in trial.stitched()] != list(range(1, steps + 1)):
        found.append("its attempts, stitched anew, do not give each step once")
    if not trial.summary():
        found.append("it has no summary")
    return found


def _curve(trial: TrialDir) -> dict[str, list[bytes]]:
    """Every column but those of the clock, as bits."""
    table = parquet.read_table(trial.metrics_path)
    return {
        name: [b"-" if v is None else struct.pack("<d", float(v)) for v in table[name].to_pylist()]
        for name in table.column_names
        if not any(word in name for word in TIMED)
    }
