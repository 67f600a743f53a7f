"""A long text through a small model with a bounded key/value cache: memory and time.

    python -m benchmarks.long_context                       # 32,768 tokens, 512 held, every policy
    python -m benchmarks.long_context --policy dynamic

A process each; memory is the highest resident size of the whole process, libraries included.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time

from ablate.config.schema.cache import POLICIES, CacheConfig
from benchmarks.chunked import RESET, held


def stream(policy: str, tokens: int, budget: int, chunk: int) -> dict[str, float | str]:
    """In a process of its own."""
    import torch

    from ablate.model import ModelConfig, OLMo
    from ablate.train.long_context import measure_cache

    torch.set_num_threads(1)
    model = OLMo(
        ModelConfig(
            d_model=128, n_heads=4, n_layers=4, max_sequence_length=1024, vocab_size=257,
            embedding_size=None, eos_token_id=256, pad_token_id=256, rope=True, norm_after=True,
            layer_norm_type="rms", attention_layer_norm=True, include_bias=False,
        )
    )  # fmt: skip
    ids = torch.randint(0, 256, (1, tokens), generator=torch.Generator().manual_seed(0))
    config = CacheConfig(name=policy, budget=budget, chunk=chunk)  # type: ignore[arg-type]
    RESET.write_text("5", encoding="ascii")
    start = time.perf_counter()
    row = measure_cache(model, ids, config, reference=False)
    seconds = time.perf_counter() - start
    return {"policy": policy, "seconds": seconds, "peak": held("VmHWM"), **row}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--policy", action="append", choices=POLICIES)
    parser.add_argument("--tokens", type=int, default=32_768)
    parser.add_argument("--budget", type=int, default=512)
    parser.add_argument("--chunk", type=int, default=16)
    parser.add_argument("--stream", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.stream:
        print(json.dumps(stream(args.stream, args.tokens, args.budget, args.chunk)))
        return 0
    for policy in args.policy or POLICIES:
        words = [f"--{k}={getattr(args, k)}" for k in ("tokens", "budget", "chunk")]
        command = [sys.executable, "-m", "benchmarks.long_context", f"--stream={policy}", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        row = json.loads(done.stdout)
        print(
            f"{policy:21} {row['peak'] / 2**20:7,.0f} MiB in all  "
            f"{row['cache/bytes'] / 2**20:7.2f} MiB of keys and values  {row['seconds']:6.1f} s",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
