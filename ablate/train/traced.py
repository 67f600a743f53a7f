"""What a micro-batch really keeps for its backward pass, found without computing anything.

The model is built of fake tensors: torch's meta device, with the name of a device on them, so that
the kernels and the casts of that device are chosen. Every tensor that autograd saves is seen by a
hook, and counted by its storage.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from ablate.config.schema import PrecisionConfig
from ablate.model import ModelConfig, OLMo
from ablate.model.activations import Pass
from ablate.model.linear import has_low_precision_products
from ablate.model.protection import protect
from ablate.model.widths import is_uniform
from ablate.train.precision import Precision

__all__ = ["DEPTH", "Traced", "has_instructions", "shallow", "trace"]

DEPTH = 4
"""Layers of a model that is traced: what they keep grows in proportion."""


@dataclass(frozen=True, kw_only=True)
class Traced:
    parameters: int
    kept: int
    """Bytes of all storages that autograd holds after the forward pass, weights left out."""


def trace(config: ModelConfig, given: Pass, *, head: bool = True) -> Traced:
    """Builds the model whole, and runs the forward pass of one micro-batch in training mode.

    Args:
        config: of the model.
        given: the micro-batch; its device must be the CPU, and its rows hold no documents.
        head: whether the model makes the logits; they are not counted.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode  # it takes as long as torch itself

    told = PrecisionConfig(
        name=given.precision,  # type: ignore[arg-type]
        fused_norms=given.fused_norms,
        foundation_layers=given.foundation_layers,
    )
    precision = Precision(told, torch.device("cpu"))
    with FakeTensorMode():
        model = OLMo(_without_packages(config), init_params=False)
        for module in model.modules():  # `.to` would swap them, which fake tensors do not allow
            for name, weight in list(module.named_parameters(recurse=False)):
                setattr(module, name, nn.Parameter(weight.detach().to(precision.weights)))
        if precision.halves:
            protect(
                model,
                protected=given.precision == "fp16_protected",
                foundation_layers=given.foundation_layers,
                fused=given.fused_norms,
            )
        model.set_activation_checkpointing(given.checkpointing)
        ids = torch.zeros(given.rows, given.length, dtype=torch.long)
        weights = {_storage(p) for p in model.parameters()}
        held: dict[int, Tensor] = {}

        def see(tensor: Tensor) -> Tensor:
            if _storage(tensor) not in weights:
                held[_storage(tensor)] = tensor
            return tensor

        with saved_tensors_hooks(see, lambda tensor: tensor), precision.autocast():
            model.train()(ids, unembed=head)
        kept = sum(t.untyped_storage().nbytes() for t in held.values())
    return Traced(parameters=sum(p.numel() for p in model.parameters()), kept=kept)


def shallow(config: ModelConfig, depth: int = DEPTH) -> ModelConfig:
    """The model with so few layers, where they are all of one width."""
    if config.n_layers <= depth or not is_uniform(config) or config.foundation_layers is not None:
        return config
    size = config.block_group_size
    return config.replace(n_layers=depth, block_group_size=size if depth % size == 0 else 1)


def has_instructions(precision: str) -> bool:
    """Whether this CPU multiplies the type of that precision's products with its own."""
    low = torch.float16 if precision.startswith("fp16") else torch.bfloat16
    return precision == "fp32" or has_low_precision_products(low)


def _without_packages(config: ModelConfig) -> ModelConfig:
    """On the CPU; a fused kernel of another package keeps what torch's own keeps."""
    ours = config.attention_backend in ("auto", "sdpa", "math") and not config.flash_attention
    backend = config.attention_backend if ours else "sdpa"
    return config.replace(init_device="cpu", flash_attention=False, attention_backend=backend)


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata
