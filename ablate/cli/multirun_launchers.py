"""`hydra/launcher=slurm` and `local`: the jobs of a multirun become trials of a study, and run as
`ablate launch` runs them.
"""

from __future__ import annotations

import contextlib
import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablate.errors import AblateError, TrialError
from ablate.launch import budget
from ablate.launch.cancelling import unmark
from ablate.launch.retrying import RETRIED
from ablate.launch.settings import remember
from ablate.rundir import ENDED, State, StudyDir, TrialDir

if TYPE_CHECKING:
    from hydra.core.utils import JobReturn

    from ablate.cli.multirun_choices import Choices

__all__ = ["Asked", "command", "launch", "show_dry_run", "undisturbed", "with_cluster"]

LOG_LINES = 15
"""So much of a failed trial's log is shown."""


@dataclass(kw_only=True)
class Asked:
    """One job of the multirun."""

    overrides: list[str]
    trial: TrialDir | None = None
    cluster: dict[str, Any] | None = None
    error: AblateError | None = None
    """Why it cannot be run at all."""
    left: str | None = None
    """Why nobody runs it any more."""


def launch(where: str, task: Any, job_overrides: Sequence[Sequence[str]]) -> list[JobReturn]:
    """Runs the jobs that have not ended, all at once, and waits for them.

    Args:
        where: slurm or local.
        task: what Hydra was to call.
        job_overrides: one list a job.

    Raises:
        AblateError: where this launcher cannot run the task; the jobs' own errors are returned.
        KeyboardInterrupt: the jobs on SLURM go on.
    """
    from ablate.cli.multirun import Job

    if not isinstance(task, Job):
        raise AblateError(
            f"hydra/launcher={where} runs the trials of `ablate train -m`, and this is another "
            "program. Use hydra/launcher=submitit_slurm or submitit_local for a function of your "
            "own."
        )
    try:
        with undisturbed(where):
            asked = [_ask(list(overrides), task, where) for overrides in job_overrides]
            if not any(a.trial for a in asked):
                return [_returned(a) for a in asked]
            study = _study_of(asked)
            missing = _missing(asked)
            _remember(study, missing)
            if where == "slurm":
                from ablate.cli.multirun_slurm import submit

                submit(study, missing)
        if where == "slurm":
            from ablate.cli.multirun_slurm import wait

            wait(study, [a for a in asked if a.trial])
        else:
            _run_here(study, missing)
    except KeyboardInterrupt:
        if where == "slurm":
            print("\nThe jobs go on without this process.", file=sys.stderr)
        raise
    _report_failures(study, asked)
    return [_returned(a) for a in asked]


def show_dry_run(
    choices: Choices,
    jobs: list[list[str]],
    common: Sequence[str],
    ids: Sequence[str] | None = None,
) -> int:
    """What would run and where; writes nothing.

    Args:
        choices: sweeper and launcher.
        jobs: the overrides of each.
        common: overrides of all.
        ids: of the trials that are not there yet; None: as a single trial is named.
    """
    from ablate.plan import single_trial

    wanted: dict[str, dict[str, Any]] = {}
    study: StudyDir | None = None
    known: dict[str, str] = {}
    for i, job in enumerate(jobs):
        lines = with_cluster(job) if choices.launcher == "slurm" else job
        single = single_trial(lines, common=common, of_sweep=choices.sweeper == "ablate")
        config = single.trial.config
        choices.check(config["cluster"])
        path = Path(config["runs_dir"]) / single.study
        if study is None or study.path != path:
            study = StudyDir(path)
            entries = study.manifest()["trials"] if study.exists() else []
            known = {t["fingerprint"]: t["id"] for t in entries}
        id = known.get(single.trial.fingerprint)
        status = study.trial(id).live_state().status if id else "new"
        runs = status not in ENDED or status in RETRIED
        id = id or (single.trial.id if ids is None else ids[i])
        print(f"{'run ' if runs else 'skip'}  {status:<10}{id}")
        if runs:
            wanted[id] = config["cluster"]
    print(
        f"{len(wanted)} of {len(jobs)} trials would run, through "
        f"hydra/launcher={choices.launcher}. Nothing was written."
    )
    if choices.launcher == "slurm" and study is not None:
        from ablate.cli.multirun_slurm import show_request

        show_request(study, list(wanted.items()))
    return 0


def _ask(overrides: list[str], task: Any, where: str) -> Asked:
    from ablate.cli.train import recorded

    try:
        if where == "slurm":
            overrides = with_cluster(overrides)
        trial, config = recorded(
            overrides, common=task.common, of_sweep=task.planned, here=where == "local"
        )
    except AblateError as error:
        return Asked(overrides=overrides, error=error)
    return Asked(overrides=overrides, trial=trial, cluster=config["cluster"])


def with_cluster(overrides: Sequence[str]) -> list[str]:
    """The launcher says cluster=slurm where the overrides do not choose a cluster."""
    chosen = any(o.partition("=")[0] == "cluster" for o in overrides)
    return list(overrides) if chosen else ["cluster=slurm", *overrides]


def _study_of(asked: Sequence[Asked]) -> StudyDir:
    studies = {a.trial.study_path for a in asked if a.trial}
    if len(studies) > 1:
        names = ", ".join(sorted(p.name for p in studies))
        raise AblateError(
            f"The jobs of this multirun belong to several studies ({names}). One multirun is one "
            "study: do not sweep over study or runs_dir."
        )
    return StudyDir(studies.pop())


def _missing(asked: Sequence[Asked]) -> list[Asked]:
    """Each trial once, without those that have ended."""
    seen, found = set(), []
    for a in asked:
        if a.trial is None or a.trial.id in seen:
            continue
        seen.add(a.trial.id)
        status = a.trial.live_state().status
        if status in ("done", "diverged"):
            print(f"{a.trial.id} is finished; force=true runs it afresh.", file=sys.stderr)
        else:
            found.append(a)
    return found


def _remember(study: StudyDir, missing: Sequence[Asked]) -> None:
    """What the command says of budget, notification and resources holds, as in a launch.

    Raises:
        ConfigError: where the budget is used up, or plainly too small.
    """
    of_trial = {t["id"]: t["arm"] for t in study.manifest()["trials"]}
    clusters = {a.trial.id: a.cluster for a in missing if a.trial and a.cluster}
    if not clusters:
        return
    first = next(iter(clusters.values()))
    budget.check(study, first.get("max_gpu_hours"), list(clusters))
    remember(study, first, command(), {of_trial[id]: c for id, c in clusters.items()})


def _run_here(study: StudyDir, missing: Sequence[Asked]) -> None:
    from ablate.cli.running import run_phases
    from ablate.launch.pool import Pool

    trials = [a.trial for a in missing if a.trial]
    if not trials:
        return
    for trial in trials:
        if trial.live_state().status == "cancelled":
            unmark(trial)
    config = {**trials[0].config(), "cluster": missing[0].cluster}
    with Pool() as pool:
        stopped = run_phases(pool, study, [trials], config, RETRIED)
    if stopped:
        raise KeyboardInterrupt


def _returned(asked: Asked) -> JobReturn:
    """What Hydra's sweepers expect of a job."""
    from hydra.core.utils import JobReturn, JobStatus

    from ablate.cli.multirun import objective
    from ablate.cli.train import failure

    done = JobReturn(overrides=asked.overrides, task_name="ablate-train")
    done.status = JobStatus.FAILED
    if asked.trial is None:
        done.return_value = asked.error
        return done
    state = asked.trial.live_state()
    done.working_dir = str(asked.trial.path)
    if state.status in ("done", "diverged"):
        done.status, done.return_value = JobStatus.COMPLETED, objective(asked.trial, state)
    elif asked.left is not None:
        done.return_value = TrialError(f"trial {asked.trial.id} is {state.status}: {asked.left}")
    else:
        done.return_value = TrialError(failure(asked.trial, state))
    return done


def _report_failures(study: StudyDir, asked: Sequence[Asked]) -> None:
    """Every failed trial with its log; what several have in common is shown once."""
    shown: set[str] = set()
    for a in asked:
        if a.trial is None:
            print(f"refused: {' '.join(a.overrides)}: {a.error}", file=sys.stderr)
            continue
        state = a.trial.live_state()
        if state.status in ("done", "diverged"):
            continue
        reason = a.left or state.reason or ""
        print(f"{state.status}: {a.trial.id}: {reason}", file=sys.stderr)
        if state.status == "failed" and reason not in shown:
            shown.add(reason)
            print(*_end_of_log(a.trial, state), sep="\n", file=sys.stderr)


def _end_of_log(trial: TrialDir, state: State) -> list[str]:
    newest = trial.newest_attempt()
    if newest is None or not newest.log_path.exists():
        return []
    lines = newest.log_path.read_text(encoding="utf-8", errors="replace").splitlines()
    return [f"  {newest.log_path}:", *(f"  | {line}" for line in lines[-LOG_LINES:])]


@contextlib.contextmanager
def undisturbed(where: str) -> Iterator[None]:
    """While jobs are handed to SLURM, neither Ctrl-C nor a lost connection stops us half-way.

    They are blocked, which the commands that we call inherit, and noted, for a thread of a library
    may get them all the same; afterwards they take effect.
    """
    if where != "slurm":
        yield
        return
    noted: list[int] = []
    signals = (signal.SIGINT, signal.SIGHUP)
    before = {n: signal.signal(n, lambda number, _: noted.append(number)) for n in signals}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in dict.fromkeys(noted):
            signal.raise_signal(number)


def command() -> str:
    """What the user typed, for whoever wants to repeat it."""
    return shlex.join(["ablate", "train", *sys.argv[1:]])
