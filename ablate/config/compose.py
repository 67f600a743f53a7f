"""Overrides to a configuration tree by Hydra's rules, fast: defaults list, packages, grammar.

A test compares the two on every option and on random combinations. Plain dictionaries make one
composition a fraction of a millisecond, where Hydra needs half a second, and a plan of a hundred
arms needs hundreds. What goes beyond the plain (an option whose defaults list overrides other
groups) is handed to Hydra. Two differences: `group=null` takes an option back, and a list of
options for one group is refused, since the last would win silently.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ablate.config import options
from ablate.config.options import Option
from ablate.config.overrides import Override, parse_override
from ablate.config.tree import apply, copy_tree, leaves, merge
from ablate.config.typed import closest
from ablate.errors import ConfigError

__all__ = ["Composer", "register"]

PRIMARY = "train"


@functools.cache
def _primary() -> tuple[dict[str, str | None], dict[str, Any]]:
    """The default option of every group, and the values of our train.yaml; nobody changes them."""
    _, values = options.read_yaml(options.CONF / f"{PRIMARY}.yaml", PRIMARY)
    defaults = dict(_default_choices(values.pop("defaults")))
    values.pop("hydra", None)
    return defaults, values


class Composer:
    """`hydra.compose`, with the user's `./conf` and `./sweeps` found first."""

    def __init__(self, cwd: Path | None = None) -> None:
        self.cwd = Path.cwd() if cwd is None else Path(cwd)
        self._defaults, self._base = _primary()
        self._groups: dict[str, bool] = {}

    def compose(self, overrides: Sequence[str] = ()) -> dict[str, Any]:
        """The configuration tree, a fresh one at every call.

        Raises:
            ConfigError: naming the override, what is wrong with it and the remedy.
        """
        choices, values = self._sort(overrides)
        chosen = [
            o
            for group, option in choices.items()
            if option is not None
            for o in self._with_bases(group, option)
        ]
        if not all(option.plain for option in chosen):
            from ablate.config.hydra_door import compose_with_hydra

            return compose_with_hydra(overrides, self.cwd)
        tree = copy_tree(self._base)
        for option in chosen:
            merge(tree, option.values)
        for override in values:
            apply(tree, override)
        if any(o.interpolated for o in chosen) or any("${" in o.line for o in values):
            from ablate.config.hydra_door import interpolate

            tree = interpolate(tree)
        return tree

    def choices(self, group: str) -> list[str]:
        """The options of a group, the user's included.

        Raises:
            ConfigError: where there is no such group.
        """
        if not self._is_group(group):
            raise ConfigError(group, None, "there is no such group", closest(group, self.groups()))
        return options.option_names(group, self.cwd)

    def groups(self) -> list[str]:
        """Every config group, the user's included."""
        return options.group_names(self.cwd)

    def touched(self, override: str) -> set[str]:
        """The dotted keys that a group option or a value override sets."""
        parsed = parse_override(override)
        if not self._names_option(parsed):
            return {key for key, _ in leaves(parsed.value, parsed.key)}
        if parsed.value is None or parsed.kind == "delete":
            return set()
        merged: dict[str, Any] = {}
        for option in self._with_bases(parsed.key, parsed.value):
            merge(merged, option.values)
        return {key for key, _ in leaves(merged)}

    def _sort(self, overrides: Sequence[str]) -> tuple[dict[str, str | None], list[Override]]:
        """The option of every group, in the order of merging, and the overrides of values."""
        choices: dict[str, str | None] = dict(self._defaults)
        values = []
        for line in overrides:
            override = parse_override(line)
            if override.key.split("/")[0].split(".")[0] == "hydra":
                remedy = "Use it with `ablate train -m`"
                raise ConfigError(
                    override.key,
                    override.value,
                    "configures Hydra, which runs multiruns only",
                    remedy,
                )
            if self._names_option(override):
                self._choose(choices, override)
            elif "/" in override.key:
                group = override.key
                raise ConfigError(
                    group, override.value, "there is no such group", closest(group, self.groups())
                )
            else:
                self._check_root(override)
                values.append(override)
        return choices, values

    def _choose(self, choices: dict[str, str | None], override: Override) -> None:
        group, option = override.key, override.value
        if override.kind == "delete":
            if option not in (None, choices.get(group)) or choices.get(group) is None:
                raise ConfigError(
                    group,
                    option,
                    "is not chosen, so it cannot be deleted",
                    f"Leave out {override.line}",
                )
            choices[group] = None
            return
        if not isinstance(option, str | None) or option == "":
            reason = "must be the name of an option" + (
                " (YAML's true and false are none)" * isinstance(option, bool)
            )
            raise ConfigError(group, option, reason, closest(str(option), self.choices(group)))
        if override.kind == "force":
            raise ConfigError(
                group, option, "is a group, which ++ cannot add", f"Write {group}={option}"
            )
        if override.kind == "add" and group in choices:
            reason = "is a group that conf/train.yaml lists already, so + cannot add it"
            raise ConfigError(group, option, reason, f"Write {group}={option}")
        if override.kind == "set" and group not in choices:
            reason = "is a group of your own, which conf/train.yaml does not list"
            raise ConfigError(group, option, reason, f"Add it: +{group}={option}")
        choices[group] = option

    def _with_bases(self, group: str, name: str, package: str | None = None) -> Iterator[Option]:
        """The option and what it builds on, in the order of merging."""
        path = options.locate(group, name, self.cwd)
        if path is None:
            raise ConfigError(group, name, "there is no such option", self._instead(group, name))
        option = options.read_option(path, group, package)
        for base in option.bases:
            if base == "_self_":
                yield option
            elif base == name:
                raise ConfigError(group, name, "builds on itself", f"Correct {path}")
            else:
                yield from self._with_bases(group, base, option.package)

    def _instead(self, group: str, name: str) -> str:
        """What was probably meant, else what there is and where one's own would lie."""
        known = self.choices(group)
        near = closest(name, known)
        if near.startswith("Did"):
            return near
        folder = "sweeps" if group == "sweep" else f"conf/{group}"
        listed = ", ".join(option for option in known if "/" not in option)
        return f"Known: {listed}. One of your own is a file ./{folder}/NAME.yaml"

    def _names_option(self, override: Override) -> bool:
        """Hydra's rule: a mapping given to a group is a value, all else an option."""
        return not isinstance(override.value, dict) and self._is_group(override.key)

    def _is_group(self, key: str) -> bool:
        if key not in self._groups:
            known = "." not in key and any(p.is_dir() for p in options.folders(key, self.cwd))
            self._groups[key] = known
        return self._groups[key]

    def _check_root(self, override: Override) -> None:
        """The first part of a key exists; a mistyped group is most often what is wrong."""
        root = override.key.split(".")[0]
        if override.kind not in ("set", "delete") or root in self._base:
            return
        bare = root == override.key
        inside = [key for key, _ in leaves(self._base) if bare and key.endswith(f".{root}")]
        hint = closest(root, inside or ({*self.groups(), *self._base} if bare else self._base))
        if inside:
            hint = "Did you mean " + " or ".join(inside) + "?"
        reason = "there is no such group or key" if bare else f"there is no section {root}"
        raise ConfigError(
            override.key, override.value, reason, hint or f"To add a key write +{override.line}"
        )


def register(cwd: Path | None = None) -> None:
    """Makes Hydra itself find the user's `./conf` and `./sweeps`; call it before `hydra.main`."""
    from ablate.config.hydra_door import register

    register(cwd)


def _default_choices(defaults: Sequence[Any]) -> Iterator[tuple[str, str | None]]:
    """The groups of the primary defaults list in their order, without Hydra's own."""
    for entry in defaults:
        if isinstance(entry, Mapping):
            ((group, option),) = entry.items()
            if not group.startswith("override "):
                yield group, option
