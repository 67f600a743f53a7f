"""config.yaml: the resolved configuration of a trial.

yaml is imported where it is needed: most verbs read no configuration, and answer sooner without.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ablate.errors import StudyError
from ablate.rundir.files import write_atomic

__all__ = ["read_config", "write_config"]


def write_config(path: Path, config: dict[str, Any]) -> None:
    """Not durably: a launch writes thousands, and writes again what a power cut has taken."""
    text = "".join(_yaml_of(json.dumps({key: v})) for key, v in config.items())
    write_atomic(path, text, durable=False)


def read_config(path: Path, remedy: Callable[[], str] = str) -> dict[str, Any]:
    """Raises StudyError, which ends in what `remedy` says, where it is missing or damaged."""
    import yaml

    if not path.exists():
        raise StudyError(f"{path} is missing. {remedy()}".rstrip())
    try:
        text = path.read_text(encoding="utf-8")
        config = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        if isinstance(config, dict):
            return config
        what = "it holds no configuration."
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        what = f"{error}."
    raise StudyError(f"{path} is damaged: {what} Restore it, or delete it. {remedy()}".rstrip())


@functools.lru_cache(maxsize=4096)
def _yaml_of(text: str) -> str:
    """A section of a configuration; trials of a study have most of theirs in common."""
    import yaml

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return yaml.dump(json.loads(text), Dumper=dumper, sort_keys=False, allow_unicode=True)
