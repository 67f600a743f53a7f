"""What a batch was made of: its sequences, the documents in them, and how they read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ablate.config.schema import TrialConfig
from ablate.data.dataset import Data
from ablate.data.documents import repetitive
from ablate.data.opening import open_data
from ablate.errors import DataError

__all__ = ["NamedSequence", "batches_of", "name_batch", "readable"]

CHUNK = 1 << 22


@dataclass(frozen=True, kw_only=True)
class NamedSequence:
    """One row of a batch."""

    sequence: int
    """Its number in the training split."""
    documents: tuple[int, int] | None
    """First and last document of the training split in it, counted from 0; None without EOS."""
    repetitive: bool
    """OLMo 2's rule: an n-gram repeated 32 times or more."""
    text: str
    """How it reads, or its token numbers where the tokenizer is not known."""


def batches_of(config: Mapping[str, Any], numbers: Iterable[int]) -> dict[int, dict[str, Any]]:
    """Number -> batch, sequences, documents, repetitive, texts, of a trial's batches.

    Args:
        config: of the trial; its data are opened, and made where they are not there.
        numbers: of the batches.
    """
    typed = TrialConfig.from_mapping(config)
    data = open_data(typed.data, eos_token_id=typed.model.get("eos_token_id"))
    data = data.with_batching(typed.batching)
    length = typed.train.sequence_length or typed.model["max_sequence_length"]
    named = {}
    for number in numbers:
        rows = name_batch(
            data, number, seed=typed.seed, batch_size=typed.train.batch_size,
            sequence_length=length,
        )  # fmt: skip
        pairs = [r.documents for r in rows if r.documents]
        documents = {d for first, last in pairs for d in range(first, last + 1)}
        named[number] = {
            "batch": number,
            "sequences": [r.sequence for r in rows],
            "documents": sorted(documents) if documents else None,
            "repetitive": [r.sequence for r in rows if r.repetitive],
            "texts": [r.text for r in rows],
        }
    return named


def name_batch(
    data: Data, number: int, *, seed: int, batch_size: int, sequence_length: int
) -> list[NamedSequence]:
    """The rows of batch `number` (that of step t is t, unless a response changed the order)."""
    batch = data.batch(number, seed=seed, batch_size=batch_size, sequence_length=sequence_length)
    rows, indices = batch.input_ids, batch.indices
    if data.batching.name != "concat":
        one = data.batching.name != "packed"  # document a row
        return [
            NamedSequence(sequence=i, documents=(i, i) if one else None, repetitive=False,
                          text=readable(data, row))
            for i, row in zip(indices.tolist(), rows, strict=True)
        ]  # fmt: skip
    loops = repetitive(rows)
    starts = [_start(data, int(i), sequence_length) for i in indices]
    before = _documents_before(data, starts)
    named = []
    for i, index in enumerate(indices.tolist()):
        documents = None
        if before is not None:
            ends = int(np.count_nonzero(rows[i, :-1] == data.eos_token_id))
            documents = (before[i], before[i] + ends)
        named.append(
            NamedSequence(
                sequence=index,
                documents=documents,
                repetitive=bool(loops[i]),
                text=readable(data, rows[i]),
            )
        )
    return named


def readable(data: Data, tokens: np.ndarray, width: int = 200) -> str:
    """The beginning of `tokens` as text on one line."""
    try:
        text = data.tokenizer().decode(tokens)
    except DataError:
        text = " ".join(map(str, tokens[: width // 4].tolist()))
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return text if len(text) <= width else text[: width - 3] + "..."


def _start(data: Data, sequence: int, length: int) -> tuple[int, int]:
    """(file, first token in it) of a sequence."""
    for number, file in enumerate(data.train.files):
        here = len(file) // length
        if sequence < here:
            return number, sequence * length
        sequence -= here
    raise IndexError(sequence)


def _documents_before(data: Data, places: list[tuple[int, int]]) -> list[int] | None:
    """How many documents end before each place; one pass over the tokens up to the last place."""
    if data.eos_token_id is None:
        return None
    counts, total = dict.fromkeys(places, 0), 0
    last = max(places)
    for number, file in enumerate(data.train.files[: last[0] + 1]):
        tokens = file.tokens()
        wanted = sorted(at for f, at in counts if f == number)
        at = 0
        for stop in [*wanted, len(tokens)] if number < last[0] else wanted:
            while at < stop:
                end = min(at + CHUNK, stop)
                total += int(np.count_nonzero(tokens[at:end] == data.eos_token_id))
                at = end
            if (number, stop) in counts:
                counts[number, stop] = total
    return [counts[p] for p in places]
