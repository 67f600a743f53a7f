"""`ablate train -m ...`: Hydra's own multirun, any sweeper, any launcher, recorded as a study."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablate.errors import AblateError, ConfigError, TrialError

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

__all__ = ["run_multirun", "study_name"]

NOT_OF_THE_STUDY = ("study", "runs_dir", "force", "track", "cluster", "hydra")
"""Sections that may differ between two calls that mean the same study."""


@dataclass(frozen=True)
class Job:
    """What Hydra calls for every job; it is pickled where the launcher uses other processes."""

    common: tuple[str, ...]

    def __call__(self, config: Any) -> float | None:
        """The objective that sweepers minimise: the last held-out loss, infinite where the trial
        diverged.
        """
        from hydra.core.hydra_config import HydraConfig

        from ablate.cli.train import failure, run_single

        trial, state = run_single(list(HydraConfig.get().overrides.task), common=self.common)
        if state.status == "preempted":
            raise KeyboardInterrupt  # the whole multirun stops, not this job alone
        if state.status == "failed":
            raise TrialError(failure(trial, state))
        summary = trial.summary() or {}
        print(
            f"{trial.id}: {state.status}",
            *(f"{k} {summary[k]:.4f}" for k in ("val/bpb",) if summary.get(k)),
        )
        return float("inf") if state.status == "diverged" else summary.get("val/loss")


def run_multirun(overrides: Sequence[str]) -> int:
    """0 where every trial ended; Hydra goes on past a failed one, and the failure is raised at the
    end.

    Raises:
        ConfigError: before anything is written, where any of the jobs is illegal.
        TrialError: naming the trials that failed.
    """
    parsed = _parse(overrides)
    ours = [o for o in parsed if not _is_hydras(o)]
    common = tuple(o.input_line for o in ours if not o.is_sweep_override() and o.input_line)
    jobs = _jobs(parsed)
    given = {o.key_or_group: o for o in parsed}
    extra = []
    if "study" not in given:
        extra.append(f"study={study_name(ours)}")
    if "hydra.sweep.dir" not in given:
        extra += ["hydra.sweep.dir=${runs_dir}/${study}/hydra", "hydra.sweep.subdir=."]
    common += tuple(e for e in extra if e.startswith("study="))
    _check(jobs, [e for e in extra if e.startswith("study=")])
    _run_hydra(Job(common), ["-m", *overrides, *extra])
    study = next((c.partition("=")[2] for c in common if c.startswith("study=")), None)
    if study:
        print(f"The verdicts: ablate report {study}", file=sys.stderr)
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


def _jobs(parsed: Sequence[Override]) -> list[list[str]] | None:
    """The overrides of each job, where Hydra's own sweeper is used (another one decides alone)."""
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
    from hydra.core.override_parser.types import ValueType
    from hydra.errors import HydraException

    if any(o.key_or_group in ("hydra/sweeper", "hydra.sweeper") for o in parsed):
        return None
    if any(o.value_type is ValueType.GLOB_CHOICE_SWEEP for o in parsed):
        return None
    try:
        return BasicSweeper.split_arguments([o for o in parsed if not _is_hydras(o)], None)[0]
    except HydraException as error:
        raise AblateError(f"Hydra cannot sweep this: {error}") from None


def _check(jobs: list[list[str]] | None, extra: Sequence[str]) -> None:
    """Refuses an illegal job before the first one runs."""
    from ablate.launch.preflight import check_data
    from ablate.plan import single_trial

    checked: list[Any] = []
    for job in jobs or []:
        config = single_trial([*job, *extra]).trial.config
        if config["data"] not in checked:
            checked.append(config["data"])
            check_data(config, progress=True)


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
