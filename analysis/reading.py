"""One trial's files: its row, its configuration, its events (its curve: `recorded`)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from ablate.analysis.damage import damaged_row
from ablate.errors import StudyError
from ablate.rundir import (
    ENDED,
    Ended,
    State,
    StudyDir,
    TrialDir,
    read_ended,
    read_jsonl,
    summary_damage,
)
from ablate.rundir.files import open_file
from ablate.rundir.names import CONFIG, EVENTS

__all__ = ["KEYS", "flatten", "read_config", "read_events", "read_index", "trial_row"]

KEYS = ["study", "id", "arm", "seed"]
"""The columns that every frame starts with; (study, id) names a trial."""

_SECTION = re.compile(r"\n(?=[A-Za-z_])")
_HEAD = re.compile(r"[A-Za-z_]\w*:")
_ENTRY = re.compile(r"  [A-Za-z_]\w*: *\S")
"""One of a section that goes no deeper."""
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested sections to dotted keys; lists stay values."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + str(key)] = value
    return flat


def read_index(study: StudyDir, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Everything but the curves."""
    arms = {a["name"]: a for a in manifest.get("arms", [])}
    name = study.name
    rows, configs, events = [], [], []
    source = {t: s.source for s in study.submissions() for t in s.jobs_of_trials()}
    for entry in manifest.get("trials", []):
        trial = study.trial(entry["id"])
        ended = read_ended(trial)
        row = {"source": source.get(entry["id"])} | trial_row(
            name, trial, entry, arms.get(entry["arm"], {}), ended
        )
        try:
            config = read_config(trial, ended)
            happened = read_events(trial, row["status"] in ENDED, ended)
        except StudyError as error:
            row, config, happened = damaged_row(row, str(error)), {}, []
        rows.append(row)
        configs.append(config)
        events.append(happened)
    return {"rows": rows, "configs": configs, "events": events}


def read_config(trial: TrialDir, ended: Ended | None = None) -> dict[str, Any]:
    """The flat configuration; empty where the trial is planned and not yet written."""
    try:
        text = ended.config if ended else _text(trial.path / CONFIG)
    except FileNotFoundError:
        if trial.path.exists():
            raise StudyError(
                f"{trial.path / CONFIG} is missing; launch the study again to write it."
            ) from None
        return {}
    except UnicodeDecodeError:
        return flatten(trial.config())  # which says what is wrong
    except NotADirectoryError:
        raise StudyError(f"{trial.path} is damaged (it is no folder). Move it away.") from None
    flat: dict[str, Any] = {}
    try:
        if "&" in text or "---" in text:  # anchors and documents reach over sections
            return flatten(trial.config() or {})
        *sections, last = _SECTION.split(text)
        for section in sections:
            flat |= _section(section + "\n")  # which a block of text may end with
        flat |= _section(last)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise StudyError(f"{trial.path / CONFIG} is damaged: {error}") from None
    if not flat:
        raise StudyError(f"{trial.path / CONFIG} is damaged: it holds no configuration.")
    return flat


def _text(path: Path) -> str:
    with open_file(path) as file:
        return file.read().decode()


@lru_cache(maxsize=4096)
def _section(text: str) -> dict[str, Any]:
    """Trials of a study share most sections, and most lines of the others; each is parsed once."""
    head, *lines = text.rstrip("\n").split("\n")
    if lines and _HEAD.fullmatch(head) and all(map(_ENTRY.match, lines)):
        try:
            (key,) = _line(head)  # `on:` is a truth value
            return flatten({key: {k: v for line in lines for k, v in _line(line).items()}})
        except yaml.YAMLError:
            pass  # what is quoted over several lines
    tree = yaml.load(text, _LOADER)
    return flatten(tree) if isinstance(tree, Mapping) else {}


@lru_cache(maxsize=16384)
def _line(text: str) -> dict[str, Any]:
    tree = yaml.load(text, _LOADER)
    if not isinstance(tree, Mapping):
        raise yaml.YAMLError(text)
    return dict(tree)


def trial_row(
    study: str,
    trial: TrialDir,
    entry: Mapping[str, Any],
    arm: Mapping[str, Any],
    ended: Ended | None = None,
) -> dict[str, Any]:
    """A row of `trials`: what was planned, where it stands, and what its summary says."""
    state, summary, damage = (ended.state, ended.summary, None) if ended else _standing(trial)
    row: dict[str, Any] = {
        "study": study,
        "id": trial.id,
        "arm": entry["arm"],
        "seed": entry.get("seed", 0),
        "lr": entry.get("lr"),
        "reference": arm.get("reference"),
        "status": state.status,
        "outcome": state.outcome,
        "reason": state.reason,
        "step": state.step,
        "steps": state.steps,
        "attempt": state.attempt,
        "fingerprint": entry.get("fingerprint"),
        "parameters": arm.get("parameters"),
        "flops_per_token": arm.get("flops_per_token"),
    }
    row |= {f"level/{factor}": label for factor, label in (arm.get("levels") or {}).items()}
    row["damage"] = damage
    row |= {k: v for k, v in flatten(summary).items() if row.get(k) is None}
    return row


def _standing(trial: TrialDir) -> tuple[State, dict[str, Any], str | None]:
    """State and summary of any trial, and what is wrong with them or with the attempts."""
    state = trial.live_state()
    damage, attempts = state.damage or "", trial.record_damage()
    # The state's own word counts: a summary left by an earlier attempt says nothing of an
    # unfinished trial.
    summary: dict[str, Any] = {}
    if state.status in ENDED:
        try:
            summary = trial.summary() or {}
            wrong = summary_damage(trial) if state.status == "done" else None
        except StudyError as error:
            wrong = str(error)
        damage = " ".join(filter(None, (damage, wrong)))
    if attempts is not None and attempts not in damage:  # as where its seal could not be read
        damage = f"{damage} {attempts}".strip()
    return state, summary, damage or None


def read_events(
    trial: TrialDir, has_ended: bool, ended: Ended | None = None
) -> list[dict[str, Any]]:
    """The events that count; nested values as JSON."""
    events: Iterable[Mapping[str, Any]]
    if ended:
        events = ended.events
    elif has_ended and trial.events_path.exists():
        events = read_jsonl(trial.events_path)
    else:
        events = trial.stitched(EVENTS)
    return [
        {
            _RENAMED.get(k, k): json.dumps(v) if isinstance(v, dict | list) else v
            for k, v in event.items()
            if k not in KEYS or k in _RENAMED
        }
        for event in events
    ]


_RENAMED = {"arm": "detector"}
"""An event's `arm` is the detector that saw it; a frame's is the configuration under test."""
