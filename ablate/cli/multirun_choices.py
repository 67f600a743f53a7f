"""Which sweeper and which launcher a multirun has: one of each, and the ones that are written."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablate.config import options
from ablate.config.typed import closest
from ablate.errors import ConfigError

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

__all__ = ["Choices", "choices_of"]

PLUGINS = ("hydra/launcher", "hydra/sweeper")
HERE = ("basic", "local", "joblib")
"""Launchers that start nothing elsewhere."""


@dataclass(frozen=True, kw_only=True)
class Choices:
    launcher: str
    sweeper: str

    @property
    def here(self) -> bool:
        """Whether the jobs run on this machine."""
        return self.launcher in HERE

    def check(self, cluster: Mapping[str, Any]) -> None:
        """The section `cluster` and the launcher mean the same place.

        Raises:
            ConfigError: where the section would be read by nobody.
        """
        name = cluster["name"]
        if name != "local" and self.launcher != "slurm":
            reason = f"has no effect with hydra/launcher={self.launcher}: a multirun runs where "
            remedy = "Write hydra/launcher=slurm, or leave cluster out"
            raise ConfigError("cluster", name, reason + "its launcher says", remedy)
        if name != "slurm" and self.launcher == "slurm":
            remedy = "Write cluster=slurm, or leave cluster out"
            raise ConfigError("cluster", name, "is not where hydra/launcher=slurm runs", remedy)


def choices_of(parsed: Sequence[Override]) -> Choices:
    """The launcher and the sweeper of a command line.

    Raises:
        ConfigError: where one is swept, or chosen by an option that is swept: Hydra would use
            another one than is written.
    """
    chosen = {"hydra/launcher": "basic", "hydra/sweeper": "basic"}
    for override in parsed:
        key = override.key_or_group
        if override.is_sweep_override():
            text = (override.input_line or "").partition("=")[2]
            if re.split(r"[./]", key)[0] == "hydra":
                reason = "cannot be swept: one launcher starts all jobs of a multirun"
                raise ConfigError(key, text, reason, "Start one multirun for each")
            _refuse_hidden_choice(override)
        elif key in PLUGINS:
            chosen[key] = str(override.value())
        elif key in ("hydra.launcher", "hydra.sweeper"):
            chosen[key.replace(".", "/")] = "?"
    for group, name in chosen.items():
        _refuse_unknown(group, name)
    if chosen["hydra/launcher"] in ("slurm", "local"):
        _refuse_batches(parsed, chosen["hydra/launcher"])
    return Choices(launcher=chosen["hydra/launcher"], sweeper=chosen["hydra/sweeper"])


def _refuse_unknown(group: str, name: str) -> None:
    from hydra.core.config_store import ConfigStore
    from hydra.core.plugins import Plugins

    Plugins.instance()  # finds what is installed
    known = {n.removesuffix(".yaml") for n in ConfigStore.instance().list(group)}
    own = Path.cwd() / "conf" / group
    known |= {p.stem for p in own.glob("*.yaml")}
    if name not in ("?", "None") and name not in known:
        remedy = closest(name, known) or "Install it, or take one of " + ", ".join(sorted(known))
        raise ConfigError(group, name, "there is no such plug-in here", remedy)


def _refuse_hidden_choice(override: Override) -> None:
    """A swept option whose file selects a launcher: Hydra has made its launcher before."""
    from ablate.cli.multirun_designs import swept_values
    from ablate.config.compose import Composer

    composer, group = Composer(), override.key_or_group
    if group not in composer.groups() or override.is_interval_sweep():
        return
    for option in swept_values(override, composer):
        path = options.locate(group, option, Path.cwd())
        found = path and _plugin_of(options.read_yaml(path, group)[1])
        if found:
            reason = f"selects {found}, which Hydra would not use: its launcher and its sweeper "
            remedy = f"Take it out of {path}, and write it on the command line"
            raise ConfigError(group, option, reason + "exist before an option is swept", remedy)


def _plugin_of(values: Mapping[str, Any]) -> str | None:
    """`hydra/launcher: name` where an option's file selects or configures one."""
    for entry in values.get("defaults") or ():
        for key, value in entry.items() if isinstance(entry, Mapping) else ():
            name = str(key).removeprefix("override ").strip().lstrip("/").partition("@")[0]
            if name in PLUGINS:
                return f"{name}={value}"
    hydra = values.get("hydra")
    for plugin in PLUGINS:
        part = plugin.partition("/")[2]
        if plugin in values or (isinstance(hydra, Mapping) and part in hydra):
            return plugin
    return None


def _refuse_batches(parsed: Sequence[Override], launcher: str) -> None:
    for override in parsed:
        if override.key_or_group.lstrip("+") == "hydra.sweeper.max_batch_size":
            reason = (
                f"with hydra/launcher={launcher} everything is submitted at once, so that nothing "
                "is lost where this process ends"
            )
            raise ConfigError("hydra.sweeper.max_batch_size", override.value(), reason,
                              "Leave it out")  # fmt: skip
