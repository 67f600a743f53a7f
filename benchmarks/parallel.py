"""How far several processes are from one: the table of docs/parallel.md, as Markdown.

python -m benchmarks.parallel                # some minutes; a CPU
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

CASES = [("ddp", 2), ("ddp", 4), ("fsdp", 2), ("fsdp", 4), ("hsdp", 4)]
COLUMNS = ("train/loss", "train/grad_norm", "val/loss")
WORDS = "the of and to in that he shall unto for his a lord they be is him not them it".split()  # noqa: SIM905
COMMON = [
    "size=tiny", "dropout=none", "model.d_model=16", "model.n_heads=2", "model.n_layers=2",
    "model.max_sequence_length=32", "data.path=text", "data.cache_dir=cache", "train.steps=20",
    "train.batch_size=8", "train.validation_tokens=300", "train.validate_every=10",
    "train.device=cpu", "train.checkpoint_every=0",
]  # fmt: skip


def rows(folder: Path, name: str, processes: int) -> list[dict[str, Any]]:
    study = f"{name}-{processes}"
    words = [*COMMON, f"parallel={name}", f"study={study}"]
    words += ["parallel.shard_size=2"] if name == "hsdp" else []
    many = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command = [sys.executable, *(many if processes > 1 else []), "-m", "ablate", "train", *words]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    (metrics,) = folder.glob(f"runs/{study}/trials/*/attempts/1/metrics.jsonl")
    return [json.loads(line) for line in metrics.read_text().splitlines()]


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, draw = Path(name), random.Random(0)
        (folder / "text").mkdir()
        for i in range(40):
            text = " ".join(draw.choices(WORDS, k=draw.randint(30, 200)))
            (folder / f"text/{i:02}.txt").write_text(text)
        one = rows(folder, "none", 1)
        for kind, processes in CASES:
            pairs = list(zip(rows(folder, kind, processes), one, strict=True))
            far = [max(abs(a[c] - b[c]) / abs(b[c]) for a, b in pairs if c in b) for c in COLUMNS]
            print(f"| {kind} | {processes} | " + " | ".join(f"{x:.1e}" for x in far) + " |")


if __name__ == "__main__":
    main()
