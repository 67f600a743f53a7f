"""A study to wandb: one run a trial, rebuilt from the local files; done twice it changes nothing.

A run is continued behind the last step that the server has, so a mirror that followed the trial
live, a `sync` that was killed, and this one add up to one run with each step once. What the
server shows at the end is asked for, not assumed.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ablate.errors import TrackError
from ablate.rundir import ENDED, StudyDir, TrialDir, read_jsonl
from ablate.rundir.names import METRICS
from ablate.track.client import end_run, mark_online, only_writer, start_run, told
from ablate.track.facts import RECORD, Facts, facts_of, record_of, rows_of, summary_of
from ablate.track.offline import offline_runs, rebuild
from ablate.track.remote import Held, held_runs

__all__ = ["Copied", "Request", "Synced", "plan_sync", "sync_study"]

FINISH_SECONDS = 120.0
SHOWN_SECONDS = 10.0
"""A server may show a summary a little later than it took it."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """Where a study is to be mirrored."""

    offline: bool = False
    project: str | None = None
    """None: as each trial's configuration says."""
    entity: str | None = None
    columns: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Trial id -> more columns of its summary, such as the verdict of its arm."""


@dataclass(kw_only=True)
class Copied:
    """What was done with one trial."""

    trial: str
    arm: str
    id: str
    """wandb's id of the run."""
    status: str
    action: str = "pending"
    """created, continued, updated, unchanged, replaced; or skipped, with the reason."""
    rows: int = 0
    """Rows that were sent or written now."""
    url: str | None = None
    """Its page, or the folder of an offline run."""
    reason: str | None = None
    superseded: int = 0
    """Rows that an earlier attempt recorded and the counted record holds with other values."""


@dataclass(kw_only=True)
class Synced:
    study: str
    mode: str
    project: str
    entity: str | None
    runs: list[Copied]

    @property
    def counts(self) -> dict[str, int]:
        return dict(Counter(run.action for run in self.runs))

    def to_json(self) -> dict[str, Any]:
        runs = [vars(run) for run in self.runs]
        return {**vars(self), "runs": runs, "counts": self.counts}


@dataclass(frozen=True)
class _Task:
    trial: TrialDir
    facts: Facts
    done: Copied


def plan_sync(study: StudyDir, request: Request) -> Synced:
    """What would be mirrored, from the local files alone."""
    tasks = _tasks(study)
    return _synced(study, request, tasks)


def sync_study(
    study: StudyDir, request: Request, *, on_run: Callable[[Copied], None] = lambda run: None
) -> Synced:
    """Mirrors every trial that has begun.

    Args:
        study: on disk.
        request: where to, and the verdicts.
        on_run: called after each trial.

    Raises:
        AblateError: without a key, or where the server refuses.
        TrackError: where the server is away, or at the end does not show all.
    """
    tasks = _tasks(study)
    synced = _synced(study, request, tasks)
    begun = [task for task in tasks if task.done.action != "skipped"]
    for task in tasks:
        if task.done.action == "skipped":
            on_run(task.done)
    if request.offline:
        for task in begun:
            _write_offline(task, request)
            on_run(task.done)
        return synced
    held = _held(begun, request)
    for task in begun:
        _send(task, request, held.get(task.facts.id))
        on_run(task.done)
    _check(begun, request)
    return synced


def _tasks(study: StudyDir) -> list[_Task]:
    manifest = study.manifest()
    tasks = []
    for entry in manifest.get("trials", []):
        trial = study.trial(entry["id"])
        arm = str(entry.get("arm", entry["id"]))
        facts, state = facts_of(trial, manifest), trial.live_state()
        done = Copied(trial=trial.id, arm=arm, id=facts.id, status=state.status)
        if next(rows_of(trial), None) is None:
            done.action = "skipped"
            done.reason = "it recorded no row" if state.status in ENDED else "it has not begun"
        tasks.append(_Task(trial, facts, done))
    return tasks


def _synced(study: StudyDir, request: Request, tasks: Sequence[_Task]) -> Synced:
    track = next((t.facts.track for t in tasks if t.facts.track), {})
    return Synced(
        study=study.name,
        mode="offline" if request.offline else "online",
        project=request.project or track.get("project") or "ablate",
        entity=request.entity or track.get("entity"),
        runs=[task.done for task in tasks],
    )


def _place(task: _Task, request: Request) -> tuple[str | None, str]:
    """(entity, project) of a trial."""
    return (
        request.entity or task.facts.track["entity"],
        request.project or task.facts.track["project"],
    )


def _held(tasks: Sequence[_Task], request: Request) -> Held:
    """The runs that the server has of these trials, with their summaries."""
    held: Held = {}
    places = dict.fromkeys((*_place(task, request), task.facts.group) for task in tasks)
    for entity, project, group in places:
        held |= held_runs(entity, project, group)
    return held


# ---- offline


def _write_offline(task: _Task, request: Request) -> None:
    done, trial = task.done, task.trial
    with only_writer(trial) as alone:
        if not alone:
            done.action, done.reason = "skipped", "it is being mirrored right now"
            return
        entity, project = _place(task, request)
        columns = request.columns.get(trial.id, {})
        done.action, done.rows = rebuild(
            trial, done.status, facts=task.facts, columns=columns, project=project, entity=entity
        )
    if done.action in ("online", "sent"):
        done.reason = {
            "online": "a server has this run already: `ablate sync` without --offline continues it",
            "sent": "`wandb sync` has sent it and would repeat it: `ablate sync` without --offline",
        }[done.action]
        done.action = "skipped"
        return
    folders = offline_runs(trial, task.facts)
    done.url = str(folders[0]) if folders else None


# ---- online


def _send(task: _Task, request: Request, held: Mapping[str, Any] | None) -> None:
    done, trial = task.done, task.trial
    with only_writer(trial) as alone:
        if not alone:
            done.action, done.reason = "skipped", "it is being mirrored live"
            return
        record = _record(task, request)
        if held is not None and held.get(RECORD) == record:
            done.action = "unchanged"
            return
        with _folder() as folder:
            _send_rows(task, request, folder, record)
        for left in offline_runs(trial, task.facts):  # else `wandb sync` would send it twice
            shutil.rmtree(left, ignore_errors=True)
        done.superseded = _superseded(trial)


def _send_rows(task: _Task, request: Request, folder: Path, record: str) -> None:
    done, trial = task.done, task.trial
    entity, project = _place(task, request)
    try:
        run = start_run(
            task.facts,
            mode="online",
            folder=folder,
            project=project,
            entity=entity,
            finish_seconds=FINISH_SECONDS,
        )
    except Exception as error:
        raise told(error) from None
    mark_online(trial, run)
    done.url, sent = run.url, max(0, run.starting_step - 1)
    existed = bool(run.resumed)
    for row in rows_of(trial):
        if row["step"] > sent:
            run.log(row, step=row["step"], commit=True)
            sent, done.rows = row["step"], done.rows + 1
    summary = summary_of(trial, done.status, request.columns.get(trial.id, {}))
    try:
        end_run(run, {**summary, RECORD: record}, done.status)
    except TimeoutError:
        raise TrackError(
            f"wandb's server did not take the whole of {trial.id} in {FINISH_SECONDS:.0f} s. Run "
            "the same command again, it goes on where it stopped."
        ) from None
    done.action = "created" if not existed else "continued" if done.rows else "updated"


def _record(task: _Task, request: Request) -> str:
    summary = summary_of(task.trial, task.done.status, request.columns.get(task.trial.id, {}))
    return record_of(task.trial, task.facts, summary)


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """For wandb's own files: the study may lie where nothing can be written."""
    folder = tempfile.mkdtemp(prefix="ablate-sync-")
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _superseded(trial: TrialDir) -> int:
    """Steps that a cut-short attempt recorded with another loss than the record that counts.

    A live mirror may have sent them, and wandb takes no row back. On one kind of device there are
    none: a trial goes on bit for bit.
    """
    pieces = trial.lineage()
    if len(pieces) < 2:
        return 0
    counted = {row["step"]: row.get("train/loss") for row in trial.stitched()}
    differing = 0
    for attempt, _, end in pieces:
        for row in read_jsonl(attempt.path / METRICS):
            step = row.get("step", 0)
            if step > end and step in counted and row.get("train/loss") != counted[step]:
                differing += 1
    return differing


def _check(tasks: Sequence[_Task], request: Request) -> None:
    """Asks the server whether it shows every record that was sent."""
    sent = {t.facts.id: t for t in tasks if t.done.action in ("created", "continued", "updated")}
    if not sent:
        return
    wanted = {id: _record(task, request) for id, task in sent.items()}
    deadline, missing = time.monotonic() + SHOWN_SECONDS, set(sent)
    while True:
        held = _held(list(sent.values()), request)
        missing = {id for id in sent if (held.get(id) or {}).get(RECORD) != wanted[id]}
        if not missing or time.monotonic() > deadline:
            break
        time.sleep(1)
    # A trial that was being trained meanwhile has moved on; that is no loss.
    missing = {id for id in missing if sent[id].done.status in ENDED}
    if missing:
        one = sent[next(iter(missing))].trial.id
        raise TrackError(
            f"wandb's server does not show {len(missing)} of {len(sent)} runs whole yet (for "
            f"example {one}). Run the same command again in a while: it sends what is missing."
        )
