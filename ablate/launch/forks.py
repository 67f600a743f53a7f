"""The warm process: it imports torch once, never runs an operation, and forks a child per trial,
each before its trial is known: the next one waits for it while others train.

    python -m ablate.launch.forks MODULE:FUNCTION

One JSON object a line. On standard input {"do": "run", "trials": [PATH, ...], "seats": [ID, ...],
"again": [...], "gpu": N} (several trials are one stack, see `together`),
{"do": "check", "configs": [...], "new": BOOL} and {"do": "stop"}; the end of input is a stop too,
so nothing outlives a launcher that was killed. On standard output {"event": "ready", "gpus": N},
{"event": "checked", "error": TEXT} and {"event": "ended", "trials": [PATH, ...],
"codes": [N, ...]}.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import json
import os
import select
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ablate.config.schema import TrialConfig
from ablate.errors import AblateError, TrialEndedError, TrialHeldError
from ablate.launch.children import CRASHED, RAN, Child, become_child, exit_with
from ablate.launch.job import NOT_OURS, FencedOffError, run_job
from ablate.launch.runner import load_runner
from ablate.launch.stop import SIGNALS
from ablate.launch.together import run_together
from ablate.model.config import ModelConfig
from ablate.rundir import TrialDir

__all__ = ["CRASHED", "ENDED_ALREADY", "FENCED_OFF", "HELD", "RAN", "serve"]

_LATE = ("torch.utils._device", "torch.utils.serialization.config", "torch.profiler._cupti_monitor")
"""What torch imports when it first builds, saves and trains."""

HELD, ENDED_ALREADY, FENCED_OFF = 4, 5, 6
"""What a child tells of each of its trials, besides RAN and CRASHED; how the trial ended stands in
its state.
"""


def serve(runner: str) -> None:
    """Answers requests until the input ends and the last child is gone."""
    replies = os.dup(1)
    os.dup2(2, 1)  # what an import prints must not mix with the replies
    for module in ("pyarrow.parquet", "yaml"):
        importlib.import_module(module)
    TrialConfig.from_mapping({"model": {}})  # resolves the types of all fields, once for all
    ModelConfig.from_mapping({})
    server = Server(replies, load_runner(runner))
    if "torch" in sys.modules:
        for module in _LATE:
            with contextlib.suppress(ImportError):  # not in every version
                importlib.import_module(module)
    server.reply(event="ready", gpus=_count_gpus())
    gc.collect()
    gc.freeze()  # children share these pages
    server.loop()


IDLE_SECONDS = 0.05
"""Forking takes a core for 10 ms, which a trial that has just been started needs itself."""


class Server:
    def __init__(self, replies: int, run: Callable[..., Any]) -> None:
        self._replies, self._run = replies, run
        self._children: dict[int, Child] = {}
        """By process, until it is gone."""
        self._telling: dict[int, Child] = {}
        """By `told`, until its codes are known."""
        self._spare: Child | None = None
        self._input, self._open = b"", True
        self._wake, wake = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in SIGNALS:
            signal.signal(number, lambda *_: self.stop())

    def reply(self, **event: Any) -> None:
        try:
            os.write(self._replies, (json.dumps(event) + "\n").encode())
        except BrokenPipeError:
            self._open = False

    def loop(self) -> None:
        while self._open or self._children:
            # What a child holds on its GPU is free once it is gone, and not when it says its codes.
            early = [told for told, child in self._telling.items() if not child.on_gpu]
            lacking = self._open and self._spare is None
            patience = IDLE_SECONDS if lacking else 1.0
            ready, _, _ = select.select([0] * self._open + [self._wake, *early], [], [], patience)
            if lacking and not ready:
                self._spare = self._fork()
            if self._wake in ready:
                os.read(self._wake, 4096)
            for told in set(ready) & set(early):
                self._hear(told)
            if 0 in ready:
                self._read()
            self._reap()
        if self._spare is not None:
            self._spare.dismiss()

    def stop(self) -> None:
        for pid in list(self._children):
            os.kill(pid, signal.SIGTERM)

    def _read(self) -> None:
        piece = os.read(0, 1 << 20)
        if not piece:
            self._open = False
            self.stop()
            return
        *lines, self._input = (self._input + piece).split(b"\n")
        for line in lines:
            request = json.loads(line)
            if request["do"] == "run":
                self._start(request)
            elif request["do"] == "check":
                self.reply(event="checked", error=_check(request["configs"], request["new"]))
            else:
                self.stop()

    def _start(self, request: dict[str, Any]) -> None:
        child, self._spare = self._spare, None
        if child is None or child.is_gone():
            child = self._fork()
        child.start(request)
        self._children[child.pid] = self._telling[child.told] = child

    def _fork(self) -> Child:
        return Child.fork(self._replies, functools.partial(_run_trials, os.getpid(), self._run))

    def _hear(self, told: int) -> None:
        """The codes, without waiting for the end of a process that has nothing left to do."""
        child = self._telling.pop(told)
        if codes := child.codes():
            self.reply(event="ended", trials=child.trials, codes=codes)
            child.trials = []

    def _reap(self) -> None:
        for pid, child in list(self._children.items()):
            done, status = os.waitpid(pid, os.WNOHANG)
            if not done:
                continue
            del self._children[pid]
            if child.told in self._telling:
                self._hear(child.told)
            if child.trials:
                codes = [os.waitstatus_to_exitcode(status)] * len(child.trials)
                self.reply(event="ended", trials=child.trials, codes=codes)


def _run_trials(parent: int, run: Callable[..., Any], request: dict[str, Any]) -> list[int]:
    """The code of each."""
    if request.get("gpu") is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = visible_gpu(request["gpu"], os.environ)
    if request.get("cores"):
        os.sched_setaffinity(0, request["cores"])
    trials = [TrialDir(Path(path)) for path in request["trials"]]
    if len(request["seats"]) > 1:
        seats, again = request["seats"], request["again"]
        ends = run_together(trials, seats, again=again, parent=parent, run=run)
        return [_code_of(end) for end in ends]
    try:
        run_job(trials[0], again=request["again"], parent=parent, own_streams=True, run=run)
    except NOT_OURS as error:
        return [_code_of(error)]
    return [RAN]


def _code_of(end: BaseException | None) -> int:
    if isinstance(end, TrialHeldError):
        return HELD
    if isinstance(end, TrialEndedError):
        return ENDED_ALREADY
    if isinstance(end, FencedOffError):
        return FENCED_OFF
    return RAN if end is None else CRASHED


def visible_gpu(number: int, environment: Mapping[str, str]) -> str:
    """The name of the `number`-th GPU among those that this process may see."""
    visible = [name for name in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return visible[number] if number < len(visible) else str(number)


def _check(configs: list[dict[str, Any]], new: bool) -> str | None:
    """Why a trial could not train, found in a child (this process must stay as it is)."""
    from ablate.launch.preflight import check_training

    def check() -> int:
        try:
            for config in configs:
                check_training(config, new=new)
        except AblateError as error:
            os.write(answer, str(error).encode())
        return 0

    question, answer = os.pipe()
    pid = os.fork()
    if pid == 0:
        become_child(question)
        exit_with(check)
    os.close(answer)
    with os.fdopen(question, "rb") as file:
        text = file.read().decode()
    _, status = os.waitpid(pid, 0)
    return text or ("the check itself failed" if status else None)


def _count_gpus() -> int:
    """Asked in a child: counting may initialise CUDA, and then no child could use it."""
    if "torch" not in sys.modules:
        return 0
    pid = os.fork()
    if pid == 0:
        import torch

        exit_with(lambda: min(torch.cuda.device_count(), 200))
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    return max(code, 0)


if __name__ == "__main__":
    serve(sys.argv[1])
