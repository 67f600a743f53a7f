"""Initialisation. Each parameter has a generator of its own, seeded by (seed, parameter name).

So two models share, bit for bit, each tensor with the same name and shape, whatever else differs:
the standard deviation only scales the draws, and truncation redraws only what lies outside.

| part                   | normal | mitchell     | full_megatron | gpt2    | llama   | llama_depth |
|------------------------|--------|--------------|---------------|---------|---------|-------------|
| embedding              | s      | 1/√d         | s (·√d opt.)  | s       | 1       | 1           |
| position, relative     | s      | 1/√d         | s             | s       | s       | s           |
| qkv, ff_in (gate)      | s      | 1/√d         | s             | s       | s       | s           |
| ff_up (linear half)    | s      | 1/√d         | s             | s       | s/√(2L) | s/√(2(ℓ+1)) |
| attn_out               | s      | 1/√(2d(ℓ+1)) | s/√(2L)       | s/√(2L) | s/√(2L) | s/√(2(ℓ+1)) |
| ff_out (h inner width) | s      | 1/√(2h(ℓ+1)) | s/√(2L)       | s/√(2L) | s/√(2L) | s/√(2(ℓ+1)) |
| head, where untied     | s      | 1/√d         | 1/√d          | s       | 1/√d    | 1/√d        |
| cut at c·std, c =      | cutoff | cutoff or 3  | cutoff or 3   | cutoff  | cutoff or 3 | same    |

s = init_std, d = d_model, L = n_layers, ℓ = layer from 0, cutoff = init_cutoff_factor. emb_init_std
replaces the embedding's. The first three are OLMo's, the last two OLMo-core's. Biases start at 0.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from ablate.errors import ConfigError
from ablate.model.compat import clean_name, ungrouped_name
from ablate.model.config import ModelConfig
from ablate.model.variants import find
from ablate.model.widths import layer_configs

__all__ = ["INITS", "Part", "embedding_std", "generator_for", "initialise"]


class Part(NamedTuple):
    """What an initialised matrix is."""

    role: str
    """embedding, position, qkv, attn_out, ff_in, ff_up, ff_out, head, or width (a projection
    between layers of unequal width, whose deviation is always 1/√fan_in).
    """
    layer: int
    fan_in: int


@runtime_checkable
class InitFn(Protocol):
    """The standard deviation of a part: what an init function of the user's own returns too."""

    def __call__(self, config: ModelConfig, part: Part) -> float: ...


def normal(config: ModelConfig, part: Part) -> float:
    if part.role == "embedding":
        return config.emb_init_std or config.init_std
    return config.init_std


def mitchell(config: ModelConfig, part: Part) -> float:
    if part.role == "embedding" and config.emb_init_std:
        return config.emb_init_std
    if part.role in ("attn_out", "ff_out"):
        return (2 * part.fan_in * (part.layer + 1)) ** -0.5
    return config.d_model**-0.5


def full_megatron(config: ModelConfig, part: Part) -> float:
    if part.role == "embedding":
        if config.emb_init_std is not None:
            return config.emb_init_std
        return config.init_std * (config.d_model**0.5 if config.scale_emb_init else 1.0)
    if part.role == "head":
        return config.d_model**-0.5
    return gpt2(config, part)


def gpt2(config: ModelConfig, part: Part) -> float:
    if part.role in ("attn_out", "ff_out"):
        return config.init_std * (2 * config.n_layers) ** -0.5
    return normal(config, part)


def llama(config: ModelConfig, part: Part) -> float:
    return _llama(config, part, config.n_layers)


def llama_depth(config: ModelConfig, part: Part) -> float:
    return _llama(config, part, part.layer + 1)


def _llama(config: ModelConfig, part: Part, depth: int) -> float:
    if part.role == "embedding":
        return 1.0 if config.emb_init_std is None else config.emb_init_std
    if part.role == "head":
        return config.d_model**-0.5
    if part.role in ("attn_out", "ff_out", "ff_up"):
        return config.init_std * (2 * depth) ** -0.5
    return config.init_std


INITS: dict[str, InitFn] = {
    "normal": normal,
    "mitchell": mitchell,
    "full_megatron": full_megatron,
    "gpt2": gpt2,
    "llama": llama,
    "llama_depth": llama_depth,
}
_DEFAULT_CUTOFF = {"mitchell": 3.0, "full_megatron": 3.0, "llama": 3.0, "llama_depth": 3.0}
_ROLES = {"wte": "embedding", "wpe": "position", "position": "position", "attn_out": "attn_out"}
_ROLES |= dict.fromkeys(("width_proj", "width_out"), "width")
_ROLES |= dict.fromkeys(("att_proj", "q_proj", "k_proj", "v_proj"), "qkv")


def embedding_std(config: ModelConfig) -> float:
    """Standard deviation of the token embeddings at initialisation."""
    part = Part("embedding", 0, config.d_model)
    return find(INITS, config.init_fn, "model.init_fn")(config, part)


def generator_for(seed: int, name: str) -> torch.Generator:
    """The generator of one parameter, on the CPU: every device gets the same bits."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))


@torch.no_grad()
def initialise(
    model: nn.Module, config: ModelConfig, seed: int, only: Collection[nn.Module] | None = None
) -> None:
    """Draws all parameters of `model` anew, or those that `only` these modules of it hold.

    Raises:
        ConfigError: a module of the user's own has parameters but no `reset_parameters()`.
    """
    deviation: InitFn = find(INITS, config.init_fn, "model.init_fn")
    layers = layer_configs(config)
    cutoff = config.init_cutoff_factor or _DEFAULT_CUTOFF.get(config.init_fn)
    for raw_name, module in model.named_modules():
        if only is not None and module not in only:
            continue
        name = ungrouped_name(clean_name(raw_name), config.block_group_size)
        parts = _parts(module, name, config)
        if parts:
            weight, bias = module.weight, getattr(module, "bias", None)
            assert isinstance(weight, Tensor)
            draw = _standard_normal(weight.shape, cutoff, generator_for(seed, f"{name}.weight"))
            for rows, part in parts:
                own = layers[-1 if part.role == "head" else part.layer]
                draw[rows] *= _own_deviation(own, part) or deviation(own, part)
            weight.copy_(draw)
            if isinstance(bias, Tensor):
                bias.zero_()
        elif next(module.parameters(recurse=False), None) is not None:
            _reset(module, name, seed)


def _own_deviation(config: ModelConfig, part: Part) -> float | None:
    """That of a part which has a field for it, whatever the init function."""
    if part.role == "width":
        return part.fan_in**-0.5  # keeps the size of the residual stream
    if part.role == "position" and config.position_scheme == "hybrid":
        return config.hybrid_learned_std
    return None


def _parts(module: nn.Module, name: str, config: ModelConfig) -> list[tuple[slice, Part]]:
    """Rows of a matrix with what each is; empty for what initialises itself."""
    *_, leaf = name.split(".")
    if not isinstance(module, nn.Linear | nn.Embedding) and leaf not in ("wpe", "position"):
        return []
    numbers = [int(piece) for piece in name.split(".") if piece.isdigit()]
    layer = numbers[0] if numbers else 0
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or weight.ndim != 2:
        return []
    fan_in, everything = weight.shape[1], slice(None)
    if leaf == "ff_out":
        return [(everything, Part("ff_out" if numbers else "head", layer, fan_in))]
    if leaf == "ff_proj":
        if not config.is_gated:
            return [(everything, Part("ff_in", layer, fan_in))]
        half = weight.shape[0] // 2
        parts = Part("ff_up", layer, fan_in), Part("ff_in", layer, fan_in)
        return [(slice(half), parts[0]), (slice(half, None), parts[1])]
    return [(everything, Part(_ROLES[leaf], layer, fan_in))] if leaf in _ROLES else []


def _standard_normal(shape: torch.Size, cutoff: float | None, generator: torch.Generator) -> Tensor:
    """N(0, 1), truncated at ±cutoff. Only the draws outside are drawn again, so that a model with a
    cutoff shares the others (99.7 % of them at 3) with its sibling without.
    """
    draw = torch.randn(shape, generator=generator)
    if cutoff is not None:
        outside = draw.abs() > cutoff
        again = torch.empty(int(outside.sum()))
        draw[outside] = nn.init.trunc_normal_(again, 0.0, 1.0, -cutoff, cutoff, generator=generator)
    return draw


def _reset(module: nn.Module, name: str, seed: int) -> None:
    reset = getattr(module, "reset_parameters", None)
    if reset is None:
        kind = type(module)
        raise ConfigError(
            "model",
            f"{kind.__module__}:{kind.__qualname__}",
            f"holds parameters ({name}) but cannot initialise them",
            "Give it a method reset_parameters(), which draws from torch's default generator",
        )
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.set_state(generator_for(seed, name).get_state())
        reset()
