"""A trial as people see it, by its own files alone."""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ablate.config.fingerprint import fingerprint
from ablate.errors import StudyError
from ablate.rundir import ENDED, Ended, State, StudyDir, TrialDir, read_ended, summary_damage
from ablate.rundir.configuration import looks_whole, parse_sections
from ablate.rundir.files import open_file
from ablate.rundir.names import ATTEMPTS, CONFIG

__all__ = ["TrialView", "seen_in_files"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialView:
    """A trial as people see it."""

    id: str
    arm: str
    seed: int
    lr: float | None = None
    status: str
    """One of STATUSES; that a trial waits in SLURM's queue is `slurm_state`."""
    outcome: str | None = None
    step: int = 0
    steps: int = 0
    loss: float | None = None
    eta: float | None = None
    """Seconds until its last step, where it runs."""
    node: str | None = None
    attempt: int = 0
    reason: str | None = None
    job_id: str | None = None
    slurm_state: str | None = None
    """SLURM's own word, None where it was not asked or does not know."""
    host: str | None = None
    pid: int | None = None
    heartbeat: float | None = None
    started: float | None = None
    ended: float | None = None
    path: str = ""
    damage: str | None = None
    """What is wrong with a file of the trial; the rest is what the others say."""

    def replace(self, **changes: Any) -> TrialView:
        return dataclasses.replace(self, **changes)

    def to_json(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}


def seen_in_files(study: StudyDir, entry: Mapping[str, Any]) -> TrialView:
    """One trial by its own files; a damaged one is shown as failed and hides no other."""
    trial = study.trial(entry["id"])
    keys = {"id": entry["id"], "arm": entry["arm"], "seed": entry.get("seed", 0)}
    keys["lr"] = entry.get("lr")
    try:
        return _seen(trial, keys, entry.get("fingerprint"))
    except (StudyError, OSError) as error:
        is_ours = isinstance(error, StudyError)
        said = str(error) if is_ours else f"{error.filename}: {error.strerror}."
        return TrialView(**keys, status="failed", outcome="code", reason=said, damage=said)


def _seen(trial: TrialDir, keys: Mapping[str, Any], mark: str | None) -> TrialView:
    ended = read_ended(trial)
    state = ended.state if ended else _live_state(trial)
    wrong = None if ended else trial.record_damage()
    wrongs = (state.damage, wrong, _config_damage(trial, mark, ended))
    damage = " ".join(filter(None, wrongs)) or None
    view = TrialView(
        **keys,
        status=state.status,
        outcome=state.outcome,
        step=state.step,
        steps=state.steps,
        node=state.host,
        attempt=state.attempt,
        reason=damage or state.reason,
        job_id=state.job_id,
        host=state.host,
        pid=state.pid,
        heartbeat=state.heartbeat,
        started=state.started,
        ended=state.ended,
        path=str(trial.path),
        damage=damage,
    )
    if state.status == "done":
        return _with_final_loss(view, trial, ended)
    return view if state.attempt == 0 else _with_progress(view, trial)


def _live_state(trial: TrialDir) -> State:
    """`TrialDir.live_state`, without looking at the attempts of a trial that plainly has ended."""
    state = trial.state()
    attempts = os.path.join(trial.path, ATTEMPTS)
    if state.attempt == 0 and state.status == "pending" and not os.path.isdir(attempts):
        return state
    newer = os.path.join(attempts, str(state.attempt + 1))
    if state.status in ENDED and not os.path.exists(newer):
        return state
    return trial.live_state()


def _config_damage(trial: TrialDir, mark: str | None, ended: Ended | None) -> str | None:
    """Whether config.yaml cannot be read, or is not the one of which the manifest has `mark`, the
    fingerprint.
    """
    try:
        if ended:
            text = ended.config
        else:
            with open_file(trial.path / CONFIG) as file:
                text = file.read().decode(errors="replace")
        found = _fingerprint_of(text)
        if found is None:
            trial.config()
    except (FileNotFoundError, NotADirectoryError):
        return None  # planned, and not written yet
    except StudyError as error:
        return str(error)
    if mark is None or found == mark or not trial.id.endswith(mark[:8]):
        return None
    return (
        f"{trial.path / CONFIG} is damaged: it is not the configuration that the trial was made "
        f"of. {trial.config_remedy()}"
    )


@functools.lru_cache(maxsize=4096)
def _fingerprint_of(text: str) -> str | None:
    """None where the text is no whole configuration."""
    if not looks_whole(text) or "\ufffd" in text:
        return None
    try:
        return fingerprint(parse_sections(text))
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def _with_final_loss(view: TrialView, trial: TrialDir, ended: Ended | None) -> TrialView:
    """From the summary; where that cannot be read, from the record's last row."""
    if ended:
        return view.replace(loss=_number(ended.summary.get("train/loss")))
    try:
        summary = trial.summary()
        wrong = None if summary is not None else summary_damage(trial)
    except StudyError as error:
        summary, wrong = None, str(error)
    if wrong is None:
        return view.replace(loss=_number((summary or {}).get("train/loss")))
    damage = " ".join(filter(None, (view.damage, wrong)))
    loss = _number((trial.latest_row() or {}).get("train/loss"))
    return view.replace(loss=loss, damage=damage, reason=damage)


def _with_progress(view: TrialView, trial: TrialDir) -> TrialView:
    row = trial.latest_row()
    if row is None:
        return view
    step = max(view.step, int(row.get("step", 0))) if view.status == "running" else view.step
    view = view.replace(step=step, loss=_number(row.get("train/loss")))
    if view.status != "running":
        return view
    attempt = trial.newest_attempt()
    record = attempt.record() if attempt is not None else {}
    return view.replace(eta=_seconds_left(view, row, record), node=record.get("node") or view.node)


def _seconds_left(
    view: TrialView, row: Mapping[str, Any], record: Mapping[str, Any]
) -> float | None:
    left, step = view.steps - view.step, int(row.get("step", 0))
    speed, tokens = _number(row.get("tokens_per_second")), _number(row.get("tokens"))
    if left <= 0 or step <= 0:
        return 0.0 if step > 0 else None
    if speed and tokens:
        return left * tokens / step / speed
    done = step - int((record.get("resumed") or {}).get("step", 0))
    began = record.get("time")
    return left * (time.time() - began) / done if began and done > 0 else None


def _number(value: Any) -> float | None:
    """JSON has no NaN, so a loss that is none is no number here either."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
