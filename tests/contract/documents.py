"""Text that the trials of this folder train on."""

from __future__ import annotations

import random
from pathlib import Path

__all__ = ["write_documents"]


def write_documents(folder: Path, count: int, shortest: int, longest: int) -> None:
    """Files of seeded random words, so many each, in `folder`/text."""
    draw = random.Random(0)
    words = "the of and to in that he shall unto for his a lord they be".split()  # noqa: SIM905
    (folder / "text").mkdir()
    for i in range(count):
        length = longest if shortest == longest else draw.randint(shortest, longest)
        text = " ".join(draw.choices(words, k=length))
        (folder / f"text/{i:02}.txt").write_text(text)
