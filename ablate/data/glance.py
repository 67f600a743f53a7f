"""What can be said of text without reading it: whether it is there, and long enough."""

from __future__ import annotations

from pathlib import Path

from ablate.config.schema import DataConfig
from ablate.data.prepared import is_prepared, read_description
from ablate.data.texts import PASSAGE, find_files
from ablate.errors import DataError

__all__ = ["glance", "is_token_folder"]


def glance(config: DataConfig, length: int) -> bool:
    """Refuses what is certainly too little; reads sizes, and no text.

    Args:
        config: the `data` section. Corpora and data sets are found when they are opened.
        length: tokens of a sequence.

    Returns:
        Whether it is text, which the tokenizer turns into tokens.

    Raises:
        DataError: for a path that is missing, empty or of a foreign kind; for fewer tokens than one
            sequence has.
    """
    if config.path is None:
        return True
    text, most = _most_tokens(config.path, "data.path", config)
    if config.validation_path is not None:
        _most_tokens(config.validation_path, "data.validation_path", config)
    if most is not None and most < length:
        raise DataError(
            f"data.path={config.path}: at most {most} tokens, too short for one sequence of "
            f"{length} tokens (train.sequence_length, else model.max_sequence_length). Give more "
            "text, or lower the length."
        )
    return text


def is_token_folder(config: DataConfig) -> bool:
    """Whether data.path names a folder that `ablate data prepare --out` wrote."""
    return isinstance(config.path, str) and is_prepared(Path(config.path).expanduser().absolute())


def _most_tokens(paths: str | list[str], field: str, config: DataConfig) -> tuple[bool, int | None]:
    """Whether it is text, and at most how many tokens.

    No tokenizer makes more tokens than there are bytes, with one that ends each document: a file,
    a line of JSONL (whose braces and name are more bytes than that), and of text that is named
    directly each passage (`texts.text_documents`).
    """
    if isinstance(paths, str) and is_prepared(folder := Path(paths).expanduser().absolute()):
        return False, int(read_description(folder)["train"]["tokens"])
    files = find_files(paths, field, config.format)
    text = not any(kind == "tokens" for kind, _ in files.values())
    if any(path.suffix == ".gz" for path in files):
        return text, None
    size = sum(path.stat().st_size for path in files)
    if not text:
        bits = int((config.dtype or "uint16").removeprefix("uint"))
        return text, 8 * size // bits
    cut = [p for p, (kind, directly) in files.items() if kind == "text" and directly]
    return text, size + len(files) + sum(path.stat().st_size // PASSAGE for path in cut)
