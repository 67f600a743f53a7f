"""Peak memory and time of one training step with a vocabulary of 50,304: whole, chunked, peers.

    python -m benchmarks.chunked                   # 2 layers of 256, 4 x 512 tokens, one thread
    python -m benchmarks.chunked --only loss       # the unembedding and its loss alone

Each contender takes its steps in a process of its own. Memory is the highest resident size of the
process above what it held before the first step (model, libraries and batch); gradients and the
optimiser's state, which nobody can do without, are counted. Time is the median step; the ratio is
to the whole, by ours.

  whole            ours, all logits at once
  loss             ours, loss.chunk=256
  mlp              ours, model.mlp_chunk=256
  both             ours, both
  torch            ours with torch's own chunked torch.nn.functional.linear_cross_entropy
  torch-small      the same with chunks of 256 positions, where torch lets them be chosen
  ai2-olmo, transformers   the installed peers, as they compute their loss
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
CONTENDERS = ("whole", "loss", "mlp", "both", "torch", "torch-small", "ai2-olmo", "transformers")


@dataclass(frozen=True)
class Shape:
    d: int = 256
    layers: int = 2
    heads: int = 4
    batch: int = 4
    length: int = 512
    vocab: int = 50_304
    chunk: int = 256
    steps: int = 5


def held(field: str) -> int:
    """Bytes of this process by a field of its status."""
    text = STATUS.read_text(encoding="utf-8")
    return int(text.partition(f"{field}:")[2].split()[0]) * 1024


def fields_of(s: Shape) -> dict[str, Any]:
    """An OLMo 2-style model."""
    return {
        "d_model": s.d, "n_heads": s.heads, "n_layers": s.layers, "max_sequence_length": s.length,
        "vocab_size": s.vocab, "embedding_size": s.vocab, "eos_token_id": 0, "pad_token_id": 0,
        "attention_dropout": 0.0, "residual_dropout": 0.0, "embedding_dropout": 0.0,
        "rope": True, "layer_norm_type": "rms", "norm_after": True, "include_bias": False,
        "attention_layer_norm": True, "weight_tying": False, "mlp_ratio": 8,
    }  # fmt: skip


def step_of(name: str, s: Shape) -> Callable[[], float]:
    """A training step of a contender: forward, loss, backward, AdamW; returns the loss."""
    import torch
    import torch.nn.functional as F

    from ablate.model import ModelConfig, OLMo
    from ablate.train.loss import chunked_loss
    from ablate.train.peers import PEERS

    torch.manual_seed(0)
    ids = torch.randint(0, s.vocab, (s.batch, s.length))
    labels = torch.cat((ids[:, 1:], torch.full((s.batch, 1), -100)), dim=1)
    count = int((labels != -100).sum())
    model: Any
    if name in ("ai2-olmo", "transformers"):
        model = PEERS[name].build(ModelConfig(**fields_of(s)))
    else:
        chunk = s.chunk if name in ("mlp", "both") else 0
        model = OLMo(ModelConfig(**fields_of(s), mlp_chunk=chunk))
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    options: Any = None
    if name.startswith("torch"):
        rows = s.chunk if name == "torch-small" else None
        options = torch.nn.LinearCrossEntropyOptions(batch_chunk_size=rows)

    def loss() -> Any:
        if name in ("loss", "both"):
            hidden = model(ids, unembed=False).logits
            return chunked_loss(hidden, model.unembedding, labels, 0.0, s.chunk).sum() / count
        if name.startswith("torch"):
            hidden = model(ids, unembed=False).logits.flatten(0, 1)
            head = model.unembedding
            return F.linear_cross_entropy(hidden, head.weight, labels.flatten(), options=options)
        if name == "transformers":
            return model(ids, labels=ids).loss
        logits = model(ids).logits
        return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())

    def step() -> float:
        value = loss()
        value.backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        return float(value.detach())

    return step


def contend(name: str, s: Shape) -> dict[str, Any]:
    """In a process of its own."""
    import torch

    torch.set_num_threads(1)
    step = step_of(name, s)
    before = held("VmRSS")
    RESET.write_text("5", encoding="ascii")
    losses, seconds = [], []
    for _ in range(s.steps):
        start = time.perf_counter()
        losses.append(step())
        seconds.append(time.perf_counter() - start)
    peak = held("VmHWM") - before
    return {"name": name, "peak": peak, "seconds": statistics.median(seconds[1:]),
            "first_loss": losses[0], "last_loss": losses[-1]}  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--contend", help=argparse.SUPPRESS)
    parser.add_argument("--only", action="append", choices=CONTENDERS)
    parser.add_argument("--batch", type=int, default=Shape.batch)
    parser.add_argument("--chunk", type=int, default=Shape.chunk)
    parser.add_argument("--steps", type=int, default=Shape.steps)
    parser.add_argument("--layers", type=int, default=Shape.layers)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    shape = Shape(batch=args.batch, chunk=args.chunk, steps=args.steps, layers=args.layers)
    if args.contend:
        print(json.dumps(contend(args.contend, shape)))
        return 0
    rows = []
    for name in args.only or CONTENDERS:
        words = [f"--{k}={getattr(shape, k)}" for k in ("batch", "chunk", "steps", "layers")]
        command = [sys.executable, "-m", "benchmarks.chunked", f"--contend={name}", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"{name:13} could not run: {done.stderr.strip().splitlines()[-1]}",
                  file=sys.stderr)  # fmt: skip
            continue
        row = json.loads(done.stdout)
        rows.append(row)
        first = rows[0]
        if not args.json:
            memory = f"{row['peak'] / 2**20:8,.0f} MiB  {row['peak'] / first['peak']:5.2f}x"
            clock = f"{row['seconds']:7.3f} s  {row['seconds'] / first['seconds']:5.2f}x"
            losses = f"loss {row['first_loss']:.4f} -> {row['last_loss']:.4f}"
            print(f"{name:13} {memory}  {clock}  {losses}", flush=True)
    if args.json:
        print(json.dumps({"shape": asdict(shape), "rows": rows}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
