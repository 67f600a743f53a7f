"""What a user of ablate may bring along: texts, a norm that is broken, a sweeper that optimises."""

from __future__ import annotations

from pathlib import Path

BROKEN_NORM = """
import torch
class Norm(torch.nn.Module):
    def __init__(self, *args, **kwargs):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))
    def reset_parameters(self):
        pass
    def forward(self, x):
        raise ZeroDivisionError("this norm is broken")
"""

ASKING = '''
from dataclasses import dataclass

from hydra.core.config_store import ConfigStore
from hydra.plugins.sweeper import Sweeper


@dataclass
class Conf:
    _target_: str = "hydra_plugins.asking.sweeper.Asking"


ConfigStore.instance().store(group="hydra/sweeper", name="asking", node=Conf)


class Asking(Sweeper):
    """Two batches, as an optimiser does: the second one from the values of the first."""

    def setup(self, *, hydra_context, task_function, config):
        from hydra.core.plugins import Plugins

        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments):
        rates = ["1e-4", "1e-2"]
        found = self.launcher.launch([[*arguments, f"optim.lr={r}"] for r in rates], 0)
        values = [job.return_value for job in found]
        best = rates[values.index(min(values))]
        last = self.launcher.launch([[*arguments, f"optim.lr={best}", "seed=1"]], 2)
        print("BEST", best, values, last[0].return_value)
'''


def write_asking(folder: Path) -> None:
    """`hydra/sweeper=asking`, where `folder` is on Python's path."""
    package = folder / "hydra_plugins" / "asking"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "sweeper.py").write_text(ASKING)


def write_texts(folder: Path) -> None:
    """Two short ones, train.txt and held_out.txt."""
    words = "".join(f"{i} times {i} is {i * i}, and so it goes on. " for i in range(400))
    (folder / "train.txt").write_text(words)
    (folder / "held_out.txt").write_text(words[::-1][:2000])


def small_trial(folder: Path, steps: int) -> list[str]:
    """Overrides of a trial that takes a second: two short texts, a very small model."""
    write_texts(folder)
    return [
        f"data.path={folder}/train.txt",
        f"data.validation_path={folder}/held_out.txt",
        f"data.cache_dir={folder}/cache",
        "size=tiny",
        "train.batch_size=2",
        "train.sequence_length=16",
        f"train.steps={steps}",
    ]
