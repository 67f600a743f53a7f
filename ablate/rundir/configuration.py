"""config.yaml: the resolved configuration of a trial.

yaml is imported where it is needed: most verbs read no configuration, and answer sooner without.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from ablate.errors import StudyError
from ablate.rundir.files import write_atomic

__all__ = ["read_config", "write_config"]


def write_config(path: Path, config: dict[str, Any]) -> None:
    """Not durably: a launch writes thousands, and writes again what a power cut has taken."""
    text = "".join(_yaml_of(json.dumps({key: v})) for key, v in config.items())
    write_atomic(path, text, durable=False)


def read_config(path: Path) -> dict[str, Any]:
    """Raises StudyError where it is damaged."""
    import yaml

    try:
        text = path.read_text(encoding="utf-8")
        config = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise StudyError(f"{path} is damaged: {error}") from None
    if not isinstance(config, dict):
        raise StudyError(f"{path} is damaged: it holds no configuration. Restore the file.")
    return config


@functools.lru_cache(maxsize=4096)
def _yaml_of(text: str) -> str:
    """A section of a configuration; trials of a study have most of theirs in common."""
    import yaml

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return yaml.dump(json.loads(text), Dumper=dumper, sort_keys=False, allow_unicode=True)
