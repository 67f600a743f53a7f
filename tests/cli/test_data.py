"""`ablate data prepare`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

SWEEP = "# @package _global_\nsweep: {question: Which?, factors: {norm: [norm=rms]}}\n"

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


@pytest.mark.parametrize("where", ["text", "folder", "token files"])
def test_the_remedy_for_another_vocabulary_works_at_once(
    call: Call, small: list[str], where: str
) -> None:
    """Size, end of a document and padding together, as data.json of the folder has them."""
    Path("texts").mkdir()
    words = " ".join(f"{a}{b}ing {b}{a}ed" for a in "bcdfghklmn" for b in "prstvwz")
    for name in "ab":
        Path("texts", f"{name}.txt").write_text(f"{name}: " + f"{words}. " * 60)
    asked = ["data=kjv_bpe", "data.path=texts", "data.cache_dir=cache", "--out", "tokens"]
    code, out, err = call("data", "prepare", *asked)
    assert code == 0, err
    known = json.loads(Path("tokens/data.json").read_text())
    assert known["vocab_size"] > 257
    line = [*small, "data.validation_path=null", "data.cache_dir=cache", "train.steps=1"]
    line += {
        "text": ["data.path=texts", "data.tokenizer=bpe"],
        "folder": ["data.path=tokens"],
        "token files": ["data=tokens", "data.path=tokens"],
    }[where]
    code, _, err = call("train", *line)
    assert code == 2
    assert (
        f"model.eos_token_id=0 model.pad_token_id=0 model.vocab_size={known['vocab_size']}" in err
    )
    remedy = re.findall(
        r"model\.(?:vocab_size|eos_token_id|pad_token_id)=\d+", err.partition(" Set ")[2]
    )
    assert " ".join(remedy) in out, "which said so when it wrote the folder"
    code, _, err = call("train", *line, *remedy)
    assert code == 0, err
    if where != "text":  # whose tokens are made at the launch
        Path("sweeps").mkdir()
        Path("sweeps/mine.yaml").write_text(SWEEP)
        code, _, err = call("plan", "sweep=mine", *line)
        assert code == 2
        assert " ".join(remedy) in err
        assert call("plan", "sweep=mine", *line, *remedy)[0] == 0
