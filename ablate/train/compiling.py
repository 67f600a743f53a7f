"""Compiled training steps: what is compiled, where it is kept, and when.

- One function is compiled for all blocks, and one for the head with its loss: the time that it
  takes does not grow with the depth. All else runs as it is, and so do validation and
  measurements, whose shapes differ.
- Each shape is compiled by itself, so that no shape that came before changes the code (and with it
  the bits) of one that comes later; a resumed trial computes what an undisturbed one does. Where
  shapes differ from step to step (batching=dynamic) sizes are symbols, and the code is made from
  the first batch of the trial, also in a trial that is resumed.
- It is done before the first step, on a batch whose gradients are thrown away, under a lock: of
  trials that begin together and share a graph one compiles, and the others find what it made.
- What is made lies in a folder that all trials of a user share, for every later trial too.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ablate.config.schema import TrialConfig
from ablate.data.cache import cache_folder, locked
from ablate.model.linear import Unembedding
from ablate.train.batch import TensorBatch, to_tensors
from ablate.train.loss import language_loss

__all__ = ["Compiled", "compile_model", "warm_up"]

log = logging.getLogger(__name__)

FOLDER = "TORCHINDUCTOR_CACHE_DIR"
MOST_GRAPHS = 64
"""Of one function: layers with and without window, of several widths."""


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """What of a training step is compiled, besides the model's blocks."""

    head: Callable[..., Float[Tensor, " 2"]]
    """`head_loss`, compiled."""
    key: str
    """Of the graph: the same in trials that differ in seeds, rates and the like."""

    def losses(self, run: Any, model: Callable[..., Any], part: TensorBatch) -> Float[Tensor, " 2"]:
        """`Run.losses` by the compiled head."""
        rest = (part.labels, run.config.loss.z_loss, run.precision.protects_loss)
        with run.precision.autocast():
            hidden = model(**part.model_inputs, unembed=False).logits
            return self.head(hidden, *run.model.unembedding, *rest)


def compile_model(model: Any, trial: TrialConfig, device: torch.device) -> Compiled | None:
    """Compiles `model`'s blocks, lazily, in place; None where a CPU has no C++ compiler.

    The model computes by them while it is in training mode and gradients are wanted.
    """
    compilers = [os.environ.get("CXX", "g++"), "g++", "clang++"]
    if device.type == "cpu" and not any(shutil.which(name) for name in compilers):
        value = "auto" if trial.train.compile == "auto" else "true"
        log.warning("train.compile=%s is ignored: there is no C++ compiler (install g++).", value)
        return None
    os.environ.setdefault(FOLDER, str(cache_folder(trial.data.cache_dir) / "compiled"))
    _configure(trial.train.threads if device.type == "cpu" else None)
    dynamic = trial.batching.name == "dynamic"
    mode = trial.train.compile_mode
    options: dict[str, Any] = {} if mode == "default" else {"mode": mode}
    model.run_block = torch.compile(_run_block, dynamic=dynamic, **options)
    head = torch.compile(head_loss, dynamic=dynamic, **options)
    return Compiled(head=head, key=_key(trial, device))


def _configure(threads: int | None) -> None:
    """The settings of torch's compiler, for this process; `threads` is how many may compile."""
    import torch._dynamo
    import torch._functorch.config as functorch
    import torch._inductor.config as inductor
    import torch.fx.experimental._config as fx

    dynamo: Any = torch._dynamo.config
    # Backward passes run outside of autocast, as without the compiler. Otherwise products that are
    # kept in float32 (`linear.multiply`, the softmax of `sdpa`) would be repeated in 16 bits.
    functorch.backward_pass_autocast = "off"  # pyright: ignore[reportAttributeAccessIssue]
    # Two sizes that happen to be equal in the first batch are still two.
    fx.use_duck_shape = False  # pyright: ignore[reportAttributeAccessIssue]
    # Over the limit torch would go on uncompiled without a word.
    dynamo.recompile_limit = MOST_GRAPHS
    dynamo.fail_on_recompile_limit_hit = True
    if threads is not None:  # a trial's neighbours have the other cores
        inductor.compile_threads = threads


def _run_block(block: nn.Module, *inputs: Any) -> Any:
    return block(*inputs)


def head_loss(
    hidden: Float[Tensor, "b t d"],
    weight: Float[Tensor, "v d"],
    bias: Float[Tensor, " v"] | None,
    scale: float,
    labels: Int[Tensor, "b t"],
    z_loss: float,
    protected: bool,
) -> Float[Tensor, " 2"]:
    """`language_loss` of the logits that the unembedding makes of `hidden`.

    Under autocast, which leaves the loss of float32 rows as it is; a region without it would keep
    torch from finding the derivative of this function in the folder.
    """
    logits = Unembedding(weight, bias, scale).logits(hidden)
    return language_loss(logits, labels, z_loss, protected)


def warm_up(run: Any) -> dict[str, Any] | None:
    """Compiles what the steps of `run` will need; None where nothing is compiled.

    Returns:
        seconds: that it took.
        made, found: graphs that were compiled here, and that lay in the folder.
    """
    if run.compiled is None:
        return None
    began, before = time.perf_counter(), _counted()
    folder = cache_folder(run.config.data.cache_dir)
    known = Path(os.environ[FOLDER]) / f"{run.compiled.key}.known"
    lock = locked(folder, f"compiled-{run.compiled.key}")
    run.model.train()
    with contextlib.nullcontext() if known.exists() else lock:
        batch = to_tensors(run.make_batch(1), run.device)
        part = next(batch.split(run.parallel.micro_batch(run.config.train)))
        with run.parallel.synchronised(last=False):
            run.precision.backward(run.losses(run.forward, part).sum())
        run.clear_gradients()
        with contextlib.suppress(OSError):
            known.touch()
    made, found = (b - a for a, b in zip(before, _counted(), strict=True))
    return {"seconds": round(time.perf_counter() - began, 3), "made": made, "found": found}


def _counted() -> tuple[int, int]:
    """Graphs that this process has compiled, and found in the folder."""
    from torch._dynamo.utils import counters

    inductor = counters["inductor"]
    return inductor["fxgraph_cache_miss"], inductor["fxgraph_cache_hit"]


def _key(trial: TrialConfig, device: torch.device) -> str:
    c = trial.train
    parts = [trial.model, trial.precision.name, trial.loss.z_loss > 0, trial.batching.name]
    parts += [trial.data.document_masking, c.batch_size, c.micro_batch_size, c.sequence_length]
    parts += [c.threads, c.activation_checkpointing, device.type, torch.__version__]
    parts += [] if c.compile_mode == "default" else [c.compile_mode]
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
