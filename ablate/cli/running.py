"""Runs trials of a study that is on disk, where it was launched to: here, or on SLURM.

`launch` and `retry` meet here; each asks for trials, and what has ended otherwise is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ablate.cli.failures import INTERRUPTED
from ablate.cli.overview import counts_line, counts_of, trials_of
from ablate.cli.progress import tell
from ablate.launch import budget
from ablate.launch.settings import remembered
from ablate.rundir import ENDED, StudyDir, TrialDir

if TYPE_CHECKING:
    from ablate.launch.pool import Pool

__all__ = ["conclude", "missing_of", "run_here", "run_phases", "run_study"]


def missing_of(study: StudyDir, again: Sequence[str] = ()) -> list[TrialDir]:
    """Trials that have not ended, or ended as one of `again`."""
    states = [(trial, trial.live_state().status) for trial in study.trials()]
    return [trial for trial, status in states if status not in ENDED or status in again]


def run_here(
    study: StudyDir,
    configs: Sequence[Mapping[str, Any]],
    prepare: Callable[[], list[list[TrialDir]]],
    again: Sequence[str] = (),
    between: Callable[[StudyDir], None] = lambda study: None,
) -> str | None:
    """Checks what could not be trained, then runs the trials in worker processes.

    Args:
        study: of the trials; it need not exist yet.
        configs: one of each arm.
        prepare: called after the checks; freezes the study, and says which trials to run, in one
            phase after the other.
        again: ended statuses that are run again.
        between: called after each phase but the last.

    Returns:
        Why it was stopped before its end, or None.
    """
    from ablate.launch.pool import Pool
    from ablate.launch.preflight import check_data_of_all, freeze_data

    with Pool() as pool:
        # Torch is imported over there while the data are prepared here.
        texts = check_data_of_all(configs, study)
        pool.check([dict(config) for config in configs], new=not study.exists())
        phases = prepare()
        freeze_data(study, texts)
        return run_phases(pool, study, phases, configs[0], again, between)


def run_phases(
    pool: Pool,
    study: StudyDir,
    phases: Sequence[Sequence[TrialDir]],
    config: Mapping[str, Any],
    again: Sequence[str] = (),
    between: Callable[[StudyDir], None] = lambda study: None,
) -> str | None:
    """Runs the trials within the study's budget, and tells whoever wants to know of its end.

    Args:
        pool: that runs them.
        study: of the trials.
        phases: one after the other.
        config: says how many at once, and where.
        again: ended statuses that are run again.
        between: called after each phase but the last.

    Returns:
        Why it was stopped before the end, or None.
    """
    from ablate.cli.watching import watcher_of
    from ablate.launch.local import run_missing, workers_for
    from ablate.launch.notify import tell_if_over
    from ablate.launch.stacks import Stacks

    train, stopped = config["train"], None
    gpus = range(pool.gpus()) if train["device"] in ("auto", "cuda") else ()
    workers = workers_for(config["cluster"]["workers"], train["threads"], len(gpus))
    for number, missing in enumerate(phases):
        trials = len(study.trials()) if len(phases) == 1 else len(missing)
        at_once = max(1, min(workers, len(missing)))
        with watcher_of(study, trials, len(missing), at_once) as watcher:
            stopped = run_missing(
                missing,
                pool,
                workers=at_once,
                gpus=gpus,
                again=again,
                watcher=watcher,
                hold=lambda: budget.exhausted(study),
                stacks=Stacks.of(missing, config["cluster"].get("stack")),
            )
        if stopped:
            break
        if number + 1 < len(phases):
            between(study)
    if stopped is None or "SIGINT" not in stopped:  # whoever pressed Ctrl-C knows
        tell_if_over(study, stopped=True)
    return stopped


def run_study(study: StudyDir, trials: Sequence[TrialDir], command: str, *, here: bool) -> int:
    """Runs trials of a study that exists, where it was launched to last.

    Args:
        study: planned and frozen.
        trials: to be run; those that run already are waited for.
        command: that asked for it.
        here: on this machine, wherever it was launched.
    """
    settings = remembered(study)
    configs = _one_of_each_arm(study, trials)
    cluster = dict(configs[0].get("cluster") or {})
    if settings is not None:
        cluster = {**cluster, **settings.cluster}
    budget.check(study, cluster.get("max_gpu_hours"), [t.id for t in trials])
    if cluster.get("name") == "slurm" and not here:
        from ablate.cli.submitting import submit_trials

        return submit_trials(study, trials, cluster, command)
    for config in configs:
        config["cluster"] = {**cluster, "name": "local"}
    stopped = run_here(study, configs, lambda: [list(trials)])
    return conclude(study, stopped)


def conclude(study: StudyDir, stopped: str | None) -> int:
    """Says how the study stands and what can be done next; the exit code."""
    counts = counts_of(t["status"] for t in trials_of(study, study.manifest()))
    tell(f"{study.name}: {counts_line(counts)}.")
    left = counts["pending"] + counts["preempted"] + counts["running"]
    held = budget.exhausted(study)
    if counts["failed"]:
        tell(f"What failed: ablate logs {study.word}.")
    if counts["failed"] or counts["cancelled"]:
        tell(f"To run it again: ablate retry {study.word}")
    if left and held:
        tell(f"The rest is held: {held}. Raise cluster.max_gpu_hours and launch again.")
    elif left:
        tell("To go on: the same launch again.")
    else:
        tell(f"The verdicts: ablate report {study.word}")
    if stopped:
        return 143 if "SIGTERM" in stopped else INTERRUPTED
    return 1 if counts["failed"] or counts["cancelled"] or left else 0


def _one_of_each_arm(study: StudyDir, trials: Sequence[TrialDir]) -> list[dict[str, Any]]:
    arms = {entry["id"]: entry["arm"] for entry in study.manifest().get("trials", [])}
    first = {arms.get(trial.id, trial.id): trial for trial in reversed(trials)}
    return [trial.config() for trial in first.values()]
