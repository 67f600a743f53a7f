"""`sweep=sweeps/mine.yaml`, as a shell completes it, means `sweep=mine`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ablate.config import options
from ablate.errors import ConfigError

__all__ = ["sweep_of_file", "sweeps_by_name"]

GROUP = "sweep"


def sweeps_by_name(overrides: Sequence[str], cwd: Path) -> list[str]:
    """The overrides, where `sweep=FILE` has become `sweep=NAME`: a study is called by the name.

    Raises:
        ConfigError: for a file that no name leads to.
    """
    changed = []
    for line in overrides:
        key, equals, value = line.partition("=")
        if equals and key.lstrip("+") == GROUP:
            line = f"{key}={sweep_of_file(value.strip(), cwd)}"
        changed.append(line)
    return changed


def sweep_of_file(word: str, cwd: Path) -> str:
    """The name of the sweep whose file this is; a word that is no file is returned as it is."""
    if options.locate(GROUP, word, cwd):
        return word.removesuffix(".yaml")
    file = next((f for end in ("", ".yaml") if (f := cwd / f"{word}{end}").is_file()), None)
    if file is None or not word:
        return word
    name = file.stem
    for folder in options.folders(GROUP, cwd):
        if file.resolve().is_relative_to(folder.resolve()):
            name = file.resolve().relative_to(folder.resolve()).with_suffix("").as_posix()
            found = options.locate(GROUP, name, cwd)
            if found is not None and found.samefile(file):
                return name
            if found is not None:
                reason = f"is hidden by {found}, which sweep={name} means"
                raise ConfigError(GROUP, word, reason, "Rename one of them")
    reason = "is a file, and a sweep is named: NAME of sweeps/NAME.yaml in the current folder"
    remedy = f"Copy it to sweeps/{name}.yaml and write sweep={name}"
    raise ConfigError(GROUP, word, reason, remedy)
