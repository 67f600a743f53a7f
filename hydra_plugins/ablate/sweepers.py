"""`hydra/sweeper=ablate`: a design makes the jobs of a plain multirun.

No `from __future__ import annotations` here: Hydra executes this module before it is registered.
"""

from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional  # noqa: UP035 (Hydra reads these annotations)

from hydra.core.config_store import ConfigStore
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


@dataclass
class AblateSweeperConf:
    """Its keys under hydra.sweeper."""

    _target_: str = "hydra_plugins.ablate.sweepers.AblateSweeper"
    params: Dict[str, Any] = field(default_factory=dict)  # noqa: UP006
    """Further overrides, such as position: rope,alibi; the command line comes after them."""


ConfigStore.instance().store(
    group="hydra/sweeper", name="ablate", node=AblateSweeperConf, provider="ablate"
)


class AblateSweeper(Sweeper):
    """Plans the study, freezes it, and hands one job a trial to whatever launcher there is."""

    def __init__(self, params: Optional[Dict[str, Any]] = None) -> None:  # noqa: UP006, UP045
        self.params = dict(params or {})

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        from hydra.core.plugins import Plugins

        self.hydra_context, self.config = hydra_context, config
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: List[str]) -> Any:  # noqa: UP006
        from hydra_plugins.ablate._designs import run_design

        assert self.launcher is not None
        lines = [f"{key}={value}" for key, value in self.params.items()]
        return run_design(self.launcher, [*lines, *arguments])
