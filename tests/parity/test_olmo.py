"""Logits, hidden states, loss and gradients equal ai2-olmo's own, over random configurations.

Every case runs in float32 and once more in float64 on the same weights, batch and mask. In
float64 upstream
still rotates in float32 where rope_full_precision is set, and so do we: the same arithmetic,
compared as it is.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from ablate.model import ModelConfig, OLMo
from tests.parity.configurations import LENGTH, VOCAB, draw

CASES = 128
LIMITS = {
    torch.float32: {"logits": 1e-6, "hidden": 1e-6, "loss": 1e-6, "gradient": 1e-5},
    torch.float64: dict.fromkeys(("logits", "hidden", "loss", "gradient"), 1e-12),
}


def upstream(fields: dict[str, Any]) -> Any:
    import olmo.config as oc
    from olmo.model import OLMo as Peer

    kinds = {
        "activation_type": oc.ActivationType,
        "block_type": oc.BlockType,
        "layer_norm_type": oc.LayerNormType,
        "init_fn": oc.InitFnType,
    }
    values = {k: kinds[k](v) if k in kinds else v for k, v in fields.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # rows that are no multiple of 128
        return Peer(oc.ModelConfig(**values))


def pair(index: int, dtype: torch.dtype) -> tuple[OLMo, Any]:
    """Our model and upstream's with equal weights; norms and biases are jittered off 1 and 0."""
    fields = draw(index)
    torch.manual_seed(index)
    theirs = upstream(fields)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    ours = OLMo(ModelConfig(**fields))
    ours.load_state_dict(theirs.state_dict(), strict=True)
    return ours.to(dtype).train(), theirs.to(dtype).train()


def inputs(index: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Token ids, and in a third of the cases each: nothing else, a padding mask, a bias."""
    g = torch.Generator().manual_seed(index)
    ids = torch.randint(0, VOCAB, (2, LENGTH), generator=g)
    kind = index % 3
    if kind == 1:
        mask = torch.ones(2, LENGTH)
        mask[0, LENGTH - 3 :] = 0
        mask[1, : 2 * (index % 2)] = 0
        return {"input_ids": ids, "attention_mask": mask}
    if kind == 2 and not draw(index)["alibi"]:  # upstream drops ALiBi here; we do not
        block = torch.block_diag(torch.ones(5, 5), torch.ones(LENGTH - 5, LENGTH - 5)).tril()
        return {"input_ids": ids, "attention_bias": block.bool()[None, None]}
    return {"input_ids": ids}


def run(model: Any, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    out = model(**batch, output_hidden_states=True)
    loss = F.cross_entropy(out.logits[:, :-1].flatten(0, 1), batch["input_ids"][:, 1:].flatten())
    loss.backward()
    values = {"logits": out.logits, "loss": loss}
    values |= {f"hidden/{i}": h for i, h in enumerate(out.hidden_states)}
    values |= {f"gradient/{n}": p.grad for n, p in model.named_parameters() if p.grad is not None}
    return {k: v.detach() for k, v in values.items()}


def difference(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """max |Δ| / max |reference|."""
    scale = theirs.abs().max().item()
    return (ours - theirs).abs().max().item() / scale if scale else ours.abs().max().item()


def compare(index: int, dtype: torch.dtype) -> dict[str, float]:
    ours, theirs = pair(index, dtype)
    batch = inputs(index, dtype)
    mine, reference = run(ours, batch), run(theirs, batch)
    assert mine.keys() == reference.keys()
    # Softmax does not notice what is added to all keys alike, so without a rotation these have a
    # gradient of zero, and rounding around zero has no relative size: compared with the largest.
    largest = max(v.abs().max().item() for n, v in reference.items() if n.startswith("gradient/"))
    found: dict[str, float] = {}
    for name, reference_value in reference.items():
        if name.endswith(("k_proj.bias", "k_norm.bias")) and not draw(index)["rope"]:
            assert (mine[name] - reference_value).abs().max() <= LIMITS[dtype]["gradient"] * largest
            continue
        kind = name.split("/")[0]
        value = difference(mine[name], reference_value)
        assert value == value, f"{name} is not finite in case {index}"
        found[kind] = max(found.get(kind, 0.0), value)
    return found


@pytest.mark.parametrize("dtype", LIMITS, ids=["fp32", "fp64"])
@pytest.mark.parametrize("start", range(0, CASES, 16))
def test_random_configurations_equal_upstream(start: int, dtype: torch.dtype) -> None:
    worst: dict[str, tuple[float, int]] = {}
    for index in range(start, start + 16):
        for kind, value in compare(index, dtype).items():
            worst[kind] = max(worst.get(kind, (0.0, -1)), (value, index))
    print(start, dtype, {k: f"{v:.2g} (case {i})" for k, (v, i) in worst.items()})
    for kind, (value, index) in worst.items():
        assert value <= LIMITS[dtype][kind], f"{kind}: {value:.3g} in case {index}: {draw(index)}"
