"""A ClusterConfig as a submitit executor: the directives and the shell lines around the trial."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablate.config.schema import ClusterConfig
from ablate.errors import StudyError
from ablate.launch.admission import CLUSTER

if TYPE_CHECKING:
    from submitit import SlurmExecutor

__all__ = ["submit_array"]

NEVER = 10**6
"""submitit counts time-outs and gives up; when to give up is decided by `launch.admission`."""

INHERITED = ("SLURM_CONF", "SLURM_TIME_FORMAT")
"""Variables of SLURM's that a job submitted from within a job may inherit."""


def submit_array(
    tasks: Sequence[Callable[[], Any]],
    cluster: ClusterConfig,
    folder: Path,
    *,
    name: str,
    source: Path | None,
    dependency: str | None = None,
    exclude: Sequence[str] = (),
    hold: bool = False,
    epilogue: bool = True,
) -> str:
    """Submits one array (a single task: a plain job), and returns its number.

    Raises:
        StudyError: where SLURM refuses, with its words.
    """
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    python = cluster.python or shlex.quote(sys.executable)
    executor = _executor(folder, python)
    more = {str(k).replace("_", "-"): v for k, v in cluster.sbatch.items() if v is not False}
    if cluster.memory:
        more["mem"] = cluster.memory
    if "no-requeue" not in more:
        more["requeue"] = True
    if hold:
        more["hold"] = True
    executor.update_parameters(
        job_name=name,
        time=cluster.minutes,
        nodes=cluster.nodes,
        ntasks_per_node=cluster.tasks_per_node,
        cpus_per_task=max(1, cluster.cpus // cluster.tasks_per_node),
        gpus_per_node=cluster.gpus or None,
        partition=cluster.partition,
        account=cluster.account,
        qos=cluster.qos,
        constraint=cluster.constraint,
        exclude=",".join(exclude) or None,
        dependency=dependency,
        signal_delay_s=cluster.grace,
        array_parallelism=cluster.parallel or len(tasks),
        wckey=None,
        setup=_before(cluster, source),
        teardown=_after(python, folder) if epilogue else None,
        additional_parameters=more,
    )
    with _as_from_a_login_node():
        try:
            with executor.batch():
                jobs = [executor.submit(task) for task in tasks]
        except (FailedJobError, FailedSubmissionError) as error:
            words = " ".join(str(error).split())
            raise StudyError(f"SLURM refused the jobs: {words}") from None
    return jobs[0].job_id.partition("_")[0]


def _executor(folder: Path, python: str) -> SlurmExecutor:
    """Submitit's, but for what srun starts."""
    import submitit

    class Executor(submitit.SlurmExecutor):
        @property
        def _submitit_command_str(self) -> str:
            return f"{python} -u -m ablate.launch.slurm.start {shlex.quote(str(folder))}"

    return Executor(folder=folder, max_num_timeout=NEVER, python=python)


def _before(cluster: ClusterConfig, source: Path | None) -> list[str]:
    variables = {
        **{key: str(value) for key, value in cluster.environment.items()},
        CLUSTER: json.dumps(asdict(cluster)),
    }
    lines = [f"export {key}={shlex.quote(value)}" for key, value in variables.items()]
    lines += cluster.setup
    # Since SLURM 22.05 srun does not inherit --cpus-per-task.
    lines.append('export SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK:-1}"')
    lines.append("export PYTHONSAFEPATH=1")  # the folder of the launch holds the live code
    if source is not None:
        lines.append(f'export PYTHONPATH={shlex.quote(str(source))}"${{PYTHONPATH:+:$PYTHONPATH}}"')
    # The script outlives the signals that its step answers.
    lines.append("trap : TERM USR2 INT")
    return lines


def _after(python: str, folder: Path) -> list[str]:
    command = f"{python} -m ablate.launch.slurm.epilogue {shlex.quote(str(folder))} $code"
    return ["code=$?", f"if [ $code -ne 0 ]; then {command}; fi", "exit $code"]


@contextlib.contextmanager
def _as_from_a_login_node() -> Iterator[None]:
    """Without the variables of a job that this process may be in: sbatch would hand them on."""
    before = dict(os.environ)
    for key in before:
        if key.startswith(("SLURM_", "SUBMITIT_", "ABLATE_JOB")) and key not in INHERITED:
            del os.environ[key]
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
