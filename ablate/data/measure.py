"""The table of the corpora: `python -m ablate.data.measure [CORPUS ...]` prints it as Markdown.

gzip -9 of the held-out text, in bits per byte, is the bar that a trained model must pass.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Sequence

from ablate.config.schema import DataConfig
from ablate.data.cache import cache_folder
from ablate.data.corpora import CORPORA
from ablate.data.dataset import Data
from ablate.data.opening import open_data
from ablate.data.sources import corpus_source
from ablate.data.tokens import TokenStream
from ablate.errors import DataError

__all__ = ["main", "measure"]

HEADER = (
    "| corpus | text | licence | documents | bytes | tokens (bytes) | tokens (bpe 4096) "
    "| held-out bytes | gzip -9, all | gzip -9, held out |\n"
    "|---|---|---|---:|---:|---:|---:|---:|---:|---:|\n"
)


def measure(name: str) -> str:
    """One row of the table; fetches and prepares the corpus where it is not cached."""
    corpus = CORPORA[name]
    data = open_data(DataConfig(corpus=name), progress=True)
    if data.name != name:
        raise DataError(f"{name} could not be fetched.")
    bpe = open_data(DataConfig(corpus=name, tokenizer="bpe"), progress=True)
    texts = [t.encode() for t in corpus_source(corpus, cache_folder(None)).documents()]
    whole, held_out = b"".join(texts), _text(data, data.held_out)
    cells = [
        f"`{name}`",
        corpus.summary,
        corpus.licence,
        f"{len(texts):,}",
        f"{len(whole):,}",
        f"{len(data.train) + len(data.held_out):,}",
        f"{len(bpe.train) + len(bpe.held_out):,}",
        f"{len(held_out):,}",
        f"{_gzip_bits(whole):.3f}",
        f"{_gzip_bits(held_out):.3f}",
    ]
    return "| " + " | ".join(cells) + " |\n"


def main(names: Sequence[str]) -> None:
    sys.stdout.write(HEADER)
    for name in names or list(CORPORA):
        sys.stdout.write(measure(name))
        sys.stdout.flush()


def _text(data: Data, stream: TokenStream) -> bytes:
    tokens = stream.read(0, len(stream))
    return tokens[tokens != data.eos_token_id].astype("u1").tobytes()


def _gzip_bits(text: bytes) -> float:
    """Compressed bits per byte of text, the 18 bytes of gzip's frame included."""
    compressor = zlib.compressobj(level=9, wbits=31)
    return 8 * len(compressor.compress(text) + compressor.flush()) / len(text)


if __name__ == "__main__":
    main(sys.argv[1:])
