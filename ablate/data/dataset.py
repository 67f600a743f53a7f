"""The data of a trial: batches as a pure function of (data, seed, step), and the validation."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from jaxtyping import Int32, Int64

from ablate.config.schema.batching import BatchingConfig
from ablate.data.batching import Layout, Rows, layout_of
from ablate.data.documents import document_lengths
from ablate.data.order import sequence_indices
from ablate.data.tokenizers import ByteTokenizer, JsonTokenizer, Tokenizer
from ablate.data.tokens import TokenStream
from ablate.errors import DataError

__all__ = ["IGNORED", "Batch", "Data"]

IGNORED = -100
"""The label of a position that is not predicted."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Batch:
    """Sequences, each position's successor as its label, and where documents end."""

    input_ids: Int64[np.ndarray, "b t"]
    labels: Int64[np.ndarray, "b s"]
    """input_ids[:, 1:] (s = t - 1), a copy; IGNORED where nothing is to be predicted."""
    doc_lens: Int32[np.ndarray, "b d"] | None = None
    """Lengths of the documents in each row, padded with zeros; None without document masking."""
    max_doc_lens: list[int] | None = None
    indices: Int64[np.ndarray, "b"]
    """Which sequences of the training split (or windows of the validation split) these are."""
    bytes: int = 0
    """UTF-8 bytes that the labels stand for (EOS: none); 0 when unknown."""
    padding: int = 0
    """Positions that hold no token of the data."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Data:
    """Two token streams and what their tokens mean. Nothing is read before it is asked for."""

    name: str
    """The corpus that is really used, also where it stands in for one that could not be fetched."""
    train: TokenStream
    held_out: TokenStream
    vocab_size: int
    eos_token_id: int | None
    pad_token_id: int | None
    token_bytes: Int32[np.ndarray, "v"] | None
    """UTF-8 bytes of each token; None where that is unknown, and then bits per byte are too."""
    fingerprint: str
    """sha256 over both streams."""
    document_masking: bool = False
    batching: BatchingConfig = field(default_factory=BatchingConfig)
    """How training documents become batches; the validation is the same for all."""
    tokenizer_name: str = "bytes"
    tokenizer_source: Tokenizer | Path | None = None
    """The tokenizer, or the tokenizer.json to read it from when it is asked for."""

    def sequences(self, sequence_length: int) -> int:
        """Sequences in an epoch."""
        return self.train.sequences(sequence_length)

    def of_model(self) -> str:
        """The overrides with which a model has just these tokens."""
        fields = {
            "eos_token_id": self.eos_token_id,
            "pad_token_id": self.pad_token_id,
            "vocab_size": self.vocab_size,
        }
        return " ".join(f"model.{k}={v}" for k, v in fields.items() if v is not None)

    def check(self, vocab_size: int, sequence_length: int) -> None:
        """Raises DataError for anything that would fail later, in the middle of a run."""
        known = self.tokenizer_name != "unknown"
        for stream in (self.train, self.held_out):
            stream.check(vocab_size, f"Set {self.of_model()}" if known else None)
        if self.batching.name != "concat":
            self.layout(sequence_length)
        elif self.sequences(sequence_length) == 0:
            longest = max((len(f) for f in self.train.files), default=0)
            raise DataError(
                f"data {self.name}: its longest training file has {longest} tokens, too short for "
                f"one sequence of train.sequence_length={sequence_length}. Give more text, or "
                "lower train.sequence_length."
            )
        if len(self.held_out) < 2:
            raise DataError(
                f"data {self.name}: the validation split has {len(self.held_out)} tokens. Raise "
                "data.validation_fraction, or set data.validation_path."
            )
        if self.document_masking and self.eos_token_id is None:
            raise DataError(
                "data.document_masking=true: it is not known which token ends a document. Set "
                "model.eos_token_id."
            )

    def batch(
        self,
        step: int,
        *,
        seed: int,
        batch_size: int,
        sequence_length: int,
        rows: slice | Int64[np.ndarray, "n"] = slice(None),
    ) -> Batch:
        """The batch of `step` (from 1); of its rows only `rows`, for one rank of several.

        Independent of world size, restarts and arm: rank r of w asks for its rows of the same
        batch.
        """
        if self.batching.name != "concat":
            layout = self.layout(sequence_length)
            return self._documents(
                layout, layout.rows(step, seed=seed, batch_size=batch_size), rows
            )
        indices = sequence_indices(
            step, sequences=self.sequences(sequence_length), seed=seed, batch_size=batch_size
        )[rows]
        input_ids = self.train.rows(indices, sequence_length)
        return self._batch(input_ids, input_ids[:, 1:].copy(), indices, None)

    def with_batching(self, config: BatchingConfig) -> Data:
        return replace(self, batching=config)

    @functools.lru_cache(maxsize=4)  # noqa: B019 (data live as long as the process)
    def layout(self, sequence_length: int) -> Layout:
        """How the documents of the training split lie in batches; not of concat.

        Raises:
            DataError: where no documents are known.
        """
        return layout_of(
            self.train,
            self.batching,
            eos_token_id=self.eos_token_id,
            sequence_length=sequence_length,
            name=self.name,
        )

    def _documents(
        self, layout: Layout, chosen: Rows, rows: slice | Int64[np.ndarray, "n"]
    ) -> Batch:
        """A batch of documents: no label crosses from one into the next, or into the padding."""
        numbers = np.arange(len(chosen.pieces))[rows]
        pad = self.pad_token_id if self.pad_token_id is not None else 0
        shape = (len(numbers), chosen.width)
        input_ids = np.full(shape, pad, dtype=np.int64)
        labels = np.full((shape[0], shape[1] - 1), IGNORED, dtype=np.int64)
        lengths: list[list[int]] = []
        for row, number in enumerate(numbers.tolist()):
            at, inside = 0, []
            for piece in chosen.pieces[number]:
                start, size = int(layout.starts[piece]), int(layout.lengths[piece])
                tokens = self.train.read(start, start + size)
                input_ids[row, at : at + size] = tokens
                labels[row, at : at + size - 1] = tokens[1:]
                inside.append(size)
                at += size
            lengths.append(inside + [chosen.width - at] * (at < chosen.width))
        real = sum(int(layout.lengths[p]) for n in numbers.tolist() for p in chosen.pieces[n])
        doc_lens, longest = None, None
        if layout.name == "packed":
            doc_lens = np.zeros((shape[0], max(map(len, lengths))), dtype=np.int32)
            for row, inside in enumerate(lengths):
                doc_lens[row, : len(inside)] = inside
            longest = [max(inside) for inside in lengths]
        return Batch(
            input_ids=input_ids,
            labels=labels,
            doc_lens=doc_lens,
            max_doc_lens=longest,
            indices=chosen.indices[numbers],
            bytes=self._count_bytes(labels),
            padding=input_ids.size - real,
        )

    def validation(
        self, sequence_length: int, tokens: int | None = None, *, batch_size: int = 16
    ) -> Iterator[Batch]:
        """Passes over the (first `tokens`) held-out tokens, predicting each but the first once.

        Windows overlap by one token: the last of one is the first, unpredicted, of the next. The
        last window is padded on the right to `sequence_length`, its surplus labels IGNORED; the
        last batch may be smaller.
        """
        total = len(self.held_out) if tokens is None else min(tokens, len(self.held_out))
        stride = sequence_length - 1
        windows = -(-(total - 1) // stride) if total > 1 else 0
        for first in range(0, windows, batch_size):
            indices = np.arange(first, min(first + batch_size, windows), dtype=np.int64)
            start = first * stride
            stretch = self.held_out.read(start, min(start + len(indices) * stride + 1, total))
            pad = self.pad_token_id if self.pad_token_id is not None else 0
            missing = len(indices) * stride + 1 - len(stretch)
            padded = np.concatenate([stretch, np.full(missing, pad, dtype=np.int64)])
            input_ids = padded[
                np.arange(sequence_length) + stride * np.arange(len(indices))[:, None]
            ]
            labels = input_ids[:, 1:].copy()
            lengths = np.full(len(indices), sequence_length, dtype=np.int64)
            if missing:
                labels[-1, stride - missing :] = IGNORED
                lengths[-1] -= missing
            yield self._batch(input_ids, labels, indices, lengths)

    def tokenizer(self) -> Tokenizer:
        """For text generation. Raises DataError where it is not known (plain token files)."""
        if isinstance(self.tokenizer_source, Path):
            text = self.tokenizer_source.read_text(encoding="utf-8")
            return JsonTokenizer(self.tokenizer_name, text, self.eos_token_id)
        if self.tokenizer_source is not None:
            return self.tokenizer_source
        if self.tokenizer_name == "bytes" and self.token_bytes is not None:
            return ByteTokenizer()
        raise DataError(
            f"data {self.name}: its tokenizer is not known. Set data.tokenizer to its "
            "tokenizer.json."
        )

    def with_document_masking(self, on: bool) -> Data:
        return replace(self, document_masking=on)

    def _batch(
        self,
        input_ids: Int64[np.ndarray, "b t"],
        labels: Int64[np.ndarray, "b s"],
        indices: Int64[np.ndarray, "b"],
        lengths: Int64[np.ndarray, "b"] | None,
    ) -> Batch:
        doc_lens, max_doc_lens = None, None
        if self.document_masking and self.eos_token_id is not None:
            doc_lens, max_doc_lens = document_lengths(input_ids, self.eos_token_id, lengths)
        return Batch(
            input_ids=input_ids,
            labels=labels,
            doc_lens=doc_lens,
            max_doc_lens=max_doc_lens,
            indices=indices,
            bytes=self._count_bytes(labels),
        )

    def _count_bytes(self, labels: Int64[np.ndarray, "b s"]) -> int:
        if self.token_bytes is None:
            return 0
        return int(self._byte_table[labels].sum(dtype=np.int64))

    @functools.cached_property
    def _byte_table(self) -> Int32[np.ndarray, "v"]:
        """`token_bytes` and zeros behind it, where IGNORED, counted from the end, finds nothing."""
        assert self.token_bytes is not None
        return np.append(self.token_bytes, np.zeros(-IGNORED, dtype=np.int32))
