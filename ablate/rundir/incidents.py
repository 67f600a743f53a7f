"""What went wrong in a study, as marks that any process may set and count without a lock.

failures/<signature>/<trial>.json   a trial failed in this way
nodes/<node>/<job>.<trial>-<n>      attempt n of a trial died with this node
held.json                           the rest is held back, and why
"""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import Any

from ablate.rundir import names
from ablate.rundir.files import read_json, write_json

__all__ = [
    "bad_nodes",
    "exclude_node",
    "failures_like",
    "held",
    "hold",
    "note_death",
    "note_failure",
    "unhold",
]


def note_failure(study: Path, signature: str, trial: str, **facts: Any) -> None:
    """Notes that a trial failed in a way that `signature` stands for."""
    folder = study / names.FAILURES / signature
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / f"{trial}.json", {"trial": trial, "time": time.time(), **facts})


def failures_like(study: Path, signature: str) -> list[dict[str, Any]]:
    """The trials that failed in this way, oldest first."""
    found = [read_json(p) for p in (study / names.FAILURES / signature).glob("*.json")]
    return sorted(found, key=lambda f: f["time"])


def note_death(study: Path, node: str, job: str, trial: str, attempt: int) -> None:
    """Notes that an attempt died with its node."""
    folder = study / names.NODES / _file_name(node)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{_file_name(job)}.{trial}-{attempt}").touch()


def bad_nodes(study: Path, deaths: int) -> list[str]:
    """Nodes on which at least so many jobs died (a packed one counts once, whatever it ran, and
    so does one that died there again); none where `deaths` is 0.
    """
    if not deaths:
        return []
    found = []
    for folder in (study / names.NODES).glob("*"):
        marks = [p.name for p in folder.iterdir() if not p.name.startswith(".")]
        if len({name.partition(".")[0] for name in marks}) >= deaths:
            found.append(folder.name)
    return sorted(found)


def exclude_node(study: Path, node: str) -> bool:
    """Marks a node as left out of what waits; True for the one process that came first."""
    try:
        (study / names.NODES / node / ".excluded").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def hold(study: Path, **why: Any) -> bool:
    """Holds back what has not started; True for the one process that came first."""
    temporary = study / f".{names.HELD}.{os.getpid()}.{time.monotonic_ns()}"
    temporary.write_text(json.dumps({"time": time.time(), **why}, indent=2) + "\n")
    try:
        os.link(temporary, study / names.HELD)
    except FileExistsError:
        return False
    finally:
        temporary.unlink()
    return True


def held(study: Path) -> dict[str, Any] | None:
    """Why the rest is held back: signature, reason, log, trials; None where it is not."""
    path = study / names.HELD
    return read_json(path) if path.exists() else None


def unhold(study: Path) -> None:
    """What is launched after a hold may fail anew: the old failures no longer count."""
    path = study / names.HELD
    if path.exists():
        stamp = int(time.time())
        if (study / names.FAILURES).exists():
            os.replace(study / names.FAILURES, study / f"{names.FAILURES}-{stamp}")
        os.replace(path, study / f"held-{stamp}.json")


def _file_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", text) or "_"
