"""The code that the jobs of a study run, frozen: `source/<digest>/`.

It holds the package `ablate` with its configuration, and the modules of the user's own that lie in
the folder of the launch (`my_norms.py`, `my_package/`). Jobs find them before anything installed.
`source.json` beside them keeps the digest of every file, and commit and diff of the folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ablate
from ablate.errors import StudyError
from ablate.rundir import StudyDir, names, read_json, write_json

__all__ = ["check_source", "freeze_source"]

RECORD = "source.json"
KINDS = {".py", ".pyi", ".yaml", ".yml", ".json", ".toml", ".css", ".js", ".txt", ".typed", ".so"}
SKIPPED = {"__pycache__", "node_modules", "runs", "outputs", "multirun", "wandb", "venv"}
LARGEST = 5_000_000
"""Bytes of a file; larger ones are data, not code."""


def freeze_source(study: StudyDir, cwd: Path | None = None) -> str:
    """Copies the code; the digest, which is the folder's name below `source/`. The same code
    again is the same folder.
    """
    cwd = Path.cwd() if cwd is None else cwd
    package = Path(ablate.__file__).parent
    files = dict(_files_of(package, Path(package.name)))
    for entry in sorted(cwd.iterdir()):
        if entry.name != package.name and _is_code(entry):
            files.update(_files_of(entry, Path(entry.name)))
    digests = {str(name): _digest(path) for name, path in sorted(files.items())}
    digest = _digest_of(digests)
    target = study.path / names.SOURCE / digest
    if target.exists():
        return digest
    temporary = target.with_name(f".{digest}.{uuid.uuid4().hex[:8]}")
    try:
        for name, path in files.items():
            (temporary / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, temporary / name)
        write_json(temporary / RECORD, {"files": digests, **_versions(cwd)})
        os.rename(temporary, target)
    except OSError:
        if not target.exists():  # another launch was quicker
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return digest


def check_source(folder: Path) -> None:
    """What was queued is what runs.

    Raises:
        StudyError: where a file of the frozen code was changed or removed, or where the code that
            runs here is another.
    """
    record = read_json(folder / RECORD)["files"]
    remedy = "Launch the study again: that freezes the code as it is now."
    for name, digest in record.items():
        path = folder / name
        if not path.exists() or _digest(path) != digest:
            raise StudyError(f"{path} was changed after it was frozen. {remedy}")
    if _digest_of(record) != folder.name:
        raise StudyError(f"{folder / RECORD} was changed after it was written. {remedy}")
    here = Path(ablate.__file__).resolve()
    if not here.is_relative_to(folder.resolve()):
        raise StudyError(
            f"This job runs the code in {here.parent}, not the frozen one in {folder}. Look for "
            "what changes PYTHONPATH in cluster.setup or cluster.environment."
        )


def _is_code(entry: Path) -> bool:
    """A module of the user's own, or a folder that Python would import as a package."""
    if entry.name.startswith((".", "_")) or entry.name in SKIPPED:
        return False
    if entry.is_file():
        return entry.suffix == ".py"
    if not entry.name.isidentifier() or (entry / "pyvenv.cfg").exists():
        return False
    return any(p.suffix == ".py" for p in entry.iterdir() if p.is_file())


def _files_of(path: Path, name: Path) -> Iterator[tuple[Path, Path]]:
    """(name in the copy, file) of a module or package; links are followed."""
    if path.is_file():
        yield name, path
        return
    for folder, folders, files in os.walk(path, followlinks=True):
        folders[:] = sorted(f for f in folders if f not in SKIPPED and not f.startswith("."))
        for file in sorted(files):
            found = Path(folder) / file
            if found.suffix in KINDS and found.stat().st_size <= LARGEST:
                yield name / found.relative_to(path), found


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _digest_of(files: dict[str, str]) -> str:
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()[:16]


def _versions(cwd: Path) -> dict[str, Any]:
    """Commit and difference to it, of the folder of the launch and of ablate's own checkout."""
    found = {}
    for key, folder in (("folder", cwd), ("ablate", Path(ablate.__file__).resolve().parent)):
        commit = _git(folder, "rev-parse", "HEAD")
        diff = _git(folder, "diff", "HEAD", "--", ".") if commit else None
        found[key] = {"commit": commit, "diff": diff}
    return found


def _git(folder: Path, *words: str) -> str | None:
    command = ["git", "-C", str(folder), *words]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
