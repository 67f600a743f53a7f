"""Progress in bytes, where somebody looks on."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

__all__ = ["OnBytes", "shown_bar"]

OnBytes = Callable[[int], object] | None


@contextlib.contextmanager
def shown_bar(progress: bool, title: str) -> Iterator[OnBytes]:
    """A callback for bytes done, shown as a bar where standard error is a terminal."""
    if not (progress and sys.stderr.isatty()):
        yield None
        return
    from tqdm import tqdm

    with tqdm(desc=title, unit="B", unit_scale=True, leave=False) as bar:
        yield bar.update
