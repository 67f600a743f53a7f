"""Runs a trial in several processes for each request on standard input, forked from one that has
torch loaded; answers with their exit codes.

A request may ask for a count of the sums over processes or of all collective operations, or for the
peak of memory, or name a signal that a process sends itself when it asks for the batch of some step
(or when it has written its piece of a checkpoint), or an error that it raises there.
"""

from __future__ import annotations

import gc
import importlib
import importlib.abc
import importlib.machinery
import json
import os
import signal
import socket
import sys
import time
import traceback
import weakref
from pathlib import Path
from types import ModuleType
from typing import Any

import torch.distributed
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ablate.launch.job import run_job
from ablate.launch.processes import follow, leading
from ablate.launch.ranks import Rank
from ablate.launch.retrying import RETRIED
from ablate.rundir import TrialDir
from ablate.train import run, run_trial, shards
from ablate.train.parallel import sharded


class Collectives(TorchDispatchMode):
    """Counts operations of c10d by name. (Torch's own CommDebugMode also follows modules, and
    loses its way in a validation between two steps.)
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, int] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if DTensor in types:  # comes again as what it is made of
            return NotImplemented
        if getattr(func, "namespace", "") == "c10d":
            name = func._schema.name.partition("::")[2].strip("_")
            self.found[name] = self.found.get(name, 0) + 1
        return func(*args, **(kwargs or {}))


class Storages(TorchDispatchMode):
    """The most bytes of tensors at one time. (Torch's profiler does not see what is let go by the
    threads of gloo.)
    """

    def __init__(self) -> None:
        super().__init__()
        self.live: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()
        self.most = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if DTensor in types:
            return NotImplemented
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves((args, out)):
            if isinstance(tensor, torch.Tensor) and not isinstance(tensor, DTensor):
                storage = tensor.untyped_storage()
                if storage.device.type == "cpu":  # not of a fake tensor, which has no bytes
                    self.live.add(storage)
        self.most = max(self.most, sum(storage.nbytes() for storage in self.live))
        return out


def arm(fault: dict[str, Any]) -> None:
    next_batch = run.Run.next_batch

    if "count" in fault:  # a character for each sum over the processes
        reduce = torch.distributed.all_reduce

        def counted(*args: Any, **kwargs: Any) -> Any:
            with open(fault["count"], "a") as file:
                file.write(".")
            return reduce(*args, **kwargs)

        torch.distributed.all_reduce = counted
        return

    if "save" in fault:  # after this process has written its piece
        shards.sum_of = lambda path: os.kill(os.getpid(), signal.Signals[fault["signal"]])
        return

    def strike(self: run.Run, step: int) -> Any:
        if step == fault["step"]:
            if "signal" in fault:
                os.kill(os.getpid(), signal.Signals[fault["signal"]])
            elif "error" in fault:
                raise {"oom": MemoryError, "code": ZeroDivisionError}[fault["error"]]("struck")
        return next_batch(self, step)

    run.Run.next_batch = strike  # type: ignore[method-assign]


def work(request: dict[str, Any], rank: Rank) -> int:
    fault = request.get("fault")
    if rank.world_size > 1:
        os.environ.update(rank.variables())
    if not fault or fault["rank"] != rank.rank:
        return train(request, rank)
    if "collectives" in fault:
        with Collectives() as counts:
            code = train(request, rank)
        Path(fault["collectives"]).write_text(json.dumps(counts.found))
        return code
    if "memory" in fault:
        with Storages() as storages:
            code = train(request, rank)
        Path(fault["memory"]).write_text(str(storages.most))
        return code
    arm(fault)
    return train(request, rank)


def train(request: dict[str, Any], rank: Rank) -> int:
    if rank.rank:
        return follow()
    with leading():
        return 0 if run_job(TrialDir(Path(request["trial"])), again=RETRIED).status == "done" else 1


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def fork(request: dict[str, Any], rank: Rank) -> int:
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        log = os.open(f"{request['trial']}.{rank.rank}.out", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        code = work(request, rank)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def codes(children: list[int], timeout: float, moment: float) -> list[int]:
    """What is still running after `timeout` seconds, or a moment after the first, is killed, and
    told by -9.
    """
    end, found = time.monotonic() + timeout, {}
    while len(found) < len(children):
        for child in set(children) - set(found):
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                found[child] = os.waitstatus_to_exitcode(status)
                if child == children[0]:  # the record is closed
                    end = min(end, time.monotonic() + moment)
            elif time.monotonic() > end:
                os.kill(child, signal.SIGKILL)
        time.sleep(0.01)
    return [found[child] for child in children]


LOADED = (torch.distributed, run_trial, sharded)
"""Once, before the forks."""
LATE = ("torch.distributed.checkpoint", "pyarrow.parquet", "yaml")
"""What each process would import when it saves and reads."""


class Kept(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """A module that is loaded, but counts as one that nobody has imported yet: whoever does is
    given it, and waits for nothing. So each process meets `torch._dynamo` as a trial does, which
    puts its import off (`ablate.train.lean`) until DDP or FSDP asks for it.
    """

    def __init__(self, name: str) -> None:
        self._module = importlib.import_module(name)
        self._spec = importlib.machinery.ModuleSpec(name, self, origin=self._module.__file__)
        del sys.modules[name]
        parent, _, last = name.rpartition(".")
        delattr(sys.modules[parent], last)

    def find_spec(self, fullname: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        return self._spec if fullname == self._spec.name else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None: ...


for module in LATE:
    importlib.import_module(module)
sys.meta_path.insert(0, Kept("torch._dynamo"))
gc.collect()
gc.freeze()  # the processes share these pages

for line in sys.stdin:
    request = json.loads(line)
    world, port = request["world"], free_port()
    ranks = [Rank(rank=r, world_size=world, local_rank=r, master_port=port) for r in range(world)]
    children = [fork(request, rank) for rank in ranks]
    print(json.dumps(codes(children, request["timeout"], request["moment"])), flush=True)
