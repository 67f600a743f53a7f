"""A stretch of a trial trained once more, from a checkpoint before it, with a look at each layer.

Nothing of the trial is touched. A trial is a function of its configuration, so the replayed losses
equal the recorded ones bit for bit, on the same kind of device.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ablate.config.schema import TrialConfig
from ablate.data import IGNORED
from ablate.data.naming import readable
from ablate.errors import StudyError
from ablate.rundir import TrialDir
from ablate.train import checkpoint
from ablate.train.batch import TensorBatch, to_tensors
from ablate.train.clip import gradient_norms
from ablate.train.determinism import deterministic
from ablate.train.device import choose_device
from ablate.train.loader import Loader
from ablate.train.loop import train
from ablate.train.measure import layer_of, measure
from ablate.train.record import Silence
from ablate.train.run import Run, assemble
from ablate.train.watch import Watch

__all__ = ["replay"]


def replay(
    trial: TrialDir,
    step: int,
    *,
    before: int = 3,
    after: int = 3,
    on_step: Callable[[int], None] = lambda _: None,
) -> dict[str, Any]:
    """Trains from the newest checkpoint before step - `before` to step + `after`.

    Returns:
        `checkpoint` (0: from the beginning), `same` (whether the losses are the recorded ones),
        `steps`: for each step of the stretch its loss, the gradient norm and the measurements by
        layer, and the rows of its batch, the worst first, with their loss and text.

    Raises:
        StudyError: for a step that the trial has not done.
    """
    config = TrialConfig.from_mapping(trial.config())
    recorded = {r["step"]: r["train/loss"] for r in trial.stitched()}
    if step not in recorded:
        done = f"1 to {max(recorded)}" if recorded else "none"
        raise StudyError(f"Trial {trial.id} has no step {step} (recorded: {done}). Name another.")
    first, last = max(1, step - before), min(step + after, config.train.steps)
    device = choose_device(config.train.device)
    with deterministic(config.train.threads):
        run = assemble(config, device)
        start = _restore(run, trial, first)
        look = _Look(run, first, on_step)
        train(
            run,
            start,
            Watch(run, look, patient=False),
            Loader(run, ahead=0),  # so that it asks for `next_batch`
            save=lambda _: None,
            should_stop=lambda: "replayed" if look.step >= last else None,
        )
    known = [r for r in look.losses if r in recorded]
    return {
        "trial": trial.id,
        "checkpoint": start,
        "same": all(look.losses[s] == recorded[s] for s in known),
        "steps": look.found,
    }


def _restore(run: Run, trial: TrialDir, first: int) -> int:
    """The newest readable checkpoint before step `first`; 0 where there is none."""
    found = checkpoint.read_newest(trial, run.device, before=first)
    if found is None:
        run.response.begin(run)
        return 0
    run.restore(found)
    return found.step


class _Look(Silence):
    """A record that is written nowhere, and a look at the batch before its update."""

    def __init__(self, run: Run, first: int, on_step: Callable[[int], None]) -> None:
        self.run, self.first, self.on_step = run, first, on_step
        self.step = 0
        self.losses: dict[int, float] = {}
        self.found: list[dict[str, Any]] = []
        self.layers: dict[str, Any] = {}
        self._next, self._judge = run.next_batch, run.response.judge
        run.next_batch = self.next_batch  # type: ignore[method-assign]
        run.response.judge = self.judge  # type: ignore[method-assign]

    def next_batch(self, step: int) -> Any:
        self.batch = self._next(step)
        return self.batch

    def judge(self, step: int, loss: float, norm: float) -> Any:
        """Called when the gradients are there and nothing is updated yet."""
        if step >= self.first:
            self.layers = {
                "batch": self.run.response.batch(step),
                "gradient_norm": self._gradients(),
                "model": self._measured(),
                "rows": list(self._rows()),
            }
        return self._judge(step, loss, norm)

    def show(self, rows: Sequence[dict[str, Any]]) -> None:
        for row in rows:
            self.step = row["step"]
            self.losses[self.step] = row["train/loss"]
            if self.step >= self.first:
                names = ("step", "train/loss", "train/grad_norm", "train/update_norm", "lr")
                self.found.append({k: row[k] for k in names} | self.layers)
            self.on_step(self.step)

    def _gradients(self) -> dict[str, float]:
        """By layer, and by name for what is in none."""
        squares: dict[str, float] = defaultdict(float)
        for name, parameter in zip(self.run.names, self.run.parameters, strict=True):
            if parameter.grad is None:
                continue
            layer = layer_of(name, self.run.model_config.block_group_size)
            bare = name.removeprefix("transformer.").removesuffix(".weight")
            part = bare if layer is None else str(layer)
            squares[part] += float(gradient_norms([parameter.grad])[0]) ** 2
        return {part: square**0.5 for part, square in squares.items()}

    def _measured(self) -> dict[str, float]:
        values = measure(self.run, to_tensors(self.batch, self.run.device))
        return {k.removeprefix("model/"): v for k, v in values.items()}

    def _rows(self) -> Iterator[dict[str, Any]]:
        """The sequences of the batch, the highest loss first."""
        losses = _loss_by_row(self.run, to_tensors(self.batch, self.run.device))
        for i in np.argsort(-losses, kind="stable").tolist():
            yield {
                "sequence": int(self.batch.indices[i]),
                "loss": float(losses[i]),
                "text": readable(self.run.data, self.batch.input_ids[i]),
            }


@torch.no_grad()
def _loss_by_row(run: Run, batch: TensorBatch) -> np.ndarray:
    """The mean loss of each row, without dropout."""
    run.model.eval()
    losses: list[Tensor] = []
    for part in batch.split(run.config.train.micro_batch_size):
        with run.precision.autocast():
            logits = run.model(**part.model_inputs).logits
        nats = F.cross_entropy(
            logits.flatten(0, 1).float(),
            part.labels.flatten(),
            ignore_index=IGNORED,
            reduction="none",
        ).view(part.labels.shape)
        losses.append(nats.sum(1) / (part.labels != IGNORED).sum(1).clamp(min=1))
    run.model.train()
    return torch.cat(losses).cpu().numpy()
