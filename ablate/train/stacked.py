"""Trials that compute the same graph, trained as one batch of models.

Each member is a trial like any other, in a thread of its own: its batches, its optimiser, its
rates, its detector, its record and its checkpoints. Only the gradients come from here: when every
member has its batch, one pass over weights of shape [members, ...] computes all of them.

One member runs at a time; it hands over when it waits for the others. A seat that is empty (its
trial has ended, diverged or not begun) is computed too, with weights of zero, so that the shapes,
and with them the bits of the others, are what they were.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ablate.data import IGNORED
from ablate.model import OLMo
from ablate.train.batch import TensorBatch
from ablate.train.run import Run

__all__ = ["Seat", "Stack"]


class Stack:
    """Seats for trials that compute the same graph; the weights of all in one tensor each.

    Args:
        trials: ids, in the order of the seats.
    """

    def __init__(self, trials: Sequence[str]) -> None:
        self.trials = tuple(trials)
        self.turn = threading.Condition()
        """Held by the member that runs."""
        self.seats = [Seat(self, number) for number in range(len(self.trials))]
        self.weights: dict[str, Tensor] = {}
        self._template: nn.Module | None = None
        self._broken: BaseException | None = None

    def seat(self, trial: str) -> Seat:
        """That of a trial, which the others wait for from now on, until it leaves."""
        seat = self.seats[self.trials.index(trial)]
        seat.taken = True
        return seat

    def interrupt(self) -> None:
        """Every member that waits, or comes to, is interrupted as by the keyboard."""
        self._broken = KeyboardInterrupt()
        with self.turn:
            self.turn.notify_all()

    # ---- called by a member that has the turn

    def await_gradients(self, seat: Seat) -> Float[Tensor, " 2"]:
        while seat.losses is None:
            if self._broken is not None:
                raise self._broken
            present = [s for s in self.seats if s.taken]
            if all(s.batch is not None for s in present):
                try:
                    self.compute(present)
                except BaseException as error:
                    self._broken = error
                    raise
                finally:
                    self.turn.notify_all()
            else:
                self.turn.wait()
        losses, seat.losses = seat.losses, None
        return losses

    def place(self, run: Run, number: int) -> None:
        """Moves the weights of a run into seat `number`; its parameters are views from now on."""
        if not self.weights:
            self._template, weights = _template(run), dict[str, Tensor]()
            for name, p in zip(run.names, run.parameters, strict=True):
                zeros = torch.zeros(len(self.seats), *p.shape, dtype=p.dtype, device=p.device)
                weights[name] = zeros.requires_grad_()
            self.weights = weights  # all or none: where memory ends here, the next one tries anew
        with torch.no_grad():
            for name, p in zip(run.names, run.parameters, strict=True):
                own = self.weights[name].detach()[number]
                own.copy_(p)
                p.data = own

    def compute(self, present: list[Seat]) -> None:
        """Gradients and losses of every member that is there, from its batch."""
        runs, first = [s.run for s in present], present[0].run
        batches = [s.batch for s in present]
        for run in runs:
            run.phases.end("wait")
        size = first.config.train.micro_batch_size
        total: Any = 0.0
        for parts in zip(*(batch.split(size) for batch in batches), strict=True):  # type: ignore
            losses = self._losses(first, self._spread(parts, present))
            losses = [
                losses[s.number] / max(part.count, 1)
                for s, part in zip(present, parts, strict=True)
            ]
            for run in runs:
                run.phases.end("forward")
            together = torch.stack(losses)
            together.sum().backward()
            for run in runs:
                run.phases.end("backward")
            total = total + together.detach()
        for name, weights in self.weights.items():
            assert weights.grad is not None
            gradients, weights.grad = weights.grad.unbind(0), None
            for s in present:
                s.parameters[name].grad = gradients[s.number]
        for s, losses in zip(present, total.unbind(0), strict=True):
            s.batch, s.losses = None, losses

    def _spread(self, parts: Sequence[TensorBatch], present: Sequence[Seat]) -> TensorBatch:
        """A micro-batch of each seat, [members, b, t]; an empty seat has no labels."""
        some = parts[0]
        ids = [torch.zeros_like(some.input_ids)] * len(self.seats)
        labels = [torch.full_like(some.labels, IGNORED)] * len(self.seats)
        for seat, part in zip(present, parts, strict=True):
            ids[seat.number], labels[seat.number] = part.input_ids, part.labels
        return TensorBatch(input_ids=torch.stack(ids), labels=torch.stack(labels), count=0)

    def _losses(self, run: Run, batch: TensorBatch) -> Float[Tensor, "n 2"]:
        template = self._template
        assert template is not None

        def one(weights: dict[str, Tensor], ids: Tensor, labels: Tensor) -> Float[Tensor, " 2"]:
            def forward(**inputs: Any) -> Any:
                return torch.func.functional_call(template, weights, (), inputs)

            return run.losses(forward, TensorBatch(input_ids=ids, labels=labels, count=0))

        return torch.vmap(one)(self.weights, batch.input_ids, batch.labels)


class Seat:
    """One trial's place in a stack. A context: within, the trial has the turn, or waits for it."""

    def __init__(self, stack: Stack, number: int) -> None:
        self.stack, self.number = stack, number
        self.taken = False
        self.run: Any = None
        self.parameters: dict[str, nn.Parameter] = {}
        self.batch: TensorBatch | None = None
        self.losses: Tensor | None = None

    @property
    def facts(self) -> dict[str, Any]:
        """For the trial's record."""
        seats = list(self.stack.trials)
        return {"stacked": len(self.stack.seats), "seat": self.number, "seats": seats}

    def __enter__(self) -> Seat:
        self.stack.turn.acquire()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.stack.turn.release()
        self.leave()

    def take(self, run: Run) -> None:
        """Before anything holds on to the weights of `run`."""
        self.stack.place(run, self.number)
        run.attention = {_kernel(run): "trials that are stacked"}
        self.run, self.parameters = run, dict(zip(run.names, run.parameters, strict=True))

    def gradients(self, run: Run, batch: TensorBatch) -> Float[Tensor, " 2"]:
        """As `loop.accumulate_gradients`, together with the other members."""
        self.batch = batch
        return self.stack.await_gradients(self)

    def leave(self) -> None:
        """The others wait no longer; what the seat holds stays as it is, and harms nobody."""
        with self.stack.turn:
            self.taken, self.batch = False, None
            self.stack.turn.notify_all()


def _kernel(run: Run) -> str:
    """Of the attention: one that can be batched over members. On a CPU torch has no such rule for
    its fused kernel, and the llama block spells the softmax out everywhere.
    """
    fused = run.device.type == "cuda" and run.model_config.block_type != "llama"
    return "sdpa" if fused else "math"


def _template(run: Run) -> nn.Module:
    """The graph without weights."""
    kernel = _kernel(run)
    config = dataclasses.replace(run.model_config, attention_backend=kernel, init_device="meta")
    model = OLMo(config, init_params=False)
    assert not list(model.buffers()), "a buffer would be shared by all members"
    return model.train()
