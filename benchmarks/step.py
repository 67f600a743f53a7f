"""One training step, ours against the installed peers: one process, alternating, ratios with
intervals.

    python -m benchmarks.step                      # both families, fp32 and bf16
    python -m benchmarks.step --family olmo2 --precision bf16 --rounds 60

Everybody gets the same shapes, weights of the same size, the same optimiser (fused AdamW), the
same batch and
one thread. A round runs each contender once, in an order that rotates; the ratio is peer time /
our time, so
1.10 means that ours takes 10 % less; the interval is a 95 % bootstrap over rounds of the ratio
of medians.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from ablate.model import ModelConfig, OLMo


@dataclass(frozen=True)
class Shape:
    """Sizes that all contenders share."""

    d: int = 128
    layers: int = 4
    heads: int = 4
    length: int = 256
    batch: int = 8
    vocab: int = 512


Step = Callable[[], None]


def olmo_fields(family: str, s: Shape) -> dict:
    """ModelConfig fields of a family; ai2-olmo takes the same."""
    common = {
        "d_model": s.d, "n_heads": s.heads, "n_layers": s.layers, "max_sequence_length": s.length,
        "vocab_size": s.vocab, "embedding_size": s.vocab, "eos_token_id": 0, "pad_token_id": 0,
        "attention_dropout": 0.0, "residual_dropout": 0.0, "embedding_dropout": 0.0,
    }  # fmt: skip
    if family == "gpt2":
        return {**common, "activation_type": "gelu", "mlp_ratio": 4}
    return {
        **common, "rope": True, "layer_norm_type": "rms", "norm_after": True, "include_bias": False,
        "attention_layer_norm": True, "weight_tying": False, "mlp_ratio": 8,
    }  # fmt: skip


def ours(family: str, s: Shape) -> torch.nn.Module:
    return OLMo(ModelConfig(**olmo_fields(family, s)))


def ai2(family: str, s: Shape) -> torch.nn.Module:
    from olmo.config import (  # pyright: ignore[reportMissingImports]
        ActivationType,
        LayerNormType,
    )
    from olmo.config import ModelConfig as PeerConfig
    from olmo.model import OLMo as Peer  # pyright: ignore[reportMissingImports]

    fields = olmo_fields(family, s)
    fields["activation_type"] = ActivationType(fields.get("activation_type", "swiglu"))
    fields["layer_norm_type"] = LayerNormType(fields.get("layer_norm_type", "default"))
    return Peer(PeerConfig(**fields, init_device="cpu"))


def hugging_face(family: str, s: Shape) -> torch.nn.Module:
    import transformers

    if family == "gpt2":
        config = transformers.GPT2Config(
            vocab_size=s.vocab, n_positions=s.length, n_embd=s.d, n_layer=s.layers, n_head=s.heads,
            activation_function="gelu", resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, use_cache=False,
        )  # fmt: skip
        return transformers.GPT2LMHeadModel(config)
    config = transformers.Olmo2Config(
        vocab_size=s.vocab, hidden_size=s.d, intermediate_size=4 * s.d, use_cache=False,
        num_hidden_layers=s.layers, num_attention_heads=s.heads, max_position_embeddings=s.length,
        tie_word_embeddings=False, eos_token_id=0, pad_token_id=None,
    )  # fmt: skip
    return transformers.Olmo2ForCausalLM(config)


CONTENDERS = {"ablate": ours, "ai2-olmo": ai2, "transformers": hugging_face}


def training_step(model: torch.nn.Module, ids: torch.Tensor, precision: str) -> Step:
    """Forward, cross-entropy in fp32, backward, AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    model.train()

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            logits = model(ids).logits
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def measure(steps: dict[str, Step], rounds: int) -> dict[str, np.ndarray]:
    """Seconds of each step, [rounds] a contender, alternating in a rotating order."""
    names = list(steps)
    for name in names * 3:
        steps[name]()
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for i in range(rounds):
        k = i % len(names)
        for name in names[k:] + names[:k]:
            start = time.perf_counter()
            steps[name]()
            seconds[name].append(time.perf_counter() - start)
    return {name: np.array(values) for name, values in seconds.items()}


def ratio(peer: np.ndarray, own: np.ndarray, draws: int = 4000) -> tuple[float, float, float]:
    """Ratio of medians with a 95 % bootstrap interval over rounds."""
    rng = np.random.default_rng(0)
    index = rng.integers(0, len(own), (draws, len(own)))
    samples = np.median(peer[index], axis=1) / np.median(own[index], axis=1)
    low, high = np.quantile(samples, [0.025, 0.975])
    return float(np.median(peer) / np.median(own)), float(low), float(high)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--family", choices=("gpt2", "olmo2"), action="append")
    parser.add_argument("--precision", choices=("fp32", "bf16"), action="append")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--vocab", type=int, default=512)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    shape = Shape(d=args.width, vocab=args.vocab, batch=args.batch)
    rows = []
    for family in args.family or ("gpt2", "olmo2"):
        for precision in args.precision or ("fp32", "bf16"):
            torch.manual_seed(0)
            ids = torch.randint(0, shape.vocab, (shape.batch, shape.length))
            steps = {
                name: training_step(build(family, shape), ids, precision)
                for name, build in CONTENDERS.items()
            }
            seconds = measure(steps, args.rounds)
            own = seconds.pop("ablate")
            for peer, values in seconds.items():
                middle, low, high = ratio(values, own)
                row = {"family": family, "precision": precision, "peer": peer}
                row |= {"ratio": middle, "low": low, "high": high, "rounds": args.rounds}
                row["ours_ms"] = float(np.median(own)) * 1e3
                row["peer_ms"] = float(np.median(values)) * 1e3
                rows.append(row)
                if not args.json:
                    print(
                        f"{family:6} {precision:5} {peer:13} ours {row['ours_ms']:7.1f} ms  peer "
                        f"{row['peer_ms']:7.1f} ms  ratio {middle:.3f} [{low:.3f}, {high:.3f}]"
                    )
    if args.json:
        print(json.dumps({"shape": vars(shape), "rows": rows}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
