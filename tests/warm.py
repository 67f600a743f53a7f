"""The warm process of a launch, forked from one that has torch loaded instead of started anew.

Each launch within a test's process would import torch once more. What `ablate.launch.forks` does is
the same; how it is started is left to the tests that start `ablate` as a process of its own.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Mapping
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import IO, Any

__all__ = ["SUBPROCESS"]

CONTEXT = multiprocessing.get_context("forkserver")
PRELOADED = ["torch", "pyarrow.parquet", "ablate.launch.forks", "ablate.train"]


class Warm:
    """As much of `subprocess.Popen` as the pool needs."""

    def __init__(
        self, command: list[str], *, env: Mapping[str, str], stderr: IO[bytes], **_: Any
    ) -> None:
        python, *words, runner = command
        assert (python, *words) == (sys.executable, "-P", "-m", "ablate.launch.forks")
        read, write = os.pipe()
        self.stdin, requests = os.fdopen(write, "wb"), Connection(read, writable=False)
        read, write = os.pipe()
        self.stdout, replies = os.fdopen(read, "rb"), Connection(write, readable=False)
        streams = [requests, replies, Connection(os.dup(stderr.fileno()), readable=False)]
        CONTEXT.set_forkserver_preload(PRELOADED)
        self._process = CONTEXT.Process(
            target=_serve, args=(runner, dict(env), os.getcwd(), streams)
        )
        self._process.start()
        for stream in streams:
            stream.close()

    @property
    def pid(self) -> int | None:
        return self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("ablate.launch.forks", timeout or 0.0)
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()


def _serve(runner: str, env: Mapping[str, str], cwd: str, streams: list[Connection]) -> None:
    """What a process of its own would find: its streams, environment, folder, session and path."""
    for number, stream in enumerate(streams):
        os.dup2(stream.fileno(), number)
        stream.close()
    os.setsid()
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.path[:] = env["PYTHONPATH"].split(os.pathsep)
    from ablate.launch.forks import serve

    serve(runner)


SUBPROCESS = SimpleNamespace(
    Popen=Warm, PIPE=subprocess.PIPE, TimeoutExpired=subprocess.TimeoutExpired
)
"""In place of the module `subprocess` in `ablate.launch.pool`."""
