"""`launch` and `retry` on SLURM: says what it will ask for, asks for it, and returns."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ablate.config.schema import ClusterConfig
from ablate.launch.settings import remembered
from ablate.rundir import StudyDir, TrialDir

if TYPE_CHECKING:
    from ablate.launch.slurm.request import Request
    from ablate.plan import Plan

__all__ = ["launch_on_slurm", "request_of_plan", "submit_trials"]


def launch_on_slurm(
    plan: Plan, prepare: Callable[[], tuple[StudyDir, list[TrialDir]]], command: str, hold: bool
) -> int:
    """Prepares the data here, freezes the study, submits what is missing; 0 when SLURM has it."""
    from ablate.launch.preflight import check_data

    checked: list[Any] = []
    for arm in plan.arms:
        if arm.config["data"] not in checked:
            checked.append(arm.config["data"])
            check_data(arm.config, progress=True)
    request_of_plan(plan)  # refuses what SLURM cannot be asked for before anything is written
    study, missing = prepare()
    clusters = {t.id: ClusterConfig(**t.config["cluster"]) for t in plan.trials}
    return _submit(study, missing, clusters, command, hold)


def request_of_plan(plan: Plan) -> Request:
    """What a launch of this plan would ask SLURM for."""
    from ablate.launch.freeze import study_of
    from ablate.launch.slurm.submit import describe

    study = study_of(plan)
    clusters = {t.id: ClusterConfig(**t.config["cluster"]) for t in plan.trials}
    trials = [study.trial(t.id) for t in plan.trials]
    return describe(study, trials, clusters[plan.trials[0].id], clusters=clusters)


def submit_trials(
    study: StudyDir, trials: Sequence[TrialDir], cluster: Mapping[str, Any], command: str
) -> int:
    """Trials of a study that was launched on SLURM before: each asks for what its arm did then."""
    settings = remembered(study)
    arms = {} if settings is None else settings.arms
    of_trial = {t["id"]: t["arm"] for t in study.manifest().get("trials", [])}
    clusters = {
        t.id: ClusterConfig(**arms.get(of_trial.get(t.id, ""), dict(cluster))) for t in trials
    }
    return _submit(study, trials, clusters, command, hold=False)


def _submit(
    study: StudyDir,
    trials: Sequence[TrialDir],
    clusters: Mapping[str, ClusterConfig],
    command: str,
    hold: bool,
) -> int:
    from ablate.launch.slurm.scheduler import Scheduler
    from ablate.launch.slurm.submit import describe, submit

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    if not trials:
        say(f"{study.name}: nothing is missing. The verdicts: ablate report {study.name}")
        return 0
    scheduler, first = Scheduler(), clusters[trials[0].id]
    request = describe(study, trials, first, clusters=clusters, scheduler=scheduler)
    say(request.text())
    limit = first.max_gpu_hours
    if limit is not None and request.gpu_hours > limit:
        say(
            f"That is more than cluster.max_gpu_hours={limit:g}: if it is used up, the trials that "
            "run save and stop, and the others are held."
        )
    made = submit(
        study,
        trials,
        first,
        command=command,
        hold=hold,
        clusters=clusters,
        scheduler=scheduler,
    )
    jobs = [f"{s.job_id} ({s.kind})" for s in made]
    if jobs:
        say(f"Submitted: {', '.join(jobs)}." + (" Held: scontrol release JOB." if hold else ""))
    else:
        say("Nothing was submitted: all of it is in the queue already.")
    say(f"Where it stands: ablate status {study.name}, or ablate watch {study.name}")
    return 0
