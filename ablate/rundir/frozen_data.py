"""data.json of a study: which tokens each `data` section of its configurations stood for, frozen at
the first launch.

A path stays the same string while the files behind it are edited, and what was queued is what runs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ablate.errors import DataError
from ablate.rundir.files import read_json, write_json
from ablate.rundir.names import DATA

__all__ = ["check_frozen_data", "data_key", "frozen_data", "keep_data", "refuse_other_text"]


def data_key(config: Mapping[str, Any]) -> str:
    """16 hex digits of what names the data of a resolved configuration; not where they are cached.

    The token that ends a document counts, for it is among the tokens.
    """
    named = {k: v for k, v in config["data"].items() if k != "cache_dir"}
    text = json.dumps([named, config["model"].get("eos_token_id")], sort_keys=True, default=list)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def frozen_data(study: Path) -> dict[str, str]:
    """Key -> fingerprint of the tokens; empty where nothing was launched yet.

    Raises:
        StudyError: where the file is damaged.
    """
    path = study / DATA
    remedy = "Restore it, or delete it: the next launch writes it anew."
    return read_json(path, remedy) if path.exists() else {}


def keep_data(study: Path, found: Mapping[str, str]) -> None:
    """Adds what the study does not have yet; call it with the study's lock held."""
    before = frozen_data(study)
    if new := {key: text for key, text in found.items() if key not in before}:
        write_json(study / DATA, {**before, **new})


def check_frozen_data(study: Path, config: Mapping[str, Any], fingerprint: str) -> None:
    """Refuses text that is not what the study began with.

    Args:
        study: its folder, which need not exist.
        config: of a trial, resolved.
        fingerprint: of its data as they are now.

    Raises:
        DataError: naming the field, both fingerprints and the remedy.
    """
    before = frozen_data(study).get(data_key(config))
    if before is not None:
        refuse_other_text(study, config, before, fingerprint)


def refuse_other_text(study: Path, config: Mapping[str, Any], before: str, now: str) -> None:
    """The same, of two fingerprints that are known; equal ones are let through."""
    if before == now:
        return
    data, name = config["data"], study.resolve().name
    field = next(f for f in ("path", "dataset", "corpus") if data.get(f) is not None)
    raise DataError(
        f"data.{field}={data[field]}: the text has changed since the study {name} was launched "
        f"(fingerprint {before[:8]} then, {now[:8]} now), and trials on both could not be "
        f"compared. Give it back the files as they were, or launch another study: "
        f"study={name}-2."
    )
