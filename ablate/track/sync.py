"""A study to wandb: one run a trial, from the local files; done twice it changes nothing."""

from __future__ import annotations

from collections.abc import Callable

from ablate.errors import StudyError
from ablate.rundir import ENDED, StudyDir
from ablate.track.client import only_writer
from ablate.track.copies import Copied, Request, Synced, Task
from ablate.track.facts import facts_of, id_of, rows_of
from ablate.track.offline import offline_runs, rebuild
from ablate.track.sending import check_shown, held_of, send

__all__ = ["Copied", "Request", "Synced", "plan_sync", "sync_study"]


def plan_sync(study: StudyDir, request: Request) -> Synced:
    """What would be mirrored, from the local files alone."""
    tasks, damaged = _tasks(study, request)
    return _synced(study, request, tasks, damaged)


def sync_study(
    study: StudyDir, request: Request, *, on_run: Callable[[Copied], None] = lambda run: None
) -> Synced:
    """Mirrors every trial that has begun; one whose files are damaged is named, and stops no other.

    Args:
        study: on disk.
        request: where to, and the verdicts.
        on_run: called after each trial.

    Raises:
        AblateError: without a key, or where the server refuses.
        TrackError: where the server is away, or at the end does not show all.
    """
    tasks, damaged = _tasks(study, request)
    for one in damaged:
        on_run(one)
    begun = [task for task in tasks if task.done.action != "skipped"]
    for task in tasks:
        if task.done.action == "skipped":
            on_run(task.done)
    held = {} if request.offline else held_of(begun)
    for task in begun:
        if request.offline:
            _write_offline(task)
        else:
            send(task, held.get(task.facts.id))
        on_run(task.done)
    if not request.offline:
        check_shown(begun)
    return _synced(study, request, tasks, damaged)


def _tasks(study: StudyDir, request: Request) -> tuple[list[Task], list[Copied]]:
    """The work, and the trials that cannot be read."""
    manifest = study.manifest()
    tasks, damaged = [], []
    for entry in manifest.get("trials", []):
        trial = study.trial(entry["id"])
        status = trial.live_state().status
        done = Copied(
            trial=trial.id,
            arm=str(entry.get("arm", entry["id"])),
            id=id_of(trial, manifest),
            status=status,
        )
        try:
            if damage := trial.record_damage():  # wandb takes no row back
                raise StudyError(damage)
            facts = facts_of(trial, manifest)
            task = Task(trial=trial, facts=facts, request=request, done=done)
            begun = next(rows_of(trial), None) is not None
            if begun:
                task.summary()  # reads what else will be told, now that nothing was sent
        except StudyError as error:
            done.action, done.reason = "damaged", str(error)
            damaged.append(done)
            continue
        if not begun:
            done.action = "skipped"
            done.reason = "it recorded no row" if status in ENDED else "it has not begun"
        tasks.append(task)
    return tasks, damaged


def _synced(study: StudyDir, request: Request, tasks: list[Task], damaged: list[Copied]) -> Synced:
    track = next((t.facts.track for t in tasks if t.facts.track), {})
    return Synced(
        study=study.name,
        mode="offline" if request.offline else "online",
        project=request.project or track.get("project") or "ablate",
        entity=request.entity or track.get("entity"),
        runs=[task.done for task in tasks] + damaged,
    )


def _write_offline(task: Task) -> None:
    done, trial = task.done, task.trial
    with only_writer(trial) as alone:
        if not alone:
            done.action, done.reason = "skipped", "it is being mirrored right now"
            return
        done.action, done.rows = rebuild(
            trial,
            done.status,
            facts=task.facts,
            columns=task.columns,
            project=task.project,
            entity=task.entity,
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
