"""wandb as a mirror: a process of its own reads the local files, so training never waits for it."""

from __future__ import annotations

import contextlib
import logging
import netrc
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from ablate.rundir import ENDED, Attempt

__all__ = ["WandbMirror", "choose_mode"]

log = logging.getLogger(__name__)

WAIT_SECONDS = 5.0
"""The end of a trial waits no longer than this; a mirror that needs more finishes alone."""


class WandbMirror:
    """Online, a mirror follows the trial from its start; offline, one run is rebuilt at its end.

    wandb cannot continue an offline run: each attempt would leave a run of its own, with steps
    twice or renumbered. So nothing is written offline until the record is whole.
    """

    def start(self, attempt: Attempt, config: Mapping[str, Any]) -> None:
        self._attempt = attempt
        self._mode = choose_mode(config["track"]["mode"], os.environ)
        self._process: subprocess.Popen[bytes] | None = None
        if self._mode == "online":
            self._process = self._spawn("online")

    def finish(self, status: str) -> None:
        process = self._process
        if process is not None:
            self._tell(process, status)
        elif self._mode == "offline" and status in ENDED:
            process = self._spawn("offline", status)
        if process is not None:
            try:
                process.wait(WAIT_SECONDS)
            except subprocess.TimeoutExpired:
                log.info("wandb's mirror is not done yet; it goes on alone for a while.")

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
        path = self._attempt.path / "wandb.log"
        arguments = [str(self._attempt.trial.path), str(self._attempt.number), mode, status]
        with open(path, "ab") as output:
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


def choose_mode(wanted: str, environment: Mapping[str, str]) -> str:
    """online, offline or disabled; `auto` follows WANDB_MODE, else whether there is a key."""
    if wanted != "auto":
        return wanted
    if environment.get("WANDB_MODE") in ("online", "offline", "disabled"):
        return environment["WANDB_MODE"]
    return "online" if environment.get("WANDB_API_KEY") or _is_logged_in() else "offline"


def _is_logged_in() -> bool:
    """Whether `wandb login` left a key in the netrc file."""
    try:
        hosts = netrc.netrc(os.environ.get("NETRC")).hosts
    except (OSError, netrc.NetrcParseError):
        return False
    own = os.environ.get("WANDB_BASE_URL", "")
    return any("wandb" in host or (own and host in own) for host in hosts)
