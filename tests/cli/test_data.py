"""`ablate data prepare`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

Call = Callable[..., tuple[int, str, str]]


def test_prepared_files_go_into_a_folder_that_data_path_takes(call: Call) -> None:
    Path("texts").mkdir()
    for name in "ab":
        Path("texts", f"{name}.txt").write_text(f"{name} said: " + "and it was so. " * 600)
    words = ("data", "prepare", "data.cache_dir=cache", "--json")
    code, out, _ = call(*words, "data.path=texts", "--out", "tokens")
    first = json.loads(out)
    assert (code, first["folder"]) == (0, "tokens")
    again = json.loads(call(*words, "data.path=tokens")[1])
    assert again["fingerprint"] == first["fingerprint"]
    code, _, err = call(*words, "data.path=texts", "--out", "tokens")
    assert code == 2
    assert "is not an empty folder" in err
