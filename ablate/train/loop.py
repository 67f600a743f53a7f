"""The training loop. Everything that a step does is on this screen, in order.

The device is waited for once a step: for the loss and the gradient norm, which decide whether the
update may be applied at all. The size of the update is asked for where a response limits it, and
else when the row is written, for several rows together. The host knows all else by itself, and the
spike detector looks at nothing but what is written down.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from jaxtyping import Float
from torch import Tensor

from ablate.errors import DivergedError
from ablate.train.batch import TensorBatch
from ablate.train.clip import gradient_norms
from ablate.train.device import seed_step
from ablate.train.loader import Loader
from ablate.train.measure import UpdateNorm, measure
from ablate.train.robustness import robustness
from ablate.train.run import Run
from ablate.train.validation import validate
from ablate.train.watch import Watch

__all__ = ["Gradients", "train"]

Gradients = Callable[[Run, TensorBatch], Float[Tensor, " 2"]]


def train(
    run: Run,
    start: int,
    watch: Watch,
    loader: Loader,
    save: Callable[[int], None],
    should_stop: Callable[[], str | None],
    compute: Gradients | None = None,
) -> tuple[int, str | None]:
    """Trains steps `start` + 1 to train.steps.

    Args:
        run: all that a trial is made of.
        start: steps that are done.
        watch: takes in what each step came to.
        loader: hands out the batches.
        save: writes a checkpoint of a step.
        should_stop: asked after each step; a string means save and return.
        compute: what computes the gradients; None: `accumulate_gradients`.

    Returns:
        The last step that was done, and why it was stopped there (None: it was the last of all).

    Raises:
        DivergedError: at a loss or gradient norm that is not finite (no update is applied), unless
            the response to spikes goes on from there, or where that response ends the trial.
    """
    c, precision, response = run.config.train, run.precision, run.response
    parallel, phases = run.parallel, run.phases
    update_norm = UpdateNorm(parallel.local(run.parameters), parallel.norms)
    run.model.train()
    for step in range(start + 1, c.steps + 1):
        began = time.perf_counter()
        phases.begin()
        seed_step(run.config.seed, step, run.device, parallel.rank)
        rate = run.set_rate(step)
        run.begin_step(step)

        while True:
            batch = loader.take(step)
            phases.end("data")
            losses = (compute or accumulate_gradients)(run, batch)
            precision.unscale(run.optimiser)
            norms = parallel.norms(gradient_norms(run.gradients()))
            loss, z_loss, norm = parallel.same(torch.cat((losses, norms.norm()[None]))).tolist()
            overflow = not math.isfinite(norm) and precision.may_retry(loss)
            verdict = "skip" if overflow else response.judge(step, loss, norm)
            if verdict != "replace":
                break
            run.discard_gradients()

        row: dict[str, Any] = {"step": step, "tokens": step * run.tokens_per_step}
        row |= {"train/loss": loss, "train/grad_norm": norm, "train/update_norm": 0.0, "lr": rate}
        if verdict == "update":
            run.clip(step, run.gradients(), norms)  # no name holds them over the next batch
            update_norm.before()
            run.optimiser.step()
            size: Any = parallel.same(update_norm.after())
            if response.limits:
                size = size.item()
                size *= update_norm.keep(response.limit(step, size))
            row["train/update_norm"] = size
        elif verdict == "diverge":
            diverge(watch, row, f"loss {loss}, gradient norm {norm}")
        elif overflow:
            watch.event(step, "overflow", scale=precision.scale)
        run.discard_gradients()
        phases.end("optimiser")
        seconds = time.perf_counter() - began
        row["tokens_per_second"] = run.tokens_per_step / seconds
        row |= phases.columns()
        if run.config.batching.name != "concat":
            padding, places = parallel.totals(batch.padding, batch.input_ids.numel())
            row["batching/padding"] = padding / places
            row["batching/real_tokens_per_second"] = (places - padding) / seconds
        if run.config.loss.z_loss:
            row["train/z_loss"] = z_loss

        last = step == c.steps
        if due(step, c.measure_every):
            row |= measure(run, batch)
        if last or due(step, c.validate_every):
            values = validate(run)
            if last:
                values |= robustness(run, values["val/loss"])
            row |= values
            watch.event(step, "validation", **values)
            if not math.isfinite(values["val/loss"]):
                diverge(watch, row, f"validation loss {values['val/loss']}")
        if why := watch.see(row):
            diverge(watch, row, why, seen=True)

        reason = None if last else should_stop()
        if last:
            watch.finish(step)
        if last or reason or due(step, c.checkpoint_every):
            save(step)
        if reason:
            return step, reason
    return c.steps, None


def diverge(watch: Watch, row: dict[str, Any], what: str, *, seen: bool = False) -> NoReturn:
    """The row that shows it is still written, and the events that it closes."""
    if not seen:
        watch.see(row)
    watch.finish(row["step"])
    watch.event(row["step"], "diverged", what=what)
    raise DivergedError(row["step"], what)


def due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def accumulate_gradients(run: Run, batch: TensorBatch) -> Float[Tensor, " 2"]:
    """Gradients of the mean loss over the real labels of the whole batch, however it is cut.

    Returns:
        That mean in nats, and the z-loss.
    """
    total: Any = None
    parts = list(batch.split(run.parallel.micro_batch(run.config.train)))
    for i, part in enumerate(parts):
        run.begin_part(i, batch.count)
        with run.parallel.synchronised(last=i == len(parts) - 1):
            losses = run.losses(run.forward, part) / max(batch.count, 1)
            run.phases.end("forward")
            run.precision.backward(losses.sum())
        run.phases.end("backward")
        total = losses.detach() if total is None else total + losses.detach()
    return run.parallel.sum(total)
