"""The launcher's end of the warm process (`forks.py`)."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ablate.errors import AblateError, TrialError
from ablate.launch.runner import RUNNER
from ablate.rundir import TrialDir

__all__ = ["Ended", "Pool"]


@dataclass(frozen=True)
class Ended:
    trial: TrialDir
    code: int
    """Of the trial, see `forks`; negative: its process was killed by that signal."""


class Pool:
    """Children that each run a trial. In a session of its own: the keyboard reaches the launcher
    alone.
    """

    def __init__(self, runner: str = RUNNER) -> None:
        self.running: dict[str, int | None] = {}
        """Path of the trial -> its GPU."""
        self.cores: dict[str, list[int]] = {}
        """Path of the trial -> the CPU cores that it is confined to."""
        self.processes = 0
        """That run them; fewer than trials where some are stacked."""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed by close())
        self._buffer, self._gpus = b"", None
        self._process = subprocess.Popen(
            # The same modules are found there as here, and nothing else (-P: not what lies about).
            [sys.executable, "-P", "-m", "ablate.launch.forks", runner],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,
        )

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def gpus(self) -> int:
        """How many the machine has; waits until torch is imported."""
        while self._gpus is None:
            for event in self._events(60.0):
                if event["event"] == "ready":
                    self._gpus = int(event["gpus"])
        return self._gpus

    def check(self, configs: Sequence[dict[str, Any]], *, new: bool) -> None:
        """Raises AblateError for what could not be trained here (a device, a name to import).

        `new`: of trials that have not begun, see `check_training`.
        """
        self.gpus()
        self._send(do="check", configs=list(configs), new=new)
        while True:
            for event in self._events(60.0):
                if event["event"] == "checked":
                    if event["error"]:
                        raise AblateError(event["error"])
                    return

    def start(
        self,
        trials: Sequence[TrialDir],
        *,
        seats: Sequence[str] = (),
        again: Collection[str] = (),
        gpu: int | None = None,
        cores: Sequence[int] = (),
    ) -> None:
        """One process for one trial, or for several of one stack, whose `seats` are given."""
        paths = [str(trial.path) for trial in trials]
        self.running |= dict.fromkeys(paths, gpu)
        self.cores |= {path: list(cores) for path in paths}
        self.processes += 1
        told = {"trials": paths, "seats": list(seats), "again": list(again)}
        self._send(do="run", **told, gpu=gpu, cores=list(cores))

    def wait(self, seconds: float) -> list[Ended]:
        """The children that ended, after at most so many seconds."""
        ended = []
        for event in self._events(seconds):
            if event["event"] == "ready":
                self._gpus = int(event["gpus"])
            elif event["event"] == "ended":
                self.processes -= 1
                for path, code in zip(event["trials"], event["codes"], strict=True):
                    self.running.pop(path, None)
                    self.cores.pop(path, None)
                    ended.append(Ended(TrialDir(Path(path)), code))
        return ended

    def stop(self) -> None:
        """The children stop at their next step, with a checkpoint; asked again, at once."""
        self._send(do="stop")

    def close(self, timeout: float = 30.0) -> None:
        """Stops what still runs, and waits for it."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        deadline = time.monotonic() + timeout
        while process.poll() is None and time.monotonic() < deadline:
            if select.select([process.stdout], [], [], 0.1)[0] and not os.read(
                process.stdout.fileno(), 1 << 16
            ):
                break
        try:
            process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
        self._errors.close()

    def _send(self, **request: Any) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write((json.dumps(request) + "\n").encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            self._fail()

    def _events(self, seconds: float) -> Iterator[dict[str, Any]]:
        assert self._process.stdout is not None
        out = self._process.stdout
        if b"\n" not in self._buffer and select.select([out], [], [], seconds)[0]:
            piece = os.read(out.fileno(), 1 << 16)
            if not piece:
                self._fail()
            self._buffer += piece
        *lines, self._buffer = self._buffer.split(b"\n")
        for line in lines:
            yield json.loads(line)

    def errors(self) -> str:
        """What the warm process printed, for messages."""
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace").strip()

    def _fail(self) -> None:
        code = self._process.wait()
        lines = self.errors().splitlines()
        if code < 0:
            raise TrialError(
                f"the process that runs the trials was killed ({signal.Signals(-code).name}; for "
                "want of memory, say). Those that ran save and stop; the same command goes on."
            )
        raise RuntimeError(
            f"the process that runs the trials ended with code {code}: "
            f"{lines[-1] if lines else 'it said nothing'}"
        )
