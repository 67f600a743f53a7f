"""`ablate launch ... cluster=slurm` (and `cluster=debug`): from a plan to jobs in the queue."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from ablate.config.schema import ClusterConfig
from ablate.launch.freeze import freeze, study_of
from ablate.launch.preflight import check_data_of_all, check_training_of_all, freeze_data
from ablate.launch.settings import remember_plan
from ablate.launch.slurm.submit import describe, describe_dry, submit
from ablate.plan import Plan
from ablate.rundir import ENDED, StudyDir, Submission, TrialDir, incidents

__all__ = ["debug_plan", "launch_plan"]


def launch_plan(
    plan: Plan,
    *,
    command: str,
    again: Sequence[str] = (),
    dry_run: bool = False,
    hold: bool = False,
    say: Callable[[str], None] = print,
) -> list[Submission]:
    """Shows the request, freezes the study, submits what is missing, and returns at once.

    Args:
        plan: what is to be run.
        command: that asked for it.
        again: ended statuses that are run once more.
        dry_run: show the request only; nothing is written.
        hold: submit held jobs.
        say: prints a paragraph.

    Raises:
        AblateError: before anything is submitted.
    """
    study = study_of(plan)
    kinds: dict[str, ClusterConfig] = {}
    clusters: dict[str, ClusterConfig] = {}
    for t in plan.trials:
        key = json.dumps(t.config["cluster"])
        if key not in kinds:
            kinds[key] = ClusterConfig(**t.config["cluster"])
        clusters[t.id] = kinds[key]
    trials = [study.trial(t.id) for t in plan.trials]
    common = next(iter(clusters.values()))
    asked: dict[str, Any] = {"clusters": clusters, "again": again, "stacking": plan.stacking}
    if dry_run:
        request = describe_dry(study, trials, common, say=say, **asked)
    else:
        request = describe(study, trials, common, **asked)
    held = incidents.held(study.path)
    if held is not None:
        n = len(held["trials"])
        say(f"{n} trials failed in the same way and held the rest back: {held['reason']}")
        say("This launch runs them with the code as it is now.")
    say(request.text() if request.classes else "Nothing is missing.")
    if dry_run:
        return []
    if not request.classes:  # but a job may wait for somebody to release it
        return submit(study, trials, common, command=command, **asked)
    # A node may have no network.
    texts = check_data_of_all((arm.config for arm in plan.arms), study)
    remember_plan(freeze(plan, command), plan, command)
    freeze_data(study, texts)
    if held is not None:
        # What failed as the canary failed for the code that has changed since.
        asked["again"] = tuple({*again, "failed"})
    made = submit(study, trials, common, command=command, hold=hold, **asked)
    arrays = [s for s in made if s.kind == "trials"]
    waiting = sum(len(s.held_back) for s in made)
    left = sum(len(c.trials) for c in request.classes) - waiting - sum(map(_trials, arrays))
    say(
        f"Submitted {sum(len(s.tasks) for s in arrays)} tasks as "
        f"{', '.join(s.job_id for s in arrays) or 'nothing'}"
        + (f"; {waiting} trials wait for the feeder" if waiting else "")
        + f". Follow them: ablate status {study.word}"
    )
    if left > 0:
        say(
            f"{left} trials were not submitted: SLURM takes no more of yours, not even a feeder. "
            "Launch again when some have ended."
        )
    return made


def _trials(submission: Submission) -> int:
    return sum(map(len, submission.tasks))


def debug_plan(
    plan: Plan,
    *,
    command: str,
    again: Sequence[str] = (),
    seer: Callable[[TrialDir], Callable[[dict[str, Any]], None]] = lambda trial: lambda row: None,
) -> StudyDir:
    """Runs what is missing in this process, one after the other: breakpoints work, and an
    exception ends it.

    Args:
        plan: to be frozen and run.
        command: that asked for it.
        again: ended statuses that are run again.
        seer: of a trial that begins; what it returns sees every row of metrics.
    """
    import submitit

    from ablate.launch.job import run_job
    from ablate.launch.together import on_its_seat

    texts = check_data_of_all((arm.config for arm in plan.arms), study_of(plan))
    check_training_of_all((f"Arm {arm.name}", arm.config) for arm in plan.arms)
    study = freeze(plan, command)
    remember_plan(study, plan, command)
    freeze_data(study, texts)
    executor = submitit.DebugExecutor(study.path / "submitit" / "debug")
    run = on_its_seat(plan.trials[0].config["cluster"].get("stack"))
    for trial in study.trials():
        state = trial.live_state()
        if state.status not in ENDED or state.status in again:
            sees = seer(trial)
            executor.submit(run_job, trial, again=again, run=run, on_row=sees).result()
    return study
