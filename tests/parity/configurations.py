"""A seeded generator of valid OLMo configurations, over all of upstream's fields."""

from __future__ import annotations

import random
from typing import Any

LENGTH = 12
VOCAB = 61


def draw(index: int) -> dict[str, Any]:
    """Fields of the `index`-th configuration, in plain values that ablate takes as they are.

    Every field of upstream's ModelConfig is varied except those of which upstream has one working
    value here: flash_attention (no package on a CPU), init_device, and the dropouts (0, so that
    two implementations can be compared at all).
    """
    r = random.Random(1_000_003 * index + 17)
    heads = r.choice([1, 2, 3, 4, 6])
    head_dim = r.choice([4, 6, 8, 10])
    layers = r.choice([1, 2, 2, 3, 4])
    activation = r.choice(["gelu", "relu", "swiglu"])
    llama = r.random() < 0.25
    position = r.choice(["rope", "alibi", "learned"])
    fields: dict[str, Any] = {
        "d_model": heads * head_dim,
        "n_heads": heads,
        "clip_qkv": r.choice([None, None, 0.5, 8.0]),
        "n_layers": layers,
        "mlp_ratio": r.choice([2, 4, 8]),
        "mlp_hidden_size": r.choice([None, None, 2 * r.randint(4, 40)]),
        "activation_type": activation,
        "block_type": "llama" if llama else "sequential",
        "block_group_size": r.choice([g for g in range(1, layers + 1) if layers % g == 0]),
        "alibi": position == "alibi",
        "alibi_bias_max": r.choice([8.0, 4.0, 1.5]),
        "rope": position == "rope",
        "rope_full_precision": r.random() < 0.5,
        "rope_theta": r.choice([10000, 500000, 100]),
        "flash_attention": False,
        "attention_dropout": 0.0,
        "residual_dropout": 0.0,
        "embedding_dropout": 0.0,
        "attention_layer_norm": r.random() < 0.5,
        "embedding_layer_norm": r.random() < 0.3,
        "layer_norm_type": r.choice(["default", "low_precision", "rms"]),
        "layer_norm_with_affine": r.random() < 0.8,
        "layer_norm_eps": r.choice([1e-5, 1e-6, 1e-3]),
        "attention_layer_norm_with_affine": r.random() < 0.7,
        "max_sequence_length": r.choice([LENGTH, 16, 32]),
        "include_bias": r.random() < 0.5,
        "bias_for_layer_norm": r.choice([None, True, False]),
        "scale_logits": r.random() < 0.3,
        "vocab_size": VOCAB,
        "embedding_size": r.choice([None, VOCAB, 64, 128]),
        "weight_tying": r.random() < 0.5,
        "eos_token_id": r.randrange(VOCAB),
        "pad_token_id": r.randrange(VOCAB),
        "init_device": "cpu",
        "init_fn": r.choice(["normal", "mitchell", "full_megatron"]),
        "init_std": r.choice([0.02, 0.05]),
        "init_cutoff_factor": r.choice([None, 2.0, 3.0]),
        "precision": r.choice([None, "fp32", "amp_bf16"]),
        "emb_init_std": r.choice([None, None, 0.3]),
        "norm_after": r.random() < 0.5 and not llama,
    }
    fields["scale_emb_init"] = fields["init_fn"] == "full_megatron" and r.random() < 0.5
    if fields["scale_emb_init"]:
        fields["emb_init_std"] = None  # upstream ignores the one beside the other; we refuse it
    if llama:  # upstream's llama block takes no grouped queries, except through the old flag
        fields["multi_query_attention"] = r.choice([None, None, True])
        fields["n_kv_heads"] = None
    else:
        kv = r.choice([None, *[k for k in range(1, heads + 1) if heads % k == 0]])
        fields["n_kv_heads"] = kv
        agreeing = [
            None,
            *([True] if kv in (None, 1) else []),
            *([False] if kv in (None, heads) else []),
        ]
        fields["multi_query_attention"] = r.choice(agreeing)
    return fields
