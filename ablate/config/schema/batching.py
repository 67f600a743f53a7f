"""How documents of unequal length become batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ablate.config.typed import check_types, require

__all__ = ["BatchingConfig"]


@dataclass(frozen=True, kw_only=True)
class BatchingConfig:
    name: Literal["concat", "packed", "padded", "dynamic"] = "concat"
    """concat: the stream of all documents, cut into sequences. packed: documents fitted into
    sequences, attention inside each. padded: one document a row, in any order. dynamic: one a row,
    those of like length together, as many as the token budget of a step allows.
    """
    cap: float | None = 1.5
    """Of dynamic: documents are cut at so many times their mean length; null: at the sequence
    length.
    """
    bucket: float = 1.25
    """Of dynamic: the longest document of a bucket is at most so many times its shortest."""

    def __post_init__(self) -> None:
        check_types(self, "batching")
        v = self.cap
        require(v is None or v > 0, "batching.cap", v, "must be greater than 0, or null")
        require(self.bucket > 1, "batching.bucket", self.bucket, "must be greater than 1")
