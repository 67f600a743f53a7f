"""Text of another domain, in the tokens of the training data: what robustness is measured on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ablate.config.schema import DataConfig
from ablate.data.corpora import CORPORA
from ablate.data.dataset import Data
from ablate.data.opening import open_data
from ablate.data.prepared import DESCRIPTION
from ablate.data.texts import find_files, inode
from ablate.data.tokenizers import JsonTokenizer
from ablate.data.tokens import TokenStream
from ablate.errors import DataError

__all__ = ["open_shifted"]

FIELD = "evaluate.shifted_data"


def open_shifted(named: str, config: DataConfig, data: Data, *, progress: bool = False) -> Data:
    """The other text, prepared and cached like any; all of it is held out, its validation first.

    Args:
        named: a corpus, or a path of texts, JSONL, or a prepared folder.
        config: the `data` section of the trial.
        data: what the trial trains on, which has the tokenizer.
        progress: shows a bar on a terminal while something is prepared.

    Raises:
        DataError: where it is not there, is also trained on, or where it is not known to have the
            same tokenizer.
    """
    corpus = named in CORPORA
    if not corpus:
        _refuse_path(named, config)
    own = replace(
        config,
        corpus=named if corpus else None,
        path=None if corpus else named,
        dataset=None,
        validation_path=None,
        format="auto",
        dtype=None,
        tokenizer=_tokenizer(named, config, data),
    )
    try:
        other = open_data(own, eos_token_id=data.eos_token_id, progress=progress, substitute=False)
    except DataError as error:
        raise DataError(f"{FIELD}={named}: {error}") from None
    identity = _identity(other)
    if identity is None or identity != _identity(data) or other.vocab_size != data.vocab_size:
        raise DataError(
            f"{FIELD}={named}: its tokens ({other.tokenizer_name}, {other.vocab_size} of them) are "
            f"not known to be those of the training data ({data.tokenizer_name}, "
            f"{data.vocab_size}), so the losses could not be compared. Name text, which is "
            "tokenised like the training data."
        )
    trained = config.corpus if config.path is None and config.dataset is None else None
    if named == trained or other.fingerprint == data.fingerprint:
        raise DataError(f"{FIELD}={named} is the text that is trained on. Name another.")
    return replace(other, held_out=TokenStream([*other.held_out.files, *other.train.files]))


def _refuse_path(named: str, config: DataConfig) -> None:
    """What is not there, or is trained on or validated already."""
    if not Path(named).expanduser().exists():
        raise DataError(
            f"{FIELD}={named}: there is no such corpus (known: {', '.join(CORPORA)}), and no such "
            f"file or folder (looked for {Path(named).expanduser().absolute()})."
        )
    files = _files(named, FIELD)
    for field, paths in (("path", config.path), ("validation_path", config.validation_path)):
        shared = files.keys() & _files(paths, f"data.{field}", config.format).keys()
        if shared:
            first = min(files[each] for each in shared)
            raise DataError(
                f"{FIELD}={named}: {first} belongs to data.{field} too, so it is no other "
                "domain. Name other files."
            )


def _files(
    paths: str | list[str] | None, field: str, wanted: str = "auto"
) -> dict[tuple[int, int], Path]:
    """By inode; none of a prepared folder, which its fingerprint tells from others."""
    if paths is None:
        return {}
    if isinstance(paths, str) and (Path(paths).expanduser() / DESCRIPTION).is_file():
        return {}
    return {inode(path): path for path in find_files(paths, field, wanted)}


def _tokenizer(named: str, config: DataConfig, data: Data) -> str:
    """Of the training data, as data.tokenizer names it; a trained one by its file."""
    if isinstance(data.tokenizer_source, Path):
        return str(data.tokenizer_source)
    if data.tokenizer_source is not None:
        return config.tokenizer
    if _identity(data) == "bytes":
        return "bytes"
    raise DataError(
        f"{FIELD}={named}: the tokenizer of the training data ({data.name}) is not known, so no "
        "other text can be put into its tokens. Set data.tokenizer to its tokenizer.json."
    )


def _identity(data: Data) -> str | None:
    """Equal where two tokenizers are; None where it is not known."""
    source = data.tokenizer_source
    if isinstance(source, Path):
        return source.read_text(encoding="utf-8")
    if isinstance(source, JsonTokenizer):
        return source.serialised
    known = data.tokenizer_name == "bytes" and data.token_bytes is not None
    return "bytes" if known else None
