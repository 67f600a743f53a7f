"""Norms and softmax of a model under float16 autocast: protected in float32, or not at all.

| part                        | fp16: unprotected          | fp16_protected                       |
|-----------------------------|----------------------------|--------------------------------------|
| norms                       | input, scale and output in | input widened, computed in float32   |
|                             | float16 (torch's kernels)  |                                      |
| attention logits, softmax   | float16, unfused           | float32 (a fused kernel on a GPU     |
|                             |                            | keeps both in float32 by itself)     |
| loss (`ablate.train.loss`)  | log-softmax in float16     | float32                              |
| matrix products elsewhere   | float16                    | float16                              |

float16 ends at 65,504: a residual, or the product of a query and a key, beyond that is infinite.
Torch's own autocast protects norms and softmax on a GPU and not on a CPU; here both precisions mean
the same everywhere. Unprotected norms are torch's own float16 kernels, which sum in float32 inside
and so are half protected already; without `fused` they are spelled out, as a norm in a few lines of
Python is, and each operation rounds to float16. Then squares overflow from 256 on, and so does the
derivative at small scales: 1/rms³ of an embedding of deviation 0.02 is 125,000.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ablate.model.foundation import in_foundation
from ablate.model.names import NORM_SLOTS
from ablate.model.noisy import NoisyNorm
from ablate.model.norm import LayerNorm, LowPrecisionLayerNorm, Norm, RMSNorm
from ablate.model.transformer import OLMo

__all__ = ["half_layer_norm", "half_rms_norm", "protect"]


def protect(
    model: OLMo, *, protected: bool, foundation_layers: int | None = None, fused: bool = True
) -> None:
    """Sets, once, in which type norms and softmax compute. State dicts stay as they are.

    Args:
        model: that will run under float16 autocast.
        protected: False: nothing is.
        foundation_layers: protects the embedding's norm and so many of the lowest blocks only;
            None: all.
        fused: what is not protected computes by torch's kernels; False: operation by operation.
    """
    size = model.config.block_group_size
    for name, module in model.named_modules():
        if name.rpartition(".")[2] not in NORM_SLOTS:
            continue
        if protected and in_foundation(name, foundation_layers, size):
            module.register_forward_pre_hook(_widened)
        else:
            _unprotect(module, HALF if fused else SPELLED_OUT)
    for layer, block in enumerate(model.blocks):
        inside = foundation_layers is None or layer < foundation_layers
        block.softmax = torch.float32 if protected and inside else torch.float16


def half_layer_norm(norm: Norm, x: Tensor) -> Tensor:
    """LayerNorm of float16 in float16, by torch's kernel: the sums inside are float32."""
    with torch.autocast(x.device.type, enabled=False):
        return F.layer_norm(x.half(), (norm.size,), _half(norm.weight), _half(norm.bias), norm.eps)


def half_rms_norm(norm: Norm, x: Tensor) -> Tensor:
    """RMSNorm likewise."""
    with torch.autocast(x.device.type, enabled=False):
        y = F.rms_norm(x.half(), (norm.size,), _half(norm.weight), norm.eps)
        return y if norm.bias is None else y + norm.bias.half()


def spelled_layer_norm(norm: Norm, x: Tensor) -> Tensor:
    """LayerNorm of float16, every operation of it rounded to float16."""
    with torch.autocast(x.device.type, enabled=False):
        low = x.half()
        return _spelled(norm, low - low.mean(-1, keepdim=True))


def spelled_rms_norm(norm: Norm, x: Tensor) -> Tensor:
    """RMSNorm likewise."""
    with torch.autocast(x.device.type, enabled=False):
        return _spelled(norm, x.half())


def _spelled(norm: Norm, x: Tensor) -> Tensor:
    y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + norm.eps)
    y = y if norm.weight is None else y * norm.weight.half()
    return y if norm.bias is None else y + norm.bias.half()


def _half(parameter: Tensor | None) -> Tensor | None:
    return None if parameter is None else parameter.half()


HALF: dict[type[nn.Module], Any] = {
    LayerNorm: half_layer_norm,
    LowPrecisionLayerNorm: half_layer_norm,
    RMSNorm: half_rms_norm,
}
SPELLED_OUT: dict[type[nn.Module], Any] = {
    LayerNorm: spelled_layer_norm,
    LowPrecisionLayerNorm: spelled_layer_norm,
    RMSNorm: spelled_rms_norm,
}


def _unprotect(module: nn.Module, table: dict[type[nn.Module], Any]) -> None:
    """A norm of the user's own gets a float16 input; what it makes of it is its own affair."""
    if isinstance(module, NoisyNorm) and module.kind in table:
        module.compute = table[module.kind]
    elif type(module) in table:
        module.forward = partial(table[type(module)], module)
    else:
        module.register_forward_pre_hook(_narrowed)


def _widened(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (inputs[0].float(), *inputs[1:])


def _narrowed(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (inputs[0].half(), *inputs[1:])
