"""What srun starts on a node: a function that submitit has pickled, and little else.

    python -m ablate.launch.slurm.start FOLDER

Reads and writes the files of `submitit.core._submit`, so that its jobs can be waited for as ever;
but imports nothing that a trial does not need, and leaves it to the trial what a signal means.
"""

from __future__ import annotations

import os
import pickle
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from ablate.launch.slurm.identity import this_job
from ablate.launch.stop import note_signals

__all__ = ["load_function", "main"]

PATIENCE_SECONDS = 60.0
"""The pickle gets its name when sbatch has told the number of the job, which may run by then."""


class _Submission:
    """In the place of submitit's DelayedSubmission, whose import takes as long as all of ours."""

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("submitit.core.utils", "DelayedSubmission"):
            return _Submission
        return super().find_class(module, name)


def load_function(folder: Path, job_id: str) -> Any:
    """What was submitted as this job.

    Raises:
        FileNotFoundError: where it is not there after a minute.
    """
    path = folder / f"{job_id}_submitted.pkl"
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    with open(path, "rb") as file:
        return _Unpickler(file).load().function


def main(folder: Path) -> None:
    """Calls it, and keeps the result, or the traceback of an Exception, which is raised again."""
    job = this_job()
    assert job is not None
    result = folder / f"{job.job_id}_{os.environ.get('SLURM_PROCID', 0)}_result.pkl"
    try:
        value = load_function(folder, job.job_id)()
    except Exception:
        _keep(result, ("error", traceback.format_exc()))
        raise
    _keep(result, ("success", value))


def _keep(path: Path, value: tuple[str, Any]) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_bytes(pickle.dumps(value))
    os.replace(temporary, path)


if __name__ == "__main__":
    note_signals()
    main(Path(sys.argv[1]))
