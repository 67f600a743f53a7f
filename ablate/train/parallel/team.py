"""The processes of one trial: how they meet, what they tell each other, how they part.

The first leads: it holds the trial's lease and writes its record. The others are told which attempt
of which trial to train, one after the other, until they are dismissed. What is said outside of
training goes through torch's key-value store; a process that fails says why there, before its
silence breaks the collective operations of the others.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from ablate.errors import LostProcessError
from ablate.rundir import Attempt

__all__ = ["Team"]

MEETING = timedelta(minutes=10)
"""For all processes to start."""
LOOK = timedelta(seconds=5)
PATIENCE = 5.0
"""Seconds that a broken operation waits for the word of the process that broke it."""

BROKEN = (
    "connection closed", "connection reset", "broken pipe", "connection refused", "gloo", "nccl",
    "timed out", "timeout", "socket",
)  # fmt: skip
"""Words of the errors of a collective operation whose other end is gone."""


class Team:
    """This process among those of its trial."""

    _current: ClassVar[Team | None] = None

    def __init__(self, store: dist.Store, rank: int, world_size: int, local_rank: int) -> None:
        self.store, self.rank, self.world_size = store, rank, world_size
        self.local_rank = local_rank
        self.orders = 0
        self.broken = False

    @classmethod
    def current(cls) -> Team | None:
        return cls._current

    @classmethod
    def meet(cls, variables: Mapping[str, str]) -> Team:
        """Waits for all processes; `variables` are those of torch's `env://`.

        Raises:
            LostProcessError: where some of them do not come.
        """
        for key, value in variables.items():
            os.environ.setdefault(key, value)  # torchrun's own stay
        try:
            store, rank, world_size = next(iter(rendezvous("env://", timeout=MEETING)))
        except (dist.DistError, RuntimeError) as error:
            words = " ".join(str(error).split())
            raise LostProcessError(f"The processes of the trial did not meet: {words}") from None
        team = cls(
            dist.PrefixStore("ablate", store), rank, world_size, int(variables["LOCAL_RANK"])
        )
        cls._current = team
        return team

    @property
    def leads(self) -> bool:
        return self.rank == 0

    # ---- the leader's orders

    def start(self, attempt: Attempt, config: Mapping[str, Any]) -> None:
        """Has every process train this attempt of the trial with this configuration."""
        order = {
            "trial": str(attempt.trial.path.resolve()),
            "attempt": attempt.number,
            "timeout": config["parallel"]["timeout"],
            "device": config["train"]["device"],
        }
        self._say(order)
        self._open(order["timeout"], order["device"])

    def dismiss(self) -> None:
        """Nothing more is to be done; waits a moment until all have heard it."""
        Team._current = None
        try:
            self._say({"over": True})
            end = time.monotonic() + (1.0 if self.broken else 30.0)
            while self.store.add("left", 0) < self.world_size - 1 and time.monotonic() < end:
                time.sleep(0.02)
        except (dist.DistError, RuntimeError):
            return
        if not self.broken and dist.is_initialized():
            dist.destroy_process_group()

    def _say(self, order: Mapping[str, Any]) -> None:
        self.store.set(f"order/{self.orders}", json.dumps(order))
        self.orders += 1

    def order(self) -> dict[str, Any] | None:
        """For the others: what to train next; None where nothing is left.

        Raises:
            LostProcessError: where the leader is gone.
        """
        key = f"order/{self.orders}"
        try:
            while not self._has(key):
                pass
            order = json.loads(self.store.get(key))
        except (dist.DistError, RuntimeError):
            raise LostProcessError("The first process of the trial is gone.") from None
        self.orders += 1
        if order.get("over"):
            self.store.add("left", 1)
            if dist.is_initialized():
                dist.destroy_process_group()
            return None
        self._open(order["timeout"], order["device"])
        return order

    def _has(self, key: str) -> bool:
        """Waits for it a little."""
        try:
            self.store.wait([key], LOOK)
        except dist.DistStoreError:  # it was not set meanwhile
            return False
        return True

    def _open(self, timeout: int, device: str) -> None:
        """The process group, once."""
        if dist.is_initialized():
            return
        cuda = device in ("auto", "cuda") and torch.cuda.is_available()
        if cuda:
            torch.cuda.set_device(self.local_rank)
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if cuda else "gloo",
            store=dist.PrefixStore("group", self.store),
            rank=self.rank,
            world_size=self.world_size,
            timeout=timedelta(seconds=timeout),
        )

    # ---- what all must know

    def agree(self, reason: str | None) -> str | None:
        """The reason to stop that the first of them has, told to all: they stop at one step.

        Collective: every process calls it after the same step.
        """
        flag = torch.tensor(int(reason is not None))
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        if not int(flag):
            return None
        return next(r for r in self.gather(reason) if r is not None)

    def tell(self, value: Any) -> Any:
        """The leader's value, in every process."""
        box = [value]
        dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
        return box[0]

    def gather(self, value: Any) -> list[Any]:
        """Every process's value, in every process."""
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value)
        return values

    # ---- failures

    def report(self, outcome: str, reason: str) -> None:
        """Says why this process fails, where nobody has said so before."""
        self.broken = True
        word = json.dumps({"rank": self.rank, "outcome": outcome, "reason": reason})
        try:
            self.store.compare_set("failed", "", word)
        except (dist.DistError, RuntimeError):  # the store is gone, and so is who would read it
            return

    def explain(self, error: BaseException) -> BaseException:
        """`error`, or where it is but the echo of another process's failure, that one's."""
        text = str(error).lower()
        echo = isinstance(error, dist.DistError) or (
            isinstance(error, RuntimeError) and any(words in text for words in BROKEN)
        )
        if not echo:
            return error
        self.broken = True
        end = time.monotonic() + PATIENCE
        try:
            while time.monotonic() < end:
                if self.store.check(["failed"]):
                    word = json.loads(self.store.get("failed"))
                    text = f"process {word['rank']} of the trial: {word['reason']}"
                    return LostProcessError(text, outcome=word["outcome"])
                time.sleep(0.1)
        except (dist.DistError, RuntimeError):
            pass
        words = " ".join(str(error).split())[:200]
        return LostProcessError(f"A process of the trial is gone without a word ({words})")
