"""A study's folder: the manifest, frozen at launch, and the trials."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ablate.errors import StudyError
from ablate.rundir import names
from ablate.rundir.files import open_file, read_json, write_json
from ablate.rundir.process import process_started
from ablate.rundir.submission import Submission, add_submission, read_submissions
from ablate.rundir.trial import TrialDir

__all__ = ["StudyDir", "find_study", "list_studies"]


KINDS = {
    "schema": int,
    "arms": list,
    "trials": list,
    "question": str | None,
    "revision": int,
}
"""Of the manifest's values that every verb reads."""

REMEDY = (
    "Restore it, or move it away and give the commands again that made the study: they write it "
    "anew, and what has run stays."
)


class StudyDir:
    """`runs/<study>/`."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @property
    def word(self) -> str:
        """Its name as a shell takes it: for commands that are shown."""
        return names.word_of(self.path.resolve())

    @property
    def manifest_path(self) -> Path:
        return self.path / names.MANIFEST

    @property
    def report_path(self) -> Path:
        return self.path / names.REPORT

    def exists(self) -> bool:
        return self.manifest_path.exists()

    def manifest(self) -> dict[str, Any]:
        """Raises StudyError where there is none, or one of a newer version."""
        if not self.exists():
            raise StudyError(f"{self.path} is not a study: it has no {names.MANIFEST}.")
        manifest = read_json(self.manifest_path, REMEDY)
        wrong = [k for k, v in manifest.items() if not isinstance(v, KINDS.get(k, object))]
        if wrong:
            said = ", ".join(f"{k}={str(manifest[k])[:40]!r}" for k in wrong)
            raise StudyError(f"{self.manifest_path} is damaged (it says {said}). {REMEDY}")
        if manifest.get("schema", 0) > names.SCHEMA_VERSION:
            raise StudyError(
                f"{self.manifest_path} has schema version {manifest['schema']}; this ablate "
                f"reads up to {names.SCHEMA_VERSION}. Upgrade ablate."
            )
        for key, needed in (("arms", {"name"}), ("trials", {"id", "arm"})):
            for entry in manifest.get(key) or []:
                if not isinstance(entry, dict) or not all(
                    isinstance(entry.get(name), str) for name in needed
                ):
                    raise StudyError(
                        f"{self.manifest_path} is damaged: {str(entry)[:60]!r} is none of its "
                        f"{key}. {REMEDY}"
                    )
        return manifest

    @contextlib.contextmanager
    def lock(
        self,
        timeout: float | None = None,
        *,
        name: str = ".manifest.lock",
        stale: float = names.LOCK_SECONDS,
    ) -> Iterator[None]:
        """Serialises writers of the manifest (O_EXCL, which NFS honours); a dead owner's lock
        expires.

        Args:
            timeout: seconds to wait for it; None: twice `stale`.
            name: another lock of the study.
            stale: seconds after which an owner on another machine counts as dead.
        """
        path, timeout = self.path / name, 2 * stale if timeout is None else timeout
        self.path.mkdir(parents=True, exist_ok=True)
        deadline = time.monotonic() + timeout
        while True:
            try:
                fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
                break
            except FileExistsError:
                if _remove_stale(path, stale):
                    continue
                if time.monotonic() > deadline:
                    raise StudyError(
                        f"{path} is held by another process; delete it if none is left."
                    ) from None
                time.sleep(0.02)
        try:
            owner = [socket.gethostname(), os.getpid(), process_started(os.getpid())]
            try:
                os.write(fd, json.dumps(owner).encode())
            except OSError as error:
                error.filename = str(path)  # a full disk names none
                raise
            finally:
                os.close(fd)
            yield
        finally:
            path.unlink(missing_ok=True)

    def write_manifest(self, manifest: dict[str, Any]) -> None:
        """Call with `lock()` held."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_json(self.manifest_path, manifest)

    def trial(self, id: str) -> TrialDir:
        return TrialDir(Path(f"{self.path}/{names.TRIALS}/{id}"))

    def trials(self) -> list[TrialDir]:
        """The trials that the manifest names, in its order."""
        return [self.trial(t["id"]) for t in self.manifest().get("trials", [])]

    # ---- what was handed to a scheduler

    def submissions(self, *, skip_damaged: bool = False) -> list[Submission]:
        """Oldest first. Whoever only looks skips one that is damaged: the trials' own files still
        count; whoever submits must not, or would submit what is in the queue.
        """
        return read_submissions(self.path / names.SUBMISSIONS, skip_damaged=skip_damaged)

    def jobs_of_trials(self) -> dict[str, str]:
        """Trial id -> the scheduler's name of the task that it was last given to."""
        return {id: job for s in self.submissions() for id, job in s.jobs_of_trials().items()}

    def add_submission(self, submission: Submission) -> Submission:
        """Writes it under the next free number, and returns it with that number."""
        return add_submission(self.path / names.SUBMISSIONS, submission)


def _remove_stale(path: Path, age: float) -> bool:
    """Removes a lock that a dead owner left; True if it is worth trying again at once."""
    try:
        if _is_young(path, age) and not _is_dead(path):
            return False
        # Renaming first: of several waiters only one gets this file ...
        aside = path.with_name(f"{path.name}.{os.getpid()}.{uuid.uuid4().hex[:8]}")
        os.rename(path, aside)
        if _is_young(aside, age) and not _is_dead(aside):
            # ... and this one is the lock that a quicker waiter has made meanwhile: put it back.
            with contextlib.suppress(FileExistsError):
                os.link(aside, path)
        aside.unlink()
    except FileNotFoundError:
        pass
    return True


def _is_young(lock: Path, age: float) -> bool:
    return -names.AHEAD_SECONDS < time.time() - lock.stat().st_mtime <= age


def _is_dead(lock: Path) -> bool:
    """Whether the owner of a lock was a process of this machine that is gone."""
    try:
        with open_file(lock) as file:
            host, pid, started = json.loads(file.read())
    except (ValueError, TypeError):
        return False  # half written, or an older version's
    return host == socket.gethostname() and bool(started) and process_started(pid) != started


def find_study(study: str, runs_dir: str | Path = "runs") -> StudyDir:
    """A study by path, or by name below `runs_dir`.

    Raises:
        StudyError: where there is none, naming the studies that exist.
    """
    for path in (Path(study), Path(runs_dir) / study):
        if (path / names.MANIFEST).exists():
            return StudyDir(path)
    known = ", ".join(s.name for s in list_studies(runs_dir)) or "none"
    raise StudyError(
        f"There is no study {study!r} (neither a folder of that name with a {names.MANIFEST}, "
        f"nor one in {Path(runs_dir)}). Studies there: {known}."
    )


def list_studies(runs_dir: str | Path = "runs") -> list[StudyDir]:
    """Newest first. Raises OSError for a folder that may not be read."""
    found, folders = [], list[str]()
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        folders = os.listdir(runs_dir)
    for name in folders:
        path = Path(runs_dir, name, names.MANIFEST)
        with contextlib.suppress(OSError):  # no study, or deleted meanwhile
            found.append((path.stat().st_mtime, StudyDir(path.parent)))
    return [study for _, study in sorted(found, key=lambda f: f[0], reverse=True)]
