"""`ablate train -m ...`: Hydra's own multirun, any sweeper, any launcher, recorded as a study."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablate.cli.multirun_choices import Choices, choices_of
from ablate.cli.multirun_launchers import show_dry_run, with_cluster
from ablate.config.sweep_file import sweeps_by_name
from ablate.errors import AblateError, ConfigError, TrialError
from ablate.launch.room import check_fits_here
from ablate.launch.singles import record_single
from ablate.rundir import State, StudyDir, TrialDir

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

    from ablate.plan import SingleTrial

__all__ = ["Job", "objective", "run_multirun", "study_name"]

NOT_OF_THE_STUDY = ("study", "runs_dir", "force", "track", "cluster", "hydra")
"""Sections that may differ between two calls that mean the same study."""


@dataclass(frozen=True)
class Job:
    """What Hydra calls for every job; it is pickled where the launcher uses other processes."""

    common: tuple[str, ...]
    planned: bool = False
    """Whether our sweeper has frozen the study before."""

    def __call__(self, config: Any) -> float | None:
        """The objective that sweepers minimise."""
        from hydra.core.hydra_config import HydraConfig

        from ablate.cli.train import failure, run_single

        overrides = list(HydraConfig.get().overrides.task)
        trial, state = run_single(overrides, common=self.common, of_sweep=self.planned)
        if state.status == "preempted":
            if "SUBMITIT_EXECUTOR" in os.environ and "SIGUSR2" in (state.reason or ""):
                signal.raise_signal(signal.SIGUSR2)  # now submitit may requeue the job
            raise KeyboardInterrupt  # the whole multirun stops, not this job alone
        if state.status not in ("done", "diverged"):
            raise TrialError(failure(trial, state))
        summary = trial.summary() or {}
        print(
            f"{trial.id}: {state.status}",
            *(f"{k} {summary[k]:.4f}" for k in ("val/bpb",) if summary.get(k)),
            flush=True,  # before what is said on standard error at the end
        )
        return objective(trial, state)


def objective(trial: TrialDir, state: State) -> float | None:
    """The last held-out loss, infinite where the trial diverged."""
    return float("inf") if state.status == "diverged" else (trial.summary() or {}).get("val/loss")


def run_multirun(overrides: Sequence[str], *, dry_run: bool = False) -> int:
    """0 where every trial ended; Hydra goes on past a failed one, and the failure is raised at the
    end.

    Args:
        overrides: Hydra's grammar, with several values for a key.
        dry_run: only say what would run, and where.

    Raises:
        ConfigError: before anything is written, where any of the jobs is illegal.
        TrialError: naming the trials that failed.
    """
    parsed = _parse(sweeps_by_name(overrides, Path.cwd()))
    ours = [o for o in parsed if not _is_hydras(o)]
    choices = choices_of(parsed)
    given = {o.key_or_group: o for o in parsed}
    extra = []
    if "study" not in given:
        extra.append(f"study={_study(choices, given, ours)}")
    if "hydra.sweep.dir" not in given:
        extra += ["hydra.sweep.dir=${runs_dir}/${study}/hydra", "hydra.sweep.subdir=."]
    common = tuple(o.input_line for o in ours if not o.is_sweep_override() and o.input_line)
    common += tuple(e for e in extra if e.startswith("study="))
    study_lines = [e for e in extra if e.startswith("study=")]
    if dry_run:
        jobs, ids = _dry_jobs(choices, parsed, study_lines, common)
        return show_dry_run(choices, jobs, common, ids)
    jobs = _jobs(choices, parsed)
    from ablate.launch.preflight import check_training_of_all

    singles = _check(choices, jobs, study_lines, common)
    if choices.here:
        check_training_of_all((f"Arm {s.arm.name}", s.trial.config) for s in singles)
    for single in singles:
        # In their order, so that the first arm is the baseline whoever is quickest.
        record_single(single)
    argv = [_forced(o) for o in parsed]
    study = next((c.partition("=")[2] for c in common if c.startswith("study=")), None)
    with _named_failures(Path(str(given["runs_dir"].value() if "runs_dir" in given else "runs"))
                         / (study or "")):  # fmt: skip
        _run_hydra(Job(common, choices.sweeper == "ablate"), ["-m", *argv, *extra])
    if study:
        print(f"The verdicts: ablate report {shlex.quote(study)}", file=sys.stderr)
    return 0


def study_name(overrides: Sequence[Override]) -> str:
    """From what is swept, and a hash of all that defines the study; the order does not matter."""
    swept = [o.key_or_group for o in overrides if o.is_sweep_override()]
    words = [
        re.sub(r"[^A-Za-z0-9_]+", "-", key.rpartition(".")[2]) for key in swept if key != "seed"
    ]
    lines = sorted(o.input_line or "" for o in overrides if _section(o) not in NOT_OF_THE_STUDY)
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:6]
    return "-".join(["multirun", *words[:4], digest])


def _study(choices: Choices, given: dict[str, Override], ours: Sequence[Override]) -> str:
    """A sweep's study is called as `ablate launch` calls it."""
    named = given.get("sweep")
    if choices.sweeper == "ablate" and named is not None and not named.is_sweep_override():
        from ablate.plan import study_of_sweep

        return study_of_sweep(str(named.value()))
    return study_name(ours)


def _parse(overrides: Sequence[str]) -> list[Override]:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser, parsed = OverridesParser.create(), []
    for line in overrides:
        try:
            parsed.append(parser.parse_override(line))
        except HydraException as error:
            key, _, value = line.partition("=")
            words = str(error).splitlines()[0].partition(" expecting ")[0]
            raise ConfigError(key, value, f"cannot be read: {words}") from None
    return parsed


def _is_hydras(override: Override) -> bool:
    return _section(override) == "hydra"


def _section(override: Override) -> str:
    return re.split(r"[./]", override.key_or_group)[0]


def _forced(override: Override) -> str:
    """`sweep.seeds=2` for Hydra, which may not know the key before a sweep is chosen."""
    line = override.input_line or ""
    return f"++{line}" if override.key_or_group.startswith("sweep.") and line[0] != "+" else line


def _jobs(choices: Choices, parsed: Sequence[Override]) -> list[list[str]] | None:
    """The overrides of each job, where Hydra's own sweeper is used (another one decides alone)."""
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
    from hydra.core.override_parser.types import ValueType
    from hydra.errors import HydraException

    if choices.sweeper != "basic":
        return None
    if any(o.value_type is ValueType.GLOB_CHOICE_SWEEP for o in parsed):
        return None
    try:
        return BasicSweeper.split_arguments([o for o in parsed if not _is_hydras(o)], None)[0]
    except HydraException as error:
        raise AblateError(f"Hydra cannot sweep this: {error}") from None


def _dry_jobs(
    choices: Choices, parsed: Sequence[Override], study: Sequence[str], common: Sequence[str]
) -> tuple[list[list[str]], list[str] | None]:
    """As `_jobs`, our own sweeper's too, with the ids that its plan gives to the trials."""
    if choices.sweeper == "ablate":
        from ablate.cli.multirun_designs import plan_multirun
        from ablate.plan import DEFAULT_STUDY

        ours = [*(o for o in parsed if not _is_hydras(o)), *_parse(study)]
        plan, planned = plan_multirun(ours, DEFAULT_STUDY)
        for arm in plan.arms if choices.here else ():
            check_fits_here(arm.config, f"Arm {arm.name}")
        return planned, [trial.id for trial in plan.trials]
    jobs = _jobs(choices, parsed)
    if jobs is None:
        raise AblateError(
            "Which trials there will be, the sweeper decides while they run, so there is nothing "
            "to show beforehand. Leave out --dry-run."
        )
    singles = _check(choices, jobs, study, common)
    for single in singles if choices.here else ():
        check_fits_here(single.trial.config, f"Arm {single.arm.name}")
    return [[*job, *study] for job in jobs], None


def _check(
    choices: Choices, jobs: list[list[str]] | None, study: Sequence[str], common: Sequence[str]
) -> list[SingleTrial]:
    """The trials of the jobs; refuses an illegal one before the first one runs."""
    from ablate.launch.preflight import check_data_of_all
    from ablate.plan import refuse_common, single_trial

    found = []
    for job in jobs or []:
        lines = [*job, *study]
        if choices.launcher == "slurm":
            lines = with_cluster(lines)
        single = single_trial(lines, common=common)
        choices.check(single.trial.config["cluster"])
        found.append(single)
    if found:
        refuse_common(single.without_effect for single in found)
        first = found[0]
        own = StudyDir(Path(first.trial.config["runs_dir"]) / first.study)
        check_data_of_all((single.trial.config for single in found), own)
    return found


def _run_hydra(job: Job, argv: list[str]) -> None:
    import hydra
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    from ablate.config.hydra_door import register

    register(Path.cwd())
    main = hydra.main(config_path="pkg://ablate.conf", config_name="train", version_base="1.3")(job)
    try:
        with _calling(argv):
            main()
    except (HydraException, OmegaConfBaseException) as error:
        words = " ".join(str(error).partition("Config search path")[0].split())
        raise AblateError(f"Hydra refuses this multirun: {words}") from error


@contextlib.contextmanager
def _named_failures(folder: Path) -> Iterator[None]:
    """Hydra raises the first failure; the message counts the others."""
    try:
        yield
    except TrialError as error:
        study = StudyDir(folder)
        states = [t.live_state().status for t in study.trials()] if study.exists() else []
        failed = states.count("failed") + states.count("cancelled")
        if failed < 2:
            raise
        raise TrialError(
            f"{failed} trials of {study.name} failed (ablate status {study.word}); one of them: "
            f"{error}"
        ) from error


@contextlib.contextmanager
def _calling(argv: list[str]) -> Iterator[None]:
    """Hydra reads the command line from sys.argv, and lets exceptions through under
    HYDRA_FULL_ERROR.
    """
    before, full = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv, os.environ["HYDRA_FULL_ERROR"] = ["ablate-train", *argv], "1"
    try:
        yield
    finally:
        sys.argv = before
        if full is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = full
