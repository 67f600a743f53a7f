"""FSDP2 and HSDP: weights, gradients and the optimiser's state divided among processes."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from ablate.config.schema import ParallelConfig, TrialConfig
from ablate.errors import ConfigError
from ablate.model import ModelConfig, OLMo
from ablate.model.init import initialise
from ablate.rundir import Attempt, TrialDir
from ablate.train import checkpoint, shards
from ablate.train.checkpoint import Checkpoint
from ablate.train.parallel.pieces import put_into, small_state, tensors_of
from ablate.train.parallel.replicated import Replicated
from ablate.train.parallel.team import Team
from ablate.train.parallel.units import units
from ablate.train.precision import Precision

__all__ = ["Sharded"]


class Sharded(Replicated):
    """As `Replicated`, but each process keeps a part of every tensor, cut along its first axis.

    With hsdp the parts lie in `shard_size` processes, and each such group has the whole.
    """

    def __init__(self, team: Team, config: TrialConfig) -> None:
        super().__init__(team, config)
        self.config = config
        size = shard_size(config.parallel, team.world_size)
        self.replicas = team.world_size // size

    def build(self, config: ModelConfig, seed: int, precision: Precision) -> nn.Module:
        """One unit at a time is made, whole, in the host's memory, and divided at once, so no
        process ever holds the whole model; the weights are those of one process, bit for bit.
        """
        model = OLMo(dataclasses.replace(config, init_device="meta"), init_params=False)
        shape, names = (self.world_size,), ("shard",)
        if self.config.parallel.name == "hsdp":
            shape, names = (self.replicas, self.world_size // self.replicas), ("copy", "shard")
        mesh = init_device_mesh(precision.device.type, shape, mesh_dim_names=names)
        policy = MixedPrecisionPolicy(reduce_dtype=torch.float32)
        chosen = units(
            model, self.config.parallel.wrapping_strategy, head=not self.config.loss.chunk
        )
        for unit in [*chosen, [model]]:
            made = {m for part in unit for m in part.modules()}
            made = {m for m in made if any(p.is_meta for p in m.parameters(recurse=False))}
            _materialise(made)
            initialise(model, config, seed, only=made)
            for module in made:
                for parameter in module.parameters(recurse=False):
                    parameter.data = parameter.data.to(precision.weights)
            fully_shard(unit if len(unit) > 1 else unit[0], mesh=mesh, mp_policy=policy)
        for module in model.modules():
            if isinstance(module, FSDPModule):
                # Losses are divided by the labels of the whole batch already: the sum, no mean.
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)
        self.model: Any = model
        return model

    def forward(self, model: nn.Module) -> Callable[..., Any]:
        return model

    def synchronised(self, last: bool) -> contextlib.AbstractContextManager[Any]:
        """Gradients are divided, and summed over the copies of hsdp, at the last micro-batch; with
        `micro_batch` they are divided at each, and summed at the last all the same.

        FSDP's `is_last_backward` stays true: false is for several forward passes before their
        backward passes, and would gather weights of the micro-batch before ahead of time.
        """
        if self.config.parallel.grad_sync_mode == "batch":
            self.model.set_requires_gradient_sync(last)
        elif self.replicas > 1:
            self.model.set_requires_all_reduce(last)
        return contextlib.nullcontext()

    def local(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return [_here(t) for t in tensors]

    # ---- checkpoints

    def save(
        self,
        run: Any,
        attempt: Attempt,
        step: int,
        *,
        weightless: bool,
        before_commit: Callable[[], None],
    ) -> None:
        if weightless:
            return super().save(run, attempt, step, weightless=True, before_commit=before_commit)
        folder = Path(self.tell(str(attempt.begin_checkpoint(step)) if self.leads else None))
        shards.write(folder, tensors_of(run))
        mine = {f.name: shards.sum_of(f) for f in folder.glob(f"__{self.rank}_*")}
        sums = {name: value for part in self.team.gather(mine) for name, value in part.items()}
        if self.leads:
            sums[shards.METADATA] = shards.sum_of(folder / shards.METADATA)
            checkpoint.write_train(folder, step, {**small_state(run), "shards": sums})
            before_commit()
            attempt.commit_checkpoint(step)
        self.tell(None)  # nobody goes on before it counts
        return None

    def restore(
        self, run: Any, trial: TrialDir, skip: Callable[[int, int, str], None]
    ) -> Checkpoint | None:
        """The newest checkpoint that every process finds sound in its share of the files."""
        found = list(checkpoint.candidates(trial)) if self.leads else []
        places = self.tell([(attempt.number, step) for attempt, step in found])
        for number, step in places:
            folder = Attempt(trial, number).checkpoint_path(step)
            read, problem = None, None
            try:
                read = self._checked(folder, number, step)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:  # garbage makes the unpickler raise anything at all
                problem = f"{type(error).__name__}: {error}".splitlines()[0]
            problems = [p for p in self.team.gather(problem) if p is not None]
            if problems or read is None:
                if self.leads:
                    checkpoint.skipped(folder, problems[0])
                    skip(number, step, problems[0])
                continue
            if read.model is None and "shards" not in read.train:
                return read  # the last step was done, and the weights were not kept
            run.accept(read)
            put_into(run, folder, read)
            return read
        return None

    def _checked(self, folder: Path, attempt: int, step: int) -> Checkpoint:
        """Without the tensors where they are in shards."""
        train = checkpoint.read_train(folder, step)
        if "shards" not in train:
            return checkpoint.read(folder, attempt, step, torch.device("cpu"))
        names = sorted(train["shards"])
        shards.check_sums(folder, train["shards"], names[self.rank :: self.world_size])
        shards.shapes(folder)
        return Checkpoint(attempt=attempt, step=step, model=None, train=train)

    # ---- numbers

    def norms(self, norms: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        squares = norms.double().square()
        dist.all_reduce(squares)
        return (squares / self.replicas).sqrt().to(norms.dtype)

    def weight_norm(self, norms: Float[np.ndarray, " w"]) -> float:
        return float(np.sqrt(np.square(norms).sum() / self.replicas))


def _here(tensor: Tensor) -> Tensor:
    detached: Any = tensor.detach()
    return detached.to_local() if isinstance(tensor, DTensor) else detached


def shard_size(parallel: ParallelConfig, processes: int) -> int:
    """Processes that share one copy of the weights.

    Raises:
        ConfigError: where it does not divide their number.
    """
    if parallel.name == "fsdp":
        return processes
    size = parallel.shard_size or processes_of_node(processes)
    if processes % size:
        reason = f"does not divide the {processes} processes"
        raise ConfigError("parallel.shard_size", size, reason, "Set a divisor, or parallel=fsdp")
    return size


def processes_of_node(processes: int) -> int:
    """As torchrun or SLURM says; all where nobody does."""
    local = os.environ.get("LOCAL_WORLD_SIZE")
    if local is None and (nodes := os.environ.get("SLURM_STEP_NUM_NODES")):
        return max(1, processes // int(nodes))
    return int(local or processes)


def _materialise(modules: set[nn.Module]) -> None:
    """Gives each meta parameter and buffer of these modules memory on the host."""
    for module in modules:
        for name, parameter in module.named_parameters(recurse=False):
            made = nn.Parameter(torch.empty_like(parameter, device="cpu"), parameter.requires_grad)
            setattr(module, name, made)
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, torch.empty_like(buffer, device="cpu"))
