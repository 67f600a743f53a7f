"""`hydra/launcher=slurm` and `hydra/launcher=local`: the jobs of a multirun as trials of a study.

No `from __future__ import annotations` here: Hydra executes this module before it is registered.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


@dataclass
class SlurmLauncherConf:
    """What to ask SLURM for stands in the section `cluster`."""

    _target_: str = "hydra_plugins.ablate.launchers.SlurmLauncher"


@dataclass
class LocalLauncherConf:
    """How many trials at once stands in cluster.workers."""

    _target_: str = "hydra_plugins.ablate.launchers.LocalLauncher"


for _name, _node in (("slurm", SlurmLauncherConf), ("local", LocalLauncherConf)):
    ConfigStore.instance().store(group="hydra/launcher", name=_name, node=_node, provider="ablate")


class SlurmLauncher(Launcher):
    """Submits every job first, then waits for them; the jobs need nobody who waits."""

    where = "slurm"

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        self.hydra_context, self.task_function, self.config = hydra_context, task_function, config

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        from ablate.cli.multirun_launchers import launch

        Path(str(self.config.hydra.sweep.dir)).mkdir(parents=True, exist_ok=True)
        return launch(self.where, self.task_function, job_overrides)


class LocalLauncher(SlurmLauncher):
    """Several worker processes on this machine."""

    where = "local"
