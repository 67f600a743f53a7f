"""What the sweeper does; Hydra does not scan modules whose name begins with an underscore."""

from __future__ import annotations

from collections.abc import Sequence

from hydra._internal.core_plugins.basic_launcher import BasicLauncher
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher

from ablate.cli.multirun_designs import plan_multirun
from ablate.cli.multirun_launchers import command
from ablate.launch.freeze import freeze
from ablate.launch.preflight import check_data_of_all, check_training_of_all
from ablate.plan import DEFAULT_STUDY
from hydra_plugins.ablate.launchers import LocalLauncher


def run_design(launcher: Launcher, arguments: Sequence[str]) -> list[Sequence[JobReturn]]:
    """Plans the design, freezes the study and launches all of its trials at once.

    Raises:
        AblateError: before anything is written, where the request is wrong; afterwards where a
            trial failed.
    """
    plan, jobs = plan_multirun(OverridesParser.create().parse_overrides(list(arguments)),
                               DEFAULT_STUDY)  # fmt: skip
    check_data_of_all(arm.config for arm in plan.arms)
    if isinstance(launcher, BasicLauncher | LocalLauncher):
        check_training_of_all((f"Arm {arm.name}", arm.config) for arm in plan.arms)
    freeze(plan, command())
    returns = launcher.launch(jobs, initial_job_idx=0)
    for job in returns:
        _ = job.return_value  # raises where the job failed
    return [returns]
