"""What tests of training share: a tiny model, text for it, its configuration, and a process that
serves requests.
"""

from __future__ import annotations

import copy
import json
import os
import random
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

__all__ = ["MODEL", "Server", "section_data", "with_sections", "without_clock", "write_text"]

ROOT = Path(__file__).parents[2]
WORDS = "the of and to in that he shall unto for his a lord they be is him not them it"
MODEL = {
    "d_model": 16,
    "n_heads": 2,
    "n_layers": 2,
    "mlp_ratio": 2,
    "max_sequence_length": 32,
    "vocab_size": 257,
    "embedding_size": None,
    "eos_token_id": 256,
    "pad_token_id": 256,
}


def write_text(folder: Path) -> Path:
    """Fills a folder with documents of seeded random words."""
    draw = random.Random(0)
    for i in range(40):
        words = draw.choices(WORDS.split(), k=draw.randint(30, 200))
        (folder / f"{i:02}.txt").write_text(" ".join(words))
    return folder


def section_data(text: Path) -> dict[str, Any]:
    return {
        "corpus": None,
        "path": str(text),
        "cache_dir": str(text.parent / "cache"),
        "validation_fraction": 0.2,
    }


def with_sections(base: dict[str, Any], sections: dict[str, Any]) -> dict[str, Any]:
    """A copy of `base` in which fields of sections, or whole values, are replaced."""
    made = copy.deepcopy(base)
    for name, values in sections.items():
        made[name] = {**made.get(name, {}), **values} if isinstance(values, dict) else values
    return made


def without_clock(record: dict[str, Any]) -> dict[str, Any]:
    """A row or a summary without what depends on the machine and its clock."""
    clock = ("time/", "seconds", "tokens_per_second", "peak_memory", "data_share")
    return {k: v for k, v in record.items() if not k.startswith(clock)}


class Server:
    """A process of its own that answers requests, a JSON value a line."""

    def __init__(self, script: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        )

    def ask(self, *, patience: float = 300, **request: Any) -> Any:
        """The answer; the server has `patience` seconds for it, and is ended then."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        if not select.select([self.process.stdout], [], [], patience)[0]:
            self.process.kill()
            raise TimeoutError(f"no answer to {request} within {patience:.0f} s")
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the server ended with {self.process.wait(10)}, asked {request}")
        return json.loads(answer)

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(timeout=60)
        finally:
            self.process.kill()
