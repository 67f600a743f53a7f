"""wandb as a mirror: a process of its own reads the local files, so training never waits for it."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

from ablate.rundir import ENDED, Attempt
from ablate.track.client import CONNECTED, choose_mode

__all__ = ["WandbMirror"]

log = logging.getLogger(__name__)

WAIT_SECONDS = 2.0
"""The end of a trial waits no longer than this; a mirror that needs more finishes alone."""
START_SECONDS = 5.0
"""A server that has not answered by then is not waited for at all."""


class WandbMirror:
    """Online, a mirror follows the trial from its start; offline, one run is rebuilt at its end.

    wandb cannot continue an offline run: each attempt would leave a run of its own, with steps
    twice or renumbered. So nothing is written offline until the record is whole.
    """

    def start(self, attempt: Attempt, config: Mapping[str, Any]) -> None:
        self._attempt = attempt
        self._log = attempt.path / "wandb.log"
        self._mode = choose_mode(config["track"].get("mode", "auto"), os.environ)
        self._process: subprocess.Popen[bytes] | None = None
        self._began = time.monotonic()
        if self._mode == "online":
            self._process = self._spawn("online")

    def finish(self, status: str) -> None:
        process = self._process
        if process is not None:
            self._tell(process, status)
        elif self._mode == "offline" and status in ENDED:
            process = self._spawn("offline", status)
        if process is not None and self._is_worth_waiting():
            try:
                process.wait(WAIT_SECONDS)
            except subprocess.TimeoutExpired:
                log.info("wandb's mirror is not done yet; it goes on alone for a while.")

    def _is_worth_waiting(self) -> bool:
        """Whether the mirror may soon be done: not where the server has been silent for long."""
        if self._mode == "offline" or time.monotonic() - self._began < START_SECONDS:
            return True
        try:
            return CONNECTED in self._log.read_text(errors="replace")
        except OSError:
            return False

    def _tell(self, process: subprocess.Popen[bytes], status: str) -> None:
        """How the trial ended; the mirror ends after that."""
        assert process.stdin is not None
        if status == "fenced_off":
            process.kill()
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(f"{status}\n".encode())
            process.stdin.flush()
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()

    def _spawn(self, mode: str, status: str = "") -> subprocess.Popen[bytes]:
        arguments = [str(self._attempt.trial.path), str(self._attempt.number), mode, status]
        with open(self._log, "ab") as output:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", "ablate.track.mirror", *arguments],
                stdin=subprocess.PIPE if mode == "online" else subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path),
                },
                start_new_session=True,
            )
