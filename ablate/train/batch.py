"""A batch of numpy arrays as tensors on the device, cut into micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from ablate.data import IGNORED, Batch

__all__ = ["TensorBatch", "stage", "to_tensors"]


@dataclass(frozen=True, kw_only=True)
class TensorBatch:
    input_ids: Int[Tensor, "b t"]
    labels: Int[Tensor, "b t"]
    """The next token of each position; the last position of a row has none."""
    count: int
    """Real labels of the whole batch, counted before anything went to the device."""
    doc_lens: Int[Tensor, "b d"] | None = None
    max_doc_lens: list[int] | None = None
    padding: int = 0
    """Positions that hold no token of the data."""

    @property
    def model_inputs(self) -> dict[str, Any]:
        """Keyword arguments of the model's forward."""
        if self.doc_lens is None:
            return {"input_ids": self.input_ids}
        return {
            "input_ids": self.input_ids,
            "doc_lens": self.doc_lens,
            "max_doc_lens": self.max_doc_lens,
        }

    def to(self, device: torch.device) -> TensorBatch:
        """Copied to `device` without waiting, where this lies in pinned memory."""
        if device.type == "cpu":
            return self
        return replace(
            self,
            input_ids=self.input_ids.to(device, non_blocking=True),
            labels=self.labels.to(device, non_blocking=True),
            doc_lens=None if self.doc_lens is None else self.doc_lens.to(device, non_blocking=True),
        )

    def counted(self, whole: Callable[[int], int]) -> TensorBatch:
        """With the real labels of all processes, which `whole` makes of those of this one."""
        return self if whole is int else replace(self, count=whole(self.count))

    def split(self, size: int | None) -> Iterator[TensorBatch]:
        """Micro-batches of `size` rows, None being all; `count` stays that of the whole batch."""
        rows = self.input_ids.shape[0]
        if size is None or size >= rows:
            yield self
            return
        for i in range(0, rows, size):
            part = slice(i, i + size)
            yield TensorBatch(
                input_ids=self.input_ids[part],
                labels=self.labels[part],
                count=self.count,
                doc_lens=None if self.doc_lens is None else self.doc_lens[part],
                max_doc_lens=None if self.max_doc_lens is None else self.max_doc_lens[part],
            )


def stage(batch: Batch, pinned: bool = False) -> TensorBatch:
    """Tensors in the host's memory, from which a GPU can fetch them by itself where it is `pinned`.

    Labels get an ignored last column, so that the logits need not be cut (which copies them).
    """
    rows, length = batch.input_ids.shape
    labels = np.full((rows, length), IGNORED, dtype=np.int64)
    labels[:, :-1] = batch.labels

    def tensor(array: np.ndarray) -> Tensor:
        made = torch.from_numpy(array)
        return made.pin_memory() if pinned else made

    return TensorBatch(
        input_ids=tensor(batch.input_ids),
        labels=tensor(labels),
        count=int(np.count_nonzero(batch.labels != IGNORED)),
        doc_lens=None if batch.doc_lens is None else tensor(batch.doc_lens),
        max_doc_lens=batch.max_doc_lens,
        padding=batch.padding,
    )


def to_tensors(
    batch: Batch, device: torch.device, whole: Callable[[int], int] = int
) -> TensorBatch:
    """On the device.

    Args:
        batch: all rows, or those of one process of several.
        device: where to.
        whole: real labels of all processes, from those of this one.
    """
    return stage(batch, device.type == "cuda").to(device).counted(whole)
