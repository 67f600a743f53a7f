"""One training step, ours against the installed peers: one process, alternating, ratios with
intervals. `ablate bench --peers` of a list of arms.

    python -m benchmarks.step                                  # GPT-2 and OLMo 2, fp32 and bf16
    python -m benchmarks.step --family all --precision fp32    # every family
    python -m benchmarks.step --family olmo2 --precision bf16 --compile --rounds 60
    python -m benchmarks.step --length 1024 --compile-ours     # ours compiled, peers eager
    python -m benchmarks.step --clock cpu                      # where others use the machine too

Everybody gets the same shapes, batch, precision, number of threads and optimiser (fused AdamW),
and computes the loss as its users do: transformers by `labels=` with SDPA (its default), ai2-olmo
from its logits in float32. A round runs each contender once, in an order that rotates; the ratio is
peer time / our time, so 1.10 means that ours takes 10 % less; the interval is a 95 % bootstrap over
rounds of the ratio of medians.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from typing import Any

from ablate.plan import single_trial
from ablate.train.bench import Timing, bench_peers, peers_of

FAMILIES = {
    "gpt2": ["model=gpt2", "activation=gelu"],
    "olmo1": ["model=olmo1"],
    "olmo2": ["model=olmo2"],
    "olmo3": ["model=olmo2", "model.sliding_window_pattern=[{w},{w},{w},-1]"],
    "llama": ["model=llama", "model.mlp_ratio=8"],
}
"""GPT-2 with the exact GELU, which every peer has. OLMo 3 is OLMo 2 with windows in three layers of
four, here of a quarter of the length (`w`).
"""


@dataclass(frozen=True)
class Shape:
    """Sizes that all contenders share."""

    d: int = 128
    layers: int = 4
    heads: int = 4
    length: int = 256
    batch: int = 8
    vocab: int = 512


def overrides(family: str, s: Shape) -> list[str]:
    """Of the command line. The text has 257 kinds of bytes; the embedding has `vocab` rows."""
    model = {
        "d_model": s.d, "n_heads": s.heads, "n_layers": s.layers, "max_sequence_length": s.length,
        "embedding_size": s.vocab,
    }  # fmt: skip
    own = [word.format(w=s.length // 4) for word in FAMILIES[family]]
    own += [f"model.{name}={value}" for name, value in model.items()]
    return [*own, "dropout=none", f"train.batch_size={s.batch}", "optim.weight_decay=0.01"]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--family", choices=(*FAMILIES, "all"), action="append")
    parser.add_argument("--precision", choices=("fp32", "bf16"), action="append")
    parser.add_argument("--peer", action="append")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--width", type=int, default=Shape.d)
    parser.add_argument("--length", type=int, default=Shape.length)
    parser.add_argument("--vocab", type=int, default=Shape.vocab)
    parser.add_argument("--batch", type=int, default=Shape.batch)
    parser.add_argument("--chunk", type=int, default=0, help="ours with loss.chunk")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--compile", action="store_true", help="ours and peers")
    parser.add_argument("--compile-ours", action="store_true", help="ours alone")
    parser.add_argument("--compile-peers", action="store_true", help="peers alone")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    shape = Shape(d=args.width, vocab=args.vocab, batch=args.batch, length=args.length)
    timing = Timing(rounds=args.rounds, clock=args.clock)
    families = args.family or ["gpt2", "olmo2"]
    rows = []
    for family in FAMILIES if "all" in families else families:
        for precision in args.precision or ("fp32", "bf16"):
            words = [
                *overrides(family, shape),
                f"precision={precision}",
                f"loss.chunk={args.chunk}",
            ]
            words += [f"train.threads={args.threads}", "train.device=cpu"]
            words.append(f"train.compile={str(args.compile or args.compile_ours).lower()}")
            config = single_trial(words).trial.config
            names = [n for n, why in peers_of(config, args.peer or ()).items() if why is None]
            compiled = args.compile or args.compile_peers
            found = bench_peers(config, timing, names, compiled=compiled)
            rows += _rows(family, precision, found, quiet=args.json)
    if args.json:
        print(json.dumps({"shape": vars(shape), "rows": rows}))
    return 0


def _rows(family: str, precision: str, found: dict[str, Any], *, quiet: bool) -> list[Any]:
    own, *peers = found["contenders"]
    rows = []
    for peer in peers:
        row = {"family": family, "precision": precision, "peer": peer["name"]}
        row |= {k: peer[k] for k in ("ratio", "low", "high")}
        row |= {"ours_ms": own["step_ms"], "peer_ms": peer["step_ms"], "load": found["load"]}
        rows.append(row)
        if not quiet:
            print(
                f"{family:6} {precision:5} {peer['name']:13} ours {row['ours_ms']:7.1f} ms  peer "
                f"{row['peer_ms']:7.1f} ms  ratio {row['ratio']:.3f} [{row['low']:.3f}, "
                f"{row['high']:.3f}]  load {row['load']}",
                flush=True,
            )
    return rows


if __name__ == "__main__":
    raise SystemExit(main())
