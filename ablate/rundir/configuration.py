"""config.yaml: the resolved configuration of a trial.

yaml is imported where it is needed: most verbs read no configuration, and answer sooner without.
"""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ablate.errors import StudyError
from ablate.rundir.files import free_name, open_file, write_atomic

__all__ = ["looks_whole", "mend_config", "parse_sections", "read_config", "write_config"]

_BEGINNING = re.compile(r"[A-Za-z_]\w*:[ \n]")
_SECTION = re.compile(r"\n(?=[A-Za-z_])")


def write_config(path: Path, config: dict[str, Any]) -> None:
    """Not durably: a launch writes thousands, and writes again what a power cut has taken."""
    write_atomic(path, _text_of(config), durable=False)


def read_config(path: Path, remedy: Callable[[], str] = str) -> dict[str, Any]:
    """Raises StudyError, which ends in what `remedy` says, where it is missing or damaged."""
    if not path.exists():
        raise StudyError(f"{path} is missing. {remedy()}".rstrip())
    try:
        return _parsed(path)
    except StudyError as error:
        raise StudyError(f"{error} Restore it, or delete it. {remedy()}".rstrip()) from None


def looks_whole(text: str) -> bool:
    """Whether a text is neither emptied, torn nor overwritten, as far as its two ends tell; far
    cheaper than to parse it.
    """
    return text.endswith("\n") and "\0" not in text and _BEGINNING.match(text) is not None


def parse_sections(text: str) -> dict[str, Any]:
    """What a text as `write_config` writes it holds. Trials of a study have most sections in
    common, and each is parsed once: do not change what you are given.

    Raises:
        ValueError: where it is damaged; `read_config` says how.
    """
    if "&" in text or "---" in text:  # anchors and documents reach over sections
        return _mapping(text)
    *sections, last = _SECTION.split(text)
    config: dict[str, Any] = {}
    for section in (*(f"{s}\n" for s in sections), last):
        config |= _mapping(section)
    return config


@functools.lru_cache(maxsize=4096)
def _mapping(text: str) -> dict[str, Any]:
    import yaml

    try:
        tree = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(str(error)) from None
    if not isinstance(tree, dict):
        raise ValueError("no mapping")
    return tree


def mend_config(
    path: Path, config: dict[str, Any], same: Callable[[dict[str, Any]], bool]
) -> str | None:
    """Writes a damaged file anew; the old one stays beside it.

    Args:
        path: of the file.
        config: what it is to hold.
        same: whether another one is of the same trial (on another cluster, say).

    Returns:
        What was done; None where nothing was wrong, or nothing is there.
    """
    text = _text_of(config).encode()
    try:
        with open_file(path) as file:
            found = file.read()
        if found != text:
            there = _parsed(path)
            if text.startswith(found):
                raise StudyError(f"{path} is damaged: its end is missing.")
            if not same(there):
                raise StudyError(f"{path} is damaged: it is that of another trial.")
        return None
    except FileNotFoundError:
        return None
    except StudyError as error:
        kept = free_name(path.with_name(f"{path.name}.damaged"))
        os.rename(path, kept)
        write_config(path, config)
        return f"{error} That was done: it was written anew. The old file: {kept.name}."


def _parsed(path: Path) -> dict[str, Any]:
    import yaml

    try:
        with open_file(path) as file:
            text = file.read().decode()
        config = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        what = "it holds no configuration"
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        config, what = None, " ".join(str(error).split())
    if not isinstance(config, dict):
        raise StudyError(f"{path} is damaged: {what}.")
    return config


def _text_of(config: dict[str, Any]) -> str:
    return "".join(_yaml_of(json.dumps({key: v})) for key, v in config.items())


@functools.lru_cache(maxsize=4096)
def _yaml_of(text: str) -> str:
    """A section of a configuration; trials of a study have most of theirs in common."""
    import yaml

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return yaml.dump(json.loads(text), Dumper=dumper, sort_keys=False, allow_unicode=True)
