"""What the sweeper does; Hydra does not scan modules whose name begins with an underscore."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher

from ablate.cli.multirun_designs import plan_multirun
from ablate.launch.freeze import freeze
from ablate.launch.preflight import check_data
from ablate.plan import DEFAULT_STUDY


def run_design(launcher: Launcher, arguments: Sequence[str]) -> list[Sequence[JobReturn]]:
    """Plans the design, freezes the study and launches all of its trials at once.

    Raises:
        AblateError: before anything is written, where the request is wrong; afterwards where a
            trial failed.
    """
    plan, jobs = plan_multirun(OverridesParser.create().parse_overrides(list(arguments)),
                               DEFAULT_STUDY)  # fmt: skip
    checked: list[Any] = []
    for arm in plan.arms:
        if arm.config["data"] not in checked:
            checked.append(arm.config["data"])
            check_data(arm.config, progress=True)
    freeze(plan, shlex.join(["ablate", "train", *sys.argv[1:]]))
    returns = launcher.launch(jobs, initial_job_idx=0)
    for job in returns:
        _ = job.return_value  # raises where the job failed
    return [returns]
