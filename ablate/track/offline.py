"""Offline runs: one that is rebuilt whole from the local files, and reading any of them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ablate.errors import DataError
from ablate.rundir import TrialDir, write_json
from ablate.track.client import FOLDER, end_run, is_online_elsewhere, log_rows, start_run
from ablate.track.facts import RECORD, Facts, facts_of, record_of, rows_of, summary_of
from ablate.track.records import Record

__all__ = ["find_offline", "offline_runs", "read_offline", "read_offline_runs", "rebuild"]

NOTE = "ablate.json"
"""Beside the run: which local record it holds."""


def rebuild(
    trial: TrialDir,
    status: str,
    *,
    facts: Facts | None = None,
    columns: Mapping[str, Any] | None = None,
    project: str | None = None,
    entity: str | None = None,
) -> tuple[str, int]:
    """One offline run with the whole record, in place of an earlier one; complete or absent.

    wandb cannot continue an offline run, and its server would take the same steps twice: what was
    sent once is left to `ablate sync` online.

    Returns:
        what was done (created, replaced, unchanged, online, sent) and the rows written.
    """
    facts = facts or facts_of(trial)
    if is_online_elsewhere(trial, facts):
        return "online", 0
    summary = summary_of(trial, status, columns or {})
    record = record_of(trial, facts, {**summary, "to": [project, entity]})
    old = offline_runs(trial, facts)
    if any(list(folder.glob("*.synced")) for folder in old):
        return "sent", 0
    if len(old) == 1 and _note(old[0]) == record:
        return "unchanged", 0
    parent = trial.path / FOLDER
    for left in parent.glob(".building-*"):
        shutil.rmtree(left, ignore_errors=True)
    building = parent / f".building-{uuid.uuid4().hex[:8]}"
    building.mkdir(parents=True)
    try:
        run = start_run(facts, mode="offline", folder=building, project=project, entity=entity)
        _, rows = log_rows(run, rows_of(trial))
        end_run(run, {**summary, RECORD: record}, status)
        (made,) = (building / "wandb").glob("offline-run-*")
        write_json(made / NOTE, {"record": record})
        for folder in old:
            shutil.rmtree(folder)
        os.rename(made, parent / made.name)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return "replaced" if old else "created", rows


def offline_runs(trial: TrialDir, facts: Facts) -> list[Path]:
    """Offline runs of this very run below the trial's folder."""
    return sorted((trial.path / FOLDER).glob(f"offline-run-*-{facts.id}"))


def _note(folder: Path) -> str | None:
    try:
        return json.loads((folder / NOTE).read_text())["record"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


# ---- reading


def find_offline(path: str | Path) -> list[Path]:
    """The logs (`*.wandb`) at or below a path, oldest first; links are not followed."""
    path = Path(path)
    if path.is_file() and path.suffix == ".wandb":
        return [path]
    found = [p for p in path.rglob("*.wandb") if not p.is_symlink() and p.is_file()]
    found = [p for p in found if not any(q.is_symlink() for q in _between(p, path))]
    return sorted(found, key=lambda p: (p.parent.name, str(p)))


def _between(path: Path, top: Path) -> Iterator[Path]:
    for parent in path.parents:
        if parent == top:
            return
        yield parent


def read_offline(folder: str | Path) -> list[dict[str, Any]]:
    """The rows of one offline run, as they were logged; `_step` is wandb's own counter.

    Raises:
        DataError: where there is no run, or more than one.
    """
    logs = find_offline(folder)
    if len(logs) > 1:
        named = ", ".join(str(p.parent) for p in logs[:3])
        raise DataError(f"{folder} holds {len(logs)} wandb runs: name one of them ({named}, ...).")
    return read_offline_runs(folder)[0].rows


def read_offline_runs(folder: str | Path) -> list[Record]:
    """Every offline run at or below a folder. Pieces of one run (its attempts) stay apart.

    Raises:
        DataError: where there is none, or wandb cannot read it.
    """
    logs = find_offline(folder)
    if not logs:
        raise DataError(
            f"{folder} holds no wandb run: there is no file *.wandb in it. Name a folder such as "
            "wandb/offline-run-20260101_120000-abcd1234, or the one above."
        )
    return [_read(log) for log in logs]


def _read(log: Path) -> Record:
    """`wandb leet inspect` is the public way in: one JSON object a record of the log."""
    command = [sys.executable, "-P", "-m", "wandb", "leet", "inspect", "--json", str(log)]
    environment = {**os.environ, "WANDB_ERROR_REPORTING": "false"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=environment, timeout=600
        )
    except subprocess.TimeoutExpired:
        raise DataError(f"{log}: wandb did not read it in 10 minutes.") from None
    record = Record(id=log.stem.removeprefix("run-"))
    for line in done.stdout.splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue  # wandb says something
        if isinstance(entry, dict):
            _take(record, entry)
    if done.returncode and not (record.rows or record.config):
        said = " ".join(done.stderr.split())[-300:] or f"it ended with {done.returncode}"
        raise DataError(f"{log} cannot be read by wandb: {said}")
    return record


def _take(record: Record, entry: dict[str, Any]) -> None:
    kind = entry.get("type")
    body = entry.get(kind) if isinstance(kind, str) else None
    if not isinstance(body, dict):
        return
    if kind == "run":
        record.id = body.get("run_id") or record.id
        record.name = body.get("display_name") or record.name
        record.group = body.get("run_group") or record.group
        record.job_type = body.get("job_type") or record.job_type
        record.project = body.get("project") or record.project
        record.tags = body.get("tags") or record.tags
        _merge(record.config, (body.get("config") or {}).get("update") or {})
    elif kind == "config":
        _merge(record.config, body.get("update") or {})
    elif kind == "history":
        record.add(body.get("item") or {})
    elif kind == "summary":
        record.add_summary(body.get("update") or {})
    elif kind == "exit":
        record.state = "finished" if not body.get("exit_code") else "failed"


def _merge(config: dict[str, Any], update: Mapping[str, Any]) -> None:
    config.update({key: value for key, value in update.items() if key != "_wandb"})
