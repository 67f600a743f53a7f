"""Memory of a GPU (or of a process on a CPU) while an arm trains, by formula and without torch.

| part        | bytes a process, of P parameters in n parts (n = 1: not divided)                |
|-------------|---------------------------------------------------------------------------------|
| weights     | w P / n; w is 2 in pure bf16, else 4: under autocast weights stay float32       |
| gradients   | the same, where they are kept (see below); 4 P where weights are divided and    |
|             | grad_sync_mode=batch keeps them whole from one micro-batch to the next. DDP's   |
|             | buckets, where they end, are always there: from one to the next, twice w P      |
| optimiser   | AdamW 2 w P / n, Lion w P / n; Muon w for its matrices, 2 w for the rest        |
| update      | w P / n: the copy from which the size of the update is measured                 |
| gathered    | divided weights: w times the root unit, and twice the largest other unit        |
| activations | `ablate.model.activations`, of one micro-batch of this process                  |
| logits      | `ablate.model.logits`                                                           |

The peak is the largest of these moments: the loss (activations and logits are there; gradients only
where micro-batches went before), the backward pass of each layer (what is computed again of a
checkpointed one, and the gradients within it and of the layers above, instead of the logits and
what these had kept), and the optimiser (all gradients, no activations; Lion makes its update beside
them, and a CPU a copy of one gradient at a time in float64, for its norm). Divided gradients are
whole for a moment, a unit at a time, and once more in float32 while they are reduced. Gradients
that are kept whole are all there when the last micro-batch begins its backward pass, and go unit by
unit. CUDA's own context and the allocator's fragments, some GiB together, are not counted: what is
let through may still not fit. What is refused cannot, but for a few percent where a checkpointed
layer is most of it: its backward pass is counted up to 5 % too high.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ablate.config.schema import TrialConfig
from ablate.config.schema.parallel import EVERY
from ablate.model import count
from ablate.model.activations import Pass, activations
from ablate.model.config import ModelConfig
from ablate.model.kernel_case import keeps_documents
from ablate.model.logits import logit_bytes
from ablate.model.widths import layer_configs
from ablate.plan.canonical import typed

__all__ = ["Memory", "device_of", "memory_of", "micro_batch", "processes_of", "unit_sizes"]

LARGE = 10**8
"""Parameters from which `size_based` gathers a block by itself."""


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes of one process, at its device."""

    weights: int
    gradients: int
    optimiser: int
    update: int
    gathered: int
    activations: int
    logits: int
    backward: int
    """Within one layer, while its backward pass runs: what is computed again, and gradients."""
    transient: int
    """A unit's gradients before they are divided; the optimiser's own update."""
    peak: int
    """The most that is there at one time; less than the sum of the parts."""
    processes: int
    device: str
    """cuda or cpu."""

    def largest(self, count: int = 3) -> list[tuple[str, int]]:
        """Its largest parts, in words, the largest first."""
        named = {
            "weights": self.weights,
            "gradients": self.gradients,
            "optimiser state": self.optimiser,
            "the copy that measures updates": self.update,
            "gathered weights": self.gathered,
            "activations": self.activations,
            "logits": self.logits,
            "the backward pass of a layer": self.backward,
        }
        return sorted(named.items(), key=lambda part: -part[1])[:count]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def memory_of(
    config: Mapping[str, Any], *, processes: int | None = None, device: str | None = None
) -> Memory:
    """Of an arm's configuration.

    Args:
        config: of one trial, also one that was frozen before some of its fields were there.
        processes: that share it; None: as `processes_of` has it.
        device: cuda or cpu; None: as `device_of` has it.
    """
    trial, model = typed(config), ModelConfig(**config["model"])
    processes, device = processes or processes_of(trial), device or device_of(trial)
    given = micro_batch(trial, model, processes=processes, device=device)
    width, total = given.weight, count.parameters(model)
    parts, loss = _parts(trial, processes), trial.loss
    kept = activations(model, given, head=not loss.chunk)
    logits = logit_bytes(model, given, chunk=loss.chunk, z_loss=bool(loss.z_loss))
    share = math.ceil(width * total / parts)
    gathered = reduced = root = largest = 0
    if parts > 1:
        root, *units = unit_sizes(model, trial.parallel.wrapping_strategy, head=not loss.chunk)
        largest = max(units, default=0)
        gathered = width * (root + 2 * largest)
        reduced = (width + 4) * max(root, largest)
    optimiser, updates = _optimiser(trial, model, total)
    buckets = share if trial.parallel.name == "ddp" and processes > 1 else 0
    held = share + math.ceil(width * optimiser / parts) + share + buckets
    train = trial.train
    accumulates = (train.micro_batch_size or train.batch_size) < train.batch_size
    before, first = share if accumulates else 0, reduced
    if parts > 1 and accumulates and trial.parallel.grad_sync_mode == "batch":
        before = 4 * total
        first = (4 if width == 4 else 4 + width) * (largest or root)  # added in place, then cast
    made = [0] * model.n_layers
    if not (before or buckets):  # which are or have all gradients
        made = [math.ceil(width * n / parts) for n in _above(model)]
    widened = 8 * _largest_tensor(model) if device == "cpu" else 0
    peak = held + max(
        gathered + before + kept.kept + logits,
        gathered + before + first + max(map(operator.add, kept.moments(), made)),
        gathered + share - buckets + kept.tables + reduced,
        share - buckets + kept.tables + math.ceil(max(width * updates, widened) / parts),
    )
    return Memory(
        weights=share,
        gradients=max(share, buckets + before),
        optimiser=math.ceil(width * optimiser / parts),
        update=share,
        gathered=gathered,
        activations=kept.kept,
        logits=logits,
        backward=max(kept.backward),
        transient=max(reduced, math.ceil(width * updates / parts)),
        peak=peak,
        processes=processes,
        device=device,
    )


def _above(model: ModelConfig) -> list[int]:
    """Parameters above each layer, whose gradients are there when its backward pass runs."""
    blocks = count.block_parameters(model)
    width = layer_configs(model)[0 if model.weight_tying else -1].d_model
    head = model.embedding_rows * (width + model.include_bias)
    return [head + sum(blocks[index + 1 :]) for index in range(len(blocks))]


def _largest_tensor(model: ModelConfig) -> int:
    """Numbers of it: a CPU sums the squares of each gradient in float64."""
    sizes = (layer.d_model * layer.hidden_size for layer in layer_configs(model))
    return max(model.embedding_rows * layer_configs(model)[0].d_model, *sizes)


def processes_of(trial: TrialConfig) -> int:
    """That share the trial: one a GPU of the allocation, where it is to be shared at all."""
    if trial.parallel.name == "none" or trial.cluster.pack > 1:
        return 1
    return trial.cluster.processes


def device_of(trial: TrialConfig) -> str:
    """Cuda or cpu, as far as the configuration tells it: a GPU where the allocation has one. Only
    SLURM's has to say so: elsewhere it is enough to say how large the GPU is.
    """
    device, cluster = trial.train.device, trial.cluster
    if device == "auto":
        known = cluster.name != "slurm" and cluster.gpu_memory is not None
        return "cuda" if cluster.gpus or known else "cpu"
    return "cuda" if device.startswith("cuda") else "cpu"


def micro_batch(trial: TrialConfig, model: ModelConfig, *, processes: int, device: str) -> Pass:
    """What passes through the model of one process at a time."""
    train, precision = trial.train, trial.precision
    return Pass(
        rows=math.ceil((train.micro_batch_size or train.batch_size) / processes),
        length=train.sequence_length or model.max_sequence_length,
        precision=precision.name,
        fused_norms=precision.fused_norms,
        foundation_layers=precision.foundation_layers,
        device="cuda" if device == "cuda" else "cpu",
        checkpointing=train.activation_checkpointing,
        documents=keeps_documents(trial.data.document_masking, trial.batching.name),
        compiled=bool(train.compile),
    )


def _parts(trial: TrialConfig, processes: int) -> int:
    """Processes over which one copy of the weights is divided."""
    parallel = trial.parallel
    if parallel.name == "fsdp":
        return processes
    if parallel.name == "hsdp":
        return min(processes, parallel.shard_size or max(1, trial.cluster.gpus))
    return 1


def _optimiser(trial: TrialConfig, model: ModelConfig, total: int) -> tuple[int, int]:
    """(numbers of the optimiser's state, numbers that its step makes besides).

    An optimiser of the user's own counts as AdamW.
    """
    name = trial.optim.name
    if name == "lion":
        return total, total
    if name == "muon":
        inside = sum(count.matrices(layer) for layer in layer_configs(model))
        return 2 * total - inside, 0
    return 2 * total, 0


def unit_sizes(model: ModelConfig, strategy: str | None, *, head: bool) -> list[int]:
    """Parameters of the root unit, which holds what no other does, and of the others.

    As `ablate.train.parallel.units`, by numbers.
    """
    blocks, total = count.block_parameters(model), count.parameters(model)
    units: list[int] = []
    if strategy is None:
        return [total]
    if "group" in strategy:
        size = model.block_group_size
        units = [sum(blocks[i : i + size]) for i in range(0, len(blocks), size)]
    elif strategy == "size_based":
        units = [b for b in blocks if b >= LARGE]
    else:
        units = blocks[:: EVERY.get(strategy, 1)]
    if head and "size" in strategy and not model.weight_tying:
        width = layer_configs(model)[-1].d_model
        units = [*units, model.embedding_rows * (width + model.include_bias)]
    return [total - sum(units), *units]
