"""`retry` on SLURM: says what it will ask for, asks for it, and returns."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ablate.config.schema import ClusterConfig
from ablate.launch.settings import remembered
from ablate.rundir import StudyDir, TrialDir

__all__ = ["submit_trials"]


def submit_trials(
    study: StudyDir, trials: Sequence[TrialDir], cluster: Mapping[str, Any], command: str
) -> int:
    """Trials of a study that was launched on SLURM before: each asks for what its arm did then."""
    from ablate.launch.slurm.scheduler import Scheduler
    from ablate.launch.slurm.submit import describe, submit

    settings = remembered(study)
    arms = {} if settings is None else settings.arms
    of_trial = {t["id"]: t["arm"] for t in study.manifest().get("trials", [])}
    clusters = {
        t.id: ClusterConfig(**arms.get(of_trial.get(t.id, ""), dict(cluster))) for t in trials
    }

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    scheduler, first = Scheduler(), clusters[trials[0].id]
    say(describe(study, trials, first, clusters=clusters, scheduler=scheduler).text())
    made = submit(study, trials, first, command=command, clusters=clusters, scheduler=scheduler)
    if made:
        say(f"Submitted: {', '.join(f'{s.job_id} ({s.kind})' for s in made)}.")
    else:
        say("Nothing was submitted: all of it is in the queue already.")
    say(f"Where it stands: ablate status {study.word}, or ablate watch {study.word}")
    return 0
